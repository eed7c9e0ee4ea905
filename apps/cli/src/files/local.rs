//! A nameserver and dataservers as processes of this machine.

use std::path::Path;

use evenfall_files_service::{Options, run_dataserver, run_nameserver};
use evenfall_runtime::notes;

use super::ServersArgs;
use crate::Outcome;
use crate::local::{LocalArgs, at, supervise};

/// Dataservers without `--local`: as many as a file has copies.
const LOCAL: usize = 3;
/// Most dataservers on this machine, which are as many as a file may have copies.
const LOCAL_MAX: usize = 16;

fn name(number: usize) -> String {
    match number {
        0 => "the nameserver".into(),
        _ => format!("dataserver {number}"),
    }
}

pub fn run(local: &LocalArgs, args: &ServersArgs) -> Outcome {
    let directory = local.dir.as_deref().unwrap_or(Path::new("evenfall-files"));
    let Some(node) = local.node else {
        return run_local(args, local.local.unwrap_or(LOCAL), directory);
    };
    let listen = at(args.webhdfs, node)?;
    notes::name(&name(node));
    let own = if node == 0 { "names".to_owned() } else { format!("data-{node}") };
    let mut options = Options::local(listen, args.webhdfs, directory.join(&own));
    options.name = own;
    let started = || say!("{} takes clients at {listen}", name(node));
    match node {
        0 => run_nameserver(&options, started)?,
        _ => run_dataserver(&options, started)?,
    }
    Ok(())
}

fn run_local(args: &ServersArgs, count: usize, directory: &Path) -> Outcome {
    if !(1..=LOCAL_MAX).contains(&count) {
        return Err(format!("--local {count}: from 1 to {LOCAL_MAX} dataservers").into());
    }
    at(args.webhdfs, count)?;
    supervise(count + 1, &name, &|number, command| {
        command.args(["run", "files", "--lifeline"]);
        command.arg(format!("--node={number}")).arg(format!("--webhdfs={}", args.webhdfs));
        command.arg("--dir").arg(directory);
    })
}
