//! A small recording, and the program that serves it.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use evenfall_feed_formats::codec::ITCH;
use evenfall_feed_formats::itch::{AddOrder, Alpha, Code, OrderExecuted, Price4};
use evenfall_store_engine::{Store, StoreAckLevel, StoreConfig};
use evenfall_store_recording::RecordingWriter;

/// 2026-11-20 14:30:00 UTC, half past nine in New York.
const OPEN_NS: i64 = 1_795_185_000_000_000_000;

/// Half past nine as ITCH counts.
const OPEN_TS: u64 = 34_200_000_000_000;

/// Orders of the recording, each with an execution.
pub(crate) const ORDERS: u64 = 300;

/// A directory with the recording `day`: an order of each of three symbols and its execution, a
/// millisecond and some nanoseconds apart.
pub(crate) fn record_day() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(StoreConfig::new(dir.path())).unwrap().store);
    let mut writer = RecordingWriter::new(&store, "day", 1, StoreAckLevel::Local).unwrap();
    for order in 0..ORDERS {
        let ns = |step: u64| (2 * order + step) * 1_000_001;
        let add = AddOrder {
            stock_locate: (order % 3) as u16 + 1,
            timestamp_ns: OPEN_TS + ns(0),
            order_reference: order + 1,
            side: Code(b"BS"[order as usize % 2]),
            shares: 100 + order as u32,
            stock: Alpha::new(["AAPL", "MSFT", "TEST"][order as usize % 3]).unwrap(),
            price: Price4(1_000_000 + order as u32),
            ..AddOrder::default()
        };
        writer.push(0, 2 * order, OPEN_NS + ns(0) as i64, ITCH, &add.encode()).unwrap();
        let done = OrderExecuted {
            stock_locate: (order % 3) as u16 + 1,
            timestamp_ns: OPEN_TS + ns(1),
            order_reference: order + 1,
            executed_shares: 10,
            match_number: order,
            ..OrderExecuted::default()
        };
        writer.push(0, 2 * order + 1, OPEN_NS + ns(1) as i64, ITCH, &done.encode()).unwrap();
    }
    writer.flush().unwrap();
    drop(writer);
    drop(store);
    dir
}

/// CPU time of a process so far, in ticks of the system.
pub(crate) fn cpu_ticks(process: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // The name of the program may have spaces; the fields after it are counted.
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// The program that serves a directory on both doors until it is dropped.
pub(crate) struct Served {
    program: Child,
    pub(crate) pg: String,
    pub(crate) flight: String,
}

impl Served {
    pub(crate) fn start(dir: &Path, options: &[&str]) -> Self {
        let mut program = Command::new(env!("CARGO_BIN_EXE_evenfall-query"));
        program.arg("serve").arg(dir).args(["--pg", "127.0.0.1:0", "--flight", "127.0.0.1:0"]);
        let mut program = program.args(options).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(program.stderr.take().unwrap()).lines();
        let mut address_after = |words: &str| loop {
            let line = lines.next().expect("the program ended").unwrap();
            if let Some((_, rest)) = line.split_once(words) {
                break rest.split(':').take(2).collect::<Vec<_>>().join(":");
            }
        };
        let pg = address_after("clients of PostgreSQL on ");
        let flight = address_after("clients of Flight SQL on ");
        // What the program says later is read, so that it never waits for a reader.
        std::thread::spawn(move || {
            lines.for_each(|line| eprintln!("{}", line.unwrap_or_default()))
        });
        Self { program, pg, flight }
    }

    /// CPU time of the program so far, in ticks of the system.
    pub(crate) fn cpu_ticks(&self) -> u64 {
        cpu_ticks(self.program.id())
    }

    /// Memory of the program, in KiB.
    pub(crate) fn memory_kib(&self) -> u64 {
        let path = format!("/proc/{}/status", self.program.id());
        let status = std::fs::read_to_string(path).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Waits until the program computes nothing any more.
    pub(crate) fn until_idle(&self) {
        let pause = std::time::Duration::from_millis(300);
        let mut before = self.cpu_ticks();
        // The limit is a minute: a statement that goes on would compute for hours.
        for _ in 0..200 {
            std::thread::sleep(pause);
            let now = self.cpu_ticks();
            // Connections are looked at four times a second, which takes less than a tick.
            if now - before <= 2 {
                return;
            }
            before = now;
        }
        panic!("the program still computes after a minute");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}
