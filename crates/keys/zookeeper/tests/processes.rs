//! Three replicas as processes, one of which is killed.
//!
//! The program of tests starts itself: with the variable set, the test [`replica`] is a replica.

use std::io::{BufRead as _, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use evenfall_consensus_replica::{RackSettings, SecondRound};
use evenfall_core::SharedKey;
use evenfall_keys_client::{ClientError, KeysClient, status};
use evenfall_keys_machine::jute::{Fields, JuteMessage, error, op};
use evenfall_keys_machine::{Existing, KeyLifetime, KeyOperation};
use evenfall_keys_zookeeper::{Options, Settings};

/// Tells a process which replica it is: its number, its directory, options of ZooKeeper, and the
/// addresses of all.
const REPLICA: &str = "EVENFALL_TEST_REPLICA";
/// Tells a process its `lease_cycles`.
const LEASES: &str = "EVENFALL_TEST_LEASES";
/// Tells a process the number of racks.
const RACKS: &str = "EVENFALL_TEST_RACKS";
/// A machine may stop this process for minutes.
pub const PATIENCE: Duration = Duration::from_secs(300);

#[test]
fn replica() {
    let Ok(text) = std::env::var(REPLICA) else { return };
    let mut words = text.split(' ');
    let node: usize = words.next().and_then(|word| word.parse().ok()).expect("a number");
    let directory = words.next().expect("a directory").into();
    let mut zookeeper = Options::default();
    zookeeper.set("maxSessionTimeout=600000").expect("an option");
    let mut replicas: Vec<SocketAddr> = Vec::new();
    for word in words {
        match word.contains('=') {
            true => zookeeper.set(word).expect("an option"),
            false => replicas.push(word.parse().expect("an address")),
        }
    }
    let listen = replicas[node];
    // Replicas on one host need no key. With one, what they tell each other is sealed.
    let key = Some(SharedKey::new(1, [7; 32]));
    let bytes_max = Some(64 << 20);
    let leases = std::env::var(LEASES).ok().and_then(|cycles| cycles.parse().ok());
    let lease_cycles = leases.unwrap_or(0);
    let count = std::env::var(RACKS).ok().and_then(|racks| racks.parse().ok()).unwrap_or(1);
    let of = (0..replicas.len()).map(|n| (n * count / replicas.len()) as u8).collect();
    let second_round = if count > 2 { SecondRound::Consensus } else { SecondRound::Off };
    let racks = RackSettings { of, second_round, round_trip: Duration::ZERO };
    let replica = evenfall_consensus_replica::Settings {
        node,
        replicas,
        directory,
        lease_cycles,
        racks,
        key,
    };
    let settings = Settings { replica, listen, bytes_max, zookeeper };
    evenfall_keys_zookeeper::run(&settings, None, || {}).expect("a replica");
}

/// A port that is free for both protocols. The address is of this test alone.
pub fn free(host: u8) -> SocketAddr {
    evenfall_host::ports::free(Ipv4Addr::new(127, 0, 77, host).into()).expect("a port")
}

/// Starts a replica.
pub fn start(node: usize, directory: &Path, replicas: &[SocketAddr]) -> Child {
    start_with(node, directory, replicas, (LEASES, 0))
}

/// Starts a replica with a setting.
fn start_with(
    node: usize,
    directory: &Path,
    replicas: &[SocketAddr],
    (name, value): (&str, u64),
) -> Child {
    let own = directory.join(node.to_string());
    let all: Vec<String> = replicas.iter().map(ToString::to_string).collect();
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "processes::replica", "--nocapture"])
        .env(REPLICA, format!("{node} {} {}", own.display(), all.join(" ")))
        .env(name, value.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("a process")
}

/// Processes that end with the test, however it ends.
pub struct Replicas(pub Vec<Child>);

impl Drop for Replicas {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// Sets a key.
pub fn put(client: &mut KeysClient, key: &str, value: u32) {
    let op = KeyOperation::put(key, value.to_string(), Existing::Any(true));
    client.change(vec![op]).expect("a majority lives");
}

/// Every put was made once: the version counts them.
fn expect(client: &mut KeysClient, key: &str, puts: u32) {
    let found = client.get(key).expect("a majority lives").expect("the key");
    let value: u32 = std::str::from_utf8(&found.value).expect("digits").parse().expect("digits");
    assert_eq!((found.stat.version, value), (puts - 1, puts - 1), "{key}");
}

/// A key that ends with the session of its client.
fn mark(client: &mut KeysClient, name: &str) -> u64 {
    let (key, value, existing) = (format!("/{name}"), None, Existing::None);
    let (kind, numbered, rights) = (KeyLifetime::Ephemeral, false, Vec::new());
    let mark = KeyOperation::Put { key, value, existing, kind, numbered, rights };
    let made = client.change(vec![mark]).expect("a majority lives");
    made[0].stat.owner
}

/// Each replica is killed twice, and six of seven puts come while one is down or comes back.
#[test]
fn answers_and_sessions_survive_kill_9_of_each_replica_and_each_put_is_made_once() {
    const KILLS: usize = 6;
    const PUTS: u32 = 140;
    let directory = tempfile::tempdir().expect("a directory");
    let addresses: Vec<SocketAddr> = (1..=3).map(free).collect();
    let begin = |node| start(node, directory.path(), &addresses);
    let mut replicas = Replicas((0..3).map(begin).collect());
    let names = ["one", "two", "three"];
    std::thread::scope(|scope| {
        for (turn, name) in names.iter().enumerate() {
            let mut order = addresses.clone();
            order.rotate_left(turn);
            scope.spawn(move || {
                let mut client = KeysClient::new(order, PATIENCE);
                let session = mark(&mut client, name);
                (0..PUTS).for_each(|value| put(&mut client, name, value));
                let mark = client.get(&format!("/{name}")).expect("a majority lives");
                assert_eq!(mark.map(|mark| mark.stat.owner), Some(session), "{name}");
            });
        }
        let mut watch = KeysClient::new(addresses.clone(), PATIENCE);
        for kill in 0..KILLS {
            // Some puts of the first client are there, and some are still to come.
            let node = kill % 3;
            let enough = (kill as u32 + 1) * PUTS / (KILLS as u32 + 1);
            let is_there = |found: &evenfall_keys_client::FoundKey| found.stat.version >= enough;
            while !watch.get("one").expect("a majority lives").is_some_and(|f| is_there(&f)) {
                std::thread::sleep(Duration::from_millis(10));
            }
            replicas.0[node].kill().expect("a process");
            replicas.0[node].wait().expect("a process");
            replicas.0[node] = begin(node);
        }
    });
    let mut client = KeysClient::new(addresses.clone(), PATIENCE);
    names.iter().for_each(|name| expect(&mut client, name, PUTS));
    drop(client);

    // All end at once, and go on from their directories.
    drop(replicas);
    let replicas = Replicas((0..3).map(begin).collect());
    for at in &addresses {
        let mut client = KeysClient::new(vec![*at], PATIENCE);
        names.iter().for_each(|name| expect(&mut client, name, PUTS));
    }
    drop(replicas);
}

/// A replica that loses its directory comes back with an empty one, and serves what the others
/// have. Then a second replica loses its own, and the first one counts for the majority.
#[test]
fn a_replica_that_lost_its_directory_comes_back_and_each_put_is_made_once() {
    const PUTS: u32 = 40;
    let directory = tempfile::tempdir().expect("a directory");
    let addresses: Vec<SocketAddr> = (11..=13).map(free).collect();
    let begin = |node| start(node, directory.path(), &addresses);
    let mut replicas = Replicas((0..3).map(begin).collect());
    let mut client = KeysClient::new(addresses.clone(), PATIENCE);
    let mut puts = 0;
    let mut put_some = |client: &mut KeysClient| {
        (0..PUTS).for_each(|more| put(client, "kept", puts + more));
        puts += PUTS;
        puts
    };
    put_some(&mut client);
    for node in 0..3_usize {
        replicas.0[node].kill().expect("a process");
        replicas.0[node].wait().expect("a process");
        std::fs::remove_dir_all(directory.path().join(node.to_string())).expect("its directory");
        put_some(&mut client);
        let begun = std::time::Instant::now();
        replicas.0[node] = begin(node);
        // A read waits for a cycle in which this replica proposes.
        let mut own = KeysClient::new(vec![addresses[node]], PATIENCE);
        let made = put_some(&mut client);
        expect(&mut own, "kept", made);
        println!("replica {node} serves {:?} after its start", begun.elapsed());
        // The returned replica is needed for the majority.
        let other = (node + 1) % 3;
        replicas.0[other].kill().expect("a process");
        replicas.0[other].wait().expect("a process");
        let made = put_some(&mut client);
        expect(&mut own, "kept", made);
        replicas.0[other] = begin(other);
        expect(&mut KeysClient::new(vec![addresses[other]], PATIENCE), "kept", made);
    }
}

/// A replica answers reads of a key that nobody changes at once. A read of a key that a client of
/// another replica changes has every change that was answered before the read began.
#[test]
fn reads_under_write_leases_are_answered_at_once_and_miss_no_answered_change() {
    const PUTS: u32 = 100;
    let directory = tempfile::tempdir().expect("a directory");
    let addresses: Vec<SocketAddr> = (14..=16).map(free).collect();
    let begin = |node| start_with(node, directory.path(), &addresses, (LEASES, 16));
    let mut replicas = Replicas((0..3).map(begin).collect());
    let mut client = KeysClient::new(vec![addresses[0]], PATIENCE);
    put(&mut client, "calm", 0);
    let answered = AtomicU32::new(0);
    let reads = std::thread::scope(|scope| {
        scope.spawn(|| {
            for value in 1..=PUTS {
                put(&mut client, "busy", value);
                answered.store(value, SeqCst);
            }
        });
        let read = |at: SocketAddr| {
            let answered = &answered;
            scope.spawn(move || {
                let mut client = KeysClient::new(vec![at], PATIENCE);
                let mut reads = 0;
                while answered.load(SeqCst) < PUTS {
                    let before = answered.load(SeqCst);
                    let found = client.get("busy").expect("a majority lives");
                    let value = found.map_or(0, |found| found.stat.version + 1);
                    assert!(value >= before, "{value} after {before} was answered");
                    expect(&mut client, "calm", 1);
                    reads += 2;
                }
                reads
            })
        };
        let readers = [read(addresses[1]), read(addresses[2])];
        readers.map(|reader| reader.join().expect("no stale read"))
    });
    let at_once = |at: &SocketAddr| {
        let rows = status(*at).expect("a replica");
        rows["evenfall_reads_at_once"].parse::<u64>().expect("a number")
    };
    let counts: Vec<u64> = addresses.iter().map(at_once).collect();
    println!("{reads:?} reads at two replicas, {counts:?} of them at once");
    assert!(counts[1] > 0 && counts[2] > 0);

    // A log keeps the length of its leases.
    replicas.0[2].kill().expect("a process");
    replicas.0[2].wait().expect("a process");
    replicas.0[2] = start_with(2, directory.path(), &addresses, (LEASES, 8));
    assert!(!replicas.0[2].wait().expect("a process").success(), "another length is refused");
}

/// A command that runs a script with kazoo, a client of ZooKeeper in Python. The result is `None`
/// when kazoo, which `scripts/deps.sh` installs, is missing.
fn kazoo(script: &str, addresses: &[SocketAddr]) -> Option<Command> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = folder.join("../../../target/venv-zookeeper/bin/python");
    if !python.exists() {
        println!("skipped: no kazoo (scripts/deps.sh installs it)");
        return None;
    }
    let hosts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let mut command = Command::new(python);
    command.arg(folder.join("tests").join(script)).arg(hosts.join(","));
    Some(command)
}

#[test]
fn a_client_of_zookeeper_finds_what_it_expects() {
    let directory = tempfile::tempdir().expect("a directory");
    let addresses: Vec<SocketAddr> = (4..=6).map(free).collect();
    let Some(mut script) = kazoo("zookeeper.py", &addresses) else { return };
    let begin = |node| start(node, directory.path(), &addresses);
    let replicas = Replicas((0..3).map(begin).collect());
    let said = script.output().expect("Python");
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success() && out.contains("all there"), "{out}\n{err}");
    drop(replicas);
}

/// Each replica is killed twice, as in the test with evenfall's own client.
#[test]
fn a_client_of_zookeeper_loses_no_write_and_no_session_when_replicas_are_killed() {
    const KILLS: usize = 6;
    const WRITES: usize = 140;
    let directory = tempfile::tempdir().expect("a directory");
    let addresses: Vec<SocketAddr> = (8..=10).map(free).collect();
    let Some(mut script) = kazoo("killed.py", &addresses) else { return };
    let begin = |node| start(node, directory.path(), &addresses);
    let mut replicas = Replicas((0..3).map(begin).collect());
    let script = script.arg(WRITES.to_string()).stdout(Stdio::piped());
    let mut client = Replicas(vec![script.spawn().expect("Python")]);
    let said = client.0[0].stdout.take().expect("a pipe");
    let mut lines = std::io::BufReader::new(said).lines().map(|line| line.expect("text"));
    for kill in 0..KILLS {
        let enough = ((kill + 1) * WRITES / (KILLS + 1)).to_string();
        assert!(lines.any(|number| number == enough), "the client ended early");
        let node = kill % 3;
        replicas.0[node].kill().expect("a process");
        replicas.0[node].wait().expect("a process");
        replicas.0[node] = begin(node);
    }
    assert_eq!(lines.last().as_deref(), Some("all there"));
}

/// A client that says who it is, and nothing else.
fn idle(at: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(at).expect("room for another");
    let hello =
        JuteMessage::default().int(0).long(0).int(600_000).long(0).buffer(&[0; 16]).bool(false);
    stream.write_all(&hello.finish()).expect("sent");
    stream
}

/// The next message to a client.
pub fn answer(stream: &mut TcpStream) -> Vec<u8> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).expect("an answer");
    evenfall_keys_client::frame(length, stream, 1 << 20).expect("an answer")
}

/// Memory that a process has in use.
fn resident_bytes(process: &Child) -> u64 {
    let path = format!("/proc/{}/status", process.id());
    let status = std::fs::read_to_string(path).expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("KiB") << 10
}

#[test]
fn ten_thousand_idle_sessions_and_watches_take_little_memory() {
    const SESSIONS: usize = 10_000;
    /// Measured are 18.5 MB. The rest is room for allocators.
    const BYTES_MAX: u64 = 64 << 20;
    let files = evenfall_host::procstat::raise_files().unwrap_or(u64::MAX);
    if files < SESSIONS as u64 + 500 {
        println!("skipped: a process may have only {files} files open");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let at = free(7);
    let replica = Replicas(vec![start(0, directory.path(), &[at])]);
    drop(KeysClient::new(vec![at], PATIENCE).get("ready").expect("the replica starts"));
    let before = resident_bytes(&replica.0[0]);
    let mut idle: Vec<TcpStream> = (0..SESSIONS).map(|_| idle(at)).collect();
    for stream in &mut idle {
        assert_ne!(Fields::new(&answer(stream)[8..]).long(), Ok(0), "a session");
    }
    let watching = &mut idle[0];
    let mut asks = Vec::new();
    for n in 0..SESSIONS {
        let path = format!("/none-{n:05}");
        let ask = JuteMessage::default().int(1 + n as i32).int(op::EXISTS).text(&path).bool(true);
        asks.extend(ask.finish());
    }
    let mut reads = watching.try_clone().expect("a descriptor");
    std::thread::scope(|scope| {
        scope.spawn(|| watching.write_all(&asks).expect("taken"));
        for _ in 0..SESSIONS {
            let answered = answer(&mut reads);
            assert_eq!(Fields::new(&answered[12..]).int(), Ok(error::NO_NODE));
        }
    });
    let more = resident_bytes(&replica.0[0]).saturating_sub(before);
    println!("{SESSIONS} idle sessions and {SESSIONS} watches: {more} bytes");
    assert!(more < BYTES_MAX, "{more} bytes");

    // All are served still: the last watch is told, and the last session has its connection.
    put(&mut KeysClient::new(vec![at], PATIENCE), &format!("/none-{:05}", SESSIONS - 1), 1);
    let told = answer(&mut reads);
    assert_eq!(Fields::new(&told).int(), Ok(-1), "an event");
    let last = idle.last_mut().expect("sessions");
    last.write_all(&JuteMessage::default().int(-2).int(op::PING).finish()).expect("sent");
    assert_eq!(Fields::new(&answer(last)).int(), Ok(-2), "a ping");
}

/// One host of each rack dies and comes back, then a whole rack, and another rack leaves as planned
/// and comes back. A client of the first rack changes a key all the time. With --nocapture the test
/// prints the longest change in each phase.
#[test]
fn a_rack_may_die_or_leave_as_planned_while_the_others_go_on() {
    let directory = tempfile::tempdir().expect("a directory");
    let addresses: Vec<SocketAddr> = (11..=19).map(free).collect();
    let begin = |node| start_with(node, directory.path(), &addresses, (RACKS, 3));
    let mut replicas = Replicas((0..9).map(begin).collect());
    let mut client = KeysClient::new(addresses[1..3].to_vec(), PATIENCE);
    let mut puts = 0;
    let mut puts_until = |what: &str, is_over: &dyn Fn() -> bool| {
        let mut longest = Duration::ZERO;
        while !is_over() {
            let begun = std::time::Instant::now();
            put(&mut client, "key", puts);
            longest = longest.max(begun.elapsed());
            puts += 1;
        }
        println!("{what}: the longest change took {} ms", longest.as_millis());
        puts
    };
    let row = |node: usize, name: &str, value: &str| {
        status(addresses[node]).is_ok_and(|rows| rows.get(name).map(String::as_str) == Some(value))
    };
    let takes_part = |nodes: [usize; 3]| {
        row(1, "evenfall_racks_out", "none")
            && nodes.iter().all(|node| {
                status(addresses[*node]).is_ok_and(|rows| rows["zk_server_state"] != "observer")
            })
    };
    let kill = |replicas: &mut Replicas, nodes: [usize; 3]| {
        for node in nodes {
            replicas.0[node].kill().expect("a process of ours");
            replicas.0[node].wait().expect("a process of ours");
        }
    };
    let restart = |replicas: &mut Replicas, nodes: [usize; 3]| {
        nodes.iter().for_each(|node| replicas.0[*node] = begin(*node));
    };
    let (zone, second, third) = ([0, 3, 6], [3, 4, 5], [6, 7, 8]);
    puts_until("start", &|| [zone, second, third].into_iter().all(takes_part));
    kill(&mut replicas, zone);
    puts_until("a host of each rack dies", &|| row(1, "evenfall_members", "6"));
    restart(&mut replicas, zone);
    puts_until("the hosts come back", &|| takes_part(zone));
    kill(&mut replicas, third);
    puts_until("a rack dies", &|| row(1, "evenfall_racks_out", "2"));
    restart(&mut replicas, third);
    puts_until("the rack comes back", &|| takes_part(third));
    kill(&mut replicas, third);
    for node in third {
        std::fs::remove_dir_all(directory.path().join(node.to_string())).expect("a directory");
    }
    restart(&mut replicas, third);
    puts_until("a rack comes back without its disks", &|| takes_part(third));
    let retire = |rack| KeysClient::new(vec![addresses[6]], PATIENCE).retire(rack);
    assert!(matches!(retire(7), Err(ClientError::Rack(7, _))), "no such rack");
    puts_until("a rack leaves as planned", &|| {
        let is_out = row(1, "evenfall_racks_out", "1");
        if !is_out {
            // While another rack is out, the plan is refused.
            retire(1).ok();
        }
        is_out
    });
    kill(&mut replicas, second);
    put(&mut KeysClient::new(vec![addresses[8]], PATIENCE), "without", 0);
    restart(&mut replicas, second);
    let all = puts_until("the rack comes back", &|| takes_part(second));
    for node in [0, 3, 8] {
        expect(&mut KeysClient::new(vec![addresses[node]], PATIENCE), "key", all);
    }
}
