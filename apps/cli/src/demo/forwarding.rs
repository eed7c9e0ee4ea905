//! What the ports of the proxies forwarded, what the port of the root copied, and whether the
//! packets were sound.

use std::collections::BTreeSet;
use std::fs;

use evenfall_host::lab::Lab;
use evenfall_multicast_service::Settings;
use evenfall_multicast_service::settings::RoleName;
use evenfall_port::PortKind;
use evenfall_runtime::settings::AUTO;
use serde::Serialize;
use serde_json::Value;

use super::{Args, summary};

/// The forwarding of all proxies of a run, and the copies of its root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Forwarded {
    /// The kind of port: that of the proxies where each chooses its own, every kind once.
    port: String,
    /// Why the first proxy has its kind of port; empty without a proxy.
    port_why: String,
    /// Frames that the proxies sent on, by hand or by their ports.
    forwarded: u64,
    /// The part of these frames that the ports sent on.
    forwarded_by_port: u64,
    /// Copies of frames that the roots sent, to all children.
    root_copies: u64,
    /// Copies of `root_copies` that the kernels of the roots' hosts made.
    root_copies_by_port: u64,
    /// The kind of port of the first root, and why.
    root_port: String,
    root_port_why: String,
    /// Datagrams with a wrong checksum, which the hosts of the lab dropped. A run without a lab has
    /// no number.
    checksum_errors: Option<u64>,
}

/// Makes hosts compute and check all checksums where the kernel rewrites packets. Virtual links
/// otherwise take the sums of each other on trust.
pub fn check_sums(settings: &Settings, lab: Option<&Lab>) -> Result<(), String> {
    let port = settings.io.port.as_str();
    let forwards = port == AUTO || PortKind::named(port).is_some_and(PortKind::forwards);
    let Some(lab) = lab.filter(|_| forwards) else { return Ok(()) };
    (0..lab.hosts()).try_for_each(|host| lab.turn_off_checksums(host)).map_err(|e| e.to_string())
}

/// Datagrams that the hosts of a lab dropped so far because of their checksum.
fn checksum_errors(lab: &Lab) -> u64 {
    let read = || fs::read_to_string("/proc/thread-self/net/snmp").unwrap_or_default();
    let of =
        |host| lab.within(host, read).map_or(0, |text| find_column(&text, "Udp:", "InCsumErrors"));
    (0..lab.hosts()).map(of).sum()
}

/// The number in a column of `/proc/net/snmp`, whose lines come in pairs of names and numbers.
fn find_column(text: &str, line: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter(|text| text.starts_with(line));
    let (Some(names), Some(numbers)) = (lines.next(), lines.next()) else { return 0 };
    let at = names.split_whitespace().position(|known| known == name);
    at.and_then(|at| numbers.split_whitespace().nth(at)?.parse().ok()).unwrap_or(0)
}

/// The kind of port of a node and the reason, by its summary.
fn port_taken(summary: &Value) -> (String, String) {
    let text = |key: &str| summary["port"][key].as_str().unwrap_or_default().to_owned();
    (text("kind"), text("why"))
}

impl Forwarded {
    /// What the summaries of the proxies say, and the hosts. A proxy that was killed wrote none.
    pub fn of(args: &Args, settings: &Settings, lab: Option<&Lab>) -> Self {
        let mut all = Self {
            port: settings.io.port.clone(),
            port_why: String::new(),
            forwarded: 0,
            forwarded_by_port: 0,
            root_copies: 0,
            root_copies_by_port: 0,
            root_port: String::new(),
            root_port_why: String::new(),
            checksum_errors: lab.map(checksum_errors),
        };
        let mut kinds = BTreeSet::new();
        for node in settings.nodes.iter().filter(|node| node.role == RoleName::Proxy) {
            let summary = summary(args, &node.name);
            let (kind, why) = port_taken(&summary);
            kinds.insert(kind);
            if all.port_why.is_empty() {
                all.port_why = why;
            }
            let status = &summary["status"];
            all.forwarded += status["forwarded"].as_u64().unwrap_or(0);
            all.forwarded_by_port += status["forwarded_by_port"].as_u64().unwrap_or(0);
        }
        for node in settings.nodes.iter().filter(|node| node.role == RoleName::Root) {
            let summary = summary(args, &node.name);
            all.root_copies += summary["copies"].as_u64().unwrap_or(0);
            all.root_copies_by_port += summary["copies_by_port"].as_u64().unwrap_or(0);
            if all.root_port.is_empty() {
                (all.root_port, all.root_port_why) = port_taken(&summary);
            }
        }
        // A proxy that was killed wrote no summary.
        kinds.remove("");
        if all.port == AUTO && !kinds.is_empty() {
            all.port = kinds.into_iter().collect::<Vec<_>>().join(", ");
        }
        all
    }

    /// A line for people; `None` where the ports neither forward nor copy.
    pub fn say(&self) -> Option<String> {
        let proxies = (self.forwarded_by_port > 0).then(|| {
            format!("proxies: {} of {} frames sent on", self.forwarded_by_port, self.forwarded)
        });
        let roots = (self.root_copies_by_port > 0)
            .then(|| format!("root: {} of {} copies", self.root_copies_by_port, self.root_copies));
        let said: Vec<_> = roots.into_iter().chain(proxies).collect();
        let wrong =
            self.checksum_errors.map_or(String::new(), |n| format!(", {n} wrong checksums"));
        (!said.is_empty()).then(|| format!("{} by {}{wrong}", said.join("; "), self.port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_column_of_a_name_is_found() {
        let text = "Ip: Forwarding\nIp: 1\nUdp: InDatagrams NoPorts InCsumErrors\nUdp: 7 0 3\n";
        assert_eq!(find_column(text, "Udp:", "InCsumErrors"), 3);
        assert_eq!(
            (find_column(text, "Udp:", "Other"), find_column("", "Udp:", "InCsumErrors")),
            (0, 0)
        );
    }

    #[test]
    fn a_run_that_its_ports_did_not_help_says_nothing() {
        let none = Forwarded {
            port: "udp".into(),
            port_why: String::new(),
            forwarded: 9,
            forwarded_by_port: 0,
            root_copies: 20,
            root_copies_by_port: 0,
            root_port: "udp".into(),
            root_port_why: String::new(),
            checksum_errors: None,
        };
        assert_eq!(none.say(), None);
        let some =
            Forwarded { port: "tc".into(), forwarded_by_port: 8, checksum_errors: Some(0), ..none };
        let said = some.say().unwrap();
        assert_eq!(said, "proxies: 8 of 9 frames sent on by tc, 0 wrong checksums");
        let both = Forwarded { root_copies_by_port: 20, ..some };
        assert_eq!(
            both.say().unwrap(),
            "root: 20 of 20 copies; proxies: 8 of 9 frames sent on by tc, 0 wrong checksums"
        );
    }
}
