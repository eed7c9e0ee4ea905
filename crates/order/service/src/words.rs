//! ZooKeeper's words of four letters, for people and for monitors.

use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;

use crate::shared::Shared;

/// The answer to a word; `None` for an unknown word.
pub fn answer(word: &[u8; 4], shared: &Shared) -> Option<String> {
    match word {
        b"ruok" => Some("imok".into()),
        b"stat" | b"srvr" => Some(stat(shared)),
        b"mntr" => Some(monitored(shared)),
        b"envi" => Some(format!(
            "Environment:\nzookeeper.version=3.8.0-evenfall {}\n",
            env!("CARGO_PKG_VERSION")
        )),
        b"isro" => Some("rw".into()),
        _ => None,
    }
}

fn stat(shared: &Shared) -> String {
    let keys = shared.keys();
    let c = &shared.counters;
    format!(
        "Zookeeper version: 3.8.0-evenfall {}\nReceived: {}\nConnections: {}\nOutstanding: {}\n\
         Zxid: 0x{:x}\nMode: {}\nNode count: {}\n",
        env!("CARGO_PKG_VERSION"),
        c.requests.load(Relaxed),
        shared.connections(),
        c.waiting.load(Relaxed),
        keys.revision(),
        mode(shared),
        keys.len() + 1,
    )
}

/// No replica leads. Monitors that look for a leader or a follower find a follower.
fn mode(shared: &Shared) -> &'static str {
    if shared.counters.is_member.load(Relaxed) == 1 { "follower" } else { "observer" }
}

fn monitored(shared: &Shared) -> String {
    let (keys, c) = (shared.keys(), &shared.counters);
    let rows = [
        ("zk_server_state", mode(shared).to_owned()),
        ("zk_packets_received", c.requests.load(Relaxed).to_string()),
        ("zk_num_alive_connections", shared.connections().to_string()),
        ("zk_outstanding_requests", c.waiting.load(Relaxed).to_string()),
        ("zk_znode_count", (keys.len() + 1).to_string()),
        ("zk_watch_count", shared.watches().len().to_string()),
        ("zk_approximate_data_size", keys.bytes().to_string()),
        ("zk_global_sessions", keys.sessions().count().to_string()),
        ("evenfall_node", shared.node.to_string()),
        ("evenfall_cycle", c.cycle.load(Relaxed).to_string()),
        ("evenfall_revision", keys.revision().to_string()),
        ("evenfall_connections_accepted", c.accepted.load(Relaxed).to_string()),
        ("evenfall_connections_turned_away", c.turned_away.load(Relaxed).to_string()),
        ("evenfall_connections_malformed", c.malformed.load(Relaxed).to_string()),
    ];
    let mut out = format!("zk_version\t3.8.0-evenfall {}\n", env!("CARGO_PKG_VERSION"));
    for (name, value) in rows {
        let _ = writeln!(out, "{name}\t{value}");
    }
    out
}
