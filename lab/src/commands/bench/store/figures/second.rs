//! The load that a scan of history puts on the primary. A second node with only the objects and a
//! client of the primary scan in turns. The primary's cache is full, so every segment that enters
//! it pushes another out.

use std::time::Instant;

use evenfall_store_engine::{Archive, Client, StoreAckLevel};
use serde_json::Value;

use super::super::remote::Served;
use super::super::{Args, Failure};
use evenfall_runtime::program::Outcome;

/// Records of the history, several times the cache.
pub(super) const RECORDS: u64 = 8 << 20;
/// Bytes of the primary's cache.
const CACHE_BYTES: u64 = 32 << 20;
/// Records of one request of the client.
const PART: u64 = 32_768;

pub(super) fn main(args: &Args) -> Outcome {
    let args = &Args { no_objects: false, cache_bytes: CACHE_BYTES, ..args.clone() };
    let dir = args.fresh(0);
    let measured = measure(args, &dir);
    std::fs::remove_dir_all(&dir)?;
    measured
}

fn measure(args: &Args, dir: &std::path::Path) -> Outcome {
    let served = Served::start(args, dir, 1)?;
    let mut client = served.connect()?;
    fill(args, &mut client)?;
    // Synced chunks then have all records, which have passed through the cache.
    served.wait_for_empty(&["memory_bytes"])?;
    say!("| scan of {RECORDS} records | M records/s | bytes from the primary | evictions |");
    say!("|---|---|---|---|");
    let objects = dir.join("objects").display().to_string();
    for _ in 0..args.runs.max(1) {
        row("a second node", &served, || second_node(&objects))?;
        row("a client of the primary", &served, || of_primary(&mut client))?;
    }
    Ok(())
}

/// Fills the history. The last append is acknowledged at `object`, so all records are published
/// then.
pub(super) fn fill(args: &Args, client: &mut Client) -> Result<(), Failure> {
    let file = client.open("s0")?;
    let size = usize::from(args.record_bytes);
    let mut batch = vec![0u8; args.batch * size];
    let mut clock = 0u64;
    while clock < RECORDS {
        for record in batch.chunks_exact_mut(size) {
            clock += 1;
            record[..8].copy_from_slice(&clock.to_le_bytes());
        }
        let level = if clock < RECORDS { StoreAckLevel::Memory } else { StoreAckLevel::Object };
        client.append(&file, &batch, level)?;
        client.completion()?.ok_or("no completion")?.first?;
    }
    Ok(())
}

/// Makes a scan, and prints its effect on the primary.
fn row(who: &str, served: &Served, scan: impl FnOnce() -> Result<u64, Failure>) -> Outcome {
    let before = served.sample()?;
    let begun = Instant::now();
    let records = scan()?;
    let elapsed = begun.elapsed().as_secs_f64();
    let after = served.sample()?;
    let more = |name: &str| {
        let of = |sample: &Value| sample[name].as_u64().unwrap_or(0);
        of(&after) - of(&before)
    };
    say!(
        "| {who} | {:.1} | {} | {} |",
        records as f64 / elapsed / 1e6,
        more("sent_bytes"),
        more("cache_evictions")
    );
    Ok(())
}

fn second_node(objects: &str) -> Result<u64, Failure> {
    let archive = Archive::open(objects)?;
    let mut file = archive.file("s0")?;
    let (end, mut bytes) = (file.records(), 0);
    file.read_numbers(0..end, &mut |part| {
        bytes += part.len();
        Ok(())
    })?;
    if bytes == 0 { Err("nothing is published".into()) } else { Ok(end) }
}

fn of_primary(client: &mut Client) -> Result<u64, Failure> {
    let file = client.open("s0")?;
    let end = client.size(&file)?.end;
    for first in (0..end).step_by(PART as usize) {
        client.numbers(&file, first..end.min(first + PART))?;
    }
    Ok(end)
}
