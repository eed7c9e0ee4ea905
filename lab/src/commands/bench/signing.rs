//! `evenfall-lab bench signing`: the processor time of signatures at a root and at a receiver.

use evenfall_runtime::program::Outcome;

use crate::signed::cost::{SigningCost, measure};

/// Arguments of `evenfall-lab bench signing`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Bytes of a message.
    #[arg(long, default_value_t = 40)]
    size: usize,
    /// Frames of one message in a round.
    #[arg(long, default_value_t = 50_000)]
    frames: u32,
    /// Number of rounds. The medians are printed.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Measures and prints.
pub fn main(args: &Args) -> Outcome {
    if args.frames == 0 {
        return Err("--frames: must be 1 or more".into());
    }
    let cost = measure(args.rounds, args.frames, args.size);
    if args.json {
        say!("{}", serde_json::to_string(&cost)?);
        return Ok(());
    }
    let SigningCost { plain, signed, .. } = cost;
    say!("{}-byte messages, one a frame, 10,000/s, medians of {}", args.size, args.rounds.max(1));
    for (name, plain, signed, ratio, share) in [
        ("root", plain.root_ns, signed.root_ns, cost.root_ratio, cost.root_core_share),
        (
            "receiver",
            plain.receiver_ns,
            signed.receiver_ns,
            cost.receiver_ratio,
            cost.receiver_core_share,
        ),
    ] {
        say!(
            "  {name}: {plain:.0} ns a frame, signed {signed:.0} ns (x {ratio:.2}): {:.1} % of a \
             core more",
            share * 100.0
        );
    }
    Ok(())
}
