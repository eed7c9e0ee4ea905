//! Hosts under switches of Open vSwitch, whose rules a controller changes by OpenFlow 1.3.
//!
//! ```text
//!   namespace ef<pid>-0-s0: all switches, and nothing of the host's own Open vSwitch
//!
//!   ovsdb-server -- ovs-vswitchd          each switch is a bridge of the userspace datapath,
//!                    |     |     |        and each wire between two switches is a veth pair
//!                   s0 -- s2 -- s4 -- eth0 of a host in a namespace of its own
//! ```
//!
//! The tree is that of [`Fabric`]. A packet without a rule of the controller goes up by a hash of
//! its addresses and ports, with a seed for each switch, and down by the receiver's address. The
//! switches are numbered as nodes behind the hosts: first the cores, then for each pod its
//! aggregation switches and its racks. A switch's datapath id is its number and one.
//!
//! The userspace datapath needs no module of the kernel, but every packet is copied to the daemon
//! and back at each switch. Hosts compute the checksums of their packets, because the datapath does
//! not complete them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use evenfall_host::clock::MonotonicClock;
use evenfall_host::lab::{enter_namespace, host_mac, is_stale, run_ip, run_tool};
use evenfall_host::{Error, process};

use super::SETTLE;
use super::fabric::{Fabric, Link, Names, QUEUE_PACKETS};
use super::racks::limit;

/// The schema of Open vSwitch's database, where packages install it.
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// The port at which the switches look for a controller on their loopback, once a second: that of
/// OpenFlow. The setting is made before the rules, because a switch that gets its first controller
/// drops all rules.
pub const CONTROLLER_PORT: u16 = 6_653;
/// Priorities of the rules: any packet goes up, and packets for hosts below a switch go down.
/// Rules of a controller have higher priorities.
const PRIORITIES: (u16, u16) = (1, 10);
/// The longest time in milliseconds after which the counters of a rule tell of a packet. Open
/// vSwitch's own value is 500.
const COUNTED_AFTER_MS: u32 = 100;

/// The daemons of the switches. Dropping them ends the processes and removes their files.
#[derive(Debug)]
pub(super) struct Daemons {
    directory: PathBuf,
    children: Vec<Child>,
}

impl Daemons {
    /// Starts the daemons in this namespace.
    pub(super) fn start(prefix: &str, namespace: &str) -> Result<Self, Error> {
        let directory = directory(prefix);
        let failed = |what: String| {
            move |source| Error::Os { what, source, advice: "install openvswitch-switch" }
        };
        fs::create_dir_all(&directory).map_err(failed(format!("make {}", directory.display())))?;
        let mut daemons = Self { directory, children: Vec::new() };
        run_tool("ovsdb-tool", &["create", &daemons.file("conf.db"), SCHEMA], "")?;
        let socket = daemons.file("db.sock");
        let database = [daemons.file("conf.db"), format!("--remote=punix:{socket}")];
        let switch = [format!("unix:{socket}"), "--disable-system".to_owned()];
        for (name, arguments) in [("ovsdb-server", database), ("ovs-vswitchd", switch)] {
            let log = daemons.file(&format!("{name}.log"));
            let log = File::create(&log).map_err(failed(format!("make {log}")))?;
            let mut command = Command::new(name);
            command.args(arguments).arg(format!("--unixctl={}", daemons.file(name)));
            for folder in ["RUN", "DB", "LOG", "SYSCONF"] {
                command.env(format!("OVS_{folder}DIR"), &daemons.directory);
            }
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            enter_namespace(namespace, &mut command)?;
            process::end_with_parent(&mut command, process::Signal::Terminate);
            let child = command.spawn().map_err(failed(format!("start {name}")))?;
            daemons.children.push(child);
            let end = MonotonicClock::now() + SETTLE;
            while !fs::exists(&socket).unwrap_or(false) {
                if MonotonicClock::now() > end {
                    return Err(daemons.silent(name));
                }
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        }
        Ok(daemons)
    }

    /// The processes, whose processor time is that of the switches.
    pub(super) fn pids(&self) -> impl Iterator<Item = u32> {
        self.children.iter().map(Child::id)
    }

    fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    fn silent(&self, name: &str) -> Error {
        let log = fs::read_to_string(self.directory.join(format!("{name}.log")));
        let last = log.unwrap_or_default().lines().last().unwrap_or("").to_owned();
        Error::Lab {
            what: format!("{name} does not answer: {last}"),
            advice: "look whether another Open vSwitch runs in this directory, or the host is busy",
        }
    }

    /// Changes the database, and waits until the switches have followed.
    fn vsctl(&self, arguments: &[String]) -> Result<(), Error> {
        let database = format!("--db=unix:{}", self.file("db.sock"));
        let timeout = format!("--timeout={}", SETTLE.as_secs());
        let mut all = vec![database.as_str(), timeout.as_str()];
        all.extend(arguments.iter().map(String::as_str));
        run_tool("ovs-vsctl", &all, "").map(drop)
    }

    /// Asks a switch by its own tool, which speaks OpenFlow too.
    fn ofctl(
        &self,
        version: &str,
        verb: &str,
        switch: usize,
        script: &str,
    ) -> Result<String, Error> {
        let socket = format!("unix:{}", self.file(&format!("s{switch}.mgmt")));
        let mut arguments = vec!["-O", version, verb, &socket];
        arguments.extend((!script.is_empty()).then_some("-"));
        run_tool("ovs-ofctl", &arguments, script)
    }

    /// The rules of a switch as `ovs-ofctl` prints them.
    pub(super) fn rules(&self, switch: usize) -> Result<String, Error> {
        self.ofctl("OpenFlow13", "dump-flows", switch, "")
    }
}

impl Drop for Daemons {
    fn drop(&mut self) {
        // The switch ends before its database.
        for child in self.children.iter_mut().rev() {
            process::send(child.id(), process::Signal::Terminate);
            // The exit status of a process that was ended tells nothing.
            drop(child.wait());
        }
        // Files that cannot be removed now are swept by the next lab.
        drop(fs::remove_dir_all(&self.directory));
    }
}

/// A directory for the daemons of a lab. Sockets have short paths, so it is below the directory for
/// temporary files.
fn directory(prefix: &str) -> PathBuf {
    std::env::temp_dir().join(format!("{prefix}-switches"))
}

impl Fabric {
    /// The port by which a switch reaches each of its neighbours. Both are numbers of nodes.
    pub fn ports(&self) -> BTreeMap<(usize, usize), u32> {
        let nodes: Vec<String> = self.all_names("").collect();
        let node = |name: &str| nodes.iter().position(|node| node == name).unwrap_or(0);
        let mut ports = BTreeMap::new();
        for (number, Link { ends: [one, other], .. }) in self.all_links().iter().enumerate() {
            let (one, other) = (node(&one.0), node(&other.0));
            ports.insert((one, other), number as u32 + 1);
            ports.insert((other, one), number as u32 + 1);
        }
        ports
    }

    fn all_links(&self) -> Vec<Link> {
        self.links(&Names { prefix: "", fabric: self })
    }

    /// Makes the namespaces, of which one has all switches, the wires and their limits.
    pub(super) fn build_wires(&self, prefix: &str, switches: &str) -> Result<(), Error> {
        let hosts = (0..self.host_count()).map(|host| format!("{prefix}-h{host}"));
        let mut script = format!("netns add {switches}\n");
        hosts.for_each(|host| writeln!(script, "netns add {host}").unwrap_or_default());
        let (mut up, mut limits) = (String::from("link set lo up\n"), String::new());
        for (number, Link { ends: [one, other], bits_per_s }) in self.all_links().iter().enumerate()
        {
            let is_host = number < self.host_count();
            let below = if is_host { format!("{prefix}-h{number}") } else { switches.to_owned() };
            let address = host_mac(if is_host { number } else { 50_000 + number });
            let (one, other) = (&one.1, &other.1);
            let _ = writeln!(
                script,
                "link add {one} netns {below} address {address} type veth \
                 peer name {other} netns {switches}"
            );
            for device in [Some(other), (!is_host).then_some(one)].into_iter().flatten() {
                let _ = writeln!(up, "link set {device} up");
                limits.push_str(&queue(device, *bits_per_s));
            }
        }
        run_ip(&["-batch", "-"], &script)?;
        run_ip(&["-n", switches, "-batch", "-"], &up)?;
        run_tool("tc", &["-n", switches, "-batch", "-"], &limits)?;
        for host in 0..self.host_count() {
            let limits = queue("eth0", self.host_bits_per_s);
            run_tool("tc", &["-n", &format!("{prefix}-h{host}"), "-batch", "-"], &limits)?;
        }
        Ok(())
    }

    /// Makes the bridges, and the rules for packets that no controller has rules for.
    pub(super) fn build_switches(&self, daemons: &Daemons) -> Result<(), Error> {
        let hosts = self.host_count();
        let mut words = format!(
            "-- set Open_vSwitch . other_config:max-revalidator={COUNTED_AFTER_MS} \
             -- --id=@noop create qos type=linux-noop"
        );
        for switch in 0..self.switch_count() {
            // Without a controller such a switch goes on by its rules.
            let _ = write!(
                words,
                " -- add-br s{switch} -- set bridge s{switch} datapath_type=netdev \
                 fail-mode=secure protocols=OpenFlow13,OpenFlow15 \
                 other-config:datapath-id={:016x} \
                 -- set-controller s{switch} tcp:127.0.0.1:{CONTROLLER_PORT} \
                 -- set controller s{switch} connection-mode=out-of-band max_backoff=1000",
                switch + 1
            );
        }
        let nodes: Vec<String> = self.all_names("").collect();
        for (number, Link { ends, .. }) in self.all_links().iter().enumerate() {
            for (node, device) in ends {
                let node = nodes.iter().position(|name| name == node).unwrap_or(0);
                let Some(switch) = node.checked_sub(hosts) else { continue };
                // Open vSwitch would remove the limit of a port without this kind of its own limit.
                let _ = write!(
                    words,
                    " -- add-port s{switch} {device} -- set port {device} qos=@noop \
                     -- set interface {device} ofport_request={}",
                    number + 1
                );
            }
        }
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        daemons.vsctl(&words)?;
        let ports = self.ports();
        for switch in 0..self.switch_count() {
            let (groups, rules) = self.rules_of(&ports, switch);
            // Groups that hash by a seed of their own need the later version of OpenFlow.
            daemons.ofctl("OpenFlow15", "add-groups", switch, &groups)?;
            daemons.ofctl("OpenFlow13", "add-flows", switch, &rules)?;
        }
        Ok(())
    }

    /// Groups and rules of a switch for packets without a rule of a controller.
    fn rules_of(&self, ports: &BTreeMap<(usize, usize), u32>, switch: usize) -> (String, String) {
        let node = self.host_count() + switch;
        let neighbours = ports.iter().filter(|((from, _), _)| *from == node);
        let neighbours: Vec<(usize, u32)> =
            neighbours.map(|((_, to), &port)| (*to, port)).collect();
        let (mut groups, mut rules) = (String::new(), String::new());
        // Ways that are equally good for a packet are the buckets of a group.
        let mut group = |number: usize, ways: &[u32]| {
            let seed = switch + 1;
            let _ = write!(groups, "group_id={number},type=select,selection_method=dp_hash");
            let _ = write!(groups, ",selection_method_param={seed}");
            ways.iter().for_each(|way| write!(groups, ",bucket=output:{way}").unwrap_or_default());
            groups.push('\n');
        };
        let height = self.height(node);
        let above = neighbours.iter().filter(|(to, _)| self.height(*to) > height);
        let above: Vec<u32> = above.map(|(_, port)| *port).collect();
        if !above.is_empty() {
            group(1, &above);
            let _ = writeln!(rules, "priority={},ip,actions=group:1", PRIORITIES.0);
        }
        // A core reaches a pod over several aggregation switches.
        for pod in (0..self.pods).filter(|_| height == 3) {
            let first = self.host_count() + self.cores + pod * (self.aggs + self.racks);
            let of = |agg: usize| ports[&(node, first + agg)];
            let ways: Vec<u32> = (0..self.aggs).map(of).collect();
            group(2 + pod, &ways);
        }
        for host in 0..self.host_count() {
            let (pod, rack) = (host / (self.racks * self.hosts), host / self.hosts);
            let first = self.host_count() + self.cores + pod * (self.aggs + self.racks);
            let rack = first + self.aggs + rack % self.racks;
            let way = match height {
                3 => Some(format!("group:{}", 2 + pod)),
                2 => ports.get(&(node, rack)).map(|port| format!("output:{port}")),
                _ => ports.get(&(node, host)).map(|port| format!("output:{port}")),
            };
            let address = self.address(host, None);
            way.iter().for_each(|way| {
                let _ =
                    writeln!(rules, "priority={},ip,nw_dst={address},actions={way}", PRIORITIES.1);
            });
        }
        (groups, rules)
    }

    /// 0 for a host, 1 for a rack, 2 for an aggregation switch, 3 for a core.
    fn height(&self, node: usize) -> u32 {
        let Some(switch) = node.checked_sub(self.host_count()) else { return 0 };
        match switch.checked_sub(self.cores) {
            None => 3,
            Some(switch) if switch % (self.aggs + self.racks) < self.aggs => 2,
            Some(_) => 1,
        }
    }
}

/// The limit of a device, with a queue.
fn queue(device: &str, bits_per_s: u64) -> String {
    let mut script = limit(device, bits_per_s);
    let queue = format!("pfifo limit {QUEUE_PACKETS}");
    let _ = writeln!(script, "qdisc add dev {device} parent 1:20 {queue}");
    script
}

/// Removes the directories that labs of dead processes left.
pub(super) fn sweep() {
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.ends_with("-switches") && is_stale(name)) {
            // A directory that cannot be removed now is tried again by the next lab.
            drop(fs::remove_dir_all(Path::new(&entry.path())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::NetworkLab;
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    /// Two pods of two racks of two hosts.
    fn small() -> Fabric {
        Fabric {
            pods: 2,
            racks: 2,
            hosts: 2,
            aggs: 2,
            cores: 2,
            host_bits_per_s: 50_000_000,
            rack_bits_per_s: 25_000_000,
            core_bits_per_s: 25_000_000,
        }
    }

    #[test]
    fn every_switch_has_a_way_to_every_host() {
        let fabric = small();
        let ports = fabric.ports();
        for switch in 0..fabric.switch_count() {
            let (groups, rules) = fabric.rules_of(&ports, switch);
            let height = fabric.height(fabric.host_count() + switch);
            let (below, ups) = [(2, 1), (4, 1), (8, 0)][height as usize - 1];
            assert_eq!(rules.matches("nw_dst=").count(), below, "switch {switch}");
            assert_eq!(rules.matches("actions=group:1\n").count(), ups);
            assert_eq!(groups.lines().count(), if height == 3 { 2 } else { 1 });
        }
    }

    #[test]
    fn hosts_reach_each_other_through_open_vswitch() {
        let fabric = small();
        let lab = match NetworkLab::with_switches(fabric) {
            Ok(lab) => lab,
            Err(error) => return say!("skipped: {error}"),
        };
        for (from, to) in [(0, 1), (0, 2), (5, 0), (2, 7)] {
            let address = fabric.address(from, None);
            // Any port: a process that another test starts may hold the last listener for a moment.
            let listen = || TcpListener::bind((address, 0)).expect("an address of the host");
            let listener = lab.hosts.within(from, listen).expect("the host is there");
            let port = listener.local_addr().expect("it is bound").port();
            let dial = || TcpStream::connect((address, port)).expect("a way");
            let mut stream = lab.hosts.within(to, dial).expect("the host is there");
            let (mut peer, _) = listener.accept().expect("it was connected");
            // More than a frame, so that pieces for a card with offloads would be lost.
            stream.write_all(&[7; 100_000]).expect("room");
            let mut bytes = vec![0; 100_000];
            peer.read_exact(&mut bytes).expect("whole");
        }
        assert!(lab.rules(0).expect("a switch").contains("actions=group:2"));
    }
}
