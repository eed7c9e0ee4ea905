//! `evenfall plan fetch`: brings the runs of an experiment home from the manager's machine.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use evenfall_placement_survey::Settings;
use evenfall_placement_survey::experiment::ExperimentError;
use evenfall_placement_survey::experiment::served::fetch_runs;
use evenfall_runtime::address::look_up;
use evenfall_runtime::causes::with_causes;
use evenfall_runtime::http::{self, Method, StatusCode};
use serde_json::json;

use crate::Outcome;

/// How long an agent may take to answer. An answer has up to a MiB, and the way may be long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Arguments of `evenfall plan fetch`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The directory into which the runs are written, for `evenfall plan report`.
    dir: PathBuf,
    /// Settings file of the agents. Its first agent with `http` is asked, because the manager runs
    /// on the first machine.
    #[arg(long, required_unless_present = "http")]
    config: Option<PathBuf>,
    /// Ask this agent of the settings file.
    #[arg(long, value_name = "NAME", requires = "config")]
    agent: Option<String>,
    /// Ask the agent whose pages have this address.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = look_up, conflicts_with = "config")]
    http: Option<SocketAddr>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// The address of the pages of the manager's agent.
fn address_of(args: &Args) -> Result<SocketAddr, Box<dyn std::error::Error>> {
    if let Some(address) = args.http {
        return Ok(address);
    }
    let config = args.config.as_ref().ok_or("--config or --http: which agent?")?;
    let shown = config.display();
    let settings = Settings::load(config, &[])?;
    if let Some(name) = &args.agent {
        let why = || format!("{shown}: agent {name} has no http = \"ADDRESS\"; add the key");
        return Ok(settings.agent(name)?.http.ok_or_else(why)?);
    }
    let first = settings.agents.iter().find_map(|agent| agent.http);
    let why = || format!("{shown}: no agent has http = \"ADDRESS\"; add the key, or give --http");
    Ok(first.ok_or_else(why)?)
}

/// The text of a page of an agent.
fn ask_page(address: SocketAddr, path: &str) -> Result<String, ExperimentError> {
    let hint = "does the agent run there, with `http` set to this address in its settings?";
    let reply = http::ask(address, Method::GET, path, PATIENCE)
        .map_err(|error| format!("{address}: {}; {hint}", with_causes(&error)))?;
    match reply.status {
        StatusCode::OK => Ok(reply.text),
        StatusCode::NOT_FOUND => Err(format!(
            "{address}: this agent gives out no runs; set survey.results in its settings to the \
             directory of evenfall plan run --dir, and start it again"
        )
        .into()),
        _ => Err(format!("{address}: {}", reply.text.trim_end()).into()),
    }
}

pub fn main(args: &Args) -> Outcome {
    let address = address_of(args)?;
    let fetched = fetch_runs(&mut |path: &str| ask_page(address, path), &args.dir)?;
    if args.json {
        let (runs, missing, bytes) = (fetched.runs, fetched.missing, fetched.bytes);
        let from = address.to_string();
        say!(
            "{}",
            json!({
                "dir": args.dir, "from": from, "runs": runs, "missing": missing, "bytes": bytes
            })
        );
        return Ok(());
    }
    let dir = args.dir.display();
    say!("{} runs from {address} in {dir}; evenfall plan report {dir} draws them", fetched.runs);
    if fetched.missing > 0 {
        say!(
            "{} runs are missing: the manager goes on; the same command fetches them later",
            fetched.missing
        );
    }
    Ok(())
}
