//! `evenfall plan qap`: solves a quadratic assignment problem from a QAPLIB file.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::ValueEnum;
use evenfall_core::Prng;
use evenfall_host::whole_file::read_up_to;
use evenfall_placement_planner::qap::file::{self, KnownPermutation};
use evenfall_placement_planner::qap::search::{SearchEffort, search};
use evenfall_placement_planner::qap::{Instance, Solution, faq, printed};
use evenfall_runtime::program::Outcome;
use serde_json::json;

/// Bytes of the largest file: the largest instance, with 20 bytes for every cell.
const FILE_BYTES_MAX: u64 = 4_000_000_000;

/// The epsilon of the printed variant by default: that of LEMON-1.
const PRINTED_EPSILON: f64 = 1e-4;

/// Arguments of `evenfall plan qap`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The instance: n and two n x n matrices, in QAPLIB's form.
    file: PathBuf,
    /// The solver.
    #[arg(long, default_value = "search")]
    method: Method,
    /// Seed of the search. The same seed gives the same permutation on any machine.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Starts of FAQ. The first is the barycentre, and the others are random.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    starts: u32,
    /// A start ends when a step is smaller than this (Frobenius norm). Without it, 0.03 sqrt(n), or
    /// 1e-4 for the printed variant.
    #[arg(long)]
    epsilon: Option<f64>,
    /// Steps that one start may take.
    #[arg(long, default_value_t = 30)]
    iterations: u64,
    /// Passes of the tabu search over all pairs. Without this option, the number follows from the
    /// size of the instance.
    #[arg(long)]
    looks: Option<u64>,
    /// Solve the instance this many times; `seconds` is the median.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// A known solution to compare with, in QAPLIB's form.
    #[arg(long)]
    solution: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Method {
    /// FAQ, then iterated tabu search.
    Search,
    /// FAQ with the correct step, and a descent by swaps.
    Faq,
    /// FAQ with the correct step, and nothing after it.
    FaqOnly,
    /// FAQ as the TreeBuilder thesis prints it. Its steps hardly move.
    Printed,
}

pub fn main(args: &Args) -> Outcome {
    if args.epsilon.is_some_and(|epsilon| !epsilon.is_finite() || epsilon < 0.0) {
        return Err("--epsilon: must be a number, 0 or more".into());
    }
    let instance = read(&args.file, file::instance)?;
    let known = match &args.solution {
        None => None,
        Some(path) => Some(checked(path, &instance)?),
    };
    let mut seconds = Vec::new();
    let mut round = || {
        let started = Instant::now();
        let solution = solve(args, &instance);
        seconds.push(started.elapsed().as_secs_f64());
        solution
    };
    let solution = round();
    (1..args.rounds).for_each(|_| drop(round()));
    seconds.sort_by(f64::total_cmp);
    print(args, &solution, seconds[seconds.len() / 2], known.as_ref());
    Ok(())
}

/// Reads a file of bounded size with its parser; errors begin with its name.
fn read<T, E: std::fmt::Display>(
    path: &Path,
    parse: impl Fn(&[u8]) -> Result<T, E>,
) -> Result<T, String> {
    let name = path.display();
    let text = read_up_to(path, FILE_BYTES_MAX).map_err(|error| format!("{name}: {error}"))?.bytes;
    parse(&text).map_err(|error| format!("{name}: {error}"))
}

/// A known solution, after a check that it has its stated cost.
fn checked(path: &Path, instance: &Instance) -> Result<KnownPermutation, String> {
    let name = path.display();
    let known = read(path, file::known)?;
    match known.agrees(instance) {
        Err(error) => Err(format!("{name}: {error}")),
        Ok(true) => Ok(known),
        Ok(false) => Err(format!(
            "{name}: the permutation costs {}, and the file says {}; give the solution of this \
             instance",
            instance.cost(&known.permutation),
            known.cost
        )),
    }
}

fn solve(args: &Args, instance: &Instance) -> Solution {
    let polish = matches!(args.method, Method::Search | Method::Faq);
    let (epsilon, iterations_max, starts) = (args.epsilon, args.iterations, args.starts);
    let settings = faq::Settings { epsilon, iterations_max, starts, polish };
    let mut prng = Prng::new(args.seed);
    match args.method {
        Method::Faq | Method::FaqOnly => faq::faq(instance, &settings, &mut prng),
        Method::Printed => {
            printed::printed(instance, epsilon.unwrap_or(PRINTED_EPSILON), iterations_max)
        }
        Method::Search => {
            let standard = SearchEffort::standard(instance);
            let looks = args.looks.unwrap_or(standard.looks);
            search(instance, &SearchEffort { looks, faq: settings }, &mut prng)
        }
    }
}

fn print(args: &Args, solution: &Solution, seconds: f64, known: Option<&KnownPermutation>) {
    let permutation: Vec<usize> = solution.permutation.iter().map(|host| host + 1).collect();
    let gap = known.filter(|known| known.cost != 0.0);
    let gap = gap.map(|known| (solution.cost - known.cost) / known.cost.abs());
    if args.json {
        let mut out = json!({
            "cost": number(solution.cost),
            "permutation": permutation,
            "seconds": seconds,
            "iterations": solution.iterations,
            "converged": solution.converged,
            "swaps": solution.swaps,
        });
        if let Some(known) = known {
            out["known_cost"] = number(known.cost);
            out["gap"] = gap.into();
        }
        say!("{out}");
        return;
    }
    let hosts: Vec<String> = permutation.iter().map(usize::to_string).collect();
    say!("cost         {}", solution.cost);
    say!("permutation  {}", hosts.join(" "));
    say!("seconds      {seconds:.6}");
    if let Some(gap) = gap {
        say!("gap          {:.3} %", gap * 100.0);
    }
}

/// Prints whole costs as JSON integers: 9896, not 9896.0.
fn number(cost: f64) -> serde_json::Value {
    let whole = cost as i64;
    if whole as f64 == cost && whole.unsigned_abs() < 1 << 53 { whole.into() } else { cost.into() }
}
