//! Reads the bytes of a file from the chunks of a copy, for readers and for dataservers that make a
//! copy of their own.

use std::collections::HashMap;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::SharedKey;
use evenfall_files_machine::chunk::{AppendReader, Damage};
use evenfall_files_machine::config::{APPEND_BYTES_MAX, READ_BYTES};
use evenfall_files_machine::{CopyView, Dataserver, DiskId, InodeId};
use evenfall_runtime::http::{Answered, Method, StatusCode, Upload, exchange_under};

use super::flows::Counts;
use super::logs::Logs;
use super::owner::OwnerInbox;
use super::scrubbing::report;
use super::webhdfs::{PREFIX, escaped};

/// A dataserver that sends nothing for this long is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes that a reader takes from the disk at once. Each of up to 256 connections has three times
/// as many bytes on their way at most.
const AHEAD_BYTES: usize = 1 << 20;
/// Limit of the readings for joiners whose place is remembered.
const READERS_MAX: usize = 64;

/// The bytes of a file, append by append. From a damaged append on, the bytes come from another
/// member, and the damage is reported, so that the copy is made anew.
pub struct FileReading {
    inbox: OwnerInbox<Dataserver>,
    file: InodeId,
    /// The epoch of the copy when the reading began. A copy of another epoch may have been cut or
    /// removed since, which is no damage.
    epoch: Option<u64>,
    path: String,
    at: u64,
    end: u64,
    others: Vec<SocketAddr>,
    key: Option<SharedKey>,
    appends: AppendReader,
    logs: Logs,
    other: Option<Answered>,
    /// The flow that the bytes belong to, and where it is counted.
    flow: Option<(u64, Counts)>,
}

impl FileReading {
    /// The bytes of `range` of a copy in this state. `others` are asked when the copy is damaged,
    /// over connections that are sealed under the key if there is one.
    pub fn new(
        inbox: &OwnerInbox<Dataserver>,
        directory: PathBuf,
        (file, path): (InodeId, &str),
        (view, epoch): (CopyView, Option<u64>),
        range: std::ops::Range<u64>,
        (others, key): (Vec<SocketAddr>, Option<SharedKey>),
    ) -> Self {
        let ahead = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let ahead = ahead.saturating_add(APPEND_BYTES_MAX).min(AHEAD_BYTES);
        Self {
            inbox: inbox.clone(),
            file,
            epoch,
            path: escaped(path),
            at: range.start,
            end: range.end,
            others,
            key,
            appends: AppendReader::new(file, view.chunks),
            logs: Logs::ahead(directory, ahead),
            other: None,
            flow: None,
        }
    }

    /// The same bytes, counted as those of a flow.
    pub fn counted(self, flow: Option<(u64, Counts)>) -> Self {
        Self { flow, ..self }
    }

    /// The next bytes were read.
    fn moved(&mut self, len: usize) {
        self.at += len as u64;
        if let Some((flow, counts)) = &self.flow {
            counts.add(*flow, len as u64);
        }
    }

    fn here(&mut self) -> Result<Bytes, Damage> {
        let logs = &mut self.logs;
        let mut read = |log: &str, at, len| logs.read(log, at, len);
        let (begin, _, body) = self.appends.read(self.at, &mut read)?;
        let from = (self.at - begin) as usize;
        let to = body.len().min((self.end - begin) as usize);
        Ok(body.slice(from..to))
    }

    /// Tells of damage.
    fn report(&self, damage: &Damage) {
        // An owner that has ended needs no report.
        let is_reported = report(&self.inbox, self.file, self.epoch, damage).unwrap_or(false);
        let follows = if is_reported { ": the copy is made anew" } else { "" };
        let file = self.file.0;
        tracing::warn!("file {file}: {damage}: reading from another dataserver{follows}");
    }

    /// Asks the other members for the rest.
    fn turn_elsewhere(&mut self) -> io::Result<()> {
        let (at, end, id, path) = (self.at, self.end, self.file.0, &self.path);
        for other in core::mem::take(&mut self.others) {
            let arguments = format!("op=OPEN&file={id}&only=true&offset={at}&end={end}");
            let url = format!("http://{other}{PREFIX}{path}?{arguments}&length={}", end - at);
            let (key, none) = (self.key.as_ref(), Upload::none());
            let answer = exchange_under(key, &url, Method::GET, none, PATIENCE, &mut |_| {});
            if let Ok(answer) = answer
                && answer.status == StatusCode::OK
            {
                self.other = Some(answer);
                return Ok(());
            }
        }
        Err(io::Error::other("no other copy of the file answers"))
    }
}

impl Iterator for FileReading {
    type Item = io::Result<Bytes>;

    fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.at >= self.end {
            return None;
        }
        if self.other.is_none() {
            match self.here() {
                Ok(bytes) => {
                    self.moved(bytes.len());
                    return Some(Ok(bytes));
                }
                Err(damage) => {
                    self.report(&damage);
                    if let Err(error) = self.turn_elsewhere() {
                        return Some(Err(error));
                    }
                }
            }
        }
        let mut piece = vec![0; APPEND_BYTES_MAX];
        match self.other.as_mut()?.read(&mut piece) {
            Ok(0) => Some(Err(io::ErrorKind::UnexpectedEof.into())),
            Ok(len) => {
                piece.truncate(len);
                self.moved(len);
                Some(Ok(piece.into()))
            }
            Err(error) => Some(Err(error)),
        }
    }
}

/// Readings of copies for joiners. The place where each reading ended is remembered, because the
/// joiner reads on from that place.
pub struct Joins {
    directory: PathBuf,
    readers: HashMap<(InodeId, DiskId), (Vec<u64>, AppendReader, Logs)>,
}

impl Joins {
    /// Readings out of this directory.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory, readers: HashMap::new() }
    }

    /// The appends from `offset` on that one reading brings.
    ///
    /// # Errors
    /// When the first of them cannot be read.
    pub fn read(
        &mut self,
        file: InodeId,
        disk: DiskId,
        chunks: Vec<u64>,
        offset: u64,
    ) -> Result<Vec<Bytes>, Damage> {
        let key = (file, disk);
        if self.readers.len() >= READERS_MAX && !self.readers.contains_key(&key) {
            self.readers.clear();
        }
        if self.readers.get(&key).is_none_or(|(known, ..)| *known != chunks) {
            let appends = AppendReader::new(file, chunks.clone());
            self.readers.insert(key, (chunks, appends, Logs::new(self.directory.clone())));
        }
        let Some((_, appends, logs)) = self.readers.get_mut(&key) else { return Ok(Vec::new()) };
        let (mut all, mut at, mut bytes) = (Vec::new(), offset, 0);
        while bytes < READ_BYTES {
            let mut read = |log: &str, at, len| logs.read(log, at, len);
            match appends.read(at, &mut read) {
                Ok((begin, _, body)) if begin == at => {
                    at += body.len() as u64;
                    bytes += body.len();
                    all.push(body);
                }
                Err(damage) if all.is_empty() => return Err(damage),
                _ => break,
            }
        }
        Ok(all)
    }
}
