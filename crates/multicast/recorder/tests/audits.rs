//! Recordings with signatures over a real store, as a recorder writes them, and what an audit says
//! of one that somebody has changed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::{BufMut, Bytes, BytesMut};
use evenfall_core::{Format, NodeId, SyncTime};
use evenfall_multicast_machine::forging::{ToySigner, ToyVerifier, sign_frames};
use evenfall_multicast_machine::signing::{AuditBreak, AuditCause};
use evenfall_multicast_machine::wire::Messages;
use evenfall_multicast_machine::{Archived, Release, SignatureVerifier};
use evenfall_multicast_recorder::audit::{SignedRecording, audit_recording};
use evenfall_multicast_recorder::frames::{FrameLog, FrameReader};
use evenfall_multicast_recorder::signatures::{SignatureLog, SignatureReader};
use evenfall_store_engine::{Store, StoreAckLevel, StoreConfig};
use evenfall_store_recording::RecordingWriter;

const RUN: u64 = 0x5eed;
const NOW_NS: i64 = 1_790_000_000_000_000_000;

/// A frame or a signature, with the time of its recording.
#[derive(Clone)]
struct Item {
    stream: u32,
    frame: Archived,
    signature: Option<Bytes>,
    /// Whether the body of a signature is kept.
    is_kept: bool,
}

impl Item {
    fn new(stream: u32, frame: Archived, signature: Option<Bytes>) -> Self {
        Self { stream, frame, signature, is_kept: true }
    }

    fn time_ns(&self) -> i64 {
        NOW_NS - 1_000_000_000 + 1_000 * self.frame.sequence as i64
    }

    fn release(&self) -> Release {
        let mut body = BytesMut::new();
        for message in &self.frame.messages {
            body.put_u16_le(message.len() as u16);
            body.put_slice(message);
        }
        let (frame, count) = (&self.frame, self.frame.messages.len() as u16);
        Release {
            stream: self.stream,
            epoch: 1,
            run_id: RUN,
            sequence: frame.sequence,
            first_message: frame.first_message,
            messages: Messages::new(body.freeze(), count).unwrap(),
            count,
            format: frame.format,
            origin: frame.origin,
            deadline: frame.deadline,
            arrived: frame.origin,
            taken: frame.origin,
            via: NodeId(0),
            hedge_win: false,
            repaired: false,
            signature: self.signature.clone(),
        }
    }
}

fn frame(sequence: u64, first_message: u64, messages: Vec<Bytes>) -> Archived {
    let origin = SyncTime::from_nanos(1_000 + sequence);
    let deadline = Some(SyncTime::from_nanos(2_000 + sequence));
    let (format, signature) = (Format(1), None);
    Archived { sequence, first_message, origin, deadline, format, messages, signature }
}

/// A signed stream: seven frames behind each other, then a signature. A frame has two messages, and
/// the fourth of each seven has none, as frames have that a root sends to measure delays.
fn signed_stream(stream: u32) -> Vec<Item> {
    let is_frame = |number: &u64| number % 8 < 7;
    let numbers = (0..80).filter(is_frame);
    let mut end = 0;
    let frames: Vec<Archived> = numbers
        .map(|number| {
            let text = |half: u64| Bytes::from(format!("message {number}.{half} of {stream}"));
            let messages = if number % 8 == 3 { Vec::new() } else { vec![text(0), text(1)] };
            let first = end;
            end += messages.len() as u64;
            frame(number, first, messages)
        })
        .collect();
    let signatures = sign_frames(Arc::new(ToySigner(1)), stream, RUN, &frames);
    let mut items: Vec<Item> =
        frames.into_iter().map(|frame| Item::new(stream, frame, None)).collect();
    for (number, body) in signatures {
        let message = items.iter().find(|item| item.frame.sequence > number);
        let message = message.map_or(end, |item| item.frame.first_message);
        let signature = Some(body);
        items.push(Item::new(stream, frame(number, message, Vec::new()), signature));
    }
    items.sort_by_key(|item| item.frame.sequence);
    items
}

fn feed() -> Vec<Item> {
    [signed_stream(0), signed_stream(1)].concat()
}

fn open(path: &Path) -> Store {
    let config = StoreConfig { objects: None, clock: || NOW_NS, ..StoreConfig::new(path) };
    Store::open(config).unwrap().store
}

/// Records as a recorder does.
fn record(store: &Store, items: &[Item]) {
    let is_stopping = AtomicBool::new(false);
    let mut messages = RecordingWriter::new(store, "feed", 2, StoreAckLevel::Local).unwrap();
    let mut frames = FrameLog::new(store, "feed", 2, &is_stopping).unwrap();
    let mut signatures = SignatureLog::new(store, "feed", &is_stopping);
    for item in items {
        let (release, time_ns) = (item.release(), item.time_ns());
        for (number, bytes) in (release.first_message..).zip(release.messages.clone()) {
            messages.push(item.stream, number, time_ns, release.format, &bytes).unwrap();
        }
        if item.is_kept {
            signatures.push(&release, time_ns).unwrap();
        }
        frames.push(&release, time_ns);
    }
    messages.flush().unwrap();
    signatures.flush().unwrap();
    frames.flush().unwrap();
}

fn audit(store: &Store, signer: u8) -> SignedRecording {
    let verifier: Arc<dyn SignatureVerifier> = Arc::new(ToyVerifier(vec![signer]));
    audit_recording(store, "feed", &verifier).unwrap()
}

/// The audit of a recording of these items.
fn audit_of(items: &[Item]) -> SignedRecording {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    record(&store, items);
    audit(&store, 1)
}

/// The item of a stream with this number.
fn at(items: &[Item], stream: u32, number: u64) -> usize {
    let is_it = |item: &Item| (item.stream, item.frame.sequence) == (stream, number);
    items.iter().position(is_it).expect("an item")
}

fn expect_break(items: &[Item], stream: u32, number: u64, cause: AuditCause) -> SignedRecording {
    let seen = audit_of(items);
    let broken = seen.broken.expect("a break");
    assert_eq!((broken.stream, broken.at), (stream, AuditBreak { number, cause }));
    seen
}

#[test]
fn a_whole_recording_is_signed_and_stays_so_when_it_is_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let items = feed();
    // A recorder that is started again goes on with its files.
    record(&store, &items[..40]);
    record(&store, &items[40..]);
    let seen = audit(&store, 1);
    assert_eq!((seen.broken, seen.unframed_messages), (None, 0));
    let counts = seen.counts;
    assert_eq!((counts.signed, counts.signed_messages, counts.signatures), (140, 240, 20));
    assert_eq!((counts.unsigned_before, counts.unsigned_behind, counts.missing_before), (0, 0, 0));
    let mut reader = SignatureReader::new(&store, "feed", 1).unwrap();
    let kept: Vec<(u64, Vec<u8>)> = std::iter::from_fn(|| reader.next_signature().unwrap())
        .inspect(|signature| assert_eq!(signature.run_id, RUN))
        .map(|signature| (signature.number, signature.body))
        .collect();
    let sent = items.iter().filter(|item| item.stream == 1).filter_map(|item| {
        item.signature.as_ref().map(|body| (item.frame.sequence, body.to_vec()))
    });
    assert_eq!(kept, sent.collect::<Vec<_>>());
    store.close().unwrap();
    assert_eq!(audit(&open(dir.path()), 1), seen);
    let of_another = audit(&open(dir.path()), 2).broken.expect("a break");
    let cause = AuditCause::WrongSignature;
    assert_eq!((of_another.stream, of_another.at), (0, AuditBreak { number: 7, cause }));
}

#[test]
fn a_recorder_that_was_started_again_has_the_signatures_for_nodes_that_missed_them() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let items = signed_stream(0);
    record(&store, &items);
    let mut reader = FrameReader::new(&store, "feed");
    for first in [0, 13, 70] {
        let frames = reader.frames((NodeId(7), 0), first, 10).unwrap();
        let wanted = &items[first as usize..first as usize + 10];
        for (frame, item) in frames.iter().zip(wanted) {
            let (number, signature) = (item.frame.sequence, &item.signature);
            assert_eq!((frame.sequence, &frame.signature), (number, signature));
            assert_eq!(frame.messages, item.frame.messages);
        }
        assert_eq!(frames.len(), 10);
    }
    // A signature without its body is not sent as a frame without messages.
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut items = items;
    items[7].is_kept = false;
    record(&store, &items);
    let frames = FrameReader::new(&store, "feed").frames((NodeId(7), 0), 2, 8).unwrap();
    let numbers: Vec<u64> = frames.iter().map(|frame| frame.sequence).collect();
    assert_eq!(numbers, [2, 3, 4, 5, 6, 8, 9]);
}

#[test]
fn a_changed_byte_and_a_frame_that_is_gone_are_named_with_their_time() {
    let mut items = feed();
    let changed = at(&items, 1, 18);
    let (time_ns, message) = (items[changed].time_ns(), Bytes::from_static(b"message 18.1 of 2"));
    items[changed].frame.messages[1] = message;
    let seen = expect_break(&items, 1, 18, AuditCause::OtherFrame);
    assert_eq!(seen.broken.and_then(|broken| broken.time_ns), Some(time_ns));
    // The whole of stream 0, and of stream 1 all frames before the changed one.
    assert_eq!((seen.counts.signed, seen.counts.signatures), (70 + 16, 10 + 3));
    let said = seen.broken.map(|broken| broken.to_string()).unwrap_or_default();
    assert!(said.starts_with("stream 1, frame 18: the root signed another frame"), "{said}");

    let mut items = feed();
    items.remove(at(&items, 0, 20));
    let seen = expect_break(&items, 0, 20, AuditCause::MissingFrame);
    let behind = items[at(&items, 0, 21)].time_ns();
    assert_eq!(seen.broken.and_then(|broken| broken.time_ns), Some(behind));
}

#[test]
fn a_signature_that_is_gone_or_cut_is_named() {
    let mut items = feed();
    items.remove(at(&items, 0, 15));
    expect_break(&items, 0, 8, AuditCause::Unsigned);
    // The frame of the signature is there, and its body is not.
    let mut items = feed();
    let gone = at(&items, 0, 15);
    items[gone].is_kept = false;
    expect_break(&items, 0, 15, AuditCause::MissingSignature);
    for length in [1, 99, 100, 101, 211] {
        let mut items = feed();
        let cut = at(&items, 1, 15);
        let body = items[cut].signature.as_ref().map(|body| body.slice(..length));
        items[cut].signature = body;
        expect_break(&items, 1, 15, AuditCause::WrongSignature);
    }
}

#[test]
fn what_no_signature_covers_is_counted() {
    // The recording began late, and a crash took the last signature.
    let items = signed_stream(0);
    let seen = audit_of(&items[3..items.len() - 1]);
    assert_eq!((seen.broken, seen.unframed_messages), (None, 0));
    let counts = seen.counts;
    assert_eq!((counts.signed, counts.missing_before, counts.unsigned_behind), (60, 3, 7));
    // Recorders of earlier versions kept the places of signatures alone.
    let unsigned: Vec<Item> =
        items.iter().map(|item| Item { signature: None, ..item.clone() }).collect();
    let seen = audit_of(&unsigned);
    assert_eq!((seen.broken, seen.counts.signatures, seen.counts.unsigned_behind), (None, 0, 80));
    // Somebody adds messages that belong to no frame.
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    record(&store, &items);
    let mut added = RecordingWriter::new(&store, "feed", 2, StoreAckLevel::Local).unwrap();
    added.push(0, 120, NOW_NS, Format(1), b"a trade that never was").unwrap();
    added.flush().unwrap();
    assert_eq!(audit(&store, 1).unframed_messages, 1);
}
