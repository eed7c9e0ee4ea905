//! The gateway of a demo, and the participant behind it: `evenfall tap`, a process without the key
//! of the run. The participant loses some datagrams on purpose and asks for them again.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use evenfall_core::NodeId;
use evenfall_host::lab::Lab;
use evenfall_host::process::{Lifeline, Signal, send};
use evenfall_multicast_service::Settings;
use evenfall_multicast_service::gateway::settings::HandoffProtocol;
use serde_json::{Value, json};

use super::Args;
use super::content::SentContent;
use super::folder::{PARTICIPANT_KEY, write_key};

/// Name of the gateway's node.
pub const GATEWAY: &str = "gateway";
/// Name of the participant in the names of its files.
const PARTICIPANT: &str = "participant";
/// Share of the datagrams that the participant of MoldUDP64 loses on purpose.
const DROP: f64 = 0.01;
/// How long the participant may take to end after the gateway has announced the end.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same in a demo that a signal stopped, where the gateway may have announced nothing. The demo
/// then still ends within two seconds of the signal.
const PATIENCE_STOPPED: Duration = Duration::from_millis(250);
/// How often the participant is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// The word of `--gateway`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GatewayWord {
    /// MoldUDP64 with requests.
    Mold,
    /// A datagram a message.
    Plain,
    /// A datagram a message, sealed for the participant.
    Sealed,
}

impl GatewayWord {
    fn to_protocol(self) -> HandoffProtocol {
        match self {
            Self::Mold => HandoffProtocol::Mold,
            Self::Plain => HandoffProtocol::Plain,
            Self::Sealed => HandoffProtocol::Sealed,
        }
    }
}

/// Where the gateway of a demo hands on, and where it answers requests.
#[derive(Clone, Debug)]
pub struct Doors {
    word: GatewayWord,
    participant: SocketAddr,
    rerequest: SocketAddr,
}

impl Doors {
    /// Two free ports of loopback: in a lab, of the gateway's own host.
    pub fn choose(args: &Args, lab: Option<&Lab>) -> Result<Option<Self>, String> {
        let Some(word) = args.gateway else { return Ok(None) };
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let address = |port| match lab {
            Some(_) => Ok(SocketAddr::new(loopback, port)),
            None => evenfall_host::ports::free(loopback)
                .map_err(|error| format!("no free port on loopback: {error}")),
        };
        Ok(Some(Self { word, participant: address(7500)?, rerequest: address(7400)? }))
    }

    /// Puts what the gateway needs into the settings of the run, and the key of its participant
    /// into the directory.
    pub fn put(&self, settings: &mut toml::Table, dir: &Path) -> Result<(), String> {
        let nodes = settings.get_mut("node").and_then(toml::Value::as_array_mut);
        let named = |node: &&mut toml::Value| {
            node.get("name").and_then(toml::Value::as_str) == Some(GATEWAY)
        };
        if let Some(node) = nodes.and_then(|nodes| nodes.iter_mut().find(named))
            && let Some(node) = node.as_table_mut()
        {
            let participants = vec![toml::Value::from(self.participant.to_string())];
            node.insert("participants".into(), participants.into());
            if self.word == GatewayWord::Mold {
                node.insert("rerequest".into(), self.rerequest.to_string().into());
            }
            if self.word == GatewayWord::Sealed {
                write_key(&dir.join(PARTICIPANT_KEY))?;
                let keys = vec![toml::Value::from(PARTICIPANT_KEY)];
                node.insert("participant_keys".into(), keys.into());
            }
        }
        let mut table = toml::Table::new();
        table.insert("protocol".into(), self.word.to_protocol().to_string().into());
        settings.insert("gateway".into(), table.into());
        Ok(())
    }
}

/// A participant that runs.
pub struct Participant {
    child: Child,
    file: PathBuf,
    stderr: PathBuf,
    _lifeline: Lifeline,
}

impl Participant {
    /// Starts the participant, on the host of the gateway.
    pub fn start(
        args: &Args,
        settings: &Settings,
        doors: &Doors,
        lab: Option<&Lab>,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let file = args.dir.join(format!("summary-{PARTICIPANT}.json"));
        let stderr = args.dir.join(format!("{PARTICIPANT}.stderr"));
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["tap", "--json", "--lifeline", &doors.participant.to_string()]);
        match doors.word {
            GatewayWord::Mold => {
                command.args(["--from", "1", "--request", &doors.rerequest.to_string()]);
                // A busy machine may answer late, and no message shall be given up for that.
                command.args(["--gap-timeout", "5s", "--drop", &DROP.to_string()]);
                command.args(["--seed", &args.seed.to_string()]);
            }
            GatewayWord::Plain => drop(command.args(["--protocol", "plain"])),
            GatewayWord::Sealed => {
                command.args(["--protocol", "sealed", "--key-file"]);
                command.arg(args.dir.join(PARTICIPANT_KEY));
            }
        }
        command.stdout(File::create(&file)?).stderr(File::create(&stderr)?);
        command.stdin(Stdio::null());
        // Ctrl-C on the terminal goes to the demo alone, so that the participant also takes what
        // the gateway still hands on.
        command.process_group(0);
        let lifeline = Lifeline::new()?;
        lifeline.tie(&mut command)?;
        if let Some(lab) = lab {
            let NodeId(host) = settings.node(GATEWAY)?.id;
            lab.inside(host as usize, &mut command)?;
        }
        let child = command.spawn()?;
        Ok(Self { child, file, stderr, _lifeline: lifeline })
    }

    /// Waits for the participant, and for a while at most. Returns its summary.
    pub fn finish(mut self, is_stopped: bool) -> Result<Value, String> {
        let patience = if is_stopped { PATIENCE_STOPPED } else { PATIENCE };
        let until = Instant::now() + patience;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() >= until + patience {
                send(self.child.id(), Signal::Kill);
            } else if Instant::now() >= until {
                // It says what it has.
                send(self.child.id(), Signal::Terminate);
            }
            std::thread::sleep(LOOK);
        }
        let text = fs::read_to_string(&self.file).unwrap_or_default();
        serde_json::from_str(&text).map_err(|_| {
            let said = last_line(&self.stderr);
            format!("{PARTICIPANT}: {}", said.as_deref().unwrap_or("it ended without a summary"))
        })
    }
}

impl Drop for Participant {
    fn drop(&mut self) {
        send(self.child.id(), Signal::Kill);
        self.child.wait().ok();
    }
}

fn last_line(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    Some(text.lines().next_back()?.trim_start_matches("evenfall: ").to_owned())
}

/// The figures of the gateway and of its participant.
pub struct HandedOn {
    /// The gateway's own figures; null when it left no summary.
    gateway: Value,
    /// The participant's own figures.
    participant: Value,
    /// Whether the participant has exactly what was sent; `None` when nobody can say.
    is_equal: Option<bool>,
}

impl HandedOn {
    /// Compares what the participant has with what was sent.
    pub fn of(gateway: &Value, participant: Value, sent: &SentContent) -> Self {
        let is_equal = match sent {
            SentContent::All(hash) => Some(participant["content_hash"] == hash.as_str()),
            SentContent::Beginning { .. } => None,
        };
        Self { gateway: gateway["gateway"].clone(), participant, is_equal }
    }

    /// The figures for `--json`.
    pub fn to_json(&self) -> Value {
        let mut all = self.gateway.clone();
        if all.is_null() {
            all = json!({});
        }
        all["participant"] = self.participant.clone();
        all["participant_has_equal_content"] = self.is_equal.into();
        all
    }

    /// Two lines for people.
    pub fn say(&self) -> String {
        let (us, tapped) = (&self.gateway["handed_us"], &self.participant);
        let count = |value: &Value| value.as_u64().unwrap_or_default();
        let us = |key: &str| us[key].as_f64().map_or("-".to_owned(), |us| format!("{us:.1} us"));
        let gateway = match self.gateway["protocol"].as_str() {
            Some(protocol) => format!(
                "{} messages handed on as {protocol}; from release to departure {} at the median, \
                 {} at the 99th percentile",
                count(&self.gateway["handed"]),
                us("p50"),
                us("p99")
            ),
            None => "no figures, because it did not live until its end".to_owned(),
        };
        format!(
            "gateway: {gateway}\n\
             participant without the key: {} messages, {} lost, {} of them after a request ({} \
             datagrams were lost on purpose); content {}",
            count(&tapped["messages"]),
            count(&tapped["lost"]),
            count(&tapped["rerequested"]),
            count(&tapped["dropped"]),
            match self.is_equal {
                Some(true) => "equals what was sent",
                Some(false) => "differs from what was sent",
                None => "not compared, because no root lived until its end",
            }
        )
    }

    /// Fails when the participant has other content.
    pub fn check(&self) -> Result<(), String> {
        let lost = self.participant["lost"].as_u64().unwrap_or_default();
        match self.is_equal {
            Some(false) => {
                Err(format!("the participant behind the gateway has other content, {lost} lost"))
            }
            Some(true) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_that_a_killed_gateway_did_not_leave_are_no_numbers() {
        let (participant, sent) = (json!({"messages": 654}), SentContent::All("a hash".to_owned()));
        let killed = HandedOn::of(&Value::Null, participant.clone(), &sent).say();
        assert!(killed.starts_with("gateway: no figures"), "{killed}");
        assert!(!killed.contains("NaN") && killed.contains("key: 654 messages"), "{killed}");
        // A gateway that handed nothing on has no percentiles.
        let idle = json!({"gateway": {"protocol": "mold", "handed": 0, "handed_us": {}}});
        let idle = HandedOn::of(&idle, participant, &sent).say();
        assert!(
            idle.contains("0 messages handed on as mold") && idle.contains("- at the"),
            "{idle}"
        );
    }
}
