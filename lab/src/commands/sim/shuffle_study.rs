//! `evenfall sim study shuffle`: makes the figures of the shuffle thesis. A stopped study can be
//! continued.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenfall_campaigns::shuffle::unfinished::Unfinished;
use evenfall_studies::shuffle::course::{self, CourseFigure, ShuffleTimeline};
use evenfall_studies::shuffle::curves::Curves;
use evenfall_studies::shuffle::plot;
use evenfall_studies::shuffle::study::{self, Figure, Record, ShuffleRun};
use evenfall_studies::tables::Table;

use humantime::parse_duration;

/// The word behind the key of a run that ended in a deadlock, in the file of finished runs.
const DEADLOCK: &str = "deadlock";

/// Arguments of the shuffle study.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Figures such as 6.1a,6.13, or ways,shapes,orders for rivals. By default, all figures of the
    /// study (shuffle, files, order and rivals).
    #[arg(long, value_delimiter = ',')]
    pub(super) figure: Vec<String>,
    /// Runs of every point (shuffle and files).
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) runs: u64,
    /// Message skewnesses of every curve over skewness, in percent (shuffle only).
    #[arg(long, value_delimiter = ',', default_value = "5,15,25,35,45,55,65,75,85,95",
        value_parser = clap::value_parser!(u32).range(1..=99))]
    percent: Vec<u32>,
    /// Keep finished runs in this file, a line each. Runs in the file are not repeated (shuffle
    /// only).
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Draw each figure into this folder, as SVG (shuffle only).
    #[arg(long)]
    plots: Option<PathBuf>,
    /// Begin no further run after this long, such as 30min. The tables state how many runs there
    /// are (shuffle only).
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    budget: Option<Duration>,
}

/// A figure of either kind.
enum Kind {
    Skewness(Figure),
    Course(CourseFigure),
}

impl Kind {
    fn number(&self) -> &'static str {
        match self {
            Self::Skewness(figure) => figure.number,
            Self::Course(figure) => figure.number,
        }
    }

    fn curves(&self, args: &Args, records: &Records) -> Curves {
        match self {
            Self::Skewness(figure) => {
                let all: Vec<Record> = records.all.values().cloned().collect();
                figure.curves(&args.percent, args.runs, &all)
            }
            Self::Course(figure) => {
                let all: Vec<ShuffleTimeline> = records.courses.values().cloned().collect();
                figure.curves(args.runs, &all)
            }
        }
    }
}

/// Makes the tables.
pub fn tables(args: &Args, progress: &mut dyn FnMut(&str)) -> Result<Vec<Table>, String> {
    let figures = chosen(args)?;
    let mut records = Records::open(args.keep.as_deref())?;
    if let Some(folder) = &args.plots {
        // The folder is made before the runs, which may take hours, so that a wrong path fails at
        // once.
        std::fs::create_dir_all(folder)
            .map_err(|error| format!("--plots {}: {error}", folder.display()))?;
    }
    fill(args, &figures, &mut records, progress)?;
    let curves: Vec<Curves> = figures.iter().map(|f| f.curves(args, &records)).collect();
    if let Some(folder) = &args.plots {
        draw(folder, &curves)?;
    }
    Ok(curves.iter().map(Curves::table).collect())
}

/// Makes the missing runs, ordered by seed, until the time budget is used up.
fn fill(
    args: &Args,
    figures: &[Kind],
    records: &mut Records,
    progress: &mut dyn FnMut(&str),
) -> Result<(), String> {
    let mut runs: BTreeMap<(u64, String, bool), ShuffleRun> = BTreeMap::new();
    for figure in figures {
        let (own, course) = match figure {
            Kind::Skewness(figure) => (figure.runs(&args.percent, args.runs), false),
            Kind::Course(figure) => (figure.runs(args.runs), true),
        };
        runs.extend(own.into_iter().map(|run| ((run.seed, run.key(), course), run)));
    }
    let begun = Instant::now();
    for (at, ((_, key, course), run)) in runs.iter().enumerate() {
        if args.budget.is_some_and(|budget| begun.elapsed() >= budget) {
            progress(&format!("budget used up after {at} of {} runs", runs.len()));
            break;
        }
        if records.has(key, *course) {
            continue;
        }
        progress(&format!("run {} of {}: {key}", at + 1, runs.len()));
        let done = if *course {
            ShuffleTimeline::run(run).map(|course| records.add_course(course))
        } else {
            run.run().map(|record| records.add(record))
        };
        match done {
            Ok(kept) => kept?,
            // The tables count the runs that ended.
            Err(why @ Unfinished::Deadlock { .. }) => {
                progress(&why.to_string());
                records.keep(&format!("{key} {DEADLOCK}"))?;
            }
            Err(why) => return Err(why.into()),
        }
    }
    Ok(())
}

fn draw(folder: &Path, figures: &[Curves]) -> Result<(), String> {
    for figure in figures {
        if let Some(drawing) = plot::svg(figure) {
            let path = folder.join(format!("{}.svg", figure.number));
            std::fs::write(&path, drawing)
                .map_err(|error| format!("--plots {}: {error}", path.display()))?;
        }
    }
    Ok(())
}

fn chosen(args: &Args) -> Result<Vec<Kind>, String> {
    let skewness = study::figures().into_iter().map(Kind::Skewness);
    let all: Vec<Kind> = course::figures().into_iter().map(Kind::Course).chain(skewness).collect();
    let known: Vec<&str> = all.iter().map(Kind::number).collect();
    if let Some(name) = args.figure.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("--figure {name}: there are {}", known.join(", ")));
    }
    let wanted = |figure: &Kind| args.figure.iter().any(|name| name == figure.number());
    Ok(all.into_iter().filter(|f| args.figure.is_empty() || wanted(f)).collect())
}

/// Finished runs by key, and the file that keeps them.
#[derive(Default)]
struct Records {
    all: BTreeMap<String, Record>,
    courses: BTreeMap<String, ShuffleTimeline>,
    /// Keys of runs that cannot end, because their nodes wait for each other.
    deadlocks: BTreeSet<String>,
    file: Option<(File, String)>,
}

impl Records {
    fn open(path: Option<&Path>) -> Result<Self, String> {
        let Some(path) = path else { return Ok(Self::default()) };
        let name = path.display().to_string();
        let failed = |error: std::io::Error| format!("--keep {name}: {error}");
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed(error)),
        };
        let all = text.lines().filter_map(Record::parse).map(|r| (r.key.clone(), r)).collect();
        let courses =
            text.lines().filter_map(ShuffleTimeline::parse).map(|c| (c.key.clone(), c)).collect();
        let deadlocks = text.lines().filter_map(|line| line.strip_suffix(DEADLOCK));
        let deadlocks = deadlocks.map(|key| key.trim_end().to_owned()).collect();
        let mut file = File::options().create(true).append(true).open(path).map_err(failed)?;
        if !text.is_empty() && !text.ends_with('\n') {
            // A run was cut off while its line was written, so the next run begins a new line.
            writeln!(file).map_err(failed)?;
        }
        Ok(Self { all, courses, deadlocks, file: Some((file, name)) })
    }

    fn has(&self, key: &str, course: bool) -> bool {
        let is_done =
            if course { self.courses.contains_key(key) } else { self.all.contains_key(key) };
        is_done || self.deadlocks.contains(key)
    }

    fn add(&mut self, record: Record) -> Result<(), String> {
        self.keep(&record)?;
        self.all.insert(record.key.clone(), record);
        Ok(())
    }

    fn add_course(&mut self, course: ShuffleTimeline) -> Result<(), String> {
        self.keep(&course)?;
        self.courses.insert(course.key.clone(), course);
        Ok(())
    }

    /// Writes a line.
    fn keep(&mut self, record: &impl Display) -> Result<(), String> {
        let Some((file, name)) = &mut self.file else { return Ok(()) };
        writeln!(file, "{record}").map_err(|error| format!("--keep {name}: {error}"))
    }
}
