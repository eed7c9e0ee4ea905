//! `evenfall store readers`: which nodes of a cluster serve reads of a file.

use evenfall_runtime::listing::printable;
use evenfall_store_engine::names::cluster::Cluster;

use super::storage_args::{check_names, is_names};
use crate::Outcome;

/// Arguments of `evenfall store readers`.
#[derive(clap::Args, Debug)]
pub struct Readers {
    /// The names of the cluster: etcd://127.0.0.1:2379/name or keys://127.0.0.1:21811/name.
    names: String,
    /// A file. Without it, every file with its primary and its readers is listed.
    file: Option<String>,
    /// Number of a node that serves reads of the file; may be given several times.
    #[arg(long, value_name = "NUMBER", requires = "file", conflicts_with = "every_node")]
    node: Vec<u32>,
    /// Every node serves reads of the file again.
    #[arg(long, requires = "file")]
    every_node: bool,
}

fn of_nodes(numbers: &[u32]) -> String {
    match numbers {
        [] => "every node".to_owned(),
        _ => numbers.iter().map(|node| format!("node {node}")).collect::<Vec<_>>().join(", "),
    }
}

/// Runs `store readers`.
pub fn assign_readers(args: &Readers) -> Outcome {
    if !is_names(&args.names) {
        let names = &args.names;
        return Err(format!(
            "{names} is no address of names: say etcd://127.0.0.1:2379/name or \
             keys://127.0.0.1:21811/name"
        )
        .into());
    }
    check_names(&args.names)?;
    let cluster = Cluster::open(&args.names)?;
    if let Some(file) = args.file.as_ref().filter(|_| args.every_node || !args.node.is_empty()) {
        cluster.assign_readers(file, &args.node)?;
    }
    let wanted = |name: &str| args.file.as_ref().is_none_or(|file| file == name);
    let files = cluster.list()?;
    let mut files = files.iter().filter(|(name, _)| wanted(name)).peekable();
    if let (None, Some(file)) = (files.peek(), &args.file) {
        return Err(format!("there is no file {}", printable(file)).into());
    }
    for (name, entry) in files {
        let (name, readers) = (printable(name), of_nodes(&entry.readers));
        say!("{name}: node {} is the primary; read at {readers}", entry.primary);
    }
    Ok(())
}
