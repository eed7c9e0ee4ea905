//! The instruments accept the commands `evenfall sim` and `evenfall bench` of the pages.

use clap::Parser;
use evenfall_lab::commands::Cli;

#[path = "../../apps/cli/tests/runs/pages/blocks.rs"]
#[expect(dead_code, reason = "the tests of the program use the rest")]
mod blocks;

#[test]
fn the_parser_accepts_every_command_of_the_pages() {
    let mut accepted = 0;
    for page in blocks::all() {
        for block in page.blocks.iter().filter(|block| block.is_shell()) {
            for command in block.commands() {
                if !matches!(command.get(1).map(String::as_str), Some("sim" | "bench")) {
                    continue;
                }
                if let Err(error) = Cli::try_parse_from(&command) {
                    panic!("{}:{}: {}\n{error}", page.name, block.line, command.join(" "));
                }
                accepted += 1;
            }
        }
    }
    assert!(accepted > 0, "no command was found");
}
