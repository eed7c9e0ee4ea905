//! Replicas of ordered keys as processes of this machine.

use std::path::Path;

use evenfall_order_service::Settings;

use super::RunArgs;
use crate::Outcome;
use crate::local::{LocalArgs, at, supervise};

/// Most replicas on this machine. The simulator shows what more replicas do.
const LOCAL_MAX: usize = 7;

pub fn run(local: &LocalArgs, args: &RunArgs) -> Outcome {
    let directory = local.dir.as_deref().unwrap_or(Path::new("evenfall-order"));
    if let (Some(count), None) = (local.local, local.node) {
        return run_local(args, count, directory);
    }
    let (node, of) = (local.node.unwrap_or(0), local.of.unwrap_or(1));
    if node >= of {
        return Err(format!("--node {node}: there are only {of} replicas, from 0 on").into());
    }
    let replicas: Result<Vec<_>, _> = (0..of).map(|n| at(args.zookeeper, n)).collect();
    let settings = Settings {
        node,
        replicas: replicas?,
        listen: at(args.zookeeper, node)?,
        directory: directory.join(node.to_string()),
        bytes_max: args.keys_mib.saturating_mul(1 << 20),
    };
    let listen = settings.listen;
    let started = || println!("replica {node} of {of} takes clients at {listen}");
    Ok(evenfall_order_service::run(&settings, started)?)
}

fn run_local(args: &RunArgs, count: usize, directory: &Path) -> Outcome {
    if !(1..=LOCAL_MAX).contains(&count) {
        return Err(format!("--local {count}: from 1 to {LOCAL_MAX} replicas").into());
    }
    supervise(count, &|number| format!("replica {number}"), &|number, command| {
        command.args(["run", "order", "--lifeline"]);
        command.arg(format!("--node={number}")).arg(format!("--of={count}"));
        command.arg(format!("--zookeeper={}", args.zookeeper));
        command.arg(format!("--keys-mib={}", args.keys_mib));
        command.arg("--dir").arg(directory);
    })
}
