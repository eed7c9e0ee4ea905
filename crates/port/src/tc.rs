//! Ports of the kind `tc`: a UDP socket, beside which the kernel forwards streams, and copies what
//! the socket sends to a group.
//!
//! A proxy of this kind does not ask the kernel to gather what arrives: the kernel forwards single
//! datagrams, and leaves a buffer of several of them to the machine. For the same reason settings
//! turn segmentation off for this kind. A port that segments hands the kernel one buffer for all
//! members of a group. The bytes of the buffer are then copied once, and clones share them.
//!
//! A datagram that the kernel shall copy passes the kernel's program within the call that sends it.
//! So what this port sent with a mark and what the program counted are equal, unless another
//! program or a rule of the host takes the packet or its mark away. The port compares both numbers,
//! and sends copies one by one where datagrams are missed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evenfall_core::{ClockReading, GroupId, Install, Installed, Timestamp};
use evenfall_host::clock::MonotonicClock;
use evenfall_host::{Error, interrupt};
use evenfall_port_ebpf::{CopyWay, KernelForwarder};

use crate::udp::copies::{CopyGate, MarkedWay};
use crate::udp::{ForwardingBackend, UdpDriver};
use crate::{Answer, Options};

/// The place of live frames among the code points of the classes.
const LIVE: usize = evenfall_core::TrafficClass::Live as usize;
/// How long copies leave one by one after the program missed a datagram. What took the packets away
/// may have been changed by then, and a missed datagram costs a repair.
const SHUT_FOR: Duration = Duration::from_secs(10);

pub(crate) fn open(address: SocketAddr, options: Options) -> Result<UdpDriver, Error> {
    let options = Options { coalescing: false, ..options };
    let tos = options.dscp.map_or(0, |points| points[LIVE] << 2);
    let mut driver = UdpDriver::bind(address, options)?;
    driver.forward_beside(|local| {
        let forwarder = KernelForwarder::attach(local, tos)?;
        let (groups, reloads) = (BTreeMap::new(), interrupt::reloads_asked());
        Ok(Box::new(KernelBackend { forwarder, groups, reloads }) as Box<dyn ForwardingBackend>)
    })?;
    Ok(driver)
}

/// A group whose copies the kernel makes when it can.
struct CopiedGroup {
    gate: Arc<CopyGate>,
    members: usize,
    /// Datagrams with a mark that the program had not seen at the last look.
    unseen: u64,
    /// Datagrams with a mark that the program never saw.
    missed: u64,
    /// Copies that the kernel did not take, as far as they are told.
    failed: u64,
    shut_until: Option<Timestamp>,
}

impl CopiedGroup {
    fn new(gate: Arc<CopyGate>, members: usize) -> Self {
        Self { gate, members, unseen: 0, missed: 0, failed: 0, shut_until: None }
    }

    /// Opens or shuts the gate. `copied` are the datagrams that the program has seen. Returns the
    /// datagrams that it missed, when that shuts the gate.
    fn follow(&mut self, now: Timestamp, way: Option<CopyWay>, copied: u64) -> u64 {
        let unseen = self.gate.sent().saturating_sub(self.missed + copied);
        // A packet that waits for the hardware address of its way passes the program later.
        let missed = if unseen > 0 && self.unseen > 0 { unseen } else { 0 };
        self.unseen = unseen - missed;
        self.missed += missed;
        if missed > 0 {
            self.shut_until = Some(now + SHUT_FOR);
        }
        self.shut_until = self.shut_until.filter(|until| now < *until);
        match way.filter(|_| self.shut_until.is_none()) {
            Some(CopyWay { mark, lead, datagram_bytes_max }) => {
                self.gate.open_gate(MarkedWay { mark, lead }, datagram_bytes_max);
            }
            None => self.gate.shut_gate(),
        }
        missed
    }
}

struct KernelBackend {
    forwarder: KernelForwarder,
    groups: BTreeMap<(usize, GroupId), CopiedGroup>,
    /// Reloads that were asked for at the last look.
    reloads: u64,
}

impl KernelBackend {
    /// Attaches the programs anew when a signal asks for it. Meanwhile no datagram is left to the
    /// program that copies.
    fn follow_reloads(&mut self) {
        let asked = interrupt::reloads_asked();
        if asked == self.reloads {
            return;
        }
        self.reloads = asked;
        self.groups.values().for_each(|group| group.gate.shut_gate());
        match self.forwarder.attach_anew() {
            Ok(()) => tracing::info!("the programs of the port are attached anew, as asked"),
            Err(error) => self.forwarder.say_once(format!("datagrams go by hand: {error}")),
        }
    }

    /// Opens and shuts the gates. Returns the copies that did not leave.
    fn follow_groups(&mut self, now: Timestamp) -> u64 {
        let mut lost = 0;
        for ((owner, id), group) in &mut self.groups {
            let way = self.forwarder.way_of(*owner, *id);
            let missed = group.follow(now, way, self.forwarder.datagrams_copied(*owner, *id));
            if missed > 0 {
                // The datagram itself went to one member.
                lost += missed * (group.members as u64 - 1);
                self.forwarder.say_once(format!(
                    "copies leave by hand for {SHUT_FOR:?}: {missed} datagrams did not come to the \
                     program that copies them. Does another program or a rule of the firewall take \
                     their mark away?"
                ));
            }
            let failed = self.forwarder.copies_failed(*owner, *id);
            lost += failed.saturating_sub(group.failed);
            group.failed = failed;
        }
        lost
    }
}

impl ForwardingBackend for KernelBackend {
    fn mark(&self) -> u32 {
        self.forwarder.mark()
    }

    fn install(
        &mut self,
        owner: usize,
        install: &Install,
        gate: Option<Arc<CopyGate>>,
    ) -> Installed {
        match install {
            Install::Group(id, members) => {
                if let Some(before) = self.groups.remove(&(owner, *id)) {
                    before.gate.shut_gate();
                }
                self.forwarder.install_group(owner, *id, members);
                if let Some(gate) = gate {
                    let mut group = CopiedGroup::new(gate, members.len());
                    group.follow(MonotonicClock::now(), self.forwarder.way_of(owner, *id), 0);
                    self.groups.insert((owner, *id), group);
                }
                Installed::Taken
            }
            Install::Forward(id, rules) => {
                self.forwarder.install_forward(owner, *id, rules.as_ref())
            }
            _ => Installed::Ignored,
        }
    }

    fn answers(&mut self, out: &mut Vec<Answer>) -> u64 {
        let now = MonotonicClock::now();
        self.follow_reloads();
        let has_looked = self.forwarder.look(now, |owner, of, counters| {
            out.push(Answer::Counters(owner, of, counters));
        });
        if has_looked { self.follow_groups(now) } else { 0 }
    }

    fn adopt_clock(&mut self, reading: ClockReading) {
        self.forwarder.adopt_clock(reading);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAY: CopyWay = CopyWay { mark: 0xef00_0040, lead: 1, datagram_bytes_max: 1_472 };

    fn at(ms: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn the_gate_lets_through_what_every_link_takes() {
        let gate = Arc::new(CopyGate::default());
        assert_eq!(gate.way_for(0), None);
        CopiedGroup::new(Arc::clone(&gate), 3).follow(at(0), Some(WAY), 0);
        let way = Some(MarkedWay { mark: 0xef00_0040, lead: 1 });
        assert_eq!((gate.way_for(1_472), gate.way_for(1_473)), (way, None));
    }

    #[test]
    fn datagrams_that_the_program_misses_shut_the_gate_for_a_while() {
        let gate = Arc::new(CopyGate::default());
        let mut group = CopiedGroup::new(Arc::clone(&gate), 3);
        group.follow(at(0), Some(WAY), 0);
        (0..5).for_each(|_| gate.count_sent());
        assert_eq!(group.follow(at(20), Some(WAY), 3), 0, "two may still be on their way");
        assert!(gate.way_for(9).is_some());
        assert_eq!(group.follow(at(40), Some(WAY), 3), 2);
        assert!(gate.way_for(9).is_none());
        assert_eq!(group.follow(at(60), Some(WAY), 3), 0);
        assert!(gate.way_for(9).is_none());
        assert_eq!(group.follow(at(10_040), Some(WAY), 3), 0);
        assert!(gate.way_for(9).is_some(), "tried again");
        gate.count_sent();
        assert_eq!(group.follow(at(10_060), Some(WAY), 4), 0, "what was missed before is known");
        assert_eq!(group.follow(at(10_080), None, 4), 0);
        assert!(gate.way_for(9).is_none(), "no way");
    }
}
