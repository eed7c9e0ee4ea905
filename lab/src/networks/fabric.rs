//! Hosts in a fat tree of routers, with several paths between two racks.
//!
//! ```text
//!                core 0        core 1
//!               /      \      /      \          each switch is a namespace that routes
//!        agg 0 x agg 1    agg 0 x agg 1         every agg of a pod has a link to every core
//!         |  \ /  |        |  \ /  |            every rack has a link to every agg of its pod
//!        rack 0 rack 1    rack 0 rack 1
//!        h0 h1  h2 h3     h4 h5  h6 h7
//! ```
//!
//! A host has an address for each path to it. For one more address, the switches choose the path by
//! a hash of addresses and ports (`fib_multipath_hash_policy` 1, each switch with a seed of its
//! own). So a reader that asks from one of its addresses chooses the path of the answer. A token
//! bucket (htb) before each link limits it both ways, with a queue of [`QUEUE_PACKETS`].

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;

use evenfall_host::Error;
use evenfall_host::lab::{run_ip, run_tool};

use super::racks::limit;

/// Packets that wait before a link at most: 12 ms at 100 Mb/s.
pub const QUEUE_PACKETS: u32 = 100;
/// Full frames that TCP hands to a link at once. Larger pieces would keep others from a slow link
/// for milliseconds.
const PIECE_FRAMES: u32 = 2;
/// Second byte of the addresses whose paths are hashed. The addresses of path 0 have the next byte.
const HASHED: usize = 77;
/// Paths that have addresses.
const PATHS_MAX: usize = 255 - HASHED;

/// A fat tree: numbers of its parts, and rates of its links each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fabric {
    /// Pods.
    pub pods: usize,
    /// Racks in a pod.
    pub racks: usize,
    /// Hosts in a rack.
    pub hosts: usize,
    /// Aggregation switches in a pod.
    pub aggs: usize,
    /// Core switches.
    pub cores: usize,
    /// Rate of a link between host and rack.
    pub host_bits_per_s: u64,
    /// Rate of a link between rack and aggregation switch.
    pub rack_bits_per_s: u64,
    /// Rate of a link between aggregation and core switch.
    pub core_bits_per_s: u64,
}

/// A link: the namespaces and devices of its ends, and its rate.
pub(super) struct Link {
    pub(super) ends: [(String, String); 2],
    pub(super) bits_per_s: u64,
}

/// The namespaces of a fabric that belongs to a lab.
pub(super) struct Names<'a> {
    pub(super) prefix: &'a str,
    pub(super) fabric: &'a Fabric,
}

impl Names<'_> {
    fn host(&self, host: usize) -> String {
        format!("{}-h{host}", self.prefix)
    }

    fn core(&self, core: usize) -> String {
        format!("{}-s{core}", self.prefix)
    }

    fn agg(&self, pod: usize, agg: usize) -> String {
        let below = self.fabric.aggs + self.fabric.racks;
        format!("{}-s{}", self.prefix, self.fabric.cores + pod * below + agg)
    }

    fn rack(&self, pod: usize, rack: usize) -> String {
        self.agg(pod, self.fabric.aggs + rack)
    }
}

impl Fabric {
    /// Number of hosts, which are counted rack by rack.
    pub fn host_count(&self) -> usize {
        self.pods * self.racks * self.hosts
    }

    /// The number of the path that leads up over one aggregation switch, through a core and down
    /// over another aggregation switch. In a pod, only the way up counts.
    pub fn path(&self, up: usize, core: usize, down: usize) -> usize {
        (up * self.cores + core) * self.aggs + down
    }

    fn paths(&self) -> usize {
        self.aggs * self.cores * self.aggs
    }

    /// The address of a host at which packets over this path arrive; `None` for paths by hash.
    pub fn address(&self, host: usize, path: Option<usize>) -> Ipv4Addr {
        let second = HASHED + path.map_or(0, |path| path + 1);
        Ipv4Addr::new(10, second as u8, (host / 250) as u8, (host % 250 + 1) as u8)
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let parts = [self.pods, self.racks, self.hosts, self.aggs, self.cores];
        if parts.contains(&0) || self.paths() > PATHS_MAX {
            return Err(Error::Lab {
                what: format!("a fabric of {self:?}"),
                advice: "all parts are one or more, and there are 178 paths at most",
            });
        }
        Ok(())
    }

    /// Number of switches: cores, aggregation switches and racks.
    pub fn switch_count(&self) -> usize {
        self.cores + self.pods * (self.aggs + self.racks)
    }

    /// The namespaces of the switches.
    pub(super) fn switch_names(&self, prefix: &str) -> Vec<String> {
        (0..self.switch_count()).map(|switch| format!("{prefix}-s{switch}")).collect()
    }

    /// The namespaces of the hosts and of the switches: all nodes by number.
    pub(super) fn all_names(&self, prefix: &str) -> impl Iterator<Item = String> + use<> {
        let (hosts, switches) = (self.host_count(), self.switch_names(prefix));
        let prefix = prefix.to_owned();
        (0..hosts).map(move |host| format!("{prefix}-h{host}")).chain(switches)
    }

    /// All links. The device of a host is `eth0`, and devices of switches have the link's number
    /// behind the letter of their end.
    pub(super) fn links(&self, names: &Names<'_>) -> Vec<Link> {
        let mut links = Vec::new();
        let mut link = |below: String, is_host: bool, above: String, bits_per_s| {
            let number = links.len();
            let own = if is_host { "eth0".to_owned() } else { format!("l{number}") };
            links.push(Link { ends: [(below, own), (above, format!("u{number}"))], bits_per_s });
        };
        for host in 0..self.host_count() {
            let rack = host / self.hosts;
            let rack = names.rack(rack / self.racks, rack % self.racks);
            link(names.host(host), true, rack, self.host_bits_per_s);
        }
        for pod in 0..self.pods {
            for agg in 0..self.aggs {
                for rack in 0..self.racks {
                    let ends = (names.rack(pod, rack), names.agg(pod, agg));
                    link(ends.0, false, ends.1, self.rack_bits_per_s);
                }
                for core in 0..self.cores {
                    let ends = (names.agg(pod, agg), names.core(core));
                    link(ends.0, false, ends.1, self.core_bits_per_s);
                }
            }
        }
        links
    }

    /// Makes all namespaces, links, routes and limits.
    pub(super) fn build(&self, prefix: &str) -> Result<(), Error> {
        let names = Names { prefix, fabric: self };
        let links = self.links(&names);
        let all: Vec<String> = self.all_names(prefix).collect();
        let mut script = String::new();
        for name in &all {
            let _ = writeln!(script, "netns add {name}");
        }
        for Link { ends: [one, other], .. } in &links {
            let _ = writeln!(
                script,
                "link add {} netns {} type veth peer name {} netns {}",
                one.1, one.0, other.1, other.0
            );
        }
        run_ip(&["-batch", "-"], &script)?;
        for name in &all {
            let mut script = "link set lo up\n".to_owned();
            let mut limits = String::new();
            for (number, Link { ends, bits_per_s }) in links.iter().enumerate() {
                for (end, (namespace, device)) in ends.iter().enumerate() {
                    if namespace == name {
                        let address = end_address(number, end);
                        let _ = writeln!(script, "addr add {address}/31 dev {device}");
                        let pieces = format!("gso_max_segs {PIECE_FRAMES}");
                        let _ = writeln!(script, "link set {device} {pieces} up");
                        limits.push_str(&limit(device, *bits_per_s));
                        let _ = writeln!(
                            limits,
                            "qdisc add dev {device} parent 1:20 pfifo limit {QUEUE_PACKETS}"
                        );
                    }
                }
            }
            run_ip(&["-n", name, "-batch", "-"], &script)?;
            run_tool("tc", &["-n", name, "-batch", "-"], &limits)?;
        }
        self.route(&names, &links)
    }

    fn route(&self, names: &Names<'_>, links: &[Link]) -> Result<(), Error> {
        // The address of the far end of the link from one namespace to another.
        let via = |from: &str, to: &str| {
            let found = links.iter().enumerate().find_map(|(number, link)| {
                let of = |end: usize| link.ends[end].0.as_str();
                (0..2).find(|&end| of(end) == to && of(1 - end) == from).map(|end| (number, end))
            });
            let (number, end) = found.expect("neighbours have a link");
            format!("via {}", end_address(number, end))
        };
        let run = |name: &str, script: &str| run_ip(&["-n", name, "-batch", "-"], script);
        for host in 0..self.host_count() {
            let (name, rack) = (names.host(host), host / self.hosts);
            let rack = names.rack(rack / self.racks, rack % self.racks);
            let mut script = format!("route add default {}\n", via(&name, &rack));
            for path in self.path_choices() {
                let _ = writeln!(script, "addr add {}/32 dev lo", self.address(host, path));
            }
            run(&name, &script)?;
        }
        for pod in 0..self.pods {
            let aggs: Vec<String> = (0..self.aggs).map(|agg| names.agg(pod, agg)).collect();
            for rack in 0..self.racks {
                let name = names.rack(pod, rack);
                let ways: Vec<String> = aggs.iter().map(|agg| via(&name, agg)).collect();
                let mut script = self.up(&ways, |path| path / (self.cores * self.aggs));
                for host in self.hosts_of(pod, rack) {
                    self.down(&mut script, host, |_| vec![via(&name, &names.host(host))]);
                }
                run(&name, &script)?;
            }
            for agg in &aggs {
                let cores = (0..self.cores).map(|core| via(agg, &names.core(core)));
                let ways: Vec<String> = cores.collect();
                let mut script = self.up(&ways, |path| path / self.aggs % self.cores);
                for rack in 0..self.racks {
                    let way = via(agg, &names.rack(pod, rack));
                    for host in self.hosts_of(pod, rack) {
                        self.down(&mut script, host, |_| vec![way.clone()]);
                    }
                }
                run(agg, &script)?;
            }
        }
        for core in (0..self.cores).map(|core| names.core(core)) {
            let mut script = String::new();
            for pod in 0..self.pods {
                let aggs = (0..self.aggs).map(|agg| via(&core, &names.agg(pod, agg)));
                let ways: Vec<String> = aggs.collect();
                for host in (0..self.racks).flat_map(|rack| self.hosts_of(pod, rack)) {
                    self.down(&mut script, host, |path| match path {
                        Some(path) => vec![ways[path % self.aggs].clone()],
                        None => ways.clone(),
                    });
                }
            }
            run(&core, &script)?;
        }
        Ok(())
    }

    fn hosts_of(&self, pod: usize, rack: usize) -> std::ops::Range<usize> {
        let first = (pod * self.racks + rack) * self.hosts;
        first..first + self.hosts
    }

    /// All paths, and the path by hash.
    fn path_choices(&self) -> impl Iterator<Item = Option<usize>> {
        std::iter::once(None).chain((0..self.paths()).map(Some))
    }

    /// Routes to hosts that are not below a switch: by hash, and by path over the way of `number`.
    fn up(&self, ways: &[String], number: impl Fn(usize) -> usize) -> String {
        let mut script = String::new();
        for path in self.path_choices() {
            let network = format!("10.{}.0.0/16", HASHED + path.map_or(0, |path| path + 1));
            let ways = path.map_or(ways, |path| &ways[number(path)..=number(path)]);
            let _ = writeln!(script, "route add {network} {}", hops(ways));
        }
        script
    }

    /// Routes to the addresses of a host that is below a switch.
    fn down(&self, script: &mut String, host: usize, ways: impl Fn(Option<usize>) -> Vec<String>) {
        for path in self.path_choices() {
            let _ =
                writeln!(script, "route add {}/32 {}", self.address(host, path), hops(&ways(path)));
        }
    }

    /// Makes a switch route, for a thread that is in the switch's namespace.
    pub(super) fn set_up_switch(number: usize) -> std::io::Result<()> {
        let seed = (number + 1).to_string();
        let settings = [
            ("ip_forward", "1"),
            ("conf/all/rp_filter", "0"),
            ("fib_multipath_hash_policy", "1"),
            ("fib_multipath_hash_seed", &seed),
        ];
        for (name, value) in settings {
            fs::write(format!("/proc/sys/net/ipv4/{name}"), value)?;
        }
        Ok(())
    }

    /// Whether all links of all switches are up.
    pub(super) fn is_up(&self, prefix: &str) -> Result<bool, Error> {
        for name in self.switch_names(prefix) {
            let links = run_tool("ip", &["-n", &name, "-o", "link", "show", "type", "veth"], "")?;
            if !links.lines().all(|link| link.contains("state UP")) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn hops(ways: &[String]) -> String {
    match ways {
        [way] => way.clone(),
        ways => ways.iter().map(|way| format!("nexthop {way} ")).collect(),
    }
}

/// The address of one end of a link.
fn end_address(link: usize, end: usize) -> Ipv4Addr {
    let number = 2 * link + end;
    Ipv4Addr::new(172, 16 + (number >> 16) as u8, (number >> 8) as u8, number as u8)
}

#[cfg(test)]
mod tests {
    use super::super::NetworkLab;
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn small() -> Fabric {
        Fabric {
            pods: 2,
            racks: 2,
            hosts: 1,
            aggs: 2,
            cores: 2,
            host_bits_per_s: 100_000_000,
            rack_bits_per_s: 50_000_000,
            core_bits_per_s: 50_000_000,
        }
    }

    #[test]
    fn a_fabric_without_parts_is_refused() {
        assert!(Fabric { aggs: 0, ..small() }.check().is_err());
        assert!(Fabric { aggs: 10, cores: 10, ..small() }.check().is_err());
        assert_eq!(small().path(1, 0, 1), 5);
    }

    /// Every host reaches every other host over each path and by hash.
    #[test]
    fn hosts_reach_each_other_over_every_path() {
        let fabric = small();
        let lab = match NetworkLab::with_fabric(fabric) {
            Ok(lab) => lab,
            Err(error) => return say!("skipped: {error}"),
        };
        for (from, to) in [(0, 1), (0, 2), (3, 0), (2, 1)] {
            let address = fabric.address(from, None);
            // Any port: a process that another test starts may hold the last listener for a moment.
            let listen = || TcpListener::bind((address, 0)).expect("an address of the host");
            let listener = lab.hosts.within(from, listen).expect("the host is there");
            let port = listener.local_addr().expect("it is bound").port();
            for path in fabric.path_choices() {
                let own = fabric.address(to, path);
                let dial = || -> rustix::io::Result<rustix::fd::OwnedFd> {
                    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
                    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
                    bind(&socket, &std::net::SocketAddrV4::new(own, 0))?;
                    connect(&socket, &std::net::SocketAddrV4::new(address, port))?;
                    Ok(socket)
                };
                let socket = lab.hosts.within(to, dial).expect("the host is there");
                let stream = TcpStream::from(socket.expect("a route"));
                let (_, peer) = listener.accept().expect("it was connected");
                assert_eq!(stream.local_addr().expect("it is bound"), peer);
                assert_eq!(peer.ip(), own);
            }
        }
    }
}
