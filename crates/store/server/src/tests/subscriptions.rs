//! Readers that are pushed what is appended.

use std::sync::atomic::AtomicBool;

use evenfall_store_engine::client::WINDOW_BYTES;
use evenfall_store_engine::protocol::{
    BODY_BYTES_MAX, FrameHeader, HEADER_BYTES, StoreReply, StoreRequest, VERSION, frame,
};
use evenfall_store_engine::{
    FileSubscription, KnownEnd, PushedRecords, RecordSource as _, RemoteSource, StoreFile,
    SubscriptionEnd,
};
use evenfall_store_format::retention::Retention;

use super::*;

/// Bytes of a record here.
const RECORD_BYTES: u64 = 16;
/// Records of a chunk of the store.
const CHUNK_RECORDS: u64 = 1_022 * 256;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

/// Checks that records come in order, each once, and are what was appended.
struct SeamChecker {
    next: u64,
}

impl SeamChecker {
    fn check(&mut self, pushed: &PushedRecords) -> Result<(), String> {
        let end = pushed.first + pushed.records.len() as u64 / RECORD_BYTES;
        if pushed.first != self.next {
            return Err(format!("record {} came in the place of {}", pushed.first, self.next));
        }
        if pushed.records != records(pushed.first..end) {
            return Err(format!("records {} to {end} are not those appended", pushed.first));
        }
        self.next = end;
        Ok(())
    }

    /// Takes pushed records until this one is next.
    fn take_until(&mut self, client: &mut Client, of: FileSubscription, end: u64) {
        while self.next < end {
            let pushed = client.next_batch(of, soon()).expect("a subscription that goes on");
            self.check(&pushed.expect("records within 30 s")).unwrap();
        }
    }
}

/// The end of a subscription, after what was pushed before it.
fn end_of(client: &mut Client, of: FileSubscription) -> (SubscriptionEnd, u64, u64) {
    loop {
        match client.next_batch(of, soon()) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("no end within 30 s"),
            Err(StoreError::SubscriptionEnded { why, next, kept }) => return (why, next, kept),
            Err(error) => panic!("an end without its name: {error}"),
        }
    }
}

struct Serving {
    store: Arc<Store>,
    server: Server,
    _dir: tempfile::TempDir,
}

impl Serving {
    fn start(credit_timeout: Duration) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = StoreConfig { objects: None, ..StoreConfig::new(dir.path()) };
        let store = Arc::new(Store::open(config).unwrap().store);
        let limits = ClientLimits { credit_timeout, ..ClientLimits::default() };
        let listen = "127.0.0.1:0".parse().unwrap();
        let server = Server::start_with(Arc::clone(&store), listen, limits).unwrap();
        Self { store, server, _dir: dir }
    }

    fn connect(&self) -> Client {
        Client::connect(self.server.address()).unwrap()
    }

    /// A file with these records.
    fn file(&self, name: &str, end: u64) -> Arc<StoreFile> {
        let file = self.store.create(name, &Schema::opaque(16)).unwrap();
        self.append(&file, 0..end);
        file
    }

    fn append(&self, file: &StoreFile, numbers: Range<u64>) {
        for first in numbers.clone().step_by(50_000) {
            let batch = records(first..numbers.end.min(first + 50_000));
            self.store.append(file, &batch, StoreAckLevel::Memory).unwrap();
        }
    }
}

#[test]
fn the_checker_finds_a_repeated_a_missing_and_a_changed_record() {
    let pushed =
        |numbers: Range<u64>, first| PushedRecords { first, records: records(numbers).into() };
    let after = |pushed: &PushedRecords| SeamChecker { next: 10 }.check(pushed);
    assert!(after(&pushed(10..20, 10)).is_ok());
    assert!(after(&pushed(9..20, 9)).is_err(), "a repeated record");
    assert!(after(&pushed(11..20, 11)).is_err(), "a missing record");
    assert!(after(&pushed(11..20, 10)).is_err(), "records under other numbers");
}

#[test]
fn a_subscription_passes_from_old_records_into_new_ones_without_a_seam() {
    let serving = Serving::start(CREDIT_TIMEOUT);
    let file = serving.file("a", 300_000);
    let (end, is_reading) = (900_000, AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_reading.load(Relaxed) {
                std::thread::yield_now();
            }
            let (mut next, mut turn) = (300_000, 0);
            while next < end {
                // From single records to more than a segment, so that ends fall everywhere.
                let count = [1, 7, 100, 3_000][turn % 4].min(end - next);
                serving.append(&file, next..next + count);
                (next, turn) = (next + count, turn + 1);
            }
        });
        let mut checker = SeamChecker { next: 0 };
        // The reader is restarted some times, with a new connection or on the old one.
        for round in 1..=6 {
            let mut client = serving.connect();
            let remote = client.open("a").unwrap();
            for half in [2 * round - 1, 2 * round] {
                let subscription = client.subscribe_to(&remote, checker.next).unwrap();
                checker.take_until(&mut client, subscription, end * half / 12);
                is_reading.store(true, Relaxed);
                if half % 2 == 1 {
                    assert_eq!(client.end_subscription(subscription).unwrap(), checker.next);
                }
            }
        }
        assert_eq!(checker.next, end);
    });
    assert_eq!(serving.server.counts().subscriptions, 12);
}

#[test]
fn appends_and_requests_share_the_connection_of_a_subscription() {
    let serving = Serving::start(CREDIT_TIMEOUT);
    serving.file("a", 0);
    let mut client = serving.connect();
    let file = client.open("a").unwrap();
    let subscription = client.subscribe_to(&file, 0).unwrap();
    assert_eq!(client.next_batch(subscription, Instant::now()).unwrap(), None);
    let mut checker = SeamChecker { next: 0 };
    for batch in 0..200 {
        let level = [StoreAckLevel::Memory, StoreAckLevel::Local][batch as usize % 2];
        client.append(&file, &records(batch * 100..batch * 100 + 100), level).unwrap();
        assert_eq!(client.completion().unwrap().unwrap().first.unwrap(), batch * 100);
        assert_eq!(client.size(&file).unwrap(), 0..batch * 100 + 100);
        if batch % 7 == 0 {
            checker.take_until(&mut client, subscription, batch * 100 + 100);
        }
    }
    checker.take_until(&mut client, subscription, 20_000);
    assert!(client.completion().unwrap().is_none(), "a subscription is no append");
    assert_eq!(client.end_subscription(subscription).unwrap(), 20_000);
    assert!(client.next_batch(subscription, soon()).is_err());
}

#[test]
fn a_reader_that_takes_nothing_is_told_why_and_begins_again() {
    let serving = Serving::start(Duration::from_millis(200));
    let file = serving.file("a", 300_000);
    let mut client = serving.connect();
    let remote = client.open("a").unwrap();
    let subscription = client.subscribe_to(&remote, 0).unwrap();
    let end = soon();
    while serving.server.counts().starved_subscriptions == 0 {
        assert!(Instant::now() < end, "nobody was told");
        std::thread::sleep(Duration::from_millis(5));
    }
    // The appends of the meantime cost nothing for it.
    serving.append(&file, 300_000..300_100);
    let window = WINDOW_BYTES / RECORD_BYTES;
    let (why, next, kept) = end_of(&mut client, subscription);
    assert_eq!((why, next, kept), (SubscriptionEnd::NoCredit, window, 0));
    let words = StoreError::SubscriptionEnded { why, next, kept }.to_string();
    assert!(words.contains("subscribe again from record 4096"), "{words}");
    let again = client.subscribe_to(&remote, next).unwrap();
    SeamChecker { next }.take_until(&mut client, again, 300_100);
    // A reader that waits for appends, and has credit, is not slow.
    std::thread::sleep(Duration::from_millis(400));
    serving.append(&file, 300_100..300_200);
    SeamChecker { next: 300_100 }.take_until(&mut client, again, 300_200);
}

#[test]
fn a_reader_that_retention_overtakes_is_told_which_records_are_gone() {
    let serving = Serving::start(CREDIT_TIMEOUT);
    let file = serving.file("a", 5 * CHUNK_RECORDS);
    let mut client = serving.connect();
    let remote = client.open("a").unwrap();
    let slow = client.subscribe_to(&remote, 0).unwrap();
    let mut fast = serving.connect();
    let live = fast.open("a").unwrap();
    let live = fast.subscribe_to(&live, 5 * CHUNK_RECORDS).unwrap();
    assert_eq!(client.next_batch(slow, soon()).unwrap().unwrap().first, 0);
    let retention = Retention { bytes_max: Some(4 << 20), ..Retention::default() };
    let first = serving.store.retain(&file, retention).unwrap();
    assert!(first >= 2 * CHUNK_RECORDS, "{first}");
    let (why, next, kept) = end_of(&mut client, slow);
    assert_eq!((why, kept), (SubscriptionEnd::RecordsGone, first));
    assert!((1..first).contains(&next), "{next}");
    let words = StoreError::SubscriptionEnded { why, next, kept }.to_string();
    assert!(words.contains(&format!("the records {next} to {} ", first - 1)), "{words}");
    let again = client.subscribe_to(&remote, 0).unwrap();
    assert_eq!(end_of(&mut client, again), (SubscriptionEnd::RecordsGone, 0, first));
    let kept = client.subscribe_to(&remote, first).unwrap();
    SeamChecker { next: first }.take_until(&mut client, kept, 5 * CHUNK_RECORDS);
    // A reader at the live end does not notice.
    serving.append(&file, 5 * CHUNK_RECORDS..5 * CHUNK_RECORDS + 9);
    SeamChecker { next: 5 * CHUNK_RECORDS }.take_until(&mut fast, live, 5 * CHUNK_RECORDS + 9);
}

#[test]
fn a_deleted_file_and_a_server_that_stops_end_subscriptions_by_name() {
    let serving = Serving::start(CREDIT_TIMEOUT);
    for name in ["a", "b"] {
        serving.file(name, 100);
    }
    let mut client = serving.connect();
    let [a, b] = ["a", "b"].map(|name| client.open(name).unwrap());
    let of_a = client.subscribe_to(&a, 50).unwrap();
    let of_b = client.subscribe_to(&b, 100).unwrap();
    SeamChecker { next: 50 }.take_until(&mut client, of_a, 100);
    serving.store.delete("a").unwrap();
    assert_eq!(end_of(&mut client, of_a), (SubscriptionEnd::FileDeleted, 100, 0));
    assert_eq!(client.next_batch(of_b, Instant::now()).unwrap(), None);
    let begun = Instant::now();
    serving.server.stop();
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert_eq!(end_of(&mut client, of_b), (SubscriptionEnd::ServerStopping, 100, 0));
    Arc::into_inner(serving.store).expect("nothing holds the store").close().unwrap();
}

#[test]
fn many_readers_of_many_files_each_get_all_of_their_file() {
    const CONNECTIONS: usize = 24;
    const FILES: usize = 8;
    let serving = Serving::start(CREDIT_TIMEOUT);
    let files: Vec<_> = (0..FILES).map(|n| serving.file(&format!("f{n}"), 1_000)).collect();
    let end = 20_000;
    std::thread::scope(|scope| {
        for connection in 0..CONNECTIONS {
            let serving = &serving;
            scope.spawn(move || {
                let mut client = serving.connect();
                let mut readers = Vec::new();
                for n in 0..FILES {
                    let file = client.open(&format!("f{n}")).unwrap();
                    let next = (connection * 40) as u64;
                    let subscription = client.subscribe_to(&file, next).unwrap();
                    readers.push((subscription, SeamChecker { next }));
                }
                for (subscription, checker) in &mut readers {
                    checker.take_until(&mut client, *subscription, end);
                }
            });
        }
        for first in (1_000..end).step_by(100) {
            files.iter().for_each(|file| serving.append(file, first..first + 100));
        }
    });
    assert_eq!(serving.server.counts().subscriptions, (CONNECTIONS * FILES) as u64);
}

#[test]
fn a_connection_has_sixteen_subscriptions_and_the_next_is_refused_by_name() {
    let serving = Serving::start(CREDIT_TIMEOUT);
    serving.file("a", 10);
    let mut client = serving.connect();
    let file = client.open("a").unwrap();
    let all: Vec<_> = (0..17).map(|_| client.subscribe_to(&file, 0).unwrap()).collect();
    let refused = client.next_batch(all[16], soon()).unwrap_err().to_string();
    assert!(refused.contains("16 subscriptions are under way"), "{refused}");
    for subscription in &all[..16] {
        SeamChecker { next: 0 }.take_until(&mut client, *subscription, 10);
    }
    client.end_subscription(all[3]).unwrap();
    let again = client.subscribe_to(&file, 4).unwrap();
    SeamChecker { next: 4 }.take_until(&mut client, again, 10);
}

#[test]
fn appends_go_on_beside_subscriptions_from_which_nobody_takes() {
    let serving = Serving::start(CREDIT_TIMEOUT);
    serving.file("a", 100_000);
    let mut client = serving.connect();
    let file = client.open("a").unwrap();
    let all: Vec<_> = (0..16).map(|_| client.subscribe_to(&file, 0).unwrap()).collect();
    let begun = Instant::now();
    let batch = 1 << 16;
    for first in (0..32 * batch).step_by(batch as usize) {
        let first = 100_000 + first;
        client.append(&file, &records(first..first + batch), StoreAckLevel::Memory).unwrap();
    }
    for first in (0..32 * batch).step_by(batch as usize) {
        let done = client.completion().unwrap().unwrap().first;
        assert_eq!(done.unwrap(), 100_000 + first);
    }
    // A server that waited for its client would give up after thirty seconds.
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    for subscription in all {
        SeamChecker { next: 0 }.take_until(&mut client, subscription, 200_000);
    }
}

#[test]
fn a_client_may_write_all_its_appends_before_it_reads_what_was_pushed() {
    let serving = Serving::start(CREDIT_TIMEOUT);
    serving.file("a", 100_000);
    let mut raw = RawClient::connect(&serving.server, VERSION);
    raw.expect(0, "Hello");
    raw.send(1, &StoreRequest::Open { name: "a", schema: None });
    raw.expect(1, "Opened");
    // More records than a socket holds.
    for request in 100..116 {
        raw.send(request, &StoreRequest::Subscribe { file: 0, first: 0, credit: 1 << 20 });
    }
    let begun = Instant::now();
    let batch = BODY_BYTES_MAX as u64 / RECORD_BYTES;
    for turn in 0..32 {
        let first = 100_000 + u64::from(turn) * batch;
        let bytes = records(first..first + batch);
        let append =
            StoreRequest::Append { file: 0, level: StoreAckLevel::Memory, records: &bytes };
        raw.send(200 + turn, &append);
    }
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    let (mut appended, mut pushed) = (0, 0);
    while appended < 32 || pushed < 16 * (1 << 20) {
        let (header, bytes) = raw.frame().expect("a reply");
        match StoreReply::decode(&header, &bytes).unwrap() {
            StoreReply::Appended { first } => {
                assert_eq!(first, 100_000 + appended * batch);
                appended += 1;
            }
            StoreReply::Pushed { bytes, .. } => pushed += bytes.len(),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_reader_without_credit_is_told_that_its_file_is_gone() {
    let serving = Serving::start(CREDIT_TIMEOUT);
    let file = serving.file("a", 5 * CHUNK_RECORDS);
    let mut raw = RawClient::connect(&serving.server, VERSION);
    raw.expect(0, "Hello");
    raw.send(1, &StoreRequest::Open { name: "a", schema: None });
    raw.expect(1, "Opened");
    let subscribe = |first| StoreRequest::Subscribe { file: 0, first, credit: 15 };
    raw.send(2, &subscribe(7));
    raw.send(3, &subscribe(5 * CHUNK_RECORDS));
    raw.send(4, &StoreRequest::Size { file: 0 });
    raw.expect(4, "Numbers");
    let retention = Retention { bytes_max: Some(4 << 20), ..Retention::default() };
    let first = serving.store.retain(&file, retention).unwrap();
    raw.expect(2, &format!("RecordsGone, next: 7, kept: {first}"));
    serving.store.delete("a").unwrap();
    raw.expect(3, "FileDeleted");
}

/// A client that writes frames by hand.
struct RawClient {
    stream: TcpStream,
    came: Vec<u8>,
}

impl RawClient {
    fn connect(server: &Server, version: u32) -> Self {
        let stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut raw = Self { stream, came: Vec::new() };
        raw.send(0, &StoreRequest::Hello { version });
        raw
    }

    fn send(&mut self, number: u32, request: &StoreRequest<'_>) {
        let mut bytes = Vec::new();
        request.encode(number, &mut bytes);
        self.stream.write_all(&bytes).unwrap();
    }

    /// The next frame: its header and its body.
    fn frame(&mut self) -> Option<(FrameHeader, Vec<u8>)> {
        loop {
            if let Some((header, body)) = frame(&self.came).unwrap() {
                let body = body.to_vec();
                self.came.drain(..HEADER_BYTES + body.len());
                return Some((header, body));
            }
            let mut part = [0; 1 << 16];
            let read = self.stream.read(&mut part).ok().filter(|read| *read > 0)?;
            self.came.extend_from_slice(&part[..read]);
        }
    }

    /// The next reply: the number of its request, and its form for people.
    fn reply(&mut self) -> Option<(u32, String)> {
        let (header, body) = self.frame()?;
        let reply = StoreReply::decode(&header, &body).unwrap();
        Some((header.request, format!("{reply:?}")))
    }

    fn expect(&mut self, request: u32, words: &str) {
        let (number, reply) = self.reply().expect("a reply");
        assert_eq!(number, request, "{reply}");
        assert!(reply.contains(words), "{reply} without {words}");
    }
}

#[test]
fn frames_of_a_hostile_subscriber_are_refused_or_bounded() {
    let serving = Serving::start(CREDIT_TIMEOUT);
    let file = serving.file("a", 3);
    let mut raw = RawClient::connect(&serving.server, VERSION);
    raw.expect(0, "Hello");
    raw.send(1, &StoreRequest::Subscribe { file: 0, first: 0, credit: 1 });
    raw.expect(1, "not open");
    raw.send(2, &StoreRequest::Open { name: "a", schema: None });
    raw.expect(2, "Opened");
    // Numbers that no subscription has.
    raw.send(77, &StoreRequest::Grant { credit: u64::MAX });
    raw.send(77, &StoreRequest::Unsubscribe);
    // Less credit than a record, and then more than a number holds.
    raw.send(3, &StoreRequest::Subscribe { file: 0, first: 2, credit: 15 });
    raw.send(3, &StoreRequest::Subscribe { file: 0, first: 0, credit: 1 });
    raw.expect(3, "under way already");
    for _ in 0..3 {
        raw.send(3, &StoreRequest::Grant { credit: u64::MAX });
    }
    raw.expect(3, "Pushed { first: 2");
    // A place that no file ever reaches.
    raw.send(4, &StoreRequest::Subscribe { file: 0, first: u64::MAX, credit: u64::MAX });
    raw.send(5, &StoreRequest::Wait { time_ms: u32::MAX, ends: vec![known("none", 0)] });
    raw.expect(5, "none");
    raw.send(6, &StoreRequest::Wait { time_ms: u32::MAX, ends: vec![known("a", u64::MAX)] });
    raw.send(7, &StoreRequest::Wait { time_ms: 0, ends: Vec::new() });
    raw.expect(7, "Numbers { numbers: 0..0 }");
    serving.append(&file, 3..4);
    raw.expect(3, "Pushed { first: 3");
    raw.send(4, &StoreRequest::Unsubscribe);
    raw.expect(4, &format!("next: {}", u64::MAX));
    // A flood of grants is no flood of requests.
    for _ in 0..10_000 {
        raw.send(3, &StoreRequest::Grant { credit: 0 });
    }
    raw.send(3, &StoreRequest::Unsubscribe);
    raw.expect(3, "Asked, next: 4");
    for number in 100..117 {
        raw.send(number, &StoreRequest::Wait { time_ms: u32::MAX, ends: Vec::new() });
    }
    raw.expect(115, "16 waits are under way");
    raw.expect(116, "16 waits are under way");
    drop(raw);
    let mut other = serving.connect();
    assert_eq!(other.open("a").unwrap().numbers, 0..4);
    drop(other);
    assert_eq!(serving.server.stop().malformed, 0);
}

#[test]
fn clients_of_the_version_before_subscriptions_are_served() {
    let serving = Serving::start(CREDIT_TIMEOUT);
    serving.file("a", 3);
    let mut old = RawClient::connect(&serving.server, 1);
    old.expect(0, "Hello { version: 1");
    old.send(1, &StoreRequest::List { after: "" });
    old.expect(1, "Listed");
    let mut later = RawClient::connect(&serving.server, VERSION + 1);
    later.expect(0, "from 1 to 3");
}

fn known(name: &str, end: u64) -> KnownEnd {
    KnownEnd { name: name.into(), end }
}

#[test]
fn an_append_to_any_of_the_files_ends_a_wait() {
    let serving = Serving::start(CREDIT_TIMEOUT);
    let [a, b] = ["a", "b"].map(|name| serving.file(name, 10));
    let source = RemoteSource::new(serving.connect());
    let both = |end_a, end_b| [known("a", end_a), known("b", end_b)];
    assert!(source.wait_past(&both(10, 9), soon()).unwrap(), "it is there");
    let begun = Instant::now();
    let until = begun + Duration::from_millis(60);
    assert!(!source.wait_past(&both(10, 10), until).unwrap(), "nothing comes");
    assert!(Instant::now() >= until);
    for (file, ends) in [(&a, both(10, 10)), (&b, both(11, 10))] {
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| source.wait_past(&ends, soon()).unwrap());
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waiting.is_finished());
            serving.append(file, 10..11);
            assert!(waiting.join().unwrap());
        });
    }
    assert!(begun.elapsed() < Duration::from_secs(20), "an append did not end the wait");
    // One file that is named often is looked at once, with the least of the ends.
    let often: Vec<KnownEnd> = (0..4_096).map(|n| known("a", 11 + n)).collect();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| source.wait_past(&often, soon()).unwrap());
        std::thread::sleep(Duration::from_millis(50));
        serving.append(&a, 11..12);
        assert!(waiting.join().unwrap());
    });
    // Files that do not fit a request are looked at now and then.
    let many: Vec<KnownEnd> = (0..1_100).map(|n| known(&format!("{n:01000}"), 0)).collect();
    assert!(source.wait_past(&many, soon()).unwrap());

    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| source.wait_past(&both(12, 11), soon()));
        std::thread::sleep(Duration::from_millis(50));
        serving.store.delete("b").unwrap();
        let words = waiting.join().unwrap().unwrap_err().to_string();
        assert!(words.contains('b'), "{words}");
    });
}
