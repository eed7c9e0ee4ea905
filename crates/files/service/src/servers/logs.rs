//! Reads the chunks of a directory.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::path::PathBuf;

use bytes::Bytes;
use evenfall_core::StorageError;
use evenfall_files_machine::chunk::{self, AppendHead, ChunkScan, HEAD_BYTES};
use evenfall_files_machine::{InodeId, log_replica};
use evenfall_runtime::http::streams::Pieces;
use rustix::buffer::spare_capacity;
use rustix::io::Errno;

/// Bytes of a piece of a log that is sent whole.
const PIECE_BYTES: u64 = 1 << 20;

/// A directory of chunks, with the chunk that was read last.
#[derive(Debug)]
pub struct Logs {
    directory: PathBuf,
    open: Option<(String, File)>,
    /// Least number of bytes that is read from the disk at once.
    ahead_bytes: usize,
    /// The bytes of the last read from the disk, with their first offset.
    ahead: (u64, Bytes),
}

fn failed(name: &str, error: &io::Error) -> StorageError {
    StorageError::Failed { name: name.to_owned(), what: error.to_string() }
}

impl Logs {
    /// The chunks of this directory.
    pub fn new(directory: PathBuf) -> Self {
        Self::ahead(directory, 0)
    }

    /// The chunks of this directory, for a reader of one byte after the other. `ahead_bytes` are
    /// read from the disk at once. Bytes that have been read are not read again, so the reader must
    /// only ask for bytes that do not change any more.
    pub fn ahead(directory: PathBuf, ahead_bytes: usize) -> Self {
        Self { directory, open: None, ahead_bytes, ahead: (0, Bytes::new()) }
    }

    /// Closes the chunk that was read last.
    pub fn close(&mut self) {
        self.open = None;
    }

    /// Reads up to `len` bytes of a log. The result has fewer bytes at the end of the log, and no
    /// bytes when the log is missing. A sector that the disk cannot read ends the log too, so that
    /// the bytes count as damaged.
    ///
    /// # Errors
    /// When the log cannot be opened or read for another reason.
    pub fn read(&mut self, log: &str, at: u64, len: usize) -> Result<Bytes, StorageError> {
        if self.open.as_ref().is_none_or(|(open, _)| open != log) {
            self.ahead = (0, Bytes::new());
            match File::open(self.directory.join(log)) {
                Ok(file) => self.open = Some((log.to_owned(), file)),
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Bytes::new()),
                Err(error) => return Err(failed(log, &error)),
            }
        }
        let Some((_, file)) = &self.open else { return Ok(Bytes::new()) };
        let (from, there) = &self.ahead;
        let skip = at.checked_sub(*from).and_then(|skip| usize::try_from(skip).ok());
        let end = skip.and_then(|skip| skip.checked_add(len));
        if let (Some(skip), Some(end)) = (skip, end)
            && end <= there.len()
        {
            return Ok(there.slice(skip..end));
        }
        let mut bytes = Vec::with_capacity(len.max(self.ahead_bytes));
        while bytes.len() < len {
            let behind = at + bytes.len() as u64;
            match rustix::io::pread(file, spare_capacity(&mut bytes), behind) {
                Ok(0) | Err(Errno::IO) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(failed(log, &error.into())),
            }
        }
        let bytes = Bytes::from(bytes);
        if self.ahead_bytes > 0 {
            self.ahead = (at, bytes.clone());
        }
        Ok(bytes.slice(..len.min(bytes.len())))
    }

    /// A whole log in pieces, and its length.
    ///
    /// # Errors
    /// When the log cannot be opened.
    pub fn pieces(&self, log: &str) -> Result<(u64, Pieces), StorageError> {
        let wrong = |error: io::Error| failed(log, &error);
        let file = File::open(self.directory.join(log)).map_err(wrong)?;
        let length = file.metadata().map_err(wrong)?.len();
        let mut rest = file.take(length);
        let next = move || {
            let mut piece = Vec::new();
            match rest.by_ref().take(PIECE_BYTES).read_to_end(&mut piece) {
                Ok(0) => None,
                Ok(_) => Some(Ok(Bytes::from(piece))),
                Err(error) => Some(Err(error)),
            }
        };
        Ok((length, Box::new(std::iter::from_fn(next))))
    }

    /// Scans all chunks of the directory. An empty log belongs to a deleted chunk or is an old copy
    /// of the nameserver's log, and is removed.
    ///
    /// # Errors
    /// When the directory or a log cannot be read.
    pub fn scan(&mut self) -> Result<Vec<(InodeId, u64, ChunkScan)>, StorageError> {
        let wrong = |error: io::Error| failed("chunks", &error);
        let mut all = Vec::new();
        for entry in std::fs::read_dir(&self.directory).map_err(wrong)? {
            let entry = entry.map_err(wrong)?;
            let name = entry.file_name();
            let name = name.to_str().unwrap_or_default();
            let chunk = chunk::of_name(name);
            if chunk.is_none() && !log_replica::is_log(name) {
                continue;
            }
            let bytes = entry.metadata().map_err(wrong)?.len();
            if bytes == 0 {
                std::fs::remove_file(entry.path()).map_err(wrong)?;
            }
            let Some((file, start)) = chunk.filter(|_| bytes > 0) else { continue };
            let mut read = |log: &str, at, len| self.read(log, at, len);
            all.push((file, start, chunk::scan(file, start, bytes, &mut read)?));
        }
        Ok(all)
    }

    /// The CRC32C of the first `end` bytes of a file, out of the checksums of its appends. `None`
    /// when a head is damaged or missing.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub fn checksum(
        &mut self,
        file: InodeId,
        chunks: &[u64],
        end: u64,
    ) -> Result<Option<u32>, StorageError> {
        let (mut sum, mut offset) = (0, 0);
        for (at, start) in chunks.iter().enumerate() {
            let (log, mut position) = (chunk::log_name(file, *start), 0);
            let chunk_end = chunks.get(at + 1).map_or(end, |next| end.min(*next));
            while offset < chunk_end {
                let head = self.read(&log, position, HEAD_BYTES)?;
                let head = (head.len() == HEAD_BYTES).then(|| AppendHead::read(&head)).flatten();
                let Some(head) = head.filter(|head| head.offset == offset) else { return Ok(None) };
                sum = crc32c::crc32c_combine(sum, head.crc, head.length as usize);
                offset += u64::from(head.length);
                position += HEAD_BYTES as u64 + u64::from(head.length);
            }
        }
        Ok((offset >= end).then_some(sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_appends_in_several_chunks_is_that_of_the_whole_file() {
        let directory = tempfile::tempdir().unwrap();
        let (file, all) = (InodeId(7), b"abcdefghij".repeat(500));
        let chunks = [0_u64, 1_000, 1_003];
        for (at, start) in chunks.iter().enumerate() {
            let end = chunks.get(at + 1).map_or(all.len(), |next| *next as usize);
            let mut log = Vec::new();
            let mut offset = *start as usize;
            while offset < end {
                let next = end.min(offset + 300);
                log.extend_from_slice(&chunk::encode(offset as u64, &all[offset..next]));
                offset = next;
            }
            std::fs::write(directory.path().join(chunk::log_name(file, *start)), log).unwrap();
        }
        let mut logs = Logs::new(directory.path().to_owned());
        let sum = |logs: &mut Logs, end| logs.checksum(file, &chunks, end).unwrap();
        assert_eq!(sum(&mut logs, 5_000), Some(crc32c::crc32c(&all)));
        assert_eq!(sum(&mut logs, 1_000), Some(crc32c::crc32c(&all[..1_000])));
        assert_eq!(sum(&mut logs, 5_001), None);
        std::fs::write(directory.path().join(chunk::log_name(file, 1_000)), "torn").unwrap();
        assert_eq!(sum(&mut Logs::new(directory.path().to_owned()), 5_000), None);
    }

    #[test]
    fn a_start_removes_the_empty_logs_of_deleted_chunks_and_scans_the_others() {
        let directory = tempfile::tempdir().unwrap();
        let path = |start| directory.path().join(chunk::log_name(InodeId(1), start));
        std::fs::write(path(0), chunk::encode(0, b"abc")).unwrap();
        std::fs::write(path(3), b"").unwrap();
        std::fs::write(directory.path().join("copies"), b"").unwrap();
        let all = Logs::new(directory.path().to_owned()).scan().unwrap();
        assert_eq!(
            all.iter().map(|(_, start, scan)| (*start, scan.end)).collect::<Vec<_>>(),
            [(0, 3)]
        );
        assert!(!path(3).exists() && directory.path().join("copies").exists());
    }
}
