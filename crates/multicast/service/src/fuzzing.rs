//! Checks that the fuzz targets and the replay of their corpora call. Each check takes any bytes,
//! and panics when a promise breaks.

use std::io::Cursor;

use crate::report::RunInfo;
use crate::runlog::{RunLogReader, RunLogWriter};
use crate::settings::Settings;

/// Reads a settings file whose last line is an override. The result is an error that names the
/// file, or settings that are the same after writing and reading.
pub fn settings(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (file, set) = text.trim_end().rsplit_once('\n').unwrap_or((&text, ""));
    for sets in [&[][..], &[set.to_owned()]] {
        match Settings::parse(file, "fuzz.toml", std::iter::empty(), sets) {
            Ok(settings) => {
                let written = settings.to_toml();
                let again = Settings::parse(&written, "again", std::iter::empty(), &[]);
                assert_eq!(again.expect("what is written can be read"), settings);
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// A run log that was read and written again reads the same.
pub fn runlog(data: &[u8]) {
    let Ok(mut reader) = RunLogReader::new(Cursor::new(data)) else { return };
    let header = reader.header().clone();
    let records: Vec<_> = reader.by_ref().collect();
    assert_eq!(reader.records(), records.len() as u64);
    let mut out = Vec::new();
    let mut writer = RunLogWriter::new(&mut out, &header).expect("memory takes it");
    records.iter().for_each(|record| writer.append(record));
    writer.flush();
    drop(writer);
    let again = RunLogReader::new(Cursor::new(&out)).expect("what is written can be read");
    // A name that is no UTF-8 is shown with replacement characters, which are longer and may be
    // cut.
    if !header.name.contains('\u{fffd}') {
        assert_eq!(again.header(), &header);
    }
    assert!(again.eq(records));
}

/// Reads the file that describes a run. The result is an error that names the line, or a run that
/// is the same after writing and reading, and whose memberships the ledger takes.
pub fn run_json(data: &[u8]) {
    let Ok(info) = serde_json::from_slice::<RunInfo>(data) else { return };
    let written = serde_json::to_string_pretty(&info).expect("plain values");
    assert_eq!(serde_json::from_str::<RunInfo>(&written).expect("what is written"), info);
    let mut ledger = crate::report::ledger(&info, true);
    ledger.close_all();
    let _ = ledger.finish(evenfall_core::ClockError::Unknown);
}

#[cfg(test)]
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_corpus_file_passes_its_check() {
        replay::corpora(&[("run_json", run_json), ("runlog", runlog), ("settings", settings)]);
    }
}
