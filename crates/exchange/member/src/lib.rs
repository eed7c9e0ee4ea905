//! Group communication in a program of your own: one socket, calls that return when they are done.
//!
//! Who takes part binds a [`Seat`], learns the addresses of all others from wherever it likes, and
//! becomes a [`Member`]. All members make the same calls in the same order.
//!
//! Four local processes that shuffle. [`local`] starts this program three more times; elsewhere
//! something else starts them, and tells each its rank and all addresses:
//!
//! ```standalone_crate
//! use bytes::Bytes;
//! use evenfall_exchange_member as group;
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

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;
use std::{env, fmt, io};

use bytes::Bytes;
use evenfall_core::Timestamp;
use evenfall_exchange_machine::config::Pace;
use evenfall_exchange_machine::group::{Call, Event, Group, LANE_BYTES, Outcome, Reduce, Settings};
use evenfall_exchange_machine::wire::HEADER_BYTES;
use evenfall_exchange_machine::{Counters, Failure, StartError};
use evenfall_host::clock::MonotonicClock;
use evenfall_host::interrupt;
use evenfall_host::process::{Signal, end_with_parent};
use evenfall_port::run::Loop;
use evenfall_port::{Counters as PortCounters, Inject, Options, Port, Wake};

/// Code points of control, live, repair and bulk: expedited, assured, assured, background.
const DSCP: [u8; 4] = [46, 34, 18, 8];
/// Datagrams that injected delays and losses may hold at once.
const INJECT_DATAGRAMS_MAX: usize = 65_536;
/// Headers of IPv4 and UDP, and of Ethernet.
const IP_BYTES: u32 = 28;
const ETHERNET_BYTES: u32 = 14;
/// Memory for what has arrived and was not yet read: several messages to each of many members, on
/// a host whose cores are all busy.
const RECEIVE_BUFFER_BYTES: usize = 32 << 20;
/// Buffers of 64 KB that one system call fills at most: a quarter of a megabyte is still in a
/// core's own cache when messages are put together from it. Measured, the difference to 16 is
/// small: .87 to .91 ms for a shuffle of few long messages, none for equal ones.
const RECEIVE_BATCH: usize = 4;
/// Tells a process that [`local`] starts its rank, then all addresses.
const LOCAL: &str = "EVENFALL_LOCAL_GROUP";
/// Rounds of [`Member::measure`].
const MEASURE_ROUNDS: usize = 16;

/// Bytes of a link that a full packet takes besides its payload: our header and those below it.
pub const FRAME_BYTES: u32 = HEADER_BYTES as u32 + IP_BYTES + ETHERNET_BYTES;

/// How a seat uses its socket.
#[derive(Clone, Debug, Default)]
pub struct SeatOptions {
    /// Whether the members share a key, see
    /// [`Config::key`](evenfall_exchange_machine::Config::key). Without a key nothing leaves
    /// loopback.
    pub keyed: bool,
    /// Mark datagrams by class, so that switches and this host send control first.
    pub mark: bool,
    /// A file of delays and losses to inject ([`Inject`]).
    pub inject: Option<PathBuf>,
    /// Look after each wait how much waits in the socket, for [`Member::waiting_bytes_max`].
    pub watch_queue: bool,
    /// How long a call that waits looks for arrivals before it sleeps, and yields its core to
    /// others in between. Some 100 us spare most of the wake-ups where messages take less than a
    /// millisecond; where they take longer, they are wasted.
    pub yield_for: Duration,
}

/// The payload of a full packet on a link of this MTU.
pub fn packet_bytes(mtu: u32) -> u32 {
    let most = evenfall_port::DATAGRAM_BYTES_MAX as u32 - HEADER_BYTES as u32;
    mtu.saturating_sub(IP_BYTES + HEADER_BYTES as u32).clamp(64, most)
}

/// The pace of a link, counting the headers of a frame; datagrams leave in bursts of this length.
pub fn pace(bits_per_s: u64, burst: Duration) -> Pace {
    Pace::link(bits_per_s, FRAME_BYTES.into(), burst)
}

/// Why a call did not end well.
#[derive(Debug)]
#[non_exhaustive]
pub enum GroupError {
    /// It did not begin.
    Start(StartError),
    /// It failed, and names a rank.
    Failed(Failure),
    /// The socket.
    Io(evenfall_host::Error),
    /// SIGINT or SIGTERM came, which the program asked to be told of ([`interrupt::install`]).
    Interrupted,
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(error) => error.fmt(f),
            Self::Failed(failure) => failure.fmt(f),
            Self::Io(error) => error.fmt(f),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for GroupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Start(error) => std::error::Error::source(error),
            Self::Failed(error) => std::error::Error::source(error),
            Self::Io(error) => std::error::Error::source(error),
            Self::Interrupted => None,
        }
    }
}

impl From<StartError> for GroupError {
    fn from(error: StartError) -> Self {
        Self::Start(error)
    }
}

impl From<evenfall_host::Error> for GroupError {
    fn from(error: evenfall_host::Error) -> Self {
        Self::Io(error)
    }
}

/// A bound socket, before the others are known.
pub struct Seat {
    port: Box<dyn Port>,
    signals: interrupt::Watch,
    watch_queue: bool,
}

impl Seat {
    /// Binds.
    ///
    /// # Errors
    /// When the address is beyond loopback and there is no key, or is not of this host.
    pub fn bind(address: SocketAddr, options: SeatOptions) -> Result<Self, evenfall_host::Error> {
        let with = |file| Inject { file, seed: 1, queue_datagrams_max: INJECT_DATAGRAMS_MAX };
        let port = evenfall_port::open(
            address,
            Options {
                keyed: options.keyed,
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
        Ok(Self { port, signals, watch_queue: options.watch_queue })
    }

    /// What others send to.
    pub fn address(&self) -> SocketAddr {
        self.port.local_addr()
    }

    /// Takes part as number `rank` of these members.
    ///
    /// # Errors
    /// When the rank is not one of them.
    pub fn join(
        self,
        rank: usize,
        members: Vec<SocketAddr>,
        settings: Settings,
    ) -> Result<Member, StartError> {
        let linger = settings.exchange.resend_after * 4;
        Ok(Member {
            group: [Group::new(rank, members, settings)?],
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
/// first one, rank 0, starts the others with its own arguments; they begin at `main` again, and
/// come here. For trying things out: ports are found by chance, and another program may take one
/// before its rank does, which is then an error of that rank.
///
/// # Errors
/// When a socket cannot be bound, or the program not be started.
///
/// # Panics
/// When there is no rank at all, or more than 65,535.
pub fn local(ranks: usize) -> Result<Member, GroupError> {
    let told = env::var(LOCAL).ok();
    let seat = |address| Seat::bind(address, SeatOptions::default());
    let mut words = told.iter().flat_map(|told| told.split(' '));
    let rank = words.next().and_then(|rank| rank.parse().ok());
    let members: Vec<SocketAddr> = words.map_while(|word| word.parse().ok()).collect();
    if let Some(rank) = rank.filter(|&rank| rank < members.len()) {
        return Ok(seat(members[rank])?.join(rank, members, Settings::default())?);
    }
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut seats = (0..ranks).map(|_| seat(any)).collect::<Result<Vec<_>, _>>()?;
    let members: Vec<SocketAddr> = seats.iter().map(Seat::address).collect();
    // The others bind theirs again.
    seats.truncate(1);
    let own = seats.pop().expect("one rank at least");
    let others = (1..ranks).map(|rank| again(rank, &members)).collect::<io::Result<_>>();
    let others = others.map_err(|source| evenfall_host::Error::Os {
        what: "start this program again".into(),
        source,
        advice: "is its file still there?",
    })?;
    let member = own.join(0, members, Settings::default())?;
    Ok(Member { others, ..member })
}

fn again(rank: usize, members: &[SocketAddr]) -> io::Result<Child> {
    let mut words = vec![rank.to_string()];
    words.extend(members.iter().map(ToString::to_string));
    let mut command = Command::new(env::current_exe()?);
    command.args(env::args_os().skip(1)).env(LOCAL, words.join(" "));
    end_with_parent(&mut command, Signal::Kill);
    command.spawn()
}

/// One rank of a group, in this thread. Nothing is sent or answered outside its calls, so a member
/// that stays away for longer than the others' `silence_max` is taken for dead.
pub struct Member {
    group: [Group; 1],
    port: Box<dyn Port>,
    _signals: interrupt::Watch,
    turn: Loop,
    ended: BTreeMap<u64, Result<Outcome, Failure>>,
    linger: Duration,
    watch_queue: bool,
    waiting_bytes_max: u64,
    /// What [`local`] started.
    others: Vec<Child>,
}

impl Member {
    /// Its number among the members.
    pub fn rank(&self) -> usize {
        self.group[0].rank()
    }

    /// Begins a call, for [`wait`](Self::wait): several may run at once.
    ///
    /// # Errors
    /// As [`Group::call`].
    pub fn start(&mut self, call: Call) -> Result<u64, GroupError> {
        let begin = |group: &mut Group, now| group.call(now, call);
        let ended = &mut self.ended;
        let [group] = &mut self.group;
        let mut events = |_: &Group, _: Timestamp, event| keep(ended, event);
        Ok(self.turn.input(0, group, self.port.as_mut(), begin, &mut events)??)
    }

    /// Waits for a call that was started.
    ///
    /// # Errors
    /// When it fails, or a signal comes.
    pub fn wait(&mut self, call: u64) -> Result<Outcome, GroupError> {
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
        let mut events = |_: &Group, _: Timestamp, event| keep(ended, event);
        let wake = self.turn.turn(&mut self.group, self.port.as_mut(), until, &mut events)?;
        if self.watch_queue && wake == Wake::Readable {
            self.waiting_bytes_max = self.waiting_bytes_max.max(self.port.waiting_bytes());
        }
        Ok(wake)
    }

    fn do_call(&mut self, call: Call) -> Result<Outcome, GroupError> {
        let number = self.start(call)?;
        self.wait(number)
    }

    fn one(&mut self, call: Call) -> Result<Bytes, GroupError> {
        match self.do_call(call)? {
            Outcome::One(body) => Ok(body),
            Outcome::All(_) | Outcome::Nothing => Ok(Bytes::new()),
        }
    }

    fn all(&mut self, call: Call) -> Result<Vec<Bytes>, GroupError> {
        match self.do_call(call)? {
            Outcome::All(bodies) => Ok(bodies),
            Outcome::One(_) | Outcome::Nothing => Ok(Vec::new()),
        }
    }

    /// One message to each member; what each has for this one.
    ///
    /// # Errors
    /// As [`wait`](Self::wait); the same for all calls below.
    pub fn shuffle(&mut self, messages: Vec<Bytes>) -> Result<Vec<Bytes>, GroupError> {
        self.all(Call::Shuffle { messages })
    }

    /// The same over a mesh; see [`Call::TwoLevelShuffle`].
    ///
    /// # Errors
    /// See above.
    pub fn two_level_shuffle(&mut self, messages: Vec<Bytes>) -> Result<Vec<Bytes>, GroupError> {
        self.all(Call::TwoLevelShuffle { messages })
    }

    /// The root's body.
    ///
    /// # Errors
    /// See above.
    pub fn broadcast(&mut self, root: usize, body: Bytes) -> Result<Bytes, GroupError> {
        self.one(Call::Broadcast { root, body })
    }

    /// Everybody's body at the root, nothing anywhere else.
    ///
    /// # Errors
    /// See above.
    pub fn gather(&mut self, root: usize, body: Bytes) -> Result<Vec<Bytes>, GroupError> {
        self.all(Call::Gather { root, body })
    }

    /// Everybody's body.
    ///
    /// # Errors
    /// See above.
    pub fn all_gather(&mut self, body: Bytes) -> Result<Vec<Bytes>, GroupError> {
        self.all(Call::AllGather { body })
    }

    /// Everybody's values, reduced one by one. [`f64::to_bits`] for those that need it.
    ///
    /// # Errors
    /// See above.
    pub fn all_reduce(&mut self, values: &[u64], by: Reduce) -> Result<Vec<u64>, GroupError> {
        let values = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let reduced = self.one(Call::AllReduce { values, by })?;
        let word = |lane: &[u8]| lane.try_into().map_or(0, u64::from_le_bytes);
        Ok(reduced.chunks(LANE_BYTES).map(word).collect())
    }

    /// Returns when all have come to it.
    ///
    /// # Errors
    /// See above.
    pub fn barrier(&mut self) -> Result<(), GroupError> {
        self.do_call(Call::Barrier).map(drop)
    }

    /// Measures how long a small message takes and how long its sender is busy with it, at rank 0,
    /// and shapes broadcasts of all members by it. A call of its own: all members make it.
    ///
    /// # Errors
    /// See above.
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
        // A barrier is log n messages one after the other; a shuffle n - 1 at once, and one way.
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

    /// The machine below, for its counters and shape.
    pub fn group(&self) -> &Group {
        &self.group[0]
    }

    /// What the exchange counted, and what the socket did.
    pub fn counters(&self) -> (Counters, PortCounters) {
        (self.group[0].counters(), *self.port.counters())
    }

    /// Most memory that ever waited in the socket, while the seat was asked to watch it.
    pub fn waiting_bytes_max(&self) -> u64 {
        self.waiting_bytes_max
    }

    /// No longer looks how much waits in the socket: that takes a system call for each arrival.
    pub fn stop_watching(&mut self) {
        self.watch_queue = false;
    }

    /// Answers for what was lost of the last calls, until nobody has asked for four resend
    /// intervals, at most for two seconds; then the socket closes. Rank 0 of a [`local`] group also
    /// waits for the others' ends.
    pub fn leave(mut self) {
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
        // A status would be of use to nobody here.
        self.others.iter_mut().for_each(|other| drop(other.wait()));
    }
}

fn keep(ended: &mut BTreeMap<u64, Result<Outcome, Failure>>, event: Event) {
    match event {
        Event::Done { call, outcome } => ended.insert(call, Ok(outcome)),
        Event::Failed { call, failure } => ended.insert(call, Err(failure)),
    };
}
