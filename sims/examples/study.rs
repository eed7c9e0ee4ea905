//! A study as Markdown: `cargo run --release -p evenfall-sims --example study -- NAME [MESSAGES]`.

use evenfall_sims::studies::overlay::{Effort, curve, fairness, modes, shapes};
use evenfall_sims::studies::{Table, hedging, replacement};

fn main() {
    let argument = |n: usize| std::env::args().nth(n);
    let number =
        |n: usize, default: u32| argument(n).and_then(|text| text.parse().ok()).unwrap_or(default);
    let mut effort = Effort::default();
    effort.messages = number(2, effort.messages);
    effort.warm_up = effort.warm_up.min(effort.messages);
    let mut progress = |what: &str| eprintln!("{what} ...");
    let table: Table = match argument(1).as_deref() {
        Some("hedging") => hedging::monte_carlo(100_000, effort.seed),
        Some("shapes") => shapes(&effort, &mut progress),
        Some("modes") => modes(&effort, &mut progress),
        Some("fairness") => fairness(&effort, &[number(3, 100)], &mut progress),
        Some("replacement") => replacement::table(1, number(2, 10).into(), &mut progress),
        Some("curve") => curve(&effort, number(3, 100), 2, &mut progress),
        _ => {
            eprintln!(
                "study hedging|shapes|modes|fairness|curve [MESSAGES] [RECEIVERS]; \
                 study replacement [SEEDS]"
            );
            std::process::exit(2);
        }
    };
    print!("{}", table.markdown());
}
