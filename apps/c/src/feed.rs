//! A subscription: messages that are lent until the next poll, and a descriptor to wait for them.
//!
//! ```text
//!  receiver's thread --updates--> queue --poll--> [updates of this poll] --views--> the program
//!                        | first update of an empty queue, or the end
//!                        +--one byte--> socket pair: the descriptor is readable
//! ```
//!
//! The byte is taken back at the start of a poll and put again when the poll leaves updates in the
//! queue. The descriptor may be readable without an update, but not the other way round.

use std::ffi::{c_char, c_int};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use evenfall::subscriber::{
    FeedUpdate, QueueLimits, ReleasedMessage, Settings, SubscribeError, Subscriber, Subscription,
};
use evenfall::{NodeId, SyncTime};
use evenfall_feed_formats::event::{Event, Events, PRICE_DECIMALS};
use evenfall_feed_formats::sharding::ContentHash;

use crate::guard::{Guarded, free_handle, hand_out, look_behind, run_call};
use crate::status::{CallStatus, Failure};
use crate::text::{
    address, addresses, array, expect_size, key_in, node_key_in, text, text_or_none,
};

/// Messages that may wait by default, .7 s of a feed of 1.5 million messages a second.
const WAITING_MESSAGES: usize = 1 << 20;
/// Bytes of messages that may wait by default.
const WAITING_BYTES: usize = 256 << 20;
/// The most that a poll without end waits at once.
const WAIT_MAX: Duration = Duration::from_secs(3_600);
/// Updates that are lent at once at most, whatever the caller asks for: 7 MiB of views.
const LENT_MAX: usize = 65_536;

/// A subscription to a feed. One thread at a time uses it.
pub struct FeedHandle {
    guarded: Guarded<FeedState>,
}

/// How to subscribe. Set all of it to zero first, then `size` and what is wanted.
///
/// Either `config` and `name` say which node of a settings file the program is, or `root`,
/// `address` and `id` do. All texts are read before the call returns.
#[repr(C)]
pub struct FeedOptions {
    /// sizeof(evenfall_feed_options)
    pub size: usize,
    /// A settings file, or null.
    pub config: *const c_char,
    /// The receiver of the settings file that this program is.
    pub name: *const c_char,
    /// The root, as "HOST:PORT".
    pub root: *const c_char,
    /// Where this receiver listens, as "HOST:PORT". Port 0 takes any free port.
    pub address: *const c_char,
    /// The number of this receiver.
    pub id: u32,
    /// Trees of the run; 0 stands for 1.
    pub trees: u32,
    /// The file with the shared key, or null. Without a key nothing leaves loopback.
    pub key: *const c_char,
    /// The file with the key of this receiver alone, or null, for a run with node keys.
    pub node_key: *const c_char,
    /// The standbys of the root, as "HOST:PORT": none, two or four.
    pub standbys: *const *const c_char,
    /// How many standbys.
    pub standby_count: usize,
    /// Only messages of these symbols, and those that concern no single symbol; null for all.
    pub symbols: *const *const c_char,
    /// How many symbols.
    pub symbol_count: usize,
    /// Messages that may wait for the program before it is cut off; 0 stands for 1,048,576.
    pub waiting_messages: usize,
    /// Bytes of messages that may wait; 0 stands for 256 MiB.
    pub waiting_bytes: usize,
    /// Not 0: keep the content hash of the messages, for `evenfall_feed_hash`.
    pub hashed: u32,
    /// Not 0: read the messages, for `type`, `side`, `symbol`, `price`, `shares` and `order_ref` of
    /// the updates. Without it, and for formats that are not read, these fields say nothing.
    pub decoded: u32,
}

/// Units of `price` in a dollar.
pub const EVENFALL_PRICE_UNITS: i64 = 10_000;

// C gets prices as they are read.
const _: () = assert!(EVENFALL_PRICE_UNITS == 10_i64.pow(PRICE_DECIMALS as u32));

/// What an update is.
#[allow(clippy::enum_variant_names, reason = "C has no name spaces")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum UpdateKind {
    /// A message at its deadline.
    EvenfallMessage = 0,
    /// Messages that could not be repaired. The next message of the stream follows them.
    EvenfallLost = 1,
}

/// An update of a feed. Updates come in order within each stream.
#[repr(C)]
pub struct UpdateView {
    /// What the update is.
    pub kind: UpdateKind,
    /// The tree of the message.
    pub stream: u32,
    /// The number of the message within its stream, or of the first lost one; UINT64_MAX when it is
    /// not known.
    pub number: u64,
    /// How many messages were lost; UINT64_MAX when it is not known; 0 of a message.
    pub lost: u64,
    /// When the message was to be released, in ns since 1970 by the run's clock; 0 for a message
    /// without a deadline.
    pub deadline_ns: u64,
    /// When the message was released, read from the run's clock at that moment; 0 of lost messages.
    pub released_ns: u64,
    /// The message as the venue sent it; null of lost messages.
    pub bytes: *const u8,
    /// Bytes of the message.
    pub length: usize,
    /// The format of the message on the wire, such as 1 for ITCH; 0 for unknown bytes.
    pub format: u32,
    /// Type letter of ITCH, or digit of LOBSTER; 0 when the message has none.
    pub r#type: c_char,
    /// 'B' buy, 'S' sell; 0 when the message has no side.
    pub side: c_char,
    /// The security, without padding and with a nul; empty when the message concerns none. It is
    /// named by the message, or by an earlier one with the same locate.
    pub symbol: [c_char; 9],
    /// The price in units of 1/EVENFALL_PRICE_UNITS dollar; INT64_MIN when the message has none.
    pub price: i64,
    /// Shares entered, executed or cancelled; UINT64_MAX when the message has none.
    pub shares: u64,
    /// The order; of a replacement, the old order; UINT64_MAX when the message has none.
    pub order_ref: u64,
}

/// The two ends of the pair that makes the descriptor readable.
struct WakePair {
    inner: Arc<UnixStream>,
    outer: UnixStream,
}

impl WakePair {
    fn open() -> std::io::Result<Self> {
        let (inner, outer) = UnixStream::pair()?;
        inner.set_nonblocking(true)?;
        outer.set_nonblocking(true)?;
        Ok(Self { inner: Arc::new(inner), outer })
    }

    /// Makes the descriptor readable. A pair that takes no byte more is readable already.
    fn raise(inner: &UnixStream) {
        (&mut &*inner).write_all(&[1]).ok();
    }

    fn lower(&self) {
        let mut bytes = [0; 64];
        while matches!((&mut &self.outer).read(&mut bytes), Ok(read) if read == bytes.len()) {}
    }
}

struct FeedState {
    subscriber: Subscriber,
    /// Updates of the last poll, to which the views point.
    lent: Vec<FeedUpdate>,
    views: Vec<UpdateView>,
    pair: Option<WakePair>,
    hash: Option<ContentHash>,
    /// Reads messages, when the program asks for their fields.
    events: Option<Events>,
}

// SAFETY: the views point into the updates beside them, which are buffers of shared ownership that
// any thread may read and free.
unsafe impl Send for FeedState {}

impl FeedState {
    fn open(subscriber: Subscriber, hash: Option<ContentHash>, events: Option<Events>) -> Self {
        let (lent, views) = (Vec::new(), Vec::new());
        let mut state = Self { subscriber, lent, views, pair: None, hash, events };
        // The receiver joins now, and not at the first poll.
        state.subscriber.wait(Duration::ZERO);
        state
    }

    /// Takes what waits, `most` updates at most, after a wait of `time` at most.
    fn poll(&mut self, most: usize, time: Option<Duration>) -> Result<CallStatus, Failure> {
        self.views.clear();
        self.lent.clear();
        if let Some(pair) = &self.pair {
            pair.lower();
        }
        let most = most.clamp(1, LENT_MAX);
        let taken = loop {
            match self.subscriber.next_batch(most, time.unwrap_or(WAIT_MAX)) {
                Some(Ok(batch)) if batch.updates.is_empty() && time.is_none() => {}
                taken => break taken,
            }
        };
        match taken {
            Some(Ok(batch)) => self.lent = batch.updates,
            Some(Err(error)) => return Err(self.end_by(error)),
            None => {
                self.raise_again();
                return Ok(CallStatus::EvenfallEnded);
            }
        }
        if self.lent.len() == most {
            self.raise_again();
        }
        for update in &self.lent {
            if let (FeedUpdate::Message(message), Some(hash)) = (update, &mut self.hash) {
                hash.update(message.stream as usize, &message.bytes);
            }
            let event = match (update, &mut self.events) {
                (FeedUpdate::Message(message), Some(events)) => {
                    events.read(message.format, &message.bytes)
                }
                _ => Event::default(),
            };
            self.views.extend(view_of(update, &event));
        }
        Ok(CallStatus::EvenfallOk)
    }

    fn end_by(&mut self, error: SubscribeError) -> Failure {
        self.raise_again();
        error.into()
    }

    fn raise_again(&self) {
        if let Some(pair) = &self.pair {
            WakePair::raise(&pair.inner);
        }
    }

    /// The descriptor; opens it at the first call.
    fn open_descriptor(&mut self) -> Result<c_int, Failure> {
        if let Some(pair) = &self.pair {
            return Ok(pair.outer.as_raw_fd());
        }
        let pair = WakePair::open().map_err(|error| Failure {
            status: CallStatus::EvenfallRunFailed,
            words: format!("no pair of sockets: {error}"),
        })?;
        let inner = Arc::clone(&pair.inner);
        self.subscriber.call_when_filled(Arc::new(move || WakePair::raise(&inner)));
        Ok(self.pair.insert(pair).outer.as_raw_fd())
    }
}

/// How C sees an update; `None` for a kind that this version does not know.
fn view_of(update: &FeedUpdate, event: &Event) -> Option<UpdateView> {
    let view = UpdateView {
        kind: UpdateKind::EvenfallMessage,
        stream: 0,
        number: 0,
        lost: 0,
        deadline_ns: 0,
        released_ns: 0,
        bytes: ptr::null(),
        length: 0,
        format: 0,
        r#type: event.kind.map_or(0, letter_of),
        side: event.side.and_then(|side| u8::try_from(side).ok()).map_or(0, |side| side as c_char),
        symbol: symbol_of(event),
        price: event.price.unwrap_or(i64::MIN),
        shares: event.shares.unwrap_or(u64::MAX),
        order_ref: event.order_reference.unwrap_or(u64::MAX),
    };
    match update {
        FeedUpdate::Message(message) => {
            let ReleasedMessage { stream, number, deadline, released, format, bytes } = message;
            Some(UpdateView {
                stream: *stream,
                number: *number,
                deadline_ns: deadline.map_or(0, SyncTime::nanos),
                released_ns: released.nanos(),
                bytes: bytes.as_ptr(),
                length: bytes.len(),
                format: u32::from(format.0),
                ..view
            })
        }
        FeedUpdate::Lost { stream, first, messages } => Some(UpdateView {
            kind: UpdateKind::EvenfallLost,
            stream: *stream,
            number: first.unwrap_or(u64::MAX),
            lost: messages.unwrap_or(u64::MAX),
            ..view
        }),
        _ => None,
    }
}

/// The letter of a type whose name is one letter; 0 for a longer name.
fn letter_of(kind: &str) -> c_char {
    match kind.as_bytes() {
        [letter] => *letter as c_char,
        _ => 0,
    }
}

/// The symbol as text of C. A symbol has eight bytes at most, so that a nul follows it.
fn symbol_of(event: &Event) -> [c_char; 9] {
    let mut text = [0; 9];
    if let Some(symbol) = event.symbol {
        for (place, byte) in text[..8].iter_mut().zip(symbol.trimmed()) {
            *place = *byte as c_char;
        }
    }
    text
}

/// The settings that the options name, and the node in them.
///
/// # Safety
/// The texts and arrays of the options are as their fields say.
unsafe fn settings_of(options: &FeedOptions) -> Result<(Settings, String), Failure> {
    // SAFETY: the caller's promise, for each of the fields.
    unsafe {
        if let Some(config) = text_or_none(options.config, "config")? {
            let name = text(options.name, "name")?;
            if !options.root.is_null() || !options.address.is_null() {
                let words = "config and name, or root, address and id: not both";
                return Err(Failure::wrong_argument(words));
            }
            if !options.key.is_null() || !options.node_key.is_null() {
                let words = "a settings file names its keys itself (run.key_file, \
                             run.node_key_file): leave key and node_key null";
                return Err(Failure::wrong_argument(words));
            }
            return Ok((Settings::load(Path::new(config), &[])?, name.to_owned()));
        }
        let (root, own) = (address(options.root, "root")?, address(options.address, "address")?);
        let mut subscription = Subscription::new(root, own, NodeId(options.id));
        subscription.standbys = addresses(options.standbys, options.standby_count, "standbys")?;
        subscription.key = key_in(options.key, "key")?;
        subscription.node_key = node_key_in(options.node_key, "node_key")?;
        subscription.trees = options.trees.max(1);
        Ok((subscription.settings()?, subscription.name))
    }
}

/// Subscribes, and returns before the receiver has joined: what keeps it from joining is told by
/// `evenfall_feed_poll`. The program frees the feed by `evenfall_feed_free`.
///
/// # Safety
/// The options and what they point to are as their fields say; `feed` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evenfall_subscribe(
    options: *const FeedOptions,
    feed: *mut *mut FeedHandle,
) -> CallStatus {
    run_call(|| {
        // A program that frees what a failed call has left frees nothing.
        // SAFETY: the caller's promise.
        unsafe { hand_out(feed, "feed", ptr::null_mut()) }?;
        // SAFETY: the caller's promise.
        let options = unsafe { look_behind(options, "options") }?;
        expect_size::<FeedOptions>(options.size, "evenfall_feed_options")?;
        // SAFETY: the caller's promise.
        let (settings, name) = unsafe { settings_of(options) }?;
        // SAFETY: the caller's promise.
        let symbols = unsafe { array(options.symbols, options.symbol_count, "symbols") }?;
        let symbols = symbols.iter().map(|&symbol| {
            // SAFETY: the caller's promise, for each symbol.
            unsafe { text(symbol, "symbols") }
        });
        let symbols: Vec<&str> = symbols.collect::<Result<_, _>>()?;
        let or = |value: usize, usual: usize| if value == 0 { usual } else { value };
        let limits = QueueLimits {
            messages: or(options.waiting_messages, WAITING_MESSAGES),
            bytes: or(options.waiting_bytes, WAITING_BYTES),
        };
        let trees = settings.course.trees as usize;
        let hash = (options.hashed != 0).then(|| ContentHash::new(trees));
        let subscriber = Subscriber::with(settings, &name)?.only(&symbols).queue_limits(limits);
        let events = (options.decoded != 0).then(Events::new);
        let state = FeedState::open(subscriber, hash, events);
        let opened = Box::new(FeedHandle { guarded: Guarded::new(state) });
        // SAFETY: the caller's promise.
        unsafe { hand_out(feed, "feed", Box::into_raw(opened)) }?;
        Ok(CallStatus::EvenfallOk)
    })
}

/// Takes the updates that wait, `most` of them at most (at least one), after a wait of `wait_ns` at
/// most; a negative time waits without end. EVENFALL_OK without an update says that the time is
/// over, EVENFALL_ENDED that the stream is. `updates` and the bytes of its messages are lent until
/// the next poll of this feed or its end.
///
/// # Safety
/// The feed is one that is not freed; `updates` and `count` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evenfall_feed_poll(
    feed: *const FeedHandle,
    most: usize,
    wait_ns: i64,
    updates: *mut *const UpdateView,
    count: *mut usize,
) -> CallStatus {
    run_call(|| {
        // SAFETY: the caller's promise.
        unsafe {
            hand_out(updates, "updates", ptr::null())?;
            hand_out(count, "count", 0)?;
        }
        // SAFETY: the caller's promise.
        let mut state = unsafe { look_behind(feed, "feed") }?.guarded.enter()?;
        let status = state.poll(most, u64::try_from(wait_ns).ok().map(Duration::from_nanos))?;
        // SAFETY: the caller's promise.
        unsafe {
            hand_out(updates, "updates", state.views.as_ptr())?;
            hand_out(count, "count", state.views.len())?;
        }
        Ok(status)
    })
}

/// A descriptor that is readable while updates wait, and after the end, for `poll`, `epoll` and
/// loops over them. It belongs to the feed: the program only waits for it. It may be readable once
/// without an update.
///
/// # Safety
/// The feed is one that is not freed; `descriptor` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evenfall_feed_descriptor(
    feed: *const FeedHandle,
    descriptor: *mut c_int,
) -> CallStatus {
    run_call(|| {
        // SAFETY: the caller's promise.
        let mut state = unsafe { look_behind(feed, "feed") }?.guarded.enter()?;
        let opened = state.open_descriptor()?;
        // SAFETY: the caller's promise.
        unsafe { hand_out(descriptor, "descriptor", opened) }?;
        Ok(CallStatus::EvenfallOk)
    })
}

/// The hash of the messages that were polled so far, as 64 hexadecimal digits and a nul: equal to
/// the feed's (`evenfall feed info`) when nothing is missing. Only with `hashed` in the options.
///
/// # Safety
/// The feed is one that is not freed; 65 bytes may be written to `digits`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evenfall_feed_hash(
    feed: *const FeedHandle,
    digits: *mut c_char,
) -> CallStatus {
    run_call(|| {
        // SAFETY: the caller's promise.
        let state = unsafe { look_behind(feed, "feed") }?.guarded.enter()?;
        let hash = state.hash.as_ref().ok_or_else(|| {
            Failure::wrong_argument("no hash was kept; subscribe with hashed = 1")
        })?;
        let mut text = [0; 65];
        text[..64].copy_from_slice(hash.finish_hex().as_bytes());
        // SAFETY: the caller's promise.
        unsafe { hand_out(digits.cast::<[u8; 65]>(), "digits", text) }?;
        Ok(CallStatus::EvenfallOk)
    })
}

/// Leaves the run and frees the feed, which takes up to a second. Null is no feed, and nothing
/// happens.
///
/// # Safety
/// The feed is null, or one that no thread uses now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evenfall_feed_free(feed: *mut FeedHandle) {
    // SAFETY: the caller's promise.
    unsafe { free_handle(feed, |feed| feed.guarded.is_of_this_process()) }
}
