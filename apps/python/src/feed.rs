//! `Feed`: a subscription, message by message or in batches of Arrow columns.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evenfall::subscriber::{
    FeedUpdate, QueueLimits, ReleasedMessage, Settings, SubscribeError, Subscriber, Subscription,
};
use evenfall::{MasterKey, NodeId, NodeKey, SharedKey};
use evenfall_feed_formats::codec::{self, Codec, TimeOrigin};
use evenfall_feed_formats::event::{Event, Events, PRICE_DECIMALS};
use evenfall_feed_formats::sharding::ContentHash;
use evenfall_runtime::address::look_up;
use evenfall_runtime::settings;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::{RowsError, sentence, settings_error, subscribe_error, wrong_argument};
use crate::feed_batch::FeedBatch;
use crate::rows::Rows;
use crate::waits::{run_beside, wait_for};

/// Messages that are taken from the receiver at once when the program asks for one.
const TAKEN_AT_ONCE: usize = 1_024;
/// Bytes of messages that may wait by default.
const WAITING_BYTES: usize = 256 << 20;
/// Pause while a batch is gathered. Each look costs a lock, and a feed has thousands of releases a
/// second.
const GATHER_EVERY: Duration = Duration::from_millis(1);

/// Subscribes by plain values, or as a node of a settings file.
///
/// By default 1,048,576 messages may wait, .7 s of a feed of 1.5 million messages a second, so that
/// a collection of garbage or a plot does not cut the program off.
#[pyfunction]
#[pyo3(name = "subscribe", signature = (config = None, name = None, *, root = None, address = None,
    id = None, key = None, node_key = None, standbys = None, trees = 1, only = None,
    waiting = 1_048_576, hashed = false))]
#[allow(clippy::too_many_arguments, reason = "they are keyword arguments of Python")]
pub(crate) fn subscribe_to(
    py: Python<'_>,
    config: Option<PathBuf>,
    name: Option<String>,
    root: Option<String>,
    address: Option<String>,
    id: Option<u32>,
    key: Option<PathBuf>,
    node_key: Option<PathBuf>,
    standbys: Option<Vec<String>>,
    trees: u32,
    only: Option<Vec<String>>,
    waiting: usize,
    hashed: bool,
) -> PyResult<Feed> {
    let node = match (config, name, root, address, id) {
        (Some(_), Some(_), None, None, None) if key.is_some() || node_key.is_some() => {
            return Err(wrong_argument(
                "a settings file names its keys itself (run.key_file, run.node_key_file): leave \
                 key and node_key away",
            ));
        }
        (Some(config), Some(name), None, None, None) => NodeOfRun::Settings { config, name },
        (None, None, Some(root), Some(address), Some(id)) => {
            let (standbys, keys) = (standbys.unwrap_or_default(), KeyFiles { key, node_key });
            NodeOfRun::Plain { root, address, id, keys, standbys, trees }
        }
        _ => {
            return Err(wrong_argument(
                "subscribe(\"evenfall.toml\", \"desk-1\"), or subscribe(root=\"HOST:PORT\", \
                 address=\"HOST:PORT\", id=7)",
            ));
        }
    };
    let only = only.unwrap_or_default();
    // Reading keys and opening sockets may take long. Other threads of Python run meanwhile.
    let opened = run_beside(py, move || -> PyResult<OpenedFeed> {
        let limits = QueueLimits { messages: waiting.max(1), bytes: WAITING_BYTES };
        let symbols: Vec<&str> = only.iter().map(String::as_str).collect();
        let (settings, name) = node.read_settings()?;
        let hash = hashed.then(|| ContentHash::new(settings.course.trees as usize));
        let subscriber = Subscriber::with(settings, &name).map_err(|e| subscribe_error(&e))?;
        Ok(OpenedFeed { subscriber: subscriber.only(&symbols).queue_limits(limits), hash })
    })??;
    let OpenedFeed { subscriber, hash } = opened;
    Ok(Feed { state: Arc::new(Mutex::new(FeedState::new(subscriber, hash))) })
}

/// The receiver as which the program subscribes.
enum NodeOfRun {
    Settings {
        config: PathBuf,
        name: String,
    },
    Plain {
        root: String,
        address: String,
        id: u32,
        keys: KeyFiles,
        standbys: Vec<String>,
        trees: u32,
    },
}

/// The files of a node's keys.
pub(crate) struct KeyFiles {
    /// The shared key.
    pub(crate) key: Option<PathBuf>,
    /// The key of the node alone.
    pub(crate) node_key: Option<PathBuf>,
}

impl KeyFiles {
    pub(crate) fn read_keys(self) -> PyResult<(Option<SharedKey>, Option<NodeKey>)> {
        let shared = self.key.map(|path| read_key(&path)).transpose()?;
        let own = self.node_key.map(|path| {
            settings::read_node_key(&path)
                .map_err(|error| wrong_argument(format!("node_key: {error}")))
        });
        Ok((shared, own.transpose()?))
    }
}

impl NodeOfRun {
    /// The settings of the run, and the name of the node in them.
    fn read_settings(self) -> PyResult<(Settings, String)> {
        let (settings, name) = match self {
            Self::Settings { config, name } => (Settings::load(&config, &[]), name),
            Self::Plain { root, address, id, keys, standbys, trees } => {
                let (root, address) =
                    (address_of("root", &root)?, address_of("address", &address)?);
                let mut subscription = Subscription::new(root, address, NodeId(id));
                let standbys = standbys.iter().map(|standby| address_of("standbys", standby));
                subscription.standbys = standbys.collect::<PyResult<_>>()?;
                (subscription.key, subscription.node_key) = keys.read_keys()?;
                subscription.trees = trees;
                (subscription.settings(), subscription.name)
            }
        };
        Ok((settings.map_err(|error| settings_error(&error))?, name))
    }
}

/// A subscriber that has not joined yet.
struct OpenedFeed {
    subscriber: Subscriber,
    hash: Option<ContentHash>,
}

/// The address of `HOST:PORT`.
pub(crate) fn address_of(argument: &str, text: &str) -> PyResult<std::net::SocketAddr> {
    look_up(text).map_err(|error| wrong_argument(format!("{argument}: {}", sentence(&error))))
}

/// The shared key in a file of 64 hexadecimal digits.
pub(crate) fn read_key(path: &Path) -> PyResult<SharedKey> {
    settings::read_key(path).map_err(|error| wrong_argument(format!("key: {error}")))
}

/// The master key in a file, which is not the shared key.
pub(crate) fn read_master_key(path: &Path, shared: Option<&SharedKey>) -> PyResult<MasterKey> {
    settings::read_master_key(path, shared)
        .map_err(|error| wrong_argument(format!("master_key: {error}")))
}

/// What the feed has given so far.
pub(crate) struct FeedState {
    /// `None` after the feed was closed.
    subscriber: Option<Subscriber>,
    /// Updates that were taken from the receiver and not given yet.
    taken: VecDeque<FeedUpdate>,
    has_ended: bool,
    /// Why the feed ended, when messages before the end were still to give.
    error: Option<SubscribeError>,
    events: Events,
    /// The venue's clock, known from the first message on.
    clock: Option<TimeOrigin>,
    hash: Option<ContentHash>,
    messages: u64,
    lost: u64,
    /// Messages that were lost since the last message of each tree; `None` for an unknown number.
    pub(crate) lost_before: BTreeMap<u32, Option<u64>>,
}

impl FeedState {
    fn new(subscriber: Subscriber, hash: Option<ContentHash>) -> Self {
        Self {
            subscriber: Some(subscriber),
            taken: VecDeque::new(),
            has_ended: false,
            error: None,
            events: Events::new(),
            clock: None,
            hash,
            messages: 0,
            lost: 0,
            lost_before: BTreeMap::new(),
        }
    }

    /// Takes updates from the receiver, within this time. Returns whether an update or the end is
    /// there.
    fn take_within(&mut self, most: usize, time: Duration) -> Result<bool, SubscribeError> {
        if !self.taken.is_empty() || self.has_ended {
            return Ok(true);
        }
        match self.subscriber.as_mut().and_then(|feed| feed.next_batch(most, time)) {
            None => self.has_ended = true,
            Some(Ok(batch)) => self.taken.extend(batch.updates),
            Some(Err(error)) => {
                self.has_ended = true;
                return Err(error);
            }
        }
        Ok(!self.taken.is_empty() || self.has_ended)
    }

    /// Counts an update, and decodes its message.
    pub(crate) fn count_update(&mut self, update: &FeedUpdate) -> Event {
        match update {
            FeedUpdate::Message(message) => {
                self.messages += 1;
                if let Some(hash) = &mut self.hash {
                    hash.update(message.stream as usize, &message.bytes);
                }
                self.clock.get_or_insert_with(|| {
                    codec::of(message.format).map_or(TimeOrigin::Epoch, Codec::clock)
                });
                self.events.read(message.format, &message.bytes)
            }
            FeedUpdate::Lost { messages, .. } => {
                self.lost += messages.unwrap_or(0);
                Event::default()
            }
            _ => Event::default(),
        }
    }

    /// The venue's clock.
    pub(crate) fn venue_clock(&self) -> TimeOrigin {
        self.clock.unwrap_or(TimeOrigin::Epoch)
    }
}

impl Drop for FeedState {
    /// Leaves the run beside, because the good-bye takes time and the interpreter's lock is held.
    fn drop(&mut self) {
        if let Some(subscriber) = self.subscriber.take() {
            std::thread::spawn(move || drop(subscriber));
        }
    }
}

/// A subscription to a feed.
#[pyclass(frozen, module = "evenfall")]
pub(crate) struct Feed {
    state: Arc<Mutex<FeedState>>,
}

fn lock(state: &Mutex<FeedState>) -> MutexGuard<'_, FeedState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Feed {
    /// Waits for an update. `None` once the stream has ended.
    fn next_update(&self, py: Python<'_>) -> PyResult<Option<DecodedUpdate>> {
        let next = wait_for(py, |time| {
            let mut state = lock(&self.state);
            match state.take_within(TAKEN_AT_ONCE, time) {
                Ok(false) => None,
                Ok(true) => Some(Ok(state.taken.pop_front().map(|update| {
                    let event = state.count_update(&update);
                    DecodedUpdate { update, event }
                }))),
                Err(error) => Some(Err(error)),
            }
        })?;
        next.map_err(|error| subscribe_error(&error))
    }
}

/// An update with the contents of its message.
struct DecodedUpdate {
    update: FeedUpdate,
    event: Event,
}

#[pymethods]
impl Feed {
    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyAny>) -> PyResult<()> {
        self.leave_run(py)
    }

    /// Leaves the run.
    #[pyo3(name = "close")]
    fn leave_run(&self, py: Python<'_>) -> PyResult<()> {
        let state = Arc::clone(&self.state);
        run_beside(py, move || {
            let subscriber = {
                let mut state = lock(&state);
                state.has_ended = true;
                state.taken.clear();
                state.subscriber.take()
            };
            drop(subscriber);
        })
    }

    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(DecodedUpdate { update, event }) = self.next_update(py)? else { return Ok(None) };
        Ok(Some(match update {
            FeedUpdate::Message(message) => {
                Bound::new(py, PyMessage { message, event })?.into_any()
            }
            FeedUpdate::Lost { stream, first, messages } => {
                Bound::new(py, LostMessages { stream, first, messages })?.into_any()
            }
            _ => return Ok(None),
        }))
    }

    fn __aiter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __anext__<'py>(this: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let module = this.py().import("evenfall._aio")?;
        module.call_method1("next_update", (this,))
    }

    /// Whether the next update or the end is there, after this time in seconds at most.
    fn _wait(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        crate::waits::expect_own_process()?;
        let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let there = py.detach(|| lock(&self.state).take_within(TAKEN_AT_ONCE, time));
        there.map_err(|error| subscribe_error(&error))
    }

    /// Iterates over batches of messages.
    #[pyo3(name = "batches", signature = (most = 65_536, wait = 0.02, *, bytes = false))]
    fn iterate_batches(&self, most: usize, wait: f64, bytes: bool) -> PyResult<FeedBatches> {
        let wait = Duration::try_from_secs_f64(wait)
            .map_err(|_| wrong_argument("wait is a number of seconds, such as 0.02"))?;
        let (state, most) = (Arc::clone(&self.state), most.max(1));
        Ok(FeedBatches { state, most, wait, with_bytes: bytes })
    }

    /// Messages that were given so far.
    #[getter(messages)]
    fn message_count(&self, py: Python<'_>) -> u64 {
        py.detach(|| lock(&self.state).messages)
    }

    /// Messages that were reported lost so far.
    #[getter(lost)]
    fn lost_count(&self, py: Python<'_>) -> u64 {
        py.detach(|| lock(&self.state).lost)
    }

    /// The hash of the messages so far.
    #[getter]
    fn content_hash(&self, py: Python<'_>) -> Option<String> {
        py.detach(|| lock(&self.state).hash.as_ref().map(ContentHash::finish_hex))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let (messages, lost) = (self.message_count(py), self.lost_count(py));
        format!("<Feed: {messages} messages, {lost} lost>")
    }
}

/// Batches of a feed.
#[pyclass(frozen, module = "evenfall")]
pub(crate) struct FeedBatches {
    state: Arc<Mutex<FeedState>>,
    most: usize,
    wait: Duration,
    with_bytes: bool,
}

#[pymethods]
impl FeedBatches {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Rows>> {
        let mut batch = FeedBatch::new(self.most, self.with_bytes);
        let mut full_at = None;
        let mut ended = None;
        wait_for(py, |time| {
            let look_until = Instant::now() + time;
            loop {
                let mut state = lock(&self.state);
                let left = self.most - batch.rows();
                let nap = if full_at.is_some() { Duration::ZERO } else { time };
                if let Err(error) = state.take_within(left, nap) {
                    ended = Some(error);
                }
                while batch.rows() < self.most
                    && let Some(update) = state.taken.pop_front()
                {
                    batch.push(&mut state, update);
                }
                if batch.rows() > 0 {
                    full_at.get_or_insert_with(|| Instant::now() + self.wait);
                }
                let is_over = full_at.is_some_and(|full_at| Instant::now() >= full_at);
                if is_over || state.has_ended || batch.rows() >= self.most {
                    return Some(());
                }
                drop(state);
                if Instant::now() >= look_until {
                    return None;
                }
                if full_at.is_some() {
                    std::thread::sleep(GATHER_EVERY.min(self.wait));
                }
            }
        })?;
        if let Some(error) = ended {
            // Messages before the error are given first, and the next call raises it.
            py.detach(|| lock(&self.state).error = Some(error));
        }
        if batch.rows() == 0 {
            let error = py.detach(|| lock(&self.state).error.take());
            return error.map_or(Ok(None), |error| Err(subscribe_error(&error)));
        }
        let clock = py.detach(|| lock(&self.state).venue_clock());
        let rows = py.detach(|| batch.finish(clock)).map_err(RowsError::from)?;
        Ok(Some(Rows::of_batch("a feed", clock, rows)))
    }
}

/// A message, released.
#[pyclass(frozen, name = "Message", module = "evenfall")]
pub(crate) struct PyMessage {
    message: ReleasedMessage,
    event: Event,
}

#[pymethods]
impl PyMessage {
    /// Tree of the message.
    #[getter(stream)]
    fn tree_number(&self) -> u32 {
        self.message.stream
    }

    /// Number of the message within its tree, from 0.
    #[getter(number)]
    fn message_number(&self) -> u64 {
        self.message.number
    }

    /// When the message was to be released, in ns since 1970; None when it was not held.
    #[getter]
    fn deadline_ns(&self) -> Option<u64> {
        self.message.deadline.map(evenfall::SyncTime::nanos)
    }

    /// When the message was released, in ns since 1970.
    #[getter]
    fn released_ns(&self) -> u64 {
        self.message.released.nanos()
    }

    /// The word of the message's format; None for opaque bytes.
    #[getter(format)]
    fn format_word(&self) -> Option<&'static str> {
        codec::of(self.message.format).map(Codec::word)
    }

    /// The message as the venue sent it.
    #[getter(bytes)]
    fn message_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.message.bytes)
    }

    /// Type letter of ITCH, or digit of LOBSTER.
    #[getter(r#type)]
    fn type_letter(&self) -> Option<&'static str> {
        self.event.kind
    }

    /// The security.
    #[getter(symbol)]
    fn symbol_name(&self) -> Option<String> {
        let symbol = self.event.symbol?;
        Some(String::from_utf8_lossy(symbol.trimmed()).into_owned())
    }

    /// B buy, S sell.
    #[getter(side)]
    fn side_letter(&self) -> Option<char> {
        self.event.side
    }

    /// Shares entered, executed or cancelled.
    #[getter(shares)]
    fn share_count(&self) -> Option<u64> {
        self.event.shares
    }

    /// The order.
    #[getter]
    fn order_ref(&self) -> Option<u64> {
        self.event.order_reference
    }

    /// The price in dollars, as a Decimal.
    #[getter(price)]
    fn decimal_price<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(price) = self.event.price else { return Ok(None) };
        let decimal = py.import("decimal")?.getattr("Decimal")?;
        let price = decimal.call1((price,))?;
        Ok(Some(price.call_method1("scaleb", (-i32::from(PRICE_DECIMALS),))?))
    }

    fn __repr__(&self) -> String {
        let symbol = self.symbol_name().map_or_else(String::new, |symbol| format!(" {symbol}"));
        let kind = self.event.kind.map_or_else(String::new, |kind| format!(" {kind}"));
        format!("<Message {}{kind}{symbol}>", self.message.number)
    }
}

/// Messages that could not be repaired. The next message follows them.
#[pyclass(frozen, name = "Lost", module = "evenfall")]
pub(crate) struct LostMessages {
    stream: u32,
    first: Option<u64>,
    messages: Option<u64>,
}

#[pymethods]
impl LostMessages {
    /// Tree of the messages.
    #[getter(stream)]
    fn tree_number(&self) -> u32 {
        self.stream
    }

    /// Number of the first lost message; None when it is not known.
    #[getter(first)]
    fn first_number(&self) -> Option<u64> {
        self.first
    }

    /// Number of lost messages; None when it is not known.
    #[getter(messages)]
    fn message_count(&self) -> Option<u64> {
        self.messages
    }

    fn __repr__(&self) -> String {
        format!("<Lost {:?} messages from {:?} on>", self.messages, self.first)
    }
}
