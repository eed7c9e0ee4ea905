//! `evenfall stat`: shows the state of running nodes, as they report it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenfall_multicast_machine::Mode;
use evenfall_multicast_service::Settings;
use evenfall_multicast_service::settings::RoleName;
use evenfall_runtime::http::{self, Method, Reply};
use evenfall_runtime::program::{counted, with_causes};
use serde_json::Value;

use crate::Outcome;
use crate::settings::CONFIG;

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Arguments of `evenfall stat`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The settings file. Nodes with `http` in it are asked.
    #[arg(long, default_value = CONFIG)]
    config: PathBuf,
    /// Ask this address instead of the nodes of the settings file. The option may be given several
    /// times.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = crate::address)]
    http: Vec<SocketAddr>,
    /// Switch the root to another mode: unicast, tree, hedge, release or cloudex.
    #[arg(long)]
    set_mode: Option<String>,
    /// Print the answers of the nodes as JSON.
    #[arg(long)]
    json: bool,
}

/// The status of one node.
pub fn fetch(address: SocketAddr) -> Result<Value, String> {
    fetch_page(address, "/status")
}

/// A page of one node that is JSON.
pub fn fetch_page(address: SocketAddr, page: &str) -> Result<Value, String> {
    let reply = ask(address, Method::GET, page)?;
    serde_json::from_str(&reply.text)
        .map_err(|error| format!("{address}{page}: not the answer of an evenfall node: {error}"))
}

fn ask(address: SocketAddr, method: Method, path: &str) -> Result<Reply, String> {
    let hint = "is a node running there, with `http` set to this address in its settings?";
    http::ask(address, method, path, PATIENCE)
        .map_err(|error| format!("{address}: {}; {hint}", with_causes(&error)))
}

/// The error about a settings file in which no node has pages to ask for.
pub fn without_http(config: &Path) -> String {
    let file = config.display();
    format!("{file}: no [[node]] has http = \"ADDRESS\"; add the key, or name a node by --http")
}

pub fn main(args: &Args) -> Outcome {
    let mut nodes: Vec<(String, Option<RoleName>, SocketAddr)> =
        args.http.iter().map(|a| (a.to_string(), None, *a)).collect();
    if nodes.is_empty() {
        let settings = Settings::load(&args.config, &[])?;
        let with_http = settings
            .nodes
            .iter()
            .filter_map(|n| n.http.map(|address| (n.name.clone(), Some(n.role), address)));
        nodes.extend(with_http);
    }
    if nodes.is_empty() {
        return Err(without_http(&args.config).into());
    }
    if let Some(mode) = &args.set_mode {
        let root = nodes.iter().find(|n| n.1.is_none_or(|role| role == RoleName::Root));
        let missing = || {
            let config = args.config.display();
            format!("{config}: the root's [[node]] has no http = \"ADDRESS\"; add the key")
        };
        return set_mode(root.ok_or_else(missing)?.2, mode);
    }
    let mut all = serde_json::Map::new();
    let mut silent = 0;
    for (name, _, address) in &nodes {
        match fetch(*address) {
            Ok(status) if args.json => drop(all.insert(name.clone(), status)),
            Ok(status) => show(name, &status),
            Err(error) => {
                silent += 1;
                // A node that was named by its address states its own name.
                let name = if args.http.is_empty() { format!("{name}: ") } else { String::new() };
                eprintln!("{name}{error}");
            }
        }
    }
    if args.json {
        println!("{}", Value::Object(all));
    }
    if silent == 0 {
        return Ok(());
    }
    Err(format!("{} of {} did not answer", silent, counted(nodes.len(), "node")).into())
}

fn set_mode(root: SocketAddr, mode: &str) -> Outcome {
    // The word is also checked here, so that a mistake needs no running root to be found.
    serde_json::from_value::<Mode>(Value::String(mode.to_owned()))
        .map_err(|error| format!("--set-mode {mode}: {error}"))?;
    let path = format!("/mode?to={mode}");
    let reply = ask(root, Method::POST, &path)?;
    if !reply.status.is_success() {
        return Err(format!("--set-mode {mode}: {root} refused: {}", reply.text.trim_end()).into());
    }
    print!("{}", reply.text);
    Ok(())
}

/// Prints one line per tree: every number outside of lists, by its name.
fn show(name: &str, status: &Value) {
    let trees = status.as_array().cloned().unwrap_or_else(|| vec![status.clone()]);
    for (tree, status) in trees.iter().enumerate() {
        let mut line = format!("{name:<12} tree {tree}");
        flatten("", status, &mut line);
        println!("{line}");
    }
}

fn flatten(prefix: &str, value: &Value, line: &mut String) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let skip = matches!(key.as_str(), "tally" | "below" | "refusals");
                let name =
                    if skip || prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flatten(if skip { "" } else { &name }, value, line);
            }
        }
        Value::Number(number) if prefix.ends_with("_ns") => {
            let us = number.as_f64().unwrap_or(0.0) / 1e3;
            line.push_str(&format!("  {} {us:.0}us", prefix.trim_end_matches("_ns")));
        }
        Value::Number(number) if number.as_f64() != Some(0.0) => {
            line.push_str(&format!("  {prefix} {number}"));
        }
        _ => {}
    }
}
