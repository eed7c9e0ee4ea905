//! ZooKeeper's words of four letters, for people and for monitors.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;

use evenfall_keys_machine::jute::op;

use crate::front::Front;
use crate::stats::Latency;

/// The bytes of a word.
pub type FourLetterWord = [u8; 4];

/// All words that a replica knows.
pub const WORDS: [&FourLetterWord; 16] = [
    b"conf", b"cons", b"crst", b"dirs", b"dump", b"envi", b"gtmk", b"isro", b"mntr", b"ruok",
    b"srst", b"srvr", b"stat", b"wchc", b"wchp", b"wchs",
];
/// The version as monitors read it: without blanks, and with a day in the form of ZooKeeper's older
/// builds, because Go's client and Elastic's Beats read no other. The day is that of the version.
const VERSION: &str =
    concat!("3.8.0-evenfall-", env!("CARGO_PKG_VERSION"), ", built on 11/29/2026 00:00 GMT");
/// Longest answer. A longer list is cut.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Whether the first bytes of a connection are a word.
pub fn is_word(first: &FourLetterWord) -> bool {
    WORDS.contains(&first)
}

/// The answer to a word. A word outside `4lw.commands.whitelist` gets ZooKeeper's refusal.
pub fn answer(word: &FourLetterWord, front: &mut Front) -> String {
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
        let (peer, queued) = (connection.peer, connection.queued());
        let _ = write!(out, " /{peer}[1](queued={queued},recved={received},sent={sent}");
        if connection.session != 0 {
            let shown = &connection.shown;
            let latency = &shown.latency;
            let _ = write!(
                out,
                ",sid=0x{:x},lop={},est={},to={},lcxid=0x{:x},lzxid=0x{:x},lresp={},llat={},\
                 minlat={},avglat={},maxlat={}",
                connection.session,
                operation(shown.last_operation),
                shown.established_ms,
                connection.timeout_ms,
                shown.last_xid,
                shown.last_revision,
                shown.last_response_ms,
                shown.last_latency_us / 1_000,
                latency.least_us / 1_000,
                latency.sum_us / 1_000 / latency.count.max(1),
                latency.most_us / 1_000,
            );
        }
        out.push_str(")\n");
    }
    out.push('\n');
    out
}

/// The short name that ZooKeeper gives an operation in `cons`.
fn operation(number: i32) -> &'static str {
    match number {
        op::OPEN => "SESS",
        op::CLOSE => "CLOS",
        op::PING => "PING",
        op::MULTI | op::MULTI_READ => "MULT",
        op::CREATE | op::CREATE2 | op::CREATE_CONTAINER | op::CREATE_TTL => "CREA",
        op::DELETE => "DELE",
        op::SET_DATA => "SETD",
        op::SET_ACL => "SETA",
        op::SYNC | op::SYNC_KEY => "SYNC",
        op::EXISTS => "EXIS",
        op::GET_DATA => "GETD",
        op::GET_ACL => "GETA",
        op::GET_CHILDREN | op::GET_CHILDREN2 => "GETC",
        op::SET_WATCHES | op::SET_WATCHES2 => "SETW",
        _ => "NA",
    }
}

/// Least, mean and longest time of a call, in milliseconds.
fn latency_ms(front: &Front) -> (u64, f64, u64) {
    let Latency { count, sum_us, least_us, most_us } = front.stats.latency;
    (least_us / 1_000, sum_us as f64 / 1_000.0 / count.max(1) as f64, most_us / 1_000)
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

/// The mode that monitors read. No replica leads. Rules of monitors want one leader, so the first
/// replica of those that take part says that it is one. A replica that takes no part, such as one
/// with a full disk, is an observer.
fn mode(front: &Front) -> &'static str {
    let counters = &front.shared.counters;
    let is_alone = front.shared.settings.replica.replicas.len() == 1;
    match (counters.is_member.load(Relaxed), counters.is_first.load(Relaxed)) {
        (true, _) if is_alone => "standalone",
        (true, true) => "leader",
        (true, false) => "follower",
        (false, _) => "observer",
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

/// What `zk_peer_state` says of ZooKeeper's servers, for the same modes.
fn peer_state(front: &Front) -> &'static str {
    match mode(front) {
        "leader" => "leading - broadcast",
        "observer" => "observing - broadcast",
        _ => "following - broadcast",
    }
}

/// Descriptors that this process has open, and how many it may have.
fn descriptors() -> (u64, u64) {
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, |all| all.count() as u64);
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let limit = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    (open, limit.unwrap_or(0))
}

fn monitored(front: &Front) -> String {
    let (keys, shared, stats) = (front.shared.keys(), &front.shared, &front.stats);
    let (least, mean, most) = latency_ms(front);
    let ephemerals = keys.sessions().map(|(id, _)| keys.owned(id).count()).sum::<usize>();
    let waiting = shared.counters.waiting.load(Relaxed);
    let nodes = shared.settings.replica.replicas.len();
    let is_full = shared.counters.is_disk_full.load(Relaxed);
    let members = shared.counters.members.load(Relaxed);
    let (open, open_max) = descriptors();
    let mut rows = vec![
        ("zk_version", VERSION.to_owned()),
        ("zk_server_state", mode(front).to_owned()),
        ("zk_peer_state", peer_state(front).to_owned()),
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
        ("zk_open_file_descriptor_count", open.to_string()),
        ("zk_max_file_descriptor_count", open_max.to_string()),
        ("zk_evenfall_node", shared.settings.replica.node.to_string()),
        ("zk_evenfall_disk", if is_full { "full" } else { "ok" }.to_owned()),
        ("zk_evenfall_cycle", shared.counters.cycle.load(Relaxed).to_string()),
        (
            "zk_evenfall_keys_max_bytes",
            keys.limit().map_or("none".to_owned(), |max| max.to_string()),
        ),
        ("zk_evenfall_lease_cycles", shared.settings.replica.lease_cycles.to_string()),
        ("zk_evenfall_members", members.to_string()),
        ("zk_evenfall_rack", shared.settings.replica.rack().to_string()),
        ("zk_evenfall_racks_out", racks_out(front)),
        ("zk_evenfall_reads_at_once", shared.counters.reads_at_once.load(Relaxed).to_string()),
        ("zk_evenfall_revision", keys.revision().to_string()),
        ("zk_evenfall_connections_accepted", stats.accepted.to_string()),
        ("zk_evenfall_connections_turned_away", stats.turned_away.to_string()),
        ("zk_evenfall_connections_malformed", stats.malformed.to_string()),
        ("zk_evenfall_connections_held_bytes", front.held_bytes.to_string()),
    ];
    if mode(front) == "leader" {
        // ZooKeeper's leader alone has these. Every replica that takes part is in step.
        let others = members.saturating_sub(1).to_string();
        rows.extend([("zk_followers", others.clone()), ("zk_synced_followers", others)]);
    }
    let rows = rows.iter().map(|(name, value)| format!("{name}\t{value}\n"));
    let refused = stats.refusals.all();
    let refused = refused.map(|(name, count)| format!("zk_evenfall_refused_{name}\t{count}\n"));
    rows.chain(refused).collect()
}
