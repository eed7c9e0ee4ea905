//! The multicast root in front of the driver, as a source for `crate::fanout`. The cost of a copy
//! then includes numbering, framing, deadline, repair ring and header.

use std::net::SocketAddr;
use std::time::Duration;

use crate::fanout::{FanoutBench, Source};
use evenfall_core::{
    Arrival, Destination, Format, Install, Machine, NodeId, StampedBy, Timestamp, Transmit,
};
use evenfall_host::clock::MonotonicClock;
use evenfall_multicast_machine::{
    Config, Identity, Mode, Receiver, Root, RootEvent, RootRun, SharedKey,
};

/// Time after which the root removes a silent receiver. Sinks never answer, and the root must keep
/// them for the whole measurement.
const LONG: Duration = Duration::from_secs(3_600);
/// Limit of steps until all receivers have joined. A step is one exchange of datagrams.
const STEPS_MAX: usize = 10_000;

/// A root whose children are the sinks, as the children of a proxy are receivers.
pub struct RootSource {
    root: Root,
    message: Vec<u8>,
    key: Option<SharedKey>,
    config: Config,
}

impl RootSource {
    /// A root for this measurement. With a key, the root seals its datagrams.
    pub fn new(bench: &FanoutBench, key: Option<SharedKey>) -> Self {
        let mut config = Config { mode: Mode::Cloudex, ..Config::default() };
        config.framing.messages_max = bench.pack as u16;
        config.membership.silence = LONG;
        config.membership.expect_receivers = bench.fanout as u32;
        let run = RootRun::new(1, [1; 24]);
        let root = Root::new(config, NodeId(0), 0, run, key.as_ref(), MonotonicClock::now());
        Self { root, message: vec![42; bench.size], key, config }
    }

    /// Lets a receiver machine join for each sink. The datagrams are passed in memory.
    fn form(&mut self, sinks: &[SocketAddr]) -> Vec<Install> {
        // Any address does, as long as all machines use the same.
        let root_at = SocketAddr::from(([127, 0, 0, 1], 1));
        let mut now = MonotonicClock::now();
        let receiver = |i: usize| {
            let id = NodeId(i as u32 + 1);
            let who = Identity { id, stream: 0, root: root_at, standbys: vec![], incarnation: 1 };
            Receiver::new(self.config, who, self.key.as_ref(), now)
        };
        let mut receivers: Vec<Receiver> = (0..sinks.len()).map(receiver).collect();
        let mut installs = Vec::new();
        for _ in 0..STEPS_MAX {
            now += Duration::from_millis(1);
            self.root.handle_timeout(now);
            for (receiver, from) in receivers.iter_mut().zip(sinks) {
                receiver.handle_timeout(now);
                while let Some(transmit) = receiver.poll_transmit(now) {
                    // A datagram that arrives too early is refused, and its machine sends it again.
                    self.root.handle(now, arrival(&transmit, *from, now)).ok();
                }
            }
            while let Some(transmit) = self.root.poll_transmit(now) {
                for (receiver, at) in receivers.iter_mut().zip(sinks) {
                    let is_for_it = match transmit.to {
                        Destination::One(to) => to == *at,
                        Destination::Group(_) => true,
                    };
                    if is_for_it {
                        receiver.handle(now, arrival(&transmit, root_at, now)).ok();
                    }
                }
            }
            while let Some(install) = self.root.poll_install() {
                installs.push(install);
            }
            let formed = |event| matches!(event, RootEvent::View(_));
            if core::iter::from_fn(|| self.root.poll_event()).any(formed) {
                return installs;
            }
        }
        panic!("{} receivers did not form a tree in {STEPS_MAX} exchanges", sinks.len());
    }
}

fn arrival(transmit: &Transmit, from: SocketAddr, now: Timestamp) -> Arrival {
    let datagram = [transmit.head.as_slice(), &transmit.body].concat().into();
    Arrival::new(from, datagram, now, StampedBy::User)
}

impl Source for RootSource {
    fn start(&mut self, receivers: &[SocketAddr]) -> Vec<Install> {
        let installs = self.form(receivers);
        while self.root.poll_transmit(MonotonicClock::now()).is_some() {}
        installs
    }

    fn next(&mut self, now: Timestamp, messages: usize, push: &mut dyn FnMut(Transmit)) -> usize {
        for _ in 0..messages {
            // The burst is below the limit of the queue. A full queue would show as a lost copy.
            self.root.publish(now, Format::OPAQUE, &self.message).ok();
        }
        self.root.flush(now);
        let mut datagrams = 0;
        while let Some(transmit) = self.root.poll_transmit(now) {
            push(transmit);
            datagrams += 1;
        }
        while self.root.poll_event().is_some() {}
        datagrams
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fanout::{Sinks, bench_source};

    #[test]
    fn every_copy_of_a_root_arrives() {
        for key in [None, Some(SharedKey::new(1, [7; 32]))] {
            let duration = Duration::from_millis(60);
            let bench = FanoutBench { duration, fanout: 3, ..FanoutBench::unbatched() };
            let sinks = Sinks::start(bench.fanout, bench.coalesce).unwrap();
            let result = bench_source(&bench, &sinks, &mut RootSource::new(&bench, key)).unwrap();
            assert!(result.messages > 100, "{result:?}");
            assert_eq!((result.copies, result.lost), (3 * result.messages, 0));
        }
    }
}
