//! What the copies of a root cost by each kind of port, and whether the copies are right.
//!
//! A root receives nothing that it sends on, so that one thread sends and then reads what has
//! arrived. Two measurements use a [`RootSender`]: the trial by which a root with `io.port =
//! "auto"` chooses, between sockets on loopback, and `evenfall bench ports --root`, on a link of a
//! lab.
//!
//! Beside each [`RootPath`] stand the same copies by bare calls of the kernel:
//!
//! | path | bare calls |
//! |---|---|
//! | a socket, one by one | one `sendmmsg` for the copies of a datagram |
//! | a socket, segments | one `send` for each child, of a buffer that the kernel cuts |
//! | a kernel that copies | one `send` of the datagram, or of the buffer, with the mark of the group |

use std::any::Any;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{Destination, Head, Install, TrafficClass, Transmit};
use evenfall_host::Error;
use evenfall_host::clock::MonotonicClock;

use super::{
    BareHop, Children, GROUP, HEAD_BYTES, NUMBER_AT, START_DATAGRAMS, START_ROUNDS, START_TIME,
    TrialPlan, TriedPath, bind_socket, draw_datagram, os, play_rounds,
};
use crate::choice::{KindTrial, TrialLoad};
use crate::sys::set_option;
use crate::udp::plan::SEGMENTS_MAX;
use crate::{Answer, Options, Port, PortKind};

/// How the copies of a root leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootPath {
    /// The kind of the port.
    pub kind: PortKind,
    /// Whether datagrams that wait together leave as one buffer, which the kernel cuts.
    pub segments: bool,
}

/// What makes the copies of a [`RootSender`].
enum CopyMaker {
    Port {
        port: Box<dyn Port>,
        answers: Vec<Answer>,
    },
    Messages(Box<BareHop>),
    /// One send for each target. A target is a member, or the lead of a group that the kernel
    /// copies.
    Sends {
        socket: UdpSocket,
        targets: Vec<SocketAddr>,
        segments: bool,
        room: Vec<u8>,
        /// Holds the program that copies.
        _beside: Option<Box<dyn Any + Send>>,
    },
}

/// The sending half of a root: a port with a group, or the bare calls that make the same copies.
pub struct RootSender {
    maker: CopyMaker,
    datagram: Vec<u8>,
    body: Bytes,
    number: u64,
}

impl RootSender {
    /// Opens a port at this address with a group of these members.
    ///
    /// # Errors
    /// As [`open`](crate::open), and when the members need a key that the options lack.
    pub fn open(
        path: RootPath,
        options: &Options,
        at: SocketAddr,
        members: &[SocketAddr],
        load: TrialLoad,
    ) -> Result<Self, Error> {
        let RootPath { kind, segments } = path;
        let own = Options { kind, segmentation: segments, ..options.clone() };
        let own = Options { inject: None, multicast_interface: None, ..own };
        let mut port = crate::open(at, own)?;
        port.install(0, &Install::Group(GROUP, members.into()))?;
        Ok(Self::with_maker(CopyMaker::Port { port, answers: Vec::new() }, load))
    }

    /// Opens a socket at this address, for the bare calls of a path.
    ///
    /// # Errors
    /// When the kernel refuses the socket, or cannot copy for these members.
    pub fn open_bare(
        path: RootPath,
        at: SocketAddr,
        members: &[SocketAddr],
        load: TrialLoad,
    ) -> Result<Self, Error> {
        let refused = |error| os("open a socket", error);
        if path == (RootPath { kind: PortKind::Udp, segments: false }) {
            let bare = BareHop::open(at, members).map_err(refused)?;
            return Ok(Self::with_maker(CopyMaker::Messages(Box::new(bare)), load));
        }
        let socket = bind_socket(at).map_err(refused)?;
        let (targets, beside) = match path.kind {
            PortKind::Udp => (members.to_vec(), None),
            PortKind::Tc => {
                let (lead, beside) = mark_sends(&socket, members)?;
                (vec![lead], Some(beside))
            }
        };
        let (segments, room) = (path.segments, Vec::new());
        let maker = CopyMaker::Sends { socket, targets, segments, room, _beside: beside };
        let sender = Self::with_maker(maker, load);
        if let CopyMaker::Sends { socket, segments: true, .. } = &sender.maker {
            let bytes = sender.datagram.len() as libc::c_int;
            let set = set_option(socket.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, bytes);
            set.map_err(|error| os("cut buffers into segments", error))?;
        }
        Ok(sender)
    }

    fn with_maker(maker: CopyMaker, load: TrialLoad) -> Self {
        let datagram = draw_datagram(load);
        let body = Bytes::copy_from_slice(&datagram[HEAD_BYTES..]);
        Self { maker, datagram, body, number: 0 }
    }

    /// The address from which the copies leave.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.maker {
            CopyMaker::Port { port, .. } => Ok(port.local_addr()),
            CopyMaker::Messages(bare) => bare.socket.local_addr(),
            CopyMaker::Sends { socket, .. } => socket.local_addr(),
        }
    }

    /// Sends this many datagrams to each member. Returns the time that the call took.
    pub fn send_burst(&mut self, datagrams: usize) -> Duration {
        let start = MonotonicClock::now();
        if matches!(self.maker, CopyMaker::Sends { segments: true, .. }) {
            self.send_buffers(datagrams);
        } else {
            (0..datagrams).for_each(|_| self.send_datagram());
        }
        if let CopyMaker::Port { port, .. } = &mut self.maker {
            while !port.flush() {}
        }
        MonotonicClock::now().since(start)
    }

    /// Drops the answers of the port between two bursts, which is not measured.
    pub fn drop_answers(&mut self) {
        if let CopyMaker::Port { port, answers } = &mut self.maker {
            port.answers(answers);
            answers.clear();
        }
    }

    /// Copies that the port has sent, and the part of them that the kernel made; `None` for bare
    /// calls.
    pub fn count_copies(&self) -> Option<[u64; 2]> {
        let CopyMaker::Port { port, .. } = &self.maker else { return None };
        let live = TrafficClass::Live as usize;
        let counters = port.counters();
        Some([counters.sent[live], counters.sent_by_kernel[live]])
    }

    fn send_datagram(&mut self) {
        let Self { maker, datagram, body, number } = self;
        write_number(datagram, number);
        match maker {
            CopyMaker::Port { port, .. } => {
                let (to, head) = (Destination::Group(GROUP), Head::new(&datagram[..HEAD_BYTES]));
                // Of a datagram that finds no room, no child gets a copy.
                let _ = port.send(0, Transmit::new(TrafficClass::Live, to, head, body.clone()));
            }
            CopyMaker::Messages(bare) => {
                bare.room[..datagram.len()].copy_from_slice(datagram);
                bare.send_copies(datagram.len());
            }
            CopyMaker::Sends { socket, targets, .. } => {
                for target in targets.iter() {
                    // A copy that the kernel refuses counts as lost.
                    let _ = socket.send_to(datagram, *target);
                }
            }
        }
    }

    /// Sends datagrams as buffers that the kernel cuts.
    fn send_buffers(&mut self, mut datagrams: usize) {
        let Self { maker, datagram, number, .. } = self;
        let CopyMaker::Sends { socket, targets, room, .. } = maker else { return };
        let longest = crate::DATAGRAM_BYTES_MAX / datagram.len();
        while datagrams > 0 {
            let count = datagrams.min(SEGMENTS_MAX).min(longest.max(1));
            datagrams -= count;
            room.clear();
            for _ in 0..count {
                write_number(datagram, number);
                room.extend_from_slice(datagram);
            }
            for target in targets.iter() {
                // The copies of a buffer that the kernel refuses count as lost.
                let _ = socket.send_to(room, *target);
            }
        }
    }
}

/// Writes the next number into a datagram.
fn write_number(datagram: &mut [u8], number: &mut u64) {
    *number += 1;
    datagram[NUMBER_AT..NUMBER_AT + 8].copy_from_slice(&number.to_le_bytes());
}

/// Lets the kernel copy what a socket sends. Returns the member to send to, and what holds the
/// program.
#[cfg(feature = "ebpf")]
fn mark_sends(
    socket: &UdpSocket,
    members: &[SocketAddr],
) -> Result<(SocketAddr, Box<dyn Any + Send>), Error> {
    use std::sync::Arc;

    let refused = |error| os("mark what a socket sends", error);
    let at = socket.local_addr().map_err(refused)?;
    let mut forwarder = evenfall_port_ebpf::KernelForwarder::attach(at, 0)?;
    forwarder.install_group(0, GROUP, &Arc::from(members));
    let Some(way) = forwarder.way_of(0, GROUP) else {
        return Err(refused(io::Error::other("the kernel knows no way to a member")));
    };
    let mark = way.mark as libc::c_int;
    set_option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MARK, mark).map_err(refused)?;
    Ok((members[way.lead], Box::new(forwarder)))
}

#[cfg(not(feature = "ebpf"))]
fn mark_sends(_: &UdpSocket, _: &[SocketAddr]) -> Result<(SocketAddr, Box<dyn Any + Send>), Error> {
    Err(os("copy by the kernel without the feature ebpf", io::ErrorKind::Unsupported.into()))
}

/// A root of the trial at the start of a node.
struct RootTrial {
    sender: RootSender,
    at: SocketAddr,
    children: Children,
}

impl RootTrial {
    fn open(kind: PortKind, options: &Options, load: TrialLoad) -> Result<Self, Error> {
        let no = |error| os("open a socket", error);
        let children = Children::open(load.fanout).map_err(no)?;
        let members = children.addresses().map_err(no)?;
        // Whatever kind the neighbours take, a run that chooses sends single datagrams.
        let path = RootPath { kind, segments: false };
        let at = (Ipv4Addr::LOCALHOST, 0).into();
        let sender = RootSender::open(path, options, at, &members, load)?;
        let at = sender.local_addr().map_err(no)?;
        Ok(Self { sender, at, children })
    }
}

impl TriedPath for RootTrial {
    fn carry_next(&mut self) -> Duration {
        self.sender.send_burst(1)
    }

    fn take_copies(&mut self) {
        let Self { sender, at, children } = self;
        children.take_copies(*at, |copy| copy == sender.datagram);
        sender.drop_answers();
    }

    fn children_mut(&mut self) -> &mut Children {
        &mut self.children
    }
}

/// Tries the kinds at the start of a root.
pub(crate) fn try_at_start(
    kinds: &[PortKind],
    options: &Options,
    load: TrialLoad,
) -> Vec<KindTrial> {
    let (rounds, datagrams, time) = (START_ROUNDS, START_DATAGRAMS, START_TIME);
    let open = |kind: &PortKind| {
        RootTrial::open(*kind, options, load).map_err(|error| format!("did not open: {error}"))
    };
    let roots = kinds.iter().map(open).collect();
    let outcomes = play_rounds(roots, TrialPlan { rounds, datagrams, time });
    kinds.iter().zip(outcomes).map(|(kind, outcome)| KindTrial { kind: *kind, outcome }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choice::{TrialOutcome, TrialPart};

    const LOAD: TrialLoad = TrialLoad { part: TrialPart::Root, datagram_bytes: 300, fanout: 3 };

    fn available() -> Vec<PortKind> {
        let skip = |name: &str, lacks: &str| println!("skipped: ports of kind {name}: {lacks}");
        PortKind::available(skip).collect()
    }

    #[test]
    fn every_kind_and_the_bare_calls_beside_it_make_every_copy() {
        let at = (Ipv4Addr::LOCALHOST, 0).into();
        for kind in available() {
            for segments in [false, true] {
                let path = RootPath { kind, segments };
                let mut children = Children::open(LOAD.fanout).unwrap();
                let members = children.addresses().unwrap();
                let bare = RootSender::open_bare(path, at, &members, LOAD).unwrap();
                let port = RootSender::open(path, &Options::default(), at, &members, LOAD).unwrap();
                for mut sender in [bare, port] {
                    let from = sender.local_addr().unwrap();
                    sender.send_burst(10);
                    for number in 1..=10_u64 {
                        let right = |copy: &[u8]| {
                            copy[..NUMBER_AT] == sender.datagram[..NUMBER_AT]
                                && copy[NUMBER_AT..NUMBER_AT + 8] == number.to_le_bytes()
                                && copy[NUMBER_AT + 8..] == sender.datagram[NUMBER_AT + 8..]
                        };
                        children.take_copies(from, right);
                    }
                    assert!(children.is_sound(), "{path:?}");
                    if let Some([all, by_kernel]) = sender.count_copies() {
                        assert_eq!(all, 30);
                        assert_eq!(by_kernel, if kind == PortKind::Tc { 30 } else { 0 });
                    }
                }
            }
        }
    }

    #[test]
    fn a_root_tries_the_kinds_that_can_run_here() {
        let kinds = available();
        let trials = try_at_start(&kinds, &Options::default(), LOAD);
        assert!(trials.iter().map(|trial| trial.kind).eq(kinds));
        for KindTrial { kind, outcome } in trials {
            match outcome {
                TrialOutcome::Measured { lost: 0, damaged: 0, copies, .. } => assert!(copies > 0),
                // On a busy machine a second may have no room for a round.
                TrialOutcome::Untried(why) => assert!(why.contains("time"), "{kind:?}: {why}"),
                outcome => panic!("{kind:?}: {outcome}"),
            }
        }
    }
}
