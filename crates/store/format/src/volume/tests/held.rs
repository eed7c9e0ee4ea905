//! Rows that are held in memory until their chunk is whole.

use super::*;

/// Rows of a segment, and of a chunk.
const SEGMENT: u64 = 1_022;
const CHUNK: u64 = SEGMENT * 256;

fn config(held_chunks_max: usize, journal_bytes_max: u64, journals: u64) -> VolumeConfig {
    let recovery_bytes_max = journals * journal_bytes_max;
    VolumeConfig { node: 1, journal_bytes_max, recovery_bytes_max, held_chunks_max, secret: 5 }
}

fn open(config: &VolumeConfig) -> Volume<Plain> {
    Volume::open(Plain::default(), config.clone()).unwrap().0
}

fn file(volume: &mut Volume<Plain>, number: u64) -> Appender {
    volume.register(origin(number));
    Appender::new(FileId(number), 1, Arc::new(Schema::opaque(16))).unwrap()
}

/// Appends rows, commits them, and holds the segments that they fill. Gives the chunks that are
/// whole then.
fn take(volume: &mut Volume<Plain>, appender: &mut Appender, count: u64) -> Vec<DataChunk> {
    let first = appender.records();
    let batch = records(first as i64..(first + count) as i64);
    let mut sealed = Vec::new();
    appender.append(&batch, &mut sealed).unwrap();
    let mut commit = JournalBatch::default();
    commit.push_records(origin(appender.file().0), first, &batch);
    volume.commit(&mut commit).unwrap();
    sealed.into_iter().filter_map(|one| volume.hold_segment(one).unwrap()).collect()
}

/// What the encoder does with a held chunk. On this disk without columns, the raw chunk stands for
/// them.
fn encode(volume: &mut Volume<Plain>, chunk: DataChunk) {
    let segments = volume.held_chunk(chunk).expect("a whole chunk");
    volume.disk.write(&chunk.raw_name(), 0, &segments.concat()).unwrap();
    assert!(volume.seal_chunk(chunk, 1_000).unwrap());
}

/// A checkpoint, after which the appenders let go of what is synced.
fn checkpoint(volume: &mut Volume<Plain>, appenders: &mut [&mut Appender]) {
    let flushed = {
        let of = |file: FileId| appenders.iter().position(|one| one.file() == file);
        volume.checkpoint(&mut |file, first| appenders[of(file)?].records_from(first)).unwrap()
    };
    for sealed in flushed.into_iter().filter(|sealed| sealed.kind == SegmentKind::Data) {
        let of = appenders.iter_mut().find(|one| one.file() == sealed.file);
        of.expect("a file").release(sealed.number);
    }
}

/// The rows of a file after a crash in this state.
fn recovered(volume: &Volume<Plain>, number: u64) -> Vec<u8> {
    let copy = volume.disk.copy();
    let (volume, found) = Volume::open(copy, VolumeConfig::default()).unwrap();
    assert!(found.losses.is_empty(), "{:?}", found.losses);
    let Some(file) = found.files.get(&FileId(number)) else { return Vec::new() };
    let mut rows = Vec::new();
    for segment in 0..(file.records / SEGMENT) as u32 {
        let bytes =
            volume.read(SegmentKind::Data, FileId(number), segment).unwrap().expect("a segment");
        rows.extend_from_slice(&bytes[SEGMENT_HEADER_BYTES..][..SEGMENT as usize * 16]);
    }
    rows.extend_from_slice(&file.tail.bytes);
    rows
}

fn raw_chunks(volume: &Volume<Plain>) -> usize {
    let names = volume.disk.list().unwrap().into_iter().map(|(name, _)| name);
    names.filter(|name| matches!(parse_chunk_name(name), Some((SegmentKind::Data, ..)))).count()
}

/// Bytes of the journals that are no spares.
fn journal_bytes(volume: &Volume<Plain>) -> u64 {
    let old: u64 = volume.old.iter().map(|old| old.bytes).sum();
    old + volume.offset
}

fn held_bytes(volume: &Volume<Plain>) -> u64 {
    volume.held_bytes().load(Relaxed)
}

#[test]
fn a_chunk_is_written_once_and_its_rows_are_there_after_a_crash_at_any_step() {
    let mut volume = open(&config(2, 1 << 20, 64));
    let mut one = file(&mut volume, 1);
    let whole = take(&mut volume, &mut one, 300_000);
    let chunk = DataChunk { file: FileId(1), number: 0 };
    let rows = records(0..300_000);
    assert_eq!((whole, raw_chunks(&volume)), (vec![chunk], 0));
    assert_eq!(held_bytes(&volume), 293 << 14);
    assert!(recovered(&volume, 1) == rows);
    checkpoint(&mut volume, &mut [&mut one]);
    assert_eq!((raw_chunks(&volume), volume.synced(FileId(1))), (0, 0));
    assert!(recovered(&volume, 1) == rows, "the journal stays");
    encode(&mut volume, chunk);
    assert!(recovered(&volume, 1) == rows);
    assert_eq!((volume.synced(FileId(1)), volume.unsynced()), (0, 256));
    checkpoint(&mut volume, &mut [&mut one]);
    assert_eq!((volume.synced(FileId(1)), volume.unsynced()), (CHUNK, 0));
    assert_eq!((held_bytes(&volume), one.unsynced()), (37 << 14, 37));
    assert!(recovered(&volume, 1) == rows);
    let tail = one.records_from(CHUNK).unwrap().bytes;
    volume.close(&mut |_, _| Some(tail.slice(37 * SEGMENT as usize * 16..).into())).unwrap();
    assert_eq!((held_bytes(&volume), journals(&volume).len()), (0, 1));
    assert!(recovered(&volume, 1) == rows);
}

#[test]
fn a_journal_goes_when_its_rows_are_sealed_and_not_before() {
    let mut volume = open(&config(2, 1 << 20, 64));
    let mut one = file(&mut volume, 1);
    let mut whole = Vec::new();
    while one.records() < CHUNK {
        whole.extend(take(&mut volume, &mut one, 50_000));
        if volume.is_checkpoint_due() {
            checkpoint(&mut volume, &mut [&mut one]);
        }
    }
    let old = volume.old.len();
    assert!(old > 2, "{old} journals wait for the chunk");
    let rows = records(0..one.records() as i64);
    // The fault that this design must not have.
    let without = volume.disk.copy();
    without.remove(&journal_name(volume.old[0].slot)).unwrap();
    let (_, found) = Volume::open(without, VolumeConfig::default()).unwrap();
    assert!(!found.files[&FileId(1)].partial.is_empty(), "its rows are nowhere else");
    encode(&mut volume, whole[0]);
    checkpoint(&mut volume, &mut [&mut one]);
    assert!(volume.old.len() < old, "{} of {old}", volume.old.len());
    assert!(recovered(&volume, 1) == rows);
}

#[test]
fn journals_beyond_their_limit_go_and_what_they_hold_is_spilled_first() {
    let config = config(8, 200_000, 4);
    let mut volume = open(&config);
    let [mut slow, mut fast] = [1, 2].map(|number| file(&mut volume, number));
    for turn in 0..60_u64 {
        // The slow file fills no segment for a while, and its rows are carried over.
        take(&mut volume, &mut slow, 40);
        take(&mut volume, &mut fast, 3_000);
        if volume.is_checkpoint_due() {
            checkpoint(&mut volume, &mut [&mut slow, &mut fast]);
        }
        // A journal may exceed its length by a commit, and one waits for the next look.
        let bytes = journal_bytes(&volume);
        assert!(bytes <= config.recovery_bytes_max + 3 * 50_000, "{bytes} in turn {turn}");
        if turn % 7 == 0 {
            let (rows, of) = (recovered(&volume, 1), slow.records() as i64);
            assert!(rows == records(0..of), "the slow file in turn {turn}");
        }
    }
    assert!(recovered(&volume, 1) == records(0..slow.records() as i64));
    assert!(recovered(&volume, 2) == records(0..fast.records() as i64));
    assert!(raw_chunks(&volume) > 0 && volume.synced(FileId(2)) > 0);
}

#[test]
fn a_file_that_fills_no_chunk_in_time_passes_over_the_next() {
    let mut volume = open(&config(8, 200_000, 4));
    let mut one = file(&mut volume, 1);
    let mut held_of = [0; 3];
    while one.records() < 2 * CHUNK + 10_000 {
        take(&mut volume, &mut one, 3_000);
        if let Some(of) = volume.held.keys().next() {
            held_of[of.number as usize] += 1;
        }
        if volume.is_checkpoint_due() {
            checkpoint(&mut volume, &mut [&mut one]);
        }
    }
    assert!(held_of[0] > 0 && held_of[1] == 0 && held_of[2] > 0, "{held_of:?}");
    assert!(recovered(&volume, 1) == records(0..one.records() as i64));
}

#[test]
fn many_files_hold_no_more_than_a_few() {
    let mut volume = open(&config(4, 64 << 20, 4));
    let mut appenders: Vec<Appender> = (1..=300).map(|n| file(&mut volume, n)).collect();
    for _ in 0..3 {
        for one in &mut appenders {
            take(&mut volume, one, SEGMENT);
            assert!(held_bytes(&volume) <= 4 * CHUNK_BYTES as u64);
        }
        for sealed in
            volume.flush().unwrap().into_iter().filter(|one| one.kind == SegmentKind::Data)
        {
            appenders[sealed.file.0 as usize - 1].release(sealed.number);
        }
    }
    assert_eq!(volume.held_files().count(), 4);
    let in_memory: usize = appenders.iter().map(Appender::unsynced).sum();
    assert_eq!(in_memory as u64, held_bytes(&volume) >> 14, "all others are on the disk");
    assert!(recovered(&volume, 1) == records(0..3 * SEGMENT as i64));
    assert!(recovered(&volume, 300) == records(0..3 * SEGMENT as i64));
}

#[test]
fn a_file_whose_chunk_waits_for_the_encoder_spills_it_to_hold_the_next() {
    let mut volume = open(&config(1, 64 << 20, 4));
    let mut one = file(&mut volume, 1);
    let whole = take(&mut volume, &mut one, CHUNK + 5 * SEGMENT);
    assert_eq!((whole.len(), raw_chunks(&volume)), (1, 1));
    assert_eq!(volume.held_chunk(whole[0]), None);
    assert!(!volume.seal_chunk(whole[0], 1_000).unwrap(), "it is raw by now");
    assert_eq!(held_bytes(&volume), 5 << 14);
    // Nothing behind the spilled chunk counts as written.
    volume.flush().unwrap();
    assert_eq!(volume.synced(FileId(1)), CHUNK);
    assert!(recovered(&volume, 1) == records(0..one.records() as i64));
}

#[test]
fn a_chunk_with_a_raw_beginning_stays_raw_after_a_crash() {
    let first = config(2, 64 << 20, 4);
    let mut volume = open(&first);
    let mut one = file(&mut volume, 1);
    take(&mut volume, &mut one, 10 * SEGMENT);
    let (mut volume, found) = Volume::open(volume.disk, first).unwrap();
    assert_eq!((found.files[&FileId(1)].records, raw_chunks(&volume)), (10 * SEGMENT, 1));
    let whole = take(&mut volume, &mut one, 2 * CHUNK);
    // The chunk of the crash is raw, and the next one is held again.
    assert_eq!(whole, [DataChunk { file: FileId(1), number: 1 }]);
    assert_eq!(held_bytes(&volume), 266 << 14);
    assert!(recovered(&volume, 1) == records(0..one.records() as i64));
}

#[test]
fn a_deleted_file_leaves_nothing_that_was_held() {
    let mut volume = open(&config(4, 64 << 20, 4));
    let [mut one, mut two] = [1, 2].map(|number| file(&mut volume, number));
    let whole = take(&mut volume, &mut one, CHUNK + SEGMENT);
    take(&mut volume, &mut two, SEGMENT);
    encode(&mut volume, whole[0]);
    assert_eq!(volume.segments_in_memory(FileId(1)), 257);
    volume.delete(FileId(1)).unwrap();
    assert_eq!((volume.segments_in_memory(FileId(1)), held_bytes(&volume)), (0, 1 << 14));
    assert!(volume.flush().unwrap().is_empty());
    assert!(recovered(&volume, 1).is_empty());
    assert!(recovered(&volume, 2) == records(0..SEGMENT as i64));
}

#[test]
fn the_next_commit_states_what_was_sealed() {
    let mut volume = open(&config(2, 64 << 20, 4));
    let [mut one, mut two] = [1, 2].map(|number| file(&mut volume, number));
    let whole = take(&mut volume, &mut one, CHUNK);
    encode(&mut volume, whole[0]);
    volume.flush().unwrap();
    take(&mut volume, &mut two, 1);
    // Recovery looks behind the chunk, so that damage of the chunk does not concern it.
    volume.disk.0.borrow_mut().get_mut(&whole[0].raw_name()).unwrap()[5_000] ^= 1;
    let (_, found) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
    assert!(found.losses.is_empty(), "{:?}", found.losses);
    assert_eq!(found.files[&FileId(1)].records, CHUNK);
}

#[test]
fn a_disk_that_runs_low_holds_nothing_new_and_spills_what_it_holds() {
    let mut volume = open(&config(4, 64 << 20, 4));
    let [mut one, mut two] = [1, 2].map(|number| file(&mut volume, number));
    take(&mut volume, &mut one, 3 * SEGMENT);
    volume.set_low(true).unwrap();
    take(&mut volume, &mut two, 3 * SEGMENT);
    assert_eq!(held_bytes(&volume), 3 << 14);
    checkpoint(&mut volume, &mut [&mut one, &mut two]);
    assert_eq!((held_bytes(&volume), raw_chunks(&volume)), (0, 2));
    for number in [1, 2] {
        assert!(recovered(&volume, number) == records(0..3 * SEGMENT as i64));
    }
}
