//! `evenfall-lab bench ports`: what a hop costs by each kind of port, beside bare calls of the
//! kernel. The trial is the trial by which `io.port = "auto"` chooses (`evenfall_port::trial`).
//! With `--root`, what the copies of a root cost ([`root`]).

mod root;

use std::time::Duration;

use evenfall_port::choice::{KindTrial, PortChoice, TrialLoad, TrialOutcome, TrialPart};
use evenfall_port::trial::{Contestant, TrialPlan, try_contestants};
use evenfall_port::{Options, choice};
use evenfall_runtime::program::Outcome;
use serde_json::{Value, json};

/// Longest time of a bench. Seven rounds of the default take a few seconds.
const TIME_MAX: Duration = Duration::from_secs(600);
/// Sockets of a bench. Each child has a socket, and a process may open 1,024 files.
const FANOUT_MAX: usize = 256;
/// The head of a datagram of the multicast, the tag of a sealed body and the length of a message.
const OVERHEAD_BYTES: usize = 88 + 16 + 2;
/// The longest message that fits the longest datagram.
const SIZE_MAX: usize = evenfall_port::DATAGRAM_BYTES_MAX - OVERHEAD_BYTES;

/// Arguments of `evenfall-lab bench ports`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Copies of each datagram.
    #[arg(long, default_value_t = 10)]
    fanout: usize,
    /// Bytes of a message, one a datagram.
    #[arg(long, default_value_t = 40)]
    size: usize,
    /// Datagrams of a round.
    #[arg(long, default_value_t = 2_000)]
    datagrams: usize,
    /// Rounds of each kind, which take turns. The medians are printed.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Measure what the copies of a root cost on a virtual link, which takes root.
    #[arg(long)]
    root: bool,
    /// The hosts of the link compute checksums and cut segments, as where no card does.
    #[arg(long, requires = "root")]
    no_offloads: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// A row of the table.
struct Row {
    port: &'static str,
    outcome: TrialOutcome,
    is_chosen: bool,
}

/// Measures and prints.
pub fn main(args: &Args) -> Outcome {
    if args.root {
        return root::main(args);
    }
    check_args(args)?;
    let (part, datagram_bytes) = (TrialPart::Proxy, OVERHEAD_BYTES + args.size);
    let load = TrialLoad { part, datagram_bytes, fanout: args.fanout };
    let plan = TrialPlan { rounds: args.rounds, datagrams: args.datagrams, time: TIME_MAX };
    let (can, cannot) = choice::list_kinds();
    let ports = can.iter().map(|kind| Contestant::Port(*kind));
    let contestants: Vec<_> = [Contestant::Bare].into_iter().chain(ports).collect();
    let mut outcomes = try_contestants(&contestants, &Options::default(), load, plan).into_iter();
    let bare = outcomes.next().unwrap_or(TrialOutcome::Untried("not measured".into()));
    let tried = can.iter().zip(outcomes).map(|(kind, outcome)| KindTrial { kind: *kind, outcome });
    let trials: Vec<_> = tried.chain(cannot).collect();
    let choice = choice::choose_quickest(&trials);
    let mut rows = vec![Row { port: "sendmmsg", outcome: bare, is_chosen: false }];
    rows.extend(trials.into_iter().map(|KindTrial { kind, outcome }| Row {
        port: kind.settings_name(),
        outcome,
        is_chosen: kind == choice.kind,
    }));
    if args.json {
        say!("{}", to_json(args, &rows, &choice));
        return Ok(());
    }
    say!(
        "{}-byte messages to {} sockets, one a datagram, medians of {} rounds",
        args.size,
        args.fanout,
        args.rounds
    );
    rows.iter().for_each(|row| say!("  {}", describe_row(row, cost_of(&rows[0].outcome))));
    say!("io.port = \"auto\" takes {} here", choice.kind.settings_name());
    Ok(())
}

fn check_args(args: &Args) -> Result<(), String> {
    let Args { fanout, size, datagrams, rounds, .. } = args;
    if !(1..=FANOUT_MAX).contains(fanout) {
        return Err(format!("--fanout {fanout}: must be 1 to {FANOUT_MAX}"));
    }
    if *size > SIZE_MAX {
        return Err(format!("--size {size}: must be at most {SIZE_MAX}"));
    }
    if *datagrams == 0 || *rounds == 0 {
        return Err("--datagrams and --rounds: must be 1 or more".into());
    }
    Ok(())
}

fn cost_of(outcome: &TrialOutcome) -> Option<f64> {
    match outcome {
        TrialOutcome::Measured { cpu_ns_per_copy, .. } if cpu_ns_per_copy.is_finite() => {
            Some(*cpu_ns_per_copy)
        }
        _ => None,
    }
}

/// The cost of a row in parts of the cost of bare calls.
fn ratio_of(row: &Row, bare: Option<f64>) -> Option<f64> {
    Some(cost_of(&row.outcome)? / bare?)
}

fn describe_row(row: &Row, bare: Option<f64>) -> String {
    let chosen = if row.is_chosen { ", chosen" } else { "" };
    let ratio = ratio_of(row, bare);
    let ratio = ratio.map_or_else(String::new, |ratio| format!("{ratio:.2} of sendmmsg, "));
    format!("{:<9} {ratio}{}{chosen}", row.port, row.outcome)
}

fn to_json(args: &Args, rows: &[Row], choice: &PortChoice) -> Value {
    let bare = cost_of(&rows[0].outcome);
    let row = |row: &Row| {
        let lost = match row.outcome {
            TrialOutcome::Measured { lost, damaged, .. } => Some(lost + damaged),
            TrialOutcome::Untried(_) => None,
        };
        json!({
            "port": row.port,
            "cpu_ns_per_copy": cost_of(&row.outcome),
            "ratio_sendmmsg": ratio_of(row, bare),
            "lost": lost,
            "chosen": row.is_chosen,
            "why": row.outcome.to_string(),
        })
    };
    json!({
        "fanout": args.fanout,
        "size_bytes": args.size,
        "rounds": args.rounds,
        "datagrams": args.datagrams,
        "chosen": choice.kind.settings_name(),
        "why": choice.why,
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use evenfall_port::PortKind;

    use super::*;

    fn args(fanout: usize, size: usize, datagrams: usize) -> Args {
        let (rounds, root, no_offloads, json) = (1, false, false, true);
        Args { fanout, size, datagrams, rounds, root, no_offloads, json }
    }

    fn row(port: &'static str, cpu_ns_per_copy: f64) -> Row {
        let outcome = TrialOutcome::Measured { cpu_ns_per_copy, copies: 10, lost: 0, damaged: 0 };
        Row { port, outcome, is_chosen: port == "tc" }
    }

    #[test]
    fn every_row_has_its_ratio_to_bare_calls_and_one_that_was_not_tried_has_its_reason() {
        let args = args(10, 40, 5);
        let untried = TrialOutcome::Untried("needs the capability CAP_BPF".into());
        let rows = [
            row("sendmmsg", 1_000.0),
            row("tc", 400.0),
            Row { port: "udp", outcome: untried, is_chosen: false },
        ];
        let choice = PortChoice { kind: PortKind::Tc, why: "the quickest".into() };
        let json = to_json(&args, &rows, &choice);
        assert_eq!((&json["chosen"], &json["why"]), (&json!("tc"), &json!("the quickest")));
        assert_eq!(json["rows"][0]["ratio_sendmmsg"], 1.0);
        assert_eq!(json["rows"][1]["ratio_sendmmsg"], 0.4);
        assert_eq!(
            (&json["rows"][1]["lost"], &json["rows"][1]["chosen"]),
            (&json!(0), &json!(true))
        );
        assert_eq!(json["rows"][2]["cpu_ns_per_copy"], Value::Null);
        assert_eq!(json["rows"][2]["why"], "needs the capability CAP_BPF");
        let said = describe_row(&rows[1], Some(1_000.0));
        assert_eq!(said, "tc        0.40 of sendmmsg, 400 ns a copy, 0 of 10 lost, chosen");
    }

    #[test]
    fn what_cannot_be_measured_is_refused_by_name() {
        assert!(check_args(&args(0, 40, 1)).unwrap_err().contains("--fanout 0: must be 1 to 256"));
        assert!(check_args(&args(1, 65_507, 1)).unwrap_err().contains("--size 65507"));
        assert!(check_args(&args(1, 40, 0)).unwrap_err().contains("--datagrams"));
        assert!(check_args(&args(1, SIZE_MAX, 1)).is_ok());
    }
}
