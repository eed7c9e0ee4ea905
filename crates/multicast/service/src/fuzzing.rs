//! What the fuzz targets and the replay of their corpora call: any bytes in, a panic when a
//! promise breaks.

use std::io::Cursor;

use evenfall_store_format::Schema;
use prost::Message;

use evenfall_placement_survey::carrier::Envelope;
use evenfall_placement_survey::experiment::Experiment;
use crate::report::RunInfo;
use crate::runlog::{Reader, Writer};
use evenfall_runtime::settings::Settings;
use crate::store::export::{csv, csv_header};
use crate::store::import::Table;
use crate::store::protocol::{Reply, Request, frame};

/// A settings file, its last line an override: an error that names the file, or settings that
/// survive being written.
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

/// A frame of the store's protocol, as a request and as a reply: what decodes and is written again
/// decodes to the same.
pub fn store_wire(data: &[u8]) {
    let Ok(Some((header, body))) = frame(data) else { return };
    let mut again = Vec::new();
    if let Ok(request) = Request::decode(&header, body) {
        request.encode(header.request, &mut again);
        let (written, body) = frame(&again).expect("a frame").expect("a whole one");
        assert_eq!(Request::decode(&written, body), Ok(request));
    }
    again.clear();
    if let Ok(reply) = Reply::decode(&header, body) {
        reply.encode(header.request, header.extra, &mut again);
        let (written, body) = frame(&again).expect("a frame").expect("a whole one");
        // Long words are cut.
        if !matches!(reply, Reply::Failed { .. }) {
            assert_eq!(Reply::decode(&written, body), Ok(reply));
        }
    }
}

/// A schema in JSON on the first line, a table behind it: an error in words, or records that are
/// printed and read again as the same bytes.
pub fn store_table(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.lines();
    let Some(Ok(schema)) = lines.next().map(serde_json::from_str::<Schema>) else { return };
    if schema.check().is_err() {
        return;
    }
    let Ok(table) = Table::new(&schema, lines.next().unwrap_or_default()) else { return };
    let whole = Table::new(&schema, &csv_header(&schema));
    for record in lines.filter_map(|line| table.record(line).ok()) {
        let mut printed = Vec::new();
        csv(&schema, &record, &mut printed).expect("memory takes it");
        let printed = String::from_utf8(printed).expect("text");
        // Fields that share bytes, or names with commas, do not survive it.
        if let Ok(whole) = &whole {
            let _ = whole.record(printed.trim_end());
        }
    }
}

/// A run log: what is read and written again reads the same.
pub fn runlog(data: &[u8]) {
    let Ok(mut reader) = Reader::new(Cursor::new(data)) else { return };
    let header = reader.header().clone();
    let records: Vec<_> = reader.by_ref().collect();
    assert_eq!(reader.records(), records.len() as u64);
    let mut out = Vec::new();
    let mut writer = Writer::new(&mut out, &header).expect("memory takes it");
    records.iter().for_each(|record| writer.append(record));
    writer.flush();
    drop(writer);
    let again = Reader::new(Cursor::new(&out)).expect("what is written can be read");
    // A name that is no UTF-8 is shown with replacements, which are longer and may be cut.
    if !header.name.contains('\u{fffd}') {
        assert_eq!(again.header(), &header);
    }
    assert!(again.eq(records));
}

/// The file that describes a run: an error that names the line, or a run that survives being
/// written and whose memberships the ledger takes.
pub fn run_json(data: &[u8]) {
    let Ok(info) = serde_json::from_slice::<RunInfo>(data) else { return };
    let written = serde_json::to_string_pretty(&info).expect("plain values");
    assert_eq!(serde_json::from_str::<RunInfo>(&written).expect("what is written"), info);
    let mut ledger = info.ledger(true);
    ledger.close_all();
    let _ = ledger.finish(evenfall_core::ClockError::Unknown);
}

/// An experiment file, its last line an override: an error in words, or an experiment whose runs
/// are counted.
pub fn experiment(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (file, set) = text.trim_end().rsplit_once('\n').unwrap_or((&text, ""));
    for sets in [&[][..], &[set.to_owned()]] {
        match Experiment::parse(file, "fuzz.toml", sets) {
            Ok(experiment) => assert!(!experiment.plans().is_empty()),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// The body of a call to an agent: an envelope, and the message of the survey in it.
pub fn agent_call(data: &[u8]) {
    let Ok(envelope) = Envelope::decode(data) else { return };
    let again = Envelope::decode(&*envelope.encode_to_vec());
    assert_eq!(again.as_ref(), Ok(&envelope));
    evenfall_placement_planner::fuzzing::survey_wire(&envelope.message);
}
