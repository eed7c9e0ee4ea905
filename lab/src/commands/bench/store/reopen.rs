//! Measures how long a store takes to open after its process was killed.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use evenfall_store_format::journal;
use evenfall_store_format::layout::parse_journal_name;
use serde_json::{Value, json};

use super::remote::{Served, append_all};
use super::{Args, Failure};

/// Appends to all files, kills the server, drops the page cache, and opens the store again, beside
/// a plain read of its journals. A spare is not among these: nothing in it is needed.
pub(super) fn run(args: &Args, dir: &Path) -> Result<Value, Failure> {
    let served = Served::start(args, dir, args.streams)?;
    let records = append_all(args, &served)?.records(args);
    // The server is killed.
    drop(served);
    let journals = journals_in(dir)?;
    let is_cache_dropped = drop_page_cache();
    let begun = Instant::now();
    let mut journal_bytes = 0;
    for journal in &journals {
        journal_bytes += io::copy(&mut File::open(journal)?, &mut io::sink())?;
    }
    let plain_ms = begun.elapsed().as_secs_f64() * 1_000.0;
    drop_page_cache();
    let begun = Instant::now();
    let served = Served::spawn(args, dir, None)?;
    let open_ms = begun.elapsed().as_secs_f64() * 1_000.0;
    Ok(json!({
        "files": args.streams, "records": records, "open_ms": open_ms,
        "read_bytes": served.number_of_process("io", "rchar:")?,
        "read_bytes_of_disk": served.number_of_process("io", "read_bytes:")?,
        "journal_bytes": journal_bytes, "plain_read_ms": plain_ms,
        "open_over_plain_read": open_ms / plain_ms,
        "is_page_cache_dropped": is_cache_dropped,
        "resident_bytes_max": served.number_of_process("status", "VmHWM:")? << 10,
    }))
}

fn journals_in(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let is_journal = entry.file_name().to_str().and_then(parse_journal_name).is_some();
        if is_journal && !is_spare(&entry.path())? {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

fn is_spare(path: &Path) -> io::Result<bool> {
    let mut head = Vec::new();
    File::open(path)?.take(journal::HEADER_BYTES as u64).read_to_end(&mut head)?;
    let header = journal::parse_header("", &head).ok().flatten();
    Ok(header.is_some_and(|header| header.is_spare))
}

/// Drops what the kernel keeps of files in memory, which takes root.
fn drop_page_cache() -> bool {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "1").is_ok()
}
