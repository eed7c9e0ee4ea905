//! Checks that the fuzz targets and the replay of their corpora call. Each check takes any bytes,
//! and panics when a promise breaks.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use evenfall_core::{
    Arrival, ClockError, ClockReading, Destination, Format, GroupId, Install, Machine, MasterKey,
    NodeId, StampedBy, SyncTime, Timestamp, TrafficClass, Transmit,
};

use crate::config::{Config, Mode};
use crate::control::{
    Beacon, Begin, Join, Located, Report, TreePosition, decode_pair, decode_ranges, decode_verdict,
    encode_pair, encode_ranges,
};
use crate::forging::{ToySigner, ToyVerifier};
use crate::seal::{Seal, SharedKey};
use crate::signing::SignedBatch;
use crate::uplink::Identity;
use crate::wire::{self, DatagramKind, Hop, Messages, OriginHeader};
use crate::{Archived, Receiver, Recorder, Relay, ReleaseAfter, Root, RootRun, Wanted};

/// Takes a datagram, and its bytes as the body of every kind that has a body.
/// Encoding a decoded value gives the same bytes.
pub fn wire(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    if let Ok(datagram) = wire::parse(&bytes) {
        let header = wire::encode_header(&datagram.fixed, &datagram.hop);
        // Other tests compare the authentication code.
        assert_eq!(header[..wire::MAC_OFFSET], data[..wire::MAC_OFFSET]);
        let key = SharedKey::new(1, [3; 32]);
        for seal in [None, Some(&key)] {
            let mut seal = Seal::new(seal);
            let _ = (seal.verify(&datagram), seal.open(&datagram.fixed, &datagram.body));
        }
        if let Ok(messages) = Messages::new(datagram.body.clone(), datagram.fixed.count) {
            assert_eq!(messages.count(), usize::from(datagram.fixed.count));
        }
        body(&datagram.body);
    }
    body(data);
}

fn body(data: &[u8]) {
    if let Ok(join) = Join::decode(data) {
        assert_eq!(join.encode(), data);
    }
    if let Ok(place) = TreePosition::decode(data) {
        assert_eq!(TreePosition::decode(&place.encode()), Ok(place));
    }
    if let Ok(beacon) = Beacon::decode(data) {
        assert_eq!(Beacon::decode(&beacon.encode()), Ok(beacon));
    }
    if let Ok(ranges) = decode_ranges(data) {
        assert_eq!(encode_ranges(&ranges), data);
    }
    if let Ok(mut report) = Report::decode(data) {
        let Report { samples, members, spreads, .. } = report.clone();
        let body = report.encode(usize::MAX);
        let again = Report::decode(&body).expect("what is written can be read");
        assert_eq!((again.tally, again.samples), (report.tally, samples));
        assert_eq!((again.members, again.spreads), (members, spreads));
    }
    if let Ok(begin) = Begin::decode(data) {
        assert_eq!(Begin::decode(&begin.encode()), Ok(begin));
    }
    if let Ok(located) = Located::decode(data) {
        assert_eq!(Located::decode(&located.encode()), Ok(located));
    }
    if let Ok(batch) = SignedBatch::decode(data) {
        assert_eq!(batch.encode(), data);
    }
    if let Ok((first, second)) = decode_pair(data) {
        assert_eq!(encode_pair(first, second), data);
    }
    let _ = decode_verdict(data);
}

/// Reads a script. A script that has ended gives zeroes.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        byte
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    /// Draws mostly small numbers, and sometimes a number at an edge.
    fn number(&mut self) -> u64 {
        match self.byte() {
            255 => u64::MAX,
            254 => u64::MAX - 1,
            253 => 1 << 62,
            252 => 1 << 32,
            251 => 65_536,
            small => small.into(),
        }
    }
}

/// Frames under way at most. Frames beyond this number are lost.
const FLIGHT_MAX: usize = 256;
/// Transmits pulled after an input, as by a driver with little room.
const PULL_MAX: usize = 64;
/// Steps of a script.
const STEPS_MAX: usize = 500;
/// How long a key of the run is in use, so that scripts see some keys come and go.
const KEY_LIFETIME: Duration = Duration::from_millis(300);
/// Place of the recorder among the machines.
const RECORDER: usize = 4;
/// Times that a machine may be due again at the same moment.
const DUE_MAX: usize = 1_000;

fn address(machine: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], machine as u16 + 1))
}

struct Stage {
    now: Timestamp,
    config: Config,
    root: Root,
    relay: Relay,
    receivers: [Receiver; 2],
    recorder: Recorder,
    groups: BTreeMap<(usize, GroupId), Arc<[SocketAddr]>>,
    flight: VecDeque<(usize, Transmit)>,
}

/// Runs whole machines: a root, a proxy, two receivers and a recorder. The script sends genuine,
/// forged and broken datagrams, loses and delays some, publishes, gives orders, and lets clocks
/// step and time pass.
pub fn machines(data: &[u8]) {
    let mut script = Script(data);
    let mut stage = Stage::new(&mut script);
    for _ in 0..STEPS_MAX {
        if script.0.is_empty() {
            break;
        }
        stage.step(&mut script);
        for receiver in &stage.receivers {
            assert!(receiver.status().held <= stage.config.framing.held_frames as u64);
        }
    }
}

/// Hands one input to a machine of any role, and does a driver's next steps.
macro_rules! with {
    ($stage:ident, $which:expr, $machine:ident => $input:expr) => {{
        let which = $which;
        let Stage { root, relay, receivers, recorder, groups, flight, now, .. } = $stage;
        match which {
            0 => {
                let $machine = root;
                $input;
                after(which, $machine, *now, groups, flight);
            }
            1 => {
                let $machine = relay;
                $input;
                after(which, $machine, *now, groups, flight);
            }
            RECORDER => {
                let $machine = recorder;
                $input;
                answer($machine);
                after(which, $machine, *now, groups, flight);
            }
            _ => {
                let $machine = &mut receivers[which - 2];
                $input;
                after(which, $machine, *now, groups, flight);
            }
        }
    }};
}

/// Hands an input to the root.
macro_rules! with_root {
    ($stage:ident, $machine:ident => $input:expr) => {{
        let Stage { root: $machine, groups, flight, now, .. } = $stage;
        let now = *now;
        $input(now);
        after(0, $machine, now, groups, flight);
    }};
}

/// Does the work of a recorder's owner. The owner has every other frame, and answers at once.
fn answer(recorder: &mut Recorder) {
    while let Some(wanted) = recorder.poll_wanted() {
        match wanted {
            Wanted::Frames { asker, first, count } => {
                let frames = (first..first.saturating_add(count.into())).step_by(2);
                let archived = |sequence| Archived {
                    sequence,
                    first_message: sequence,
                    origin: SyncTime::ZERO,
                    deadline: None,
                    format: Format::OPAQUE,
                    messages: vec![Bytes::from_static(b"archived")],
                    signature: None,
                };
                recorder.supply(asker, count, frames.map(archived));
            }
            Wanted::Location { asker, begin } => recorder.locate(asker, begin, Some((0, 0))),
        }
    }
}

/// Does a driver's work after an input.
fn after<M: Machine>(
    which: usize,
    machine: &mut M,
    now: Timestamp,
    groups: &mut BTreeMap<(usize, GroupId), Arc<[SocketAddr]>>,
    flight: &mut VecDeque<(usize, Transmit)>,
) {
    while machine.poll_event().is_some() {}
    while let Some(install) = machine.poll_install() {
        if let Install::Group(id, members) = install {
            groups.insert((which, id), members);
        }
    }
    for _ in 0..PULL_MAX {
        let Some(transmit) = machine.poll_transmit(now) else { break };
        if flight.len() < FLIGHT_MAX {
            flight.push_back((which, transmit));
        }
    }
}

impl Stage {
    fn new(script: &mut Script<'_>) -> Self {
        let mut config = Config::default();
        let modes = [Mode::Release, Mode::Tree, Mode::Hedge, Mode::Unicast, Mode::Cloudex];
        let choice = script.byte();
        config.mode = modes[usize::from(choice) % modes.len()];
        config.shape.depth = if config.mode.direct() { None } else { Some(2) };
        config.repair.window_frames = 64;
        config.repair.ring_frames = 64;
        config.repair.ring_bytes = 16 << 10;
        config.repair.child_queue_max = 32;
        config.repair.evict_after_drops = 64;
        config.framing.held_frames = 64;
        config.framing.send_queue_frames = 64;
        config.membership.expect_timeout = Duration::from_millis(100);
        let key = SharedKey::new(1, [9; 32]);
        let key = (choice & 128 != 0).then_some(&key);
        let now = Timestamp::from_nanos(1_000_000_000);
        let who = |id: u32| Identity {
            id: NodeId(id),
            stream: 0,
            root: address(0),
            standbys: vec![],
            incarnation: 1,
        };
        let is_signed = choice & 32 != 0;
        let has_node_keys = choice & 144 == 144;
        let master = MasterKey::new([8; 32]);
        let mut root = Root::new(config, NodeId(0), 0, RootRun::new(1, [7; 24]), key, now);
        let mut relay = Relay::new(config, who(1), key, now);
        let mut recorder = Recorder::new(config, who(4), key, now);
        if has_node_keys {
            root = root.with_node_keys(master.clone(), KEY_LIFETIME);
            relay = relay.with_node_key(master.node(NodeId(1)));
            recorder = recorder.with_node_key(master.node(NodeId(4)));
        }
        Self {
            now,
            config,
            root: if is_signed { root.sign_frames(Arc::new(ToySigner(1))) } else { root },
            relay,
            receivers: [2, 3].map(|id| {
                let mut receiver = Receiver::new(config, who(id), key, now);
                if has_node_keys {
                    receiver = receiver.with_node_key(master.node(NodeId(id)));
                }
                if is_signed {
                    let rule = [ReleaseAfter::Deadline, ReleaseAfter::Verified][id as usize - 2];
                    receiver = receiver.check_signatures(Arc::new(ToyVerifier(vec![1])), rule);
                }
                let is_late = id == 3 && choice & 64 != 0;
                if is_late { receiver.beginning(Begin::Start) } else { receiver }
            }),
            recorder,
            groups: BTreeMap::new(),
            flight: VecDeque::new(),
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        let op = script.byte();
        let which = if op >> 4 == 15 { RECORDER } else { usize::from(op >> 4) % 4 };
        match op & 15 {
            0 => self.pass(Duration::from_nanos(1 << (script.byte() % 36))),
            1 => {
                let length = usize::from(script.byte());
                self.arrive(which, address(9), Bytes::copy_from_slice(script.bytes(length)));
            }
            2..=4 => self.forge(which, script),
            5 => drop(self.flight.pop_front()),
            6 => self.flight.rotate_left(usize::from(script.byte()) % self.flight.len().max(1)),
            7 | 8 => self.deliver(),
            9 => {
                let message = script.bytes(usize::from(op));
                let format = Format(op >> 7);
                with_root!(self, root => |now| root.publish(now, format, message).is_ok());
                with_root!(self, root => |now| root.flush(now));
            }
            10 => self.order(which, script),
            11 => {
                let error = [
                    ClockError::SameClock,
                    ClockError::Unknown,
                    ClockError::Within(Duration::from_micros(script.byte().into())),
                ];
                let error = error[usize::from(script.byte()) % 3];
                let offset_ns = script.number() as i64;
                let now = self.now;
                let reading = ClockReading { offset_ns, error };
                with!(self, which, machine => machine.handle_clock(now, reading));
            }
            // A quiet moment, in which a tree forms and repair completes.
            _ => {
                for _ in 0..8 {
                    self.pass(Duration::from_millis(10));
                    for _ in 0..self.flight.len() {
                        self.deliver();
                    }
                }
            }
        }
    }

    fn order(&mut self, which: usize, script: &mut Script<'_>) {
        match (which, script.byte() % 4) {
            (0, 0) => with_root!(self, root => |now| root.finish(now)),
            (0, 1) => with_root!(self, root => |now| root.warm_up(now)),
            (0, mode) => {
                let modes = [Mode::Release, Mode::Cloudex, Mode::Hedge, Mode::Tree];
                let mode = modes[usize::from(mode)];
                with_root!(self, root => |now| root.set_mode(now, mode));
            }
            (1, 0) => {
                self.relay.leave();
                self.pass(Duration::ZERO);
            }
            (RECORDER, 0) => {
                self.recorder.leave();
                self.pass(Duration::ZERO);
            }
            (_, 0) => {
                self.receivers[which.max(2) - 2].leave();
                self.pass(Duration::ZERO);
            }
            _ => {}
        }
    }

    /// Lets time pass, and gives every machine that is due a turn.
    fn pass(&mut self, time: Duration) {
        self.now += time;
        let now = self.now;
        for which in 0..=RECORDER {
            for turn in 0.. {
                assert!(turn < DUE_MAX, "machine {which} is always due");
                let due = match which {
                    0 => self.root.poll_timeout(),
                    1 => self.relay.poll_timeout(),
                    RECORDER => self.recorder.poll_timeout(),
                    _ => self.receivers[which - 2].poll_timeout(),
                };
                if due.is_none_or(|due| due > now) {
                    break;
                }
                with!(self, which, machine => machine.handle_timeout(now));
            }
        }
    }

    fn arrive(&mut self, which: usize, from: SocketAddr, datagram: Bytes) {
        let now = self.now;
        let arrival = Arrival::new(from, datagram, now, StampedBy::User);
        with!(self, which, machine => { let _ = machine.handle(now, arrival); });
    }

    /// A well-formed header whose numbers may have a meaning, and a body of any bytes.
    fn forge(&mut self, which: usize, script: &mut Script<'_>) {
        // The kinds behind these came later. Scripts of the corpus keep their meaning.
        let kinds = &DatagramKind::ALL[..12];
        let kind = match script.byte() {
            252 => DatagramKind::Signature,
            253 => DatagramKind::Challenge,
            254 => DatagramKind::Locate,
            255 => DatagramKind::Located,
            other => kinds[usize::from(other) % kinds.len()],
        };
        let mut fixed = OriginHeader::control(kind, 0, 1, script.number());
        fixed.class = TrafficClass::from_wire(script.byte() % 4).expect("there are four");
        // The run of the stage's root.
        fixed.run_id = u64::from_le_bytes([7; 8]);
        fixed.count = script.byte().into();
        fixed.first_message = script.number();
        fixed.origin = SyncTime::from_nanos(script.number());
        fixed.deadline = wire::off_wire(script.number());
        let from = script.byte() % 8;
        let hop = Hop {
            from: NodeId(from.into()),
            view: script.number() as u32,
            level: script.byte(),
            flags: script.byte(),
            sent: SyncTime::from_nanos(script.number()),
            ..Hop::default()
        };
        let length = usize::from(script.byte());
        let body = script.bytes(length);
        let datagram = [&wire::encode_header(&fixed, &hop)[..], body].concat();
        self.arrive(which, address(from.into()), datagram.into());
    }

    /// The oldest frame in flight arrives at all its destinations.
    fn deliver(&mut self) {
        let Some((sender, transmit)) = self.flight.pop_front() else { return };
        let to: Arc<[SocketAddr]> = match transmit.to {
            Destination::One(one) => Arc::from([one]),
            Destination::Group(id) => match self.groups.get(&(sender, id)) {
                Some(members) => Arc::clone(members),
                None => return,
            },
        };
        let datagram: Bytes = [transmit.head.as_slice(), &transmit.body].concat().into();
        for to in to.iter() {
            if let Some(which) = (0..=RECORDER).find(|which| address(*which) == *to) {
                self.arrive(which, address(sender), datagram.clone());
            }
        }
    }
}

#[cfg(test)]
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    /// A script with a quiet moment and a publication. It makes a real run, so the check is not
    /// vacuous.
    #[test]
    fn genuine_scripts_bring_messages_to_both_receivers() {
        for choice in [0, 1, 2, 3, 4, 32, 128, 144, 145, 147, 160, 176, 208] {
            let mut text = vec![choice];
            text.extend([15; 24]);
            (0..6).for_each(|_| text.extend(b"\x09trade-one"));
            text.extend([15; 30]);
            let mut script = Script(&text);
            let mut stage = Stage::new(&mut script);
            while !script.0.is_empty() {
                stage.step(&mut script);
            }
            for receiver in &stage.receivers {
                assert!(receiver.status().tally.released > 0, "choice {choice}");
            }
        }
    }

    #[test]
    fn every_corpus_file_passes_its_check() {
        replay::corpora(&[("multicast_machines", machines), ("multicast_wire", wire)]);
    }
}
