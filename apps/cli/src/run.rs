//! `evenfall run`: one process of a run over several hosts.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::builder::PossibleValuesParser;
use evenfall_host::{interrupt, process};
use evenfall_runtime::service::{self, RoleSpec, Start};
use evenfall_runtime::settings::{Node, SettingsDocument};

use crate::Outcome;
use crate::services::{self, CONFIG, FILES, SERVICES};

/// Nodes that an error lists. Six fit into two lines.
const NODES_LISTED_MAX: usize = 6;

/// Arguments of `evenfall run`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The role of this process.
    #[arg(value_parser = role_parser())]
    role: String,
    /// The settings file, the same on every host; evenfall.toml when left out.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Name of the `[[node]]` of the settings that this process is. Not needed when only one node
    /// has the role.
    #[arg(long)]
    name: Option<String>,
    /// Where a receiver begins: start (of a recorder's messages), live, the number of a message, or
    /// a time such as 2026-11-21T14:30:00Z. Overrides `from` of the settings.
    #[arg(long, value_name = "WHERE")]
    from: Option<String>,
    /// Directory of the store that a recorder writes. Overrides `record` of the settings.
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Answer readers of a recorder's store on this loopback address while it records, as `store
    /// serve` does: `evenfall store tail tcp://ADDRESS feed --follow`. Port 0 takes a free port.
    #[arg(long, value_name = "ADDRESS", value_parser = evenfall_runtime::address::look_up)]
    serve: Option<SocketAddr>,
    /// Hold the last seconds that a recorder receives in memory, such as 5s, and answer `burst
    /// reprice` and `burst nbbo`. Overrides `burst` of the settings.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    burst: Option<std::time::Duration>,
    /// With --burst: the address for questions; by default a free port of the node's own address.
    #[arg(long, value_name = "ADDRESS", value_parser = evenfall_runtime::address::look_up)]
    burst_listen: Option<SocketAddr>,
    /// With --burst: a file of positions, lines of account,symbol,quantity below that heading.
    #[arg(long, value_name = "FILE")]
    positions: Option<PathBuf>,
    /// Change a setting, such as --set multicast.mode=tree. The option may be given several times.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// End at once when standard input ends. The program that started this process holds the other
    /// end.
    #[arg(long, hide = true)]
    lifeline: bool,
    /// Trade on the feed as a receiver of `evenfall demo --trading`, which gives this option.
    #[cfg(feature = "trading")]
    #[arg(long, value_name = "SEAT", hide = true)]
    trade: Option<crate::demo::ParticipantSeat>,
    /// Print the summary as JSON at the end.
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Only with keys and files")]
    local: crate::local::LocalArgs,
    #[command(flatten, next_help_heading = "Only with files")]
    files: crate::files::ServersArgs,
    #[command(flatten, next_help_heading = "Only with keys")]
    keys: crate::keys::RunArgs,
}

fn role_parser() -> PossibleValuesParser {
    PossibleValuesParser::new(services::role_words())
}

/// Nodes by name and role, as many as fit into a line.
fn listed<'a>(nodes: impl Iterator<Item = &'a Node>) -> String {
    let all: Vec<String> = nodes.map(|node| format!("{} ({})", node.name, node.role)).collect();
    match all.len() {
        0 => "none".into(),
        1..=NODES_LISTED_MAX => all.join(", "),
        _ => format!("{}, ...", all[..NODES_LISTED_MAX].join(", ")),
    }
}

/// The place in the file of the node that this process is, and the node.
fn find(nodes: &[Node], role: &RoleSpec, name: Option<&str>) -> Result<(usize, Node), String> {
    let word = role.word;
    let mut having = nodes.iter().enumerate().filter(|(_, node)| role.is_named(&node.role));
    let all = || listed(nodes.iter().filter(|node| role.is_named(&node.role)));
    if let Some(name) = name {
        let found = nodes.iter().enumerate().find(|(_, node)| node.name == name);
        return match found {
            Some((at, node)) if role.is_named(&node.role) => Ok((at, node.clone())),
            Some((_, node)) => Err(format!(
                "--name {name}: the settings give this node the role {}, not {word}; nodes with \
                 that role: {}",
                node.role,
                all()
            )),
            None => Err(format!("no node is called {name}; nodes with the role {word}: {}", all())),
        };
    }
    match (having.next(), having.next()) {
        (Some((at, node)), None) => Ok((at, node.clone())),
        (None, _) => Err(format!(
            "no [[node]] of the settings has role = \"{word}\"; there are: {}",
            listed(nodes.iter())
        )),
        (Some(_), Some(_)) => {
            let all = all();
            Err(format!("several nodes have the role {word}; choose with --name; there are: {all}"))
        }
    }
}

impl Args {
    fn config(&self) -> &Path {
        self.config.as_deref().unwrap_or(Path::new(CONFIG))
    }

    /// Changes the settings of a node by the options that stand for keys of `[[node]]`. A role that
    /// does not use a key refuses the option too.
    fn apply(
        &self,
        document: &mut SettingsDocument,
        at: usize,
    ) -> Result<(), Box<dyn std::error::Error>> {
        if let Some(from) = &self.from {
            let text = toml::Value::from(from.as_str()).to_string();
            document.set(&format!("--from {from}"), &format!("node.{at}.from"), &text)?;
        }
        if let Some(record) = &self.record {
            // Paths of the settings begin at their file, and those of options at this directory.
            let whole = std::path::absolute(record)?.display().to_string();
            let origin = format!("--record {}", record.display());
            let whole = toml::Value::from(whole).to_string();
            document.set(&origin, &format!("node.{at}.record"), &whole)?;
        }
        if let Some(serve) = &self.serve {
            let text = toml::Value::from(serve.to_string()).to_string();
            document.set(&format!("--serve {serve}"), &format!("node.{at}.serve"), &text)?;
        }
        self.apply_burst(document, at)?;
        self.keys.apply(document)?;
        self.local.apply(document, at)
    }

    fn apply_burst(
        &self,
        document: &mut SettingsDocument,
        at: usize,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let mut set = |option: &str, key: &str, value: String| {
            let text = toml::Value::from(value.as_str()).to_string();
            document.set(&format!("--{option} {value}"), &format!("node.{at}.{key}"), &text)
        };
        if let Some(burst) = self.burst {
            set("burst", "burst", humantime::format_duration(burst).to_string())?;
        }
        if let Some(listen) = self.burst_listen {
            set("burst-listen", "burst_listen", listen.to_string())?;
        }
        if let Some(positions) = &self.positions {
            let whole = std::path::absolute(positions)?.display().to_string();
            set("positions", "positions", whole)?;
        }
        Ok(())
    }

    /// The seat that `--trade` gives; `None` for a node that does not trade.
    #[cfg(feature = "trading")]
    fn trade_seat(&self) -> Option<crate::demo::ParticipantSeat> {
        self.trade
    }

    #[cfg(not(feature = "trading"))]
    fn trade_seat(&self) -> Option<crate::demo::ParticipantSeat> {
        None
    }

    /// Refuses options of other roles.
    fn refuse_others(&self, role: &RoleSpec) -> Result<(), String> {
        let is_keys = role.word == "keys";
        let local = self.local.given_option().filter(|_| !is_keys);
        match local.or(self.keys.given_option().filter(|_| !is_keys)) {
            Some(option) => Err(format!("{option}: the role {} does not use it", role.word)),
            None => Ok(()),
        }
    }
}

pub fn main(args: &Args) -> Outcome {
    if args.lifeline {
        process::end_with_stdin()?;
    }
    interrupt::install()?;
    if args.role == FILES {
        return crate::files::run(&args.local, &args.files);
    }
    let (service, role) = service::find_role(SERVICES, &args.role)?;
    args.refuse_others(role)?;
    if role.word == "keys" && args.name.is_none() {
        if args.config.is_some() || !args.set.is_empty() {
            let why =
                "--config and --set: give --name too, the replica of the settings that this is";
            return Err(why.into());
        }
        return crate::keys::run(&args.local, &args.keys);
    }
    let mut document = SettingsDocument::load(args.config(), &args.set)?;
    let nodes: Vec<Node> = document.list("node")?;
    let (at, node) = find(&nodes, role, args.name.as_deref())?;
    args.apply(&mut document, at)?;
    service::check(SERVICES, &document)?;
    let say = |line: &str| say!("{line}");
    let start = Start { document: &document, role, node: &node, say: &say };
    let summary = match args.trade_seat() {
        Some(seat) if role.word == "receiver" => crate::demo::take_part(&start, seat)?,
        Some(_) => return Err(format!("--trade: the role {} does not use it", role.word).into()),
        None => service.run(&start)?,
    };
    if args.json {
        say!("{summary}");
    } else {
        say!("{}", summary["ended"].as_str().unwrap_or("ended"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_has_one_word_and_its_old_word_is_understood() {
        for word in ["receiver", "recv"] {
            assert_eq!(service::find_role(SERVICES, word).expect("a role").1.word, "receiver");
        }
    }
}
