use evenfall_core::Prng;

use super::*;

fn entry() -> Entry {
    let text = r#"{"id": 3, "primary": 1, "token": 4, "slot": 2, "listed": 4, "replica": 2,
        "schema": {"record_bytes": 8, "fields": []}}"#;
    serde_json::from_str(text).unwrap()
}

fn requests() -> Vec<StoreRequest<'static>> {
    let (file, from_ns, to_ns) = (7, -5, i64::MAX);
    vec![
        StoreRequest::Hello { version: VERSION },
        StoreRequest::Open { name: "aapl", schema: Some(Schema::opaque(16)) },
        StoreRequest::Open { name: "", schema: None },
        StoreRequest::Append { file, level: StoreAckLevel::Object, records: b"sixteen bytes ok" },
        StoreRequest::Append { file, level: StoreAckLevel::Replica, records: b"" },
        StoreRequest::Follow { name: "aapl", entry: entry() },
        StoreRequest::Copy { file, first: 9, records: b"sixteen bytes ok" },
        StoreRequest::Record { file, number: u64::MAX },
        StoreRequest::Latest { file, time_ns: i64::MIN },
        StoreRequest::Between { file, from_ns, to_ns },
        StoreRequest::Find { file, from_ns, to_ns },
        StoreRequest::Numbers { file, numbers: 3..9 },
        StoreRequest::Size { file },
        StoreRequest::List { after: "aapl" },
        StoreRequest::Subscribe { file, first: u64::MAX, credit: 1 },
        StoreRequest::Grant { credit: u64::MAX },
        StoreRequest::Unsubscribe,
        StoreRequest::Wait { time_ms: 7, ends: Vec::new() },
        StoreRequest::Wait { time_ms: u32::MAX, ends: vec![known("a", 3), known("", u64::MAX)] },
    ]
}

fn known(name: &str, end: u64) -> KnownEnd {
    KnownEnd { name: name.into(), end }
}

fn opened(is_published: bool) -> StoreReply<'static> {
    StoreReply::Opened { file: 1, numbers: 2..3, schema: Schema::opaque(16), is_published }
}

fn replies() -> Vec<StoreReply<'static>> {
    let listed =
        |name: &str| FileListing { name: name.into(), schema: Schema::opaque(9), records: 3 };
    vec![
        StoreReply::Hello { version: VERSION, requests_max: 4 },
        opened(false),
        opened(true),
        StoreReply::Followed { file: 1, numbers: 0..9, node: 2 },
        StoreReply::Appended { first: 8 },
        StoreReply::Records { bytes: b"records" },
        StoreReply::Numbers { numbers: 3..9 },
        StoreReply::Listed { files: vec![listed("a"), listed("b")] },
        StoreReply::Failed { is_retryable: true, what: "später" },
        StoreReply::Pushed { first: u64::MAX, bytes: b"records" },
        StoreReply::Ended { why: SubscriptionEnd::Asked, next: 9, kept: 0 },
        StoreReply::Ended { why: SubscriptionEnd::ServerStopping, next: 9, kept: u64::MAX },
    ]
}

/// Decodes any bytes, which must not panic. Returns whether they are a frame.
fn decode(bytes: &[u8]) -> bool {
    let Ok(Some((header, body))) = frame(bytes) else { return false };
    StoreRequest::decode(&header, body).is_ok() | StoreReply::decode(&header, body).is_ok()
}

#[test]
fn every_frame_is_read_as_it_was_written() {
    for request in requests() {
        let mut bytes = Vec::new();
        request.encode(11, &mut bytes);
        let (header, body) = frame(&bytes).unwrap().unwrap();
        assert_eq!((header.request, header.cost()), (11, bytes.len() as u64));
        assert_eq!(StoreRequest::decode(&header, body), Ok(request));
    }
    for reply in replies() {
        let mut bytes = Vec::new();
        reply.encode(12, 500, &mut bytes);
        let (header, body) = frame(&bytes).unwrap().unwrap();
        assert_eq!((header.request, header.extra), (12, 500));
        assert_eq!(StoreReply::decode(&header, body), Ok(reply));
    }
}

#[test]
fn a_read_says_how_new_its_records_have_to_be_and_nothing_else_does() {
    for request in requests() {
        for freshness in Freshness::ALL {
            let mut bytes = Vec::new();
            request.encode_fresh(11, freshness, &mut bytes);
            let (header, body) = frame(&bytes).unwrap().unwrap();
            assert_eq!(StoreRequest::decode(&header, body), Ok(request.clone()));
            if request.is_read() {
                assert_eq!(header.read_freshness(), freshness);
            }
        }
        let mut bytes = Vec::new();
        request.encode(11, &mut bytes);
        bytes[13] = 7;
        let (header, body) = frame(&bytes).unwrap().unwrap();
        assert!(StoreRequest::decode(&header, body).is_err(), "{request:?}");
    }
}

#[test]
fn cut_flipped_and_random_bytes_are_a_frame_or_malformed() {
    let mut rng = Prng::new(4);
    let mut frames: Vec<Vec<u8>> = Vec::new();
    for request in requests() {
        frames.push(Vec::new());
        request.encode(1, frames.last_mut().unwrap());
    }
    for reply in replies() {
        frames.push(Vec::new());
        reply.encode(1, 1, frames.last_mut().unwrap());
    }
    for bytes in &frames {
        for len in 0..bytes.len() {
            assert_eq!(frame(&bytes[..len]), Ok(None), "a frame that is cut is not whole");
            // The sender has cut this frame: its length fits, and its body does not.
            let mut cut = bytes[..len.max(HEADER_BYTES)].to_vec();
            let length = (cut.len() - HEADER_BYTES) as u32;
            cut[..4].copy_from_slice(&length.to_le_bytes());
            decode(&cut);
        }
        for _ in 0..2_000 {
            let mut flipped = bytes.clone();
            let at = rng.below(flipped.len() as u64) as usize;
            flipped[at] ^= 1 << rng.below(8);
            decode(&flipped);
        }
    }
    for _ in 0..50_000 {
        let len = rng.below(64) as usize;
        let mut random: Vec<u8> = (0..len + HEADER_BYTES).map(|_| rng.below(256) as u8).collect();
        decode(&random);
        random[..4].copy_from_slice(&(len as u32).to_le_bytes());
        random[12] = [1, 128][rng.below(2) as usize] + rng.below(17) as u8;
        random[13..16].fill(0);
        decode(&random);
    }
}

#[test]
fn a_body_over_the_limit_is_malformed_before_it_arrives() {
    let mut head = [0; HEADER_BYTES];
    head[..4].copy_from_slice(&(BODY_BYTES_MAX as u32 + 1).to_le_bytes());
    assert_eq!(frame(&head), Err(MalformedFrame("a body over the limit")));
}

#[test]
fn a_wait_for_files_over_the_limit_is_malformed() {
    for (files, is_taken) in [(WAIT_FILES_MAX, true), (WAIT_FILES_MAX + 1, false)] {
        let mut bytes = Vec::new();
        let ends = (0..files).map(|n| known(&n.to_string(), 0)).collect();
        StoreRequest::Wait { time_ms: 1, ends }.encode(1, &mut bytes);
        let (header, body) = frame(&bytes).unwrap().unwrap();
        assert_eq!(StoreRequest::decode(&header, body).is_ok(), is_taken);
    }
}

#[test]
fn a_wait_fits_by_the_number_of_its_files_and_by_the_bytes_of_its_frame() {
    let named = |len: usize, files: usize| vec![known(&"n".repeat(len), 0); files];
    assert!(fits_wait(&[]) && fits_wait(&named(246, WAIT_FILES_MAX - 1)));
    assert!(!fits_wait(&named(1, WAIT_FILES_MAX + 1)));
    for files in 1_010..1_020 {
        let ends = named(NAME_BYTES_MAX, files);
        let (fits, mut bytes) = (fits_wait(&ends), Vec::new());
        StoreRequest::Wait { time_ms: 1, ends }.encode(1, &mut bytes);
        assert_eq!(fits, bytes.len() <= HEADER_BYTES + BODY_BYTES_MAX, "{files}");
    }
}

#[test]
fn reasons_keep_their_numbers() {
    let numbers = SubscriptionEnd::ALL.map(|why| why as u8);
    assert_eq!(numbers, [0, 1, 2, 3, 4]);
}
