//! The runs of an experiment from another machine: the page on which the manager's agent gives them
//! out, and the client that brings them home.
//!
//! The manager (`evenfall plan run`) writes its runs into a directory, and the agent beside it
//! reads that directory when it is asked ([`results`](crate::settings::SurveySettings::results)):
//!
//! ```text
//!  GET /experiment                            the names and lengths of all files, as JSON
//!  GET /experiment?file=runs/a-1.json&from=0  up to a MiB of a file, from this byte on
//! ```
//!
//! Every file that the page names is complete, because runs and description are written whole or
//! not at all. Only names that an experiment writes are given out and taken. Whoever reads the
//! metrics of an agent reads the runs too: they have names of hosts and delays, and no secrets.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::ExperimentError;
use super::execute::{DESCRIPTION, Description, RECORD_BYTES_MAX, RunsDirectory, write_whole};

/// The path of the page.
pub const PAGE: &str = "/experiment";
/// Most bytes of a file in one answer, which a disk reads within milliseconds.
const PART_BYTES: u64 = 1 << 20;
/// Most files of an experiment: a thousand repetitions of a hundred trees.
const FILES_MAX: usize = 100_000;

/// A file that is given out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedFile {
    /// Its name below the directory, such as `runs/a-1.json`.
    pub name: String,
    /// Its length.
    pub bytes: u64,
}

/// What was brought home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedRuns {
    /// Runs that are complete.
    pub runs: usize,
    /// Runs of the experiment that the manager has not carried out yet.
    pub missing: usize,
    /// Bytes of all files.
    pub bytes: u64,
}

/// Whether an experiment writes a file of this name.
fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let run = name.strip_prefix("runs/").and_then(|file| file.strip_suffix(".json"));
    let is_run = |run: &str| {
        (1..=200).contains(&run.len()) && !run.starts_with('.') && run.chars().all(is_plain)
    };
    name == DESCRIPTION || run.is_some_and(is_run)
}

/// Answers the page for this directory.
///
/// # Errors
/// Why there is no answer, for the client.
pub fn read_page(directory: &Path, query: &str) -> io::Result<String> {
    if query.is_empty() {
        return Ok(serde_json::to_string(&list_files(directory)?)?);
    }
    let wanted = query.strip_prefix("file=").and_then(|rest| rest.split_once("&from="));
    let wanted = wanted.and_then(|(name, from)| Some((name, from.parse::<u64>().ok()?)));
    match wanted.filter(|(name, _)| is_name(name)) {
        Some((name, from)) => read_part(&directory.join(name), from, PART_BYTES),
        None => {
            let why = format!("{PAGE}?{query:.200}: ask for file=NAME&from=BYTE, or for nothing");
            Err(io::Error::new(io::ErrorKind::InvalidInput, why))
        }
    }
}

fn list_files(directory: &Path) -> io::Result<Vec<ServedFile>> {
    let entries = fs::read_dir(directory.join("runs")).map_err(|_| {
        let why = "no run is complete: evenfall plan run has not begun on this machine";
        io::Error::other(why)
    })?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.map(|name| format!("runs/{name}")).collect();
    names.sort();
    names.insert(0, DESCRIPTION.to_owned());
    let served = names.into_iter().filter(|name| is_name(name)).filter_map(|name| {
        let found = fs::metadata(directory.join(&name)).ok().filter(fs::Metadata::is_file)?;
        Some(ServedFile { name, bytes: found.len() })
    });
    Ok(served.take(FILES_MAX).collect())
}

/// Bytes of a file from `from` on, at most `bytes_max`, up to the end of a character.
fn read_part(path: &Path, from: u64, bytes_max: u64) -> io::Result<String> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    if let Err(error) = std::str::from_utf8(&bytes) {
        if error.valid_up_to() == 0 {
            return Err(io::Error::other("the file is no text"));
        }
        bytes.truncate(error.valid_up_to());
    }
    String::from_utf8(bytes).map_err(io::Error::other)
}

/// Answers a path of the page.
pub type AskPage<'a> = &'a mut dyn FnMut(&str) -> Result<String, ExperimentError>;

/// Brings all files home into a directory. `ask` returns the answer to a path.
///
/// # Errors
/// What `ask` says, what is wrong with the answers, and what the system says.
pub fn fetch_runs(ask: AskPage<'_>, into: &Path) -> Result<FetchedRuns, ExperimentError> {
    let files = ask(PAGE)?;
    let files: Vec<ServedFile> = serde_json::from_str(&files)
        .map_err(|error| format!("{PAGE}: not the page of an agent: {error}"))?;
    if files.len() > FILES_MAX {
        return Err(format!("{PAGE}: {} files; {FILES_MAX} are taken at most", files.len()).into());
    }
    if let Some(strange) = files.iter().find(|file| !is_name(&file.name)) {
        let why = format!("{PAGE}: names {:?}, which no experiment writes", strange.name);
        return Err(why.into());
    }
    let mut fetched = FetchedRuns { runs: 0, missing: 0, bytes: 0 };
    let directory = RunsDirectory::create(into)?;
    for file in &files {
        let text = fetch_file(ask, file)?;
        let path = into.join(&file.name);
        if file.name == DESCRIPTION {
            refuse_other_experiment(&path, &text)?;
        } else {
            fetched.runs += 1;
        }
        fetched.bytes += text.len() as u64;
        write_whole(&path, &text)?;
    }
    let Description { runs, .. } = directory.description()?;
    let here: BTreeSet<&str> = files.iter().map(|file| file.name.as_str()).collect();
    let is_here = |run: &String| here.contains(format!("runs/{run}.json").as_str());
    fetched.missing = runs.iter().filter(|run| !is_here(run)).count();
    Ok(fetched)
}

/// Fetches a whole file, part by part.
fn fetch_file(ask: AskPage<'_>, file: &ServedFile) -> Result<String, ExperimentError> {
    let ServedFile { name, bytes } = file;
    if *bytes > RECORD_BYTES_MAX {
        let why = format!("{name}: {bytes} bytes; a run has {RECORD_BYTES_MAX} at most");
        return Err(why.into());
    }
    let mut text = String::new();
    while (text.len() as u64) < *bytes {
        let part = ask(&format!("{PAGE}?file={name}&from={}", text.len()))?;
        if part.is_empty() {
            break;
        }
        text.push_str(&part);
    }
    // The manager may have written a run again between two parts.
    let is_whole = text.len() as u64 == *bytes;
    match serde_json::from_str::<serde::de::IgnoredAny>(&text) {
        Ok(_) if is_whole => Ok(text),
        _ => {
            let why = "changed while it was fetched; give the same command again";
            Err(format!("{name}: {why}").into())
        }
    }
}

/// Refuses to put the runs of two experiments into one directory.
fn refuse_other_experiment(path: &Path, text: &str) -> Result<(), ExperimentError> {
    match fs::read_to_string(path) {
        Ok(known) if known != text => {
            let why = "is of another experiment than the manager's; give another directory";
            Err(format!("{}: {why}", path.display()).into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with an experiment of two runs, of which one is complete.
    fn manager() -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("runs")).expect("a directory");
        let description = r#"{"title":"t","seed":1,"pool":null,"runs":["a-1","a-2"]}"#;
        fs::write(dir.path().join(DESCRIPTION), description).expect("a file");
        fs::write(dir.path().join("runs/a-1.json"), r#"{"tree":["h0","hö"]}"#).expect("a file");
        for left_out in ["runs/a-2.json.part", "runs/.x.json", "report.html", "key"] {
            fs::write(dir.path().join(left_out), "secret").expect("a file");
        }
        dir
    }

    /// Answers as the agent beside this directory does.
    fn answer(directory: &Path, path: &str) -> Result<String, ExperimentError> {
        let query = path.strip_prefix(PAGE).unwrap_or_default().trim_start_matches('?');
        read_page(directory, query).map_err(|error| error.to_string().into())
    }

    #[test]
    fn runs_come_home_and_what_is_missing_is_counted() {
        let (manager, home) = (manager(), tempfile::tempdir().expect("a directory"));
        let mut asked = Vec::new();
        let mut ask = |path: &str| {
            asked.push(path.to_owned());
            answer(manager.path(), path)
        };
        let into = home.path().join("plan");
        let fetched = fetch_runs(&mut ask, &into).expect("two files");
        assert_eq!((fetched.runs, fetched.missing), (1, 1));
        assert_eq!(asked.len(), 3, "{asked:?}");
        let same = |name: &str| {
            let [there, here] = [manager.path(), &into].map(|dir| fs::read(dir.join(name)));
            there.expect("a file") == here.expect("a file")
        };
        assert!(same(DESCRIPTION) && same("runs/a-1.json"));
        assert_eq!(fs::read_dir(into.join("runs")).expect("a directory").count(), 1);
        // The runs of another experiment are refused.
        fs::write(into.join(DESCRIPTION), "{}").expect("a file");
        let mut ask = |path: &str| answer(manager.path(), path);
        let error = fetch_runs(&mut ask, &into).expect_err("another experiment").to_string();
        assert!(error.contains("another directory"), "{error}");
    }

    #[test]
    fn only_files_of_an_experiment_are_given_out_and_taken() {
        let manager = manager();
        for name in ["key", "../key", "runs/../key", "runs/.x.json", "runs/a-2.json.part", "runs/"]
        {
            let error = read_page(manager.path(), &format!("file={name}&from=0"));
            assert!(error.is_err_and(|error| error.to_string().contains("file=NAME")), "{name}");
        }
        let mut strange = |_: &str| -> Result<String, ExperimentError> {
            Ok(r#"[{"name":"../../etc/x","bytes":1}]"#.to_owned())
        };
        let home = tempfile::tempdir().expect("a directory");
        let error = fetch_runs(&mut strange, home.path()).expect_err("a strange name").to_string();
        assert!(error.contains("no experiment writes"), "{error}");
        let error = read_page(home.path(), "").expect_err("no runs").to_string();
        assert!(error.contains("has not begun"), "{error}");
    }

    #[test]
    fn parts_end_where_characters_end() {
        let manager = manager();
        let path = manager.path().join("runs/a-1.json");
        let whole = fs::read_to_string(&path).expect("a file");
        for bytes_max in 2..9 {
            let mut text = String::new();
            loop {
                let part = read_part(&path, text.len() as u64, bytes_max).expect("text");
                if part.is_empty() {
                    break;
                }
                text.push_str(&part);
            }
            assert_eq!(text, whole, "parts of {bytes_max} bytes");
        }
    }
}
