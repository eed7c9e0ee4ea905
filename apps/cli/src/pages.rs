//! Checks the pages of the repository: the program accepts the commands on them, and their links
//! lead to a target. The test `runs` carries the commands out.

use std::collections::BTreeSet;

use clap::Parser;

#[path = "../tests/runs/pages/blocks.rs"]
mod blocks;

use crate::Cli;

#[test]
fn the_parser_accepts_every_command_of_the_pages() {
    let accepted = blocks::parse_commands(|command| Some(Cli::try_parse_from(command).map(drop)));
    assert!(accepted > 40, "only {accepted} commands were found");
}

/// An indented block has no info string, so no reader can see whether its commands are tested.
#[test]
fn commands_on_the_pages_stand_in_fences() {
    for page in blocks::all() {
        let stray = page.text.lines().position(|line| line.starts_with("    evenfall "));
        assert_eq!(stray.map(|at| at + 1), None, "{}: a line with a command", page.name);
    }
}

/// The anchor of a heading: lower case, with dashes for blanks and without other signs.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#'))).collect()
}

#[test]
fn every_link_of_the_pages_leads_somewhere() {
    let top = blocks::repository();
    let mut followed = 0;
    for page in blocks::all() {
        let folder = top.join(&page.name).parent().expect("a folder").to_owned();
        let links = page.text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
        for link in links.filter(|link| !link.contains("://")) {
            let (file, wanted) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { top.join(&page.name) } else { folder.join(file) };
            assert!(target.exists(), "{}: no file behind the link {link}", page.name);
            if !wanted.is_empty() {
                let text = std::fs::read_to_string(&target).expect("a page");
                assert!(anchors(&text).contains(wanted), "{}: no heading {link}", page.name);
            }
            followed += 1;
        }
    }
    assert!(followed > 40, "only {followed} links were found");
}
