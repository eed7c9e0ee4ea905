//! Records in files: 10 bytes of key and 90 bytes of value each, nothing between them, as `gensort`
//! writes them.
//!
//! A rank reads its share of the input and writes its part of the output. The parts, one behind the
//! other in the order of their names, are the sorted file.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use evenfall_host::lock::create_private;
use evenfall_query_burst::pivots::KEY_BYTES;
use evenfall_query_burst::sort::{SortRecords, VALUE_BYTES};

/// What the name of a part begins with.
const PART: &str = "part-";

/// Bytes of a record.
pub const RECORD_BYTES: usize = KEY_BYTES + VALUE_BYTES;

/// Why records could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordFileError {
    /// The path names a directory, a device or a pipe, whose length tells nothing.
    #[error(
        "{} is no regular file: write the records of a device or a pipe into a file first",
        .file.display()
    )]
    NoFile {
        /// The path.
        file: PathBuf,
    },
    /// The file has no record.
    #[error("{} is empty: there is no record to sort", .file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// The file is no list of records.
    #[error(
        "{} has {bytes} bytes, which are no whole records of {RECORD_BYTES} bytes ({KEY_BYTES} of \
         key, {VALUE_BYTES} of value)",
        .file.display()
    )]
    Length {
        /// The file.
        file: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// The directory has a part of a sort by more ranks. With the parts of this sort it would be no
    /// sorted file.
    #[error(
        "{}: {part} is of an earlier sort by more than {ranks} ranks; remove it, or name another \
         directory",
        .directory.display()
    )]
    LaterPart {
        /// The directory.
        directory: PathBuf,
        /// The name of the part.
        part: String,
        /// The ranks of this sort.
        ranks: usize,
    },
    /// The system refused a file.
    #[error("cannot {action} {}: {error}", .file.display())]
    Io {
        /// What was to be done with the file: a verb.
        action: &'static str,
        /// The file.
        file: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

/// Names the file, and what was to be done with it, in an error of the system.
fn about(action: &'static str, file: &Path) -> impl Fn(io::Error) -> RecordFileError {
    let file = file.to_owned();
    move |error| RecordFileError::Io { action, file: file.clone(), error }
}

/// Number of records in a file.
///
/// # Errors
/// When the file cannot be opened, is no regular file, is empty, or has a rest that is no record.
pub fn count_records(file: &Path) -> Result<u64, RecordFileError> {
    let metadata = fs::metadata(file).map_err(about("read", file))?;
    if !metadata.is_file() {
        return Err(RecordFileError::NoFile { file: file.to_owned() });
    }
    let bytes = metadata.len();
    if bytes == 0 {
        return Err(RecordFileError::Empty { file: file.to_owned() });
    }
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
pub fn read_share(file: &Path, rank: usize, ranks: usize) -> Result<SortRecords, RecordFileError> {
    let count = count_records(file)?;
    let first = |rank: usize| (u128::from(count) * rank as u128 / ranks.max(1) as u128) as u64;
    let mut input = File::open(file).map_err(about("read", file))?;
    let begin = SeekFrom::Start(first(rank) * RECORD_BYTES as u64);
    input.seek(begin).map_err(about("read", file))?;
    let count = (first(rank + 1) - first(rank)) as usize;
    let mut keys = Vec::with_capacity(count * KEY_BYTES);
    let mut values = Vec::with_capacity(count * VALUE_BYTES);
    let mut input = BufReader::with_capacity(1 << 20, input);
    let mut record = [0; RECORD_BYTES];
    for _ in 0..count {
        input.read_exact(&mut record).map_err(about("read", file))?;
        keys.extend_from_slice(&record[..KEY_BYTES]);
        values.extend_from_slice(&record[KEY_BYTES..]);
    }
    Ok(SortRecords { keys: keys.into(), values: values.into() })
}

/// The name of the part of a rank.
pub fn part_name(rank: usize) -> String {
    format!("{PART}{rank:05}")
}

/// Refuses a directory that has the part of a rank which this sort does not have. A missing
/// directory has no parts.
///
/// # Errors
/// [`RecordFileError::LaterPart`].
pub fn expect_no_later_part(directory: &Path, ranks: usize) -> Result<(), RecordFileError> {
    let Ok(entries) = fs::read_dir(directory) else { return Ok(()) };
    for entry in entries.flatten() {
        let part = entry.file_name().to_string_lossy().into_owned();
        let rank: Option<usize> = part.strip_prefix(PART).and_then(|rank| rank.parse().ok());
        if rank.is_some_and(|rank| rank >= ranks) {
            let directory = directory.to_owned();
            return Err(RecordFileError::LaterPart { directory, part, ranks });
        }
    }
    Ok(())
}

/// Makes the directory of the parts for this user alone, if it is missing.
///
/// # Errors
/// When the system refuses.
pub fn make_directory(dir: &Path) -> Result<(), RecordFileError> {
    create_private(dir).map_err(about("make the directory", dir))
}

/// The part of a rank while it is written. The file takes the name of the part by
/// [`take_name`](Self::take_name); without it, the file is removed when this value is dropped.
#[derive(Debug)]
pub struct PartFile {
    file: PathBuf,
    partial: PathBuf,
    output: BufWriter<File>,
    is_named: bool,
}

impl PartFile {
    /// Makes the file, still empty, in a directory that is there.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn create(dir: &Path, rank: usize) -> Result<Self, RecordFileError> {
        let (file, partial) = (dir.join(part_name(rank)), Self::partial_path(dir, rank));
        let output = File::create(&partial).map_err(about("write", &partial))?;
        let output = BufWriter::with_capacity(1 << 20, output);
        Ok(Self { file, partial, output, is_named: false })
    }

    /// Where a part lies while it has no name.
    pub fn partial_path(dir: &Path, rank: usize) -> PathBuf {
        dir.join(format!(".{}.partial", part_name(rank)))
    }

    /// Writes these records behind those that were written before.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn write_records(&mut self, records: &SortRecords) -> Result<(), RecordFileError> {
        let failed = about("write", &self.partial);
        for (key, value) in rows(records) {
            let output = &mut self.output;
            output.write_all(key).and_then(|()| output.write_all(value)).map_err(&failed)?;
        }
        self.output.flush().map_err(failed)
    }

    /// Gives the file its name, in place of an earlier file of that name.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn take_name(mut self) -> Result<PathBuf, RecordFileError> {
        fs::rename(&self.partial, &self.file).map_err(about("write", &self.file))?;
        self.is_named = true;
        Ok(self.file.clone())
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if !self.is_named {
            // A file that cannot be removed is hidden, and the next sort overwrites it.
            fs::remove_file(&self.partial).ok();
        }
    }
}

/// Writes the part of a rank into a directory, which is made if it is missing. The file takes its
/// name when it is whole, and no other file is left when it fails.
///
/// # Errors
/// When the directory or the file cannot be written.
pub fn write_part(
    dir: &Path,
    rank: usize,
    records: &SortRecords,
) -> Result<PathBuf, RecordFileError> {
    make_directory(dir)?;
    let mut part = PartFile::create(dir, rank)?;
    part.write_records(records)?;
    part.take_name()
}

/// Keys with their values.
pub(crate) fn rows(records: &SortRecords) -> impl Iterator<Item = (&[u8], &[u8])> {
    records.keys.chunks_exact(KEY_BYTES).zip(records.values.chunks_exact(VALUE_BYTES))
}

/// Keys and values of all records in one block: what a message of the group carries.
pub fn join_blocks(records: &SortRecords) -> Bytes {
    rows(records).flat_map(|(key, value)| key.iter().chain(value).copied()).collect()
}

/// The records of a block that [`join_blocks`] has made; a rest that is no record is left out.
pub fn split_block(block: &[u8]) -> SortRecords {
    let records = || block.chunks_exact(RECORD_BYTES);
    SortRecords {
        keys: records().flat_map(|record| record[..KEY_BYTES].iter().copied()).collect(),
        values: records().flat_map(|record| record[KEY_BYTES..].iter().copied()).collect(),
    }
}
