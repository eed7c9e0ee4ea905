//! `evenfall stat`: shows the state of running nodes, as they report it.

mod table;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenfall_host::interrupt;
use evenfall_multicast_machine::Mode;
use evenfall_runtime::address::look_up;
use evenfall_runtime::causes::with_causes;
use evenfall_runtime::http::{self, Method, Reply};
use evenfall_runtime::listing::printable;
use evenfall_runtime::program::counted;
use evenfall_runtime::settings::Node;
use serde_json::{Value, json};

use crate::Outcome;
use crate::services::{self, CONFIG};
use crate::watch::told::{ToldTree, read_root};
use crate::watch::wait_until;

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The variable with the address that the probe of a container asks. It does not begin with
/// `EVENFALL_`, because variables of that name are settings.
const HEALTH_VARIABLE: &str = "HEALTH_HTTP";

/// Arguments of `evenfall stat`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The settings file. Nodes with `http` in it are asked.
    #[arg(long, default_value = CONFIG)]
    config: PathBuf,
    /// Ask this address instead of the nodes of the settings file. The option may be given several
    /// times.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = look_up)]
    http: Vec<SocketAddr>,
    /// Switch the root and its standbys to another mode: unicast, tree, hedge, release or cloudex.
    #[arg(long)]
    set_mode: Option<String>,
    /// Order the root and its standbys to shut a node out. The node loses its place and gets no
    /// more keys of the run. The next key comes into use a second later.
    #[arg(long, value_name = "NODE", conflicts_with_all = ["set_mode", "healthy"])]
    shut_out: Option<String>,
    /// Say of each node whether it is healthy, and fail unless all are. Probes of containers use
    /// the exit code.
    #[arg(long, conflicts_with = "set_mode")]
    healthy: bool,
    /// Print the answers of the nodes as JSON.
    #[arg(long)]
    json: bool,
    /// Ask again every second, until Ctrl-C.
    #[arg(long, conflicts_with_all = ["set_mode", "healthy"])]
    watch: bool,
}

/// Time between two looks of `--watch`.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// A node that is asked: its name, its role where that is known, and its address.
type AskedNode = (String, Option<String>, SocketAddr);

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
    let of_container = match args.healthy && args.http.is_empty() {
        true => std::env::var(HEALTH_VARIABLE).ok(),
        false => None,
    };
    if of_container.as_deref() == Some("") {
        say!("{HEALTH_VARIABLE} is empty: nobody is asked");
        return Ok(());
    }
    let of_container = of_container.map(|address| look_up(&address)).transpose();
    let of_container = of_container.map_err(|error| format!("{HEALTH_VARIABLE}: {error}"))?;
    let mut without_pages = Vec::new();
    let mut nodes: Vec<AskedNode> =
        args.http.iter().chain(&of_container).map(|a| (a.to_string(), None, *a)).collect();
    if nodes.is_empty() {
        let all: Vec<Node> = services::load(&args.config, &[])?.list("node")?;
        let without = all.iter().filter(|node| node.http.is_none());
        without_pages.extend(without.map(|node| node.name.clone()));
        let with_http = all.into_iter().filter_map(|n| Some((n.name, Some(n.role), n.http?)));
        nodes.extend(with_http);
    }
    if nodes.is_empty() {
        return Err(without_http(&args.config).into());
    }
    if let Some(mode) = &args.set_mode {
        return set_mode(&nodes, nodes_of_settings(args)?.as_deref(), mode);
    }
    if let Some(name) = &args.shut_out {
        return shut_out_node(&nodes, nodes_of_settings(args)?.as_deref(), name);
    }
    if args.healthy {
        let nodes: Vec<_> = nodes.into_iter().map(|(name, _, address)| (name, address)).collect();
        return check_health(&nodes, args.json);
    }
    if !args.watch {
        return show_once(args, &nodes, &without_pages);
    }
    interrupt::install()?;
    while !interrupt::raised() {
        let next = Instant::now() + WATCH_EVERY;
        // A failed look does not end the watch, because the nodes may answer later.
        if let Err(error) = show_once(args, &nodes, &without_pages) {
            aside!("{error}");
        }
        wait_until(next);
    }
    Ok(())
}

/// Asks all nodes once, and prints what they say. `without_pages` has the nodes of the settings
/// that have no page.
fn show_once(args: &Args, nodes: &[AskedNode], without_pages: &[String]) -> Outcome {
    let mut all = serde_json::Map::new();
    let mut silent = 0;
    for (name, _, address) in nodes {
        match fetch(*address) {
            Ok(status) if args.json => drop(all.insert(name.clone(), status)),
            Ok(status) => {
                let lines = table::root_lines(&status);
                let lines = lines.unwrap_or_else(|| table::other_lines(name, &status));
                lines.iter().for_each(|line| say!("{line}"));
            }
            Err(error) => {
                silent += 1;
                // A node that was named by its address states its own name.
                let name = if args.http.is_empty() { format!("{name}: ") } else { String::new() };
                aside!("{name}{error}");
            }
        }
    }
    if args.json {
        say!("{}", Value::Object(all));
    } else if !without_pages.is_empty() {
        say!("not asked, because they have no `http`: {}", without_pages.join(", "));
    }
    if silent == 0 {
        return Ok(());
    }
    Err(format!("{} of {} did not answer", silent, counted(nodes.len(), "node")).into())
}

/// Asks each node for its health. A node that does not answer is not healthy.
fn check_health(nodes: &[(String, SocketAddr)], json: bool) -> Outcome {
    let mut all = serde_json::Map::new();
    let mut ill = 0;
    for (name, address) in nodes {
        let why = match ask(*address, Method::GET, "/healthz") {
            Ok(reply) if reply.status.is_success() => None,
            Ok(reply) => Some(printable(reply.text.trim_end())),
            Err(error) => Some(error),
        };
        ill += usize::from(why.is_some());
        match json {
            true => drop(all.insert(name.clone(), json!({ "healthy": why.is_none(), "why": why }))),
            false => say!("{name}: {}", why.as_deref().unwrap_or("healthy")),
        }
    }
    if json {
        say!("{}", Value::Object(all));
    }
    match ill {
        0 => Ok(()),
        ill => Err(format!("{ill} of {} not healthy", counted(nodes.len(), "node")).into()),
    }
}

/// The nodes of the settings; `None` where nodes are named by their addresses.
fn nodes_of_settings(args: &Args) -> Result<Option<Vec<Node>>, Box<dyn std::error::Error>> {
    match args.http.is_empty() {
        true => Ok(Some(services::load(&args.config, &[])?.list("node")?)),
        false => Ok(None),
    }
}

fn is_root(role: &str) -> bool {
    role == "root" || role == "standby"
}

/// The addresses of roots and standbys. A node that was named by its address is taken for one.
fn addresses_of_roots(nodes: &[AskedNode]) -> Vec<SocketAddr> {
    let roots = nodes.iter().filter(|node| node.1.as_deref().is_none_or(is_root));
    roots.map(|node| node.2).collect()
}

/// Orders all roots to take a mode, because a mode holds at the root that took the order.
fn set_mode(nodes: &[AskedNode], all: Option<&[Node]>, mode: &str) -> Outcome {
    // The word is also checked here, so that a mistake needs no running root to be found.
    serde_json::from_value::<Mode>(Value::String(mode.to_owned()))
        .map_err(|error| format!("--set-mode {mode}: {error}"))?;
    order_roots(&addresses_of_roots(nodes), all, "mode", mode)
}

/// Orders all roots to shut a node out. `all` has the nodes of the settings.
fn shut_out_node(nodes: &[AskedNode], all: Option<&[Node]>, name: &str) -> Outcome {
    let roots = addresses_of_roots(nodes);
    // A misspelt name would shut out nobody.
    let is_known = match all {
        Some(all) => all.iter().any(|node| node.name == name),
        None => {
            let told = roots.iter().filter_map(|root| read_root(&fetch(*root).ok()?.to_string()));
            let told: Vec<ToldTree> = told.collect();
            let has_node = |tree: &ToldTree| tree.members.iter().any(|node| node.name == name);
            told.is_empty() || told.iter().any(has_node)
        }
    };
    if !is_known {
        return Err(format!("no node is called {name}").into());
    }
    order_roots(&roots, all, "shut-out", name)
}

/// Gives an order to all roots. A root that is dead, or that takes orders from its own host only,
/// does not keep the others from the order.
fn order_roots(roots: &[SocketAddr], all: Option<&[Node]>, what: &str, value: &str) -> Outcome {
    let mut refusals: Vec<String> = { all.into_iter().flatten() }
        .filter(|node| is_root(&node.role) && node.http.is_none())
        .map(|node| format!("{} has no `http` that could take the order", node.name))
        .collect();
    let mut is_taken = false;
    for root in roots {
        match order(*root, what, value) {
            Ok(()) => is_taken = true,
            Err(error) => refusals.push(error.to_string()),
        }
    }
    if !is_taken {
        let refusals = refusals.join("; ");
        return Err(format!("no root took the order {what} {value}: {refusals}").into());
    }
    refusals.iter().for_each(|why| aside!("note: {why}; order it on that host too"));
    Ok(())
}

/// Gives an order to a root.
fn order(root: SocketAddr, what: &str, value: &str) -> Outcome {
    let path = format!("/{what}?to={value}");
    let reply = ask(root, Method::POST, &path)?;
    if !reply.status.is_success() {
        return Err(format!("{what} {value}: {root} refused: {}", reply.text.trim_end()).into());
    }
    say_part!("{}", reply.text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use evenfall_runtime::http::{HttpServer, Limits, Response, Routes, StatusCode};
    use evenfall_runtime::settings::SettingsDocument;

    use super::*;

    /// A root that answers orders with this status, and counts them.
    fn root_that_says(status: StatusCode) -> (HttpServer, Arc<AtomicUsize>) {
        let orders = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&orders);
        let page = r#"[{"phase":"feeding","members":[{"id":7,"name":"desk-7"}]}]"#;
        let take = move |_: &http::Request| {
            count.fetch_add(1, Relaxed);
            Response::text(status, "an answer")
        };
        let routes = Routes::default()
            .get("/status", move |_| Response::page("application/json", page))
            .post("/shut-out", 0, take);
        let here = SocketAddr::from(([127, 0, 0, 1], 0));
        (HttpServer::bind(here, Limits::default(), routes).expect("a port"), orders)
    }

    #[test]
    fn a_root_that_refuses_keeps_no_other_from_shutting_a_node_out() {
        let (elsewhere, refused) = root_that_says(StatusCode::FORBIDDEN);
        let (here, taken) = root_that_says(StatusCode::ACCEPTED);
        let asked = |server: &HttpServer| (String::new(), None, server.address());
        let both = [asked(&elsewhere), asked(&here)];
        shut_out_node(&both, None, "desk-7").expect("one of the two takes the order");
        assert_eq!((refused.load(Relaxed), taken.load(Relaxed)), (1, 1));
        let said = shut_out_node(&both, None, "desk-8").expect_err("a misspelt name").to_string();
        assert!(said.contains("no node is called desk-8"), "{said}");
        assert_eq!(taken.load(Relaxed), 1, "nobody is ordered to shut out a stranger");
        let said = shut_out_node(&both[..1], None, "desk-7").expect_err("nobody took it");
        let said = said.to_string();
        assert!(said.starts_with("no root took the order shut-out desk-7: "), "{said}");
    }

    #[test]
    fn settings_whose_root_takes_no_orders_shut_nobody_out() {
        let text = "[[node]]\nname = \"root\"\nid = 0\nrole = \"root\"\n\
                    address = \"127.0.0.1:9000\"\n";
        let parsed = SettingsDocument::parse(text, "e.toml", std::iter::empty(), &[]);
        let all: Vec<Node> = parsed.expect("settings").list("node").expect("nodes");
        let said = shut_out_node(&[], Some(&all), "root").expect_err("no order was given");
        assert!(said.to_string().contains("root has no `http`"), "{said}");
    }
}
