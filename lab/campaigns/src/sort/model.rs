//! The partition by its definition, in one place and without a machine.

use evenfall_query_burst::pivots::{RECORD_WEIGHT, Tag};

/// How many records each rank gets. `lists` are the sorted records of all ranks. `None` when the
/// definition gives too few splitters, which it never does.
pub fn part_sizes(lists: &[Vec<Tag>], is_weighted: bool, per_rank: usize) -> Option<Vec<usize>> {
    let ranks = lists.len();
    let mut pivots: Vec<(Tag, u64)> = lists
        .iter()
        .flat_map(|list| weighted_pivots(list, is_weighted, per_rank * ranks))
        .collect();
    pivots.sort_unstable();
    let records: usize = lists.iter().map(Vec::len).sum();
    if records == 0 {
        return Some(vec![0; ranks]);
    }
    let total = records as u128 * u128::from(RECORD_WEIGHT);
    let below = |splitter: Tag| -> usize {
        lists.iter().map(|list| list.partition_point(|&record| record < splitter)).sum()
    };
    let mut bounds = vec![0];
    for splitter in 1..ranks {
        let mut reached = 0;
        let crosses = |(tag, weight): &(Tag, u64)| {
            reached += u128::from(*weight);
            (reached * ranks as u128 >= splitter as u128 * total).then_some(*tag)
        };
        bounds.push(below(pivots.iter().find_map(crosses)?));
    }
    bounds.push(records);
    Some(bounds.windows(2).map(|pair| pair[1] - pair[0]).collect())
}

/// The pivots of one list with their weights: the last record of each group, and with weights the
/// first record of the list too.
fn weighted_pivots(list: &[Tag], is_weighted: bool, groups: usize) -> Vec<(Tag, u64)> {
    let (count, groups) = (list.len(), groups.min(list.len()));
    let weight = |halves: usize| {
        let all = count as u128 * u128::from(RECORD_WEIGHT);
        (all * halves as u128).div_ceil(2 * groups.max(1) as u128) as u64
    };
    let mut pivots = Vec::new();
    let mut before = 0;
    // Up to pivot `group` lie that many groups, or with weights half a group less or more.
    for group in usize::from(!is_weighted)..=groups {
        let halves = match (is_weighted, group) {
            (false, _) => 2 * group,
            (true, 0) => 1,
            (true, _) => (2 * group + 1).min(2 * groups),
        };
        let last = (count * group / groups.max(1)).max(1) - 1;
        if let Some(&tag) = list.get(last) {
            pivots.push((tag, weight(halves) - before));
            before = weight(halves);
        }
    }
    pivots
}
