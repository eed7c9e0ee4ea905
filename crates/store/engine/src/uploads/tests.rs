use super::*;

#[test]
fn a_chunk_counts_once_all_before_it_are_uploaded() {
    let mut uploaded = UploadedChunks::new(2);
    assert!(uploaded.has_chunk(1) && !uploaded.has_chunk(2));
    assert_eq!(uploaded.add_chunk(4), 2..2);
    assert!(uploaded.has_chunk(4) && !uploaded.has_chunk(3));
    assert_eq!(uploaded.add_chunk(2), 2..3);
    assert_eq!(uploaded.add_chunk(3), 3..5);
    assert_eq!(uploaded.add_chunk(1), 5..5);
    assert_eq!(uploaded.first_missing, 5);
}

#[test]
fn the_oldest_chunks_are_taken_and_a_failed_one_goes_to_the_end() {
    let uploads = Uploads::default();
    let chunk = |number| DataChunk { file: FileId(1), number };
    (0..10).for_each(|number| uploads.is_due(chunk(number)));
    let taken = uploads.take_due(AT_ONCE, &|| false);
    assert_eq!(taken, (0..8).map(chunk).collect::<Vec<_>>());
    assert_eq!(uploads.waiting(), 10, "they wait until they are uploaded");
    assert_eq!(uploads.end_uploads(vec![chunk(3)]), 1);
    assert_eq!(uploads.waiting(), 3);
    assert_eq!(uploads.take_due(AT_ONCE, &|| false), [chunk(8), chunk(9), chunk(3)]);
}

#[test]
fn a_limit_spreads_uploads_over_time() {
    let mebibyte = 1u64 << 20;
    let mut pace = UploadPace::new(Some(6 * mebibyte));
    assert_eq!(pace.at_once(), 1);
    assert_eq!(pace.wait(Duration::ZERO), Duration::ZERO);
    pace.count_bytes(Duration::from_secs(1), 3 * mebibyte);
    assert_eq!(pace.wait(Duration::from_secs(1)), Duration::from_millis(500));
    pace.count_bytes(Duration::from_secs(1), 3 * mebibyte);
    assert_eq!(pace.wait(Duration::from_secs(1)), Duration::from_secs(1));
    // Time without uploads is not saved up.
    pace.count_bytes(Duration::from_secs(100), 6 * mebibyte);
    assert_eq!(pace.wait(Duration::from_secs(100)), Duration::from_secs(1));
    assert_eq!(UploadPace::new(Some(u64::MAX)).at_once(), AT_ONCE);
    let mut unlimited = UploadPace::new(None);
    unlimited.count_bytes(Duration::ZERO, u64::MAX);
    assert_eq!((unlimited.wait(Duration::ZERO), unlimited.at_once()), (Duration::ZERO, AT_ONCE));
}
