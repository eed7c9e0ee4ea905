//! `evenfall sort` puts the records of all ranks in order.

use std::path::PathBuf;
use std::sync::Arc;

use evenfall_collectives_member::GroupMember;
use evenfall_host::clock::process_cpu;
use evenfall_host::pin;
use evenfall_query_burst::partition::{LEVELS_MAX, PartitionConfig};
use evenfall_query_burst::pivots::SplitterRule;
use evenfall_query_burst::rows::find_rule;
use evenfall_query_burst::sort::{PHASES, VALUE_BYTES};
use evenfall_query_member::check::{PartSummary, SortVerdict, judge_sort, sort_plainly};
use evenfall_query_member::files::{
    RECORD_BYTES, count_records, join_blocks, read_share, split_block, write_part,
};
use evenfall_query_member::{KeyDraw, Records, SortConfig, SortMember, make_records};
use serde_json::json;

use super::ranks::{
    HostArgs, RankReport, burst_seconds, end_rank, part_imbalance, phases_us, print_phases,
};
use crate::Outcome;

type Failure = Box<dyn std::error::Error>;

/// Ranks from which on two levels are faster than one: with ten ranks and fewer, the second level
/// has a single sorter.
const ONE_LEVEL_RANKS: usize = 10;

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
    #[arg(long, value_name = "COUNT", required_unless_present = "input", conflicts_with = "input")]
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
    /// With --records: how keys are drawn: uniform, gaussian, few (a hundred keys) or equal.
    #[arg(long, default_value = "uniform")]
    keys: KeyDraw,
    /// With --records: seed of the records.
    #[arg(long, default_value_t = 1)]
    seed: u64,
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

    /// The input of this rank.
    fn load(&self, rank: usize, ranks: usize) -> Result<Records, String> {
        if let Some(file) = &self.input {
            let (rank, ranks) = if self.hosts.has_one_clock() { (rank, ranks) } else { (0, 1) };
            return read_share(file, rank, ranks).map_err(|error| format!("--in {error}"));
        }
        let all = u128::from(self.records.unwrap_or(0));
        let first = |rank: usize| (all * rank as u128 / ranks as u128) as usize;
        Ok(make_records(self.keys, self.seed, rank, first(rank + 1) - first(rank)))
    }
}

/// Sorts as one rank.
pub fn sort_records(args: &SortArgs) -> Outcome {
    // A file that cannot be sorted is refused before any process starts.
    args.input.iter().try_for_each(|file| count_records(file).map(drop))?;
    let local = args.ranks.unwrap_or_else(|| pin::available_cores().len().max(2));
    let member = args.hosts.join(local)?;
    let rank = member.rank();
    end_rank(rank, sort_as(args, member))
}

fn sort_as(args: &SortArgs, mut member: GroupMember) -> Outcome {
    let (rank, ranks) = (member.rank(), member.group().members().len());
    let (records, before) = member.work_beside(|| {
        let records = args.load(rank, ranks)?;
        let before = PartSummary::of(&records);
        Ok::<_, String>((records, before))
    })??;
    member.barrier()?;
    let input = args.verify.then(|| records.clone());
    let mut sorter = SortMember::new(member, args.config(ranks));
    let cpu = process_cpu();
    let run = sorter.sort_records(records)?;
    let mut report = RankReport::of(&run, process_cpu() - cpu);
    let mut member = sorter.into_member();
    // A rank that writes its part would take a core from a rank that still sorts.
    member.barrier()?;
    let sorted = run.output.records;
    let after = member.work_beside(|| {
        let written = args.output.as_ref().map(|dir| write_part(dir, rank, &sorted)).transpose();
        written.map(|_| PartSummary::of(&sorted))
    })??;
    (report.records, report.part) = (before.records, after.records);
    report.summaries = [&before, &after].map(|summary| summary.encode().to_vec());
    let reports = report.gather(&mut member)?;
    let is_plain = input.map(|input| verify_bytes(&mut member, &input, &sorted)).transpose()?;
    let end = if rank == 0 { tell_result(args, &reports, is_plain.flatten()) } else { Ok(()) };
    member.leave();
    end
}

/// Whether the output of all ranks is what a plain sort makes of the input of all ranks: known to
/// rank 0.
fn verify_bytes(
    member: &mut GroupMember,
    input: &Records,
    output: &Records,
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

fn tell_result(args: &SortArgs, reports: &[RankReport], is_plain: Option<bool>) -> Outcome {
    let summary = |at: usize| -> Option<Vec<PartSummary>> {
        reports.iter().map(|report| PartSummary::decode(&report.summaries[at])).collect()
    };
    let (before, after) = (summary(0), summary(1));
    let (Some(before), Some(after)) = (before, after) else {
        return Err("a rank runs another version of this program".into());
    };
    let SortVerdict { ordered, same_records, stable } = judge_sort(&before, &after);
    // Records of a file have no numbers by which their order among equal keys could be known.
    let stable = is_plain.or(args.input.is_none().then_some(stable));
    let ranks = reports.len();
    let records: u64 = reports.iter().map(|report| report.records).sum();
    let took = burst_seconds(reports, args.hosts.has_one_clock());
    let cores = if args.hosts.has_one_clock() { pin::available_cores().len() } else { ranks };
    let cores = cores.min(ranks);
    let rate = records as f64 / (took * 1e3) / cores as f64;
    let phases = phases_us(reports, &PHASES);
    if args.json {
        let result = json!({
            "records": records, "bytes": records * RECORD_BYTES as u64, "ranks": ranks,
            "levels": args.config(ranks).partition.levels, "seconds": took, "cores": cores,
            "records_per_ms_per_core": rate, "imbalance": part_imbalance(reports),
            "cpu_seconds": reports.iter().map(|report| report.cpu_ns).sum::<u64>() as f64 / 1e9,
            "phases_us": phases, "ordered": ordered, "same_records": same_records,
            "stable": stable, "equals_plain_sort": is_plain,
        });
        println!("{result}");
    } else {
        println!("{records} records in order, by {ranks} ranks in {:.1} ms", took * 1e3);
        println!("  {rate:.0} records/ms on each of {cores} cores");
        println!("  the largest part is {:.3} times the mean", part_imbalance(reports));
        print_phases(&phases, &PHASES);
        if let Some(dir) = &args.output {
            println!("  parts in {}", dir.display());
        }
    }
    if !ordered || !same_records || stable == Some(false) {
        return Err(format!(
            "the output is wrong: ordered {ordered}, the same records {same_records}, stable \
             {stable:?}"
        )
        .into());
    }
    Ok(())
}
