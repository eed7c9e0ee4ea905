//! `evenfall-lab hostile`: what attackers get from a feed, with the keys that they may have.

use evenfall_runtime::program::Outcome;

use crate::signed::clocks::play_clock_attacks;
use crate::signed::early_reading::play_early_readings;
use crate::signed::forgery::play_forgeries;
use crate::signed::hostile::play_attacks;
use crate::signed::proxy_lies::play_proxy_lies;
use crate::signed::theft::play_thefts;
use crate::signed::votes::play_vote_forgeries;

/// Arguments of `evenfall-lab hostile`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print a JSON object a line. Each object has attack, got and counted. An attack on messages
    /// also has checked, handed_on, named and other_is_whole. Any other attack has keys and
    /// succeeded.
    #[arg(long)]
    json: bool,
}

/// Plays all attacks.
pub fn main(args: &Args) -> Outcome {
    for result in play_attacks().into_iter().chain(play_proxy_lies()) {
        if args.json {
            say!("{}", serde_json::to_string(&result)?);
        } else {
            say!("{} (checked: {}): {}", result.attack, result.checked, result.got);
        }
    }
    let others = [
        play_forgeries(),
        play_vote_forgeries(),
        play_thefts(),
        play_early_readings(),
        play_clock_attacks(),
    ];
    for result in others.into_iter().flatten() {
        if args.json {
            say!("{}", serde_json::to_string(&result)?);
        } else {
            say!("{} (keys: {}): {}", result.attack, result.keys, result.got);
        }
    }
    Ok(())
}
