//! How long reads and changes of ordered keys take, with and without write leases.
//!
//! ```text
//! evenfall run keys --local 3 --lease-cycles 16 --dir keys
//! cargo run --release -p evenfall-lab --example leases -- \
//!     127.0.0.1:21811 127.0.0.1:21812
//! ```
//!
//! A client of the first replica reads and changes, and a client of the second replica changes
//! another key beside it. Prints medians in milliseconds.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenfall_keys_client::keys::{Existing, KeyOperation};
use evenfall_keys_client::{ClientError, KeysClient};

const CALLS: usize = 300;
const PATIENCE: Duration = Duration::from_secs(30);

type Failure = Box<dyn Error + Send + Sync>;

fn put(client: &mut KeysClient, key: &str) -> Result<(), ClientError> {
    client.change(vec![KeyOperation::put(key, "x", Existing::Any(true))]).map(|_| ())
}

/// The median time of a call, printed with what the call does.
fn median(
    what: &str,
    mut call: impl FnMut(usize) -> Result<(), ClientError>,
) -> Result<(), Failure> {
    let mut times = Vec::new();
    for turn in 0..CALLS {
        let begun = Instant::now();
        call(turn)?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    println!("{what:<28} {:.3}", times[CALLS / 2].as_secs_f64() * 1e3);
    Ok(())
}

fn main() -> Result<(), Failure> {
    let given: Vec<SocketAddr> =
        std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    let [first, second] = given[..] else {
        return Err("give the addresses of two replicas".into());
    };
    let mut client = KeysClient::new(vec![first], PATIENCE);
    let run = std::process::id();
    put(&mut client, "calm")?;
    put(&mut client, "busy")?;
    median("read, idle", |_| client.get("calm").map(|_| ()))?;
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut writer = KeysClient::new(vec![second], PATIENCE);
            while !ends.load(Ordering::Relaxed) {
                put(&mut writer, "busy")?;
            }
            Ok::<_, ClientError>(())
        });
        let beside = median("read beside a writer", |_| client.get("calm").map(|_| ()));
        let same = median("read of the writer's key", |_| client.get("busy").map(|_| ()));
        ends.store(true, Ordering::Relaxed);
        writer.join().expect("the writer")?;
        beside.and(same)
    })?;
    median("change again", |_| put(&mut client, "calm"))?;
    median("change of a new key", |turn| put(&mut client, &format!("new-{run}-{turn}")))
}
