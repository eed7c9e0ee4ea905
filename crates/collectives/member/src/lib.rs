//! Group communication in a program of your own, over one socket. A call blocks until it has ended.
//!
//! A program binds a [`GroupSocket`], learns the addresses of all other seats by any means, and
//! becomes a [`GroupMember`]. All members make the same calls in the same order.
//!
//! The program below shuffles between four local processes. [`local`] starts the program three more
//! times. On several hosts, another tool starts the processes, and tells each process its rank and
//! all addresses:
//!
//! ```standalone_crate
//! use bytes::Bytes;
//! use evenfall_collectives_member as group;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let mut member = group::local(4)?;
//!     let me = member.rank();
//!     let message = |to| Bytes::from(format!("from {me} to {to}"));
//!     let here = member.shuffle((0..4).map(message).collect())?;
//!     assert_eq!(here[3], format!("from 3 to {me}"));
//!     member.leave();
//!     Ok(())
//! }
//! ```

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::mpsc::{TryRecvError, channel};
use std::time::Duration;
use std::{env, io, thread};

use bytes::Bytes;
pub use evenfall_collectives_machine::RankFailure;
use evenfall_collectives_machine::config::LinkPace;
use evenfall_collectives_machine::group::{
    Collective, CollectiveEvent, CollectiveOutcome, GroupSettings, LANE_BYTES, ProcessGroup, Reduce,
};
use evenfall_collectives_machine::wire::HEADER_BYTES;
use evenfall_collectives_machine::{ShuffleConfig, ShuffleCounters, StartError};
use evenfall_core::{Machine, SharedKey, Timestamp};
use evenfall_host::Waker;
use evenfall_host::clock::MonotonicClock;
use evenfall_host::interrupt;
use evenfall_host::process::{Signal, end_with_parent};
use evenfall_port::run::Loop;
use evenfall_port::sealed::{self, Sealed};
use evenfall_port::udp::link_mtu;
use evenfall_port::{Counters as PortCounters, Inject, Options, Port, Wake};

/// Code points of control, live, repair and bulk: expedited, assured, assured and background
/// forwarding.
const DSCP: [u8; 4] = [46, 34, 18, 8];
/// Datagrams that injected delays and losses may hold at once.
const INJECT_DATAGRAMS_MAX: usize = 65_536;
/// Headers of IPv4 (20 bytes) and UDP (8 bytes).
const IP_BYTES: u32 = 28;
/// Header of Ethernet.
const ETHERNET_BYTES: u32 = 14;
/// Memory for datagrams that have arrived and are not yet read. There is room for several messages
/// of each of many members, on a host whose cores are all busy.
const RECEIVE_BUFFER_BYTES: usize = 32 << 20;
/// Buffers of 64 KB that one system call fills at most. Four buffers are a quarter of a megabyte,
/// which stays in a core's own cache while messages are put together from it. The measured
/// difference to 16 buffers is small: .87 to .91 ms for a shuffle of few long messages, and none
/// for equal messages.
const RECEIVE_BATCH: usize = 4;
/// Bytes that may go unasked, and be granted ahead, where links have no limit of their own.
const UNLIMITED_BYTES: u32 = 4 << 20;
/// How long a message may rest where links have no limit: far above the time that four granted
/// round trips wait for a core that several ranks share.
const UNLIMITED_RESEND_AFTER: Duration = Duration::from_millis(20);
/// Environment variable that tells a process started by [`local`] its rank and all addresses.
const LOCAL: &str = "EVENFALL_LOCAL_GROUP";
/// How often rank 0 of a [`local`] group looks whether another process has ended.
const END_LOOK: Duration = Duration::from_millis(2);
/// Rounds of [`GroupMember::measure`].
const MEASURE_ROUNDS: usize = 16;

/// Bytes on a link that a full packet takes besides its payload: our header, and the headers of the
/// layers below.
pub const FRAME_BYTES: u32 = HEADER_BYTES as u32 + IP_BYTES + ETHERNET_BYTES;

/// How a seat uses its socket.
#[derive(Clone, Debug, Default)]
pub struct GroupSocketOptions {
    /// The key that the members share. It seals every datagram ([`Sealed`]). Without a key nothing
    /// leaves loopback.
    pub key: Option<SharedKey>,
    /// Whether addresses beyond loopback are those of a lab, whose network ends at this host. A
    /// lab needs no key.
    pub in_lab: bool,
    /// Whether datagrams are marked by class, so that switches and this host send control first.
    pub mark: bool,
    /// A file of delays and losses to inject ([`Inject`]).
    pub inject: Option<PathBuf>,
    /// Whether the seat looks after each wait how many bytes wait in the socket, for
    /// [`GroupMember::waiting_bytes_max`].
    pub watch_queue: bool,
    /// How long a waiting call looks for arrivals before it sleeps. Between two looks it yields its
    /// core to other processes. About 100 us spare most wake-ups where messages take less than a
    /// millisecond. Where messages take longer, the looks are wasted.
    pub yield_for: Duration,
}

/// Members of a group with a key at most: a port that opens datagrams remembers the counts of so
/// many processes, and drops the datagrams of further ones.
pub const SEALED_MEMBERS_MAX: usize = 256;

/// The payload of a full packet on a link of this MTU, without a seal.
pub fn packet_bytes(mtu: u32) -> u32 {
    packet_below(mtu, 0)
}

fn packet_below(mtu: u32, seal_bytes: usize) -> u32 {
    let head = (HEADER_BYTES + seal_bytes) as u32;
    let most = evenfall_port::DATAGRAM_BYTES_MAX as u32 - head;
    mtu.saturating_sub(IP_BYTES + head).clamp(64, most)
}

impl GroupSocketOptions {
    /// The payload of a full packet on the way from this address of this host to another member.
    ///
    /// # Errors
    /// When there is no way from one to the other.
    pub fn packet_bytes(
        &self,
        own: SocketAddr,
        other: SocketAddr,
    ) -> Result<u32, evenfall_host::Error> {
        let seal_bytes = if self.key.is_some() { sealed::OVERHEAD_BYTES } else { 0 };
        Ok(packet_below(link_mtu(own.ip(), other)?, seal_bytes))
    }
}

/// Seals what a port sends, and opens what it receives. The purpose names no version, so that a
/// member of another version can be told which version was asked for.
fn seal_port(port: Box<dyn Port>, key: &SharedKey) -> Result<Box<dyn Port>, evenfall_host::Error> {
    let sealed = Sealed::new(port, key, "evenfall group datagrams, sealed");
    let sealed = sealed.map_err(|source| evenfall_host::Error::Os {
        what: "read random bytes for the seal of datagrams".into(),
        source,
        advice: "is /dev/urandom there?",
    })?;
    Ok(Box::new(sealed))
}

/// The pace of a link, counting the headers of a frame; datagrams leave in bursts of this length.
pub fn pace(bits_per_s: u64, burst: Duration) -> LinkPace {
    LinkPace::link(bits_per_s, FRAME_BYTES.into(), burst)
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// The call did not begin.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The call failed. The failure names a rank.
    #[error(transparent)]
    Failed(RankFailure),
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] evenfall_host::Error),
    /// SIGINT or SIGTERM arrived, and the program had asked for signals with
    /// [`interrupt::install`].
    #[error("interrupted")]
    Interrupted,
}

/// A bound socket of a member that does not know the other members yet.
pub struct GroupSocket {
    port: Box<dyn Port>,
    signals: interrupt::Watch,
    watch_queue: bool,
}

impl GroupSocket {
    /// Binds the socket.
    ///
    /// # Errors
    /// When the address is beyond loopback and there is no key, or when this host does not have the
    /// address.
    pub fn bind(
        address: SocketAddr,
        options: GroupSocketOptions,
    ) -> Result<Self, evenfall_host::Error> {
        let with = |file| Inject { file, seed: 1, queue_datagrams_max: INJECT_DATAGRAMS_MAX };
        let port = evenfall_port::open(
            address,
            Options {
                keyed: options.key.is_some() || options.in_lab,
                receive_buffer_bytes: RECEIVE_BUFFER_BYTES,
                send_buffer_bytes: RECEIVE_BUFFER_BYTES / 4,
                datagram_bytes_max: 1 << 16,
                dscp: options.mark.then_some(DSCP),
                inject: options.inject.map(with),
                yield_for: options.yield_for,
                receive_batch: RECEIVE_BATCH,
                ..Options::default()
            },
        )?;
        let signals = interrupt::watch(port.waker())?;
        let port = match &options.key {
            Some(key) => seal_port(port, key)?,
            None => port,
        };
        Ok(Self { port, signals, watch_queue: options.watch_queue })
    }

    /// The address to which the other members send.
    pub fn address(&self) -> SocketAddr {
        self.port.local_addr()
    }

    /// Drives a machine of another protocol on this socket, such as one that waits for questions.
    pub fn drive_machine<M: Machine>(self, machine: M) -> GroupDriver<M> {
        let Self { port, signals, .. } = self;
        let (turn, linger, others) = (Loop::new(), Duration::ZERO, Vec::new());
        let member = MemberRest { port, signals, turn, linger, others };
        GroupDriver { machine: [machine], member }
    }

    /// Takes part as rank `rank` of these members.
    ///
    /// # Errors
    /// When the rank is not below the number of members.
    pub fn join(
        self,
        rank: usize,
        members: Vec<SocketAddr>,
        settings: GroupSettings,
    ) -> Result<GroupMember, StartError> {
        let linger = settings.shuffle.resend_after * 4;
        Ok(GroupMember {
            group: [ProcessGroup::new(rank, members, settings)?],
            port: self.port,
            _signals: self.signals,
            turn: Loop::new(),
            ended: BTreeMap::new(),
            linger,
            watch_queue: self.watch_queue,
            waiting_bytes_max: 0,
            others: Vec::new(),
        })
    }
}

/// Takes part in a group of this many processes of this program on this host, over loopback. The
/// first process is rank 0 and starts the others with its own arguments. The others begin at `main`
/// and call this function again. The function is for trying things out: ports are found by chance,
/// and another program may take a port before its rank binds it, which is then an error of that
/// rank.
///
/// # Errors
/// When a socket cannot be bound, or the program cannot be started.
///
/// # Panics
/// When the number of ranks is 0 or above 65,535.
pub fn local(ranks: usize) -> Result<GroupMember, GroupError> {
    local_with(ranks, &GroupSocketOptions::default(), &GroupSettings::default())
}

/// The settings of a group whose links have no limit of their own, such as loopback, for packets of
/// this length: much goes unasked, and much is granted ahead.
pub fn unlimited_settings(packet_bytes: u32) -> GroupSettings {
    let shuffle = ShuffleConfig {
        packet_bytes,
        rtt_packets: (UNLIMITED_BYTES / packet_bytes.max(1)).max(8),
        overcommit: 4.0,
        grant_packets: 8,
        resend_after: UNLIMITED_RESEND_AFTER,
        ..ShuffleConfig::default()
    };
    GroupSettings { shuffle, ..GroupSettings::default() }
}

/// The rank that [`local`] has given this process, when another process has started it.
pub fn local_rank() -> Option<usize> {
    told_by_rank_0().map(|(rank, _)| rank)
}

/// What the first process of a [`local`] group has told this process: its rank and all addresses.
fn told_by_rank_0() -> Option<(usize, Vec<SocketAddr>)> {
    let told = env::var(LOCAL).ok()?;
    let mut words = told.split(' ');
    let rank = words.next()?.parse().ok()?;
    let members: Vec<SocketAddr> = words.map_while(|word| word.parse().ok()).collect();
    (rank < members.len()).then_some((rank, members))
}

/// As [`local`], with settings, of which the members know no others.
///
/// # Errors
/// As for [`local`].
///
/// # Panics
/// As for [`local`].
pub fn local_with(
    ranks: usize,
    options: &GroupSocketOptions,
    settings: &GroupSettings,
) -> Result<GroupMember, GroupError> {
    let seat = |address| GroupSocket::bind(address, options.clone());
    if let Some((rank, members)) = told_by_rank_0() {
        return Ok(seat(members[rank])?.join(rank, members, settings.clone())?);
    }
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut seats = (0..ranks).map(|_| seat(any)).collect::<Result<Vec<_>, _>>()?;
    let members: Vec<SocketAddr> = seats.iter().map(GroupSocket::address).collect();
    // The other processes bind their own ports again.
    seats.truncate(1);
    let own = seats.pop().expect("one rank at least");
    let others = (1..ranks).map(|rank| again(rank, &members)).collect::<io::Result<_>>();
    let others = others.map_err(|source| evenfall_host::Error::Os {
        what: "start this program again".into(),
        source,
        advice: "is its file still there?",
    })?;
    let member = own.join(0, members, settings.clone())?;
    Ok(GroupMember { others, ..member })
}

fn again(rank: usize, members: &[SocketAddr]) -> io::Result<Child> {
    let mut words = vec![rank.to_string()];
    words.extend(members.iter().map(ToString::to_string));
    let mut command = Command::new(env::current_exe()?);
    command.args(env::args_os().skip(1)).env(LOCAL, words.join(" "));
    end_with_parent(&mut command, Signal::Kill);
    command.spawn()
}

/// One rank of a group, in this thread. A member sends and answers only while it is inside a call.
/// Other members therefore take a member for dead that makes no call for longer than their
/// `silence_max`.
pub struct GroupMember {
    group: [ProcessGroup; 1],
    port: Box<dyn Port>,
    _signals: interrupt::Watch,
    turn: Loop,
    ended: BTreeMap<u64, Result<CollectiveOutcome, RankFailure>>,
    linger: Duration,
    watch_queue: bool,
    waiting_bytes_max: u64,
    /// The processes that [`local`] started.
    others: Vec<Child>,
}

impl GroupMember {
    /// The rank of this member.
    pub fn rank(&self) -> usize {
        self.group[0].rank()
    }

    /// Begins a call, for [`wait`](Self::wait). Several calls may run at once.
    ///
    /// # Errors
    /// As for [`ProcessGroup::call`].
    pub fn start(&mut self, call: Collective) -> Result<u64, GroupError> {
        let begin = |group: &mut ProcessGroup, now| group.call(now, call);
        let ended = &mut self.ended;
        let [group] = &mut self.group;
        let mut events = |_: &ProcessGroup, _: Timestamp, event| keep(ended, event);
        Ok(self.turn.input(0, group, self.port.as_mut(), begin, &mut events)??)
    }

    /// Waits for a call that was started.
    ///
    /// # Errors
    /// When the call fails, or a signal arrives.
    pub fn wait(&mut self, call: u64) -> Result<CollectiveOutcome, GroupError> {
        loop {
            if let Some(ended) = self.ended.remove(&call) {
                return ended.map_err(GroupError::Failed);
            }
            if interrupt::raised() {
                return Err(GroupError::Interrupted);
            }
            self.drive(None)?;
        }
    }

    fn drive(&mut self, until: Option<Timestamp>) -> Result<Wake, GroupError> {
        let ended = &mut self.ended;
        let mut events = |_: &ProcessGroup, _: Timestamp, event| keep(ended, event);
        let wake = self.turn.turn(&mut self.group, self.port.as_mut(), until, &mut events)?;
        if self.watch_queue && wake == Wake::Readable {
            self.waiting_bytes_max = self.waiting_bytes_max.max(self.port.waiting_bytes());
        }
        Ok(wake)
    }

    fn do_call(&mut self, call: Collective) -> Result<CollectiveOutcome, GroupError> {
        let number = self.start(call)?;
        self.wait(number)
    }

    fn one(&mut self, call: Collective) -> Result<Bytes, GroupError> {
        match self.do_call(call)? {
            CollectiveOutcome::One(body) => Ok(body),
            CollectiveOutcome::All(_) | CollectiveOutcome::Nothing => Ok(Bytes::new()),
        }
    }

    fn all(&mut self, call: Collective) -> Result<Vec<Bytes>, GroupError> {
        match self.do_call(call)? {
            CollectiveOutcome::All(bodies) => Ok(bodies),
            CollectiveOutcome::One(_) | CollectiveOutcome::Nothing => Ok(Vec::new()),
        }
    }

    /// Sends one message to each member. Returns the messages that the members sent to this one.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn shuffle(&mut self, messages: Vec<Bytes>) -> Result<Vec<Bytes>, GroupError> {
        self.all(Collective::Shuffle { messages })
    }

    /// A shuffle over a mesh. See [`Collective::TwoLevelShuffle`].
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn two_level_shuffle(&mut self, messages: Vec<Bytes>) -> Result<Vec<Bytes>, GroupError> {
        self.all(Collective::TwoLevelShuffle { messages })
    }

    /// Sends the root's body to all members, and returns it.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn broadcast(&mut self, root: usize, body: Bytes) -> Result<Bytes, GroupError> {
        self.one(Collective::Broadcast { root, body })
    }

    /// Sends the bodies of all members to the root. Members other than the root get an empty list.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn gather(&mut self, root: usize, body: Bytes) -> Result<Vec<Bytes>, GroupError> {
        self.all(Collective::Gather { root, body })
    }

    /// Sends the bodies of all members to all members.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn all_gather(&mut self, body: Bytes) -> Result<Vec<Bytes>, GroupError> {
        self.all(Collective::AllGather { body })
    }

    /// Reduces the values of all members, value by value. Floating-point values are passed as
    /// [`f64::to_bits`].
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn all_reduce(&mut self, values: &[u64], by: Reduce) -> Result<Vec<u64>, GroupError> {
        let values = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let reduced = self.one(Collective::AllReduce { values, by })?;
        let word = |lane: &[u8]| lane.try_into().map_or(0, u64::from_le_bytes);
        Ok(reduced.chunks(LANE_BYTES).map(word).collect())
    }

    /// Returns when all members have made the call.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn barrier(&mut self) -> Result<(), GroupError> {
        self.do_call(Collective::Barrier).map(drop)
    }

    /// Does work in a thread of its own, and answers the other members meanwhile. A member that
    /// only works for longer than their `silence_max` would count as dead.
    ///
    /// # Errors
    /// When the socket fails, or a signal arrives. The work runs to its end in any case.
    ///
    /// # Panics
    /// When the work panics.
    pub fn work_beside<T: Send>(
        &mut self,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, GroupError> {
        let (done, result) = channel();
        let waker = self.port.waker();
        thread::scope(|scope| {
            scope.spawn(move || {
                // The member is gone when a signal has arrived, and then needs no result.
                done.send(work()).ok();
                waker.wake();
            });
            loop {
                match result.try_recv() {
                    Ok(result) => return Ok(result),
                    Err(TryRecvError::Disconnected) => panic!("the work panicked"),
                    Err(TryRecvError::Empty) if interrupt::raised() => {
                        return Err(GroupError::Interrupted);
                    }
                    Err(TryRecvError::Empty) => self.drive(None)?,
                };
            }
        })
    }

    /// Measures how long a small message takes, and how long its sender is busy with it, at rank 0.
    /// Later broadcasts of all members are shaped by these times. All members make this call.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn measure(&mut self) -> Result<(Duration, Duration), GroupError> {
        let ranks = self.group[0].members().len() as u32;
        let mut barrier_ns = Vec::new();
        let mut shuffle_ns = Vec::new();
        for _ in 0..MEASURE_ROUNDS {
            let begin = MonotonicClock::now();
            self.barrier()?;
            let middle = MonotonicClock::now();
            self.shuffle(vec![Bytes::new(); ranks as usize])?;
            barrier_ns.push(middle.since(begin).as_nanos() as u64);
            shuffle_ns.push(MonotonicClock::now().since(middle).as_nanos() as u64);
        }
        // A barrier is log n messages one after the other. A shuffle is n - 1 messages at once,
        // each one way.
        let median = |mut all: Vec<u64>| {
            all.sort_unstable();
            all[all.len() / 2]
        };
        let steps = u64::from(ranks.next_power_of_two().trailing_zeros().max(1));
        let latency_ns = median(barrier_ns) / steps;
        let busy_ns = median(shuffle_ns).saturating_sub(latency_ns) / u64::from(ranks.max(2) - 1);
        let own: Bytes = [latency_ns, busy_ns].iter().flat_map(|ns| ns.to_le_bytes()).collect();
        let told = self.broadcast(0, own)?;
        let ns = |at: usize| told.get(at..at + 8).and_then(|lane| lane.try_into().ok());
        let time = |at| Duration::from_nanos(ns(at).map_or(0, u64::from_le_bytes));
        let (latency, per_message) = (time(0), time(8));
        self.group[0].set_costs(latency, per_message);
        Ok((latency, per_message))
    }

    /// The group that this member drives, for its counters and the shape of its trees.
    pub fn group(&self) -> &ProcessGroup {
        &self.group[0]
    }

    /// Counters of the shuffle and of the socket.
    pub fn counters(&self) -> (ShuffleCounters, PortCounters) {
        (self.group[0].counters(), *self.port.counters())
    }

    /// The most bytes that waited in the socket at any look, with
    /// [`GroupSocketOptions::watch_queue`].
    pub fn waiting_bytes_max(&self) -> u64 {
        self.waiting_bytes_max
    }

    /// Stops the counting of bytes that wait in the socket. The counting takes a system call for
    /// each arrival.
    pub fn stop_watching(&mut self) {
        self.watch_queue = false;
    }

    /// Answers members that lost the end of the last calls. The member stays until no member has
    /// asked for four resend intervals, and for two seconds at most. Then the socket closes. Rank 0
    /// of a [`local`] group also waits for the ends of the other processes.
    pub fn leave(mut self) {
        self.answer_last_calls();
        // The exit status of these processes tells the caller nothing.
        self.others.iter_mut().for_each(|other| drop(other.wait()));
    }

    /// As [`leave`](Self::leave), but rank 0 of a [`local`] group waits this long at most for the
    /// ends of the other processes, and then kills those that are left, such as a process that is
    /// stopped. Returns the ranks of the killed processes.
    pub fn leave_within(mut self, patience: Duration) -> Vec<usize> {
        self.answer_last_calls();
        let until = MonotonicClock::now() + patience;
        let mut killed = Vec::new();
        for (other, rank) in self.others.iter_mut().zip(1..) {
            while let Ok(None) = other.try_wait() {
                if MonotonicClock::now() < until {
                    thread::sleep(END_LOOK);
                    continue;
                }
                // A process that ends meanwhile cannot be killed, and needs not.
                drop(other.kill().and_then(|()| other.wait()));
                killed.push(rank);
                break;
            }
        }
        killed
    }

    fn answer_last_calls(&mut self) {
        let end = MonotonicClock::now() + Duration::from_secs(2);
        let mut quiet = MonotonicClock::now() + self.linger;
        while MonotonicClock::now() < quiet.min(end) && !interrupt::raised() {
            let received = self.port.counters().received;
            if self.drive(Some(quiet.min(end))).is_err() {
                break;
            }
            if self.port.counters().received > received {
                quiet = MonotonicClock::now() + self.linger;
            }
        }
    }
}

/// A machine that runs on the group and the socket of a member, such as a sort. The member is there
/// again when the machine has done its work.
pub struct GroupDriver<M: Machine> {
    machine: [M; 1],
    member: MemberRest,
}

/// A member without its group.
struct MemberRest {
    port: Box<dyn Port>,
    signals: interrupt::Watch,
    turn: Loop,
    linger: Duration,
    others: Vec<Child>,
}

impl GroupMember {
    /// Hands the group to a machine that runs on it. No call of the member may be under way.
    pub fn drive_machine<M: Machine>(
        self,
        machine: impl FnOnce(ProcessGroup) -> M,
    ) -> GroupDriver<M> {
        let Self { group: [group], port, _signals, turn, linger, others, .. } = self;
        let member = MemberRest { port, signals: _signals, turn, linger, others };
        GroupDriver { machine: [machine(group)], member }
    }
}

impl<M: Machine> GroupDriver<M> {
    /// Hands the machine an input at the present time. Its events go to `events`.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn input<T>(
        &mut self,
        input: impl FnOnce(&mut M, Timestamp) -> T,
        events: &mut impl FnMut(M::Event),
    ) -> Result<T, GroupError> {
        let [machine] = &mut self.machine;
        let port = self.member.port.as_mut();
        let mut tell = |_: &M, _: Timestamp, event| events(event);
        Ok(self.member.turn.input(0, machine, port, input, &mut tell)?)
    }

    /// Takes arrivals and timeouts in, and waits for more when there are none.
    ///
    /// # Errors
    /// When the socket fails, or a signal arrives.
    pub fn turn(&mut self, events: &mut impl FnMut(M::Event)) -> Result<(), GroupError> {
        if interrupt::raised() {
            return Err(GroupError::Interrupted);
        }
        let port = self.member.port.as_mut();
        let mut tell = |_: &M, _: Timestamp, event| events(event);
        self.member.turn.turn(&mut self.machine, port, None, &mut tell)?;
        Ok(())
    }

    /// The address to which other processes send.
    pub fn address(&self) -> SocketAddr {
        self.member.port.local_addr()
    }

    /// Datagrams that the machine did not understand, and those that did not open under the key or
    /// came a second time.
    pub fn malformed(&self) -> u64 {
        let port = self.member.port.counters();
        self.member.turn.counters().malformed + port.unopened + port.replayed
    }

    /// Ends a wait of [`turn`](Self::turn) from another thread.
    pub fn waker(&self) -> Waker {
        self.member.port.waker()
    }

    /// The machine.
    pub fn machine(&mut self) -> &mut M {
        &mut self.machine[0]
    }

    /// The member, with the group that the machine gives back.
    pub fn into_member(self, group: impl FnOnce(M) -> ProcessGroup) -> GroupMember {
        let Self { machine: [machine], member } = self;
        GroupMember {
            group: [group(machine)],
            port: member.port,
            _signals: member.signals,
            turn: member.turn,
            ended: BTreeMap::new(),
            linger: member.linger,
            watch_queue: false,
            waiting_bytes_max: 0,
            others: member.others,
        }
    }
}

fn keep(ended: &mut BTreeMap<u64, Result<CollectiveOutcome, RankFailure>>, event: CollectiveEvent) {
    match event {
        CollectiveEvent::Done { call, outcome } => drop(ended.insert(call, Ok(outcome))),
        CollectiveEvent::Failed { call, failure } => drop(ended.insert(call, Err(failure))),
        // Only calls among some ranks tell these, and a member makes none.
        CollectiveEvent::Arrived { .. } | CollectiveEvent::Here { .. } => {}
    }
}
