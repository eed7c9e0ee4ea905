//! The check of a sort sees what is wrong.

use evenfall_query_member::check::{PartSummary, SortVerdict, judge_sort, sort_plainly};
use evenfall_query_member::files::{RECORD_BYTES, join_blocks, split_block};
use evenfall_query_member::{KeyDraw, SortRecords, make_records};

const RIGHT: SortVerdict = SortVerdict { ordered: true, same_records: true, stable: true };

/// The verdict on these two parts of the output, of an input of 60 records with few keys.
fn judge(change: impl Fn(&mut Vec<Vec<u8>>)) -> SortVerdict {
    let input = make_records(KeyDraw::Few, 1, 0, 600);
    let sorted = join_blocks(&sort_plainly(&input));
    let mut rows: Vec<Vec<u8>> = sorted.chunks(RECORD_BYTES).map(<[u8]>::to_vec).collect();
    change(&mut rows);
    let cut = rows.len() / 2;
    let part = |rows: &[Vec<u8>]| PartSummary::of(&split_block(&rows.concat()));
    let parts = [part(&rows[..cut]), PartSummary::default(), part(&rows[cut..])];
    let sent: Vec<_> = parts.iter().map(|part| PartSummary::decode(&part.encode())).collect();
    let empty = PartSummary::of(&SortRecords::default());
    let after: Vec<_> = sent.into_iter().map(|part| part.expect("a summary")).collect();
    let after: Vec<_> = after
        .into_iter()
        .map(|part| if part.records == 0 { empty.clone() } else { part })
        .collect();
    judge_sort(&[PartSummary::of(&input)], &after)
}

#[test]
fn the_check_of_a_sort_sees_every_kind_of_fault() {
    assert_eq!(judge(|_| {}), RIGHT);
    let lost = judge(|rows| drop(rows.remove(7)));
    assert_eq!(lost, SortVerdict { same_records: false, ..RIGHT });
    let doubled = judge(|rows| rows[8] = rows[7].clone());
    assert!(!doubled.same_records && !doubled.stable, "{doubled:?}");
    let changed = judge(|rows| rows[9][99] ^= 1);
    assert_eq!(changed, SortVerdict { same_records: false, ..RIGHT });
    let swapped = judge(|rows| rows.swap(0, 599));
    assert!(swapped.same_records && !swapped.ordered, "{swapped:?}");
    let halves = judge(|rows| rows.rotate_left(300));
    assert!(halves.same_records && !halves.ordered, "{halves:?}");
    let unstable = judge(|rows| {
        let at = rows.windows(2).position(|two| two[0][..10] == two[1][..10]).expect("equal keys");
        rows.swap(at, at + 1);
    });
    assert_eq!(unstable, SortVerdict { stable: false, ..RIGHT });
    assert_eq!(PartSummary::decode(&[0; 7]), None);
}
