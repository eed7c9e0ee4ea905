//! The reads of TPC-H's 22 queries: scans of whole tables out of files in blocks.
//!
//! A warehouse without indices reads a table from its first byte to its last. The workload takes
//! the tables that each query names from the text of the queries (TPC-H 3.0.1, clause 2.4), and
//! their rows and row lengths from clauses 4.2.5.1 and 4.2.5.2. Four choices are ours:
//!
//! - A table is one file in blocks, and each block has three copies of its own. A read is a block,
//!   and the last block of a table is shorter.
//! - All reads of a query begin at once, as a wave of tasks does, and a query that names a table
//!   twice reads it once.
//! - Queries begin by Poisson's law. The 22 queries come in a random order, then in another one.
//! - The client of a read is at the distance from the block's primary that the workload of the
//!   thesis draws.

use evenfall_core::Prng;
use evenfall_files_flow::{ThreeTier, TopologyNode};

use crate::files::workload::{self, Job, ReadLoad};

/// A table: rows at scale factor 1, and bytes of a row.
struct Table {
    rows: u64,
    row_bytes: u64,
    /// Whether the rows grow with the scale factor.
    grows: bool,
}

const fn table(rows: u64, row_bytes: u64) -> Table {
    Table { rows, row_bytes, grows: true }
}

const fn fixed(rows: u64, row_bytes: u64) -> Table {
    Table { rows, row_bytes, grows: false }
}

/// The tables by the letters of [`QUERIES`].
const TABLES: [(char, Table); 8] = [
    ('l', table(6_001_215, 112)), // lineitem
    ('o', table(1_500_000, 104)), // orders
    ('x', table(800_000, 144)),   // partsupp
    ('p', table(200_000, 155)),   // part
    ('c', table(150_000, 179)),   // customer
    ('s', table(10_000, 159)),    // supplier
    ('n', fixed(25, 128)),        // nation
    ('r', fixed(5, 124)),         // region
];

/// The tables that each query names, from query 1 to query 22.
const QUERIES: [&str; 22] = [
    "l", "psxnr", "col", "ol", "colsnr", "l", "slocn", "psloncr", "pslxon", "coln", "xsn", "ol",
    "co", "lp", "ls", "xps", "lp", "col", "lp", "snxpl", "slon", "co",
];

/// Bytes of a table at a scale factor.
fn bytes(name: char, factor: u64) -> u64 {
    let found = TABLES.iter().find(|(letter, _)| *letter == name);
    found.map_or(0, |(_, table)| {
        let rows = table.rows * if table.grows { factor } else { 1 };
        rows * table.row_bytes
    })
}

/// Lengths of the blocks of a table.
fn blocks(bytes: u64, block_bytes: u64) -> impl Iterator<Item = u64> {
    let count = bytes.div_ceil(block_bytes);
    (0..count).map(move |block| block_bytes.min(bytes - block * block_bytes))
}

/// Draws the reads of whole queries, ordered by time, until there are as many as the load asks for.
/// Reads of a query have the same time. The mean rate of reads is that of the load.
pub fn jobs(spec: &ThreeTier, load: &ReadLoad, factor: u64, seed: u64) -> Vec<Job> {
    let mut root = Prng::new(seed);
    let [mut places, mut times, mut choices] = [1, 2, 3].map(|part| root.fork(part));
    let mut file = |name: char| -> Vec<(u64, [TopologyNode; 3])> {
        let blocks = blocks(bytes(name, factor), load.bytes);
        blocks.map(|length| (length, workload::place(&mut places, spec, load.placement))).collect()
    };
    let files: Vec<_> = TABLES.iter().map(|(name, _)| (*name, file(*name))).collect();
    let reads_of = |query: &str| -> Vec<(u64, [TopologyNode; 3])> {
        let named = files.iter().filter(|(name, _)| query.contains(*name));
        named.flat_map(|(_, blocks)| blocks.iter().copied()).collect()
    };
    let all: usize = QUERIES.iter().map(|query| reads_of(query).len()).sum();
    let reads_per_s = load.rate * f64::from(spec.host_count());
    let gap_s = all as f64 / QUERIES.len() as f64 / reads_per_s;
    let (mut at_s, mut jobs, mut order) = (0.0, Vec::new(), Vec::new());
    while jobs.len() < load.reads {
        if order.is_empty() {
            order = QUERIES.to_vec();
        }
        let query = order.swap_remove(choices.below(order.len() as u64) as usize);
        at_s += times.exponential(gap_s);
        for (bytes, copies) in reads_of(query) {
            let client = workload::client(&mut choices, spec, load.locality, &copies);
            jobs.push(Job { at_s, client, copies, bytes });
        }
    }
    jobs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::ReadParams;

    #[test]
    fn tables_have_the_sizes_of_the_specification() {
        // The clause prints megabytes of 2^20 bytes, rounded.
        let mega = |name| (bytes(name, 1) as f64 / f64::from(1 << 20)).round() as u32;
        let sizes = ['s', 'p', 'x', 'c', 'o', 'l'].map(mega);
        assert_eq!(sizes, [2, 30, 110, 26, 149, 641]);
        assert_eq!(bytes('n', 10), 3_200);
    }

    #[test]
    fn queries_read_whole_tables_at_the_rate_asked_for() {
        let mut params = ReadParams::default();
        (params.load.queries, params.load.reads) = (Some(10), 20_000);
        let jobs = workload::jobs(&params.spec, &params.load, 1);
        let rate = jobs.len() as f64 / jobs[jobs.len() - 1].at_s;
        assert!((rate / 6.4 - 1.0).abs() < 0.15, "{rate}");
        let mut waves = std::collections::BTreeMap::new();
        for job in &jobs {
            *waves.entry(job.at_s.to_bits()).or_insert(0u64) += job.bytes;
        }
        let first = |query: &str| query.chars().map(|name| bytes(name, 10)).sum::<u64>();
        let known: Vec<u64> = QUERIES.iter().map(|query| first(query)).collect();
        assert!(waves.values().all(|bytes| known.contains(bytes)));
        assert!(jobs.iter().all(|job| !job.copies.contains(&job.client)));
    }
}
