//! `evenfall plan report`: draws a finished experiment.

use std::path::PathBuf;

use evenfall_placement_survey::experiment::RunsDirectory;
use evenfall_placement_survey::experiment::report::ExperimentPage;

use crate::Outcome;

/// Arguments of `evenfall plan report`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The directory of the experiment.
    dir: PathBuf,
    /// The page to write; `report.html` in the directory by default.
    #[arg(long)]
    html: Option<PathBuf>,
    /// Print the data of the page as one JSON object.
    #[arg(long)]
    json: bool,
}

pub fn main(args: &Args) -> Outcome {
    let directory = RunsDirectory::open(&args.dir)?;
    let page = ExperimentPage::read(&directory)?;
    let path = args.html.clone().unwrap_or_else(|| args.dir.join("report.html"));
    page.write_html(&path)?;
    if args.json {
        say!("{}", serde_json::to_string(&page)?);
        return Ok(());
    }
    say!(
        "{:<28}{:>6}{:>10}{:>10}{:>10}{:>10}",
        "worst leaf, us",
        "runs",
        "p50",
        "p90",
        "mean",
        "stddev"
    );
    for group in &page.groups {
        let Some(worst) = &group.worst else { continue };
        say!(
            "{:<28}{:>6}{:>10.1}{:>10.1}{:>10.1}{:>10.1}",
            group.name,
            group.runs.len(),
            worst.p50_us,
            worst.p90_us,
            worst.mean_us,
            worst.stddev_us
        );
    }
    for failure in &page.failures {
        say!("note: {failure}");
    }
    say!("page: {}", path.display());
    Ok(())
}
