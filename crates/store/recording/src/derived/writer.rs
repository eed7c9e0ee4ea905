//! Writes trades and quotes beside the messages of a recording.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use evenfall_feed_formats::Format;
use evenfall_feed_formats::books::{Books, BooksConfig, TickedRow};
use evenfall_feed_formats::itch::Stock;
use evenfall_store_engine::{Store, StoreAckLevel, StoreError, StoreFile};

use super::edges::{last_edge, last_record_number};
use super::records::{DerivedEdge, RowOrigin, put_tick, put_trade};
use crate::catalog::Catalog;
use crate::files::{
    derived_name, derived_schema, end_of_frame, frames_name, quotes_name, quotes_schema,
    trades_name, trades_schema,
};
use crate::replay::{StreamReplay, last_record};
use crate::snapshot::{ALL_TIMES, StreamSnapshot, untagged_format_of};
use crate::writer::{TakenMessage, append_when_admitted};

/// Bytes of rows that are gathered before they are appended.
const BATCH_BYTES: usize = 64 << 10;

/// The files of a stream. A stream whose messages change no book has none.
struct StreamFiles {
    trades: Arc<StoreFile>,
    quotes: Arc<StoreFile>,
    edges: Arc<StoreFile>,
    /// The first message whose rows each file lacks. Earlier rows are made again and dropped.
    trades_next: u64,
    quotes_next: u64,
    /// The times of the last rows. Times of a file never decrease, also where retention took the
    /// messages before. A crash may leave one file further than the other.
    trades_ns: i64,
    quotes_ns: i64,
    /// The last edge, and the time of its record.
    edge: DerivedEdge,
    edge_ns: i64,
}

/// A stream whose rows are made.
struct StreamWriter {
    stream: u32,
    books: Books,
    /// The first message from which the books are made, and the next message that they take.
    from: u64,
    next: u64,
    /// Messages from here on are not taken out of the store. A crash may have kept some of them and
    /// not those between, which the recorder gets again.
    limit: u64,
    /// The greatest time by which a message so far is indexed.
    time_ns: i64,
    /// The store has messages that the books have not taken. Live messages wait until they have.
    is_behind: bool,
    /// More orders than the books follow. Rows would be wrong from here on, so none are written.
    has_given_up: bool,
    trades: Vec<u8>,
    quotes: Vec<u8>,
    files: Option<StreamFiles>,
}

/// Writes the trades and quotes of a recording.
pub struct DerivedWriter<'a> {
    store: &'a Store,
    name: String,
    config: BooksConfig,
    untagged: Format,
    /// The security of messages that name none.
    only: Option<Stock>,
    streams: BTreeMap<u32, StreamWriter>,
    is_stopping: Option<&'a AtomicBool>,
}

impl std::fmt::Debug for DerivedWriter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DerivedWriter").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<'a> DerivedWriter<'a> {
    /// Goes on with the trades and quotes of this recording, or begins them. Messages that the
    /// recording has already are taken by [`catch_up`](Self::catch_up).
    ///
    /// # Errors
    /// The errors of the store.
    pub fn open(store: &'a Store, name: &str, config: BooksConfig) -> Result<Self, StoreError> {
        let catalog = Catalog::read(store)?;
        let mut writer = Self {
            store,
            name: name.to_owned(),
            config,
            untagged: Format::OPAQUE,
            only: None,
            streams: BTreeMap::new(),
            is_stopping: None,
        };
        let Some(files) = catalog.recording(name) else { return Ok(writer) };
        let streams = files.streams().map(|stream| StreamSnapshot::open(store, files, stream));
        let streams = streams.collect::<Result<Vec<_>, _>>()?;
        writer.untagged = untagged_format_of(store, &streams)?;
        writer.only = files.only_symbol();
        for stream in &streams {
            let numbers = stream.numbers();
            let books = Books::of_symbol(config, writer.only);
            let mut opened = StreamWriter::new(stream.stream(), books, numbers.start);
            let frames = frames_name(name, stream.stream());
            if files.has(&frames) {
                opened.limit = end_of_frames(store, &frames)?;
            }
            opened.is_behind = numbers.start < opened.limit && !numbers.is_empty();
            if !opened.is_behind {
                // A crash has kept messages without a frame. They come again from the first on.
                (opened.from, opened.next) = (0, 0);
            }
            if files.has(&derived_name(name, stream.stream())) {
                opened.files = Some(open_files(store, name, &opened)?);
            }
            writer.streams.insert(stream.stream(), opened);
        }
        Ok(writer)
    }

    /// Gives up soon after this flag is set, when the store takes no appends.
    #[must_use]
    pub fn stopping_with(self, flag: &'a AtomicBool) -> Self {
        Self { is_stopping: Some(flag), ..self }
    }

    /// Takes the message that was pushed to the recording last. A stream that is behind takes the
    /// message later, out of the store.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn push(&mut self, message: TakenMessage<'_>) -> Result<(), StoreError> {
        let (config, only) = (self.config, self.only);
        let stream = self.streams.entry(message.stream);
        let books = || Books::of_symbol(config, only);
        let new = || StreamWriter::new(message.stream, books(), message.number);
        let stream = stream.or_insert_with(new);
        if stream.limit <= message.number {
            stream.limit = message.number + 1;
        }
        if stream.is_behind || message.number < stream.next {
            return Ok(());
        }
        if message.indexed_ns.is_none() {
            // An earlier process recorded it, and the store knows by which time.
            stream.is_behind = true;
            return Ok(());
        }
        stream.take_message(message);
        if stream.trades.len() + stream.quotes.len() < BATCH_BYTES {
            return Ok(());
        }
        flush_stream(self.store, &self.name, stream, self.is_stopping)
    }

    /// Takes messages that the store has and the books have not: at most `messages_max` of each
    /// stream. Returns whether any stream is still behind. The caller has shown the messages to
    /// readers before ([`show`](crate::RecordingWriter::show)).
    ///
    /// # Errors
    /// The errors of the store.
    pub fn catch_up(&mut self, messages_max: u64) -> Result<bool, StoreError> {
        let mut is_behind = false;
        for stream in self.streams.values_mut().filter(|stream| stream.is_behind) {
            if stream.has_given_up {
                stream.is_behind = false;
                continue;
            }
            let numbers = stream.next..stream.limit;
            let replay = StreamReplay::new(self.store, &self.name, stream.stream, ALL_TIMES)?;
            let mut replay = replay.within(numbers)?;
            let mut left = messages_max;
            while left > 0 && !stream.has_given_up {
                let Some(recorded) = replay.next_message()? else {
                    stream.is_behind = false;
                    break;
                };
                left -= 1;
                stream.take_message(TakenMessage {
                    stream: stream.stream,
                    number: recorded.number,
                    indexed_ns: Some(recorded.indexed_ns),
                    time_ns: recorded.time_ns,
                    format: recorded.format.unwrap_or(self.untagged),
                    bytes: &recorded.bytes,
                });
                if stream.trades.len() + stream.quotes.len() >= BATCH_BYTES {
                    flush_stream(self.store, &self.name, stream, self.is_stopping)?;
                }
            }
            is_behind |= stream.is_behind;
        }
        Ok(is_behind)
    }

    /// Appends the rows so far, and says how far they go. Their messages have been appended before.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn flush(&mut self) -> Result<(), StoreError> {
        for stream in self.streams.values_mut() {
            flush_stream(self.store, &self.name, stream, self.is_stopping)?;
        }
        Ok(())
    }

    /// Streams whose books follow no further orders, because there are too many.
    pub fn given_up(&self) -> impl Iterator<Item = u32> {
        self.streams.values().filter(|stream| stream.has_given_up).map(|stream| stream.stream)
    }

    /// Trades and changes of best prices that the files have.
    pub fn records(&self) -> (u64, u64) {
        let files = self.streams.values().filter_map(|stream| stream.files.as_ref());
        files.fold((0, 0), |(trades, quotes), files| {
            (trades + files.trades.records(), quotes + files.quotes.records())
        })
    }
}

impl StreamWriter {
    fn new(stream: u32, books: Books, from: u64) -> Self {
        Self {
            stream,
            books,
            from,
            next: from,
            limit: u64::MAX,
            time_ns: i64::MIN,
            is_behind: false,
            has_given_up: false,
            trades: Vec::new(),
            quotes: Vec::new(),
            files: None,
        }
    }

    fn take_message(&mut self, message: TakenMessage<'_>) {
        self.next = message.number + 1;
        self.time_ns = self.time_ns.max(message.indexed_ns.unwrap_or(i64::MIN));
        if self.has_given_up {
            return;
        }
        let known_ns = |last: fn(&StreamFiles) -> i64| self.files.as_ref().map_or(i64::MIN, last);
        let origin = |last_ns: i64| RowOrigin {
            time_ns: self.time_ns.max(last_ns),
            number: message.number,
            recorded_ns: message.time_ns,
            format: message.format,
        };
        let known = |next: fn(&StreamFiles) -> u64| self.files.as_ref().map_or(0, next);
        let keeps_trade = message.number >= known(|files| files.trades_next);
        let keeps_quote = message.number >= known(|files| files.quotes_next);
        let of_trade = origin(known_ns(|files| files.trades_ns));
        let of_quote = origin(known_ns(|files| files.quotes_ns));
        let (trades, quotes) = (&mut self.trades, &mut self.quotes);
        self.books.take_ticks(message.format, message.bytes, &mut |row| match row {
            TickedRow::Trade(row) if keeps_trade => put_trade(&of_trade, &row, trades),
            TickedRow::Tick(tick) if keeps_quote => put_tick(&of_quote, &tick, quotes),
            TickedRow::Trade(_) | TickedRow::Tick(_) => {}
        });
        if self.books.counts().over_limit > 0 {
            // The rows of this message are wrong already.
            self.has_given_up = true;
            self.trades.clear();
            self.quotes.clear();
        }
    }
}

/// The number after the messages of the last frame of a file.
fn end_of_frames(store: &Store, file: &str) -> Result<u64, StoreError> {
    Ok(last_record(store, file)?.map_or(0, |record| end_of_frame(&record)))
}

/// The files of a stream, which are made where they are missing.
fn open_files(store: &Store, name: &str, stream: &StreamWriter) -> Result<StreamFiles, StoreError> {
    let of = stream.stream;
    let wanted = [
        (trades_name(name, of), trades_schema()),
        (quotes_name(name, of), quotes_schema()),
        (derived_name(name, of), derived_schema()),
    ];
    store.create_all(&wanted)?;
    let [trades, quotes, edges] = wanted.map(|(name, _)| store.file(&name));
    let (trades, quotes, edges) = (trades?, quotes?, edges?);
    let next = |file: &StoreFile| -> Result<u64, StoreError> {
        Ok(last_record_number(store, &file.name)?.map_or(0, |number| number + 1))
    };
    let none = DerivedEdge { messages: stream.from, from: stream.from, ..DerivedEdge::default() };
    Ok(StreamFiles {
        trades_next: next(&trades)?,
        quotes_next: next(&quotes)?,
        trades_ns: trades.last_ns().unwrap_or(i64::MIN),
        quotes_ns: quotes.last_ns().unwrap_or(i64::MIN),
        edge: last_edge(store, name, of)?.unwrap_or(none),
        edge_ns: edges.last_ns().unwrap_or(i64::MIN),
        trades,
        quotes,
        edges,
    })
}

fn flush_stream(
    store: &Store,
    name: &str,
    stream: &mut StreamWriter,
    is_stopping: Option<&AtomicBool>,
) -> Result<(), StoreError> {
    if stream.files.is_none() {
        if stream.trades.is_empty() && stream.quotes.is_empty() {
            return Ok(());
        }
        stream.files = Some(open_files(store, name, stream)?);
    }
    let Some(files) = &mut stream.files else { return Ok(()) };
    if stream.has_given_up || stream.next <= files.edge.messages {
        return Ok(());
    }
    for (file, rows) in [(&files.trades, &mut stream.trades), (&files.quotes, &mut stream.quotes)] {
        if !rows.is_empty() {
            append_when_admitted(store, file, rows, StoreAckLevel::Memory, is_stopping)?;
            rows.clear();
        }
    }
    files.edge = DerivedEdge {
        messages: stream.next,
        from: stream.from,
        trades: files.trades.records(),
        quotes: files.quotes.records(),
    };
    files.edge_ns = files.edge_ns.max(stream.time_ns);
    let record = files.edge.record(files.edge_ns);
    append_when_admitted(store, &files.edges, &record, StoreAckLevel::Memory, is_stopping).map(drop)
}
