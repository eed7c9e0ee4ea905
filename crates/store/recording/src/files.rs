//! The names of the files of which a recording consists.

pub(crate) fn file_name(name: &str, stream: u32, class: u16) -> String {
    format!("{name}.{stream}.{class}")
}

/// Recording, stream and record length from the name of a file.
pub(crate) fn parse_file_name(name: &str) -> Option<(&str, u32, u16)> {
    let (rest, class) = name.rsplit_once('.')?;
    let (name, stream) = rest.rsplit_once('.')?;
    Some((name, stream.parse().ok()?, class.parse().ok()?))
}

/// Whether this file holds messages of this recording.
pub fn is_message_file_of(file: &str, recording: &str) -> bool {
    parse_file_name(file).is_some_and(|(name, _, _)| name == recording)
}

/// Name of the file of a stream's frames: which messages left together, and when.
pub fn frames_name(recording: &str, stream: u32) -> String {
    format!("{recording}.{stream}.frames")
}

/// Whether this file holds frames of this recording.
fn is_frames_file_of(file: &str, recording: &str) -> bool {
    let stream = file.strip_suffix(".frames").and_then(|rest| rest.rsplit_once('.'));
    stream.is_some_and(|(name, stream)| name == recording && stream.parse::<u32>().is_ok())
}

/// Name of the file of UTC beside a recording.
pub fn utc_name(recording: &str) -> String {
    format!("{recording}.utc")
}

/// Whether this file is part of this recording.
pub fn is_file_of(file: &str, recording: &str) -> bool {
    is_message_file_of(file, recording)
        || is_frames_file_of(file, recording)
        || file == utc_name(recording)
}
