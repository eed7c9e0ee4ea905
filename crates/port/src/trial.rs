//! What a hop costs by each kind of port, and whether the hop is right, measured on this host.
//!
//! ```text
//!   publisher ----> proxy: a port of the kind ----> F children
//!   a socket        checks, patches, writes codes   sockets, which compare every byte
//! ```
//!
//! The obvious measurement lets three threads play the three parts and adds up their processor
//! time. On a host with other work the threads wait for each other, and a kernel that accounts
//! soft interrupts by themselves hides the work of a kind that forwards in them. Here one thread
//! plays all parts in turn, one datagram after the other, and never sleeps. Loopback carries a
//! datagram to the last socket within the call that sends it. The clock of the wall then shows the
//! processor time of the hop, whoever accounts it: from the publisher's send to the moment when
//! the proxy has sent, and without the children. A datagram during which another thread took the
//! core is an outlier, and the median of a round leaves it out. Rounds of all kinds take turns, so
//! that a change of the host's speed meets all of them. The first copy that is lost or changed
//! ends the rounds of its kind.
//!
//! The base of comparison is the same hop by bare calls of the kernel ([`Contestant::Bare`]):
//! `recv`, and one `sendmmsg` for all copies, without check, patch or code.
//!
//! [`root`] measures in the same way what the copies of a root cost, which receives nothing.

pub mod root;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use evenfall_core::forward::{DatagramField, HopCode, Match, Patch, Route, Window};
use evenfall_core::{
    Arrival, ClockError, ClockReading, Forward, ForwardId, Forwarder, GroupId, Install, Installed,
    MacKey, Timestamp, TrafficClass,
};
use evenfall_host::Error;
use evenfall_host::clock::MonotonicClock;

use crate::choice::{KindTrial, TrialLoad, TrialOutcome};
use crate::sys::RawAddress;
use crate::{Answer, Options, Port, PortKind};

/// The longest time of the rounds at the start of a node. Opening the ports of the trial, and
/// loading the program of a kernel that forwards, comes before and takes some tenths of a second on
/// a busy machine.
const START_TIME: Duration = Duration::from_secs(1);
/// Rounds at the start of a node. With [`START_DATAGRAMS`] and ten children, two kinds take 50 ms
/// of a core. The medians differ from trial to trial by some hundredths, and the kinds by half.
const START_ROUNDS: usize = 15;
/// Datagrams of a round at the start of a node. Where a dozen processes start at once on two cores,
/// a second has room for some rounds of this length.
const START_DATAGRAMS: usize = 16;
/// How long a copy may take to its socket. Loopback takes microseconds, and a core that another
/// thread holds some milliseconds.
const PATIENCE: Duration = Duration::from_millis(100);

/// The head of the multicast's datagrams, as far as a hop changes it.
const HEAD_BYTES: usize = 88;
const NUMBER_AT: usize = 24;
const LEVEL_AT: usize = 57;
const SENT_AT: usize = 72;
const CODE_AT: usize = 80;
/// Bytes of a body that the code covers.
const COVERED_BYTES: usize = 16;
/// Room for any datagram.
const ROOM_BYTES: usize = 65_536;
const MAGIC: [u8; 2] = *b"EF";
const KEY: [u8; 16] = *b"a key of a trial";
const GROUP: GroupId = GroupId(1);
const TABLE: ForwardId = ForwardId(1);

/// Who carries the hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contestant {
    /// Bare calls of the kernel: `recv` and `sendmmsg`.
    Bare,
    /// A port of this kind.
    Port(PortKind),
}

/// How long a trial lasts.
#[derive(Clone, Copy, Debug)]
pub struct TrialPlan {
    /// Rounds of each contestant.
    pub rounds: usize,
    /// Datagrams of a round.
    pub datagrams: usize,
    /// How long the rounds may take. The rounds that are whole then count.
    pub time: Duration,
}

/// The median of the values; NaN when there are none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Tries the kinds at the start of a node.
pub(crate) fn try_at_start(
    kinds: &[PortKind],
    options: &Options,
    load: TrialLoad,
) -> Vec<KindTrial> {
    let (rounds, datagrams, time) = (START_ROUNDS, START_DATAGRAMS, START_TIME);
    let plan = TrialPlan { rounds, datagrams, time };
    let contestants: Vec<_> = kinds.iter().map(|kind| Contestant::Port(*kind)).collect();
    let outcomes = try_contestants(&contestants, options, load, plan);
    kinds.iter().zip(outcomes).map(|(kind, outcome)| KindTrial { kind: *kind, outcome }).collect()
}

/// Tries contestants in turn, with ports that have these options. The outcomes are in the order of
/// the contestants.
pub fn try_contestants(
    contestants: &[Contestant],
    options: &Options,
    load: TrialLoad,
    plan: TrialPlan,
) -> Vec<TrialOutcome> {
    let open = |contestant: &Contestant| {
        Hop::open(*contestant, options, load).map_err(|error| format!("did not open: {error}"))
    };
    play_rounds(contestants.iter().map(open).collect(), plan)
}

/// A path on which copies reach the children of a trial.
trait TriedPath {
    /// Sends the next datagram along the path. Returns the time that the call took.
    fn carry_next(&mut self) -> Duration;

    /// Receives the copies of the datagram, and does the work that is not measured.
    fn take_copies(&mut self);

    fn children_mut(&mut self) -> &mut Children;

    /// Plays a round, which a wrong copy ends. Returns false when the time was up before its end.
    fn play_round(&mut self, datagrams: usize, until: Timestamp) -> bool {
        let mut times = Vec::with_capacity(datagrams);
        for _ in 0..datagrams {
            if MonotonicClock::now() >= until {
                return false;
            }
            times.push(self.carry_next().as_nanos() as f64);
            self.take_copies();
            if !self.children_mut().is_sound() {
                return true;
            }
        }
        self.children_mut().rounds.push(median(times));
        true
    }
}

/// Plays the rounds of all paths in turn. An error says why its path was not opened.
fn play_rounds<P: TriedPath>(
    mut paths: Vec<Result<P, String>>,
    plan: TrialPlan,
) -> Vec<TrialOutcome> {
    let until = MonotonicClock::now() + plan.time;
    'rounds: for _ in 0..plan.rounds {
        for path in paths.iter_mut().flatten() {
            if path.children_mut().is_sound() && !path.play_round(plan.datagrams, until) {
                break 'rounds;
            }
        }
    }
    let outcome = |path: Result<P, String>| match path {
        Ok(mut path) => std::mem::take(path.children_mut()).into_outcome(),
        Err(why) => TrialOutcome::Untried(why),
    };
    paths.into_iter().map(outcome).collect()
}

/// The sockets that get the copies, and what they got.
#[derive(Default)]
struct Children {
    sockets: Vec<UdpSocket>,
    /// Room for a copy.
    room: Vec<u8>,
    copies: u64,
    lost: u64,
    damaged: u64,
    /// Medians of the whole rounds, nanoseconds a datagram.
    rounds: Vec<f64>,
}

impl Children {
    fn open(count: usize) -> io::Result<Self> {
        let sockets = (0..count.max(1)).map(|_| open_socket()).collect::<io::Result<_>>()?;
        Ok(Self { sockets, room: vec![0; ROOM_BYTES], ..Self::default() })
    }

    fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.sockets.iter().map(UdpSocket::local_addr).collect()
    }

    fn is_sound(&self) -> bool {
        self.lost == 0 && self.damaged == 0
    }

    /// Receives the copy of each child, and counts the lost and the damaged copies.
    fn take_copies(&mut self, sender: SocketAddr, is_right: impl Fn(&[u8]) -> bool) {
        self.copies += self.sockets.len() as u64;
        for (at, child) in self.sockets.iter().enumerate() {
            match child.recv_from(&mut self.room) {
                Ok((len, from)) if from == sender && is_right(&self.room[..len]) => {}
                Ok(_) => self.damaged += 1,
                Err(_) => {
                    // The other copies are not waited for as long: a wrong copy ends the trial.
                    self.lost += (self.sockets.len() - at) as u64;
                    break;
                }
            }
        }
    }

    fn into_outcome(mut self) -> TrialOutcome {
        if self.is_sound() {
            // A second copy of a datagram is as wrong as a changed one.
            let is_left = |child: &UdpSocket| {
                child.set_nonblocking(true).is_ok() && child.recv(&mut [0; 1]).is_ok()
            };
            self.damaged = self.sockets.iter().filter(|child| is_left(child)).count() as u64;
        }
        if self.rounds.is_empty() && self.is_sound() {
            return TrialOutcome::Untried("the time for the trial was up".into());
        }
        let Self { rounds, sockets, copies, lost, damaged, .. } = self;
        let cpu_ns_per_copy = median(rounds) / sockets.len() as f64;
        TrialOutcome::Measured { cpu_ns_per_copy, copies, lost, damaged }
    }
}

/// The part of the proxy.
enum Proxy {
    Bare(Box<BareHop>),
    Port {
        port: Box<dyn Port>,
        /// Forwards in the process; `None` where the port forwards.
        forwarder: Option<Forwarder>,
        arrivals: Vec<Arrival>,
        answers: Vec<Answer>,
    },
}

/// One contestant with its sockets, and what it has done so far.
struct Hop {
    publisher: UdpSocket,
    proxy: Proxy,
    at: SocketAddr,
    children: Children,
    datagram: Vec<u8>,
    code: MacKey,
    number: u64,
}

fn os(what: &str, source: io::Error) -> Error {
    Error::Os { what: what.into(), source, advice: "" }
}

fn open_socket() -> io::Result<UdpSocket> {
    bind_socket((Ipv4Addr::LOCALHOST, 0).into())
}

fn bind_socket(at: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(at)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// A datagram as long as those of the load, whose number and code are not written yet.
fn draw_datagram(load: TrialLoad) -> Vec<u8> {
    let bytes = load.datagram_bytes.clamp(HEAD_BYTES + COVERED_BYTES, crate::DATAGRAM_BYTES_MAX);
    let mut datagram: Vec<u8> = (0..bytes).map(|n| n as u8).collect();
    datagram[..2].copy_from_slice(&MAGIC);
    datagram
}

fn table(source: SocketAddr) -> Forward {
    Forward {
        class: TrafficClass::Live,
        sources: vec![source],
        matches: vec![Match::Bytes(DatagramField::new(0, &MAGIC))],
        routes: vec![Route { matches: Vec::new(), to: GROUP }],
        window: Window { at: NUMBER_AT as u16, frames: 1_024 },
        head_bytes: HEAD_BYTES as u8,
        patches: vec![
            Patch::Bytes(DatagramField::new(LEVEL_AT as u16, &[1])),
            Patch::SyncTime(SENT_AT as u16),
        ],
        code: Some(HopCode::new(&KEY, CODE_AT as u8, COVERED_BYTES as u8, CODE_AT as u8)),
    }
}

impl Proxy {
    fn open(
        contestant: Contestant,
        options: &Options,
        publisher: SocketAddr,
        children: &[SocketAddr],
    ) -> Result<Self, Error> {
        let Contestant::Port(kind) = contestant else {
            let at = (Ipv4Addr::LOCALHOST, 0).into();
            let bare = BareHop::open(at, children).map_err(|error| os("open a socket", error))?;
            return Ok(Self::Bare(Box::new(bare)));
        };
        // Whatever kind the neighbours take, a run that chooses sends single datagrams.
        let segmentation = false;
        let own = Options { kind, segmentation, ..options.clone() };
        let own = Options { inject: None, multicast_interface: None, ..own };
        let mut port = crate::open((Ipv4Addr::LOCALHOST, 0).into(), own)?;
        let reading = ClockReading { offset_ns: 0, error: ClockError::SameClock };
        port.adopt_clock(reading);
        port.install(0, &Install::Group(GROUP, children.into()))?;
        let rules = Arc::new(table(publisher));
        let install = Install::Forward(TABLE, Some(Arc::clone(&rules)));
        let forwarder = match (port.install(0, &install)?, kind.forwards()) {
            (Installed::Taken, _) => None,
            (_, true) => return Err(os("hand a table to the port", io::ErrorKind::Other.into())),
            (_, false) => {
                let mut forwarder = Forwarder::default();
                forwarder.install(0, TABLE, Some(&rules));
                forwarder.adopt_clock(reading);
                Some(forwarder)
            }
        };
        Ok(Self::Port { port, forwarder, arrivals: Vec::new(), answers: Vec::new() })
    }

    fn address(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Bare(bare) => bare.socket.local_addr(),
            Self::Port { port, .. } => Ok(port.local_addr()),
        }
    }

    /// Receives the next datagram of the publisher, and sends its copies to the children.
    fn carry_datagram(&mut self) {
        let (port, forwarder, arrivals) = match self {
            Self::Bare(bare) => return bare.carry_datagram(),
            Self::Port { port, forwarder, arrivals, .. } => (port, forwarder, arrivals),
        };
        let end = MonotonicClock::now() + PATIENCE;
        while port.receive(arrivals) == 0 && MonotonicClock::now() < end {}
        for mut arrival in arrivals.drain(..) {
            let now = MonotonicClock::now();
            if let Some(forwarder) = forwarder {
                forwarder.offer(now, &mut arrival, |_, copy| port.send(0, copy).is_ok());
            }
        }
        while !port.flush() && MonotonicClock::now() < end {}
    }

    /// Drops the answers of the port between two datagrams. The time of this call is not measured.
    fn drop_answers(&mut self) {
        if let Self::Port { port, answers, .. } = self {
            port.answers(answers);
            answers.clear();
        }
    }
}

impl Hop {
    fn open(contestant: Contestant, options: &Options, load: TrialLoad) -> Result<Self, Error> {
        let open = || open_socket().map_err(|error| os("open a socket", error));
        let own = |socket: &UdpSocket| {
            socket.local_addr().map_err(|error| os("see the address of a socket", error))
        };
        let publisher = open()?;
        let children = Children::open(load.fanout).map_err(|error| os("open a socket", error))?;
        let members = children.addresses();
        let members = members.map_err(|error| os("see the address of a socket", error))?;
        let proxy = Proxy::open(contestant, options, own(&publisher)?, &members)?;
        let at = proxy.address().map_err(|error| os("see the address of a socket", error))?;
        let (datagram, code) = (draw_datagram(load), MacKey::new(0, &KEY));
        Ok(Self { publisher, proxy, at, children, datagram, code, number: 0 })
    }

    /// The code of a datagram with these bytes.
    fn code_of(&self, datagram: &[u8]) -> [u8; 8] {
        let last = datagram.len() - COVERED_BYTES;
        self.code.mac(&[&datagram[..CODE_AT], &datagram[last..]]).to_le_bytes()
    }

    /// Whether a copy is the datagram that was sent, with what a hop changes.
    fn is_right(&self, copy: &[u8]) -> bool {
        if matches!(self.proxy, Proxy::Bare(_)) {
            return copy == self.datagram;
        }
        let mut expected = self.datagram.clone();
        expected[LEVEL_AT] = 1;
        let sent = SENT_AT..SENT_AT + 8;
        if let Some(written) = copy.get(sent.clone()) {
            expected[sent].copy_from_slice(written);
        }
        let code = self.code_of(&expected);
        expected[CODE_AT..HEAD_BYTES].copy_from_slice(&code);
        copy == expected
    }
}

impl TriedPath for Hop {
    /// Sends the next datagram, and lets the proxy send it on. Returns the time of both.
    fn carry_next(&mut self) -> Duration {
        self.number += 1;
        self.datagram[NUMBER_AT..NUMBER_AT + 8].copy_from_slice(&self.number.to_le_bytes());
        let code = self.code_of(&self.datagram);
        self.datagram[CODE_AT..HEAD_BYTES].copy_from_slice(&code);
        let start = MonotonicClock::now();
        // Of a datagram that the kernel refuses, no child gets a copy.
        let _ = self.publisher.send_to(&self.datagram, self.at);
        self.proxy.carry_datagram();
        MonotonicClock::now().since(start)
    }

    fn take_copies(&mut self) {
        let mut children = std::mem::take(&mut self.children);
        children.take_copies(self.at, |copy| self.is_right(copy));
        self.children = children;
        self.proxy.drop_answers();
    }

    fn children_mut(&mut self) -> &mut Children {
        &mut self.children
    }
}

/// A hop by bare calls. All of its messages have the bytes that arrived.
struct BareHop {
    socket: UdpSocket,
    room: Vec<u8>,
    names: Vec<RawAddress>,
    messages: Vec<libc::mmsghdr>,
}

// SAFETY: the pointers of the messages are written before each call that reads them, and lead to
// parts of this value and of that call.
unsafe impl Send for BareHop {}

impl BareHop {
    fn open(at: SocketAddr, children: &[SocketAddr]) -> io::Result<Self> {
        let names = children.iter().map(|child| RawAddress::from(*child)).collect();
        // SAFETY: plain integers and pointers, for which zero is a value.
        let empty: libc::mmsghdr = unsafe { std::mem::zeroed() };
        let messages = vec![empty; children.len()];
        Ok(Self { socket: bind_socket(at)?, room: vec![0; ROOM_BYTES], names, messages })
    }

    fn carry_datagram(&mut self) {
        // After the patience the copies count as lost, because none was sent.
        if let Ok(len) = self.socket.recv(&mut self.room) {
            self.send_copies(len);
        }
    }

    /// Sends the first bytes of the room to each child.
    fn send_copies(&mut self, len: usize) {
        let mut part = libc::iovec { iov_base: self.room.as_mut_ptr().cast(), iov_len: len };
        for (message, name) in self.messages.iter_mut().zip(&mut self.names) {
            message.msg_hdr.msg_namelen = name.len();
            message.msg_hdr.msg_name = std::ptr::from_mut(name).cast();
            message.msg_hdr.msg_iov = &raw mut part;
            message.msg_hdr.msg_iovlen = 1;
        }
        let (fd, mut rest) = (self.socket.as_raw_fd(), &mut self.messages[..]);
        while !rest.is_empty() {
            let count = rest.len() as libc::c_uint;
            // SAFETY: the messages point at a room and at addresses that `self` holds, and at a
            // part that outlives the call.
            let took = unsafe { libc::sendmmsg(fd, rest.as_mut_ptr(), count, 0) };
            match usize::try_from(took) {
                Ok(took) if took > 0 => rest = &mut rest[took..],
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choice::TrialPart;

    const LOAD: TrialLoad = TrialLoad { part: TrialPart::Proxy, datagram_bytes: 300, fanout: 3 };

    fn plan(time: Duration) -> TrialPlan {
        TrialPlan { rounds: 2, datagrams: 5, time }
    }

    fn udp_hop() -> Hop {
        Hop::open(Contestant::Port(PortKind::Udp), &Options::default(), LOAD).unwrap()
    }

    /// Copies, lost ones and damaged ones.
    fn counts(hop: Hop) -> (u64, u64, u64) {
        match hop.children.into_outcome() {
            TrialOutcome::Measured { copies, lost, damaged, .. } => (copies, lost, damaged),
            TrialOutcome::Untried(why) => panic!("{why}"),
        }
    }

    #[test]
    fn every_kind_that_this_process_can_open_carries_every_copy_unharmed() {
        let skip = |name: &str, lacks: &str| println!("skipped: ports of kind {name}: {lacks}");
        let ports = PortKind::available(skip).map(Contestant::Port);
        let contestants: Vec<_> = [Contestant::Bare].into_iter().chain(ports).collect();
        let time = plan(Duration::from_secs(60));
        let outcomes = try_contestants(&contestants, &Options::default(), LOAD, time);
        for (contestant, outcome) in contestants.iter().zip(&outcomes) {
            let TrialOutcome::Measured { cpu_ns_per_copy, copies, lost, damaged } = *outcome else {
                panic!("{contestant:?}: {outcome}");
            };
            assert_eq!((copies, lost, damaged), (30, 0, 0), "{contestant:?}");
            assert!(cpu_ns_per_copy > 0.0);
        }
    }

    #[test]
    fn a_copy_that_does_not_come_is_lost_and_ends_the_rounds() {
        let mut hop = udp_hop();
        // The table of the proxy is for another publisher.
        hop.publisher = open_socket().unwrap();
        assert!(hop.play_round(5, MonotonicClock::now() + Duration::from_secs(60)));
        assert!(!hop.children.is_sound() && hop.children.rounds.is_empty());
        assert_eq!(counts(hop), (3, 3, 0));
    }

    #[test]
    fn a_changed_copy_and_a_second_one_are_damage() {
        let mut hop = udp_hop();
        hop.carry_next();
        hop.datagram[200] ^= 1;
        hop.take_copies();
        assert_eq!(counts(hop), (3, 0, 3));
        let mut hop = udp_hop();
        hop.carry_next();
        let unpatched = hop.datagram.clone();
        assert!(!hop.is_right(&unpatched), "the head and the code of the hop before");
        assert!(!hop.is_right(&unpatched[..SENT_AT]), "cut short");
        hop.take_copies();
        assert!(hop.children.is_sound());
        let child = hop.children.sockets[1].local_addr().unwrap();
        hop.publisher.send_to(&unpatched, child).unwrap();
        assert_eq!(counts(hop), (3, 0, 1));
    }

    #[test]
    fn a_trial_without_time_says_so() {
        let contestants = [Contestant::Port(PortKind::Udp)];
        let outcomes =
            try_contestants(&contestants, &Options::default(), LOAD, plan(Duration::ZERO));
        assert_eq!(outcomes, [TrialOutcome::Untried("the time for the trial was up".into())]);
    }
}
