//! Table 2.5 of the thesis beside ours: the sort of 7,000 records a server.

use evenfall_campaigns::sort::scene::{BurstOutcome, BurstScene, SimShuffle, run_sort};
use serde::Serialize;

/// Records of a server in the tables.
const RECORDS: usize = 7_000;

/// Published phases of a number of servers, in microseconds: mean and max.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PublishedPhase {
    /// The name of the phase.
    pub name: &'static str,
    /// The mean over servers.
    pub mean: f64,
    /// The slowest server.
    pub max: f64,
}

const fn phase(name: &'static str, mean: f64, max: f64) -> PublishedPhase {
    PublishedPhase { name, mean, max }
}

/// Table 2.5. The column of 120 servers is the one to which the model is fitted.
const TABLE_2_5: [(usize, [PublishedPhase; 6]); 2] = [
    (
        120,
        [
            phase("local_sort", 147.0, 216.3),
            phase("partition", 200.5, 214.4),
            phase("pivot_shuffle", 83.2, 87.9),
            phase("shuffle", 377.2, 402.8),
            phase("rearrange", 128.1, 142.7),
            phase("total", 942.3, 976.0),
        ],
    ),
    (
        240,
        [
            phase("local_sort", 137.8, 202.3),
            phase("partition", 410.4, 428.6),
            phase("pivot_shuffle", 219.3, 240.1),
            phase("shuffle", 738.9, 789.0),
            phase("rearrange", 146.9, 173.3),
            phase("total", 1_523.8, 1_591.1),
        ],
    ),
];

/// A row of the study.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SortRow {
    /// Number of servers.
    pub servers: usize,
    /// The name of the phase.
    pub phase: &'static str,
    /// Mean and max in microseconds, the median of the runs.
    pub ours: [f64; 2],
    /// The published mean and max.
    pub published: [f64; 2],
    /// By how many percent our max differs.
    pub differs_percent: f64,
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The rows of Table 2.5 beside ours, over this many seeds.
///
/// # Errors
/// As for [`run_sort`].
pub fn table_2_5(seeds: u64, shuffle: SimShuffle) -> Result<Vec<SortRow>, String> {
    let mut rows = Vec::new();
    for (servers, published) in TABLE_2_5 {
        let one =
            |seed| run_sort(&BurstScene { shuffle, ..BurstScene::new(servers, RECORDS, seed) });
        let runs = (1..=seeds).map(one).collect::<Result<Vec<_>, _>>()?;
        rows.extend(published.map(|phase| compare_phase(servers, phase, &runs)));
    }
    Ok(rows)
}

fn compare_phase(servers: usize, published: PublishedPhase, runs: &[BurstOutcome]) -> SortRow {
    let times = runs.iter().filter_map(|run| run.phases_us.get(published.name));
    let mean = median(times.clone().map(|times| times.mean).collect());
    let max = median(times.map(|times| times.max).collect());
    SortRow {
        servers,
        phase: published.name,
        ours: [mean, max],
        published: [published.mean, published.max],
        differs_percent: 100.0 * (max / published.max - 1.0),
    }
}

#[cfg(test)]
mod tests {
    use evenfall_query_burst::placement::KeyPlacement;
    use evenfall_query_burst::query::Duplicates;
    use evenfall_query_burst::rows::QueryName;

    use super::*;
    use evenfall_campaigns::sort::scene::run_query;

    #[test]
    fn a_seed_gives_one_sort_and_another_seed_another() {
        let run = |seed| run_sort(&BurstScene::new(12, 200, seed)).expect("sorted");
        let (one, again, other) = (run(3), run(3), run(4));
        assert_eq!(one, again);
        assert_ne!(one.digest, other.digest);
        assert_eq!(one.records, 2_400);
        assert!(one.imbalance >= 1.0 && one.imbalance < 1.6, "{one:?}");
        for name in ["local_sort", "partition", "pivot_shuffle", "shuffle", "rearrange"] {
            let times = one.phases_us[name];
            assert!(times.mean > 0.0 && times.max <= one.completion_us, "{name}: {one:?}");
        }
    }

    #[test]
    fn two_levels_beat_one_with_a_hundred_servers_and_more() {
        let run = |levels| {
            let scene = BurstScene { levels, ..BurstScene::new(120, 200, 1) };
            run_sort(&scene).expect("sorted").phases_us["partition"].max
        };
        let (one, two) = (run(1), run(2));
        assert!(one > 2.0 * two, "one level {one} us, two levels {two} us");
    }

    #[test]
    fn queries_of_a_few_servers_answer_as_a_plain_program_does() {
        for query in [QueryName::Q1, QueryName::Q2, QueryName::Q3] {
            for placement in [KeyPlacement::Hash, KeyPlacement::Range] {
                let scene = BurstScene::new(9, 300, 5);
                let outcome = run_query(&scene, query, Duplicates::OutBefore, placement);
                let outcome = outcome.expect("right");
                assert!(outcome.completion_us > 5.0 && outcome.imbalance >= 1.0, "{outcome:?}");
            }
        }
    }
}
