//! Records in files: 10 bytes of key and 90 bytes of value each, nothing between them, as `gensort`
//! writes them.
//!
//! A rank reads its share of the input and writes its part of the output. The parts, one behind the
//! other in the order of their names, are the sorted file.

use core::fmt;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use evenfall_query_burst::pivots::KEY_BYTES;
use evenfall_query_burst::sort::{Records, VALUE_BYTES};

/// Bytes of a record.
pub const RECORD_BYTES: usize = KEY_BYTES + VALUE_BYTES;

/// Why records could not be read or written.
#[derive(Debug)]
#[non_exhaustive]
pub enum RecordFileError {
    /// The file is no list of records.
    Length {
        /// The file.
        file: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// The system refused a file.
    Io {
        /// The file.
        file: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

impl fmt::Display for RecordFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { file, bytes } => write!(
                f,
                "{} has {bytes} bytes, which are no whole records of {RECORD_BYTES} bytes \
                 ({KEY_BYTES} of key, {VALUE_BYTES} of value)",
                file.display()
            ),
            Self::Io { file, source } => write!(f, "{}: {source}", file.display()),
        }
    }
}

impl std::error::Error for RecordFileError {}

/// Tells which file an error of the system was about.
fn about(file: &Path) -> impl Fn(io::Error) -> RecordFileError {
    let file = file.to_owned();
    move |source| RecordFileError::Io { file: file.clone(), source }
}

/// Number of records in a file.
///
/// # Errors
/// When the file cannot be opened, or has a rest that is no record.
pub fn count_records(file: &Path) -> Result<u64, RecordFileError> {
    let bytes = fs::metadata(file).map_err(about(file))?.len();
    if !bytes.is_multiple_of(RECORD_BYTES as u64) {
        return Err(RecordFileError::Length { file: file.to_owned(), bytes });
    }
    Ok(bytes / RECORD_BYTES as u64)
}

/// The records of a file that are the share of this rank: as many as those of any other rank, or
/// one more.
///
/// # Errors
/// As for [`count_records`], and when the file cannot be read.
pub fn read_share(file: &Path, rank: usize, ranks: usize) -> Result<Records, RecordFileError> {
    let count = count_records(file)?;
    let first = |rank: usize| (u128::from(count) * rank as u128 / ranks.max(1) as u128) as u64;
    let mut input = File::open(file).map_err(about(file))?;
    let begin = SeekFrom::Start(first(rank) * RECORD_BYTES as u64);
    input.seek(begin).map_err(about(file))?;
    let count = (first(rank + 1) - first(rank)) as usize;
    let mut keys = Vec::with_capacity(count * KEY_BYTES);
    let mut values = Vec::with_capacity(count * VALUE_BYTES);
    let mut input = BufReader::with_capacity(1 << 20, input);
    let mut record = [0; RECORD_BYTES];
    for _ in 0..count {
        input.read_exact(&mut record).map_err(about(file))?;
        keys.extend_from_slice(&record[..KEY_BYTES]);
        values.extend_from_slice(&record[KEY_BYTES..]);
    }
    Ok(Records { keys: keys.into(), values: values.into() })
}

/// The name of the part of a rank.
pub fn part_name(rank: usize) -> String {
    format!("part-{rank:05}")
}

/// Writes the part of a rank into a directory, which is made if it is missing. The file takes its
/// name when it is whole.
///
/// # Errors
/// When the directory or the file cannot be written.
pub fn write_part(dir: &Path, rank: usize, records: &Records) -> Result<PathBuf, RecordFileError> {
    fs::create_dir_all(dir).map_err(about(dir))?;
    let file = dir.join(part_name(rank));
    let beside = dir.join(format!(".{}.partial", part_name(rank)));
    let mut output =
        BufWriter::with_capacity(1 << 20, File::create(&beside).map_err(about(&beside))?);
    for (key, value) in rows(records) {
        output.write_all(key).and_then(|()| output.write_all(value)).map_err(about(&beside))?;
    }
    output.flush().map_err(about(&beside))?;
    fs::rename(&beside, &file).map_err(about(&file))?;
    Ok(file)
}

/// Keys with their values.
pub(crate) fn rows(records: &Records) -> impl Iterator<Item = (&[u8], &[u8])> {
    records.keys.chunks_exact(KEY_BYTES).zip(records.values.chunks_exact(VALUE_BYTES))
}

/// Keys and values of all records in one block: what a message of the group carries.
pub fn join_blocks(records: &Records) -> Bytes {
    rows(records).flat_map(|(key, value)| key.iter().chain(value).copied()).collect()
}

/// The records of a block that [`join_blocks`] has made; a rest that is no record is left out.
pub fn split_block(block: &[u8]) -> Records {
    let records = || block.chunks_exact(RECORD_BYTES);
    Records {
        keys: records().flat_map(|record| record[..KEY_BYTES].iter().copied()).collect(),
        values: records().flat_map(|record| record[KEY_BYTES..].iter().copied()).collect(),
    }
}
