//! Frames of a recorded run, from the logs in its directory.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use evenfall_campaigns::multicast::FrameCourse;
use evenfall_multicast_service::runlog::{EXTENSION, RunLogReader, RunLogRecord};

/// The frames of a run of `evenfall demo` or `evenfall run`, in the order in which they were sent.
/// A frame that a receiver never released counts with the receivers that released it.
pub fn frames(directory: &Path) -> Result<Vec<FrameCourse>, Box<dyn std::error::Error>> {
    let named = |error: &dyn std::fmt::Display| format!("--run {}: {error}", directory.display());
    let mut sent: BTreeMap<u64, u64> = BTreeMap::new();
    let mut arrived: BTreeMap<u64, (u16, u64)> = BTreeMap::new();
    for entry in std::fs::read_dir(directory).map_err(|error| named(&error))? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != EXTENSION) {
            continue;
        }
        for record in RunLogReader::new(File::open(&path)?).map_err(|error| named(&error))? {
            match record {
                RunLogRecord::Sent(message) if message.stream == 0 => {
                    sent.insert(message.message, message.sent_ns);
                }
                RunLogRecord::Released(release) if release.stream == 0 => {
                    let frame = arrived.entry(release.first_message).or_default();
                    frame.0 = release.count;
                    frame.1 = frame.1.max(release.arrival_ns);
                }
                _ => {}
            }
        }
    }
    let first = sent.values().min().copied();
    let first = first.ok_or_else(|| named(&"there is no log of a root with messages"))?;
    let since = |late: u64, early: u64| Duration::from_nanos(late.saturating_sub(early));
    let frame = |(message, (messages, latest)): (u64, (u16, u64))| {
        let origin = *sent.get(&message)?;
        let (at, took) = (since(origin, first), since(latest, origin));
        Some(FrameCourse { at, hold: Duration::ZERO, late: false, messages, took })
    };
    Ok(arrived.into_iter().filter_map(frame).collect())
}
