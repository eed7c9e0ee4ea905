//! The copy of the nameserver's log that a dataserver keeps. See [`crate::log_replication`].

use std::collections::BTreeMap;

use bytes::Bytes;
use evenfall_core::durable::Change;
use evenfall_core::{Write, WriteId};
use serde::{Deserialize, Serialize};

use crate::copy::removal;
use crate::dataserver::{Dataserver, Effect, Record};
use crate::log_replication::NOT_THERE;
use crate::wire::FilesControl;

/// A stream of the nameserver's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogStream {
    /// The generation. A later stream has a higher generation.
    pub generation: u64,
    /// The life of the nameserver that began the stream.
    pub life: u64,
    /// Number of bytes of the records that make the state at the beginning of the stream.
    pub base: u64,
    /// Number of changes that led to the state at the beginning of the stream.
    pub changes: u64,
}

/// How far the copy of the nameserver's log on this dataserver is.
#[derive(Debug, Default)]
pub struct LogReplica {
    /// The last stream that began.
    pub last: LogStream,
    /// The last stream whose beginning has come whole.
    pub whole: Option<LogStream>,
    /// Number of bytes of the last stream that were handed to the disk, and number of bytes on the
    /// disk. `None` when the stream cannot go on: the stream began in an earlier life of this
    /// dataserver, or a write of the stream has failed.
    at: Option<(u64, u64)>,
    /// Whether the record that the beginning of the last stream is whole is on its way to the disk.
    is_ending: bool,
    /// The stream of which a write has failed, and the length to which its log has to be cut.
    pub broken: Option<(LogStream, u64)>,
    /// The write that cuts the log of the broken stream, while this write is under way.
    pub cut: Option<WriteId>,
    /// Number of acknowledged changes in the last stream.
    done: u64,
    /// Writes that are under way. Each has the generation of its stream, and the length of the
    /// stream after the write.
    pub writes: BTreeMap<WriteId, (u64, u64)>,
}

impl LogReplica {
    /// Records of the present state.
    pub(crate) fn records(&self) -> Vec<Record> {
        let whole = self.whole.map(|stream| Record::NamesWhole { stream });
        let last = (self.last.generation > 0).then_some(Record::Names { stream: self.last });
        whole.into_iter().chain(last).collect()
    }
}

/// Beginning of the name of the log of a stream.
const PREFIX: &str = "names-";

/// The name of the log of a stream.
fn log_name(stream: LogStream) -> String {
    format!("{PREFIX}{:016x}", stream.generation)
}

/// Whether the log of this name has a copy of the nameserver's log.
pub fn is_log(name: &str) -> bool {
    name.starts_with(PREFIX)
}

impl Dataserver {
    /// The generation of the last stream of the nameserver's log that began here, and the name of
    /// the log of the last stream whose beginning came whole.
    pub fn log_replica_position(&self) -> (u64, Option<String>) {
        (self.log_replica.last.generation, self.log_replica.whole.map(log_name))
    }

    /// Takes bytes of the nameserver's log. The nameserver has acknowledged `done` changes.
    pub(crate) fn take_log_bytes(
        &mut self,
        stream: LogStream,
        done: u64,
        offset: u64,
        bytes: &Bytes,
    ) {
        let last = self.log_replica.last;
        let is_other = last.generation > 0 && stream.life != last.life;
        let is_less =
            stream.changes < self.log_replica.done || stream.generation == last.generation;
        if stream.generation < last.generation || (is_other && is_less) {
            // The datagram is late, or the nameserver has an old log.
            let generation = last.generation.max(stream.generation);
            return self.tell_kept(LogStream { generation, ..last }, 0);
        }
        if stream.generation > last.generation {
            if offset > 0 {
                return;
            }
            self.forget_part();
            (self.log_replica.last, self.log_replica.at) = (stream, Some((0, 0)));
            self.remember(&Record::Names { stream }, None);
        }
        self.log_replica.done = self.log_replica.done.max(done);
        let Some((queued, length)) = self.log_replica.at else {
            return self.tell_kept(stream, NOT_THERE);
        };
        if offset == queued && !bytes.is_empty() {
            let end = queued + bytes.len() as u64;
            self.log_replica.at = Some((end, length));
            let id = self.write_names(stream, Change::Append(bytes.clone()));
            self.log_replica.writes.insert(id, (stream.generation, end));
            return;
        }
        self.tell_length_of(stream, length);
    }

    /// Reports how many bytes of a stream are on the disk. A length that includes the whole
    /// beginning is reported only after the log here says that the beginning is whole.
    fn tell_length_of(&mut self, stream: LogStream, length: u64) {
        if length < stream.base || self.log_replica.whole == Some(stream) {
            self.tell_kept(stream, length);
        }
    }

    fn tell_kept(&mut self, stream: LogStream, length: u64) {
        let (disk, generation, life) = (self.disk, stream.generation, stream.life);
        self.tell(FilesControl::Kept { disk, generation, life, length });
    }

    /// Asks for a change of the copy of the nameserver's log that a stream makes.
    fn write_names(&mut self, stream: LogStream, change: Change) -> WriteId {
        let (id, log) = (self.next_write(), log_name(stream));
        self.data_out.push_back(Write { id, log, change });
        id
    }

    /// Removes the log of the last stream if the beginning of the stream has not come whole. While
    /// the record of a whole beginning is on its way to the disk, the log stays, and the next whole
    /// stream removes it.
    pub(crate) fn forget_part(&mut self) {
        let last = self.log_replica.last;
        if last.generation > 0
            && self.log_replica.whole != Some(last)
            && !self.log_replica.is_ending
        {
            self.write_names(last, removal());
        }
    }

    /// Cuts off the bytes behind a failed write, unless that cut is under way.
    pub(crate) fn mend_names(&mut self) {
        if let (Some((stream, length)), None) = (self.log_replica.broken, self.log_replica.cut) {
            self.log_replica.cut = Some(self.write_names(stream, Change::Truncate(length)));
        }
    }

    /// Takes the answer to the cut of a broken stream.
    pub(crate) fn names_mended(&mut self, is_done: bool) {
        self.log_replica.cut = None;
        self.log_replica.broken.take_if(|_| is_done);
    }

    /// Takes the answer to a write of a stream.
    pub(crate) fn names_written(&mut self, generation: u64, end: u64, is_done: bool) {
        let last = self.log_replica.last;
        let at = self.log_replica.at.filter(|_| generation == last.generation);
        let Some((queued, length)) = at else { return };
        if !is_done {
            // Writes behind the failed write may still succeed, and the cut removes their bytes.
            // The nameserver begins a new stream.
            (self.log_replica.at, self.log_replica.broken) = (None, Some((last, length)));
            self.mend_names();
            return self.tell_kept(last, NOT_THERE);
        }
        self.log_replica.at = Some((queued, end));
        self.note_whole();
        self.tell_length_of(last, end);
    }

    /// Writes down that the beginning of the last stream is whole.
    fn note_whole(&mut self) {
        let (last, whole) = (self.log_replica.last, self.log_replica.whole);
        let is_whole = self.log_replica.at.is_some_and(|(_, length)| length >= last.base);
        if is_whole && whole != Some(last) && !self.log_replica.is_ending {
            self.log_replica.is_ending = true;
            let effect = Effect::NamesWhole(last, whole);
            self.remember(&Record::NamesWhole { stream: last }, Some(effect));
        }
    }

    /// The log here now says that the beginning of `stream` is whole. The log of the stream `old`
    /// is removed.
    pub(crate) fn names_whole(&mut self, stream: LogStream, old: Option<LogStream>) {
        (self.log_replica.whole, self.log_replica.is_ending) = (Some(stream), false);
        if let Some(old) = old {
            self.write_names(old, removal());
        }
        match self.log_replica.at {
            Some((_, length)) if stream == self.log_replica.last => self.tell_kept(stream, length),
            _ => self.note_whole(),
        }
    }
}
