//! `evenfall generate` makes files for Prometheus, Grafana, systemd and Kubernetes out of the
//! settings file of a run.
//!
//! | module | file |
//! |---|---|
//! | [`prometheus`] | what Prometheus scrapes |
//! | [`alerts`] | the rules by which Prometheus raises alerts |
//! | [`grafana`] | a dashboard |
//! | [`systemd`] | the units that each host starts |
//! | [`kubernetes`] | the objects of a cluster |
//! | [`pod`] | pods and names of Kubernetes, which `evenfall plan deploy` writes too |

mod alerts;
mod grafana;
mod kubernetes;
pub mod pod;
mod prometheus;
mod systemd;
#[cfg(test)]
mod tests;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use evenfall_runtime::output_file::open_output;
use evenfall_runtime::settings::{Node, SettingsDocument};

use crate::Outcome;
use crate::services::{self, CONFIG};

/// Arguments of `evenfall generate`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    target: Target,
}

#[derive(Subcommand, Debug)]
enum Target {
    /// Settings of Prometheus: every node with an `http` address.
    Prometheus {
        #[command(flatten)]
        source: Source,
        /// How often Prometheus scrapes.
        #[arg(long, default_value = "5s")]
        interval: humantime::Duration,
        /// The file of rules that the settings name.
        #[arg(long, default_value = "evenfall-alerts.yml")]
        rules: String,
    },
    /// Rules of Prometheus: fairness, losses, clocks and nodes that are gone.
    Alerts {
        #[command(flatten)]
        source: Source,
        /// How long a condition must hold before it is an alert.
        #[arg(long = "for", default_value_t = alerts::HOLD_FOR.into())]
        hold_for: humantime::Duration,
        /// The least P(F) of ten seconds, from 0 to 1. Without it the limit follows from the
        /// deadline's rule.
        #[arg(long)]
        on_time: Option<f64>,
        /// The longest delivery window of 99 % of the sampled frames.
        #[arg(long, default_value_t = alerts::WINDOW.into())]
        window: humantime::Duration,
    },
    /// A dashboard of Grafana with fairness, latency, losses and clocks.
    Grafana {
        #[command(flatten)]
        source: Source,
    },
    /// The commands by which each host starts its nodes under systemd.
    Systemd {
        #[command(flatten)]
        source: Source,
    },
    /// Objects of Kubernetes: a map of the settings, a deployment for each node, and one DaemonSet
    /// for all agents.
    Kubernetes {
        #[command(flatten)]
        source: Source,
        /// The nodes of the cluster, as NAME=ADDRESS. Each node of the settings is placed by its
        /// address.
        #[arg(long, value_delimiter = ',', required = true)]
        hosts: Vec<String>,
        /// The image of the program.
        #[arg(long, default_value = "evenfall:local")]
        image: String,
        /// The size of the volume of each node that keeps data, such as a recorder.
        #[arg(long, value_name = "SIZE")]
        storage: Option<String>,
        /// The namespace of the objects.
        #[arg(long, default_value = "evenfall")]
        namespace: String,
        /// Kinds of objects that need more than Kubernetes itself.
        #[arg(long, value_enum, value_delimiter = ',')]
        with: Vec<Extra>,
    },
}

/// Kinds of objects that a cluster may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Extra {
    /// A PodMonitor and a PrometheusRule, for the operator of Prometheus.
    PrometheusOperator,
}

#[derive(clap::Args, Debug)]
struct Source {
    /// The settings file of the run.
    #[arg(default_value = CONFIG)]
    file: PathBuf,
    /// Change a setting first. The option may be given several times.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Write this file in place of standard output.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// A settings file that passed all checks, as the generators read it.
struct Inventory {
    /// The file's name, for the first line of what is made.
    file: String,
    document: SettingsDocument,
    nodes: Vec<Node>,
}

impl Inventory {
    fn load(source: &Source) -> Result<Self, Box<dyn std::error::Error>> {
        let document = services::load_runnable(&source.file, &source.set)?;
        let nodes = document.list("node")?;
        Ok(Self { file: source.file.display().to_string(), document, nodes })
    }

    /// The nodes that serve metrics. The others are named on standard error.
    fn observed_nodes(&self) -> Result<Vec<&Node>, String> {
        let (observed, silent): (Vec<&Node>, Vec<&Node>) =
            self.nodes.iter().partition(|node| node.http.is_some());
        if observed.is_empty() {
            return Err(format!(
                "{}: no node has an `http` address, so there are no metrics; give each [[node]] \
                 one, such as http = \"10.0.0.4:9180\"",
                self.file
            ));
        }
        if !silent.is_empty() {
            let names: Vec<&str> = silent.iter().map(|node| node.name.as_str()).collect();
            aside!("note: without `http`, and so not watched: {}", names.join(", "));
        }
        Ok(observed)
    }

    /// A setting with its default, as a path of tables.
    fn setting(&self, path: &[&str]) -> Result<Option<toml::Value>, Box<dyn std::error::Error>> {
        let mut value = toml::Value::Table(services::values(&self.document)?);
        for key in path {
            let Some(inner) = value.get(key) else { return Ok(None) };
            value = inner.clone();
        }
        Ok(Some(value))
    }
}

/// A time in the words of Prometheus, which knows no fractions.
///
/// # Errors
/// A time below a millisecond.
fn prometheus_time(time: Duration) -> Result<String, String> {
    match time.as_millis() {
        0 => Err(format!("{}: must be 1ms or longer", humantime::format_duration(time))),
        whole if whole % 1_000 == 0 => Ok(format!("{}s", whole / 1_000)),
        whole => Ok(format!("{whole}ms")),
    }
}

/// Writes what was made to its place.
fn deliver(path: Option<&Path>, text: &str) -> Outcome {
    let (mut out, file) = open_output(path)?;
    out.write_all(text.as_bytes())?;
    out.flush()?;
    file.keep()?;
    if let Some(path) = path {
        aside!("{} is written", path.display());
    }
    Ok(())
}

pub fn main(args: &Args) -> Outcome {
    let (source, text) = match &args.target {
        Target::Prometheus { source, interval, rules } => {
            (source, prometheus::settings(&Inventory::load(source)?, **interval, rules)?)
        }
        Target::Alerts { source, hold_for, on_time, window } => {
            let inventory = Inventory::load(source)?;
            let limits = alerts::AlertLimits::of(&inventory, **hold_for, *on_time, **window)?;
            (source, alerts::rules(&inventory, &limits)?)
        }
        Target::Grafana { source } => (source, grafana::make_dashboard(&Inventory::load(source)?)?),
        Target::Systemd { source } => (source, systemd::unit_script(&Inventory::load(source)?)),
        Target::Kubernetes { source, hosts, image, storage, namespace, with } => {
            let inventory = Inventory::load(source)?;
            let cluster =
                kubernetes::ClusterPlan::new(hosts, image, namespace, storage.as_deref())?;
            let monitors = with.contains(&Extra::PrometheusOperator);
            (source, kubernetes::objects(&inventory, &cluster, monitors)?)
        }
    };
    deliver(source.out.as_deref(), &text)
}
