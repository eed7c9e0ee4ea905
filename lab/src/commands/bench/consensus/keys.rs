//! Replicas of ordered keys that agree by a protocol of the lab: the product's own service with its
//! sockets, and a rival in the place of Canopus.
//!
//! The replica prints its address, and answers clients of ZooKeeper until SIGTERM. A rival has no
//! log on a disk, so a replica of a rival that was killed stays away. The others go on without it
//! while they are a majority and the protocol elects leaders.

use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use evenfall_campaigns::consensus::ordered::open_consensus;
use evenfall_campaigns::consensus::rivals::Protocol;
use evenfall_consensus_replica::{RackSettings, Replica};
use evenfall_host::{interrupt, ports, process};
use evenfall_keys_zookeeper::{Options, Settings};
use evenfall_runtime::program::Outcome;

use super::super::Failure;

/// Replicas of one cluster, of which one may fail.
const REPLICAS: usize = 3;

/// Arguments of the hidden `evenfall bench keys-replica`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The protocol.
    #[arg(long)]
    protocol: Protocol,
    /// Number of this replica.
    #[arg(long)]
    node: usize,
    /// Addresses of all replicas, by UDP for each other and by TCP for clients.
    #[arg(long, value_delimiter = ',')]
    replicas: Vec<SocketAddr>,
    /// Directory of the log.
    #[arg(long)]
    dir: PathBuf,
}

/// Runs a replica until SIGTERM.
pub fn main(args: &Args) -> Outcome {
    if !args.protocol.is_linearizable() {
        return Err(refused(args.protocol).into());
    }
    interrupt::install()?;
    let listen = *args.replicas.get(args.node).ok_or("--node: no such replica")?;
    let replica = evenfall_consensus_replica::Settings {
        node: args.node,
        replicas: args.replicas.clone(),
        directory: args.dir.clone(),
        lease_cycles: 0,
        racks: RackSettings::default(),
        key: None,
    };
    let settings = Settings { replica, listen, bytes_max: None, zookeeper: Options::default() };
    let open = |start| open_consensus(args.protocol, start);
    let replica = Replica::open_with(&settings.replica, None, open)?;
    evenfall_keys_zookeeper::run_replica(&settings, replica, || say!("serving {listen}"))?;
    Ok(())
}

/// Why a protocol cannot keep ordered keys, and which protocols can.
fn refused(protocol: Protocol) -> String {
    let can: Vec<&str> = Protocol::ALL
        .into_iter()
        .filter(|protocol| protocol.is_linearizable())
        .map(Protocol::name)
        .collect();
    format!(
        "{protocol} gives ordered keys no single order, or reads that may be old: name one of {}",
        can.join(", ")
    )
}

/// Replicas on this host, which end when this value is dropped.
pub struct KeyServers {
    children: Vec<Child>,
    addresses: Vec<SocketAddr>,
    directory: PathBuf,
}

impl KeyServers {
    /// Starts the replicas, with fresh logs.
    pub fn start(protocol: Protocol) -> Result<Self, Failure> {
        if !protocol.is_linearizable() {
            return Err(format!("--rival: {}", refused(protocol)).into());
        }
        let free = |_| ports::free(Ipv4Addr::LOCALHOST.into());
        let addresses = (0..REPLICAS).map(free).collect::<Result<Vec<SocketAddr>, _>>()?;
        let name = format!("evenfall-bench-keys-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let mut servers = Self { children: Vec::new(), addresses, directory };
        let all: Vec<String> = servers.addresses.iter().map(ToString::to_string).collect();
        for node in 0..REPLICAS {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["bench", "keys-replica", "--protocol", protocol.name()]);
            command.args(["--node", &node.to_string(), "--replicas", &all.join(",")]);
            command.arg("--dir").arg(servers.directory.join(node.to_string()));
            process::end_with_parent(&mut command, process::Signal::Kill);
            let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
            let out = child.stdout.take();
            servers.children.push(child);
            let line = out.and_then(|out| BufReader::new(out).lines().next()).transpose()?;
            if !line.is_some_and(|line| line.starts_with("serving ")) {
                return Err(format!("replica {node} of the keys did not start").into());
            }
        }
        Ok(servers)
    }

    /// Where the replicas take clients.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The processes.
    pub fn pids(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }
}

impl Drop for KeyServers {
    fn drop(&mut self) {
        for child in &mut self.children {
            process::send(child.id(), process::Signal::Kill);
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
