//! A nameserver and dataservers as processes of a test.
//!
//! The program of tests starts itself: with the variable set, the test [`server`] is a server.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use evenfall_core::SharedKey;
use evenfall_files_service::{
    FilesClient, Options, PreparedPath, run_dataserver, run_flowserver, run_nameserver,
};
use evenfall_host::ports;
use evenfall_host::process::{self, Signal};
use evenfall_runtime::address::SourcePorts;
use tempfile::TempDir;

/// Tells a process which server it is: its address, that of the nameserver, its directory, its rack
/// and, in a cluster with a key, the word `keyed`, in a cluster of short leases `short-leases`, or
/// the address of the flowserver.
const SERVER: &str = "EVENFALL_TEST_FILES";
/// Fast enough that a test need not wait for damage to be found.
const SCRUB_BYTES_PER_SECOND: u64 = 100_000_000;
/// A writer of a test sleeps longer than this.
const SHORT_LEASE: Duration = Duration::from_secs(1);
/// A machine may stop this process for minutes.
pub const PATIENCE: Duration = Duration::from_secs(300);

#[test]
fn server() {
    let Ok(text) = std::env::var(SERVER) else { return };
    let mut words = text.split(' ');
    let mut address = || words.next().expect("an address").parse().expect("an address");
    let (listen, nameserver): (SocketAddr, SocketAddr) = (address(), address());
    let directory = words.next().expect("a directory").into();
    let mut options = Options::local(listen, nameserver, directory);
    options.rack = words.next().expect("a rack").to_owned();
    options.name = format!("port-{}", listen.port());
    options.files.superusers = vec!["ann".to_owned(), "dr.who".to_owned()];
    options.files.scrub_bytes_per_second = SCRUB_BYTES_PER_SECOND;
    // Paths that a flowserver takes for set up: here their ports change nothing.
    options.files.paths = [20_000, 21_000].map(path_from).into();
    match words.next() {
        Some("short-leases") => options.files.lease_soft_limit = SHORT_LEASE,
        Some("keyed") => {
            // The servers listen on all interfaces, and say where they are reached.
            options.key = Some(key());
            options.listen.set_ip(Ipv4Addr::UNSPECIFIED.into());
        }
        flowserver => options.flowserver = flowserver.map(|of| of.parse().expect("an address")),
    }
    let ended = match () {
        () if listen == nameserver => run_nameserver(&options, || {}),
        () if options.flowserver == Some(listen.into()) => run_flowserver(&options, || {}),
        () => run_dataserver(&options, || {}),
    };
    ended.expect("a server");
}

/// A path for the connections from these 1,000 ports.
fn path_from(first: u16) -> PreparedPath {
    let ports = SourcePorts { first, last: first + 999 };
    PreparedPath { name: format!("path-{first}"), ports, bytes_per_second: 1_000_000_000 }
}

/// The key of a cluster that has one.
pub fn key() -> SharedKey {
    SharedKey::new(1, [7; 32])
}

/// A port that is free for both protocols. No other test has the address.
fn free(host: Ipv4Addr) -> SocketAddr {
    ports::free(host.into()).expect("a port")
}

/// Servers, of which the first is the nameserver. They end with the test, however it ends.
pub struct Cluster {
    pub directory: TempDir,
    pub addresses: Vec<SocketAddr>,
    children: Vec<Option<Child>>,
    is_keyed: bool,
    has_short_leases: bool,
    flowserver: Option<SocketAddr>,
    /// The directories on which small disks are mounted.
    mounted: Vec<PathBuf>,
}

impl Cluster {
    /// A nameserver and so many dataservers, every other one of which is in another rack.
    pub fn new(dataservers: usize) -> Self {
        Self::with(dataservers, false)
    }

    /// As [`new`](Self::new), with a flowserver as the last server.
    pub fn with_flowserver(dataservers: usize) -> Self {
        let mut cluster = Self::prepared(dataservers + 1, false);
        cluster.flowserver = cluster.addresses.last().copied();
        cluster.start_all()
    }

    /// As [`new`](Self::new), where a writer that sends nothing for a second may lose its lease.
    pub fn with_short_leases(dataservers: usize) -> Self {
        let mut cluster = Self::prepared(dataservers, false);
        cluster.has_short_leases = true;
        cluster.start_all()
    }

    /// A cluster as [`new`](Self::new) makes it, whose last dataserver has a disk of `megabytes`.
    /// `None` on a machine that cannot mount such a disk.
    pub fn with_small_disk(dataservers: usize, megabytes: usize) -> Option<Self> {
        let mut cluster = Self::prepared(dataservers, false);
        let path = cluster.directory.path().join(dataservers.to_string());
        std::fs::create_dir(&path).expect("a directory");
        let size = format!("size={megabytes}m");
        let mut mount = Command::new("mount");
        let mount = mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&path).output();
        if !mount.is_ok_and(|done| done.status.success()) {
            println!("skipped: a tmpfs cannot be mounted here (root can)");
            return None;
        }
        cluster.mounted.push(path);
        Some(cluster.start_all())
    }

    /// As [`new`](Self::new), with a key or without.
    pub fn with(dataservers: usize, is_keyed: bool) -> Self {
        Self::prepared(dataservers, is_keyed).start_all()
    }

    fn start_all(mut self) -> Self {
        (0..self.addresses.len()).for_each(|number| self.start(number));
        self
    }

    /// Every server has an address of its own.
    fn prepared(others: usize, is_keyed: bool) -> Self {
        static HOSTS: AtomicU8 = AtomicU8::new(1);
        let network = HOSTS.fetch_add(1, Ordering::Relaxed);
        let host = |number: usize| Ipv4Addr::new(127, 78, network, number as u8 + 1);
        let addresses: Vec<SocketAddr> = (0..=others).map(|number| free(host(number))).collect();
        let directory = tempfile::tempdir().expect("a directory");
        let children = addresses.iter().map(|_| None).collect();
        let (flowserver, mounted, has_short_leases) = (None, Vec::new(), false);
        Self { directory, addresses, children, is_keyed, has_short_leases, flowserver, mounted }
    }

    /// Starts a server in its directory.
    pub fn start(&mut self, number: usize) {
        let directory = self.directory.path().join(number.to_string());
        let (own, names, rack) = (self.addresses[number], self.addresses[0], number % 2);
        let more = match self.flowserver {
            Some(flowserver) => format!(" {flowserver}"),
            None if self.is_keyed => " keyed".into(),
            None if self.has_short_leases => " short-leases".into(),
            None => String::new(),
        };
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "cluster::server", "--nocapture"])
            .env(SERVER, format!("{own} {names} {} rack-{rack}{more}", directory.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("a process");
        self.children[number] = Some(child);
    }

    /// Kills a server as `kill -9` does.
    pub fn kill(&mut self, number: usize) {
        if let Some(mut child) = self.children[number].take() {
            child.kill().expect("a process");
            child.wait().expect("a process");
        }
    }

    /// Sends a server a signal.
    pub fn signal(&self, number: usize, signal: Signal) {
        if let Some(child) = &self.children[number] {
            process::send(child.id(), signal);
        }
    }

    /// The number of the server with this address.
    pub fn number(&self, address: SocketAddr) -> usize {
        self.addresses.iter().position(|own| *own == address).expect("a server")
    }

    pub fn client(&self) -> FilesClient {
        let client = FilesClient::new(&self.addresses[0].to_string(), "ann", PATIENCE);
        client.keyed(self.is_keyed.then(key))
    }

    /// The dataserver that leads a file.
    pub fn primary(&self, path: &str) -> SocketAddr {
        let request = format!("POST /webhdfs/v1{path}?op=APPEND");
        let answer = ask(self.addresses[0], &request);
        let location = answer.lines().find_map(|line| line.strip_prefix("location: http://"));
        let location = location.unwrap_or_else(|| panic!("no redirect: {answer}"));
        location.split('/').next().expect("a host").parse().expect("an address")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        (0..self.children.len()).for_each(|number| self.kill(number));
        for path in &self.mounted {
            // An error here would hide the error of the test.
            let _ = Command::new("umount").arg("-l").arg(path).status();
        }
    }
}

/// The bytes that a server sends until it closes the connection.
pub fn raw(server: SocketAddr, bytes: &[u8]) -> String {
    let mut client = loop {
        // The server may not listen yet.
        match TcpStream::connect(server) {
            Ok(client) => break client,
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let mut answer = Vec::new();
    // A server that refuses a request may close the connection before it has read all.
    client.write_all(bytes).ok();
    client.read_to_end(&mut answer).ok();
    String::from_utf8_lossy(&answer).into_owned()
}

/// The answer to a request without a body: METHOD and path.
pub fn ask(server: SocketAddr, request: &str) -> String {
    let head = format!("{request} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\r\n");
    raw(server, head.as_bytes())
}
