//! `evenfall host`: what of this host delays a feed, and the command that mends it.

use std::path::PathBuf;

use clap::Subcommand;
use evenfall_host::check::{self, FactVerdict, HostFacts, HostFinding, HostWants};
use evenfall_multicast_machine::Config;
use evenfall_port::PortKind;
use evenfall_runtime::settings::Io;
use serde_json::json;

use crate::Outcome;
use crate::services;

/// Arguments of `evenfall host`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Look at cores, clock, buffers, rights and network cards, and say what of them delays a feed
    /// and what mends it. Nothing is changed.
    Check {
        /// The settings file of the run, for its buffers, its datagrams and its kind of port.
        /// Without it, the defaults are taken.
        config: Option<PathBuf>,
        /// A network card. The option may be given several times. By default all cards that are up
        /// and have received a packet.
        #[arg(long, value_name = "NAME")]
        interface: Vec<String>,
        /// Print the findings as JSON: `about`, `verdict` (good, unknown, costly), `found`, `why`,
        /// `mend`.
        #[arg(long)]
        json: bool,
        /// End with an error when a finding is costly.
        #[arg(long)]
        strict: bool,
    },
}

pub fn main(args: &Args) -> Outcome {
    let Command::Check { config, interface, json, strict } = &args.command;
    let (io, multicast): (Io, Config) = match config {
        Some(file) => {
            let document = services::load_runnable(file, &[])?;
            (document.part("io")?, document.part("multicast")?)
        }
        None => <(Io, Config)>::default(),
    };
    let wants = HostWants {
        receive_buffer_bytes: io.receive_buffer_bytes as u64,
        datagram_bytes: multicast.framing.datagram_bytes as u64,
        // A node that chooses can choose this kind where it has the rights.
        kernel_forwards: io.kind().is_ok_and(|kind| kind.is_none_or(PortKind::forwards)),
        busy_poll_us: io.kernel_busy_poll.map(|time| time.as_micros() as u64),
        real_time: io.real_time.is_some(),
    };
    let cards = if interface.is_empty() { check::cards_in_use() } else { interface.clone() };
    let findings = check::judge_host(&HostFacts::read(&cards), &wants);
    if *json {
        let rows: Vec<_> = findings.iter().map(to_json).collect();
        say!("{}", json!({ "findings": rows }));
    } else {
        findings.iter().for_each(print_finding);
    }
    let costly = findings.iter().filter(|finding| finding.verdict == FactVerdict::Costly).count();
    if !json {
        say!("{}", summary(costly, findings.len()));
    }
    if *strict && costly > 0 {
        return Err(
            format!("{costly} findings cost time or messages; each names what mends it").into()
        );
    }
    Ok(())
}

fn summary(costly: usize, all: usize) -> String {
    match costly {
        0 => format!("{all} facts, and none that this host could mend"),
        1 => format!("1 of {all} facts costs time or messages"),
        _ => format!("{costly} of {all} facts cost time or messages"),
    }
}

fn to_json(finding: &HostFinding) -> serde_json::Value {
    let HostFinding { about, verdict, found, why, mend } = finding;
    json!({ "about": about, "verdict": verdict.word(), "found": found, "why": why, "mend": mend })
}

fn print_finding(finding: &HostFinding) {
    let HostFinding { about, verdict, found, why, mend } = finding;
    say!("{:<8} {about:<46} {found}", verdict.word());
    if !why.is_empty() {
        say!("{:<8} {why}", "");
    }
    if let Some(mend) = mend {
        say!("{:<8} mend: {mend}", "");
    }
}
