//! `evenfall plan qap`: a quadratic assignment out of a QAPLIB file.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::ValueEnum;
use evenfall_core::Prng;
use evenfall_placement_planner::qap::file::{self, Known};
use evenfall_placement_planner::qap::search::{Effort, search};
use evenfall_placement_planner::qap::{Instance, Solution, faq, printed};
use serde_json::json;

use crate::Outcome;

/// Bytes that are read at most: the largest instance, with 20 bytes for every cell.
const FILE_BYTES_MAX: u64 = 4_000_000_000;

/// The epsilon of the printed variant when none is given: LEMON-1's.
const PRINTED_EPSILON: f64 = 1e-4;

/// Arguments of `evenfall plan qap`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The instance: n and two n x n matrices, in QAPLIB's form.
    file: PathBuf,
    /// How it is solved.
    #[arg(long, default_value = "search")]
    method: Method,
    /// The same seed gives the same permutation, on any machine.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Starts of FAQ: the barycentre, then random ones.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    starts: u32,
    /// Ends a start when a step moves by less (Frobenius norm); 0.03 sqrt(n) when left out, or
    /// 1e-4 for the printed variant.
    #[arg(long)]
    epsilon: Option<f64>,
    /// Steps of one start at most.
    #[arg(long, default_value_t = 30)]
    iterations: u64,
    /// Looks of the tabu search at all pairs; by the size when left out.
    #[arg(long)]
    looks: Option<u64>,
    /// Solve it so often; `seconds` is the median.
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
    /// FAQ as the TreeBuilder thesis prints it: hardly moves.
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
    let mut text = Vec::new();
    let read = File::open(path).and_then(|f| f.take(FILE_BYTES_MAX).read_to_end(&mut text));
    read.map_err(|error| format!("{name}: {error}"))?;
    parse(&text).map_err(|error| format!("{name}: {error}"))
}

/// A known solution that costs what it says.
fn checked(path: &Path, instance: &Instance) -> Result<Known, String> {
    let name = path.display();
    let known = read(path, file::known)?;
    match known.agrees(instance) {
        Err(error) => Err(format!("{name}: {error}")),
        Ok(true) => Ok(known),
        Ok(false) => Err(format!(
            "{name}: its permutation costs {}, not {}: is it of another instance?",
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
            let standard = Effort::standard(instance);
            let looks = args.looks.unwrap_or(standard.looks);
            search(instance, &Effort { looks, faq: settings }, &mut prng)
        }
    }
}

fn print(args: &Args, solution: &Solution, seconds: f64, known: Option<&Known>) {
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
        println!("{out}");
        return;
    }
    let hosts: Vec<String> = permutation.iter().map(usize::to_string).collect();
    println!("cost         {}", solution.cost);
    println!("permutation  {}", hosts.join(" "));
    println!("seconds      {seconds:.6}");
    if let Some(gap) = gap {
        println!("gap          {:.3} %", gap * 100.0);
    }
}

/// Whole costs as JSON integers: 9896, not 9896.0.
fn number(cost: f64) -> serde_json::Value {
    let whole = cost as i64;
    if whole as f64 == cost && whole.unsigned_abs() < 1 << 53 { whole.into() } else { cost.into() }
}
