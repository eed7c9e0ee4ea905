//! `evenfall clock`: how well the nodes of a run know their time.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Subcommand;
use evenfall_host::interrupt;
use evenfall_multicast_service::Settings;
use evenfall_runtime::program::counted;
use humantime::parse_duration;
use serde_json::{Map, Value};

use crate::services::CONFIG;
use crate::{Outcome, instrument, stat};

/// Longest time between a signal and the end of `evenfall clock watch`.
const LOOK: Duration = Duration::from_millis(100);

/// Longest time from one print of `evenfall clock watch` to the next.
const EVERY_MAX: Duration = Duration::from_secs(24 * 3_600);

/// Arguments of `evenfall clock`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Print the clocks of running nodes once.
    Report(Asked),
    /// Print the clocks of running nodes again and again.
    Watch(Watch),
    /// Plant wrong clocks in nodes on this machine, and compare the times that the nodes find with
    /// the true time.
    #[command(disable_help_flag = true)]
    Lab(instrument::Args),
}

#[derive(clap::Args, Debug)]
struct Asked {
    /// The settings file. Nodes with `http` in it are asked.
    #[arg(long, default_value = CONFIG)]
    config: PathBuf,
    /// Ask this address instead of the nodes of the settings file. The option may be given several
    /// times.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = evenfall_runtime::address::look_up)]
    http: Vec<SocketAddr>,
    /// Print the answers of the nodes as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
struct Watch {
    #[command(flatten)]
    asked: Asked,
    /// Time from one print to the next, such as 2s.
    #[arg(long, default_value = "2s", value_name = "DURATION", value_parser = every)]
    every: Duration,
}

pub fn main(args: Args) -> Outcome {
    match args.command {
        Command::Report(asked) => look(&asked, &nodes(&asked)?),
        Command::Watch(watch) => {
            interrupt::install()?;
            let nodes = nodes(&watch.asked)?;
            loop {
                // A failed look does not end the watch, because the nodes may answer later.
                if let Err(error) = look(&watch.asked, &nodes) {
                    aside!("{error}");
                }
                let until = Instant::now() + watch.every;
                while Instant::now() < until && !interrupt::raised() {
                    std::thread::sleep(LOOK);
                }
                if interrupt::raised() {
                    return Ok(());
                }
            }
        }
        Command::Lab(args) => {
            let noun = std::iter::once(OsString::from("lab"));
            instrument::hand_over("clock", noun.chain(args.arguments))
        }
    }
}

/// Reads the time from one print to the next.
fn every(text: &str) -> Result<Duration, String> {
    let every = parse_duration(text).map_err(|error| error.to_string())?;
    let (least, most) = (LOOK, EVERY_MAX);
    if (least..=most).contains(&every) {
        return Ok(every);
    }
    Err(format!("must be {least:?} to {} hours", most.as_secs() / 3_600))
}

/// The nodes of a run.
struct Nodes {
    /// The names and the addresses of the nodes that are asked.
    asked: Vec<(String, SocketAddr)>,
    /// Names of all nodes by their places in the mesh of clocks. Without a settings file the list
    /// is empty.
    places: Vec<String>,
}

/// The nodes that the arguments name.
fn nodes(asked: &Asked) -> Result<Nodes, Box<dyn std::error::Error>> {
    if !asked.http.is_empty() {
        let named = asked.http.iter().map(|address| (address.to_string(), *address));
        return Ok(Nodes { asked: named.collect(), places: Vec::new() });
    }
    let settings = Settings::load(&asked.config, &[])?;
    if !settings.is_meshed() {
        let (file, clock) = (asked.config.display(), &settings.run.clock);
        return Err(format!(
            "{file}: run.clock = \"{clock}\": the nodes of this run do not measure each other's \
             clocks; with run.clock = \"mesh\" they do"
        )
        .into());
    }
    let named = |node: &evenfall_multicast_service::settings::MulticastNode| {
        node.http.map(|address| (node.name.clone(), address))
    };
    let nodes: Vec<_> = settings.nodes.iter().filter_map(named).collect();
    if nodes.is_empty() {
        return Err(stat::without_http(&asked.config).into());
    }
    let places = settings.timed().into_iter().map(|node| node.name.clone()).collect();
    Ok(Nodes { asked: nodes, places })
}

/// Asks all nodes once, and prints what they say.
fn look(asked: &Asked, nodes: &Nodes) -> Outcome {
    let mut all = Map::new();
    let mut silent = 0;
    for (name, address) in &nodes.asked {
        match stat::fetch_page(*address, "/clock") {
            Ok(standing) => drop(all.insert(name.clone(), standing)),
            Err(error) => {
                silent += 1;
                // The error begins with the address, which is also the name of a node from --http.
                let name = if asked.http.is_empty() { format!("{name}: ") } else { String::new() };
                aside!("{name}{error}");
            }
        }
    }
    if asked.json {
        say!("{}", Value::Object(all));
    } else if !all.is_empty() {
        say!("{}", table(&all, &nodes.places));
    }
    match silent {
        0 => Ok(()),
        _ => {
            Err(format!("{silent} of {} did not answer", counted(nodes.asked.len(), "node")).into())
        }
    }
}

/// A line for each node, and a line for each trouble of a clock. The line of a trouble names the
/// node. When `places` is empty, the line has the place of the node.
fn table(all: &Map<String, Value>, places: &[String]) -> String {
    let mut lines = vec![format!(
        "{:<14} {:<13} {:>14} {:>11} {:>11} {:>12} {:>8} {:>8} {:>7}",
        "node",
        "state",
        "offset us",
        "proven us",
        "assumed us",
        "UTC bound us",
        "kbit/s",
        "pairs/s",
        "core %"
    )];
    for (name, standing) in all {
        if standing.is_null() {
            lines.push(format!("{name:<14} believes the clock of its host"));
            continue;
        }
        let us = |key: &str| match standing[key].as_f64() {
            Some(ns) => format!("{:.2}", ns / 1e3),
            None => "none".to_owned(),
        };
        lines.push(format!(
            "{name:<14} {:<13} {:>14} {:>11} {:>11} {:>12} {:>8.0} {:>8.0} {:>7.2}",
            standing["state"].as_str().unwrap_or("unknown"),
            us("offset_ns"),
            us("proven_ns"),
            us("assumed_ns"),
            us("utc_bound_ns"),
            standing["sent_bits_s"].as_f64().unwrap_or(0.0) / 1e3,
            standing["pairs_per_s"].as_f64().unwrap_or(0.0),
            standing["core_share"].as_f64().unwrap_or(0.0) * 100.0,
        ));
        for (key, words) in [
            ("liars", "tells different nodes different times"),
            ("lost", "was reached by no probe"),
            ("disrupted", "has a clock that left its proven bound"),
            ("sources_dropped", "has a source of UTC that left its own bound"),
        ] {
            for place in standing[key].as_array().into_iter().flatten() {
                let named = place.as_u64().and_then(|place| places.get(place as usize)).cloned();
                let node = named.unwrap_or_else(|| format!("the node of place {place}"));
                lines.push(format!("{node} {words}, says {name}"));
            }
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_says_offset_bounds_what_the_clock_costs_and_which_node_lies() {
        let standing = json!({
            "state": "synchronised", "offset_ns": -1_500, "proven_ns": 30_250,
            "assumed_ns": 900, "utc_bound_ns": null, "sent_bits_s": 499_800, "core_share": 0.004,
            "pairs_per_s": 213.4,
            "liars": [3], "lost": [], "sources_dropped": [],
        });
        let mut all = Map::new();
        all.insert("root".into(), standing);
        all.insert("guest".into(), Value::Null);
        let text = table(&all, &["root", "guest", "proxy-1", "receiver-1"].map(str::to_owned));
        assert!(text.contains("\nreceiver-1 tells different nodes different times, says root"));
        let nameless = table(&all, &[]);
        assert!(nameless.contains("\nthe node of place 3 tells different nodes"), "{nameless}");
        for word in
            ["synchronised", "-1.50", "30.25", "0.90", "none", "500", "213", "0.40", "different"]
        {
            assert!(text.contains(word), "{word} in {text}");
        }
        assert!(text.contains("guest          believes the clock of its host"), "{text}");
    }
}
