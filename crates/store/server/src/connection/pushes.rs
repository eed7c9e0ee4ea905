//! The readers of a connection that wait for appends: subscriptions and waits.
//!
//! One thread per connection serves all of them, from the first on. The thread keeps no queue of
//! records. A subscription is a place in its file and the bytes that the reader has granted. When
//! there is credit, the thread reads records at that place, by the same reads that answer NUMBERS.
//! Old records and new records come out of the same reads, so no record is missing or doubled where
//! the old ones end.
//!
//! ```text
//!            ┌─ credit and records ──> read at its place, push ─┐
//!  SUBSCRIBE ┤                                                  ├─> ... ──> ENDED
//!            ├─ credit, no records ──> an append wakes it ──────┤
//!            └─ no credit ───────────> GRANT wakes it; ten minutes without end it
//! ```

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenfall_store_engine::append_watch::{AppendSignal, AppendWatch};
use evenfall_store_engine::protocol::{BODY_BYTES_MAX, StoreReply};
use evenfall_store_engine::{
    Freshness, KnownEnd, ReadableFile, StoreError, StoreFile, SubscriptionEnd, lock,
};

use super::replies::ReplyWriter;
use super::{Served, Store, connection_thread};

/// Subscriptions of a connection. Sixteen windows of 64 KiB, as this crate's client grants them,
/// are a mebibyte, which a socket of Linux takes from a server whose client reads nothing.
pub(super) const SUBSCRIPTIONS_MAX: usize = 16;
/// Waits of a connection. This program's client has one under way at a time.
const WAITS_MAX: usize = 16;
/// Longest time of a wait. The client asks again, so that a wait whose reader has gone ends.
const WAIT_TIME_MAX: Duration = Duration::from_secs(30);
/// Bytes of records in one push: a frame holds the number of the first record beside them.
const PUSH_BYTES_MAX: u64 = (BODY_BYTES_MAX - 8) as u64;
/// How often the thread looks for records of another node's file, which wakes nobody here.
const OTHERS_LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often the thread looks whether the records of a reader without credit are still there. No
/// signal says so, because such a reader has none at its file.
const STARVED_LOOK_EVERY: Duration = Duration::from_secs(1);

/// A request that is answered later.
#[derive(Clone, Copy)]
pub(super) struct LaterReply {
    pub(super) request: u32,
    /// Bytes of the request, which its last reply grants again.
    pub(super) cost: u64,
}

/// A subscription: its place in its file, and its credit.
struct SubscribedReader {
    file: Arc<StoreFile>,
    /// Wakes the thread. A reader without credit has none, so that appends cost nothing for it.
    watch: Option<AppendWatch>,
    next: u64,
    /// Bytes that the reader has granted.
    credit: u64,
    /// Since when the credit is not enough for a record.
    starved_since: Option<Instant>,
    has_unsubscribed: bool,
    cost: u64,
}

/// What a subscription needs next.
enum PushStep {
    /// Nothing before an append, a grant or this moment.
    Rest(Option<Instant>),
    Push(Arc<StoreFile>, Range<u64>),
    End(SubscriptionEnd),
}

impl SubscribedReader {
    fn next_step(&mut self, table: &PushTable, now: Instant) -> PushStep {
        if self.has_unsubscribed {
            return PushStep::End(SubscriptionEnd::Asked);
        }
        if table.served.is_stopping.load(Relaxed) {
            return PushStep::End(SubscriptionEnd::ServerStopping);
        }
        let record_bytes = u64::from(self.file.schema.record_bytes).max(1);
        let has_credit = self.credit >= record_bytes;
        // The signal is laid before the look, so that no append falls between them.
        let watch = self.watch.take();
        let new_watch = || AppendWatch::new(&self.file, &table.signal);
        self.watch = has_credit.then(|| watch.unwrap_or_else(new_watch));
        let records = self.file.records();
        if self.file.is_deleted() {
            return PushStep::End(SubscriptionEnd::FileDeleted);
        }
        if self.file.first() > self.next {
            return PushStep::End(SubscriptionEnd::RecordsGone);
        }
        if !has_credit {
            return self.rest_without_credit(table.served.limits.credit_timeout, now);
        }
        self.starved_since = None;
        let most = self.credit.min(PUSH_BYTES_MAX) / record_bytes;
        let end = records.min(self.next.saturating_add(most));
        match self.next < end {
            true => PushStep::Push(Arc::clone(&self.file), self.next..end),
            false => PushStep::Rest(None),
        }
    }

    fn rest_without_credit(&mut self, patience: Duration, now: Instant) -> PushStep {
        let until = *self.starved_since.get_or_insert(now) + patience;
        match now >= until {
            true => PushStep::End(SubscriptionEnd::NoCredit),
            false => PushStep::Rest(Some(until.min(now + STARVED_LOOK_EVERY))),
        }
    }
}

/// A file for whose growth a request waits.
#[derive(Clone)]
pub(super) struct AwaitedFile {
    file: ReadableFile,
    /// Number behind the last record that the reader knows.
    end: u64,
    freshness: Freshness,
}

impl AwaitedFile {
    /// The files of these names. A file that is named more than once is there once, so that a
    /// request costs an append to the file no more than one look.
    pub(super) fn find_all(
        store: &Store,
        ends: &[KnownEnd],
        freshness: Freshness,
    ) -> Result<Vec<Self>, StoreError> {
        let mut found = BTreeMap::new();
        for known in ends {
            let file = store.readable_file(&known.name)?;
            let awaited =
                found.entry(file.id()).or_insert(Self { file, end: known.end, freshness });
            awaited.end = awaited.end.min(known.end);
        }
        Ok(found.into_values().collect())
    }

    /// The answer of a file whose appends are seen here; `None` while there are no new records.
    fn answer(&self) -> Option<Result<Range<u64>, StoreError>> {
        let ReadableFile::Ours(file) = &self.file else { return None };
        let records = file.records();
        if records > self.end {
            return Some(Ok(0..records));
        }
        if file.is_deleted() {
            let file = file.name.clone();
            return Some(Err(evenfall_store_format::Error::UnknownFile { file }.into()));
        }
        None
    }

    /// The answer of another node's file, which is looked for in the objects or at its primary.
    fn look(&self, store: &Store) -> Option<Result<Range<u64>, StoreError>> {
        let numbers = store.reader_of(&self.file, self.freshness).and_then(|r| r.numbers());
        match numbers {
            Ok(numbers) if numbers.end <= self.end => None,
            Ok(numbers) => Some(Ok(0..numbers.end)),
            Err(error) => Some(Err(error)),
        }
    }
}

/// A request that waits for any of some files to grow.
struct WaitingReader {
    files: Vec<AwaitedFile>,
    /// The signals at these files, until the wait ends.
    _watches: Vec<AppendWatch>,
    until: Instant,
    cost: u64,
}

impl WaitingReader {
    /// The answer, once there is one: the records of a file that has grown, or none.
    fn answer(&self, is_stopping: bool, now: Instant) -> Option<Result<Range<u64>, StoreError>> {
        let answer = self.files.iter().find_map(AwaitedFile::answer);
        if answer.is_some() {
            return answer;
        }
        if is_stopping {
            return Some(Err(StoreError::Closing));
        }
        (now >= self.until).then_some(Ok(0..0))
    }
}

/// The readers by the number of their request.
#[derive(Default)]
struct PushReaders {
    subscriptions: BTreeMap<u32, SubscribedReader>,
    waits: BTreeMap<u32, WaitingReader>,
    /// Whether the connection ends.
    is_ended: bool,
}

/// The readers of a connection, and what their thread shares with the connection's.
pub(super) struct PushTable {
    served: Arc<Served>,
    replies: Arc<ReplyWriter>,
    /// Raised by appends to a file with a reader, and by each change of the readers.
    signal: Arc<AppendSignal>,
    readers: Mutex<PushReaders>,
}

/// What a turn of all readers did.
#[derive(Default)]
struct PushRound {
    has_sent: bool,
    /// The earliest time at which a reader is looked at again; `None` when nobody waits for a time.
    due: Option<Instant>,
}

impl PushRound {
    fn rest_until(&mut self, until: Instant) {
        self.due = Some(self.due.map_or(until, |due| due.min(until)));
    }
}

fn refused(what: String) -> StoreError {
    StoreError::Remote { what, is_retryable: false }
}

/// Refuses a request whose number is in use, and a reader above the limit.
fn expect_room<T>(
    readers: &BTreeMap<u32, T>,
    request: u32,
    max: usize,
    kind: &str,
) -> Result<(), StoreError> {
    if readers.contains_key(&request) {
        return Err(refused(format!("request {request} is a {kind} under way already")));
    }
    match readers.len() < max {
        true => Ok(()),
        false => Err(refused(format!(
            "{max} {kind}s are under way on this connection: end one, or take another connection"
        ))),
    }
}

impl PushTable {
    /// Begins a subscription, to whose client the last reply goes later.
    pub(super) fn begin_subscription(
        &self,
        later: LaterReply,
        file: &Arc<StoreFile>,
        first: u64,
        credit: u64,
    ) -> Result<(), StoreError> {
        let mut readers = lock(&self.readers);
        expect_room(&readers.subscriptions, later.request, SUBSCRIPTIONS_MAX, "subscription")?;
        let reader = SubscribedReader {
            file: Arc::clone(file),
            watch: None,
            next: first,
            credit,
            starved_since: None,
            has_unsubscribed: false,
            cost: later.cost,
        };
        readers.subscriptions.insert(later.request, reader);
        self.served.counters.subscriptions.fetch_add(1, Relaxed);
        self.signal.raise();
        Ok(())
    }

    /// Begins a wait.
    pub(super) fn begin_wait(
        &self,
        later: LaterReply,
        files: Vec<AwaitedFile>,
        time: Duration,
    ) -> Result<(), StoreError> {
        let mut readers = lock(&self.readers);
        expect_room(&readers.waits, later.request, WAITS_MAX, "wait")?;
        let watch = |awaited: &AwaitedFile| match &awaited.file {
            ReadableFile::Ours(file) => Some(AppendWatch::new(file, &self.signal)),
            ReadableFile::Other(_) => None,
        };
        let watches = files.iter().filter_map(watch).collect();
        let until = Instant::now() + time.min(WAIT_TIME_MAX);
        let wait = WaitingReader { files, _watches: watches, until, cost: later.cost };
        readers.waits.insert(later.request, wait);
        self.signal.raise();
        Ok(())
    }

    /// Changes a subscription, unless it has ended: its client may not know of the end yet.
    fn change(&self, request: u32, change: impl FnOnce(&mut SubscribedReader)) {
        if let Some(reader) = lock(&self.readers).subscriptions.get_mut(&request) {
            change(reader);
            self.signal.raise();
        }
    }

    pub(super) fn add_credit(&self, request: u32, credit: u64) {
        self.change(request, |reader| reader.credit = reader.credit.saturating_add(credit));
    }

    pub(super) fn end_subscription(&self, request: u32) {
        self.change(request, |reader| reader.has_unsubscribed = true);
    }

    /// Whether nobody waits.
    pub(super) fn is_idle(&self) -> bool {
        let readers = lock(&self.readers);
        readers.subscriptions.is_empty() && readers.waits.is_empty()
    }

    /// Has the thread look at its readers, and write the replies that another thread has left.
    pub(super) fn wake(&self) {
        self.signal.raise();
    }

    /// Serves the readers until the connection ends or cannot be written.
    fn run(&self) {
        let mut records = Vec::new();
        let mut looked_at = None;
        loop {
            // The flag is read before the round. When the connection ends during the round, one
            // more round sends what it has ended.
            let is_last = lock(&self.readers).is_ended;
            let Ok(mut round) = self.serve_round(&mut records) else { return };
            if self.look_at_others(&mut looked_at, &mut round).is_err() {
                return;
            }
            if is_last {
                return;
            }
            if !round.has_sent {
                self.signal.wait_until(round.due);
            }
        }
    }

    /// Gives each reader a turn, of a mebibyte at most.
    fn serve_round(&self, records: &mut Vec<u8>) -> io::Result<PushRound> {
        let mut round = PushRound::default();
        let requests: Vec<u32> = lock(&self.readers).subscriptions.keys().copied().collect();
        for request in requests {
            let step = match lock(&self.readers).subscriptions.get_mut(&request) {
                Some(reader) => reader.next_step(self, Instant::now()),
                None => continue,
            };
            match step {
                PushStep::Rest(None) => {}
                PushStep::Rest(Some(until)) => round.rest_until(until),
                PushStep::Push(file, numbers) => {
                    self.push(request, &file, numbers, records)?;
                    round.has_sent = true;
                }
                PushStep::End(why) => {
                    self.send_end(request, Ok(why));
                    round.has_sent = true;
                }
            }
        }
        self.answer_waits(&mut round);
        self.replies.flush()?;
        Ok(round)
    }

    /// Reads the records of these numbers and pushes them. The readers are not locked meanwhile,
    /// because the disk may be slow, and the client may grant more.
    fn push(
        &self,
        request: u32,
        file: &StoreFile,
        numbers: Range<u64>,
        records: &mut Vec<u8>,
    ) -> io::Result<()> {
        records.clear();
        let read = self.served.store.read_numbers(file, numbers.clone(), &mut |part| {
            records.extend_from_slice(&part);
            Ok(())
        });
        if let Err(error) = read {
            // When retention or a deletion was faster than the read, the next look ends the
            // subscription with that reason.
            if !file.is_deleted() && file.first() <= numbers.start {
                self.send_end(request, Err(error));
            }
            return Ok(());
        }
        if let Some(reader) = lock(&self.readers).subscriptions.get_mut(&request) {
            reader.next = numbers.end;
            reader.credit = reader.credit.saturating_sub(records.len() as u64);
        }
        let pushed = StoreReply::Pushed { first: numbers.start, bytes: records };
        match self.replies.put(request, 0, &pushed) {
            true => self.replies.flush(),
            false => Ok(()),
        }
    }

    /// Gives a subscription its last reply.
    fn send_end(&self, request: u32, why: Result<SubscriptionEnd, StoreError>) {
        let Some(reader) = lock(&self.readers).subscriptions.remove(&request) else { return };
        let (next, kept) = (reader.next, reader.file.first());
        match why {
            Ok(why) => {
                if why == SubscriptionEnd::NoCredit {
                    self.served.counters.starved_subscriptions.fetch_add(1, Relaxed);
                }
                self.replies.put_last(request, reader.cost, &StoreReply::Ended { why, next, kept });
            }
            Err(error) => self.replies.put_failed(request, reader.cost, &error),
        }
    }

    fn answer_waits(&self, round: &mut PushRound) {
        let (is_stopping, now) = (self.served.is_stopping.load(Relaxed), Instant::now());
        let mut answered = Vec::new();
        lock(&self.readers).waits.retain(|request, wait| match wait.answer(is_stopping, now) {
            Some(answer) => {
                answered.push((*request, wait.cost, answer));
                false
            }
            None => {
                round.rest_until(wait.until);
                true
            }
        });
        for (request, cost, answer) in answered {
            round.has_sent = true;
            self.send_answer(request, cost, answer);
        }
    }

    fn send_answer(&self, request: u32, cost: u64, answer: Result<Range<u64>, StoreError>) {
        match answer {
            Ok(numbers) => self.replies.put_last(request, cost, &StoreReply::Numbers { numbers }),
            Err(error) => self.replies.put_failed(request, cost, &error),
        }
    }

    /// Looks at the files of other nodes for which requests wait. The readers are not locked
    /// meanwhile, because the objects and the primaries may be slow.
    fn look_at_others(
        &self,
        looked_at: &mut Option<Instant>,
        round: &mut PushRound,
    ) -> io::Result<()> {
        let is_other = |one: &&AwaitedFile| matches!(one.file, ReadableFile::Other(_));
        let mut waits: Vec<(u32, Vec<AwaitedFile>)> = Vec::new();
        for (request, wait) in &lock(&self.readers).waits {
            let others: Vec<_> = wait.files.iter().filter(is_other).cloned().collect();
            if !others.is_empty() {
                waits.push((*request, others));
            }
        }
        if waits.is_empty() {
            return Ok(());
        }
        let due = looked_at.map_or_else(Instant::now, |at| at + OTHERS_LOOK_EVERY);
        if due > Instant::now() {
            round.rest_until(due);
            return Ok(());
        }
        for (request, files) in waits {
            let answer = files.iter().find_map(|file| file.look(&self.served.store));
            let Some(answer) = answer else { continue };
            // The wait may have been answered since.
            let Some(wait) = lock(&self.readers).waits.remove(&request) else { continue };
            round.has_sent = true;
            self.send_answer(request, wait.cost, answer);
        }
        *looked_at = Some(Instant::now());
        round.rest_until(Instant::now() + OTHERS_LOOK_EVERY);
        self.replies.flush()
    }
}

/// The thread that serves a table.
pub(super) struct PushThread {
    pub(super) table: Arc<PushTable>,
    thread: JoinHandle<()>,
}

impl PushThread {
    pub(super) fn start(served: &Arc<Served>, replies: &Arc<ReplyWriter>) -> io::Result<Self> {
        let table = Arc::new(PushTable {
            served: Arc::clone(served),
            replies: Arc::clone(replies),
            signal: Arc::default(),
            readers: Mutex::default(),
        });
        let shared = Arc::clone(&table);
        let thread = connection_thread("store-push").spawn(move || shared.run())?;
        Ok(Self { table, thread })
    }

    /// Ends the thread. Readers hear of a server that stops.
    pub(super) fn end(self) {
        lock(&self.table.readers).is_ended = true;
        self.table.signal.raise();
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenfall_store_engine::StoreConfig;
    use evenfall_store_format::Schema;

    #[test]
    fn a_file_that_a_wait_names_often_is_awaited_once_from_its_least_end() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(StoreConfig::new(dir.path())).unwrap().store;
        for name in ["a", "b"] {
            store.create(name, &Schema::opaque(16)).unwrap();
        }
        let known = |name: &str, end| KnownEnd { name: name.into(), end };
        let mut ends: Vec<_> = (0..4_094).map(|n| known("a", 7 + (n + 5) % 4_094)).collect();
        ends.push(known("b", 3));
        let find_all =
            |ends: &[KnownEnd]| AwaitedFile::find_all(&store, ends, Freshness::Published);
        let found = find_all(&ends).unwrap();
        let found: Vec<_> = found.iter().map(|one| (one.file.name(), one.end)).collect();
        assert_eq!(found, [("a", 7), ("b", 3)]);
        ends.push(known("c", 0));
        assert!(find_all(&ends).is_err());
    }
}
