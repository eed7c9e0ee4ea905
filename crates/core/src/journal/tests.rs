use super::*;

const EVERY: Duration = Duration::from_millis(10);

fn at(ms: u64) -> Timestamp {
    Timestamp::from_nanos(ms * 1_000_000)
}

fn full() -> StorageError {
    StorageError::Full { name: "log".to_owned() }
}

fn open(log: &Bytes) -> Result<(Vec<Bytes>, Journal<u32>), LogError> {
    Journal::open("log", EVERY, log)
}

/// The changes that a journal asks for now.
fn changes(journal: &mut Journal<u32>) -> Vec<Change> {
    polled(journal).into_iter().map(|write| write.change).collect()
}

/// The writes that a journal asks for now.
fn polled(journal: &mut Journal<u32>) -> Vec<Write> {
    core::iter::from_fn(|| journal.poll()).collect()
}

#[test]
fn a_failure_is_told_once_and_its_writes_are_repeated_behind_a_cut() {
    let mut journal = Journal::new("log", EVERY);
    journal.add(b"one", [1]);
    let first = journal.poll().expect("a record");
    journal.add(b"two", [2]);
    let second = journal.poll().expect("a record");
    assert_eq!(journal.handle_written(at(1), first.id, Err(full())), Err(full()));
    assert_eq!(journal.handle_written(at(2), second.id, Err(full())), Ok(Vec::new()));
    assert!(journal.is_failing());
    assert_eq!(journal.poll_timeout(), Some(at(11)), "from the first failure on");

    journal.handle_timeout(at(10));
    assert!(journal.poll().is_none(), "the retry is not due yet");
    journal.handle_timeout(at(11));
    let again = polled(&mut journal);
    let asked: Vec<_> = again.iter().map(|write| write.change.clone()).collect();
    assert_eq!(asked, [Change::Truncate(0), first.change, second.change]);

    // The disk can be cut and is still full.
    assert_eq!(journal.handle_written(at(12), again[0].id, Ok(())), Ok(Vec::new()));
    assert_eq!(journal.handle_written(at(12), again[1].id, Err(full())), Ok(Vec::new()));
    assert_eq!(journal.handle_written(at(12), again[2].id, Err(full())), Ok(Vec::new()));
    assert_eq!(journal.poll_timeout(), Some(at(21)));

    journal.handle_timeout(at(21));
    let effects: Vec<u32> = polled(&mut journal)
        .into_iter()
        .flat_map(|write| journal.handle_written(at(22), write.id, Ok(())).expect("room"))
        .collect();
    assert_eq!(effects, [1, 2]);
    assert!(!journal.is_failing());
    assert_eq!(journal.poll_timeout(), None);
}

#[test]
fn a_log_is_gone_on_with_behind_its_last_whole_record() {
    let mut journal = Journal::<u32>::new("log", EVERY);
    journal.add(b"one", []);
    journal.add(b"two", []);
    let Some(Write { change: Change::Append(bytes), .. }) = journal.poll() else {
        panic!("two records in an append")
    };
    let good = (HEADER_BYTES + HEAD_BYTES + 3) as u64;
    let torn = bytes.slice(..bytes.len() - 1);
    let (records, mut journal) = open(&torn).expect("a log of ours");
    assert_eq!(records, [Bytes::from_static(b"one")]);
    assert_eq!(changes(&mut journal), [Change::Truncate(good)]);
    let (records, mut journal) = open(&Bytes::new()).expect("a new log");
    assert!(records.is_empty());
    assert_eq!(journal.poll(), None, "a new log has nothing to cut");
    journal.replace([b"one", b"two"], []);
    let replaced = changes(&mut journal);
    let [Change::Replace(log)] = &replaced[..] else { panic!("a new log") };
    assert!(log.starts_with(&bytes), "the header goes first");
}

/// A log of three writes, of which each is on the disk before the next is made, and the places of
/// the writes.
fn marked() -> (Vec<u8>, [usize; 3]) {
    let mut journal = Journal::<u32>::new("log", EVERY);
    let mut log = Vec::new();
    let places = [b"one", b"two", b"six"].map(|record| {
        let begin = log.len();
        journal.add(record, []);
        let write = journal.poll().expect("a record");
        let Change::Append(bytes) = write.change else { panic!("an append") };
        log.extend_from_slice(&bytes);
        journal.handle_written(at(1), write.id, Ok(())).expect("room");
        begin
    });
    (log, places)
}

#[test]
fn damage_in_front_of_what_was_on_the_disk_is_refused_and_a_torn_tail_is_cut() {
    let (log, [_, second, third]) = marked();
    let read = |log: &[u8]| open(&Bytes::copy_from_slice(log)).map(|(records, _)| records.len());
    assert_eq!(read(&log), Ok(3));
    for (place, bit) in (0..log.len()).flat_map(|place| (0..8).map(move |bit| (place, bit))) {
        let mut damaged = log.clone();
        damaged[place] ^= 1 << bit;
        // The mark of the third write says that the second was on the disk, and that of the second
        // that the first was.
        let (mark, last) = (second + HEAD_BYTES + 3, third + HEAD_BYTES + 3);
        let expected = match place {
            _ if place < HEADER_BYTES => {
                assert!(read(&damaged).is_err(), "bit {bit} of byte {place}");
                continue;
            }
            _ if place < second => Err(LogError::Broken(HEADER_BYTES as u64, third as u64)),
            _ if place < mark => Err(LogError::Broken(second as u64, third as u64)),
            // The mark itself: all records in front of it are read.
            _ if place < third => Err(LogError::Broken(mark as u64, third as u64)),
            _ if place < last => Ok(2),
            _ => Ok(3),
        };
        assert_eq!(read(&damaged), expected, "bit {bit} of byte {place}");
    }
    let zeros = [&[0; HEADER_BYTES], &log[HEADER_BYTES..]].concat();
    assert_eq!(read(&zeros), Err(LogError::Broken(0, third as u64)));
    for end in HEADER_BYTES..log.len() {
        assert!(read(&log[..end]).is_ok(), "{end} bytes");
    }
}

#[test]
fn a_log_that_was_replaced_as_a_whole_is_not_torn() {
    let mut journal = Journal::<u32>::new("log", EVERY);
    journal.replace([b"one", b"two"], []);
    let write = journal.poll().expect("a new log");
    let Change::Replace(log) = write.change else { panic!("a new log") };
    assert_eq!(open(&log).expect("a log of ours").0.len(), 2);
    let mark = log.len() - HEAD_BYTES - MARK_BYTES;
    for (place, bit) in (HEADER_BYTES..mark).flat_map(|place| (0..8).map(move |bit| (place, bit))) {
        let mut damaged = log.to_vec();
        damaged[place] ^= 1 << bit;
        let Err(LogError::Broken(_, written)) = open(&damaged.into()) else {
            panic!("bit {bit} of byte {place}")
        };
        assert_eq!(written, mark as u64);
    }
}

/// A log of another build has to be refused by its version, and not to look torn.
#[test]
fn a_change_of_the_format_needs_another_version() {
    let (log, [_, second, third]) = marked();
    let mark = &log[third - HEAD_BYTES - MARK_BYTES..third];
    let expected = [
        &[MARK_BYTES as u8, 0, 0, 0x80][..],
        &(checksum(&mark[HEAD_BYTES..]) ^ MARK_SUM).to_le_bytes(),
        &(second as u64).to_le_bytes(),
        &((third - HEAD_BYTES - MARK_BYTES) as u64).to_le_bytes(),
        &checksum(b"one").to_le_bytes(),
    ];
    assert_eq!((mark, VERSION), (&expected.concat()[..], 4));
    assert_eq!(fnv1a(FNV_BASIS, &log), 17_252_995_965_463_229_630);
}

#[test]
fn bytes_of_a_client_that_look_like_marks_are_no_marks() {
    let (log, [.., third]) = marked();
    let mut forged = log[..third].to_vec();
    // The first page of the last write is lost, and a client has put marks for all places into it.
    forged.extend([0; 64]);
    let begin = forged.len() as u64;
    (0..64).for_each(|key| put_mark(&mut forged, begin, 0, key));
    assert_eq!(open(&forged.into()).map(|(records, _)| records.len()), Ok(2));
}

#[test]
fn a_journal_that_goes_on_marks_only_what_it_has_written_itself() {
    let (log, [.., third]) = marked();
    let (_, mut journal) = open(&log.into()).expect("a log");
    journal.add(b"new", []);
    let writes = polled(&mut journal);
    let Change::Append(bytes) = &writes[1].change else { panic!("behind the cut") };
    assert_eq!(bytes.len(), HEAD_BYTES + 3, "an earlier process may not have synced");
    for write in writes {
        journal.handle_written(at(1), write.id, Ok(())).expect("room");
    }
    journal.add(b"and", []);
    let write = journal.poll().expect("a record");
    let Change::Append(bytes) = &write.change else { panic!("an append") };
    assert_eq!(bytes.len(), 2 * HEAD_BYTES + 3 + MARK_BYTES);
    assert!(journal.done_bytes() > third as u64);

    // While a new log is on its way, nothing of it is on the disk.
    journal.replace([b"all"], []);
    journal.add(b"new", []);
    let writes = polled(&mut journal);
    let Change::Append(bytes) = &writes[1].change else { panic!("behind the new log") };
    assert_eq!(bytes.len(), HEAD_BYTES + 3);
}

/// A log with one record.
fn log() -> Bytes {
    let mut journal = Journal::<u32>::new("log", EVERY);
    journal.add(b"one", []);
    let Some(Write { change: Change::Append(bytes), .. }) = journal.poll() else {
        panic!("a record in an append")
    };
    bytes
}

#[test]
fn a_log_whose_first_write_is_torn_is_begun_anew() {
    let log = log();
    let zeros = Bytes::from(vec![0; 100]);
    // A crash keeps or loses each sector of a write by itself.
    let without_first_sector = Bytes::from([vec![0; 512], vec![7; 512]].concat());
    let cut = (1..HEADER_BYTES).map(|len| log.slice(..len));
    for torn in cut.chain([zeros, without_first_sector]) {
        let (records, mut journal) = open(&torn).expect("a new log");
        assert!(records.is_empty());
        journal.add(b"one", []);
        let writes = [Change::Truncate(0), Change::Append(log.clone())];
        assert_eq!(changes(&mut journal), writes, "{torn:?}");
    }
    let (records, mut journal) = open(&log.slice(..HEADER_BYTES)).expect("a header");
    assert!(records.is_empty());
    journal.add(b"one", []);
    let writes = [Change::Truncate(HEADER_BYTES as u64), Change::Append(log.slice(HEADER_BYTES..))];
    assert_eq!(changes(&mut journal), writes, "there is one header");
}

#[test]
fn a_log_of_another_build_is_refused_and_named() {
    let ours = log();
    let header = |version: u8, is_whole: bool| {
        let mut bytes = ours.to_vec();
        bytes[4] = version;
        if is_whole {
            let sum = checksum(&bytes[..8]);
            bytes[8..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
        }
        Bytes::from(bytes)
    };
    // The two formats of builds before the header: they differ in their checksums.
    let record = |sum: u64| {
        let parts = [&3_u32.to_le_bytes()[..], &sum.to_le_bytes(), b"one", b"the next record"];
        Bytes::from(parts.concat())
    };
    for (log, error) in [
        (record(fnv1a(FNV_BASIS, b"one")), LogError::Unversioned),
        (record(checksum(b"one")), LogError::Unversioned),
        (record(1), LogError::Foreign([3, 0, 0, 0])),
        (Bytes::from_static(b"#!/bin/sh\nexit 1\n"), LogError::Foreign(*b"#!/b")),
        (Bytes::from_static(b"letters"), LogError::Foreign(*b"lett")),
        (Bytes::from_static(b"a"), LogError::Foreign(*b"a\0\0\0")),
        (header(VERSION + 1, true), LogError::Version(VERSION + 1)),
        (header(VERSION + 1, false), LogError::Damaged),
    ] {
        assert_eq!(open(&log).map(drop), Err(error));
    }
}

#[test]
fn a_checksum_tells_lengths_places_and_single_bits_apart() {
    let body: Vec<u8> = (1..=21).collect();
    let mut others = vec![[&body[..], &[0]].concat(), body[..20].to_vec(), Vec::new()];
    others.extend((0..21 * 8).map(|bit| {
        let mut other = body.clone();
        other[bit / 8] ^= 1 << (bit % 8);
        other
    }));
    let mut swapped = body.clone();
    swapped.rotate_left(8);
    others.push(swapped);
    assert!(others.iter().all(|other| checksum(other) != checksum(&body)));
}

#[test]
fn a_log_is_long_when_it_is_four_times_as_long_as_its_replacement() {
    let mut journal = Journal::<u32>::new("log", EVERY);
    journal.add(&[0; 72], []);
    assert_eq!((journal.len(), journal.is_long(101)), (100, false));
    assert!(journal.is_long(100));
    journal.replace([[0_u8; 72]], []);
    assert!(!journal.is_long(0), "the replacement is not written yet");
    let write = journal.poll().expect("a replacement");
    journal.handle_written(at(0), write.id, Ok(())).expect("room");
    // The replacement has 100 bytes and a mark.
    journal.add(&[0; 287 + 3 * (HEAD_BYTES + MARK_BYTES)], []);
    assert_eq!((journal.len(), journal.is_long(100)), (4 * 136 - 1, false));
    journal.add(&[0], []);
    assert!(journal.is_long(100));
}

#[test]
fn a_journal_that_keeps_no_records_has_empty_writes_with_their_effects() {
    let mut journal = Journal::new("log", EVERY);
    journal.add(b"forgotten", [1]);
    journal.keep_no_records();
    journal.add(b"not kept", [2, 3]);
    let write = journal.poll().expect("effects wait");
    assert_eq!(write.change, Change::Append(Bytes::new()));
    assert_eq!(journal.poll(), None, "nothing else waits");
    let effects = journal.handle_written(Timestamp::ZERO, write.id, Ok(()));
    assert_eq!(effects, Ok(vec![1, 2, 3]));
    assert!(journal.is_empty());
}
