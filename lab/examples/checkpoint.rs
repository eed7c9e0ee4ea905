//! How long a checkpoint holds up a replica, which writes all its keys into a new log. Prints the
//! median of five.
//!
//! ```text
//! cargo run --release -p evenfall-lab --example checkpoint
//! ```

use std::error::Error;
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenfall_consensus_machine::{
    Canopus, ClientRequest, Config, LeafMember, LeafOnlyTree, SuperLeaf,
};
use evenfall_core::{ClockReading, Durable, Machine, NodeId, Timestamp};
use evenfall_keys_machine::{Command, Existing, KeyCall, KeyOperation, Keys};

const KEYS: u64 = 700_000;
const VALUE_BYTES: usize = 100;
const ROUNDS: usize = 5;

fn filled() -> Keys {
    let mut keys = Keys::new(1 << 30);
    for n in 0..KEYS {
        let op = KeyOperation::put(format!("key{n:08}"), "v".repeat(VALUE_BYTES), Existing::None);
        let command = Command::Change(vec![op]);
        keys.apply(&KeyCall { session: 0, opened: 0, sequence: 0, at_ms: 0, command }.encode());
    }
    keys
}

/// Lets a replica of one node commit a request, and the disk take what the replica writes.
fn commit(replica: &mut Canopus, now: &mut Timestamp, sequence: u64) -> Result<(), Box<dyn Error>> {
    let before = replica.committed();
    replica.submit(*now, ClientRequest { client: 1, sequence, body: Bytes::from_static(b"x") })?;
    while replica.committed() == before {
        *now += Duration::from_millis(10);
        replica.handle_timeout(*now);
        write(replica, *now);
    }
    Ok(())
}

fn write(replica: &mut Canopus, now: Timestamp) {
    while let Some(write) = replica.poll_write() {
        replica.handle_written(now, write.id, Ok(()));
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e3
}

fn main() -> Result<(), Box<dyn Error>> {
    let member = LeafMember { node: NodeId(0), address: ([127, 0, 0, 1], 7_000).into() };
    let tree = LeafOnlyTree::new(vec![SuperLeaf { path: vec![], members: vec![member] }])?;
    let mut replica = Canopus::new(Config::default(), tree, NodeId(0), 1, &Bytes::new())?;
    let mut now = Timestamp::from_nanos(1_000_000_000);
    replica.handle_clock(now, ClockReading::default());
    write(&mut replica, now);
    let keys = filled();
    let (mut times, mut mib) = (Vec::new(), 0);
    for round in 0..ROUNDS as u64 {
        commit(&mut replica, &mut now, round + 1)?;
        let begun = Instant::now();
        let put = |out: &mut Vec<u8>| {
            let begin = out.len();
            keys.put(out);
            mib = (out.len() - begin) >> 20;
        };
        if !replica.checkpoint_with(keys.bytes(), put) {
            return Err("the replica takes no checkpoint".into());
        }
        times.push(begun.elapsed());
        write(&mut replica, now);
    }
    println!("{mib} MiB: {:.0} ms", median(times));
    Ok(())
}
