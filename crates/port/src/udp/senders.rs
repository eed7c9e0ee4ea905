//! A port whose datagrams leave and arrive on threads, one a stream.
//!
//! The machines of a root stay on one thread, because their feed is one. Most of the time of that
//! thread would go to system calls, which copy each frame for every child. A [`StreamSenders`]
//! therefore hands the frames of each stream to a thread with a socket of its own. The receivers of
//! a frame are fixed before the frame is queued, so that a group may change while frames wait. All
//! sockets have one address (`super::streams`).
//!
//! Each class of a stream waits in two queues, that of the port and that of the socket. Each queue
//! has the limits [`Options::queue_frames_max`] and [`Options::queue_bytes_max`]. At most
//! [`ARRIVALS_MAX`] arrivals wait for the machines.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use evenfall_core::{Arrival, Install, Installed, Timestamp, TrafficClass, Transmit};
use evenfall_host::clock::MonotonicClock;
use evenfall_host::{Error, Waker};

use super::UdpDriver;
use super::outbox::resolve_receivers;
use super::plan::{Frame, Group};
use super::streams::{StreamField, open_siblings};
use crate::answers::Answers;
use crate::groups::Groups;
use crate::wait::{Blocked, Waiting, eventfd};
use crate::{Answer, Counters, Options, Port, Refusal, Wake, lock};

/// Limit of the arrivals that wait for the machines: four times a batch of 16 buffers with 64
/// datagrams each.
const ARRIVALS_MAX: usize = 4_096;
/// The longest wait of a thread, after which it looks whether it shall end.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// How long a thread that shall end tries to send what is left.
const FAREWELL: Duration = Duration::from_millis(100);

/// Frames of one class that wait for a thread.
#[derive(Default)]
struct LaneSize {
    frames: AtomicUsize,
    bytes: AtomicUsize,
}

impl LaneSize {
    fn has_room(&self, options: &Options) -> bool {
        self.frames.load(Ordering::Relaxed) < options.queue_frames_max
            && self.bytes.load(Ordering::Relaxed) < options.queue_bytes_max
    }

    fn add_frame(&self, frame: &Frame) {
        self.frames.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(frame.transmit.len(), Ordering::Relaxed);
    }

    fn remove_frame(&self, frame: &Frame) {
        self.frames.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(frame.transmit.len(), Ordering::Relaxed);
    }
}

/// What the port and the thread of one stream share.
struct StreamLanes {
    /// Frames by class, the first to leave in front.
    frames: Mutex<[VecDeque<Frame>; 4]>,
    /// Whether there may be any, which the thread can see without the lock.
    is_filled: AtomicBool,
    sizes: [LaneSize; 4],
    counters: Mutex<Counters>,
    is_stopped: AtomicBool,
    /// Ends the wait of the thread.
    waker: Waker,
}

impl StreamLanes {
    fn new(waker: Waker) -> Self {
        Self {
            frames: Mutex::default(),
            is_filled: AtomicBool::new(false),
            sizes: Default::default(),
            counters: Mutex::default(),
            is_stopped: AtomicBool::new(false),
            waker,
        }
    }

    /// Takes over frames, and wakes the thread unless it knows of others.
    fn put(&self, fresh: &mut Vec<Frame>) {
        let mut lanes = lock(&self.frames);
        fresh.drain(..).for_each(|frame| lanes[frame.transmit.class as usize].push_back(frame));
        let was_filled = self.is_filled.swap(true, Ordering::AcqRel);
        // The thread that wakes up takes the lock.
        drop(lanes);
        if !was_filled {
            self.waker.wake();
        }
    }

    /// Moves frames to the thread's own queues, class by class, as far as these have room. Returns
    /// whether frames are left.
    fn move_frames(&self, driver: &mut UdpDriver) -> bool {
        if !self.is_filled.load(Ordering::Acquire) {
            return false;
        }
        let mut lanes = lock(&self.frames);
        for (lane, size) in lanes.iter_mut().zip(&self.sizes) {
            let class = |frame: &Frame| frame.transmit.class;
            while lane.front().is_some_and(|f| driver.outbox.takes_frame(class(f), &driver.options))
                && let Some(frame) = lane.pop_front()
            {
                size.remove_frame(&frame);
                driver.outbox.push_frame(frame);
            }
        }
        let is_left = lanes.iter().any(|lane| !lane.is_empty());
        // Under the lock, so that the next frame wakes the thread again.
        self.is_filled.store(is_left, Ordering::Release);
        is_left
    }
}

/// What the threads bring for the machines.
struct Gathered {
    news: Mutex<GatheredNews>,
    /// Readable while there is something in the news. It is set and cleared under the lock of the
    /// news, so that a look that found nothing need not clear it.
    arrived: Waker,
}

#[derive(Default)]
struct GatheredNews {
    arrivals: Vec<Arrival>,
    answers: Vec<Answer>,
    overrun: u64,
}

impl Gathered {
    fn put(&self, arrivals: &mut Vec<Arrival>, answers: &mut Vec<Answer>) {
        if arrivals.is_empty() && answers.is_empty() {
            return;
        }
        let mut news = lock(&self.news);
        let was_empty = news.arrivals.is_empty() && news.answers.is_empty();
        let room = ARRIVALS_MAX.saturating_sub(news.arrivals.len());
        news.overrun += arrivals.len().saturating_sub(room) as u64;
        arrivals.truncate(room);
        news.arrivals.append(arrivals);
        news.answers.append(answers);
        if was_empty {
            self.arrived.wake();
        }
    }
}

/// The work of the thread of one stream.
fn run_stream(mut driver: UdpDriver, lanes: &StreamLanes, gathered: &Gathered) {
    let (mut arrivals, mut answers) = (Vec::new(), Vec::new());
    let mut ends_at: Option<Timestamp> = None;
    loop {
        if ends_at.is_none() && lanes.is_stopped.load(Ordering::Acquire) {
            ends_at = Some(MonotonicClock::now() + FAREWELL);
        }
        let is_left = lanes.move_frames(&mut driver);
        let is_flushed = driver.flush();
        let is_read = driver.receive(&mut arrivals) == 0 || driver.is_drained();
        driver.answers(&mut answers);
        gathered.put(&mut arrivals, &mut answers);
        *lock(&lanes.counters) = *driver.counters();
        let now = MonotonicClock::now();
        if ends_at.is_some_and(|at| now >= at || !is_left && is_flushed) {
            return;
        }
        if is_read && (!is_left || !is_flushed) {
            let until = ends_at.unwrap_or(now + WAIT_MAX);
            driver.wait(None, Some(until));
        }
    }
}

/// The thread of one stream, and the frames that it was not given yet.
struct StreamSender {
    lanes: Arc<StreamLanes>,
    fresh: Vec<Frame>,
    thread: Option<JoinHandle<()>>,
}

impl StreamSender {
    fn start(driver: UdpDriver, number: usize, gathered: &Arc<Gathered>) -> Result<Self, Error> {
        let lanes = Arc::new(StreamLanes::new(driver.waiting.waker.clone()));
        let (shared, gathered) = (Arc::clone(&lanes), Arc::clone(gathered));
        let thread = std::thread::Builder::new()
            .name(format!("evenfall-send-{number}"))
            .spawn(move || run_stream(driver, &shared, &gathered))
            .map_err(|source| Error::Os {
                what: format!("start the thread of stream {number}"),
                source,
                advice: "raise the limit of threads (ulimit -u)",
            })?;
        Ok(Self { lanes, fresh: Vec::new(), thread: Some(thread) })
    }
}

impl Drop for StreamSender {
    fn drop(&mut self) {
        self.lanes.is_stopped.store(true, Ordering::Release);
        self.lanes.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said why.
            drop(thread.join());
        }
    }
}

/// A port that sends and receives on a thread for each stream.
pub(crate) struct StreamSenders {
    streams: Vec<StreamSender>,
    options: Options,
    groups: Groups<Group>,
    answers: Answers,
    gathered: Arc<Gathered>,
    waiting: Waiting,
    /// What this port itself counts.
    own: Counters,
    /// The sum over all streams and `own`, at the last look.
    counters: Counters,
    local: SocketAddr,
    notes: Vec<String>,
}

/// The port of `count` streams at the address of the first socket, with a thread each. Where the
/// kernel refuses, the port over the first socket alone, with a note.
pub(crate) fn start_senders(
    mut first: UdpDriver,
    field: StreamField,
    count: usize,
) -> Result<Box<dyn Port>, Error> {
    let siblings = match open_siblings(&first, field, count) {
        Ok(siblings) => siblings,
        Err(error) => {
            drop(first.socket.share_port(false));
            first.socket.notes.push(format!("one socket has all streams: {error}"));
            return Ok(Box::new(first));
        }
    };
    let gathered = Arc::new(Gathered { news: Mutex::default(), arrived: eventfd()? });
    let (options, local) = (first.options.clone(), first.local_addr());
    let notes = first.notes().to_vec();
    let drivers = std::iter::once(first).chain(siblings).enumerate();
    let streams = drivers
        .map(|(number, driver)| StreamSender::start(driver, number, &gathered))
        .collect::<Result<_, _>>()?;
    Ok(Box::new(StreamSenders {
        streams,
        options,
        groups: Groups::new(),
        answers: Answers::default(),
        gathered,
        waiting: Waiting::new()?,
        own: Counters::default(),
        counters: Counters::default(),
        local,
        notes,
    }))
}

impl StreamSenders {
    fn count(&mut self) {
        let mut sum = self.own;
        for stream in &self.streams {
            sum.add(&lock(&stream.lanes.counters));
        }
        self.counters = sum;
    }
}

impl Port for StreamSenders {
    fn install(&mut self, owner: usize, install: &Install) -> Result<Installed, Error> {
        if let Install::Group(id, members) = install {
            self.groups.install((owner, *id), members, &self.options, Group::new)?;
            return Ok(Installed::Taken);
        }
        self.own.installs_ignored += 1;
        Ok(Installed::Ignored)
    }

    fn has_room(&self, class: TrafficClass) -> bool {
        let mut sizes = self.streams.iter().flat_map(|s| &s.lanes.sizes[..=class as usize]);
        sizes.all(|size| size.has_room(&self.options))
    }

    fn send(&mut self, owner: usize, transmit: Transmit) -> Result<(), Refusal> {
        let (class, token) = (transmit.class as usize, transmit.token);
        // A machine beyond the last stream, such as that of the clock, sends by the first socket.
        let number = if owner < self.streams.len() { owner } else { 0 };
        let stream = &mut self.streams[number];
        let refusal = match resolve_receivers(&self.groups, owner, &transmit, &self.options) {
            Ok(receivers) => {
                let frame = Frame { owner, transmit, receivers };
                let size = &stream.lanes.sizes[class];
                if size.has_room(&self.options) {
                    size.add_frame(&frame);
                    stream.fresh.push(frame);
                    return Ok(());
                }
                self.own.dropped_full[class] += frame.copies() as u64;
                Refusal::Full
            }
            Err(refusal) => {
                self.own.refused += 1;
                refusal
            }
        };
        if let Some(token) = token {
            self.answers.left(owner, token, None, &mut self.own);
        }
        Err(refusal)
    }

    /// Gives the frames to the threads. They queue what the network does not take.
    fn flush(&mut self) -> bool {
        for stream in &mut self.streams {
            if !stream.fresh.is_empty() {
                stream.lanes.put(&mut stream.fresh);
            }
        }
        true
    }

    fn receive(&mut self, out: &mut Vec<Arrival>) -> usize {
        let mut news = lock(&self.gathered.news);
        self.own.overrun = news.overrun;
        let count = news.arrivals.len();
        out.append(&mut news.arrivals);
        if count > 0 && news.answers.is_empty() {
            self.gathered.arrived.clear();
        }
        count
    }

    fn is_drained(&self) -> bool {
        true
    }

    fn wait(&mut self, lull: Option<Timestamp>, deadline: Option<Timestamp>) -> Wake {
        let arrived = self.gathered.arrived.fd();
        self.waiting.wait(arrived, &self.options, Blocked::No, lull, deadline)
    }

    fn wait_idly(&mut self, lull: Option<Timestamp>, deadline: Option<Timestamp>) -> Wake {
        self.waiting.is_idle = true;
        let wake = self.wait(lull, deadline);
        self.waiting.is_idle = false;
        wake
    }

    fn answers(&mut self, out: &mut Vec<Answer>) {
        self.answers.take(out);
        let mut news = lock(&self.gathered.news);
        let has_answers = !news.answers.is_empty();
        out.append(&mut news.answers);
        if has_answers && news.arrivals.is_empty() {
            self.gathered.arrived.clear();
        }
        drop(news);
        self.count();
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn waker(&self) -> Waker {
        self.waiting.waker.clone()
    }

    fn handle(&self) -> Result<OwnedFd, Error> {
        self.gathered.arrived.handle().map_err(|source| Error::Os {
            what: "watch another port".into(),
            source,
            advice: "raise the limit of open files (ulimit -n)",
        })
    }

    fn watch(&mut self, others: Vec<OwnedFd>) {
        self.waiting.watch(others);
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};

    use bytes::Bytes;
    use evenfall_core::{Destination, GroupId, Head, Token};

    use super::*;

    const FIELD: StreamField = StreamField { magic: *b"EF", offset: 8 };

    fn start(options: Options) -> Box<dyn Port> {
        let any = (Ipv4Addr::LOCALHOST, 0).into();
        let port = start_senders(UdpDriver::bind(any, options).unwrap(), FIELD, 2).unwrap();
        assert!(port.notes().iter().all(|note| !note.contains("one socket")), "{:?}", port.notes());
        port
    }

    fn frame(stream: u32, number: u32) -> Bytes {
        [&b"EF"[..], &[0; 6], &stream.to_le_bytes(), &number.to_le_bytes()].concat().into()
    }

    fn transmit(to: Destination, body: Bytes) -> Transmit {
        Transmit::new(TrafficClass::Live, to, Head::new(&[]), body)
    }

    /// A socket that waits for a datagram for five seconds at most.
    fn socket() -> UdpSocket {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        socket
    }

    #[test]
    fn frames_of_each_stream_leave_in_their_order_from_one_address() {
        let mut port = start(Options { segmentation: false, ..Options::default() });
        let sockets = [socket(), socket()];
        let members: Arc<[_]> = sockets.iter().map(|s| s.local_addr().unwrap()).collect();
        for owner in 0..2 {
            let group = Install::Group(GroupId(7), Arc::clone(&members));
            assert_eq!(port.install(owner, &group).unwrap(), Installed::Taken);
        }
        for number in 0..100 {
            for stream in 0..2 {
                let to = Destination::Group(GroupId(7));
                port.send(stream as usize, transmit(to, frame(stream, number))).unwrap();
            }
            port.flush();
        }
        for socket in &sockets {
            let mut next = [0, 0];
            let mut bytes = [0; 64];
            for _ in 0..200 {
                let (len, from) = socket.recv_from(&mut bytes).unwrap();
                assert_eq!(from, port.local_addr());
                let stream = bytes[8] as usize;
                assert_eq!(bytes[..len], frame(stream as u32, next[stream])[..]);
                next[stream] += 1;
            }
            assert_eq!(next, [100, 100]);
        }
        let mut none = Vec::new();
        let until = MonotonicClock::now() + Duration::from_secs(5);
        while port.counters().sent[TrafficClass::Live as usize] < 400
            && MonotonicClock::now() < until
        {
            port.answers(&mut none);
        }
        assert_eq!(port.counters().sent[TrafficClass::Live as usize], 400);
    }

    #[test]
    fn arrivals_at_any_socket_and_answers_to_tokens_end_the_wait() {
        let mut port = start(Options::default());
        let there = socket();
        for stream in [0, 1] {
            there.send_to(&frame(stream, 3), port.local_addr()).unwrap();
        }
        let to = Destination::One(there.local_addr().unwrap());
        let asked = transmit(to, frame(1, 0)).asking(Token(9));
        port.send(1, asked).unwrap();
        port.flush();
        let (mut arrivals, mut answers) = (Vec::new(), Vec::new());
        let until = MonotonicClock::now() + Duration::from_secs(5);
        while arrivals.len() < 2 || answers.is_empty() {
            assert_ne!(port.wait(None, Some(until)), Wake::Deadline, "{arrivals:?} {answers:?}");
            port.receive(&mut arrivals);
            port.answers(&mut answers);
        }
        assert!(matches!(answers[..], [Answer::Sent(1, sent)] if sent.token == Token(9)));
    }

    #[test]
    fn what_is_queued_leaves_before_the_threads_end() {
        let mut port = start(Options::default());
        let there = socket();
        let to = Destination::One(there.local_addr().unwrap());
        port.send(1, transmit(to, frame(1, 5))).unwrap();
        port.flush();
        drop(port);
        let mut bytes = [0; 64];
        assert_eq!(there.recv(&mut bytes).unwrap(), 16);
    }

    #[test]
    fn a_queue_at_its_limit_refuses_and_counts_copies() {
        let mut port = start(Options { queue_frames_max: 2, ..Options::default() });
        let there = socket();
        let to = Destination::One(there.local_addr().unwrap());
        for number in 0..2 {
            port.send(0, transmit(to, frame(0, number))).unwrap();
        }
        assert!(!port.has_room(TrafficClass::Live) && port.has_room(TrafficClass::Control));
        assert_eq!(port.send(0, transmit(to, frame(0, 2))), Err(Refusal::Full));
        let unknown = port.send(0, transmit(Destination::Group(GroupId(1)), frame(0, 2)));
        assert_eq!(unknown, Err(Refusal::UnknownGroup(GroupId(1))));
        let mut none = Vec::new();
        port.answers(&mut none);
        let counters = port.counters();
        assert_eq!((counters.dropped_full[TrafficClass::Live as usize], counters.refused), (1, 1));
    }
}
