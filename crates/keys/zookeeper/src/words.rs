//! ZooKeeper's words of four letters, for people and for monitors.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;

use crate::front::Front;

/// The bytes of a word.
pub type Word = [u8; 4];

/// All words that a replica knows.
pub const WORDS: [&Word; 16] = [
    b"conf", b"cons", b"crst", b"dirs", b"dump", b"envi", b"gtmk", b"isro", b"mntr", b"ruok",
    b"srst", b"srvr", b"stat", b"wchc", b"wchp", b"wchs",
];
const VERSION: &str = concat!("3.8.0-evenfall ", env!("CARGO_PKG_VERSION"));
/// Longest answer. A longer list is cut.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Whether the first bytes of a connection are a word.
pub fn is_word(first: &Word) -> bool {
    WORDS.contains(&first)
}

/// The answer to a word. A word outside `4lw.commands.whitelist` gets ZooKeeper's refusal.
pub fn answer(word: &Word, front: &mut Front) -> String {
    if !front.shared.settings.zookeeper.words.contains(word) {
        let word = String::from_utf8_lossy(word);
        return format!("{word} is not executed because it is not in the whitelist.\n");
    }
    let mut text = match word {
        b"ruok" => "imok".into(),
        b"isro" => "rw".into(),
        b"gtmk" => "0".into(),
        b"conf" => configuration(front),
        b"cons" => clients(front),
        b"dirs" => {
            let bytes = front.shared.keys().bytes();
            format!("datadir_size: {bytes}\nlogdir_size: {bytes}\n")
        }
        b"dump" => sessions(front),
        b"envi" => format!("Environment:\nzookeeper.version={VERSION}\n"),
        b"mntr" => monitored(front),
        b"srvr" => state(front, false),
        b"stat" => state(front, true),
        b"wchs" => {
            let watches = front.shared.watches();
            let (connections, paths) = (watches.watching().len(), watches.by_path().count());
            let count = watches.len();
            format!("{connections} connections watching {paths} paths\nTotal watches:{count}\n")
        }
        b"wchc" => by_session(front),
        b"wchp" => by_path(front),
        b"srst" => {
            front.stats = Default::default();
            "Server stats reset.\n".into()
        }
        _ => {
            front.connections.values_mut().for_each(|connection| connection.packets = (0, 0));
            "Connection stats reset.\n".into()
        }
    };
    if text.len() > ANSWER_BYTES_MAX {
        let end = (0..=ANSWER_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
    }
    text
}

fn configuration(front: &Front) -> String {
    let (settings, options) = (&front.shared.settings, &front.shared.settings.zookeeper);
    format!(
        "clientPort={}\ndataDir={}\ntickTime={}\nmaxClientCnxns={}\nminSessionTimeout={}\n\
         maxSessionTimeout={}\nserverId={}\n",
        settings.listen.port(),
        settings.replica.directory.display(),
        options.tick_ms,
        options.client_connections_max,
        options.timeouts_ms().0,
        options.timeouts_ms().1,
        settings.replica.node,
    )
}

fn clients(front: &Front) -> String {
    let mut out = String::new();
    for connection in front.connections.values() {
        let (received, sent) = connection.packets;
        let _ = writeln!(
            out,
            " /{}[1](queued={},recved={received},sent={sent},sid=0x{:x},to={})",
            connection.peer,
            connection.queued(),
            connection.session,
            connection.timeout_ms,
        );
    }
    out.push('\n');
    out
}

/// Least, mean and longest time of a call, in milliseconds.
fn latency_ms(front: &Front) -> (u64, f64, u64) {
    let (count, sum, least, most) = front.stats.latency;
    (least / 1_000, sum as f64 / 1_000.0 / count.max(1) as f64, most / 1_000)
}

fn state(front: &Front, with_clients: bool) -> String {
    let (keys, stats) = (front.shared.keys(), &front.stats);
    let (least, mean, most) = latency_ms(front);
    let clients =
        if with_clients { format!("Clients:\n{}", clients(front)) } else { String::new() };
    format!(
        "Zookeeper version: {VERSION}\n{clients}Latency min/avg/max: {least}/{mean:.4}/{most}\n\
         Received: {}\nSent: {}\nConnections: {}\nOutstanding: {}\nZxid: 0x{:x}\nMode: {}\n\
         Node count: {}\n",
        stats.received,
        stats.sent,
        front.connections.len(),
        front.shared.counters.waiting.load(Relaxed),
        keys.revision(),
        mode(front),
        keys.len(),
    )
}

/// The mode that monitors read. No replica leads. A replica that takes part is a follower, and any
/// other replica, such as one with a full disk, is an observer.
fn mode(front: &Front) -> &'static str {
    match front.shared.counters.is_member.load(Relaxed) {
        true => "follower",
        false => "observer",
    }
}

fn sessions(front: &Front) -> String {
    let keys = front.shared.keys();
    let mut by_timeout: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
    for (id, session) in keys.sessions() {
        by_timeout.entry(session.timeout_ms).or_default().insert(id);
    }
    let mut out = format!("Session Sets ({})/({}):\n", by_timeout.len(), keys.sessions().count());
    for (timeout_ms, ids) in by_timeout {
        let _ = writeln!(out, "{} with a timeout of {timeout_ms} ms:", ids.len());
        ids.iter().for_each(|id| {
            let _ = writeln!(out, "\t0x{id:x}");
        });
    }
    let owners: Vec<u64> =
        keys.sessions().map(|(id, _)| id).filter(|id| keys.owned(*id).next().is_some()).collect();
    let _ = writeln!(out, "Sessions with Ephemerals ({}):", owners.len());
    for id in owners {
        let _ = writeln!(out, "0x{id:x}:");
        keys.owned(id).for_each(|key| {
            let _ = writeln!(out, "\t{key}");
        });
    }
    out
}

/// The session of a connection, as ZooKeeper prints it.
fn session(front: &Front, connection: u64) -> String {
    let known = front.connections.get(&connection);
    format!("0x{:x}", known.map_or(0, |connection| connection.session))
}

fn by_session(front: &Front) -> String {
    let watches = front.shared.watches();
    let mut paths: BTreeMap<u64, BTreeSet<&str>> = BTreeMap::new();
    for (path, connections) in watches.by_path() {
        connections.for_each(|connection| {
            paths.entry(connection).or_default().insert(path);
        });
    }
    let mut out = String::new();
    for (connection, paths) in paths {
        let _ = writeln!(out, "{}", session(front, connection));
        paths.iter().for_each(|path| {
            let _ = writeln!(out, "\t{path}");
        });
    }
    out
}

fn by_path(front: &Front) -> String {
    let watches = front.shared.watches();
    let mut out = String::new();
    for (path, connections) in watches.by_path() {
        let _ = writeln!(out, "{path}");
        let connections: BTreeSet<u64> = connections.collect();
        connections.iter().for_each(|connection| {
            let _ = writeln!(out, "\t{}", session(front, *connection));
        });
    }
    out
}

/// The racks that take no part, with a comma between two.
fn racks_out(front: &Front) -> String {
    let bits = front.shared.counters.racks_out.load(Relaxed);
    let numbers = front.shared.settings.replica.racks.numbers();
    let out = numbers.iter().enumerate().filter(|(at, _)| bits & 1 << at != 0);
    let out: Vec<String> = out.map(|(_, rack)| rack.to_string()).collect();
    if out.is_empty() { "none".to_owned() } else { out.join(",") }
}

fn monitored(front: &Front) -> String {
    let (keys, shared, stats) = (front.shared.keys(), &front.shared, &front.stats);
    let (least, mean, most) = latency_ms(front);
    let ephemerals = keys.sessions().map(|(id, _)| keys.owned(id).count()).sum::<usize>();
    let waiting = shared.counters.waiting.load(Relaxed);
    let nodes = shared.settings.replica.replicas.len();
    let is_full = shared.counters.is_disk_full.load(Relaxed);
    let rows = [
        ("zk_version", VERSION.to_owned()),
        ("zk_server_state", mode(front).to_owned()),
        ("zk_peer_state", "following - broadcast".to_owned()),
        ("zk_avg_latency", format!("{mean:.4}")),
        ("zk_max_latency", most.to_string()),
        ("zk_min_latency", least.to_string()),
        ("zk_packets_received", stats.received.to_string()),
        ("zk_packets_sent", stats.sent.to_string()),
        ("zk_num_alive_connections", front.connections.len().to_string()),
        ("zk_outstanding_requests", waiting.to_string()),
        ("zk_znode_count", keys.len().to_string()),
        ("zk_watch_count", shared.watches().len().to_string()),
        ("zk_ephemerals_count", ephemerals.to_string()),
        ("zk_approximate_data_size", keys.bytes().to_string()),
        ("zk_global_sessions", keys.sessions().count().to_string()),
        ("zk_local_sessions", "0".to_owned()),
        ("zk_uptime", front.started.elapsed().as_millis().to_string()),
        ("zk_quorum_size", nodes.to_string()),
        ("evenfall_node", shared.settings.replica.node.to_string()),
        ("evenfall_disk", if is_full { "full" } else { "ok" }.to_owned()),
        ("evenfall_cycle", shared.counters.cycle.load(Relaxed).to_string()),
        ("evenfall_keys_max_bytes", keys.limit().map_or("none".to_owned(), |max| max.to_string())),
        ("evenfall_lease_cycles", shared.settings.replica.lease_cycles.to_string()),
        ("evenfall_members", shared.counters.members.load(Relaxed).to_string()),
        ("evenfall_rack", shared.settings.replica.rack().to_string()),
        ("evenfall_racks_out", racks_out(front)),
        ("evenfall_reads_at_once", shared.counters.reads_at_once.load(Relaxed).to_string()),
        ("evenfall_revision", keys.revision().to_string()),
        ("evenfall_connections_accepted", stats.accepted.to_string()),
        ("evenfall_connections_turned_away", stats.turned_away.to_string()),
        ("evenfall_connections_malformed", stats.malformed.to_string()),
        ("evenfall_connections_held_bytes", front.held_bytes.to_string()),
    ];
    rows.iter().map(|(name, value)| format!("{name}\t{value}\n")).collect()
}
