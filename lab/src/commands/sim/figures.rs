//! `evenfall sim study figures`: published curves beside ours.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::ValueEnum;
use evenfall_studies::shuffle::plot;
use evenfall_studies::tables::figures::series::PublishedSeries;
use evenfall_studies::tables::figures::{PublishedFigures, make};
use evenfall_studies::tables::overlay::Effort;
use serde_json::json;

/// Options that only this study has.
#[derive(clap::Args, Debug)]
pub struct FiguresArgs {
    /// The directory with the published curves, `onyx_figure_series.csv.gz` (for figures). Without
    /// the file the published columns stay empty.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Draw each figure into a file of this directory (for figures).
    #[arg(long, value_name = "DIR")]
    pictures: Option<PathBuf>,
    /// How much is run (for figures): quick takes some ten CPU minutes.
    #[arg(long, value_enum, default_value_t = FiguresEffort::Quick)]
    effort: FiguresEffort,
}

/// How much the study of figures runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FiguresEffort {
    /// 1,000 messages and two seeds a row.
    Quick,
    /// 5,000 messages and three seeds a row, for an hour and more.
    Full,
}

/// What is run for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSize {
    /// Messages of a run with 100 receivers.
    pub messages: u32,
    /// Seeds.
    pub seeds: u32,
}

impl FiguresEffort {
    /// Seeds run side by side, so two of them take as long on two cores as one.
    const fn size(self) -> RowSize {
        match self {
            Self::Quick => RowSize { messages: 1_000, seeds: 2 },
            Self::Full => RowSize { messages: 5_000, seeds: 3 },
        }
    }
}

impl FiguresArgs {
    /// What is run for a row, where the command line says nothing else.
    pub fn row_size(&self) -> RowSize {
        self.effort.size()
    }
}

/// What a run of this effort leaves to `--effort full`; `None` when nothing is left.
fn left_to_full(effort: &Effort) -> Option<String> {
    let RowSize { messages, seeds } = FiguresEffort::Full.size();
    (effort.messages < messages || effort.seeds < seeds).then(|| {
        format!(
            "left to --effort full: {messages} messages and {seeds} seeds a row, in place of {} \
             and {}; percentiles 99 are here those of {} messages",
            effort.messages,
            effort.seeds,
            effort.messages / 100
        )
    })
}

/// The name of the file with the curves.
const SERIES: &str = "onyx_figure_series.csv.gz";
/// Bytes of the curves at most, when they are unpacked. The file has a tenth of it.
const SERIES_BYTES_MAX: u64 = 32 << 20;

/// The published curves in a directory.
fn read(directory: &Path) -> Result<Option<PublishedSeries>, String> {
    let path = directory.join(SERIES);
    let named = |error: &dyn std::fmt::Display| format!("--data {}: {error}", path.display());
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            aside!("skipped: {} is not there; published columns stay empty", path.display());
            return Ok(None);
        }
        Err(error) => return Err(named(&error)),
    };
    let mut text = String::new();
    let mut unpacked = flate2::read::GzDecoder::new(file).take(SERIES_BYTES_MAX + 1);
    unpacked.read_to_string(&mut text).map_err(|error| named(&error))?;
    if text.len() as u64 > SERIES_BYTES_MAX {
        return Err(named(&format!("has more than {SERIES_BYTES_MAX} bytes")));
    }
    PublishedSeries::parse(&text).map(Some).map_err(|error| named(&error))
}

/// Makes the study. Returns what it prints.
pub fn text(
    args: &FiguresArgs,
    effort: &Effort,
    is_json: bool,
    progress: &mut dyn FnMut(&str),
) -> Result<String, String> {
    let published = match &args.data {
        Some(directory) => read(directory)?,
        None => {
            aside!("skipped: no --data, published columns stay empty");
            None
        }
    };
    if let Some(directory) = &args.pictures {
        std::fs::create_dir_all(directory)
            .map_err(|error| format!("--pictures {}: {error}", directory.display()))?;
    }
    let started = Instant::now();
    let figures = make(effort, published.as_ref(), progress);
    if let Some(directory) = &args.pictures {
        draw(directory, &figures)?;
    }
    if is_json {
        let model = &effort.model.name;
        let seconds = started.elapsed().as_secs();
        let left = left_to_full(effort);
        let all = json!({
            "rows": figures.rows, "model": model, "seconds": seconds, "left": left,
        });
        return Ok(format!("{all}\n"));
    }
    let judged = [true, false].map(|fit| figures.table(effort, fit));
    let tables = figures.tables.iter().chain(&judged);
    let mut text: String = tables.map(|table| format!("{}\n", table.markdown())).collect();
    for row in figures.rows.iter().filter(|row| !row.note.is_empty()) {
        text += &format!("- {}: {}: {}\n", row.figure, row.curve, row.note);
    }
    text.extend(left_to_full(effort).map(|left| format!("- {left}\n")));
    Ok(text)
}

fn draw(directory: &Path, figures: &PublishedFigures) -> Result<(), String> {
    for drawing in &figures.drawings {
        let path = directory.join(format!("figure-{}.svg", drawing.number));
        if let Some(svg) = plot::svg(drawing) {
            std::fs::write(&path, svg).map_err(|e| format!("{}: {e}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenfall_campaigns::model::Model;

    #[test]
    fn a_quick_run_says_what_it_left_and_a_full_run_leaves_nothing() {
        let of = |effort: FiguresEffort| {
            let RowSize { messages, seeds } = effort.size();
            let usual = Effort::on(Model::named("aws").expect("built in"));
            left_to_full(&Effort { messages, seeds, ..usual })
        };
        assert_eq!(of(FiguresEffort::Full), None);
        let left = of(FiguresEffort::Quick).expect("a quick run leaves something");
        assert!(left.contains("5000 messages and 3 seeds") && left.contains("of 10"), "{left}");
    }
}
