//! The crates that a build of a program with one face compiles, counted by `cargo tree`.

use std::collections::BTreeSet;
use std::process::Command;

/// Crates that a program with the subscriber alone may have to compile.
const SUBSCRIBER_CRATES_MAX: usize = 60;
/// Crates for settings files, HTTP, printed notes and archives. A subscriber needs none of them.
const NOT_FOR_SUBSCRIBERS: [&str; 8] =
    ["toml", "toml_edit", "tokio", "hyper", "tracing-subscriber", "zip", "flate2", "jiff"];

/// Names with versions of all crates of a build with these features, this crate among them.
fn crates(features: &str) -> BTreeSet<String> {
    let mut tree = Command::new(env!("CARGO"));
    tree.args(["tree", "--offline", "--locked", "--package", "evenfall", "--no-default-features"]);
    tree.args(["--features", features, "--edges", "normal,build", "--prefix", "none"]);
    let said = tree.arg("--no-dedupe").current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let said = said.expect("cargo");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let text = String::from_utf8(said.stdout).expect("UTF-8");
    let name = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
    text.lines().filter(|line| !line.is_empty()).map(name).collect()
}

#[test]
fn a_program_that_subscribes_compiles_sixty_crates_at_most() {
    let found = crates("subscriber");
    let names: Vec<&str> = found.iter().map(String::as_str).collect();
    assert!(
        names.len() <= SUBSCRIBER_CRATES_MAX,
        "{} crates with the feature `subscriber`, {SUBSCRIBER_CRATES_MAX} are allowed; put what \
         came in behind a feature: {}",
        names.len(),
        names.join(", ")
    );
    for unwanted in NOT_FOR_SUBSCRIBERS {
        let is_there = |name: &&&str| name.split(' ').next() == Some(unwanted);
        assert_eq!(names.iter().find(is_there), None, "a subscriber needs no {unwanted}");
    }
}

#[test]
fn no_face_brings_the_crates_of_another_face() {
    let services = |feature: &str| -> Vec<String> {
        let of_house = |name: &String| name.starts_with("evenfall-");
        crates(feature).into_iter().filter(of_house).collect()
    };
    let subscriber = services("subscriber");
    for (feature, own) in [("store", "evenfall-store-"), ("collectives", "evenfall-collectives-")] {
        let found = services(feature);
        assert!(found.iter().any(|name| name.starts_with(own)), "{found:?}");
        assert!(!subscriber.iter().any(|name| name.starts_with(own)), "{subscriber:?}");
        assert!(!found.iter().any(|name| name.contains("-multicast-")), "{feature}: {found:?}");
    }
}

/// The table of the crate's first page: each feature and its number of crates.
fn table() -> Vec<(String, usize)> {
    let page = include_str!("../src/lib.rs");
    let row = |line: &str| {
        let cells: Vec<&str> = line.strip_prefix("//! | `")?.split('|').collect();
        let feature = cells[0].split('`').next()?;
        Some((feature.to_owned(), cells.get(cells.len() - 2)?.trim().parse().ok()?))
    };
    page.lines().filter_map(row).collect()
}

#[test]
fn the_first_page_states_no_fewer_crates_than_a_face_brings() {
    let table = table();
    assert_eq!(table.len(), 6, "{table:?}");
    for (feature, stated) in table {
        let found = crates(&feature).len();
        assert!(found <= stated, "{feature}: {found} crates, the first page says {stated}");
    }
}
