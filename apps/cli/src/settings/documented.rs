//! Checks that `docs/configuration.md` and the program agree: every accepted key is on the page
//! with its default, and every key on the page is accepted.

use std::collections::BTreeMap;

use evenfall_runtime::{SettingsDocument, service};

use super::{default_file, defaults};
use crate::services::SERVICES;

const PAGE: &str = include_str!("../../../../docs/configuration.md");
/// The words of the page in place of a default.
const NO_DEFAULT: [&str; 2] = ["none", "required"];

/// Tables of the page, with the keys of each and their defaults as written there.
fn page() -> BTreeMap<String, BTreeMap<String, String>> {
    let mut tables = BTreeMap::new();
    let mut table = String::new();
    for line in PAGE.lines() {
        if let Some(heading) = line.trim_start_matches('#').strip_prefix(" `[") {
            table = heading.trim_matches(['[', ']', '`']).to_owned();
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let ["", key, kind, default, meaning, ""] = cells[..]
            && let Some(key) = key.strip_prefix('`').and_then(|key| key.strip_suffix('`'))
        {
            assert!(!kind.is_empty() && meaning.ends_with('.'), "{table}.{key}: a sentence");
            let keys: &mut BTreeMap<_, _> = tables.entry(table.clone()).or_default();
            keys.insert(key.to_owned(), default.trim_matches('`').to_owned());
        }
    }
    tables
}

fn parse(text: &str) -> Result<(), String> {
    let document = SettingsDocument::parse(text, "test", std::iter::empty(), &[]);
    let checked = document.and_then(|document| service::check(SERVICES, &document));
    checked.map_err(|error| error.to_string())
}

/// The keys of a table, as the program itself lists them when it meets an unknown key.
fn accepted(table: &str) -> Vec<String> {
    let heading = if table == "node" { "[[node]]".into() } else { format!("[{table}]") };
    let error = parse(&format!("{heading}\nno_such_key = 1\n")).unwrap_err();
    let (_, expected) = error.split_once("expected").unwrap_or_else(|| panic!("{error}"));
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_key_is_on_the_page_and_no_other() {
    let page = page();
    for (table, keys) in &page {
        let accepted = accepted(table);
        for key in &accepted {
            let as_table = page.contains_key(&format!("{table}.{key}"));
            assert!(as_table || keys.contains_key(key), "{table}.{key} is not on the page");
        }
        for key in keys.keys() {
            assert!(accepted.contains(key), "{table}.{key} is on the page, and does not exist");
        }
    }
    let error = parse("no_such_key = 1\n").unwrap_err();
    let known = error.split_once("expected").unwrap().1.split('`').skip(1).step_by(2);
    // The old name of [keys] is read, and is not on the page.
    for table in known.filter(|table| *table != "order") {
        assert!(page.contains_key(table), "[{table}] is not on the page");
    }
}

#[test]
fn the_default_file_says_every_key_and_its_comments_are_settings() {
    let file = default_file();
    parse(&file).expect("its own file");
    for (table, keys) in page().iter().filter(|(table, _)| *table != "node") {
        let (_, rest) = file.split_once(&format!("[{table}]\n")).expect("a table");
        let rest = rest.split("\n\n").next().expect("its lines");
        for (key, default) in keys {
            let absent = NO_DEFAULT.contains(&default.as_str());
            let line = format!("{}{key} = ", if absent { "# " } else { "" });
            assert!(
                rest.lines().any(|said| said.starts_with(&line)),
                "{table}: {line}: a key without a default has a line in ABSENT (example.rs)"
            );
        }
    }
    // Some of the values contradict each other, but each is valid for its key.
    let uncomment = |line: &str| match line.strip_prefix("# ") {
        Some(key) if key.contains(" = ") || key.starts_with('[') => format!("{key}\n"),
        _ => format!("{line}\n"),
    };
    let text = file.lines().map(uncomment).collect::<String>();
    let document = SettingsDocument::parse(&text, "test", std::iter::empty(), &[]).unwrap();
    let feed: evenfall_feed_service::Feed = document.part("feed").unwrap();
    let config: evenfall_multicast_machine::Config = document.part("multicast").unwrap();
    let nodes: Vec<evenfall_runtime::settings::Node> = document.list("node").unwrap();
    assert_eq!(nodes.len(), 3);
    assert!(feed.fit.is_some() && config.shape.depth.is_some());
}

#[test]
fn every_default_is_as_the_page_says() {
    let page = page();
    let defaults = defaults();
    for (table, keys) in page.iter().filter(|(table, _)| *table != "node") {
        let parts = table.split('.');
        let section = parts.fold(&defaults, |at, part| at[part].as_table().unwrap());
        for (key, written) in keys {
            let is = section.get(key).map(ToString::to_string);
            match is {
                Some(is) => assert_eq!(&is, written, "{table}.{key}"),
                None => assert!(NO_DEFAULT.contains(&written.as_str()), "{table}.{key}: {written}"),
            }
        }
    }
}
