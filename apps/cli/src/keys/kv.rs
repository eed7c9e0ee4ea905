//! `evenfall kv`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::Subcommand;
use evenfall_host::interrupt;
use evenfall_keys_client::keys::{Existing, KeyOperation, KeyOutcome, Stat};
use evenfall_keys_client::{FoundKey, KeysClient, status};
use evenfall_runtime::listing::printable;
use humantime::parse_duration;
use serde_json::json;

use crate::Outcome;

/// Longest time for which a signal may go unnoticed.
const LOOK: Duration = Duration::from_millis(100);

/// Time after which `evenfall kv retire` hands its plan in again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Arguments of `evenfall kv`.
#[derive(clap::Args, Debug)]
pub struct KvArgs {
    #[command(subcommand)]
    command: KvCommand,
    /// Addresses of the replicas, separated by commas. Any replica may answer.
    #[arg(
        long,
        global = true,
        value_name = "ADDRESS",
        value_delimiter = ',',
        value_parser = evenfall_runtime::address::look_up,
        default_value = "127.0.0.1:21811,127.0.0.1:21812,127.0.0.1:21813"
    )]
    servers: Vec<SocketAddr>,
    /// Longest time to wait for an answer.
    #[arg(
        long,
        global = true,
        value_name = "TIME",
        default_value = "30s",
        value_parser = parse_duration
    )]
    patience: Duration,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand, Debug)]
enum KvCommand {
    /// Set a key. A key that begins with / needs the path above it.
    Put {
        /// The key.
        key: String,
        /// The new value.
        value: String,
    },
    /// Print the value of a key. The value contains every change that was acknowledged before this
    /// command began.
    Get {
        /// The key, or with --prefix the beginning of keys.
        key: String,
        /// Print all keys that begin with KEY, with their values.
        #[arg(long)]
        prefix: bool,
    },
    /// Set a key if the key has this version. The version `none` creates a key that does not exist
    /// yet.
    Cas {
        /// The key.
        key: String,
        /// The version that `evenfall kv get --json` prints, or none.
        version: String,
        /// The new value.
        value: String,
    },
    /// Delete a key.
    Delete {
        /// The key.
        key: String,
    },
    /// Print changes of a key as they come, until Ctrl-C.
    Watch {
        /// The key.
        key: String,
        /// Also print changes of all keys below this path.
        #[arg(long)]
        below: bool,
    },
    /// Take a rack out as planned, so that its hosts can be stopped while the other racks go on.
    /// Wait until the rack is out. The rack comes back when a majority of its replicas is started
    /// again. The first server has to be a replica on this host.
    Retire {
        /// The number of the rack, as `evenfall kv status` shows it.
        rack: u8,
    },
    /// Set the limit of all keys and values together. The first server has to be a replica on this
    /// host.
    Limit {
        /// The limit in MiB. Changes beyond the limit are refused.
        #[arg(value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
        mib: u32,
    },
    /// Print the state of each replica.
    Status,
}

fn put(key: &str, value: &str, existing: Existing) -> KeyOperation {
    KeyOperation::put(key, value.to_owned(), existing)
}

fn stat_json(stat: &Stat) -> serde_json::Value {
    json!({ "version": stat.version, "created": stat.created, "modified": stat.modified })
}

fn found_json(found: &FoundKey) -> serde_json::Value {
    let mut all = stat_json(&found.stat);
    all["key"] = found.key.as_str().into();
    all["value"] = String::from_utf8_lossy(&found.value).into();
    all
}

pub fn kv(args: &KvArgs) -> Outcome {
    let mut client = KeysClient::new(args.servers.clone(), args.patience);
    let changed = |changed: Vec<KeyOutcome>| {
        for one in changed {
            match args.json {
                true => {
                    let mut all = stat_json(&one.stat);
                    all["key"] = (&*one.key).into();
                    say!("{all}");
                }
                false => say!("{} has version {}", one.key, one.stat.version),
            }
        }
    };
    match &args.command {
        KvCommand::Put { key, value } => {
            changed(client.change(vec![put(key, value, Existing::Any(true))])?);
        }
        KvCommand::Cas { key, version, value } => {
            let existing = match version.as_str() {
                "none" => Existing::None,
                number => Existing::Version(number.parse().map_err(|_| {
                    format!("{number:?} is no version: give a number, or none for a new key")
                })?),
            };
            changed(client.change(vec![put(key, value, existing)])?);
        }
        KvCommand::Delete { key } => {
            client.change(vec![KeyOperation::Delete { key: key.clone(), version: None }])?;
        }
        KvCommand::Get { key, prefix: true } => print_range(&mut client, key, args.json)?,
        KvCommand::Get { key, prefix: false } => {
            let found = client.get(key)?.ok_or_else(|| format!("there is no key {key:?}"))?;
            match args.json {
                true => say!("{}", found_json(&found)),
                false => say!("{}", String::from_utf8_lossy(&found.value)),
            }
        }
        KvCommand::Watch { key, below } => return watch(args, client, key, *below),
        KvCommand::Retire { rack } => retire(args, &mut client, *rack)?,
        KvCommand::Limit { mib } => client.limit(*mib)?,
        KvCommand::Status => print_status(args)?,
    }
    Ok(())
}

/// Takes a rack out, and waits until the replica that was asked no longer needs it.
fn retire(args: &KvArgs, client: &mut KeysClient, rack: u8) -> Outcome {
    let begun = Instant::now();
    client.retire(rack)?;
    let mut asked = Instant::now();
    let is_out = |rows: &BTreeMap<String, String>| {
        let out = rows.get("evenfall_racks_out");
        out.is_some_and(|out| out.split(',').any(|one| one == rack.to_string()))
    };
    while begun.elapsed() < args.patience {
        if args.servers.iter().any(|server| status(*server).is_ok_and(|rows| is_out(&rows))) {
            say!("rack {rack} is out: its replicas may be stopped");
            return Ok(());
        }
        std::thread::sleep(LOOK);
        if asked.elapsed() > ASK_AGAIN {
            // The plan is dropped when another rack was out for a moment, and refused meanwhile.
            client.retire(rack).ok();
            asked = Instant::now();
        }
    }
    Err(format!("rack {rack} is not out yet: look at `evenfall kv status`").into())
}

fn print_range(client: &mut KeysClient, prefix: &str, json: bool) -> Outcome {
    let mut first = prefix.to_owned();
    loop {
        let (all, more) = client.range(prefix, &first, 1_000)?;
        for found in &all {
            match json {
                true => say!("{}", found_json(found)),
                false => {
                    let value = String::from_utf8_lossy(&found.value);
                    say!("{}\t{}", printable(&found.key), printable(&value));
                }
            }
        }
        match all.last() {
            // No key lies between a key and the same key with the least character behind it.
            Some(last) if more => first = format!("{}\0", last.key),
            _ => return Ok(()),
        }
    }
}

fn watch(args: &KvArgs, client: KeysClient, key: &str, below: bool) -> Outcome {
    let json = args.json;
    interrupt::install()?;
    let mut watching = client.watch(key, below)?;
    while !interrupt::raised() {
        let next = match watching.next(LOOK) {
            Ok(Some(next)) => next,
            Ok(None) => continue,
            Err(_) if interrupt::raised() => break,
            Err(error) => {
                aside!("{error}: changes may be missing, watches again");
                watching =
                    KeysClient::new(args.servers.clone(), args.patience).watch(key, below)?;
                continue;
            }
        };
        match json {
            true => say!("{}", json!({ "told": next.told, "key": next.key })),
            false => say!("{} {}", next.told, printable(&next.key)),
        }
    }
    Ok(())
}

/// The values that `kv status` shows of a replica, each with its name in `mntr`.
const SHOWN: [(&str, &str); 10] = [
    ("state", "zk_server_state"),
    ("disk", "evenfall_disk"),
    ("revision", "evenfall_revision"),
    ("cycle", "evenfall_cycle"),
    ("keys", "zk_znode_count"),
    ("sessions", "zk_global_sessions"),
    ("connections", "zk_num_alive_connections"),
    ("at_once", "evenfall_reads_at_once"),
    ("rack", "evenfall_rack"),
    ("racks_out", "evenfall_racks_out"),
];

fn print_status(args: &KvArgs) -> Outcome {
    let mut answered = 0;
    if !args.json {
        let heads: String = SHOWN.iter().map(|(head, _)| format!("{head:>14}")).collect();
        say!("{:<22}{heads}", "replica");
    }
    for replica in &args.servers {
        let rows = match status(*replica) {
            Ok(rows) => rows,
            Err(error) => {
                match args.json {
                    true => {
                        say!("{}", json!({ "replica": replica, "error": error.to_string() }))
                    }
                    false => say!("{:<22}{error}", replica.to_string()),
                }
                continue;
            }
        };
        answered += 1;
        let value = |name: &str| rows.get(name).map_or("", String::as_str).to_owned();
        match args.json {
            true => {
                let mut all = json!({ "replica": replica });
                for (head, name) in SHOWN {
                    let text = value(name);
                    all[head] = text.parse::<u64>().map_or_else(|_| json!(text), |n| json!(n));
                }
                say!("{all}");
            }
            false => {
                let cells: String =
                    SHOWN.iter().map(|(_, name)| format!("{:>14}", value(name))).collect();
                say!("{:<22}{cells}", replica.to_string());
            }
        }
    }
    if answered == 0 {
        return Err("no replica shows its state".into());
    }
    Ok(())
}
