//! What a message costs a receiver: the processor time of its thread, its calls of the allocator,
//! and the time until the program has the message.
//!
//! A root and a receiver run in threads of this process, over loopback, as programs of a user run
//! them. The receiver's thread looks at its own clock when it is asked to. The time of the kernel's
//! receiving half, up to the socket, belongs to the sender of a datagram on loopback and is not
//! counted.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver as Awaited, channel};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{NodeId, nearest_rank};
use evenfall_host::allocations::count_of_thread;
use evenfall_host::clock::{MonotonicClock, thread_cpu};
use evenfall_host::ports;
use evenfall_multicast_machine::SharedKey;
use evenfall_multicast_service::settings::{EmbeddedRootSettings, Subscription};
use evenfall_multicast_service::{EmbeddedRoot, FeedUpdate, Subscriber};

pub mod line;

type Failure = Box<dyn std::error::Error>;

/// Name of the receiver in the settings of its subscription.
const RECEIVER: NodeId = NodeId(1);
/// How long paths are measured before the first message.
const WARM_UP: Duration = Duration::from_millis(300);
/// How long the program waits for a message before it looks again.
const WAIT: Duration = Duration::from_millis(200);
/// How long nothing may come before the measurement fails.
const SILENCE: Duration = Duration::from_secs(20);
/// Updates that the program takes at once.
const BATCH_MAX: usize = 4_096;
/// Shortest sleep of the publisher. A shorter sleep costs more processor time than it lasts.
const NAP: Duration = Duration::from_micros(20);

/// Settings of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceiveBench {
    /// Bytes of a message.
    pub size: usize,
    /// Messages in one datagram.
    pub pack: u16,
    /// Datagrams a second.
    pub rate: u32,
    /// How long to send.
    pub duration: Duration,
    /// Whether datagrams are sealed.
    pub is_sealed: bool,
}

impl ReceiveBench {
    fn datagrams(&self) -> u64 {
        (f64::from(self.rate) * self.duration.as_secs_f64()) as u64
    }

    fn messages(&self) -> u64 {
        self.datagrams() * u64::from(self.pack)
    }
}

/// What a message cost the receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReceiveCost {
    /// Processor time of the receiver's thread a message.
    pub cpu_ns_per_message: f64,
    /// Calls of the allocator by the receiver's thread a datagram.
    pub allocations: f64,
    /// Median of the time from the release to the program.
    pub handover_us: f64,
    /// 99th percentile of that time.
    pub handover_us_p99: f64,
    /// Messages that the program did not get.
    pub lost: u64,
}

/// A look at the receiver's thread.
#[derive(Clone, Copy, Debug)]
struct ThreadMark {
    messages: u64,
    cpu_ns: u64,
    calls: u64,
}

/// Looks at the receiver's thread from within the thread.
#[derive(Default)]
struct ThreadProbe {
    is_wanted: AtomicBool,
    cpu_ns: AtomicU64,
    calls: AtomicU64,
    looks: AtomicU64,
}

impl ThreadProbe {
    /// The receiver's thread calls this when a message comes after none was waiting.
    fn look(&self) {
        if self.is_wanted.swap(false, Ordering::AcqRel) {
            self.cpu_ns.store(thread_cpu().as_nanos() as u64, Ordering::Relaxed);
            self.calls.store(count_of_thread(), Ordering::Relaxed);
            self.looks.fetch_add(1, Ordering::Release);
        }
    }
}

/// The looks at the receiver's thread behind the first tenth of the messages and before the last.
struct ThreadMarks {
    probe: Arc<ThreadProbe>,
    at: [u64; 2],
    taken: Vec<ThreadMark>,
    is_asked: bool,
}

impl ThreadMarks {
    fn new(messages: u64) -> Self {
        let at = [messages / 10, messages - messages / 10];
        Self { probe: Arc::default(), at, taken: Vec::new(), is_asked: false }
    }

    /// The program has this many messages now.
    fn advance(&mut self, messages: u64) {
        let Some(at) = self.at.get(self.taken.len()) else { return };
        if !self.is_asked && messages >= *at {
            self.probe.is_wanted.store(true, Ordering::Release);
            self.is_asked = true;
        } else if self.is_asked
            && self.probe.looks.load(Ordering::Acquire) > self.taken.len() as u64
        {
            let cpu_ns = self.probe.cpu_ns.load(Ordering::Relaxed);
            let calls = self.probe.calls.load(Ordering::Relaxed);
            self.taken.push(ThreadMark { messages, cpu_ns, calls });
            self.is_asked = false;
        }
    }
}

/// The settings of both ends.
fn settings_of(bench: &ReceiveBench) -> Result<(EmbeddedRootSettings, Subscription), Failure> {
    let loopback = Ipv4Addr::LOCALHOST;
    let (root, own) = (ports::free(loopback.into())?, SocketAddr::from((loopback, 0)));
    let key = bench.is_sealed.then(|| SharedKey::new(1, [5; 32]));
    let mut publication = EmbeddedRootSettings::new(root, NodeId(0));
    publication.receivers = vec![(RECEIVER, own)];
    publication.multicast.framing.messages_max = bench.pack;
    publication.key.clone_from(&key);
    let mut subscription = Subscription::new(root, own, RECEIVER);
    subscription.multicast = publication.multicast;
    subscription.key = key;
    Ok((publication, subscription))
}

/// Publishes at the pace of the measurement, from when the program has the first message.
fn publish_paced(
    bench: &ReceiveBench,
    root: EmbeddedRoot,
    begin: &Awaited<()>,
) -> Result<(), String> {
    let message = Bytes::from(vec![b'm'; bench.size]);
    let publish = || root.publish(message.clone(), 0).map_err(|error| error.to_string());
    publish()?;
    // Without a program there is nobody to publish for.
    begin.recv().map_err(|_| "the receiver has ended".to_owned())?;
    let gap = Duration::from_secs(1) / bench.rate.max(1);
    let mut due = MonotonicClock::now();
    for _ in 0..bench.datagrams() {
        let early = due.since(MonotonicClock::now());
        if early > NAP {
            thread::sleep(early);
        }
        for _ in 0..bench.pack {
            publish()?;
        }
        due += gap;
    }
    root.finish().map(drop).map_err(|error| error.to_string())
}

/// Takes all messages.
fn take_messages(
    bench: &ReceiveBench,
    mut desk: Subscriber,
    begin: impl Fn(),
) -> Result<ReceiveCost, Failure> {
    let mut marks = ThreadMarks::new(bench.messages());
    let probe = Arc::clone(&marks.probe);
    desk.call_when_filled(Arc::new(move || probe.look()));
    let (mut messages, mut waited_us) = (0, Vec::new());
    let mut last = MonotonicClock::now();
    while let Some(batch) = desk.next_batch(BATCH_MAX, WAIT) {
        let batch = batch?;
        if batch.updates.is_empty() {
            if MonotonicClock::now().since(last) > SILENCE {
                return Err("no message came: is the machine too busy?".into());
            }
            continue;
        }
        last = MonotonicClock::now();
        if messages == 0 {
            begin();
        }
        let is_message = |update: &&FeedUpdate| matches!(update, FeedUpdate::Message(_));
        messages += batch.updates.iter().filter(is_message).count() as u64;
        waited_us.push(batch.waited.as_nanos() as f64 / 1e3);
        marks.advance(messages);
    }
    let [first, second] = marks.taken[..] else {
        return Err("too few messages to measure: use a longer --duration".into());
    };
    waited_us.sort_by(f64::total_cmp);
    let handover = |q| nearest_rank(&waited_us, q).unwrap_or(f64::NAN);
    let counted = (second.messages - first.messages).max(1) as f64;
    Ok(ReceiveCost {
        cpu_ns_per_message: (second.cpu_ns - first.cpu_ns) as f64 / counted,
        allocations: (second.calls - first.calls) as f64 * f64::from(bench.pack) / counted,
        handover_us: handover(0.5),
        handover_us_p99: handover(0.99),
        // One message goes before the others.
        lost: (bench.messages() + 1).saturating_sub(messages),
    })
}

/// Sends at the pace of the measurement, and measures the receiver.
///
/// # Errors
/// When a node cannot start, or too few messages come.
pub fn measure_receiver(bench: &ReceiveBench) -> Result<ReceiveCost, Failure> {
    let (publication, subscription) = settings_of(bench)?;
    let mut settings = publication.settings()?;
    settings.course.warm_up = WARM_UP;
    let root = EmbeddedRoot::start(settings, EmbeddedRootSettings::NAME)?;
    let desk = Subscriber::of(&subscription)?;
    let (begun, begin) = channel();
    thread::scope(|scope| -> Result<ReceiveCost, Failure> {
        let publisher = scope.spawn(move || publish_paced(bench, root, &begin));
        let taken = take_messages(bench, desk, move || {
            // The publisher may have failed.
            begun.send(()).ok();
        });
        let published = publisher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let cost = taken?;
        published?;
        Ok(cost)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_is_measured_packed_and_one_by_one_sealed_and_not() {
        for (pack, is_sealed) in [(1, false), (20, true)] {
            let duration = Duration::from_millis(500);
            let bench = ReceiveBench { size: 40, pack, rate: 1_000, duration, is_sealed };
            let cost = measure_receiver(&bench).expect("a measurement");
            assert_eq!(cost.lost, 0, "{cost:?}");
            assert!(cost.cpu_ns_per_message > 0.0 && cost.handover_us > 0.0, "{cost:?}");
        }
    }
}
