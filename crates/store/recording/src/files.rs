//! The names of the files of which a recording consists.

use evenfall_store_engine::Listed;
use evenfall_store_format::{Field, FieldType, Schema};

use crate::records::is_message_schema;

pub(crate) fn file_name(name: &str, stream: u32, class: u16) -> String {
    format!("{name}.{stream}.{class}")
}

/// A file that holds messages of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageFileName<'a> {
    pub(crate) recording: &'a str,
    pub(crate) stream: u32,
}

/// What the name of a file says, when its schema agrees.
pub(crate) fn message_file(file: &Listed) -> Option<MessageFileName<'_>> {
    let (rest, class) = file.name.rsplit_once('.')?;
    let (recording, stream) = rest.rsplit_once('.')?;
    let (stream, class) = (stream.parse().ok()?, class.parse().ok()?);
    let name = MessageFileName { recording, stream };
    is_message_schema(&file.schema, class).then_some(name)
}

/// Name of the file of a stream's frames: which messages left together, and when.
pub fn frames_name(recording: &str, stream: u32) -> String {
    format!("{recording}.{stream}.frames")
}

/// Name of the file of UTC beside a recording.
pub fn utc_name(recording: &str) -> String {
    format!("{recording}.utc")
}

/// The schema of a file of frames.
pub fn frames_schema() -> Schema {
    let number = |name: &'static str| (name, FieldType::U64);
    let mut schema = Schema::of(&[
        ("time", FieldType::Time),
        number("frame"),
        number("first_message"),
        number("origin"),
        number("deadline"),
    ]);
    let mut add = |name: &str, offset, len, kind| {
        let name = name.to_owned();
        schema.fields.push(Field { name, offset, len, kind, aggregate: false });
    };
    add("epoch", 40, 4, FieldType::U32);
    add("count", 44, 2, FieldType::U16);
    add("format", 46, 1, FieldType::U8);
    schema.record_bytes = 48;
    schema
}

/// The schema of a file of UTC.
pub fn utc_schema() -> Schema {
    Schema::of(&[
        ("time", FieldType::Time),
        ("utc", FieldType::I64),
        ("utc_bound", FieldType::U64),
        ("run_bound", FieldType::U64),
    ])
}

/// The recording beside whose messages this file lies: its frames, or UTC.
pub(crate) fn beside(file: &Listed) -> Option<&str> {
    if let Some(recording) = file.name.strip_suffix(".utc") {
        return (file.schema == utc_schema()).then_some(recording);
    }
    let (recording, stream) = file.name.strip_suffix(".frames")?.rsplit_once('.')?;
    (stream.parse::<u32>().is_ok() && file.schema == frames_schema()).then_some(recording)
}
