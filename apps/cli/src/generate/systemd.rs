//! The units that each host starts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use super::Inventory;

/// The file below /etc/evenfall that `evenfall@.service` reads for a role.
fn settings_file(role: &str) -> &'static str {
    match role {
        "agent" => "agents.toml",
        "nameserver" | "dataserver" | "flowserver" => "files.toml",
        "keys" | "order" => "keys.toml",
        _ => "feed.toml",
    }
}

/// A shell script with a part for each host. Roles of `[[node]]` become instances of the unit in
/// `deploy/systemd/evenfall@.service`.
pub fn unit_script(inventory: &Inventory) -> String {
    let mut hosts: BTreeMap<IpAddr, Vec<(&str, &str)>> = BTreeMap::new();
    for node in &inventory.nodes {
        let units = hosts.entry(node.address.ip()).or_default();
        units.push((&node.role, &node.name));
    }
    let mut text = format!(
        "#!/bin/sh\n# Made by `evenfall generate systemd {}`. Run on each host as root, with the \
         host's address: sh THIS-FILE ADDRESS.\n# The unit is deploy/systemd/evenfall@.service, \
         and the key lies in /etc/evenfall/evenfall.key.\nset -eu\ncase \"${{1:?the address of \
         this host}}\" in\n",
        inventory.file
    );
    for (host, units) in hosts {
        let _ = writeln!(text, "{host})");
        let mut files: Vec<&str> = units.iter().map(|(role, _)| settings_file(role)).collect();
        files.sort_unstable();
        files.dedup();
        for file in files {
            let _ = writeln!(text, "  test -r /etc/evenfall/{file} # a copy of the settings");
        }
        for (role, name) in units {
            let _ = writeln!(text, "  systemctl enable --now 'evenfall@{role}:{name}'");
        }
        let _ = writeln!(text, "  ;;");
    }
    text + "*)\n  echo \"no node of the settings has the address $1\" >&2\n  exit 1\n  ;;\nesac\n"
}
