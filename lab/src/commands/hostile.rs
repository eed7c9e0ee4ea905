//! `evenfall-lab hostile`: what a subscriber that holds the shared key gets from another receiver.

use evenfall_runtime::program::Outcome;

use crate::signed::clocks::play_clock_attacks;
use crate::signed::forgery::play_forgeries;
use crate::signed::hostile::play_attacks;

/// Arguments of `evenfall-lab hostile`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print a JSON object a line. An attack on messages has attack, checked, got, handed_on,
    /// counted, named, other_is_whole. A forged control datagram, and an attack on clocks, has
    /// attack, keys, got, succeeded, refused.
    #[arg(long)]
    json: bool,
}

/// Plays all attacks.
pub fn main(args: &Args) -> Outcome {
    for result in play_attacks() {
        if args.json {
            println!("{}", serde_json::to_string(&result)?);
        } else {
            println!("{} (checked: {}): {}", result.attack, result.checked, result.got);
        }
    }
    for result in play_forgeries().into_iter().chain(play_clock_attacks()) {
        if args.json {
            println!("{}", serde_json::to_string(&result)?);
        } else {
            println!("{} (keys: {}): {}", result.attack, result.keys, result.got);
        }
    }
    Ok(())
}
