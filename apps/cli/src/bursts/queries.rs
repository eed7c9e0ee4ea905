//! `evenfall burst` answers one of three queries over the generated rows of many ranks, or asks
//! what a desk asks ([`desk`](super::desk)).

use std::str::FromStr;

use evenfall_collectives_member::GroupMember;
use evenfall_host::clock::process_cpu;
use evenfall_query_burst::placement::KeyPlacement;
use evenfall_query_burst::query::{QUERY_PHASES, SumRow, answer_plainly, pair_of};
use evenfall_query_burst::rows::{QueryName, make};
use evenfall_query_member::{BurstMember, Duplicates, MilliQuery, QueryRows};
use evenfall_runtime::program::run_until_signal;
use serde_json::{Value, json};

use super::agree::StatedOptions;
use super::memory::expect_memory;
use super::ranks::{
    HostArgs, RANK_ROWS_MAX, RankReport, burst_seconds, part_imbalance, phases_us, print_phases,
};
use crate::Outcome;

/// Notes below the list of options.
const AFTER: &str = "\
With --local, rows are generated at the ranks, before the time begins. Every answer is compared with
that of a plain program that has all rows in one place; the command fails when they differ.";

/// Ranks of this machine by default.
const LOCAL_RANKS: usize = 8;
/// Rows of each rank by default.
const RANK_ROWS: usize = 10_000;
/// Rows of an answer that are printed for people. JSON has all.
const ROWS_SHOWN: usize = 10;

/// Rows of each rank.
fn parse_rows(text: &str) -> Result<usize, String> {
    let allowed = |rows: &usize| (1..=RANK_ROWS_MAX).contains(&(*rows as u64));
    let rows: Option<usize> = text.parse().ok().filter(allowed);
    rows.ok_or_else(|| format!("a number of rows, between 1 and {RANK_ROWS_MAX}"))
}

/// What a desk asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeskWord {
    /// What the window did to positions.
    Reprice,
    /// The best bid and offer over venues.
    Nbbo,
}

/// What the command answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// Bytes of memory that a row takes at most while a query is answered, at its rank and in the plain
/// program: measured with a million rows a rank.
fn row_memory(query: QueryName) -> u128 {
    match query {
        QueryName::Q1 => 40,
        QueryName::Q2 => 60,
        QueryName::Q3 => 160,
    }
}

/// Whether an option of `evenfall burst` changes anything.
pub struct OptionUse {
    name: &'static str,
    is_given: bool,
    is_used: bool,
    /// What the option belongs to.
    belongs_to: &'static str,
}

impl OptionUse {
    /// The use of this option.
    pub fn new(
        name: &'static str,
        is_given: bool,
        is_used: bool,
        belongs_to: &'static str,
    ) -> Self {
        Self { name, is_given, is_used, belongs_to }
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
    /// Ranks, which are processes of this machine: 8 by default. For a desk each is a worker.
    #[arg(long, value_name = "RANKS", conflicts_with = "members")]
    local: Option<usize>,
    /// Rows of each rank: 10,000 by default.
    #[arg(long, value_name = "COUNT", value_parser = parse_rows)]
    records: Option<usize>,
    /// q2 and q3: when equal rows become one: before (a shuffle, and behind it), which is the
    /// default, or after (only behind it).
    #[arg(long)]
    duplicates: Option<Duplicates>,
    /// q2 and q3: how rows find the rank that adds them up: by a hash of their key, which is the
    /// default, or by a range of keys, which the ranks agree on first (for keys that many rows
    /// have).
    #[arg(long)]
    partition: Option<KeyPlacement>,
    /// Seed of the rows; 1 by default.
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    pub hosts: HostArgs,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub desk: super::desk::DeskArgs,
}

impl BurstArgs {
    /// Ranks of this machine.
    pub fn local(&self) -> usize {
        self.local.unwrap_or(LOCAL_RANKS)
    }

    /// Rows of each rank.
    pub fn rank_rows(&self) -> usize {
        self.records.unwrap_or(RANK_ROWS)
    }

    /// Seed of the rows.
    pub fn seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }

    fn duplicates(&self) -> Duplicates {
        self.duplicates.unwrap_or(Duplicates::OutBefore)
    }

    /// Refuses options that change nothing about the question.
    fn refuse_useless(&self) -> Result<(), String> {
        use BurstQuestion::{Desk, Query};
        let is_shuffled = matches!(self.query, Query(QueryName::Q2 | QueryName::Q3));
        let is_desk = matches!(self.query, Desk(_));
        let is_made = self.desk.workers.is_none();
        let made = "generated rows";
        let own = [
            OptionUse::new("members", self.hosts.members.is_some(), !is_desk, "q1, q2 and q3"),
            OptionUse::new("duplicates", self.duplicates.is_some(), is_shuffled, "q2 and q3"),
            OptionUse::new("partition", self.partition.is_some(), is_shuffled, "q2 and q3"),
            OptionUse::new("records", self.records.is_some(), is_made, made),
            OptionUse::new("seed", self.seed.is_some(), is_made, made),
        ];
        let word = if let Desk(word) = self.query { Some(word) } else { None };
        let mut all = own.into_iter().chain(self.desk.option_uses(word));
        match all.find(|option| option.is_given && !option.is_used) {
            Some(OptionUse { name, belongs_to, .. }) => {
                Err(format!("--{name}: has an effect only with {belongs_to}"))
            }
            None => Ok(()),
        }
    }

    /// What all ranks must have been started with.
    fn stated(&self, query: QueryName) -> StatedOptions {
        StatedOptions::of(&format!("burst {}", format!("{query:?}").to_lowercase()))
            .state("records", self.rank_rows())
            .state("seed", self.seed())
            .state("duplicates", self.duplicates().name())
            .state("partition", self.partition.unwrap_or_default().name())
    }

    /// Refuses more rows than this host has memory for: those of the ranks, and those of all ranks
    /// once more at rank 0.
    pub fn expect_row_memory(&self, ranks: usize, row_bytes: u128) -> Result<(), String> {
        let (rows, ranks) = (self.rank_rows() as u128, ranks as u128);
        let here = if self.hosts.has_one_clock() { ranks } else { 1 };
        expect_memory(&format!("--records {rows}"), rows * here * row_bytes)
    }
}

/// Answers a query as one rank, or asks what a desk asks.
pub fn run_query(args: &BurstArgs) -> Outcome {
    run_until_signal(
        || (),
        || {
            args.refuse_useless()?;
            match args.query {
                BurstQuestion::Desk(word) => super::desk::ask_desk(args, word),
                BurstQuestion::Query(query) => {
                    args.expect_row_memory(args.local(), row_memory(query))?;
                    let member = args.hosts.join(args.local(), &args.stated(query))?;
                    let rank = member.rank();
                    args.hosts.end_rank(rank, answer_as(args, query, member))
                }
            }
        },
    )
}

fn answer_as(args: &BurstArgs, query: QueryName, mut member: GroupMember) -> Outcome {
    let (rank, ranks) = (member.rank(), member.group().members().len());
    let rows = |rank| make(query, args.seed(), rank, ranks, args.rank_rows());
    let own = member.work_beside(|| rows(rank))?;
    let records = own.len() as u64;
    member.barrier()?;
    let mut asker = BurstMember::new(member);
    let cpu = process_cpu();
    let program = MilliQuery::new(ranks, own, args.duplicates());
    let placement = args.partition.unwrap_or_default();
    let run = asker.run_burst(program.placed_by(placement, rank as u16))?;
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
        let answer = &run.output.answer;
        tell_answer(args, query, &reports, answer, plain == *answer)
    };
    args.hosts.leave(member);
    end
}

/// What a row of the answer is about, and what its number counts.
fn name_row(query: QueryName, row: &SumRow) -> (String, &'static str) {
    match query {
        QueryName::Q1 => (format!("language {}", row.key), "views"),
        QueryName::Q2 => (format!("address {}", row.key), "edits"),
        QueryName::Q3 => {
            let (language, author) = pair_of(row.key);
            (format!("language {language}, author {author}"), "bytes")
        }
    }
}

fn row_json(query: QueryName, row: &SumRow) -> Value {
    match query {
        QueryName::Q1 => json!({"language": row.key, "views": row.sum}),
        QueryName::Q2 => json!({"address": row.key, "edits": row.sum}),
        QueryName::Q3 => {
            let (language, author) = pair_of(row.key);
            json!({"language": language, "author": author, "bytes": row.sum})
        }
    }
}

fn tell_answer(
    args: &BurstArgs,
    query: QueryName,
    reports: &[RankReport],
    answer: &[SumRow],
    is_plain: bool,
) -> Outcome {
    let rows = answer.len();
    let completion_us = burst_seconds(reports, args.hosts.has_one_clock()) * 1e6;
    let records: u64 = reports.iter().map(|report| report.records).sum();
    let phases = phases_us(reports, &QUERY_PHASES);
    if args.json {
        let result = json!({
            "completion_us": completion_us, "records": records, "ranks": reports.len(),
            "imbalance": part_imbalance(reports), "phases_us": phases, "answer_rows": rows,
            "cpu_seconds": reports.iter().map(|report| report.cpu_ns).sum::<u64>() as f64 / 1e9,
            "partition": args.partition.unwrap_or_default().name(),
            "duplicates": args.duplicates().name(), "answer_equals_plain": is_plain,
            "answer": answer.iter().map(|row| row_json(query, row)).collect::<Vec<_>>(),
        });
        say!("{result}");
    } else {
        say!("{rows} rows from {records} rows of {} ranks", reports.len());
        say!("  answered in {:.0} us", completion_us);
        say!("  the fullest rank has {:.3} times the mean", part_imbalance(reports));
        print_phases(&phases, &QUERY_PHASES);
        let mut top: Vec<&SumRow> = answer.iter().collect();
        top.sort_by_key(|row| std::cmp::Reverse(row.sum));
        for row in top.into_iter().take(ROWS_SHOWN) {
            let (name, counts) = name_row(query, row);
            say!("  {name:<32} {:>14} {counts}", row.sum);
        }
        if rows > ROWS_SHOWN {
            say!("  and {} more rows, which --json prints", rows - ROWS_SHOWN);
        }
    }
    if !is_plain {
        return Err("the answer differs from that of a plain program".into());
    }
    Ok(())
}
