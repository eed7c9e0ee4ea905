//! `evenfall init`: a settings file for a run, with a key where nodes are on several hosts.
//!
//! The tree of the file has two levels where there are proxies, so that the proxies forward.
//! Without a shape, a small run has one level, and its proxies only stand by.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use evenfall_multicast_service::Settings;
use evenfall_runtime::service;
use evenfall_runtime::settings::SettingsDocument;

use crate::key::make_key_file;
use crate::services::{self, CONFIG};
use crate::{Outcome, key};

/// Arguments of `evenfall init`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The settings file to write. An existing file stays.
    #[arg(default_value = CONFIG)]
    file: PathBuf,
    /// Addresses of the hosts: of the root, the proxies, the receivers and the recorder, in this
    /// order. Without them all nodes are on this machine.
    #[arg(long, value_delimiter = ',')]
    hosts: Vec<IpAddr>,
    /// Number of proxies.
    #[arg(long, default_value_t = 2)]
    proxies: u16,
    /// Number of receivers.
    #[arg(long, default_value_t = 4)]
    receivers: u16,
    /// Add a recorder that keeps every message in this directory.
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// The feed file. Without it the feed is generated.
    #[arg(long)]
    feed: Option<PathBuf>,
    /// Port of each node. On one machine, the port of the root, and the next ports for the others.
    #[arg(long, default_value_t = 9_000, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Port of metrics and pages, chosen in the same way.
    #[arg(long, default_value_t = 9_180, value_parser = clap::value_parser!(u16).range(1..))]
    http: u16,
    /// The key file. With `--hosts` one is made if it is missing; it goes to every host.
    #[arg(long, default_value = "evenfall.key")]
    key_file: PathBuf,
}

/// A node of the file.
struct PlannedNode {
    name: String,
    role: &'static str,
    more: String,
}

impl PlannedNode {
    fn new(name: impl Into<String>, role: &'static str) -> Self {
        Self { name: name.into(), role, more: String::new() }
    }
}

fn planned_nodes(args: &Args) -> Vec<PlannedNode> {
    let mut nodes = vec![PlannedNode::new("root", "root")];
    nodes.extend((1..=args.proxies).map(|n| PlannedNode::new(format!("proxy-{n}"), "proxy")));
    let receivers = 1..=args.receivers;
    nodes.extend(receivers.map(|n| PlannedNode::new(format!("receiver-{n}"), "receiver")));
    nodes.extend(args.record.iter().map(|directory| {
        let more = format!("record = {:?}\n", directory.display().to_string());
        PlannedNode { more, ..PlannedNode::new("recorder", "recorder") }
    }));
    nodes
}

impl Args {
    /// The addresses of the node at this place: of its datagrams and of its pages.
    fn addresses(&self, at: usize) -> Result<(SocketAddr, SocketAddr), String> {
        if let Some(host) = self.hosts.get(at) {
            return Ok(((*host, self.port).into(), (*host, self.http).into()));
        }
        let next = |first: u16| u16::try_from(at).ok().and_then(|at| first.checked_add(at));
        let port = |first: u16| next(first).ok_or_else(|| format!("no port {first} + {at}"));
        let here = Ipv4Addr::LOCALHOST;
        Ok(((here, port(self.port)?).into(), (here, port(self.http)?).into()))
    }

    fn check(&self, nodes: usize) -> Result<(), String> {
        if self.receivers == 0 && self.record.is_none() {
            return Err("--receivers 0: a run needs a receiver or a recorder".into());
        }
        if !self.hosts.is_empty() && self.hosts.len() != nodes {
            return Err(format!(
                "--hosts: names {} hosts, and the run has {nodes} nodes, a host for each: the \
                 root, {} proxies, {} receivers{}",
                self.hosts.len(),
                self.proxies,
                self.receivers,
                if self.record.is_some() { " and the recorder" } else { "" }
            ));
        }
        let (nodes, ports) = (nodes as u64, u64::from(self.port.abs_diff(self.http)));
        match self.hosts.is_empty() && ports < nodes {
            true => {
                Err(format!("--port and --http: {nodes} nodes need {nodes} ports between them"))
            }
            false => Ok(()),
        }
    }

    /// The text of the file.
    fn settings(&self) -> Result<String, String> {
        let nodes = planned_nodes(self);
        self.check(nodes.len())?;
        let mut text = String::from("# docs/configuration.md says what each key does.\n\n[run]\n");
        if !self.hosts.is_empty() {
            let _ = writeln!(text, "key_file = {:?}", self.key_file.display().to_string());
        }
        text += "dir = \"run\"\n";
        match &self.feed {
            Some(file) => {
                let _ = write!(text, "\n[feed]\nfile = {:?}\n", file.display().to_string());
            }
            None => text += "\n[feed]\nfit = \"30s\"\n\n[feed.synthetic]\nmessages = 100000\n",
        }
        let proxies = usize::from(self.proxies);
        let leaves = nodes.len() - 1 - proxies;
        if let Some(fullest) = (proxies > 0).then(|| leaves.div_ceil(proxies)) {
            let fanout = fullest.max(proxies);
            let _ = write!(text, "\n[multicast.shape]\ndepth = 2\nfanout = {fanout}\n");
        }
        for (at, PlannedNode { name, role, more }) in nodes.iter().enumerate() {
            let (address, http) = self.addresses(at)?;
            let _ = write!(
                text,
                "\n[[node]]\nname = {name:?}\nid = {at}\nrole = {role:?}\naddress = \"{address}\"\n\
                 http = \"{http}\"\n{more}"
            );
        }
        Ok(text)
    }
}

/// Says what comes next, so that a newcomer needs no page.
fn say_next_steps(args: &Args) {
    let (file, nodes) = (args.file.display(), planned_nodes(args));
    if !args.hosts.is_empty() {
        say!("copy {file} and {} to every host, and run there", args.key_file.display());
    }
    for PlannedNode { name, role, .. } in nodes.iter().rev() {
        let and = if args.hosts.is_empty() && *role != "root" { " &" } else { "" };
        say!("  evenfall run {role} --config {file} --name {name}{and}");
    }
    say!("`evenfall watch --config {file}` shows the run while it goes on");
}

/// Writes the settings and the key. Returns how many nodes of each role there are. Options that
/// make no settings for a run leave neither file behind, which would be in the way of the next try.
fn write_settings(args: &Args) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let text = args.settings()?;
    let name = args.file.display().to_string();
    let document = SettingsDocument::parse(&text, &name, std::iter::empty(), &[])?;
    service::check(services::SERVICES, &document)?;
    // Whether the files that it names are there is not asked, because they may be on other hosts.
    let checked = Settings::of(&document)?.check_run();
    checked.map_err(|mistake| document.refuse(mistake))?;
    if args.file.exists() {
        return Err(key::is_there_already(&args.file).into());
    }
    if !args.hosts.is_empty() && !args.key_file.exists() {
        make_key_file(&args.key_file)?;
        say!("{} is written: a new key of the run", args.key_file.display());
    }
    key::write_new(&args.file, text.as_bytes(), key::EVERYBODY_READS)?;
    Ok(service::counts(services::SERVICES, &document)?)
}

pub fn main(args: &Args) -> Outcome {
    let counts = write_settings(args)?;
    say!("{} is written: {}", args.file.display(), counts.join(", "));
    say_next_steps(args);
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    fn settings_of(words: &[&str]) -> Result<String, String> {
        let program = [&["init"][..], words].concat();
        Program::try_parse_from(program).map_err(|error| error.to_string())?.args.settings()
    }

    #[test]
    fn proxies_have_children() {
        let text = settings_of(&["--proxies", "2", "--receivers", "5"]).expect("settings");
        assert!(text.contains("depth = 2\nfanout = 3\n"), "{text}");
        let flat = settings_of(&["--proxies", "0"]).expect("settings");
        assert!(!flat.contains("[multicast.shape]"), "{flat}");
    }

    #[test]
    fn options_that_make_no_run_leave_no_file_and_no_key() {
        let dir = tempfile::TempDir::new().expect("a directory");
        let path = |name: &str| dir.path().join(name).display().to_string();
        let (file, key) = (path("evenfall.toml"), path("evenfall.key"));
        let twice = "10.0.0.1,10.0.0.1,10.0.0.2,10.0.0.3";
        let words = ["init", &file, "--hosts", twice, "--receivers", "1", "--key-file", &key];
        let args = Program::try_parse_from(words).expect("options").args;
        let error = write_settings(&args).expect_err("two nodes at one address").to_string();
        assert!(error.contains("10.0.0.1:9000"), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 0, "{error}");
    }

    #[test]
    fn a_host_too_few_is_named() {
        let error = settings_of(&["--hosts", "10.0.0.1,10.0.0.2"]).expect_err("seven nodes");
        assert!(error.contains("2 hosts") && error.contains("7 nodes"), "{error}");
        let error = settings_of(&["--port", "9000", "--http", "9003"]).expect_err("seven nodes");
        assert!(error.contains("7 ports"), "{error}");
    }
}
