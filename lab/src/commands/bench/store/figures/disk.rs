//! Figure 5.15: records of three lengths, on a disk that takes 250 MB in a second.
//!
//! The thesis has a volume of a cloud that takes no more. Here the server is in a control group,
//! see `disk_limit`. The bucket of the thesis is on other disks, and
//! objects in a directory would share this one: `--no-objects`.

use evenfall_runtime::program::Outcome;
use serde_json::json;

use super::super::Args;
use super::super::disk_limit::group_version;
use super::{Column, median_of, print_table, runs};

/// Bytes of a record.
const RECORD_BYTES: [u16; 3] = [128, 512, 700];
/// Bytes that the disk takes in a second.
const DISK_BYTES_PER_S: u64 = 250_000_000;
/// Share of the greatest rate that is offered where times are measured: "close to the write
/// bandwidth of the local store".
const LOAD: f64 = 0.9;

const COLUMNS: [Column; 6] = [
    Column { head: "record bytes", path: "/record_bytes", unit: 1.0, digits: 0 },
    Column { head: "M records/s", path: "/records_per_s", unit: 1e6, digits: 2 },
    Column { head: "MB/s", path: "/bytes_per_s", unit: 1e6, digits: 0 },
    Column { head: "written per byte", path: "/written_per_byte", unit: 1.0, digits: 2 },
    Column { head: "append p50 at 90 % of it, us", path: "/append_us/p50", unit: 1.0, digits: 0 },
    Column { head: "p99, us", path: "/append_us/p99", unit: 1.0, digits: 0 },
];

pub(super) fn main(args: &Args) -> Outcome {
    let limit = args.disk_bytes_per_s.unwrap_or(DISK_BYTES_PER_S);
    let mut rows = Vec::new();
    for record_bytes in RECORD_BYTES {
        let disk_bytes_per_s = Some(limit);
        let free = Args { record_bytes, disk_bytes_per_s, rate: None, ..args.clone() };
        let all = runs(&free)?;
        let rate = median_of(&all, "/records_per_s");
        let loaded = Args { rate: Some(LOAD * rate), ..free };
        let at = runs(&loaded)?;
        rows.push(json!({
            "record_bytes": record_bytes, "records_per_s": rate,
            "bytes_per_s": rate * f64::from(record_bytes),
            "written_per_byte": median_of(&all, "/written_per_byte"),
            "append_us": {
                "p50": median_of(&at, "/append_us/p50"), "p99": median_of(&at, "/append_us/p99"),
            },
        }));
    }
    let version = group_version();
    if args.json {
        let limits = json!({"disk_bytes_per_s": limit, "control_groups": version, "rows": rows});
        say!("{limits}");
        return Ok(());
    }
    say!("{:.0} MB/s by control groups, version {version}\n", limit as f64 / 1e6);
    print_table(&COLUMNS, &rows);
    Ok(())
}
