//! `evenfall sort` puts the records of all ranks in order.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use evenfall_collectives_member::{GroupMember, local_rank};
use evenfall_host::clock::process_cpu;
use evenfall_host::pin;
use evenfall_query_burst::partition::{LEVELS_MAX, PartitionConfig};
use evenfall_query_burst::pivots::SplitterRule;
use evenfall_query_burst::rows::find_rule;
use evenfall_query_burst::sort::{PHASES, VALUE_BYTES};
use evenfall_query_member::check::{PartSummary, SortVerdict, judge_sort, sort_plainly};
use evenfall_query_member::files::{
    PartFile, RECORD_BYTES, RecordFileError, count_records, expect_no_later_part, join_blocks,
    make_directory, read_share, split_block,
};
use evenfall_query_member::{KeyDraw, SortConfig, SortMember, SortRecords, make_records};
use evenfall_runtime::program::run_until_signal;
use serde_json::json;

use super::agree::{StatedOptions, expect_at_all};
use super::memory::expect_memory;
use super::ranks::{
    HostArgs, RANK_ROWS_MAX, RankReport, burst_seconds, part_imbalance, phases_us, print_phases,
};
use crate::Outcome;

type Failure = Box<dyn std::error::Error>;

/// Ranks from which on two levels are faster than one: with ten ranks and fewer, the second level
/// has a single sorter.
const ONE_LEVEL_RANKS: usize = 10;

/// Bytes of memory that a record takes at most while it is sorted: measured with a million records
/// a rank, 295.
const SORT_MEMORY: u128 = 300;
/// Bytes that a record of any rank takes at rank 0 besides, while all bytes are compared:
/// measured likewise.
const VERIFY_MEMORY: u128 = 750;

/// Notes below the list of options.
const AFTER: &str = "\
A record has 100 bytes: 10 bytes of key, then 90 bytes of value. Records are kept in memory. Equal
keys keep their order. Every run checks that the output is the input in order; --verify compares all
bytes with a sort by one process besides.";

/// Arguments of `evenfall sort`.
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER)]
pub struct SortArgs {
    /// Sort this many generated records, which the ranks share.
    #[arg(long, value_name = "COUNT", required_unless_present = "input", conflicts_with = "input",
          value_parser = clap::value_parser!(u64).range(1..))]
    records: Option<u64>,
    /// Sort the records of this file. With --members each host has a file of its own.
    #[arg(long = "in", id = "input", value_name = "FILE")]
    input: Option<PathBuf>,
    /// Write the part of each rank into this directory. The parts in the order of their names are
    /// the sorted file.
    #[arg(long = "out", value_name = "DIR")]
    output: Option<PathBuf>,
    /// Ranks, which are processes of this machine; by default one for each core, and at least two.
    #[arg(long, conflicts_with = "members")]
    ranks: Option<usize>,
    /// Levels of the partition; by default 1 up to ten ranks, and 2 beyond.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=LEVELS_MAX as i64))]
    levels: Option<u8>,
    /// Pivots that each rank draws for each rank.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pivots: u32,
    /// How splitters are chosen: weighted (a pivot stands for half of the records on each of its
    /// sides) or naive (for those in front of it).
    #[arg(long, default_value = "weighted", value_parser = find_rule)]
    splitters: Arc<dyn SplitterRule>,
    /// With --records: how keys are drawn: uniform (the default), gaussian, few (a hundred keys) or
    /// equal.
    #[arg(long, conflicts_with = "input")]
    keys: Option<KeyDraw>,
    /// With --records: seed of the records; 1 by default.
    #[arg(long, conflicts_with = "input")]
    seed: Option<u64>,
    /// Compare all bytes with a stable sort of all records by rank 0, which needs memory for them.
    #[arg(long)]
    verify: bool,
    #[command(flatten)]
    hosts: HostArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl SortArgs {
    fn config(&self, ranks: usize) -> SortConfig {
        let by_size = if ranks > ONE_LEVEL_RANKS { 2 } else { 1 };
        let partition = PartitionConfig {
            levels: self.levels.map_or(by_size, usize::from),
            pivots_per_rank: self.pivots as usize,
            rule: self.splitters.clone(),
        };
        SortConfig { value_bytes: VALUE_BYTES, partition }
    }

    fn draw(&self) -> (KeyDraw, u64) {
        (self.keys.unwrap_or_default(), self.seed.unwrap_or(1))
    }

    /// The input of this rank.
    fn load(&self, rank: usize, ranks: usize) -> Result<SortRecords, String> {
        if let Some(file) = &self.input {
            let (rank, ranks) = if self.hosts.has_one_clock() { (rank, ranks) } else { (0, 1) };
            return read_share(file, rank, ranks).map_err(|error| format!("--in {error}"));
        }
        let all = u128::from(self.records.unwrap_or(0));
        let first = |rank: usize| (all * rank as u128 / ranks as u128) as usize;
        let (keys, seed) = self.draw();
        Ok(make_records(keys, seed, rank, first(rank + 1) - first(rank)))
    }

    /// Refuses what cannot be sorted before any process starts.
    fn check(&self, ranks: usize) -> Result<(), String> {
        let (all_ranks, is_here) = (ranks.max(1) as u64, self.hosts.has_one_clock());
        // The records of all ranks on this host, and how many ranks they are.
        let (option, records, sharers) = match (&self.input, self.records.unwrap_or(0)) {
            (Some(file), _) => {
                let count = count_records(file).map_err(|error| format!("--in {error}"))?;
                (format!("--in {}", file.display()), count, if is_here { all_ranks } else { 1 })
            }
            (None, all) if is_here => (format!("--records {all}"), all, all_ranks),
            (None, all) => (format!("--records {all}"), all.div_ceil(all_ranks), 1),
        };
        if records > RANK_ROWS_MAX.saturating_mul(sharers) {
            return Err(format!("{option}: {RANK_ROWS_MAX} records a rank at most"));
        }
        let gathers = self.verify && (is_here || self.hosts.rank == Some(0));
        let of_check = if gathers { self.records.unwrap_or(records) } else { 0 };
        let needed = u128::from(records) * SORT_MEMORY + u128::from(of_check) * VERIFY_MEMORY;
        expect_memory(&option, needed)?;
        let Some(dir) = &self.output else { return Ok(()) };
        let fits = || -> Result<(), RecordFileError> {
            if is_here {
                expect_no_later_part(dir, ranks)?;
            }
            make_directory(dir)
        };
        fits().map_err(|error| format!("--out {error}"))
    }

    /// Where the parts lie while they are written: of this rank, or of all ranks for the process
    /// that has started the others.
    fn partial_files(&self, local: usize) -> Vec<PathBuf> {
        let ranks = match (self.hosts.rank.or_else(local_rank), &self.output) {
            (_, None) => 0..0,
            (Some(rank), _) => rank..rank + 1,
            (None, _) => 0..local,
        };
        let path = |rank| Some(PartFile::partial_path(self.output.as_ref()?, rank));
        ranks.filter_map(path).collect()
    }

    /// What all ranks must have been started with.
    fn stated(&self, ranks: usize) -> StatedOptions {
        let (partition, (keys, seed)) = (self.config(ranks).partition, self.draw());
        let stated = StatedOptions::of("sort")
            .state("levels", partition.levels)
            .state("pivots", partition.pivots_per_rank)
            .state("splitters", partition.rule.name())
            .state_given("verify", self.verify)
            .state_given("out", self.output.is_some())
            .state_given("in", self.input.is_some());
        let Some(records) = self.records else { return stated };
        stated
            .state("records", records)
            .state("keys", format!("{keys:?}").to_lowercase())
            .state("seed", seed)
    }
}

/// Sorts as one rank.
pub fn sort_records(args: &SortArgs) -> Outcome {
    let local = args.ranks.unwrap_or_else(|| pin::available_cores().len().max(2));
    let partial = args.partial_files(local);
    // A part that is not whole is of no use to anyone.
    let remove = move || partial.iter().for_each(|file| drop(fs::remove_file(file)));
    run_until_signal(remove.clone(), || {
        let ranks = args.hosts.rank_count(local)?;
        args.check(ranks)?;
        let member = args.hosts.join(local, &args.stated(ranks))?;
        let rank = member.rank();
        let end = sort_as(args, member);
        if end.is_err() {
            // A rank of this machine was killed before it could remove its part.
            remove();
        }
        args.hosts.end_rank(rank, end)
    })
}

fn sort_as(args: &SortArgs, mut member: GroupMember) -> Outcome {
    let (rank, ranks) = (member.rank(), member.group().members().len());
    let out = |error: RecordFileError| format!("--out {error}");
    let loaded = member.work_beside(|| {
        let part = args.output.as_ref().map(|dir| PartFile::create(dir, rank)).transpose();
        let records = args.load(rank, ranks)?;
        let before = PartSummary::of(&records);
        Ok((part.map_err(out)?, records, before))
    })?;
    let (member, (mut part, records, before)) = expect_at_all(member, loaded)?;
    let input = args.verify.then(|| records.clone());
    let mut sorter = SortMember::new(member, args.config(ranks));
    let cpu = process_cpu();
    let run = sorter.sort_records(records)?;
    let mut report = RankReport::of(&run, process_cpu() - cpu);
    let mut member = sorter.into_member();
    // A rank that writes its part would take a core from a rank that still sorts.
    member.barrier()?;
    let sorted = run.output.records;
    let written = member.work_beside(|| {
        part.as_mut().map_or(Ok(()), |part| part.write_records(&sorted)).map_err(out)?;
        Ok(PartSummary::of(&sorted))
    })?;
    let (mut member, after) = expect_at_all(member, written)?;
    (report.records, report.part) = (before.records, after.records);
    report.summaries = [&before, &after].map(|summary| summary.encode().to_vec());
    let reports = report.gather(&mut member)?;
    let is_plain = input.map(|input| verify_bytes(&mut member, &input, &sorted)).transpose()?;
    let judge = || judge_result(args, &reports, is_plain.flatten());
    let result = (rank == 0).then(judge).transpose()?;
    let wrong = result.as_ref().and_then(|result| result.wrong.clone());
    if let (Some(result), Some(_)) = (&result, &wrong) {
        result.tell(args, &reports);
    }
    // No part takes its name before all ranks know that all parts are right.
    let (member, ()) = expect_at_all(member, wrong.map_or(Ok(()), Err))?;
    let named = part.map_or(Ok(()), |part| part.take_name().map(drop).map_err(out));
    let (member, ()) = expect_at_all(member, named)?;
    if let Some(result) = result {
        result.tell(args, &reports);
    }
    args.hosts.leave(member);
    Ok(())
}

/// Whether the output of all ranks is what a plain sort makes of the input of all ranks: known to
/// rank 0.
fn verify_bytes(
    member: &mut GroupMember,
    input: &SortRecords,
    output: &SortRecords,
) -> Result<Option<bool>, Failure> {
    let inputs = member.gather(0, join_blocks(input))?;
    let outputs = member.gather(0, join_blocks(output))?;
    if member.rank() > 0 {
        return Ok(None);
    }
    let is_plain = member.work_beside(|| {
        let wanted = join_blocks(&sort_plainly(&split_block(&inputs.concat())));
        wanted == outputs.concat()
    })?;
    Ok(Some(is_plain))
}

/// What rank 0 finds about the parts of all ranks.
struct SortResult {
    verdict: SortVerdict,
    is_plain: Option<bool>,
    stable: Option<bool>,
    /// Why the output is wrong, if it is.
    wrong: Option<String>,
}

fn judge_result(
    args: &SortArgs,
    reports: &[RankReport],
    is_plain: Option<bool>,
) -> Result<SortResult, Failure> {
    let summary = |at: usize| -> Option<Vec<PartSummary>> {
        reports.iter().map(|report| PartSummary::decode(&report.summaries[at])).collect()
    };
    let (before, after) = (summary(0), summary(1));
    let (Some(before), Some(after)) = (before, after) else {
        return Err("a rank runs another version of this program".into());
    };
    let verdict = judge_sort(&before, &after);
    let SortVerdict { ordered, same_records, stable } = verdict;
    // Records of a file have no numbers by which their order among equal keys could be known.
    let stable = is_plain.or(args.input.is_none().then_some(stable));
    let is_wrong = !ordered || !same_records || stable == Some(false);
    let wrong = is_wrong.then(|| {
        format!(
            "the output is wrong: ordered {ordered}, the same records {same_records}, stable \
             {stable:?}"
        )
    });
    Ok(SortResult { verdict, is_plain, stable, wrong })
}

impl SortResult {
    fn tell(&self, args: &SortArgs, reports: &[RankReport]) {
        let ranks = reports.len();
        let records: u64 = reports.iter().map(|report| report.records).sum();
        let has_one_clock = args.hosts.has_one_clock();
        let took = burst_seconds(reports, has_one_clock);
        let cores = if has_one_clock { pin::available_cores().len() } else { ranks };
        let cores = cores.min(ranks);
        let rate = records as f64 / (took * 1e3) / cores as f64;
        let phases = phases_us(reports, &PHASES);
        if args.json {
            let result = json!({
                "records": records, "bytes": records * RECORD_BYTES as u64, "ranks": ranks,
                "levels": args.config(ranks).partition.levels, "seconds": took, "cores": cores,
                "records_per_ms_per_core": rate, "imbalance": part_imbalance(reports),
                "cpu_seconds": reports.iter().map(|report| report.cpu_ns).sum::<u64>() as f64 / 1e9,
                "phases_us": phases, "ordered": self.verdict.ordered,
                "same_records": self.verdict.same_records,
                "stable": self.stable, "equals_plain_sort": self.is_plain,
            });
            say!("{result}");
            return;
        }
        say!("{records} records in order, by {ranks} ranks in {:.1} ms", took * 1e3);
        say!("  {rate:.0} records/ms on each of {cores} cores");
        say!("  the largest part is {:.3} times the mean", part_imbalance(reports));
        print_phases(&phases, &PHASES);
        if let Some(dir) = &args.output {
            say!("  parts in {}", dir.display());
        }
    }
}
