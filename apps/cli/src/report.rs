//! `evenfall report`: the figures and the page of a finished run.

use std::path::PathBuf;

use evenfall_multicast_report::{FairnessRow, csv};
use evenfall_multicast_service::report;

use evenfall_multicast_service::report::text;
use evenfall_runtime::output_file::open_output;

use crate::Outcome;

/// Arguments of `evenfall report`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The directory of the run. Copy the logs of several hosts into one directory first.
    #[arg(default_value = "run")]
    dir: PathBuf,
    /// The page to write; `report.html` in the directory by default.
    #[arg(long)]
    html: Option<PathBuf>,
    /// Write the fairness log into this file, with a line for each message.
    #[arg(long)]
    csv: Option<PathBuf>,
    /// Print the figures as JSON.
    #[arg(long)]
    json: bool,
}

pub fn main(args: &Args) -> Outcome {
    let report = match &args.csv {
        None => report::read(&args.dir, None)?,
        Some(path) => {
            let (file, unfinished) = open_output(Some(path))?;
            let mut out = csv::Writer::new(file)?;
            let mut failed = None;
            let mut each = |row: &FairnessRow| {
                if let Err(error) = out.write(row) {
                    failed.get_or_insert(error);
                }
            };
            let report = report::read(&args.dir, Some(&mut each))?;
            if let Some(error) = failed {
                return Err(error.into());
            }
            out.finish()?;
            unfinished.keep()?;
            report
        }
    };
    let page = args.html.clone().unwrap_or_else(|| args.dir.join("report.html"));
    report.write_html(&page)?;
    if args.json {
        say!("{}", serde_json::to_string(&report.outcome.results)?);
        return Ok(());
    }
    say_part!("{}", text::table(&report.outcome.results));
    for warning in &report.warnings {
        say!("note: {warning}");
    }
    say!("page: {}", page.display());
    Ok(())
}
