//! Hosts in racks, with links of limited rate.
//!
//! ```text
//!   h0 ---p0 [ br0 ] u0---d0 [ core ] d1---u1 [ br1 ] p4--- h4
//!   h1 ---p1 [     ]         [      ]         [     ] p5--- h5      all bridges in one namespace
//! ```
//!
//! A token bucket (htb) before each link limits it both ways: at the host's `eth0`, at the port to
//! the host, and at both ends of a rack's uplink. Datagrams with the code point "expedited
//! forwarding" go first at each bucket, as at a switch with priorities. The queue at each bucket is
//! the kernel's, 1,000 packets.

use std::fmt::Write as _;

use evenfall_host::Error;
use evenfall_host::lab::{host_mac, run_ip, run_tool};

/// The code point of the class that goes first (expedited forwarding).
const FIRST_DSCP: u8 = 46;

/// One host of a lab of racks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RackHost {
    /// Rack of the host, counted from 0.
    pub rack: usize,
    /// Rate of the host's link, each way; `None` for no limit.
    pub bits_per_s: Option<u64>,
}

/// The rack of each host, and the rates of the racks' uplinks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Racks {
    /// The hosts, in order of their numbers.
    pub hosts: Vec<RackHost>,
    /// Rate of each rack's link to the core, each way.
    pub uplink_bits_per_s: u64,
}

impl Racks {
    pub(super) fn count(&self) -> usize {
        self.hosts.iter().map(|host| host.rack + 1).max().unwrap_or(0)
    }

    /// Makes the bridges, the uplinks, and the entries that say which host is behind which port.
    /// The ports of the hosts exist already.
    pub(super) fn build(&self, namespace: &str) -> Result<(), Error> {
        let mut script = String::new();
        let mut ports: Vec<(String, String)> = Vec::new();
        let bridge = "type bridge stp_state 0 mcast_snooping 0 ageing_time 0";
        let _ = writeln!(script, "link add core {bridge}");
        for rack in 0..self.count() {
            let _ = writeln!(script, "link add br{rack} {bridge}");
            let _ = writeln!(script, "link add u{rack} type veth peer name d{rack}");
            ports.push((format!("u{rack}"), format!("br{rack}")));
            ports.push((format!("d{rack}"), "core".into()));
        }
        for (host, RackHost { rack, .. }) in self.hosts.iter().enumerate() {
            ports.push((format!("p{host}"), format!("br{rack}")));
        }
        for (port, master) in &ports {
            let _ = writeln!(script, "link set {port} master {master}");
            let _ = writeln!(
                script,
                "link set {port} type bridge_slave learning off flood off mcast_flood off"
            );
            let _ = writeln!(script, "link set {port} up");
        }
        for rack in 0..self.count() {
            let _ = writeln!(script, "link set br{rack} up");
        }
        script.push_str("link set core up\n");
        run_ip(&["-n", namespace, "-batch", "-"], &script)?;
        run_tool("bridge", &["-n", namespace, "-batch", "-"], &self.entries())?;
        let mut limits = String::new();
        for rack in 0..self.count() {
            limits.push_str(&limit(&format!("u{rack}"), self.uplink_bits_per_s));
            limits.push_str(&limit(&format!("d{rack}"), self.uplink_bits_per_s));
        }
        for (host, RackHost { bits_per_s, .. }) in self.hosts.iter().enumerate() {
            limits.extend(bits_per_s.map(|rate| limit(&format!("p{host}"), rate)));
        }
        run_tool("tc", &["-n", namespace, "-batch", "-"], &limits).map(drop)
    }

    /// Limits the traffic that leaves a host.
    pub(super) fn limit_host(&self, host: usize, namespace: &str) -> Result<(), Error> {
        let Some(rate) = self.hosts[host].bits_per_s else { return Ok(()) };
        run_tool("tc", &["-n", namespace, "-batch", "-"], &limit("eth0", rate)).map(drop)
    }

    fn entries(&self) -> String {
        let mut entries = String::new();
        for (host, &RackHost { rack, .. }) in self.hosts.iter().enumerate() {
            let mac = host_mac(host);
            let _ = writeln!(entries, "fdb replace {mac} dev p{host} master static");
            let _ = writeln!(entries, "fdb replace {mac} dev d{rack} master static");
            for other in (0..self.count()).filter(|&other| other != rack) {
                let _ = writeln!(entries, "fdb replace {mac} dev u{other} master static");
            }
        }
        entries
    }

    /// Bytes that wait at present before the links of the namespace, for each port.
    pub(super) fn backlogs(namespace: &str) -> Result<Vec<u64>, Error> {
        let text = run_tool("tc", &["-n", namespace, "-s", "-j", "qdisc", "show"], "")?;
        // Of each qdisc only one number is needed: `"backlog":1234`.
        let number = |rest: &str| {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok()
        };
        Ok(text.split("\"backlog\":").skip(1).filter_map(number).collect())
    }
}

/// Two classes below the rate of a device: packets that are marked to go first, and all other
/// packets.
pub(super) fn limit(device: &str, bits_per_s: u64) -> String {
    let mut script = String::new();
    let (first, rest) = (bits_per_s / 10, bits_per_s / 10 * 9);
    let tos = FIRST_DSCP << 2;
    let _ = writeln!(script, "qdisc replace dev {device} root handle 1: htb default 20");
    // Two full frames may go back to back. A longer piece that segmentation offload has queued is
    // charged afterwards.
    let class = |id: &str, parent: &str, rate: u64, prio: &str| {
        format!(
            "class add dev {device} parent {parent} classid {id} htb rate {rate}bit \
             ceil {bits_per_s}bit burst 3028 cburst 3028 quantum 3028 {prio}\n"
        )
    };
    script.push_str(&class("1:1", "1:", bits_per_s, ""));
    script.push_str(&class("1:10", "1:1", first, "prio 0"));
    script.push_str(&class("1:20", "1:1", rest, "prio 1"));
    let _ = writeln!(
        script,
        "filter add dev {device} parent 1: protocol ip u32 match ip tos {tos} 0xfc flowid 1:10"
    );
    script
}
