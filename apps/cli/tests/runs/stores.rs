//! A feed is recorded, compared with its file and read back: after a clean stop, after `kill -9`,
//! from objects alone, and by other programs.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::common::{
    Said, Scratch, data, evenfall, eventually, feed_file, finish, is_root, say, signal, start_demo,
};

const MESSAGES: u64 = 1_500;

struct Recorded {
    scratch: Scratch,
    feed: String,
    dir: PathBuf,
}

impl Recorded {
    /// A feed file, and where it will be recorded.
    fn prepare(messages: u64) -> Self {
        let scratch = Scratch::new();
        let feed = scratch.path("feed.itch50");
        fs::write(&feed, feed_file(messages).0).expect("a feed");
        let (feed, dir) = (feed.display().to_string(), scratch.path("store"));
        Self { scratch, feed, dir }
    }

    fn demo(&self, more: &[&str]) -> std::process::Child {
        let dir = self.dir.display().to_string();
        let always = ["--feed", &self.feed, "--receivers", "2", "--fanout", "2", "--record", &dir];
        start_demo(&self.scratch, &[&always[..], more].concat())
    }

    fn store(&self, words: &[&str]) -> Said {
        store(&self.dir, words)
    }

    /// The root's signatures are in the recording of a demo with `--signed`, and no other key made
    /// them.
    fn expect_signed(&self) {
        let public = self.scratch.path("run").join("signing-root.key.pub").display().to_string();
        let said = self.store(&["verify", "--signer", &public]);
        assert!(said.ok, "{}{}", said.out, said.err);
        assert!(said.out.contains("recording feed: 1507 messages in "), "{}", said.out);
        assert!(!said.out.contains("note:"), "{}", said.out);
        let other = format!("ed25519:{}", "5a".repeat(32));
        let said = self.store(&["verify", "--signer", &other]);
        let why = "none of the given signers made this signature";
        assert!(!said.ok && said.err.contains(why), "{}{}", said.out, said.err);
    }

    /// Runs `store verify` with the feed.
    fn verify(&self, more: &[&str]) -> Said {
        self.store(&[&["verify", "--feed", &self.feed][..], more].concat())
    }
}

/// `evenfall store VERB DIR ...`.
fn store(dir: &Path, words: &[&str]) -> Said {
    let dir = dir.display().to_string();
    say(&[&["store", words[0], &dir][..], &words[1..]].concat())
}

/// Every file below, with its bytes.
fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            all.extend(contents(&path));
        } else {
            let bytes = fs::read(&path).expect("a file");
            all.push((path, bytes));
        }
    }
    all.sort();
    all
}

#[test]
fn recorded_demo_equals_the_feed_and_reads_by_symbol_also_from_objects_alone() {
    let recorded = Recorded::prepare(MESSAGES);
    let said = finish(recorded.demo(&["--fit", "1s", "--trees", "2", "--signed"]));
    assert!(said.ok, "{}", said.err);
    // Seven messages concern the whole market and go by both trees.
    assert!(said.err.contains("1507 messages recorded"), "{}", said.err);
    // The recorder is a leaf of the tree and does not count as a receiver.
    let json: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!((&json["receivers"], &json["orphans"]), (&2.into(), &0.into()), "{json}");
    assert_eq!((&json["delivered"], &json["warnings"]), (&3_014.into(), &Vec::<u8>::new().into()));
    let before = contents(&recorded.dir);
    let said = recorded.verify(&[]);
    assert!(said.ok, "{}{}", said.out, said.err);
    assert!(said.out.contains("recording feed equals the feed: 1507 messages"), "{}", said.out);
    recorded.expect_signed();

    let all = recorded.store(&["read", "feed"]);
    let lines: Vec<&str> = all.out.lines().collect();
    assert_eq!(lines.len() as u64, MESSAGES + 7 + 1, "{}", all.err);
    // Each message of a live feed keeps the format that the root read it by.
    assert!(lines[1..].iter().all(|line| line.split(',').nth(3) == Some("itch")), "{}", lines[1]);
    let cells: Vec<&str> = lines[700].split(',').collect();
    let (time, symbol) = (cells[2], cells[8]);
    let one = recorded.store(&["read", &symbol.to_lowercase(), "--from", time, "--to", time]);
    assert!(one.out.contains(lines[700]), "{}{}", one.out, one.err);
    assert!(one.out.lines().skip(1).all(|line| line.split(',').nth(8) == Some(symbol)));
    let none = recorded.store(&["read", &format!("{symbol}Z")]);
    assert!(none.err.contains("; the nearest are ") && none.err.contains(symbol), "{}", none.err);
    let last = recorded.store(&["tail", "feed", "-n", "3", "--format", "json"]);
    assert_eq!(last.out.lines().count(), 3, "{}", last.err);
    assert_eq!(contents(&recorded.dir), before, "reading and verifying changed the directory");

    let objects = recorded.scratch.path("elsewhere");
    fs::rename(recorded.dir.join("objects"), &objects).expect("objects");
    fs::remove_dir_all(&recorded.dir).expect("the disk is gone");
    assert_eq!(store(&objects, &["read", "feed", "--objects"]).out, all.out);
    let said = store(&objects, &["verify", "--objects", "--feed", &recorded.feed]);
    assert!(said.ok && said.out.contains("equals the feed"), "{}{}", said.out, said.err);
}

#[test]
fn recording_that_was_killed_holds_the_beginning_of_the_feed() {
    let recorded = Recorded::prepare(4_000);
    let mut demo = recorded.demo(&["--fit", "8s"]);
    let objects = recorded.dir.join("objects");
    // The test waits for a publication of a second of messages, with packs, metadata and the
    // catalogue, while the feed still runs.
    eventually("a publication", || {
        let published = store(&objects, &["read", "feed", "--objects"]).out.lines().count();
        (published > 500).then_some(())
    });
    demo.kill().expect("kill -9");
    finish(demo);
    let said = recorded.verify(&[]);
    assert!(!said.ok && said.err.contains("--partial"), "{}{}", said.out, said.err);
    let said = recorded.verify(&["--partial"]);
    assert!(said.ok, "{}{}", said.out, said.err);
    assert!(said.out.contains("holds the first"), "{}", said.out);
    let rows = recorded.store(&["read", "feed"]).out.lines().count();
    assert!(rows > 500, "{rows}");

    // The objects have the published messages, and no message that the disk lacks.
    let published = store(&objects, &["read", "feed", "--objects"]).out.lines().count();
    assert!(published > 1 && published <= rows, "{published} of {rows}");
    let said = store(&objects, &["verify", "--objects", "--feed", &recorded.feed, "--partial"]);
    assert!(said.ok, "{}{}", said.out, said.err);

    // A process that opens the store to write continues after these messages and loses no further
    // message.
    let said =
        recorded.store(&["append", "later", "--feed", &recorded.feed, "--date", "2026-11-20"]);
    assert!(said.ok, "{}{}", said.out, said.err);
    let said = recorded.verify(&["--name", "later"]);
    assert!(said.ok && said.out.contains("later equals the feed"), "{}{}", said.out, said.err);
    assert_eq!(recorded.store(&["read", "feed"]).out.lines().count(), rows);
}

#[test]
fn recording_that_a_signal_cuts_short_says_so_and_how_to_begin_again() {
    let scratch = Scratch::beside();
    let dir = scratch.path("store").display().to_string();
    let feed = feed_file(20_000).0;
    let append = ["store", "append", &dir, "day", "--feed", "-", "--date", "2026-11-20"];
    let mut child = evenfall(&append).stdin(Stdio::piped()).spawn().expect("the program");
    let mut pipe = child.stdin.take().expect("a pipe");
    // A pipe holds a part of the first half, so that the program has begun to read.
    let (first, second) = feed.split_at(feed.len() / 2);
    pipe.write_all(first).expect("a reader");
    signal(child.id(), "INT");
    // The program may be gone before it has read the rest.
    pipe.write_all(second).ok();
    drop(pipe);
    let said = finish(child);
    assert_eq!(said.code, Some(130), "{}{}", said.out, said.err);
    for words in ["day has only the first messages", "evenfall store delete", "stopped by a signal"]
    {
        assert!(said.err.contains(words), "{words}: {}", said.err);
    }
    let again = scratch.path("20261120.itch50");
    fs::write(&again, &feed).expect("a feed");
    let again = again.display().to_string();
    let said = say(&["store", "append", &dir, "day", "--feed", &again]);
    assert!(!said.ok && said.err.contains("delete that one first"), "{}", said.err);
}

#[test]
fn another_feed_and_a_flipped_byte_are_told() {
    let recorded = Recorded::prepare(300);
    assert!(
        recorded.store(&["append", "feed", "--feed", &recorded.feed, "--date", "2026-11-20"]).ok
    );
    let other = recorded.scratch.path("other.itch50");
    let mut bytes = fs::read(&recorded.feed).expect("a feed");
    let at = bytes.len() / 2;
    // The changed byte lies inside a message, so the file is still a feed.
    bytes[at] ^= 1;
    fs::write(&other, bytes).expect("a feed");
    let said = recorded.store(&["verify", "--feed", &other.display().to_string()]);
    assert!(!said.ok, "{}", said.out);
    for (path, whole) in contents(&recorded.dir) {
        let mut bytes = whole.clone();
        let at = bytes.len() * 2 / 3;
        bytes[at] ^= 0x10;
        fs::write(&path, bytes).expect("a flip");
        let said = recorded.verify(&[]);
        assert!(!said.ok && said.err.contains("not as they were written"), "{}", path.display());
        fs::write(&path, whole).expect("as it was");
    }
    assert!(recorded.verify(&[]).ok);
}

#[test]
fn rows_of_lobster_have_the_symbol_of_the_file_or_of_the_command() {
    let scratch = Scratch::beside();
    let dir = scratch.path("store");
    let named = scratch.path("AAPL_2012-06-21_34200000_57600000_message_1.csv");
    let unnamed = scratch.path("2012-06-21.csv");
    for path in [&named, &unnamed] {
        let lines = "34200.004241176,1,7,18,5853300,1\n34201,4,7,8,5853300,1\n";
        fs::write(path, lines).expect("a feed");
    }
    let append = |name: &str, feed: &Path, more: &[&str]| {
        let feed = feed.display().to_string();
        store(&dir, &[&["append", name, "--feed", &feed][..], more].concat())
    };
    let symbols = |name: &str| -> Vec<String> {
        let csv = store(&dir, &["read", name]).out;
        let mut rows = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let heads = rows.next().expect("a line of names");
        let at = heads.iter().position(|head| *head == "symbol").expect("a column");
        rows.map(|row| row[at].to_owned()).collect()
    };
    let said = append("named", &named, &[]);
    assert!(said.ok, "{}{}", said.out, said.err);
    assert_eq!(symbols("named"), ["AAPL"; 2]);
    let said = append("unnamed", &unnamed, &[]);
    assert!(said.ok && said.out.contains("and --symbol does"), "{}{}", said.out, said.err);
    assert_eq!(symbols("unnamed"), [""; 2]);
    let said = append("stated", &unnamed, &["--symbol", "MSFT"]);
    assert!(said.ok, "{}{}", said.out, said.err);
    assert_eq!(symbols("stated"), ["MSFT"; 2]);
    let itch = scratch.path("20261120.itch50");
    fs::write(&itch, feed_file(3).0).expect("a feed");
    let said = append("itch", &itch, &["--symbol", "MSFT"]);
    assert!(!said.ok && said.err.contains("which are those of LOBSTER"), "{}", said.err);
    let said = store(&dir, &["ls"]);
    assert!(said.ok && !said.out.contains("itch"), "nothing was made: {}", said.out);
}

#[test]
fn parquet_opens_in_duckdb_and_polars_with_equal_counts_and_sums() {
    let Some(itch) = data("itch/nasdaq_20191230_aapl.itch50") else { return };
    let Some(lobster) = data("lobster/LOBSTER_SampleFile_AAPL_2012-06-21_1.zip") else { return };
    let Some(cme) = data("pcap/Cme.Mdp3.Sbe.v6.1.pcap") else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench-peers/store/check.sh");
    let mut check = Command::new(script);
    // `make deps` installs the Python packages. A test installs nothing.
    check.arg(env!("CARGO_BIN_EXE_evenfall")).args([itch, lobster, cme]).env("NO_INSTALL", "1");
    let ended = check.output().expect("the script");
    let out = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{out}{}", String::from_utf8_lossy(&ended.stderr));
    println!("{out}");
}

/// A part of Hadoop's own tests of file systems. `make test-long` runs all of them.
#[test]
fn hadoop_creates_appends_and_joins_files_over_webhdfs() {
    let _seat = Scratch::beside();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/hadoop-contract.sh");
    let mut run = Command::new(script);
    run.arg(env!("CARGO_BIN_EXE_evenfall")).args(["Create", "Append", "Concat"]);
    // The script fetches the jars of Hadoop. A test fetches nothing.
    let ended = run.env("NO_INSTALL", "1").output().expect("the script");
    let out = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{out}{}", String::from_utf8_lossy(&ended.stderr));
    println!("{out}");
}

#[test]
fn two_sides_of_a_feed_are_recorded_as_one() {
    let Some(pair) = data("pcap/Cme.Mdp3.Sbe.v6.1.pcap") else { return };
    let scratch = Scratch::beside();
    let (dir, pair) = (scratch.path("store"), pair.display().to_string());
    let said = store(&dir, &["append", "cme", "--feed", &pair, "--arbitrate"]);
    assert!(said.ok, "{}{}", said.out, said.err);
    assert!(said.out.contains("0 lost"), "{}", said.out);
    let read = store(&dir, &["read", "cme"]).out;
    let numbers = read.lines().skip(1).map(|line| line.split(',').nth(1).expect("a number"));
    let numbers: Vec<u64> = numbers.map(|number| number.parse().expect("digits")).collect();
    assert!(numbers.len() >= 5_000, "{}: {}", numbers.len(), said.out);
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "a packet twice or not at all");
}

/// Rows of a recording, and the bytes of each message in hex.
fn messages_of(dir: &Path, name: &str) -> Vec<String> {
    let read = store(dir, &["read", name]).out;
    read.lines().skip(1).map(|line| line.rsplit(',').next().expect("bytes").to_owned()).collect()
}

#[test]
fn two_sides_of_a_feed_are_kept_apart() {
    let Some(pair) = data("pcap/Cme.Mdp3.Sbe.v6.1.pcap") else { return };
    let scratch = Scratch::beside();
    let (dir, pair) = (scratch.path("store"), pair.display().to_string());
    let said = store(&dir, &["append", "cme", "--feed", &pair, "--sides", "apart"]);
    assert!(said.ok, "{}{}", said.out, said.err);
    let (a, b) = (messages_of(&dir, "cme-a"), messages_of(&dir, "cme-b"));
    assert_eq!((a.len(), b.len()), (5_000, 5_000));
    // Neither side lost a packet, so each side is the whole feed.
    assert_eq!(a, b);
}

#[test]
fn copies_of_two_sides_are_kept_once_unless_both_are_wanted_and_it_is_said() {
    let Some(pair) = data("pcap/Cme.Mdp3.Sbe.v6.1.pcap") else { return };
    let scratch = Scratch::beside();
    let (dir, pair) = (scratch.path("store"), pair.display().to_string());
    let said = store(&dir, &["append", "cme", "--feed", &pair]);
    assert!(said.ok && said.out.contains("5000 messages recorded"), "{}{}", said.out, said.err);
    assert!(said.out.contains("the capture has sides A and B"), "{}", said.out);
    let said = store(&dir, &["verify", "--feed", &pair, "--name", "cme"]);
    assert!(said.ok, "{}{}", said.out, said.err);
}

#[test]
fn what_is_not_decoded_has_its_format_and_type_and_no_columns_of_itch() {
    let Some(miax) = data("pcap/Miax.Tom.Mach.v1.9.Example.pcap") else { return };
    let scratch = Scratch::beside();
    let (dir, miax) = (scratch.path("store"), miax.display().to_string());
    let said = store(&dir, &["append", "miax", "--feed", &miax]);
    assert!(said.ok, "{}{}", said.out, said.err);
    let read = store(&dir, &["read", "miax"]).out;
    let mut rows = read.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = rows.next().expect("a header");
    let at = |name| head.iter().position(|column| *column == name).expect("a column");
    let (format, kind, symbol, price) = (at("format"), at("type"), at("symbol"), at("price"));
    let rows: Vec<_> = rows.collect();
    assert_eq!(rows.len(), 20_560);
    for row in rows {
        assert!(row[format] == "mach" && row[kind].len() > 1, "{row:?}");
        assert!(row[symbol].is_empty() && row[price].is_empty(), "{row:?}");
    }
    let info = say(&["feed", "info", &miax]);
    assert!(
        info.ok && info.out.contains("MIAX MACH") && info.out.contains("LastSale"),
        "{}",
        info.out
    );
    assert!(!info.out.contains("IpoQuotingPeriod"), "{}", info.out);
    // The fields are in the tables.
    let listed = store(&dir, &["ls"]).out;
    assert!(listed.contains("MIAX MACH"), "{listed}");
    for (table, rows) in [("messages", 50_952), ("trades", 15)] {
        let path = scratch.path(&format!("{table}.parquet")).display().to_string();
        let said = store(&dir, &["export", "miax", "--table", table, "--out", &path]);
        assert!(said.ok && said.out.starts_with(&format!("{rows} rows in ")), "{}", said.err);
    }
    let text = store(&dir, &["read", "miax", "--table", "trades"]);
    assert!(!text.ok && text.err.contains("evenfall query"), "{}", text.err);
}

#[test]
fn messages_out_of_order_are_sorted_in_a_window_and_later_ones_refused_by_name() {
    let Some(pair) = data("pcap/Cme.Mdp3.Sbe.v6.1.pcap") else { return };
    let scratch = Scratch::beside();
    let (dir, pair) = (scratch.path("store"), pair.display().to_string());
    let window = ["--sides", "apart", "--window", "1s"];
    let said = store(&dir, &[&["append", "said", "--feed", &pair][..], &window].concat());
    assert!(said.ok, "{}{}", said.out, said.err);
    // Options that were given to `create` hold for later appends, and other options are refused.
    let said = store(&dir, &[&["create", "cme"][..], &window].concat());
    assert!(said.ok && said.out.contains("cme-b: a recording"), "{}{}", said.out, said.err);
    let other = store(&dir, &["append", "cme", "--feed", &pair, "--window", "2s"]);
    assert!(
        !other.ok && other.err.contains("another window, other sides or another symbol"),
        "{}",
        other.err
    );
    let said = store(&dir, &["append", "cme", "--feed", &pair]);
    assert!(said.ok, "{}{}", said.out, said.err);
    assert_eq!(messages_of(&dir, "cme-a"), messages_of(&dir, "said-a"));
    let read = store(&dir, &["read", "cme-a"]).out;
    let times = read.lines().skip(1).map(|line| line.split(',').nth(2).expect("a time"));
    let times: Vec<i64> = times.map(|time| time.parse().expect("digits")).collect();
    assert!(times.len() > 1_000 && times.is_sorted(), "{}", said.out);
    // The first four bytes of a message are its packet number. Each number is present once.
    let mut numbers: Vec<String> =
        messages_of(&dir, "cme-a").iter().map(|bytes| bytes[..8].to_owned()).collect();
    numbers.sort();
    assert!(numbers.windows(2).all(|pair| pair[0] != pair[1]), "a copy was kept");
}

#[test]
fn records_out_of_a_table_go_by_the_schema_and_the_window_of_their_file() {
    let scratch = Scratch::beside();
    let dir = scratch.path("store");
    let (schema, table) = (scratch.path("schema.json"), scratch.path("trades.csv"));
    let field = |name: &str, offset: u16, len: u16, kind: &str| {
        format!(r#"{{"name":"{name}","offset":{offset},"len":{len},"type":"{kind}"}}"#)
    };
    let fields = [
        field("time", 0, 8, "time"),
        field("number", 8, 8, "u64"),
        field("price", 16, 8, "price"),
        field("tag", 24, 2, "bytes"),
    ];
    let text =
        format!(r#"{{"record_bytes":26,"price_decimals":2,"fields":[{}]}}"#, fields.join(","));
    fs::write(&schema, text).expect("a schema");
    let schema = schema.display().to_string();
    let window = ["--window", "10ns", "--sequence", "number"];
    let made = store(&dir, &[&["create", "trades", "--schema", &schema][..], &window].concat());
    assert!(made.ok, "{}{}", made.out, made.err);
    // The rows are out of order, one row is a copy, one comes too late, and the columns are in
    // another order.
    let rows = "number,time,price,tag\n1,100,1.5,0aff\n3,102,-0.25,0000\n2,102,7,0001\n\
                3,102,-0.25,0000\n4,120,8.00,0002\n5,101,9,0003\n6,99,9,0004\n";
    fs::write(&table, rows).expect("a table");
    let table = table.display().to_string();
    let said = store(&dir, &["append", "trades", "--csv", &table]);
    assert!(!said.ok && said.err.contains("refused: line 8 of 99 ns"), "{}", said.err);
    assert!(said.out.contains("4 records appended"), "{}", said.out);
    let read = store(&dir, &["read", "trades"]).out;
    let want = "time,number,price,tag\n100,1,1.50,0aff\n102,2,7.00,0001\n102,3,-0.25,0000\n\
                120,4,8.00,0002\n";
    assert_eq!(read, want);
    // The printed records can be appended again as a table.
    let made = store(&dir, &["create", "again", "--schema", &schema]);
    assert!(made.ok, "{}", made.err);
    fs::write(&table, &read).expect("a table");
    let said = store(&dir, &["append", "again", "--csv", &table]);
    assert!(said.ok, "{}{}", said.out, said.err);
    assert_eq!(store(&dir, &["read", "again"]).out, want);
    fs::write(&table, "time,number,price,tag\n200,9,1,0aff\n201,9,1.001,0aff\n").expect("a table");
    let said = store(&dir, &["append", "again", "--csv", &table]);
    assert!(!said.ok && said.err.contains("line 3: price: \"1.001\""), "{}", said.err);
    assert!(store(&dir, &["read", "again"]).out.ends_with("200,9,1.00,0aff\n"));
    fs::write(&table, b"time,number,price,tag\n300,9,1,0aff\n\xff\n").expect("a table");
    let said = store(&dir, &["append", "again", "--csv", &table]);
    assert!(!said.ok && said.err.contains("line 3: stream did not"), "{}", said.err);
    assert!(store(&dir, &["read", "again"]).out.ends_with("300,9,1.00,0aff\n"));
}

#[test]
fn retention_and_deletion_are_orders_of_the_command_line() {
    let recorded = Recorded::prepare(300);
    assert!(
        recorded.store(&["append", "feed", "--feed", &recorded.feed, "--date", "2026-11-20"]).ok
    );
    let said = recorded.store(&["retain", "feed", "--age", "30d", "--bytes", "8388608"]);
    assert!(said.ok && said.out.contains("records are kept"), "{}{}", said.out, said.err);
    assert!(recorded.verify(&[]).ok);
    let said = recorded.store(&["delete", "feed"]);
    assert!(said.ok && said.out.contains("deleted"), "{}{}", said.out, said.err);
    assert_eq!(recorded.store(&["ls"]).out, "");
    let said = recorded.store(&["verify"]);
    assert!(said.ok, "{}{}", said.out, said.err);
}

#[test]
fn one_recording_needs_no_name_and_a_file_has_the_format_of_its_ending() {
    let recorded = Recorded::prepare(300);
    let day = ["--feed", &recorded.feed, "--date", "2026-11-20"];
    assert!(recorded.store(&[&["append", "feed"][..], &day].concat()).ok);
    let listed = recorded.store(&["ls"]).out;
    assert_eq!(listed.lines().count(), 1, "{listed}");
    assert!(listed.contains("300 messages") && listed.contains("2026-11-20T"), "{listed}");
    let out = |ending: &str| recorded.scratch.path(&format!("out.{ending}")).display().to_string();
    for (ending, begin) in [("csv", &b"stream,"[..]), ("parquet", b"PAR1"), ("json", b"{")] {
        let said = recorded.store(&["export", "--out", &out(ending)]);
        assert!(said.ok, "{}", said.err);
        assert!(fs::read(out(ending)).expect("a file").starts_with(begin), "{ending}");
    }
    let said = recorded.store(&["export", "--out", &out("xls")]);
    assert!(!said.ok && said.err.contains("no format has this ending"), "{}", said.err);

    assert!(recorded.store(&[&["append", "again"][..], &day].concat()).ok);
    let said = recorded.store(&["tail"]);
    assert!(!said.ok && said.err.contains("again, feed"), "{}", said.err);
    let files = recorded.store(&["ls", "--files"]).out;
    assert!(files.lines().count() == 2 && files.contains("again.0.messages"), "{files}");
}

#[test]
fn a_query_that_finds_nothing_says_what_there_is() {
    let scratch = Scratch::beside();
    let (dir, feed) = (scratch.path("store"), scratch.path("f.itch50").display().to_string());
    assert!(say(&["feed", "make", &feed, "--messages", "3000"]).ok);
    let said = store(&dir, &["append", "made", "--feed", &feed]);
    assert!(!said.ok && said.err.contains("give --date YYYY-MM-DD"), "{}", said.err);
    let said = store(&dir, &["append", "made", "--feed", &feed, "--date", "2026-11-20"]);
    assert!(said.ok, "{}", said.err);
    let open = store(&dir, &["read", "made", "--from", "09:30", "--to", "09:30:02"]);
    let same = ["--from", "2026-11-20T14:30:00Z", "--to", "2026-11-20T14:30:02Z"];
    assert!(open.out.lines().count() > 1, "{}{}", open.out, open.err);
    assert_eq!(store(&dir, &[&["read", "made"][..], &same].concat()).out, open.out);
    let read = |command, name, from, to| store(&dir, &[command, name, "--from", from, "--to", to]);
    for command in ["read", "tail"] {
        let said = read(command, "made", "23:00", "23:00:05");
        assert!(said.ok && said.out.lines().count() == 1, "{}{}", said.out, said.err);
        let words = "no message between these times; this recording reaches from 2026-11-20T";
        assert!(said.err.contains(words), "{}", said.err);
    }
    let said = read("read", "nobody", "23:00", "23:01");
    assert!(
        !said.ok && said.err.contains("recordings here reach from 2026-11-20T"),
        "{}",
        said.err
    );
    let said = store(&dir, &["verify", "--feed", &feed]);
    assert!(!said.ok && said.err.contains("name it with --name; there are: made"), "{}", said.err);
}

#[test]
fn what_is_not_there_is_said() {
    let scratch = Scratch::beside();
    let nowhere = scratch.path("nowhere");
    for words in [&["ls"][..], &["read", "feed"], &["verify"], &["tail", "feed"]] {
        let said = store(&nowhere, words);
        assert!(!said.ok && said.err.contains("nowhere"), "{words:?}: {}", said.err);
        assert!(!nowhere.exists(), "{words:?}");
    }
    fs::create_dir(&nowhere).expect("a directory");
    let said = store(&nowhere, &["read", "feed", "--from", "noon"]);
    assert!(!said.ok && said.err.contains("noon is no time"), "{}", said.err);
    let said = store(&nowhere, &["read", "aapl"]);
    assert!(!said.ok && said.err.contains("no store is there"), "{}", said.err);
    assert!(store(&nowhere, &["create", "feed"]).ok);
    let said = store(&nowhere, &["read", "aapl"]);
    assert!(!said.ok && said.err.contains("no file, no recording"), "{}", said.err);
}

#[test]
fn a_feed_that_a_full_disk_cuts_off_says_how_to_begin_again() {
    if !is_root() {
        return println!("skipped: a small disk needs root");
    }
    let recorded = Recorded::prepare(200_000);
    let dir = recorded.dir.display().to_string();
    let append = ["store", "append", &dir, "day", "--date", "2026-11-20", "--feed", &recorded.feed];
    // The disk is mounted in a namespace of the command alone, and goes with the command.
    let mount = r#"mkdir "$0" && mount -t tmpfs -o size=10m small "$0" && exec "$@""#;
    let program = evenfall(&append);
    let said = Command::new("unshare")
        .args(["-m", "sh", "-c", mount, &dir])
        .arg(program.get_program())
        .args(program.get_args())
        .output()
        .expect("unshare");
    let err = String::from_utf8_lossy(&said.stderr);
    assert!(!said.status.success() && err.contains("no room left"), "{err}");
    assert!(err.contains(&format!("delete it with `evenfall store delete {dir} day`")), "{err}");
}

const TRADES: &str = r#"{"record_bytes": 24, "price_decimals": 4, "fields": [
  {"name": "time", "offset": 0, "len": 8, "type": "time"},
  {"name": "number", "offset": 8, "len": 8, "type": "u64"},
  {"name": "price", "offset": 16, "len": 8, "type": "price"}]}"#;

/// Rows as CSV: random gaps, a price that walks, few venues.
fn ticks(rows: u64) -> String {
    let (mut csv, mut time, mut price) =
        (String::from("time,number,price\n"), 1_795_185_000_000_000_000u64, 10_000);
    let mut seed = 1u64;
    for number in 0..rows {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        time += seed >> 50;
        price = price + (seed >> 40) % 5 - 2;
        csv.push_str(&format!("{time},{number},{price}\n"));
    }
    csv
}

#[test]
fn whole_chunks_are_parquet_files_that_other_programs_read_as_they_are() {
    let scratch = Scratch::beside();
    let (dir, csv) = (scratch.path("store"), scratch.path("ticks.csv"));
    fs::write(&csv, ticks(400_000)).expect("rows");
    let schema = scratch.path("trades.json");
    fs::write(&schema, TRADES).expect("a schema");
    let (csv, schema) = (csv.display().to_string(), schema.display().to_string());
    let said = store(&dir, &["create", "trades", "--schema", &schema, "--chunks", "raw"]);
    assert!(said.ok, "{}{}", said.out, said.err);
    let said = store(&dir, &["append", "trades", "--csv", &csv, "--chunks", "raw"]);
    assert!(said.ok, "{}{}", said.out, said.err);
    let chunks = |dir: &Path| -> Vec<PathBuf> {
        let all = contents(dir).into_iter().map(|(path, _)| path);
        all.filter(|path| path.extension().is_some_and(|end| end == "parquet")).collect()
    };
    assert!(chunks(&dir).is_empty());
    let rows = store(&dir, &["read", "trades"]).out;
    let said = store(&dir, &["compact"]);
    assert!(said.ok && said.out.contains("chunks put into columns"), "{}{}", said.out, said.err);
    assert!(store(&dir, &["verify"]).ok);
    assert!(store(&dir, &["read", "trades"]).out == rows, "the same rows");
    let mut chunks = chunks(&dir);
    chunks.sort();
    assert!(chunks.len() >= 2, "{chunks:?}");
    let export = scratch.path("trades.parquet").display().to_string();
    assert!(store(&dir, &["export", "trades", "--out", &export]).ok);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = root.join("target/venv-store/bin/python");
    if !python.exists() {
        println!(
            "skipped: no Python with duckdb, polars and pyarrow in target/venv-store (make deps)"
        );
        return;
    }
    let mut check = Command::new(python);
    check.arg(root.join("bench-peers/store/chunks.py")).arg(export).args(chunks);
    let ended = check.output().expect("the script");
    let out = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{out}{}", String::from_utf8_lossy(&ended.stderr));
    assert!(
        ["pyarrow: ", "polars: ", "duckdb: "].iter().all(|reader| out.contains(reader)),
        "{out}"
    );
}
