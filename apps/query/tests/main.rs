//! The program as people start it, and its doors as clients see them. Because of this test, `cargo
//! test` builds the program, which the pages of docs/ and the Python package start too.

mod clients;
mod doors;
mod limits;
mod pg;
mod served;

use std::process::Command;

#[test]
fn the_program_names_its_version_and_what_it_takes() {
    let said = |argument: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_evenfall-query")).arg(argument).output();
        String::from_utf8(output.expect("the program").stdout).expect("text")
    };
    assert_eq!(said("--version").trim(), format!("evenfall query {}", env!("CARGO_PKG_VERSION")));
    assert!(said("--help").contains("--format"));
}
