//! `evenfall config default`: every default, as a file to begin with. Keys that are absent by
//! default stand in it as comments, and so does a small run.

use super::defaults;

/// Keys without a default: the table with the key, an example, and the behaviour without the key.
const ABSENT: &[(&str, &str, &str)] = &[
    ("run", "key_file = \"evenfall.key\"", "none: nothing leaves loopback"),
    ("run", "master_key_file = \"master.key\"", "none: all nodes have one key"),
    ("run", "node_key_file = \"keys/{name}.key\"", "none: all nodes have one key"),
    ("feed", "file = \"day.itch50\"", "none: the feed is generated"),
    ("feed", "format = \"itch\"", "none: recognised by the content; a live feed is ITCH"),
    ("feed", "arbitrate = true", "none: the first copy, where two sides are recognised"),
    ("feed", "mold = \"239.1.1.1:26400\"", "none: no live MoldUDP64 feed"),
    ("feed", "mold_b = \"239.1.1.2:26400\"", "none: no redundant side"),
    ("feed", "mold_request = \"10.0.0.1:26401\"", "none: missing messages are not asked for again"),
    ("feed", "mold_interface = \"10.0.0.2\"", "none: the routing table chooses"),
    ("feed", "mold_from = 1", "none: the first message that arrives"),
    ("feed", "rate = 5000.0", "none: the messages' own times"),
    ("feed", "fit = \"30s\"", "none: the speed of `speed`"),
    ("feed", "silence = \"1s\"", "none: silences stay"),
    ("io", "spin = \"100us\"", "none: chosen by cores and processes"),
    ("io", "kernel_busy_poll = \"50us\"", "none: the kernel polls no card"),
    ("io", "moderation = \"2ms\"", "none: chosen by cores and processes"),
    ("io", "real_time = 50", "none: chosen by cores and processes"),
    ("inject", "file = \"delays.txt\"", "none: nothing is delayed"),
    ("clock", "steps = \"steps\"", "none: no host's clock steps"),
    ("clock", "plant = \"20ms,100ppm\"", "none: clocks are as they are"),
    ("trust", "signing_key_file = \"signing.key\"", "none: the root signs nothing"),
    ("survey", "results = \"runs\"", "none: the agent gives out no runs"),
    ("store", "objects = \"objects\"", "none: where the store's directory remembers"),
    ("store", "names = \"keys://127.0.0.1:21811/name\"", "none: names of its own"),
    ("store", "replica = \"127.0.0.1:7411\"", "none: no second node"),
    ("store", "replica_key_file = \"replica.key\"", "none: the second node is on this machine"),
    ("store", "primary_key_file = \"reader.key\"", "none: the other nodes are on this machine"),
    ("store", "users_file = \"users.toml\"", "none: programs on this machine, without keys"),
    ("store", "keep_bytes = 1000000000", "none: all records are kept"),
    ("store", "upload_bytes_per_s = 100000000", "none: no limit"),
    ("keys", "limit_mib = 512", "none: 256"),
    ("keys", "membership = \"etcd://127.0.0.1:2379/keys\"", "none: no service outside"),
    ("multicast.shape", "depth = 2", "none: follows from the number of receivers"),
    ("multicast.shape", "fanout = 10", "none: 10, or the smallest for the depth"),
];

/// A run on one machine.
const NODES: &str = r#"
# One [[node]] per process. Names and ids are unique; only the root's port must be known.
#
# [[node]]
# name = "root"
# id = 1
# role = "root"
# address = "127.0.0.1:9000"
# http = "127.0.0.1:9180"
#
# [[node]]
# name = "proxy-1"
# id = 2
# role = "proxy"
# address = "127.0.0.1:0"
#
# [[node]]
# name = "receiver-1"
# id = 3
# role = "receiver"
# address = "127.0.0.1:0"
"#;

/// A settings file with every default, and all other keys as comments.
pub fn default_file() -> String {
    let defaults = toml::to_string(&defaults()).expect("settings are plain tables");
    let mut file = String::from("# docs/configuration.md says what each key does.\n\n");
    for table in defaults.split_inclusive("\n\n") {
        let heading = table.lines().next().unwrap_or_default();
        file.push_str(table.trim_end());
        for (of, example, why) in ABSENT {
            if heading == format!("[{of}]") {
                file.push_str(&format!("\n# {example}  # {why}"));
            }
        }
        file.push_str("\n\n");
    }
    file.truncate(file.trim_end().len());
    file + "\n" + NODES
}
