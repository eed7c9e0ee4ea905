//! A nameserver and dataservers as processes of this machine.

use std::path::Path;

use evenfall_files_service::settings::{DATASERVER, FLOWSERVER, NAMESERVER};
use evenfall_files_service::{Options, Settings, run_dataserver, run_flowserver, run_nameserver};
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
    let started = || println!("{} takes clients at {listen}", name(node));
    match node {
        0 => run_nameserver(&options, started)?,
        _ => run_dataserver(&options, started)?,
    }
    Ok(())
}

/// Runs the server of this role, and of this name where several have the role.
fn run_server(settings: &Settings, role: &str, name: Option<&str>) -> Outcome {
    let node = settings.node(role, name)?;
    let options = Options::of(settings, node)?;
    let started = || println!("{} takes clients at {}", node.plain.name, node.reached_by());
    match role {
        NAMESERVER => run_nameserver(&options, started)?,
        FLOWSERVER => run_flowserver(&options, started)?,
        _ => run_dataserver(&options, started)?,
    }
    Ok(())
}

/// Runs the nameserver of the settings.
pub fn nameserver(settings: &Settings, name: Option<&str>) -> Outcome {
    run_server(settings, NAMESERVER, name)
}

/// Runs the flowserver of the settings.
pub fn flowserver(settings: &Settings, name: Option<&str>) -> Outcome {
    run_server(settings, FLOWSERVER, name)
}

/// Runs a dataserver of the settings.
pub fn dataserver(settings: &Settings, name: Option<&str>) -> Outcome {
    run_server(settings, DATASERVER, name)
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
