//! Checks that the instruments accept every `evenfall sim` and `evenfall bench` command of the
//! pages.

use clap::Parser;
use evenfall_lab::commands::Cli;

#[path = "../../apps/cli/tests/runs/pages/blocks.rs"]
#[expect(dead_code, reason = "the tests of the program use the rest")]
mod blocks;

#[test]
fn the_parser_accepts_every_command_of_the_pages() {
    let accepted = blocks::parse_commands(|command| {
        let is_ours = matches!(command.get(1).map(String::as_str), Some("sim" | "bench"));
        is_ours.then(|| Cli::try_parse_from(command).map(drop))
    });
    assert!(accepted > 0, "no command was found");
}
