//! Real servers on free ports of this machine, each a process that can be killed and started again.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use evenfall_consensus_replica::{RackSettings, SecondRound};
use evenfall_core::Objects as _;
use evenfall_host::process::{self, Signal};
use evenfall_keys_client::keys::KeyOperation;
use evenfall_keys_zookeeper::Settings;
use evenfall_store_engine::names::etcd::Etcd;
use evenfall_store_engine::names::name_service::NameService as _;
use evenfall_store_engine::{Bucket, BucketOptions};
use tempfile::TempDir;

const STARTS: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);

/// Waits until a condition is true.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + STARTS;
    while !is_so() {
        assert!(Instant::now() < end, "never came: {what}");
        std::thread::sleep(LOOK);
    }
}

/// An address whose port is free for TCP and for UDP. No other test has it.
fn free_address() -> SocketAddr {
    evenfall_host::ports::free(Ipv4Addr::LOCALHOST.into()).expect("a port")
}

/// The program, from an environment variable or from `PATH`.
fn program(variable: &str, name: &str) -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        return Some(path.into());
    }
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.is_file());
    if found.is_none() {
        println!("skipped: no {name} in PATH, nor {variable}");
    }
    found
}

/// A server process, its directory and its port.
pub struct Server {
    command: Box<dyn Fn() -> Command>,
    child: Child,
    pub port: u16,
    pub directory: TempDir,
}

impl Server {
    fn start(command: impl Fn(&Path, u16) -> Command + 'static) -> Self {
        Self::start_at(command, free_address())
    }

    fn start_at(command: impl Fn(&Path, u16) -> Command + 'static, address: SocketAddr) -> Self {
        let (directory, port) = (TempDir::new().expect("a directory"), address.port());
        let path = directory.path().to_owned();
        let command = Box::new(move || command(&path, port));
        let child = spawn(&command);
        let server = Self { command, child, port, directory };
        server.await_port();
        server
    }

    fn await_port(&self) {
        eventually("a server's port", || TcpStream::connect(("127.0.0.1", self.port)).is_ok());
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("kill -9");
        self.child.wait().expect("its end");
    }

    pub fn restart(&mut self) {
        self.child = spawn(&self.command);
        self.await_port();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn spawn(command: &dyn Fn() -> Command) -> Child {
    let mut command = command();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("a server")
}

/// An S3 server with a bucket `ticks`.
pub struct S3 {
    pub server: Server,
    /// Whether the server carries out two simultaneous conditional puts one after the other.
    pub is_atomic: bool,
}

impl S3 {
    /// The crate `s3s-fs`.
    pub fn s3s() -> Self {
        let tests = std::env::current_exe().expect("this test");
        let examples = tests.ancestors().nth(2).expect("a target directory").join("examples");
        let program = examples.join("s3_server");
        let server = Server::start(move |directory, port| {
            let mut command = Command::new(&program);
            command.arg(directory).arg(format!("127.0.0.1:{port}"));
            command
        });
        std::fs::create_dir(server.directory.path().join("ticks")).expect("a bucket");
        // `s3s-fs` checks for an object at the start of a put, and replaces the object at the end.
        Self { server, is_atomic: false }
    }

    /// MinIO, when this machine has it.
    pub fn minio() -> Option<Self> {
        let program = program("EVENFALL_MINIO", "minio")?;
        let server = Server::start(move |directory, port| {
            let mut command = Command::new(&program);
            command.arg("server").arg(directory).arg("--quiet");
            command.arg("--address").arg(format!("127.0.0.1:{port}"));
            command.env("MINIO_ROOT_USER", "evenfall").env("MINIO_BROWSER", "off");
            command.env("MINIO_ROOT_PASSWORD", "evenfall-secret");
            command
        });
        // MinIO listens before it answers, and prepares its directory in between.
        let formatted = server.directory.path().join(".minio.sys/format.json");
        eventually("a directory of MinIO", || formatted.exists());
        std::fs::create_dir(server.directory.path().join("ticks")).expect("a bucket");
        let s3 = Self { server, is_atomic: true };
        let bucket = Bucket::open_with("s3://ticks/ready", &s3.options()).expect("a bucket");
        eventually("an answer of MinIO", || bucket.list("").is_ok());
        Some(s3)
    }

    pub fn options(&self) -> BucketOptions {
        let endpoint = format!("http://127.0.0.1:{}", self.server.port);
        let options = [
            ("aws_endpoint", endpoint.as_str()),
            ("aws_allow_http", "true"),
            ("aws_access_key_id", "evenfall"),
            ("aws_secret_access_key", "evenfall-secret"),
            ("aws_region", "us-east-1"),
        ];
        BucketOptions(options.map(|(key, value)| (key.into(), value.into())).into())
    }
}

/// Tells a process of this program which server of files it is.
const FILES: &str = "EVENFALL_TEST_STORE_FILES";

/// A nameserver with a dataserver of evenfall's own files.
pub struct FileServers {
    /// The dataserver, which ends first, and the nameserver.
    _servers: [Server; 2],
    pub address: String,
}

impl FileServers {
    pub fn start() -> Self {
        let nameserver = free_address();
        let server = |listen: SocketAddr| {
            let command = move |directory: &Path, _| {
                let mut command = Command::new(std::env::current_exe().expect("this program"));
                command.args(["--exact", "servers::file_server", "--nocapture"]);
                let what = format!("{listen} {nameserver} {}", directory.display());
                command.env(FILES, what);
                command
            };
            Server::start_at(command, listen)
        };
        let names = server(nameserver);
        let _servers = [server(free_address()), names];
        Self { _servers, address: nameserver.to_string() }
    }
}

/// Runs a server when the variable [`FILES`] is set. This function tests nothing by itself.
#[test]
fn file_server() {
    let Ok(text) = std::env::var(FILES) else { return };
    let mut words = text.split(' ');
    let mut address = || words.next().expect("an address").parse().expect("an address");
    let (listen, nameserver): (SocketAddr, SocketAddr) = (address(), address());
    let directory = words.next().expect("a directory").into();
    let options = evenfall_files_service::Options::local(listen, nameserver, directory);
    let ended = match listen == nameserver {
        true => evenfall_files_service::run_nameserver(&options, || {}),
        false => evenfall_files_service::run_dataserver(&options, || {}),
    };
    ended.expect("a server");
}

/// A directory of names: its servers and how addresses name it.
pub struct Names {
    servers: Vec<Server>,
    scheme: &'static str,
}

impl Names {
    /// The address that store nodes of one cluster share.
    pub fn address(&self) -> String {
        self.address_of("ticks")
    }

    /// The address of this name.
    pub fn address_of(&self, name: &str) -> String {
        let endpoints = self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port));
        let endpoints: Vec<String> = endpoints.collect();
        format!("{}://{}/{name}", self.scheme, endpoints.join(","))
    }

    /// Another directory of the same kind, without names.
    pub fn another(&self) -> Self {
        if self.scheme == "etcd" { etcd().expect("etcd, as before") } else { replicas_of_keys(1) }
    }

    pub fn kill(&mut self) {
        self.servers.iter_mut().for_each(Server::kill);
    }

    pub fn restart(&mut self) {
        self.servers.iter_mut().for_each(Server::restart);
    }

    /// Lets one of the servers stand still, or go on.
    pub fn signal(&self, server: usize, signal: Signal) {
        process::send(self.servers[server].child.id(), signal);
    }

    /// Ends the lease of a store node without the knowledge of the node, as an operator does.
    pub fn revoke(&self, node: u32, lease: i64) {
        let port = self.servers[0].port;
        if self.scheme == "etcd" {
            return etcd_at(port).lease_revoke(lease).expect("revoked");
        }
        let replica = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut keys = evenfall_keys_client::KeysClient::new(vec![replica], STARTS);
        let key = format!("evenfall/ticks/nodes/{node:08x}");
        keys.change(vec![KeyOperation::Delete { key, version: None }]).expect("revoked");
    }
}

/// Each directory of names that this machine has, one after the other.
pub fn each_directory(test: impl Fn(Names)) {
    test(replicas_of_keys(1));
    if let Some(etcd) = etcd() {
        test(etcd);
    }
}

fn etcd_at(port: u16) -> Etcd {
    Etcd::connect(&format!("127.0.0.1:{port}")).expect("etcd")
}

/// etcd, when this machine has it.
pub fn etcd() -> Option<Names> {
    let program = program("EVENFALL_ETCD", "etcd")?;
    let peers = free_address().port();
    let server = Server::start(move |directory, port| {
        let client = format!("http://127.0.0.1:{port}");
        let peer = format!("http://127.0.0.1:{peers}");
        let mut command = Command::new(&program);
        command.arg("--data-dir").arg(directory.join("data"));
        command
            .arg("--listen-client-urls")
            .arg(&client)
            .arg("--advertise-client-urls")
            .arg(&client);
        command.arg("--listen-peer-urls").arg(&peer);
        command.arg("--initial-advertise-peer-urls").arg(&peer);
        command.arg("--initial-cluster").arg(format!("default={peer}"));
        command
    });
    // etcd listens before it has elected itself leader.
    let client = etcd_at(server.port);
    eventually("an answer of etcd", || client.get("x").is_ok());
    Some(Names { servers: vec![server], scheme: "etcd" })
}

/// Tells a process of this program which replica of ordered keys it is: its number, its directory,
/// and the addresses of all.
const REPLICA: &str = "EVENFALL_TEST_STORE_REPLICA";

/// Replicas of evenfall's own ordered keys.
pub fn replicas_of_keys(count: usize) -> Names {
    let addresses: Vec<SocketAddr> = (0..count).map(|_| free_address()).collect();
    let all = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let start = |(node, address): (usize, &SocketAddr)| {
        let all = all.clone();
        let command = move |directory: &Path, _| {
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            command.args(["--exact", "servers::replica", "--nocapture"]);
            command.env(REPLICA, format!("{node} {} {all}", directory.display()));
            command
        };
        Server::start_at(command, *address)
    };
    Names { servers: addresses.iter().enumerate().map(start).collect(), scheme: "keys" }
}

/// Runs a replica when the variable [`REPLICA`] is set. This function tests nothing by itself.
#[test]
fn replica() {
    let Ok(text) = std::env::var(REPLICA) else { return };
    let mut words = text.split(' ');
    let node: usize = words.next().and_then(|word| word.parse().ok()).expect("a number");
    let directory = words.next().expect("a directory").into();
    let replicas: Vec<SocketAddr> = words.map(|word| word.parse().expect("an address")).collect();
    let mut zookeeper = evenfall_keys_zookeeper::Options::default();
    // The tests have leases of two seconds.
    zookeeper.set("minSessionTimeout=2000").expect("an option");
    let racks =
        RackSettings { of: vec![], second_round: SecondRound::Off, round_trip: Duration::ZERO };
    let listen = replicas[node];
    let replica = evenfall_consensus_replica::Settings {
        node,
        replicas,
        directory,
        lease_cycles: 0,
        racks,
        key: None,
    };
    let settings = Settings { replica, listen, bytes_max: None, zookeeper };
    evenfall_keys_zookeeper::run(&settings, None, || {}).expect("a replica");
}
