//! Checks that the fuzz targets and the replay of their corpora call. Each check takes any bytes,
//! and panics when a promise breaks.

use evenfall_store_format::Schema;

use crate::client::subscription::check_pushes;
use crate::export::{csv, csv_header};
use crate::import::CsvReader;
use crate::protocol::{StoreReply, StoreRequest, frame};

/// Reads a frame of the store's protocol, as a request and as a reply. A decoded frame that is
/// written and decoded again is the same. All frames together are what a server pushes to a
/// subscriber.
pub fn store_wire(data: &[u8]) {
    check_pushes(data);
    let Ok(Some((header, body))) = frame(data) else { return };
    let mut again = Vec::new();
    if let Ok(request) = StoreRequest::decode(&header, body) {
        request.encode(header.request, &mut again);
        let (written, body) = frame(&again).expect("a frame").expect("a whole one");
        assert_eq!(StoreRequest::decode(&written, body), Ok(request));
    }
    again.clear();
    if let Ok(reply) = StoreReply::decode(&header, body) {
        reply.encode(header.request, header.extra, &mut again);
        let (written, body) = frame(&again).expect("a frame").expect("a whole one");
        // Long texts are cut.
        if !matches!(reply, StoreReply::Failed { .. }) {
            assert_eq!(StoreReply::decode(&written, body), Ok(reply));
        }
    }
}

/// Reads bytes as the hello of a client, as the answer of a server, and as the records of a stream.
/// A hello that is taken is answered, no answer but that of the server finishes a handshake, and no
/// record opens that the other end did not seal.
#[cfg(feature = "sealed")]
pub fn store_seal(data: &[u8]) {
    use evenfall_core::Cipher;
    use evenfall_core::sealed_stream::{ClientHandshake, ClientHello, OpenedRecord, StreamUse};
    const USE: StreamUse = StreamUse::Store;
    if let Ok(hello) = ClientHello::parse(USE, data) {
        assert!(hello.key_name().len() < data.len());
        hello.answer(&[1; 32], &[2; 32], Cipher::new_aes);
    }
    let client = ClientHandshake::new(USE, b"ann", &[1; 32], &[3; 32], Cipher::new_aes);
    if let Some(answer) = data.first_chunk() {
        assert!(client.finish(answer).is_err(), "nobody has made this answer");
    }
    let hello = ClientHello::parse(USE, client.hello()).expect("our own hello");
    let (_, mut ends) = hello.answer(&[1; 32], &[2; 32], Cipher::new_aes);
    let (mut left, mut out) = (data, [0; 64]);
    while let Ok(taken) = ends.opener.take(&mut out) {
        assert_eq!(taken, OpenedRecord::NeedsMore, "nobody has sealed this");
        if left.is_empty() {
            break;
        }
        let room = ends.opener.room();
        let len = left.len().min(room.len()).min(97);
        room[..len].copy_from_slice(&left[..len]);
        ends.opener.note_arrival(len);
        left = &left[len..];
    }
    assert!(ends.opener.note_end().is_err());
}

/// Reads a schema in JSON on the first line, and a table after it. The result is an error in words,
/// or records that are the same bytes after printing and reading.
pub fn store_table(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.lines();
    let Some(Ok(schema)) = lines.next().map(serde_json::from_str::<Schema>) else { return };
    if schema.check().is_err() {
        return;
    }
    let Ok(table) = CsvReader::new(&schema, lines.next().unwrap_or_default()) else { return };
    let whole = CsvReader::new(&schema, &csv_header(&schema));
    for record in lines.filter_map(|line| table.record(line).ok()) {
        let mut printed = Vec::new();
        csv(&schema, &record, &mut printed).expect("memory takes it");
        let printed = String::from_utf8(printed).expect("text");
        // Fields that share bytes and names with commas do not survive printing.
        if let Ok(whole) = &whole {
            let _ = whole.record(printed.trim_end());
        }
    }
}

#[cfg(test)]
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_corpus_file_passes_its_check() {
        #[cfg(feature = "sealed")]
        replay::corpora(&[("store_seal", store_seal)]);
        replay::corpora(&[("store_table", store_table), ("store_wire", store_wire)]);
    }
}
