//! `evenfall burst` answers one of three queries over the generated rows of many ranks, or asks
//! what a desk asks ([`desk`](super::desk)).

use std::str::FromStr;

use evenfall_collectives_member::GroupMember;
use evenfall_host::clock::process_cpu;
use evenfall_query_burst::query::{QUERY_PHASES, answer_plainly};
use evenfall_query_burst::rows::{QueryName, make};
use evenfall_query_member::{BurstMember, Duplicates, MilliQuery, QueryRows};
use serde_json::json;

use super::ranks::{
    HostArgs, RankReport, burst_seconds, end_rank, part_imbalance, phases_us, print_phases,
};
use crate::Outcome;

/// Notes below the list of options.
const AFTER: &str = "\
With --local, rows are generated at the ranks, before the time begins. Every answer is compared with
that of a plain program that has all rows in one place; the command fails when they differ.";

/// What a desk asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeskWord {
    /// What the window did to positions.
    Reprice,
    /// The best bid and offer over venues.
    Nbbo,
}

/// What the command answers.
#[derive(Clone, Copy, Debug)]
enum BurstQuestion {
    Query(QueryName),
    Desk(DeskWord),
}

impl FromStr for BurstQuestion {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "reprice" => Ok(Self::Desk(DeskWord::Reprice)),
            "nbbo" => Ok(Self::Desk(DeskWord::Nbbo)),
            word => {
                let unknown = |_| "there are q1, q2, q3, reprice and nbbo".to_owned();
                word.parse().map(Self::Query).map_err(unknown)
            }
        }
    }
}

/// Arguments of `evenfall burst`.
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER)]
pub struct BurstArgs {
    /// The query: q1 (views of each language: sums up a tree), q2 (the ten addresses with most
    /// edits: one shuffle), q3 (the hundred pairs of language and author with most bytes: three
    /// shuffles and a join); or what a desk asks: reprice (what the last seconds did to positions)
    /// or nbbo (the best bid and offer over venues, and executions beside it).
    query: BurstQuestion,
    /// Ranks, which are processes of this machine. For a desk each is a worker.
    #[arg(long, value_name = "RANKS", default_value_t = 8, conflicts_with = "members")]
    pub local: usize,
    /// Rows of each rank.
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    pub records: usize,
    /// When equal rows become one: before (a shuffle, and behind it) or after (only behind it).
    #[arg(long, default_value = "before")]
    duplicates: Duplicates,
    /// Seed of the rows.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub hosts: HostArgs,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub desk: super::desk::DeskArgs,
}

/// Answers a query as one rank, or asks what a desk asks.
pub fn run_query(args: &BurstArgs) -> Outcome {
    match args.query {
        BurstQuestion::Desk(word) => super::desk::ask_desk(args, word),
        BurstQuestion::Query(query) => {
            let member = args.hosts.join(args.local)?;
            let rank = member.rank();
            end_rank(rank, answer_as(args, query, member))
        }
    }
}

fn answer_as(args: &BurstArgs, query: QueryName, mut member: GroupMember) -> Outcome {
    let (rank, ranks) = (member.rank(), member.group().members().len());
    let rows = |rank| make(query, args.seed, rank, ranks, args.records);
    let own = member.work_beside(|| rows(rank))?;
    let records = own.len() as u64;
    member.barrier()?;
    let mut asker = BurstMember::new(member);
    let cpu = process_cpu();
    let run = asker.run_burst(MilliQuery::new(ranks, own, args.duplicates))?;
    let mut report = RankReport::of(&run, process_cpu() - cpu);
    (report.records, report.part) = (records, run.output.summed);
    let mut member = asker.into_member();
    let reports = report.gather(&mut member)?;
    let end = if rank > 0 {
        Ok(())
    } else {
        let plain = member.work_beside(|| {
            let all: Vec<QueryRows> = (0..ranks).map(rows).collect();
            answer_plainly(&all)
        })?;
        tell_answer(args, &reports, run.output.answer.len(), plain == run.output.answer)
    };
    member.leave();
    end
}

fn tell_answer(args: &BurstArgs, reports: &[RankReport], rows: usize, is_plain: bool) -> Outcome {
    let completion_us = burst_seconds(reports, args.hosts.has_one_clock()) * 1e6;
    let records: u64 = reports.iter().map(|report| report.records).sum();
    let phases = phases_us(reports, &QUERY_PHASES);
    if args.json {
        let result = json!({
            "completion_us": completion_us, "records": records, "ranks": reports.len(),
            "imbalance": part_imbalance(reports), "phases_us": phases, "answer_rows": rows,
            "cpu_seconds": reports.iter().map(|report| report.cpu_ns).sum::<u64>() as f64 / 1e9,
            "answer_equals_plain": is_plain,
        });
        println!("{result}");
    } else {
        println!("{rows} rows from {records} rows of {} ranks", reports.len());
        println!("  answered in {:.0} us", completion_us);
        println!("  the fullest rank has {:.3} times the mean", part_imbalance(reports));
        print_phases(&phases, &QUERY_PHASES);
    }
    if !is_plain {
        return Err("the answer differs from that of a plain program".into());
    }
    Ok(())
}
