//! Hosts as network namespaces on this machine.
//!
//! ```text
//!   namespace ef<pid>-h0          namespace ef<pid>-br             namespace ef<pid>-h1
//!   [ eth0 10.77.0.1 ]----veth----[ p0 | bridge br0 | p1 ]----veth----[ eth0 10.77.0.2 ]
//! ```
//!
//! The bridge has a namespace of its own, so that the host's connection tracking and firewall do
//! not see the traffic. Both would add 10 to 50 % to every packet. Every neighbour and every
//! forwarding entry is static, so that no address is resolved, learned or flooded during a
//! measurement.
//!
//! [`Lab::reserve`] makes a lab whose caller lays other wires between the hosts.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::Error;
use crate::clock::MonotonicClock;
use crate::sys::checked;

/// Hosts that a lab may have. A bridge takes 1,023 ports.
pub const HOSTS_MAX: usize = 1000;

/// The directory in which `ip netns` keeps its handles.
const HANDLES: &str = "/run/netns";
/// How long links may take to come up. The kernel looks at them at least once a second.
const SETTLE: Duration = Duration::from_secs(10);
/// Labs that this process has made. Tests have several labs at a time.
static LABS: AtomicU32 = AtomicU32::new(0);

/// Some hosts and what is between them. Dropping the lab removes them.
#[derive(Debug)]
pub struct Lab {
    prefix: String,
    hosts: usize,
    /// The namespaces of bridges and switches.
    between: Vec<String>,
}

impl Lab {
    /// Makes `hosts` hosts, after sweeping the remains of dead processes. The call takes about a
    /// second, most of it until the kernel has brought the links up.
    ///
    /// # Errors
    /// When this process is not root, `ip` is missing, or the kernel has no veth or bridge. The
    /// message says what to do.
    pub fn new(hosts: usize) -> Result<Self, Error> {
        let lab = Self::reserve(hosts, &["br".to_owned()])?;
        lab.wire_hosts()?;
        lab.build_bridge()?;
        (0..hosts).try_for_each(|host| lab.set_up_host(host))?;
        lab.settle(hosts)?;
        Ok(lab)
    }

    /// Takes the names of hosts and of other namespaces, after sweeping the remains of dead
    /// processes. `between` has the ends of the other names, which are `br` or begin with `s`. The
    /// caller makes what is missing, and dropping the lab removes what was made.
    ///
    /// # Errors
    /// When this process is not root, or there are too many hosts.
    pub fn reserve(hosts: usize, between: &[String]) -> Result<Self, Error> {
        // SAFETY: takes and returns integers.
        if unsafe { libc::geteuid() } != 0 {
            return Err(Error::Lab {
                what: "network namespaces need root".into(),
                advice: "run as root, or leave out the lab: loopback needs no rights",
            });
        }
        if hosts > HOSTS_MAX {
            return Err(Error::Lab {
                what: format!("{hosts} hosts are more than {HOSTS_MAX}"),
                advice: "ask for fewer: several receivers can share a host",
            });
        }
        Self::sweep_stale()?;
        let number = LABS.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("ef{}-{number}", std::process::id());
        let between = between.iter().map(|end| format!("{prefix}-{end}")).collect();
        Ok(Self { prefix, hosts, between })
    }

    /// The beginning of the names of all namespaces of this lab.
    pub fn name_prefix(&self) -> &str {
        &self.prefix
    }

    /// The namespaces that are no hosts.
    pub fn between(&self) -> &[String] {
        &self.between
    }

    /// Number of hosts.
    pub fn hosts(&self) -> usize {
        self.hosts
    }

    /// Name of a host's namespace, for `ip netns exec`.
    pub fn name(&self, host: usize) -> String {
        format!("{}-h{host}", self.prefix)
    }

    /// Address of a host.
    pub fn address(&self, host: usize) -> Ipv4Addr {
        address(host)
    }

    /// Makes a command run inside a host.
    ///
    /// # Errors
    /// When the host does not exist.
    pub fn inside(&self, host: usize, command: &mut Command) -> Result<(), Error> {
        enter_namespace(&self.name(host), command)
    }

    /// Runs a function inside a host, in a thread of its own. Sockets that the function opens stay
    /// in the host.
    ///
    /// # Errors
    /// When the host does not exist, or cannot be entered.
    ///
    /// # Panics
    /// When the function panics.
    pub fn within<T: Send>(
        &self,
        host: usize,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, Error> {
        within_namespace(&self.name(host), work)
    }

    /// Removes the namespaces that labs of dead processes left. Returns their number.
    ///
    /// # Errors
    /// When `ip` cannot be run.
    pub fn sweep_stale() -> Result<usize, Error> {
        let mut stale = BTreeSet::new();
        for entry in fs::read_dir(HANDLES).into_iter().flatten().flatten() {
            if let Ok(name) = entry.file_name().into_string()
                && is_stale(&name)
            {
                stale.insert(name);
            }
        }
        if !stale.is_empty() {
            delete(stale.iter())?;
        }
        Ok(stale.len())
    }

    /// Makes the kernel compute the checksums of all packets that leave this host, and segment
    /// large buffers, as for a card that does neither. The receiving host then checks the sums,
    /// which it otherwise takes on trust.
    ///
    /// # Errors
    /// When the kernel refuses the setting.
    pub fn turn_off_checksums(&self, host: usize) -> Result<(), Error> {
        self.within(host, || turn_off_checksums("eth0"))?.map_err(|source| Error::Os {
            what: format!("let {} compute checksums", self.name(host)),
            source,
            advice: "the kernel needs veth devices with ethtool's settings",
        })
    }

    /// Gives a host its address and its neighbours, and turns its link on.
    ///
    /// # Errors
    /// When the host was not made, or `ip` fails.
    pub fn set_up_host(&self, host: usize) -> Result<(), Error> {
        let mut script = format!("addr add {}/16 dev eth0\n", address(host));
        script.push_str("link set lo up\nlink set eth0 up\n");
        for other in (0..self.hosts).filter(|&other| other != host) {
            script.push_str(&neighbour(other));
        }
        run_ip(&["-n", &self.name(host), "-batch", "-"], &script)
    }

    /// Makes all hosts and the namespace of bridges, which is the first one between the hosts. A
    /// host has a wire to the port `p` and its number there.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn wire_hosts(&self) -> Result<(), Error> {
        let bridge = &self.between[0];
        let mut script = format!("netns add {bridge}\n");
        for host in 0..self.hosts {
            let name = self.name(host);
            let mac = host_mac(host);
            let _ = writeln!(script, "netns add {name}");
            let _ = writeln!(
                script,
                "link add eth0 netns {name} address {mac} type veth \
                 peer name p{host} netns {bridge}"
            );
        }
        run_ip(&["-batch", "-"], &script)
    }

    /// Waits until every link forwards: the links of the hosts, and this many ports of bridges. The
    /// kernel brings a link up in the background, up to a second after the command. Until then the
    /// link silently drops packets.
    ///
    /// # Errors
    /// When links do not come up within ten seconds.
    pub fn settle(&self, wanted: usize) -> Result<(), Error> {
        let end = MonotonicClock::now() + SETTLE;
        loop {
            let ports = run_tool("bridge", &["-n", &self.between[0], "link"], "")?;
            let forwarding = ports.matches("state forwarding").count();
            if forwarding == wanted && self.count_up()? == self.hosts {
                return Ok(());
            }
            if MonotonicClock::now() > end {
                return Err(Error::Lab {
                    what: format!("{forwarding} of {wanted} ports came up in {SETTLE:?}"),
                    advice: "the host is overloaded: try again, or with fewer hosts",
                });
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Hosts whose link is up.
    ///
    /// # Errors
    /// When a host was not made, or cannot be entered.
    pub fn count_up(&self) -> Result<usize, Error> {
        let work = || {
            let mut count = 0;
            for host in 0..self.hosts {
                let handle = handle(&self.name(host))?;
                let up = enter(&handle).and_then(|()| is_running("eth0"));
                count += usize::from(up.map_err(|source| Error::Os {
                    what: format!("look at the link of {}", self.name(host)),
                    source,
                    advice: "entering a namespace needs root",
                })?);
            }
            Ok(count)
        };
        // A thread of its own enters the last host and ends there.
        std::thread::scope(|scope| match scope.spawn(work).join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }

    fn build_bridge(&self) -> Result<(), Error> {
        let namespace = self.between[0].as_str();
        // Without spanning tree and multicast snooping, ports forward at once, and the bridge sends
        // no packets of its own.
        let mut script =
            "link add br0 type bridge stp_state 0 mcast_snooping 0 ageing_time 0\n".to_owned();
        let mut entries = String::new();
        for host in 0..self.hosts {
            let _ = writeln!(script, "link set p{host} master br0");
            let _ = writeln!(
                script,
                "link set p{host} type bridge_slave learning off flood off mcast_flood off"
            );
            let _ = writeln!(script, "link set p{host} up");
            let _ = writeln!(entries, "fdb replace {} dev p{host} master static", host_mac(host));
        }
        script.push_str("link set br0 up\n");
        run_ip(&["-n", namespace, "-batch", "-"], &script)?;
        run_tool("bridge", &["-n", namespace, "-batch", "-"], &entries).map(drop)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let mut names: Vec<String> = (0..self.hosts).map(|host| self.name(host)).collect();
        names.extend_from_slice(&self.between);
        names.retain(|name| fs::exists(format!("{HANDLES}/{name}")).unwrap_or(false));
        // Namespaces that cannot be removed now are swept by the next lab.
        drop(delete(names.iter()));
    }
}

/// Address of a host. The last byte takes 250 values, so that no address ends in 0 or 255.
fn address(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, (host / 250) as u8, (host % 250 + 1) as u8)
}

/// The hardware address of a host, which is locally administered.
pub fn host_mac(host: usize) -> String {
    format!("02:ef:00:00:{:02x}:{:02x}", host / 256, host % 256)
}

fn neighbour(host: usize) -> String {
    format!("neigh add {} lladdr {} dev eth0 nud permanent\n", address(host), host_mac(host))
}

/// Whether a lab of a dead process made what has this name.
pub fn is_stale(name: &str) -> bool {
    owner(name).is_some_and(|pid| !fs::exists(format!("/proc/{pid}")).unwrap_or(true))
}

/// The process that made a namespace of this name, if a lab made it.
fn owner(name: &str) -> Option<u32> {
    let (pid, rest) = name.strip_prefix("ef")?.split_once('-')?;
    let (number, kind) = rest.split_once('-')?;
    let is_ours = number.parse::<u32>().is_ok() && (kind == "br" || kind.starts_with(['h', 's']));
    is_ours.then(|| pid.parse().ok())?
}

fn delete<'a>(names: impl Iterator<Item = &'a String>) -> Result<(), Error> {
    let mut script = String::new();
    for name in names {
        let _ = writeln!(script, "netns del {name}");
    }
    run_ip(&["-force", "-batch", "-"], &script)
}

/// Runs `ip` with a script on its standard input.
///
/// # Errors
/// When `ip` is missing, or ends with an error.
pub fn run_ip(arguments: &[&str], script: &str) -> Result<(), Error> {
    run_tool("ip", arguments, script).map(drop)
}

/// Runs a tool of iproute2 or Open vSwitch with a script on its standard input. Returns its output.
///
/// # Errors
/// When the tool is missing, or ends with an error.
pub fn run_tool(name: &str, arguments: &[&str], script: &str) -> Result<String, Error> {
    let missing = |error: std::io::Error| Error::Lab {
        what: format!("`{name}` cannot be run: {error}"),
        advice: match name.starts_with("ovs") {
            true => "install Open vSwitch (apt-get install openvswitch-switch)",
            false => "install iproute2 (apt-get install iproute2)",
        },
    };
    let mut child = Command::new(name)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(missing)?;
    if let Some(mut input) = child.stdin.take() {
        // A tool that stopped at a bad line closes its input. The tool's own message says more than
        // the write error.
        drop(input.write_all(script.as_bytes()));
    }
    let output = child.wait_with_output().map_err(missing)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(Error::Lab {
        what: format!(
            "`{name} {}` failed: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        ),
        advice: "the kernel needs veth and bridge, and the process CAP_SYS_ADMIN and CAP_NET_ADMIN",
    })
}

fn handle(namespace: &str) -> Result<OwnedFd, Error> {
    let path = format!("{HANDLES}/{namespace}");
    File::open(&path).map(OwnedFd::from).map_err(|source| Error::Os {
        what: format!("open {path}"),
        source,
        advice: "the lab was taken down, or has fewer hosts",
    })
}

/// Makes a command enter a namespace before it runs.
///
/// # Errors
/// When the namespace does not exist.
pub fn enter_namespace(name: &str, command: &mut Command) -> Result<(), Error> {
    let handle = handle(name)?;
    let enter = move || enter(&handle);
    // SAFETY: between fork and exec only `setns` is called, which is a plain system call.
    unsafe { command.pre_exec(enter) };
    Ok(())
}

/// Runs a function inside a namespace, in a thread of its own.
///
/// # Errors
/// When the namespace does not exist, or cannot be entered.
///
/// # Panics
/// When the function panics.
pub fn within_namespace<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
    let handle = handle(name)?;
    let inside = || {
        enter(&handle).map_err(|source| Error::Os {
            what: format!("enter {name}"),
            source,
            advice: "entering a namespace needs root",
        })?;
        Ok(work())
    };
    std::thread::scope(|scope| match scope.spawn(inside).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

fn enter(handle: &OwnedFd) -> std::io::Result<()> {
    // SAFETY: integers only; the descriptor is open.
    checked(unsafe { libc::setns(handle.as_raw_fd(), libc::CLONE_NEWNET) }).map(drop)
}

/// Whether a link of this thread's namespace is up and may send.
fn is_running(name: &str) -> std::io::Result<bool> {
    let mut request = request_for(name);
    ask(libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: this ioctl fills the flags.
    let flags = i32::from(unsafe { request.ifr_ifru.ifru_flags });
    Ok(flags & libc::IFF_RUNNING != 0)
}

/// Makes the kernel compute the checksums of all packets that leave by a link of this thread's
/// namespace. Packets then have the length of a frame at most.
fn turn_off_checksums(name: &str) -> std::io::Result<()> {
    /// `struct ethtool_value` of `linux/ethtool.h`.
    #[repr(C)]
    struct Setting {
        command: u32,
        value: u32,
    }
    /// `ETHTOOL_STXCSUM` of `linux/ethtool.h`.
    const SET_CHECKSUMS: u32 = 0x17;
    /// `SIOCETHTOOL` of `linux/sockios.h`.
    const ETHTOOL: libc::Ioctl = 0x8946;
    let mut setting = Setting { command: SET_CHECKSUMS, value: 0 };
    let mut request = request_for(name);
    request.ifr_ifru.ifru_data = (&raw mut setting).cast();
    ask(ETHTOOL as _, &mut request)
}

fn request_for(name: &str) -> libc::ifreq {
    // SAFETY: `ifreq` is a name and plain integers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero, so that the name ends there at the latest.
    for (to, from) in request.ifr_name[..15].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

fn ask(question: libc::c_ulong, request: &mut libc::ifreq) -> std::io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // SAFETY: the ioctl reads and writes one `ifreq` and what it points to, which outlive the call.
    let result =
        unsafe { libc::ioctl(socket.as_raw_fd(), question as _, std::ptr::from_mut(request)) };
    checked(result).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_labs_are_swept() {
        assert_eq!(owner("ef123-0-h7"), Some(123));
        assert_eq!(owner("ef123-4-br"), Some(123));
        for foreign in ["ef123", "ef123-0", "ef-0-h1", "efx-0-br", "eth0", "ef1-0-x", "ef1-q-br"] {
            assert_eq!(owner(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn hosts_have_distinct_addresses() {
        let addresses: BTreeSet<_> = (0..HOSTS_MAX).map(address).collect();
        let macs: BTreeSet<_> = (0..HOSTS_MAX).map(host_mac).collect();
        assert_eq!((addresses.len(), macs.len()), (HOSTS_MAX, HOSTS_MAX));
    }
}
