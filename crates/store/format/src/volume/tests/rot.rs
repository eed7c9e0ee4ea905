//! Journals that rot: what a flipped bit costs, and what stays readable behind it.

use core::ops::Range;
use std::collections::BTreeSet;

use super::*;
use crate::layout::record_time;
use crate::reader::{FileEndSnapshot, Segments, SnapshotReader, resume};

/// Commits of two files in turn.
const COMMITS: i64 = 8;
/// Records of each commit.
const RECORDS: i64 = 5;

/// Bytes of each commit in the journal, and the disk.
fn journal_of_two_files() -> (Vec<Range<u64>>, Plain) {
    let (mut volume, _) = Volume::open(Plain::default(), VolumeConfig::default()).unwrap();
    let mut places = Vec::new();
    for commit in 0..COMMITS {
        let first = commit / 2 * RECORDS;
        let mut batch = JournalBatch::default();
        let origin = origin(1 + commit as u64 % 2);
        batch.push_records(origin, first as u64, &records(first..first + RECORDS));
        let start = volume.offset.max(journal::HEADER_BYTES as u64);
        volume.commit(&mut batch).unwrap();
        places.push(start..volume.offset);
    }
    (places, volume.disk)
}

fn flip_journal(disk: &Plain, slot: u64, at: u64) {
    disk.0.borrow_mut().get_mut(&journal_name(slot)).unwrap()[at as usize] ^= 1;
}

/// The times of a recovered file's records, which are their numbers. The file fills no segment.
fn times(found: &Recovered, file: u64) -> BTreeSet<i64> {
    let Some(file) = found.files.get(&FileId(file)) else { return BTreeSet::new() };
    let tail = &file.tail;
    assert_eq!(tail.bytes.len() as u64, file.records * 16);
    let time = |slot: usize| {
        let time = record_time(&tail.bytes[slot * 16..]);
        assert_eq!(time, slot as i64);
        time
    };
    tail.held_ranges(16).flatten().map(time).collect()
}

#[test]
fn a_flipped_byte_of_a_journal_costs_the_records_of_one_commit() {
    let (places, disk) = journal_of_two_files();
    let end = places.last().unwrap().end;
    for at in 0..end {
        let disk = disk.copy();
        flip_journal(&disk, 0, at);
        let (_, found) = Volume::open(disk, VolumeConfig::default()).unwrap();
        for file in [1, 2] {
            let is_kept = |commit: &i64| !places[*commit as usize].contains(&at);
            let commits = (0..COMMITS).filter(|commit| commit % 2 + 1 == file).filter(is_kept);
            let numbers = |commit: i64| commit / 2 * RECORDS..(commit / 2 + 1) * RECORDS;
            let expected: BTreeSet<i64> = commits.flat_map(numbers).collect();
            assert_eq!(times(&found, file as u64), expected, "byte {at}, file {file}");
        }
        let is_last = places.last().unwrap().contains(&at);
        assert_eq!(found.losses.iter().any(|loss| !loss.is_torn_end), !is_last, "byte {at}");
    }
}

#[test]
fn a_gap_is_told_once_with_what_is_lost_and_stays_told_by_verify() {
    let (places, disk) = journal_of_two_files();
    flip_journal(&disk, 0, places[2].start + 70);
    let (volume, found) = Volume::open(disk, VolumeConfig::default()).unwrap();
    let said: Vec<String> = found.losses.iter().map(ToString::to_string).collect();
    let [journal, file] = &said[..] else { panic!("{said:?}") };
    assert!(journal.contains("1 commit is lost, and 5 whole commits behind"), "{journal}");
    assert!(file.starts_with("damage: file 0000000000000001: records 5 to 9 are lost"), "{file}");
    assert!(file.ends_with("all behind them are kept: records 10 to 19"), "{file}");
    let five_to_nine: Vec<_> = core::iter::once(5..10).collect();
    assert_eq!(found.files[&FileId(1)].lost, five_to_nine);
    let (aside, bytes) = {
        let files = volume.disk.0.borrow();
        let kept = files.iter().find(|(name, _)| name.starts_with("DAMAGED-J-"));
        kept.map(|(name, bytes)| (name.clone(), bytes.len() as u64)).unwrap()
    };
    assert_eq!(bytes, places[2].end - places[2].start);
    let (volume, again) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
    assert!(again.losses.is_empty(), "{:?}", again.losses);
    assert_eq!(times(&again, 1), times(&found, 1));
    let seen = verify(&volume.disk).unwrap();
    let [finding] = &seen.findings[..] else { panic!("{:?}", seen.findings) };
    assert!(finding.what.starts_with("records 5 to 9 of file"), "{finding:?}");
    assert!(!finding.is_torn_end && seen.others.contains(&aside), "{seen:?}");
}

/// Fills a journal with zeros up to this byte.
fn wipe_journal(disk: &Plain, slot: u64, end: u64) {
    disk.0.borrow_mut().get_mut(&journal_name(slot)).unwrap()[..end as usize].fill(0);
}

#[test]
fn a_journal_without_a_header_costs_no_record_and_the_loss_of_commits_behind_it_is_told() {
    let (places, disk) = journal_of_two_files();
    let headless = disk.copy();
    wipe_journal(&headless, 0, journal::HEADER_BYTES as u64);
    let (_, found) = Volume::open(headless, VolumeConfig::default()).unwrap();
    for file in [1, 2] {
        assert_eq!(times(&found, file), (0..20).collect(), "{file}");
    }
    let [loss] = &found.losses[..] else { panic!("{:?}", found.losses) };
    let said = "neither copy of the header is whole): no commit is lost, and 8 whole commits";
    assert!(!loss.is_torn_end && loss.what.contains(said), "{loss}");
    wipe_journal(&disk, 0, places[1].end);
    let (_, found) = Volume::open(disk, VolumeConfig::default()).unwrap();
    for file in [1, 2] {
        assert_eq!(times(&found, file), (5..20).collect(), "{file}");
    }
    let said: Vec<String> = found.losses.iter().map(ToString::to_string).collect();
    let of_files = said.iter().filter(|loss| loss.contains("records 0 to 4 are lost"));
    assert_eq!((said.len(), of_files.count()), (4, 2), "{said:?}");
}

#[test]
fn a_journal_without_a_header_is_read_in_its_turn() {
    let (mut volume, _) = Volume::open(Plain::default(), VolumeConfig::default()).unwrap();
    for number in 0..6 {
        if number == 2 || number == 4 {
            volume.retire(false);
        }
        let mut batch = JournalBatch::default();
        let origin = Origin { token: 1 + number as u32, ..origin(1) };
        batch.push_records(origin, 10 * number as u64, &records(10 * number..10 * number + 10));
        volume.commit(&mut batch).unwrap();
    }
    // The last journal is in the file that had the first one, as a spare that is used again.
    {
        let mut files = volume.disk.0.borrow_mut();
        let last = files.remove(&journal_name(2)).unwrap();
        let first = files.insert(journal_name(0), last).unwrap();
        files.insert(journal_name(2), first);
    }
    wipe_journal(&volume.disk, 0, journal::HEADER_BYTES as u64);
    let (_, found) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
    assert_eq!(found.files[&FileId(1)].origin.token, 6);
    assert_eq!(times(&found, 1), (0..60).collect());
    assert_eq!(found.losses.len(), 1, "{:?}", found.losses);
}

struct OnVolume<'a>(&'a Volume<Plain>);

impl Segments for OnVolume<'_> {
    fn segment(&mut self, kind: SegmentKind, file: FileId, number: u32) -> Result<Bytes> {
        let found = self.0.read(kind, file, number)?;
        found.ok_or_else(|| Error::damaged(format!("{kind:?} {number}"), "not there"))
    }
}

/// The appender with which a recovered file goes on.
fn go_on(volume: &Volume<Plain>, found: &Recovered, token: u32) -> Appender {
    let (file, schema) = (&found.files[&FileId(1)], Arc::new(Schema::opaque(16)));
    let (tail, mut rebuilt) = (file.tail.clone(), Vec::new());
    let mut segments = OnVolume(volume);
    let start =
        resume(FileId(1), token, &schema, file.records, tail, &mut segments, &mut rebuilt).unwrap();
    Appender::resume(FileId(1), token, schema, start).unwrap()
}

/// The numbers of all records that can be read one by one, whose times are their numbers.
fn readable(volume: &Volume<Plain>, appender: &Appender) -> Vec<u64> {
    let at = FileEndSnapshot::of(appender, 0);
    let mut segments = OnVolume(volume);
    let mut reader = SnapshotReader::new(&at, &mut segments);
    let mut is_read = |number: &u64| match reader.record(*number) {
        Ok(record) => {
            assert_eq!(record_time(&record), *number as i64);
            true
        }
        Err(Error::Damaged { .. }) => false,
        Err(error) => panic!("{error}"),
    };
    (0..at.records).filter(&mut is_read).collect()
}

fn checkpoint(volume: &mut Volume<Plain>, appender: &Appender) {
    volume.checkpoint(&mut |_, first| appender.records_from(first)).unwrap();
}

#[test]
fn a_file_goes_on_behind_lost_records_through_segments_and_more_crashes() {
    let (places, disk) = journal_of_two_files();
    flip_journal(&disk, 0, places[2].start + 70);
    let (mut volume, found) = Volume::open(disk, VolumeConfig::default()).unwrap();
    let mut appender = go_on(&volume, &found, 2);
    let mut expected: Vec<u64> = (0..20).filter(|number| !(5..10).contains(number)).collect();
    assert_eq!(readable(&volume, &appender), expected);
    for (life, end) in [(3, 600), (4, 1_500), (5, 3_000)] {
        let first = appender.records();
        let (batch, mut sealed) = (records(first as i64..end), Vec::new());
        appender.append(&batch, &mut sealed).unwrap();
        let mut commit = JournalBatch::default();
        commit.push_records(Origin { token: life - 1, ..origin(1) }, first, &batch);
        volume.commit(&mut commit).unwrap();
        expected.extend(first..end as u64);
        for sealed in sealed {
            volume.write(sealed).unwrap();
        }
        if life > 3 {
            checkpoint(&mut volume, &appender);
        }
        let (again, found) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
        volume = again;
        assert!(found.losses.is_empty(), "life {life}: {:?}", found.losses);
        appender = go_on(&volume, &found, life);
        assert_eq!(readable(&volume, &appender), expected, "life {life}");
    }
    let at = FileEndSnapshot::of(&appender, 0);
    let mut segments = OnVolume(&volume);
    let mut reader = SnapshotReader::new(&at, &mut segments);
    // By time: around the lost records, and over them.
    assert_eq!(reader.between(12, 2_500), Ok(12..2_501));
    assert_eq!(reader.latest_at(3), Ok(3));
    assert_eq!(reader.latest_at(7), Ok(4));
    let mut count = 0;
    let mut each = |part: Bytes| -> Result<()> {
        count += part.len() / 16;
        Ok(())
    };
    reader.records(10..3_000, &mut each).unwrap();
    let error = reader.records(0..3_000, &mut each).unwrap_err().to_string();
    assert!(error.contains("records 5 to 9 are lost"), "{error}");
    assert_eq!(count, 2_990 + 5);
    assert!(reader.summary(0..3_000, &Schema::opaque(16)).is_err());
    assert!(reader.summary(1_022..3_000, &Schema::opaque(16)).is_ok());
}

#[test]
fn a_gap_over_several_segments_leaves_their_other_records() {
    let (mut volume, _) = Volume::open(Plain::default(), VolumeConfig::default()).unwrap();
    let mut places = Vec::new();
    for (first, end) in [(0, 500), (500, 2_500), (2_500, 2_600), (2_600, 2_700)] {
        let mut batch = JournalBatch::default();
        batch.push_records(origin(1), first as u64, &records(first..end));
        places.push(volume.offset);
        volume.commit(&mut batch).unwrap();
    }
    flip_journal(&volume.disk, 0, places[1] + 20_000);
    let (volume, found) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
    let partial = [(0, 500), (1, 0)].map(|(number, kept)| PartialSegment { number, kept });
    assert_eq!(found.files[&FileId(1)].partial, partial);
    let expected: Vec<u64> = (0..500).chain(2_500..2_700).collect();
    assert_eq!(readable(&volume, &go_on(&volume, &found, 2)), expected);
}

#[test]
fn records_whose_predecessors_are_nowhere_keep_their_numbers_and_cost_no_room() {
    let layout = Layout::new(16).unwrap();
    let first = layout.first_record(1_000_000) + 1_100;
    let (mut volume, _) = Volume::open(Plain::default(), VolumeConfig::default()).unwrap();
    let mut batch = JournalBatch::default();
    batch.push_records(origin(1), first, &records(0..22));
    volume.commit(&mut batch).unwrap();
    let (volume, found) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
    let file = &found.files[&FileId(1)];
    assert_eq!(file.records, first + 22);
    let lost: Vec<_> = core::iter::once(0..first).collect();
    assert_eq!((&file.lost, file.tail.lost.len()), (&lost, 1));
    assert_eq!(file.tail.bytes[file.tail.bytes.len() - 22 * 16..], records(0..22)[..]);
    assert!(volume.disk.used() < 2 * CHUNK_BYTES, "{}", volume.disk.used());
}

#[test]
fn the_lost_end_of_a_journal_is_damage_when_the_next_journal_goes_on() {
    let (mut volume, _) = Volume::open(Plain::default(), VolumeConfig::default()).unwrap();
    let mut place = 0;
    for number in 0..3 {
        if number == 2 {
            volume.retire(false);
        }
        let first = number * 10;
        let mut batch = JournalBatch::default();
        batch.push_records(origin(1), first as u64, &records(first..first + 10));
        place = if number == 1 { volume.offset } else { place };
        volume.commit(&mut batch).unwrap();
    }
    let whole = Volume::open(volume.disk.copy(), VolumeConfig::default()).unwrap().1;
    assert!(whole.losses.is_empty(), "{:?}", whole.losses);
    flip_journal(&volume.disk, 0, place + 50);
    let (_, found) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
    assert_eq!(times(&found, 1), (0..10).chain(20..30).collect());
    let is_told = |loss: &DiskLoss| !loss.is_torn_end && loss.what.contains("its last 1 commits");
    assert!(found.losses.iter().any(is_told), "{:?}", found.losses);
}
