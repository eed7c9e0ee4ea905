use super::scan::PartSums;
use super::*;

const ORIGIN: Origin = Origin { file: FileId(3), record_bytes: 16, token: 2 };

/// The identity of the journal of this number.
fn identity(number: u64) -> u64 {
    0x1d_0000_0000 + number
}

/// A batch with the records `sequence * 10` and later.
fn batch(sequence: u64, bytes: usize) -> JournalBatch {
    let mut batch = JournalBatch::default();
    batch.push_node(ORIGIN, 5);
    batch.push_records(ORIGIN, sequence * 10, &vec![sequence as u8; bytes]);
    batch
}

fn push_commit(file: &mut Vec<u8>, number: u64, sequence: u64, mut batch: JournalBatch) {
    let (len, sealed) = batch.seal(identity(number), sequence, file.len() as u64);
    let (commit, zeros) = sealed.split_at(len);
    assert!(zeros.iter().all(|byte| *byte == 0));
    file.extend_from_slice(commit);
}

fn commits(number: u64, count: u64, bytes: usize) -> Vec<u8> {
    let mut file = header(number, identity(number), 1, false).to_vec();
    for sequence in 0..count {
        push_commit(&mut file, number, sequence, batch(sequence, bytes));
    }
    file.extend_from_slice(&[0; END_BYTES]);
    file
}

/// A journal as the version before wrote it.
fn commits_of_version_before(number: u64, count: u64, bytes: usize) -> Vec<u8> {
    let mut file = header(number, 0, 1, false)[..HEADER_COPY_BYTES].to_vec();
    file[4] = VERSION_BEFORE;
    let crc = crc32c::crc32c(&file[..28]);
    file[28..].copy_from_slice(&crc.to_le_bytes());
    for sequence in 0..count {
        let mut batch = batch(sequence, bytes);
        let (len, sealed) = batch.seal(number, sequence, 0);
        let mut commit = sealed[..len].to_vec();
        let crc = crc32c::crc32c_append(head_checksum(&commit, None), &commit[COMMIT_BYTES..]);
        commit[28..32].copy_from_slice(&crc.to_le_bytes());
        file.append(&mut commit);
    }
    file.extend_from_slice(&[0; END_BYTES]);
    file
}

fn sample() -> Vec<u8> {
    commits(7, 3, 160)
}

/// Bytes of one commit of [`sample`].
fn commit_bytes() -> usize {
    (sample().len() - HEADER_BYTES - END_BYTES) / 3
}

fn scan_of(file: &[u8]) -> Scan {
    scan("J", &Bytes::copy_from_slice(file)).unwrap()
}

/// The first record of each whole commit.
fn firsts(scan: &Scan) -> Vec<u64> {
    let first = |frame: &Frame| match frame {
        Frame::Records(_, first, _) => Some(*first),
        _ => None,
    };
    scan.frames.iter().filter_map(first).collect()
}

#[test]
fn commits_read_back_in_order() {
    let file = sample();
    let scan = scan_of(&file);
    assert_eq!((scan.commits, scan.bytes as usize), (3, file.len() - END_BYTES));
    assert_eq!((scan.first_sequence, scan.next_sequence), (Some(0), Some(3)));
    assert_eq!(scan.frames.len(), 6);
    assert_eq!((scan.dropped, scan.damaged.len()), (None, 0));
    assert_eq!(scan.frames[5], Frame::Records(ORIGIN, 20, Bytes::from(vec![2; 160])));
}

#[test]
fn a_tail_with_lost_records_reads_back() {
    let mut batch = JournalBatch::default();
    let lost = vec![2..3, 5..9];
    let tail = TailRecords { bytes: Bytes::from(vec![4; 160]), lost };
    batch.push_tail(ORIGIN, 100, &tail);
    let mut file = header(7, identity(7), 1, false).to_vec();
    push_commit(&mut file, 7, 0, batch);
    let held = |count: usize| Bytes::from(vec![4; 16 * count]);
    let records = |first, count| Frame::Records(ORIGIN, first, held(count));
    let expected = [
        Frame::Lost(ORIGIN, 102, 1),
        Frame::Lost(ORIGIN, 105, 4),
        records(100, 2),
        records(103, 2),
        records(109, 1),
    ];
    assert_eq!(scan_of(&file).frames, expected);
}

#[test]
fn what_an_earlier_journal_left_behind_is_not_read() {
    // Commits of the same lengths, so that the earlier ones begin where later ones would.
    let earlier = commits(6, 9, 160);
    let later = commits(7, 3, 160);
    let mut file = earlier.clone();
    file[..later.len()].copy_from_slice(&later);
    let found = scan_of(&file);
    assert_eq!((found.commits, found.dropped), (3, None));
    // The zeros were not written, and the remains are no part of this journal all the same.
    file[later.len() - END_BYTES..].copy_from_slice(&earlier[later.len() - END_BYTES..]);
    let found = scan_of(&file);
    assert_eq!((found.commits, found.damaged.len()), (3, 0));
    assert!(found.dropped.unwrap().is_torn_end());
    // Nor behind damage of the last commit.
    file[HEADER_BYTES + 2 * commit_bytes() + 50] ^= 1;
    assert_eq!(firsts(&scan_of(&file)), [0, 10]);
    file[..HEADER_BYTES].copy_from_slice(&header(7, identity(7), 1, true));
    let found = scan_of(&file);
    assert_eq!((found.commits, found.dropped, found.frames.len()), (0, None, 0));
}

#[test]
fn a_commit_of_this_journal_is_not_believed_at_another_place_or_out_of_turn() {
    let file = sample();
    let mut moved = file.clone();
    let (second, third) = (HEADER_BYTES + commit_bytes(), HEADER_BYTES + 2 * commit_bytes());
    moved.copy_within(HEADER_BYTES..second, third);
    let found = scan_of(&moved);
    assert_eq!(firsts(&found), [0, 10]);
    assert!(found.dropped.unwrap().is_torn_end());
    // A commit whose number was there already.
    let mut again = file[..file.len() - END_BYTES].to_vec();
    push_commit(&mut again, 7, 1, batch(1, 160));
    assert_eq!(firsts(&scan_of(&again)), [0, 10, 20]);
}

#[test]
fn the_checksum_of_a_part_is_that_of_its_bytes() {
    let bytes: Vec<u8> = (0..20_000_u32).map(|n| ((n * n) >> 3) as u8).collect();
    let sums = PartSums::of(&bytes);
    for (start, end) in [(0, 0), (0, 20_000), (5, 4_096), (4_096, 8_192), (4_097, 19_999)] {
        assert_eq!(sums.part(start, end), crc32c::crc32c(&bytes[start..end]), "{start} {end}");
    }
}

/// Each looks like the header of a commit of everything behind it.
fn crafted_headers(identity: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for at in 0..4_000_usize {
        let body = ((4_000 - at - 1) * COMMIT_BYTES) as u32;
        bytes.extend_from_slice(COMMIT_MAGIC);
        bytes.extend_from_slice(&body.to_le_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(&identity.to_le_bytes());
        bytes.extend_from_slice(&[0; 8]);
    }
    bytes
}

#[test]
fn records_that_look_like_headers_are_passed_over_and_the_commit_behind_them_is_found() {
    // Also of a client that has found the identity.
    for identity in [identity(7), identity(8), 7] {
        let mut file = header(7, self::identity(7), 1, false).to_vec();
        file.extend(crafted_headers(identity));
        let end = file.len();
        push_commit(&mut file, 7, 0, batch(0, 160));
        let found = scan_of(&file);
        let [damage] = &found.damaged[..] else { panic!("{:?}", found.damaged) };
        assert_eq!(damage.place, HEADER_BYTES as u64..end as u64);
        assert_eq!((damage.commits_lost, damage.commits_behind), (None, 1));
    }
}

#[test]
fn a_record_that_is_a_commit_of_another_journal_is_not_believed_behind_damage() {
    // The client knows the place and the number of everything, and cannot know the identity.
    for identity in [0, 7, identity(6), identity(8)] {
        let mut file = commits(7, 1, 160);
        file.truncate(file.len() - END_BYTES);
        let (outer, place) = (file.len(), file.len() + COMMIT_BYTES + FRAME_BYTES);
        let mut crafted = batch(99, 320);
        let (len, sealed) = crafted.seal(identity, 2, place as u64);
        let mut records = sealed[..len].to_vec();
        records.resize(len.next_multiple_of(16), 0);
        let mut holder = JournalBatch::default();
        holder.push_records(ORIGIN, 10, &records);
        push_commit(&mut file, 7, 1, holder);
        push_commit(&mut file, 7, 2, batch(2, 160));
        assert_eq!(file[place..place + 4], *COMMIT_MAGIC);
        assert_eq!(firsts(&scan_of(&file)), [0, 10, 20]);
        file[outer + COMMIT_BYTES + 1] ^= 1;
        assert_eq!(firsts(&scan_of(&file)), [0, 20], "identity {identity}");
    }
}

#[test]
fn a_commit_behind_zeros_is_kept_and_the_zeros_are_damage() {
    let mut file = sample();
    let second = HEADER_BYTES + commit_bytes();
    file[second..second + 2 * END_BYTES].fill(0);
    let found = scan_of(&file);
    assert_eq!(firsts(&found), [0, 20]);
    let place = second as u64..(second + commit_bytes()) as u64;
    let what = "no commit begins here";
    let damage = JournalDamage { place, commits_lost: Some(1), commits_behind: 1, what };
    assert_eq!((found.damaged, found.dropped), (vec![damage], None));
}

#[test]
fn a_torn_end_is_dropped_and_said() {
    let file = sample();
    for cut in 0..file.len() - END_BYTES {
        let scan = scan_of(&file[..cut]);
        assert!(scan.frames.len() < 6);
        let ends_well = cut == 0 || cut >= HEADER_BYTES && scan.bytes as usize == cut;
        let is_header = (HEADER_COPY_BYTES..HEADER_BYTES).contains(&cut);
        assert_eq!(scan.dropped.is_some(), !ends_well && !is_header, "{cut}");
        assert!(scan.dropped.is_none_or(|dropped| dropped.is_torn_end()));
        assert!(scan.damaged.is_empty());
    }
}

#[test]
fn a_write_that_stops_between_the_copies_of_a_header_leaves_the_later_header() {
    let mut torn = header(9, identity(9), 1, true);
    torn[..HEADER_COPY_BYTES].copy_from_slice(&header(11, identity(11), 1, false)[..32]);
    assert_eq!(parse_header("J", &torn).unwrap().unwrap().number, 11);
    let mut torn = header(9, identity(9), 1, false);
    torn[..HEADER_COPY_BYTES].copy_from_slice(&header(9, 0, 1, true)[..32]);
    assert!(parse_header("J", &torn).unwrap().unwrap().is_spare);
}

#[test]
fn a_flipped_bit_costs_the_commit_that_it_is_in_and_no_other() {
    let mut file = commits(7, 5, 160);
    let behind_last = file.len() - END_BYTES;
    for at in 0..file.len() {
        for bit in [1, 0x80] {
            file[at] ^= bit;
            let found = scan_of(&file);
            let mut expected: Vec<u64> = (0..5).map(|sequence| sequence * 10).collect();
            if let Some(place) = at.checked_sub(HEADER_BYTES).filter(|_| at < behind_last) {
                expected.remove(place / commit_bytes());
            }
            assert_eq!(firsts(&found), expected, "byte {at}");
            // Whole commits behind, or none.
            let is_torn_end = at >= behind_last - commit_bytes();
            assert_eq!(found.dropped.is_some(), is_torn_end, "byte {at}");
            assert_eq!(found.damaged.len(), usize::from(!is_torn_end), "byte {at}");
            let lost = found.damaged.first().and_then(|damage| damage.commits_lost);
            // Nothing says how many commits were in front of the second one.
            let is_first = (HEADER_BYTES..HEADER_BYTES + commit_bytes()).contains(&at);
            let of_header = (!is_torn_end && !is_first).then_some(u64::from(at >= HEADER_BYTES));
            assert_eq!(lost, of_header, "byte {at}");
            file[at] ^= bit;
        }
    }
}

#[test]
fn a_journal_without_a_whole_header_is_read_and_a_lone_torn_header_is_no_damage() {
    let mut file = sample();
    file[10] ^= 1;
    file[40] ^= 1;
    let found = scan_of(&file);
    assert_eq!(firsts(&found), [0, 10, 20]);
    let (place, what) = (0..HEADER_BYTES as u64, "neither copy of the header is whole");
    let damage = JournalDamage { place, commits_lost: Some(0), commits_behind: 3, what };
    assert_eq!((found.damaged, found.dropped), (vec![damage], None));
    let mut file = commits(7, 1, 160);
    file[..HEADER_BYTES].fill(0);
    let found = scan_of(&file);
    assert_eq!(firsts(&found), [0]);
    assert!(found.damaged.is_empty() && found.dropped.unwrap().is_torn_end());
}

#[test]
fn without_header_and_first_commit_a_journal_is_read_when_all_its_commits_agree() {
    let mut file = commits(7, 4, 160);
    file[..HEADER_BYTES + commit_bytes()].fill(0);
    let found = scan_of(&file);
    assert_eq!(firsts(&found), [10, 20, 30]);
    let lost: Vec<_> = found.damaged.iter().map(|damage| damage.commits_lost).collect();
    assert_eq!(lost, [Some(0), None]);
    // Remains of an earlier journal are of another identity.
    let mut reused = commits(6, 9, 160);
    reused[..file.len()].copy_from_slice(&file);
    let found = scan_of(&reused);
    assert_eq!((found.commits, found.frames.len()), (0, 0));
    assert!(!found.dropped.unwrap().is_torn_end());
}

#[test]
fn a_record_that_is_a_commit_is_not_believed_in_place_of_a_lost_header() {
    // The client knows where its record will be.
    let place = HEADER_BYTES + COMMIT_BYTES + FRAME_BYTES;
    let mut crafted = batch(99, 320);
    let (len, sealed) = crafted.seal(identity(9), 1, place as u64);
    let mut records = sealed[..len].to_vec();
    records.resize(len.next_multiple_of(16), 0);
    let mut holder = JournalBatch::default();
    holder.push_records(ORIGIN, 0, &records);
    let mut file = header(7, identity(7), 1, false).to_vec();
    push_commit(&mut file, 7, 0, holder);
    push_commit(&mut file, 7, 1, batch(1, 160));
    assert_eq!(file[place..place + 4], *COMMIT_MAGIC);
    file[..HEADER_BYTES].fill(0);
    assert_eq!(firsts(&scan_of(&file)), [0, 10]);
    file[HEADER_BYTES + 9] ^= 1;
    assert!(scan_of(&file).frames.is_empty());
}

#[test]
fn a_journal_of_the_version_before_is_read_up_to_the_first_damage() {
    let mut file = commits_of_version_before(7, 3, 160);
    assert_eq!(firsts(&scan_of(&file)), [0, 10, 20]);
    for cut in HEADER_COPY_BYTES..file.len() - END_BYTES {
        let dropped = scan_of(&file[..cut]).dropped;
        assert!(dropped.is_none_or(|dropped| dropped.is_torn_end()));
    }
    file[HEADER_COPY_BYTES + 50] ^= 1;
    let found = scan_of(&file);
    assert_eq!((found.commits, found.dropped.unwrap().commits_behind), (0, 2));
    file[4] = 9;
    let crc = crc32c::crc32c(&file[..28]);
    file[28..32].copy_from_slice(&crc.to_le_bytes());
    assert!(matches!(scan("J", &Bytes::from(file)), Err(Error::Version { version: 9, .. })));
}
