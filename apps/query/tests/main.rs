//! The program as people start it, and its doors as clients see them. Because of this test, `cargo
//! test` builds the program, which the pages of docs/ and the Python package start too.

mod clients;
mod doors;
mod interrupts;
mod limits;
mod lost;
mod outputs;
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

#[test]
fn a_prompt_answers_statement_by_statement_and_goes_on_after_a_mistake() {
    use std::io::Write as _;
    let dir = served::record_day();
    let mut prompt = Command::new(env!("CARGO_BIN_EXE_evenfall-query"));
    prompt.arg(dir.path()).args(["--interactive", "--format", "csv"]);
    prompt.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut prompt = prompt.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let asked = b"\\d\n\\d day.trades\nSELECT count(*) AS n\n  FROM trades; -- all\n\
                  SELECT pricee FROM trades;\n\
                  SELECT ';' AS semicolon;\nSELECT 1 + 1 AS two\n\\?\n;\nSELECT 3 AS three";
    prompt.stdin.take().unwrap().write_all(asked).unwrap();
    let said = prompt.wait_with_output().unwrap();
    assert!(said.status.success());
    let (out, errors) =
        (String::from_utf8(said.stdout).unwrap(), String::from_utf8(said.stderr).unwrap());
    for expected in
        ["day,quotes\n", "printable,Boolean,YES\n", "n\n300\n", "semicolon\n;\n", "three\n3\n"]
    {
        assert!(out.contains(expected), "{expected:?} in {out}");
    }
    assert!(errors.contains("pricee"), "{errors}");
}
