//! Replicas of ordered keys as processes of this machine.

use std::net::SocketAddr;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use evenfall_host::interrupt;
use evenfall_host::process::{self, Lifeline, Signal};
use evenfall_order_service::Settings;

use super::RunArgs;
use crate::Outcome;

/// Most replicas on this machine. The simulator shows what more replicas do.
const LOCAL_MAX: usize = 7;
/// Shortest time between two starts of a replica that ends.
const RESTART_EVERY: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(100);

/// The address of a replica.
fn at(first: SocketAddr, number: usize) -> Result<SocketAddr, String> {
    let port = u16::try_from(number).ok().and_then(|number| first.port().checked_add(number));
    let port = port.ok_or_else(|| format!("there is no port {} + {number}", first.port()))?;
    Ok((first.ip(), port).into())
}

pub fn run(args: &RunArgs) -> Outcome {
    if let (Some(count), None) = (args.local, args.node) {
        return run_local(args, count);
    }
    let (node, of) = (args.node.unwrap_or(0), args.of.unwrap_or(1));
    if node >= of {
        return Err(format!("--node {node}: there are only {of} replicas, from 0 on").into());
    }
    let replicas: Result<Vec<_>, _> = (0..of).map(|n| at(args.zookeeper, n)).collect();
    let settings = Settings {
        node,
        replicas: replicas?,
        listen: at(args.zookeeper, node)?,
        directory: args.dir.join(node.to_string()),
        bytes_max: args.keys_mib.saturating_mul(1 << 20),
    };
    let listen = settings.listen;
    let started = || println!("replica {node} of {of} takes clients at {listen}");
    Ok(evenfall_order_service::run(&settings, started)?)
}

/// A replica that runs as a process.
struct Replica {
    number: usize,
    child: Child,
    started: Instant,
}

/// Starts the replicas, and starts again what ends, until a signal comes.
fn run_local(args: &RunArgs, count: usize) -> Outcome {
    if !(1..=LOCAL_MAX).contains(&count) {
        return Err(format!("--local {count}: from 1 to {LOCAL_MAX} replicas").into());
    }
    let lifeline = Lifeline::new()?;
    let start = |number: usize| -> Result<Replica, Box<dyn std::error::Error>> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["run", "order", "--lifeline"]);
        command.arg(format!("--node={number}")).arg(format!("--of={count}"));
        command.arg(format!("--zookeeper={}", args.zookeeper));
        command.arg(format!("--keys-mib={}", args.keys_mib));
        command.arg("--dir").arg(&args.dir);
        lifeline.tie(&mut command)?;
        Ok(Replica { number, child: command.spawn()?, started: Instant::now() })
    };
    let mut replicas = (0..count).map(start).collect::<Result<Vec<_>, _>>()?;
    while !interrupt::raised() {
        std::thread::sleep(LOOK);
        for replica in &mut replicas {
            if let Some(ended) = replica.child.try_wait()?
                && replica.started.elapsed() >= RESTART_EVERY
                && !interrupt::raised()
            {
                eprintln!("replica {} ended ({ended}) and is started again", replica.number);
                *replica = start(replica.number)?;
            }
        }
    }
    for replica in &mut replicas {
        process::send(replica.child.id(), Signal::Terminate);
    }
    for replica in &mut replicas {
        replica.child.wait()?;
    }
    Ok(())
}
