//! `evenfall sim study shuffle`: the figures of the shuffle thesis, run by run, resumable.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::shuffle::plot;
use crate::shuffle::study::{self, Figure, Record};
use crate::studies::Table;

/// Arguments of the shuffle study.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Figures such as 6.1a,6.13; all that can be made when left out (shuffle only).
    #[arg(long, value_delimiter = ',')]
    figure: Vec<String>,
    /// Runs of every point (shuffle only).
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// Message skewnesses of every curve, spread over the whole range (shuffle only).
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    points: u32,
    /// Keep finished runs in this file, a line each, and do not run again what it has (shuffle
    /// only).
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Draw each figure into this folder, as SVG (shuffle only).
    #[arg(long)]
    plots: Option<PathBuf>,
    /// Begin no run after this long, such as 30min; the tables say how many there are (shuffle
    /// only).
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    budget: Option<Duration>,
}

/// Makes the tables.
pub fn tables(args: &Args, progress: &mut dyn FnMut(&str)) -> Result<Vec<Table>, String> {
    let figures = chosen(args)?;
    let mut records = Records::open(args.keep.as_deref())?;
    let runs: BTreeMap<_, _> = (figures.iter())
        .flat_map(|figure| figure.runs(args.points, args.runs))
        .map(|run| ((run.seed, run.key()), run))
        .collect();
    if let Some(folder) = &args.plots {
        // Before hours of runs, not after them.
        std::fs::create_dir_all(folder)
            .map_err(|error| format!("--plots {}: {error}", folder.display()))?;
    }
    let begun = Instant::now();
    for (at, ((_, key), run)) in runs.iter().enumerate() {
        if args.budget.is_some_and(|budget| begun.elapsed() >= budget) {
            progress(&format!("budget used up after {at} of {} runs", runs.len()));
            break;
        }
        if !records.has(key) {
            progress(&format!("run {} of {}: {key}", at + 1, runs.len()));
            records.add(run.run()?)?;
        }
    }
    let all: Vec<Record> = records.all.into_values().collect();
    if let Some(folder) = &args.plots {
        draw(folder, &figures, args, &all)?;
    }
    Ok(figures.iter().map(|f| study::table(f, args.points, args.runs, &all)).collect())
}

fn draw(folder: &Path, figures: &[Figure], args: &Args, all: &[Record]) -> Result<(), String> {
    for figure in figures {
        if let Some(drawing) = plot::svg(figure, args.points, args.runs, all) {
            let path = folder.join(format!("{}.svg", figure.number));
            std::fs::write(&path, drawing)
                .map_err(|error| format!("--plots {}: {error}", path.display()))?;
        }
    }
    Ok(())
}

fn chosen(args: &Args) -> Result<Vec<Figure>, String> {
    let all = study::figures();
    let known: Vec<&str> = all.iter().map(|figure| figure.number).collect();
    if let Some(name) = args.figure.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("--figure {name}: there are {}", known.join(", ")));
    }
    let wanted = |figure: &Figure| args.figure.iter().any(|name| name == figure.number);
    Ok(all.into_iter().filter(|f| args.figure.is_empty() || wanted(f)).collect())
}

/// Finished runs by key, and the file that keeps them.
struct Records {
    all: BTreeMap<String, Record>,
    file: Option<(File, String)>,
}

impl Records {
    fn open(path: Option<&Path>) -> Result<Self, String> {
        let Some(path) = path else { return Ok(Self { all: BTreeMap::new(), file: None }) };
        let name = path.display().to_string();
        let failed = |error: std::io::Error| format!("--keep {name}: {error}");
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed(error)),
        };
        let all = text.lines().filter_map(Record::parse).map(|r| (r.key.clone(), r)).collect();
        let mut file = File::options().create(true).append(true).open(path).map_err(failed)?;
        if !text.is_empty() && !text.ends_with('\n') {
            // A run was cut off while its line was written: the next one begins a new line.
            writeln!(file).map_err(failed)?;
        }
        Ok(Self { all, file: Some((file, name)) })
    }

    fn has(&self, key: &str) -> bool {
        self.all.contains_key(key)
    }

    fn add(&mut self, record: Record) -> Result<(), String> {
        if let Some((file, name)) = &mut self.file {
            writeln!(file, "{record}").map_err(|error| format!("--keep {name}: {error}"))?;
        }
        self.all.insert(record.key.clone(), record);
        Ok(())
    }
}
