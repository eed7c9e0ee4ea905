mod held;
mod rot;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use evenfall_core::StorageError;

use super::*;
use crate::appender::Appender;
use crate::layout::{SEGMENT_HEADER_BYTES, parse_chunk_name};
use crate::schema::Schema;

/// A disk whose bytes and room the test chooses, and which counts the bytes that are read.
#[derive(Debug)]
struct Plain(RefCell<BTreeMap<String, Vec<u8>>>, Cell<usize>, Cell<usize>);

impl Default for Plain {
    fn default() -> Self {
        Self(RefCell::default(), Cell::new(usize::MAX), Cell::default())
    }
}

impl Plain {
    fn copy(&self) -> Self {
        Self(self.0.clone(), self.1.clone(), Cell::default())
    }

    fn used(&self) -> usize {
        self.0.borrow().values().map(Vec::len).sum()
    }

    /// Leaves room for this many more bytes.
    fn fill(&self, left: usize) {
        self.1.set(self.used() + left);
    }
}

impl Disk for Plain {
    fn write(&self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        let end = offset as usize + bytes.len();
        let there = self.0.borrow().get(name).map_or(0, Vec::len);
        if end > there && self.used() + (end - there) > self.1.get() {
            return Err(StorageError::Full { name: name.into() });
        }
        let mut files = self.0.borrow_mut();
        let file = files.entry(name.into()).or_default();
        file.resize(file.len().max(end), 0);
        file[offset as usize..end].copy_from_slice(bytes);
        Ok(())
    }
    fn sync(&self, _: &str) -> Result<(), StorageError> {
        Ok(())
    }
    fn sync_all(&self) -> Result<(), StorageError> {
        Ok(())
    }
    fn read(&self, name: &str, offset: u64, len: usize) -> Result<Bytes, StorageError> {
        let files = self.0.borrow();
        let file = files.get(name).map_or(&[][..], Vec::as_slice);
        let from = (offset as usize).min(file.len());
        let to = from.saturating_add(len).min(file.len());
        self.2.set(self.2.get() + (to - from));
        Ok(Bytes::copy_from_slice(&file[from..to]))
    }
    fn list(&self) -> Result<Vec<(String, u64)>, StorageError> {
        let files = self.0.borrow();
        Ok(files.iter().map(|(name, bytes)| (name.clone(), bytes.len() as u64)).collect())
    }
    fn remove(&self, name: &str) -> Result<(), StorageError> {
        self.0.borrow_mut().remove(name);
        Ok(())
    }
    fn rename(&self, from: &str, to: &str) -> Result<(), StorageError> {
        let bytes = self.0.borrow_mut().remove(from).unwrap_or_default();
        self.0.borrow_mut().insert(to.into(), bytes);
        Ok(())
    }
}

fn origin(file: u64) -> Origin {
    Origin { file: FileId(file), record_bytes: 16, token: 1 }
}

fn records(times: std::ops::Range<i64>) -> Vec<u8> {
    times.flat_map(|time| [time.to_le_bytes(), (!time).to_le_bytes()].concat()).collect()
}

fn filled(count: i64) -> (Volume<Plain>, Appender) {
    let (mut volume, found) = Volume::open(Plain::default(), VolumeConfig::default()).unwrap();
    assert!(found.files.is_empty() && found.losses.is_empty());
    volume.register(origin(1));
    let mut appender = Appender::new(FileId(1), 1, Arc::new(Schema::opaque(16))).unwrap();
    let mut sealed = Vec::new();
    let batch = records(0..count);
    appender.append(&batch, &mut sealed).unwrap();
    let mut commit = JournalBatch::default();
    commit.push_records(origin(1), 0, &batch);
    volume.commit(&mut commit).unwrap();
    for sealed in sealed {
        volume.write(sealed).unwrap();
    }
    (volume, appender)
}

/// Numbers of the journals, and whether each is a spare; in order of their files.
fn journals(volume: &Volume<Plain>) -> Vec<(u64, bool)> {
    let files = volume.disk.0.borrow();
    let journals = files.iter().filter(|(name, _)| name.starts_with('J'));
    let headers = journals.filter_map(|(name, bytes)| journal::parse_header(name, bytes).unwrap());
    headers.map(|header| (header.number, header.is_spare)).collect()
}

#[test]
fn a_checkpoint_leaves_one_journal_and_everything_readable() {
    let (mut volume, appender) = filled(3_000);
    let tail = Bytes::copy_from_slice(appender.tail());
    let flushed = volume.checkpoint(&mut |_, _| Some(tail.clone().into())).unwrap();
    assert_eq!(flushed.len(), 2);
    assert_eq!(volume.synced(FileId(1)), 2_044);
    assert_eq!(journals(&volume), [(0, true), (1, false)]);
    let (volume, found) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
    let file = &found.files[&FileId(1)];
    assert_eq!((file.records, &file.tail.bytes[..]), (3_000, appender.tail()));
    assert!(volume.read(SegmentKind::Data, FileId(1), 1).unwrap().is_some());
    assert!(volume.read(SegmentKind::Data, FileId(1), 2).unwrap().is_none());
}

#[test]
fn recovery_reads_no_more_of_a_spare_than_its_header() {
    let (mut volume, appender) = filled(3_000);
    let tail = Bytes::copy_from_slice(appender.tail());
    volume.checkpoint(&mut |_, _| Some(tail.clone().into())).unwrap();
    assert_eq!(journals(&volume), [(0, true), (1, false)]);
    let (volume, found) = Volume::open(volume.disk.copy(), VolumeConfig::default()).unwrap();
    assert_eq!(found.files[&FileId(1)].records, 3_000);
    // The spare has 48,000 bytes of records, and the journal those that fill no segment.
    let read = volume.disk.2.get();
    assert!(read < tail.len() + 1_000, "{read} bytes");
}

#[test]
fn an_opening_leaves_the_ends_of_files_in_their_journal_until_the_first_checkpoint() {
    let (volume, appender) = filled(700);
    let journal = volume.disk.read(&journal_name(0), 0, usize::MAX).unwrap();
    let tail = Bytes::copy_from_slice(appender.tail());
    let mut disk = volume.disk;
    for _ in 0..2 {
        let (volume, found) = Volume::open(disk, VolumeConfig::default()).unwrap();
        assert_eq!(found.files[&FileId(1)].tail.bytes, tail);
        assert_eq!(journals(&volume), [(0, false)]);
        assert_eq!(volume.disk.read(&journal_name(0), 0, usize::MAX).unwrap(), journal);
        assert!(volume.is_checkpoint_due());
        disk = volume.disk;
    }
    let (mut volume, _) = Volume::open(disk, VolumeConfig::default()).unwrap();
    let mut batch = JournalBatch::default();
    batch.push_records(origin(1), 700, &records(700..720));
    volume.commit(&mut batch).unwrap();
    let (_, found) = Volume::open(volume.disk.copy(), VolumeConfig::default()).unwrap();
    assert_eq!((found.files[&FileId(1)].records, found.losses.len()), (720, 0));
    let tail = Bytes::from(records(0..720));
    volume.checkpoint(&mut |_, _| Some(tail.clone().into())).unwrap();
    assert_eq!(journals(&volume).iter().filter(|(_, is_spare)| !is_spare).count(), 1);
    let (_, found) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
    assert_eq!(found.files[&FileId(1)].tail.bytes, tail);
}

#[test]
fn a_journal_that_took_over_much_is_not_many_times_as_long() {
    let (mut volume, _) = Volume::open(Plain::default(), VolumeConfig::default()).unwrap();
    // Ten thousand files whose open segments are half full.
    volume.base_bytes = 80 << 20;
    volume.offset = (80 << 20) + JOURNAL_BYTES_MAX;
    assert!(!volume.is_checkpoint_due());
    volume.offset += 1;
    assert!(volume.is_checkpoint_due());
    assert!(volume.offset < RECOVERY_BYTES_MAX);
}

#[test]
fn a_checkpoint_that_is_not_given_an_end_keeps_the_journals_that_have_it() {
    let (mut volume, appender) = filled(3_000);
    let tail = Bytes::copy_from_slice(appender.tail());
    for _ in 0..3 {
        volume.checkpoint(&mut |_, _| None).unwrap();
    }
    let copy = volume.disk.copy();
    let (_, found) = Volume::open(copy, VolumeConfig::default()).unwrap();
    assert_eq!((found.files[&FileId(1)].records, found.losses.len()), (3_000, 0));
    volume.checkpoint(&mut |_, _| Some(tail.clone().into())).unwrap();
    let written = journals(&volume).into_iter().filter(|(_, is_spare)| !is_spare);
    assert_eq!(written.count(), 1);
}

#[test]
fn bytes_of_chunks_are_counted_as_they_come_and_go() {
    let (mut volume, _) = filled(3_000);
    let bytes = volume.chunk_bytes();
    let on_disk = |volume: &Volume<Plain>| -> u64 {
        let files = volume.disk.list().unwrap();
        files.iter().filter(|(name, _)| parse_chunk_name(name).is_some()).map(|f| f.1).sum()
    };
    assert_eq!((bytes.load(Relaxed), on_disk(&volume)), (2 << 14, 2 << 14));
    let copy = volume.disk.copy();
    let (again, _) = Volume::open(copy, VolumeConfig::default()).unwrap();
    assert_eq!(again.chunk_bytes().load(Relaxed), 2 << 14);
    volume.delete(FileId(1)).unwrap();
    assert_eq!((bytes.load(Relaxed), on_disk(&volume)), (0, 0));
}

#[test]
fn journals_are_written_over_spares_and_a_clean_stop_leaves_one_without_remains() {
    let (mut volume, mut appender) = filled(700);
    for _ in 0..5 {
        let (first, mut commit) = (appender.records(), JournalBatch::default());
        let batch = records(first as i64..first as i64 + 50);
        appender.append(&batch, &mut Vec::new()).unwrap();
        commit.push_records(origin(1), first, &batch);
        volume.commit(&mut commit).unwrap();
        let tail = Bytes::copy_from_slice(appender.tail());
        volume.checkpoint(&mut |_, _| Some(tail.clone().into())).unwrap();
    }
    // Six journals in two files.
    assert_eq!(journals(&volume), [(4, true), (5, false)]);
    let copy = volume.disk.copy();
    let (_, found) = Volume::open(copy, VolumeConfig::default()).unwrap();
    assert_eq!((found.files[&FileId(1)].records, found.losses.len()), (950, 0));
    let tail = Bytes::copy_from_slice(appender.tail());
    volume.close(&mut |_, _| Some(tail.clone().into())).unwrap();
    assert_eq!(journals(&volume), [(6, false)]);
    assert!(volume.disk.list().unwrap().iter().all(|(_, len)| *len < 16 * 950 + 500));
}

#[test]
fn the_journal_alone_gives_everything_back() {
    let (volume, appender) = filled(3_000);
    volume.disk.0.borrow_mut().retain(|name, _| name.starts_with('J'));
    let (volume, found) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
    assert_eq!(found.files[&FileId(1)].records, 3_000);
    assert_eq!(&found.files[&FileId(1)].tail.bytes[..], appender.tail());
    assert!(volume.read(SegmentKind::Data, FileId(1), 1).unwrap().is_some());
}

/// A volume with five full segments of which no journal knows, as at `memory`.
fn unstated() -> Volume<Plain> {
    let (mut volume, _) = Volume::open(Plain::default(), VolumeConfig::default()).unwrap();
    let mut appender = Appender::new(FileId(1), 1, Arc::new(Schema::opaque(16))).unwrap();
    let mut sealed = Vec::new();
    appender.append(&records(0..5 * 1_022), &mut sealed).unwrap();
    sealed.into_iter().for_each(|sealed| volume.write(sealed).unwrap());
    volume
}

fn flip(volume: &Volume<Plain>, number: u32, at: usize) {
    let (chunk, offset) = segment_place(number);
    let name = chunk_name(SegmentKind::Data, FileId(1), chunk);
    volume.disk.0.borrow_mut().get_mut(&name).unwrap()[offset as usize + at] ^= 1;
}

#[test]
fn damage_loses_a_segment_and_nothing_that_is_whole_behind_it() {
    for damaged in 0..4 {
        let volume = unstated();
        flip(&volume, damaged, 5_000);
        let (volume, found) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
        let file = &found.files[&FileId(1)];
        let partial = PartialSegment { number: damaged, kept: 0 };
        assert_eq!((file.records, &file.partial[..]), (5 * 1_022, &[partial][..]));
        assert!(matches!(&found.losses[..], [loss] if !loss.is_torn_end), "{:?}", found.losses);
        for number in 0..5 {
            let bytes = volume.read(SegmentKind::Data, FileId(1), number).unwrap().unwrap();
            let held = segment::header(&bytes).unwrap().count;
            assert_eq!(held, if number == damaged { 0 } else { 1_022 });
        }
        let aside = format!("DAMAGED-{}-{damaged}", FileId(1));
        assert_eq!(volume.disk.0.borrow()[&aside].len(), SEGMENT_BYTES);
        let seen = verify(&volume.disk).unwrap();
        assert_eq!((seen.findings.len(), &seen.others[..]), (1, &[aside][..]));
        // The next opening finds nothing new.
        let (_, again) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
        assert_eq!((again.files[&FileId(1)].records, again.losses.len()), (5 * 1_022, 0));
    }
}

#[test]
fn damage_behind_which_nothing_is_whole_is_a_torn_end() {
    let volume = unstated();
    flip(&volume, 4, 5_000);
    let (_, found) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
    assert_eq!(found.files[&FileId(1)].records, 4 * 1_022);
    assert!(matches!(&found.losses[..], [loss] if loss.is_torn_end), "{:?}", found.losses);
}

#[test]
fn the_promised_part_of_a_lost_segment_comes_from_the_journal() {
    let mut volume = unstated();
    let mut batch = JournalBatch::default();
    batch.push_records(origin(1), 0, &records(0..1_500));
    volume.commit(&mut batch).unwrap();
    flip(&volume, 1, 5_000);
    let (volume, found) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
    let file = &found.files[&FileId(1)];
    let partial = PartialSegment { number: 1, kept: 1_500 - 1_022 };
    assert_eq!((file.records, &file.partial[..]), (5 * 1_022, &[partial][..]));
    assert!(found.losses[0].what.contains("records 1500 to 2043 are lost"), "{:?}", found.losses);
    // The next opening takes the part for what is there, and loses no more.
    let (volume, again) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
    assert_eq!((again.files[&FileId(1)].records, again.losses.len()), (5 * 1_022, 0));
    let bytes = volume.read(SegmentKind::Data, FileId(1), 1).unwrap().unwrap();
    assert_eq!(bytes[SEGMENT_HEADER_BYTES..][..16], records(1_022..1_023)[..]);
}

#[test]
fn what_a_journal_has_behind_damage_is_kept() {
    let mut volume = unstated();
    let mut batch = JournalBatch::default();
    batch.push_records(origin(1), 5 * 1_022, &records(5 * 1_022..6_000));
    volume.commit(&mut batch).unwrap();
    flip(&volume, 4, 5_000);
    let (_, found) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
    let file = &found.files[&FileId(1)];
    let partial = PartialSegment { number: 4, kept: 0 };
    assert_eq!((file.records, &file.partial[..]), (6_000, &[partial][..]));
    assert_eq!(file.tail.bytes[..16], records(5 * 1_022..5 * 1_022 + 1)[..]);
}

#[test]
fn damage_of_records_that_a_journal_has_is_mended_from_it() {
    let (volume, _) = filled(3_000);
    flip(&volume, 0, 5_000);
    let (volume, found) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
    assert_eq!((found.files[&FileId(1)].records, found.losses.len()), (3_000, 0));
    let bytes = volume.read(SegmentKind::Data, FileId(1), 0).unwrap().unwrap();
    assert_eq!(bytes[SEGMENT_HEADER_BYTES..][..16], records(0..1)[..]);
}

#[test]
fn synced_ends_are_stated_although_no_journal_grows() {
    let (mut volume, _) = Volume::open(Plain::default(), VolumeConfig::default()).unwrap();
    volume.unstated_bytes = UNSTATED_BYTES_MAX - 1_000;
    volume.write(unstated().unsynced.remove(0)).unwrap();
    assert!(!volume.is_checkpoint_due());
    volume.flush().unwrap();
    assert!(volume.is_checkpoint_due());
    volume.checkpoint(&mut |_, _| None).unwrap();
    assert!(!volume.is_checkpoint_due());
}

#[test]
fn a_disk_that_runs_low_has_short_journals_and_no_spares() {
    let (mut volume, _) = Volume::open(Plain::default(), VolumeConfig::default()).unwrap();
    let all = records(0..100);
    let mut batch = JournalBatch::default();
    batch.push_records(origin(1), 0, &all);
    volume.commit(&mut batch).unwrap();
    let tail = |first: u64| Some(Bytes::copy_from_slice(&all[first as usize * 16..]).into());
    volume.checkpoint(&mut |_, first| tail(first)).unwrap();
    assert_eq!(journals(&volume).len(), 2, "a journal and a spare");
    volume.set_low(true).unwrap();
    assert_eq!(journals(&volume).len(), 1, "a spare takes room");
    volume.checkpoint(&mut |_, first| tail(first)).unwrap();
    assert_eq!(journals(&volume).len(), 1, "no journal becomes a spare");
    volume.unstated_bytes = CHUNK_BYTES as u64 + 1;
    assert!(volume.is_checkpoint_due(), "chunks must be able to leave");
    volume.set_low(false).unwrap();
    assert!(!volume.is_checkpoint_due());
    let (_, found) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
    assert_eq!(found.files[&FileId(1)].records, 100);
}

/// Three chunks whose ends no journal states, and journals without spares.
fn three_chunks() -> Volume<Plain> {
    let (mut volume, _) = Volume::open(Plain::default(), VolumeConfig::default()).unwrap();
    volume.set_low(true).unwrap();
    let layout = Layout::new(16).unwrap();
    let count = 2 * u64::from(SEGMENTS_PER_CHUNK) * layout.records_per_segment() + 5_000;
    volume.register(origin(1));
    let mut appender = Appender::new(FileId(1), 1, Arc::new(Schema::opaque(16))).unwrap();
    let mut sealed = Vec::new();
    appender.append(&records(0..count as i64), &mut sealed).unwrap();
    sealed.into_iter().for_each(|one| volume.write(one).unwrap());
    volume.flush().unwrap();
    volume
}

#[test]
fn chunks_leave_a_full_disk_on_which_no_journal_states_them() {
    let mut volume = three_chunks();
    volume.disk.fill(10);
    assert!(volume.evict_chunk(FileId(1), 0).unwrap(), "the reserve takes the statement");
    assert_eq!(volume.disk.read(RESERVE, 0, usize::MAX).unwrap().len(), RESERVE_BYTES, "made anew");
    // Another program takes what became free.
    volume.disk.fill(10);
    assert!(volume.evict_chunk(FileId(1), 1).unwrap());
    let (_, found) = Volume::open(volume.disk.copy(), VolumeConfig::default()).unwrap();
    assert!(found.losses.is_empty(), "{:?}", found.losses);
    assert_eq!(found.files[&FileId(1)].records, volume.synced(FileId(1)));
}

#[test]
fn a_full_disk_opens_and_a_file_can_be_deleted_on_it() {
    let volume = three_chunks();
    volume.disk.fill(10);
    let (mut volume, found) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
    assert!(found.losses.is_empty(), "{:?}", found.losses);
    volume.delete(FileId(1)).unwrap();
    assert!(volume.disk.used() < 1 << 20);
    let (_, found) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
    assert!(found.files.is_empty());
}

#[test]
fn a_full_disk_opens_although_it_has_no_room_for_the_segments_of_the_journals() {
    let (volume, appender) = filled(3_000);
    volume.disk.0.borrow_mut().retain(|name, _| !name.starts_with('D'));
    volume.disk.fill(10);
    let (mut volume, found) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
    assert!(found.losses.is_empty(), "{:?}", found.losses);
    let file = &found.files[&FileId(1)];
    assert_eq!((file.records, &file.tail.bytes[..]), (3_000, appender.tail()));
    let numbers: Vec<u32> = file.unwritten.iter().map(|sealed| sealed.number).collect();
    assert_eq!((numbers, volume.synced(FileId(1))), (vec![0, 1], 0));
    volume.flush().unwrap_err();
    // The appender has them until a flush finds room.
    let mut again = Appender::new(FileId(1), 1, Arc::new(Schema::opaque(16))).unwrap();
    again.keep_unwritten(&file.unwritten);
    assert_eq!(again.unsynced_segment(1).as_ref(), Some(&file.unwritten[1].bytes));
    let copy = volume.disk.copy();
    volume.disk.fill(1 << 20);
    assert_eq!(volume.flush().unwrap().len(), 2);
    assert_eq!(volume.synced(FileId(1)), 2_044);
    // A file can be deleted while there is no room.
    let (mut volume, _) = Volume::open(copy, VolumeConfig::default()).unwrap();
    volume.delete(FileId(1)).unwrap();
    let (_, found) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
    assert!(found.files.is_empty());
}

#[test]
fn a_file_can_be_deleted_on_a_full_disk_whose_reserve_is_gone() {
    let mut volume = three_chunks();
    volume.disk.remove(RESERVE).unwrap();
    volume.has_reserve = false;
    volume.disk.fill(0);
    volume.delete(FileId(1)).unwrap();
    assert!(volume.disk.used() < 1 << 20);
    let (_, found) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
    assert!(found.files.is_empty());
}

#[test]
fn a_deleted_file_stays_deleted() {
    let (mut volume, _) = filled(3_000);
    volume.delete(FileId(1)).unwrap();
    let (_, found) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
    assert!(found.files.is_empty(), "{:?}", found.files);
}

#[test]
fn a_crash_behind_the_eviction_of_a_chunk_loses_nothing_that_follows_it() {
    let (mut volume, _) = Volume::open(Plain::default(), VolumeConfig::default()).unwrap();
    volume.register(origin(1));
    let mut appender = Appender::new(FileId(1), 1, Arc::new(Schema::opaque(16))).unwrap();
    // Two chunks and a half, of 1,022 records a segment, and no word of them in the journal.
    let (count, mut sealed) = (1_022 * 256 * 5 / 2, Vec::new());
    appender.append(&records(0..count), &mut sealed).unwrap();
    for sealed in sealed {
        volume.write(sealed).unwrap();
    }
    volume.flush().unwrap();
    assert!(volume.evict_chunk(FileId(1), 0).unwrap());
    assert!(!volume.evict_chunk(FileId(1), 2).unwrap(), "the newest stays");
    let (volume, found) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
    assert!(found.losses.is_empty(), "{:?}", found.losses);
    assert_eq!(found.files[&FileId(1)].records, count as u64);
    assert!(volume.read(SegmentKind::Data, FileId(1), 0).unwrap().is_none());
    assert!(volume.read(SegmentKind::Data, FileId(1), 256).unwrap().is_some());
}

#[test]
fn a_first_chunk_that_a_crash_takes_comes_back_from_the_journal() {
    // The name of the first chunk was not on the disk yet, and that of the second one was.
    let (volume, _) = filled(300_000);
    let [first, second] = [0, 1].map(|chunk| chunk_name(SegmentKind::Data, FileId(1), chunk));
    volume.disk.remove(&first).unwrap();
    assert!(!volume.disk.read(&second, 0, 1).unwrap().is_empty());
    let (volume, found) = Volume::open(volume.disk, VolumeConfig::default()).unwrap();
    assert_eq!((found.files[&FileId(1)].records, found.losses.len()), (300_000, 0));
    for number in 0..volume.synced(FileId(1)) / 1_022 {
        let segment = volume.read(SegmentKind::Data, FileId(1), number as u32).unwrap();
        assert!(segment.is_some(), "segment {number}");
    }
}

#[test]
fn verify_finds_every_flipped_byte() {
    let (mut volume, appender) = filled(1_100);
    let tail = Bytes::copy_from_slice(appender.tail());
    volume.close(&mut |_, _| Some(tail.clone().into())).unwrap();
    let clean = verify(&volume.disk).unwrap();
    assert!(clean.findings.is_empty(), "{:?}", clean.findings);
    assert_eq!((clean.segments, clean.others.len(), clean.absent.len()), (1, 0, 0));
    let names = volume.disk.list().unwrap();
    for (name, len) in names {
        for at in (0..len as usize).step_by(7) {
            volume.disk.0.borrow_mut().get_mut(&name).unwrap()[at] ^= 4;
            let found = verify(&volume.disk).unwrap();
            assert!(!found.findings.is_empty(), "{name} byte {at}");
            volume.disk.0.borrow_mut().get_mut(&name).unwrap()[at] ^= 4;
        }
    }
}
