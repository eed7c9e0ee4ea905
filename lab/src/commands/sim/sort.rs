//! `evenfall sim sort` and `evenfall sim burst`: bursts on the network of their thesis.

use std::sync::Arc;

use clap::ValueEnum;
use evenfall_campaigns::sort::scene::SimShuffle;
use evenfall_campaigns::sort::{BurstOutcome, BurstScene, scene};
use evenfall_query_burst::partition::LEVELS_MAX;
use evenfall_query_burst::pivots::SplitterRule;
use evenfall_query_burst::placement::KeyPlacement;
use evenfall_query_burst::query::Duplicates;
use evenfall_query_burst::rows::{KeyDraw, QueryName, find_rule};
use evenfall_runtime::program::Outcome;
use evenfall_runtime::progress::Progress;
use evenfall_studies::sort::balance::table_2_2;
use evenfall_studies::sort::figures::{self, ThesisNumber};
use evenfall_studies::sort::study::table_2_5;
use serde_json::{Value, json};

/// Servers of a simulated burst at most: ten times those of the thesis.
const SERVERS_MAX: usize = 2_800;
/// Records of all servers at most. The data of a run lie in memory four times, 12 GB at the limit;
/// the largest sort of the thesis has 26 million.
const RECORDS_MAX: usize = 30_000_000;

/// Arguments of `evenfall sim sort`.
#[derive(clap::Args, Debug)]
pub struct SimSortArgs {
    /// Number of servers.
    #[arg(long, default_value_t = 120)]
    servers: usize,
    /// Records of each server.
    #[arg(long, default_value_t = 7_000)]
    records: usize,
    /// Levels of the partition.
    #[arg(
        long,
        default_value_t = 2,
        value_parser = clap::value_parser!(u8).range(1..=LEVELS_MAX as i64)
    )]
    levels: u8,
    /// How splitters are chosen: weighted or naive.
    #[arg(long, default_value = "weighted", value_parser = find_rule)]
    splitters: Arc<dyn SplitterRule>,
    /// How keys are drawn: uniform, gaussian, few (a hundred keys) or equal.
    #[arg(long, default_value = "uniform")]
    keys: KeyDraw,
    /// How the servers shuffle.
    #[arg(long, value_enum, default_value = "grpf")]
    shuffle: ShuffleChoice,
    /// Print a table of the thesis beside ours instead.
    #[arg(long, value_enum)]
    table: Option<Table>,
    /// Print the numbers of a figure of the thesis beside ours instead. 2.5 runs some hundred
    /// bursts.
    #[arg(long, value_enum, conflicts_with = "table")]
    figure: Option<Figure>,
    /// With --table: runs of each row, of which the medians are printed. The thesis has 1,000 for
    /// 2.2, and 200 for 2.5.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    runs: u64,
    /// Seed of the run. The same seed gives the same run on any machine.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// How the servers of a burst shuffle.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ShuffleChoice {
    /// The shuffle of the product, with everything sent unasked.
    Grpf,
    /// That of the source: chunks of 32 KB (the source: 40), eight at once, random targets, one
    /// chunk under way to a target.
    Entropy,
}

impl From<ShuffleChoice> for SimShuffle {
    fn from(choice: ShuffleChoice) -> Self {
        match choice {
            ShuffleChoice::Grpf => Self::Grpf,
            ShuffleChoice::Entropy => Self::Entropy,
        }
    }
}

/// A table of the thesis.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Table {
    /// The largest partition of 120 servers.
    #[value(name = "2.2")]
    Balance,
    /// The most records in 1 ms: some hundred bursts.
    #[value(name = "2.4")]
    Largest,
    /// The phases of 120 and 240 servers.
    #[value(name = "2.5")]
    Phases,
    /// Records a millisecond of a server and of a core.
    #[value(name = "2.6")]
    Efficiency,
}

/// A figure of the thesis.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Figure {
    /// The most records in .5, 1 and 2 ms.
    #[value(name = "2.5")]
    Budgets,
    /// The time of a sort by records a server.
    #[value(name = "2.6")]
    SortTimes,
    /// The time of the queries by rows a server.
    #[value(name = "2.7")]
    QueryTimes,
    /// A shuffle alone by the length of its messages.
    #[value(name = "2.8")]
    Shuffles,
    /// The partition by servers and levels.
    #[value(name = "2.9")]
    Partitions,
    /// The points to which the rows of the queries are fitted.
    #[value(name = "fit")]
    Fit,
}

/// Arguments of `evenfall sim burst`.
#[derive(clap::Args, Debug)]
pub struct SimBurstArgs {
    /// The query: q1, q2 or q3.
    query: QueryName,
    /// Number of servers.
    #[arg(long, default_value_t = 120)]
    servers: usize,
    /// Rows of each server.
    #[arg(long, default_value_t = 10_000)]
    records: usize,
    /// When equal rows become one: before a shuffle and behind it, or only after.
    #[arg(long, default_value = "before")]
    duplicates: Duplicates,
    /// How rows find the server that adds them up: by a hash of their key, or by a range of keys,
    /// which the servers agree on first.
    #[arg(long, default_value = "hash")]
    partition: KeyPlacement,
    /// How the servers shuffle.
    #[arg(long, value_enum, default_value = "grpf")]
    shuffle: ShuffleChoice,
    /// Seed of the run. The same seed gives the same run on any machine.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

fn check_size(servers: usize, records: usize) -> Result<(), String> {
    if servers == 0 || servers > SERVERS_MAX {
        return Err(format!("--servers {servers}: between 1 and {SERVERS_MAX}"));
    }
    if servers.saturating_mul(records) > RECORDS_MAX {
        return Err(format!(
            "--records {records}: {servers} servers can have {} each",
            RECORDS_MAX / servers
        ));
    }
    Ok(())
}

/// Sorts, or prints a table.
pub fn run_sort(args: &SimSortArgs) -> Outcome {
    let shuffle: SimShuffle = args.shuffle.into();
    match (args.table, args.figure) {
        (Some(Table::Balance), _) => return print_balance(args),
        (Some(Table::Phases), _) => return print_phases(args),
        (Some(Table::Largest), _) => return print_rows(args, || figures::table_2_4(shuffle)),
        (Some(Table::Efficiency), _) => return print_rows(args, || figures::table_2_6(shuffle)),
        (None, Some(figure)) => {
            return print_rows(args, || match figure {
                Figure::Budgets => figures::figure_2_5(shuffle),
                Figure::SortTimes => figures::figure_2_6(shuffle),
                Figure::QueryTimes => figures::figure_2_7(shuffle),
                Figure::Shuffles => figures::figure_2_8(),
                Figure::Partitions => figures::figure_2_9(shuffle),
                Figure::Fit => figures::fitted_points(shuffle),
            });
        }
        (None, None) => check_size(args.servers, args.records)?,
    }
    let scene = BurstScene {
        levels: args.levels.into(),
        rule: args.splitters.clone(),
        keys: args.keys,
        shuffle,
        ..BurstScene::new(args.servers, args.records, args.seed)
    };
    let outcome = scene::run_sort(&scene)?;
    let more = json!({
        "servers": args.servers, "levels": args.levels, "seed": args.seed,
        "shuffle": shuffle.name(),
    });
    tell_outcome(&outcome, more, args.json, "sorted")
}

/// Answers a query.
pub fn run_query(args: &SimBurstArgs) -> Outcome {
    check_size(args.servers, args.records)?;
    let shuffle = args.shuffle.into();
    let scene = BurstScene { shuffle, ..BurstScene::new(args.servers, args.records, args.seed) };
    let outcome = scene::run_query(&scene, args.query, args.duplicates, args.partition)?;
    // The run fails when the answer is another one.
    let more = json!({
        "servers": args.servers, "seed": args.seed, "answer_equals_plain": true,
        "partition": args.partition.name(), "duplicates": args.duplicates.name(),
        "shuffle": scene.shuffle.name(),
    });
    tell_outcome(&outcome, more, args.json, "answered")
}

fn tell_outcome(outcome: &BurstOutcome, more: Value, as_json: bool, verb: &str) -> Outcome {
    if as_json {
        let mut json = serde_json::to_value(outcome)?;
        for (key, value) in more.as_object().into_iter().flatten() {
            json[key] = value.clone();
        }
        json["digest"] = format!("{:016x}", outcome.digest).into();
        say!("{json}");
        return Ok(());
    }
    let (records, us) = (outcome.records, outcome.completion_us);
    say!("{records} records of {} servers {verb} in {us:.1} us", more["servers"]);
    say!("  the largest part is {:.3} times the mean", outcome.imbalance);
    for (name, times) in &outcome.phases_us {
        say!("  {name:<14} {:>9.1} us in the mean, {:>9.1} at most", times.mean, times.max);
    }
    say!("  {} datagrams; seed {}", outcome.hops, more["seed"]);
    Ok(())
}

fn print_balance(args: &SimSortArgs) -> Outcome {
    let shown = Progress::new();
    let all = 2 * args.runs;
    shown.stage("drawing keys", Some(all));
    let rows = table_2_2(args.runs, |done| shown.at(done, all));
    shown.end();
    if args.json {
        say!("{}", json!({"runs": args.runs, "rows": rows}));
        return Ok(());
    }
    say!("by how many percent the largest of 120 partitions exceeds the mean, {} runs", args.runs);
    say!("keys      pivots  naive P50 (thesis)  P90 (thesis)  weighted P50 (thesis)  P90 (thesis)");
    for row in rows {
        let pair = |at: usize| format!("{:.1} ({:.1})", row.ours[at], row.published[at]);
        say!(
            "{:<9} {:>6}  {:>18}  {:>12}  {:>21}  {:>12}",
            row.keys,
            row.pivots,
            pair(0),
            pair(1),
            pair(2),
            pair(3)
        );
    }
    Ok(())
}

fn print_rows(
    args: &SimSortArgs,
    study: impl FnOnce() -> Result<Vec<ThesisNumber>, String>,
) -> Outcome {
    let shown = Progress::new();
    shown.stage("simulating", None);
    let rows = study();
    shown.end();
    let rows = rows?;
    if args.json {
        let shuffle = SimShuffle::from(args.shuffle);
        say!("{}", json!({"shuffle": shuffle.name(), "rows": rows}));
        return Ok(());
    }
    for ThesisNumber { what, ours, published, unit } in rows {
        let thesis = published.map_or_else(String::new, |published| {
            format!("  (thesis {published}: {:+.0} %)", 100.0 * (ours / published - 1.0))
        });
        say!("{what:<44} {ours:>12.3} {unit}{thesis}");
    }
    Ok(())
}

fn print_phases(args: &SimSortArgs) -> Outcome {
    let rows = table_2_5(args.runs, args.shuffle.into())?;
    if args.json {
        say!("{}", json!({"runs": args.runs, "rows": rows}));
        return Ok(());
    }
    say!("7,000 records a server, medians of {} runs, us", args.runs);
    say!("servers  phase           mean (thesis)       max (thesis)        max differs by");
    for row in rows {
        let pair = |at: usize| format!("{:.1} ({:.1})", row.ours[at], row.published[at]);
        let differs = row.differs_percent;
        say!(
            "{:>7}  {:<14}  {:<18}  {:<18}  {differs:+.0} %",
            row.servers,
            row.phase,
            pair(0),
            pair(1)
        );
    }
    Ok(())
}
