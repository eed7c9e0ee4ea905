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
pub struct Stream {
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
pub struct Kept {
    /// The last stream that began.
    pub last: Stream,
    /// The last stream whose beginning has come whole.
    pub whole: Option<Stream>,
    /// Number of bytes of the last stream that were handed to the disk, and number of bytes on the
    /// disk. `None` when the stream cannot go on: the stream began in an earlier life of this
    /// dataserver, or a write of the stream has failed.
    at: Option<(u64, u64)>,
    /// Whether the record that the beginning of the last stream is whole is on its way to the disk.
    is_ending: bool,
    /// The stream of which a write has failed, and the length to which its log has to be cut.
    pub broken: Option<(Stream, u64)>,
    /// The write that cuts the log of the broken stream, while this write is under way.
    pub cut: Option<WriteId>,
    /// Number of acknowledged changes in the last stream.
    done: u64,
    /// Writes that are under way. Each has the generation of its stream, and the length of the
    /// stream after the write.
    pub writes: BTreeMap<WriteId, (u64, u64)>,
}

impl Kept {
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
fn log_name(stream: Stream) -> String {
    format!("{PREFIX}{:016x}", stream.generation)
}

/// Whether the log of this name has a copy of the nameserver's log.
pub fn is_log(name: &str) -> bool {
    name.starts_with(PREFIX)
}

impl Dataserver {
    /// The generation of the last stream of the nameserver's log that began here, and the name of
    /// the log of the last stream whose beginning came whole.
    pub fn kept(&self) -> (u64, Option<String>) {
        (self.kept.last.generation, self.kept.whole.map(log_name))
    }

    /// Takes bytes of the nameserver's log. The nameserver has acknowledged `done` changes.
    pub(crate) fn names(&mut self, stream: Stream, done: u64, offset: u64, bytes: &Bytes) {
        let last = self.kept.last;
        let is_other = last.generation > 0 && stream.life != last.life;
        let is_less = stream.changes < self.kept.done || stream.generation == last.generation;
        if stream.generation < last.generation || (is_other && is_less) {
            // The datagram is late, or the nameserver has an old log.
            let generation = last.generation.max(stream.generation);
            return self.tell_kept(Stream { generation, ..last }, 0);
        }
        if stream.generation > last.generation {
            if offset > 0 {
                return;
            }
            self.forget_part();
            (self.kept.last, self.kept.at) = (stream, Some((0, 0)));
            self.remember(&Record::Names { stream }, None);
        }
        self.kept.done = self.kept.done.max(done);
        let Some((queued, length)) = self.kept.at else {
            return self.tell_kept(stream, NOT_THERE);
        };
        if offset == queued && !bytes.is_empty() {
            let end = queued + bytes.len() as u64;
            self.kept.at = Some((end, length));
            let id = self.write_names(stream, Change::Append(bytes.clone()));
            self.kept.writes.insert(id, (stream.generation, end));
            return;
        }
        self.tell_length_of(stream, length);
    }

    /// Reports how many bytes of a stream are on the disk. A length that includes the whole
    /// beginning is reported only after the log here says that the beginning is whole.
    fn tell_length_of(&mut self, stream: Stream, length: u64) {
        if length < stream.base || self.kept.whole == Some(stream) {
            self.tell_kept(stream, length);
        }
    }

    fn tell_kept(&mut self, stream: Stream, length: u64) {
        let (disk, generation, life) = (self.disk, stream.generation, stream.life);
        self.tell(FilesControl::Kept { disk, generation, life, length });
    }

    /// Asks for a change of the copy of the nameserver's log that a stream makes.
    fn write_names(&mut self, stream: Stream, change: Change) -> WriteId {
        let (id, log) = (self.next_write(), log_name(stream));
        self.data_out.push_back(Write { id, log, change });
        id
    }

    /// Removes the log of the last stream if the beginning of the stream has not come whole. While
    /// the record of a whole beginning is on its way to the disk, the log stays, and the next whole
    /// stream removes it.
    pub(crate) fn forget_part(&mut self) {
        let last = self.kept.last;
        if last.generation > 0 && self.kept.whole != Some(last) && !self.kept.is_ending {
            self.write_names(last, removal());
        }
    }

    /// Cuts off the bytes behind a failed write, unless that cut is under way.
    pub(crate) fn mend_names(&mut self) {
        if let (Some((stream, length)), None) = (self.kept.broken, self.kept.cut) {
            self.kept.cut = Some(self.write_names(stream, Change::Truncate(length)));
        }
    }

    /// Takes the answer to the cut of a broken stream.
    pub(crate) fn names_mended(&mut self, is_done: bool) {
        self.kept.cut = None;
        self.kept.broken.take_if(|_| is_done);
    }

    /// Takes the answer to a write of a stream.
    pub(crate) fn names_written(&mut self, generation: u64, end: u64, is_done: bool) {
        let last = self.kept.last;
        let at = self.kept.at.filter(|_| generation == last.generation);
        let Some((queued, length)) = at else { return };
        if !is_done {
            // Writes behind the failed write may still succeed, and the cut removes their bytes.
            // The nameserver begins a new stream.
            (self.kept.at, self.kept.broken) = (None, Some((last, length)));
            self.mend_names();
            return self.tell_kept(last, NOT_THERE);
        }
        self.kept.at = Some((queued, end));
        self.note_whole();
        self.tell_length_of(last, end);
    }

    /// Writes down that the beginning of the last stream is whole.
    fn note_whole(&mut self) {
        let (last, whole) = (self.kept.last, self.kept.whole);
        let is_whole = self.kept.at.is_some_and(|(_, length)| length >= last.base);
        if is_whole && whole != Some(last) && !self.kept.is_ending {
            self.kept.is_ending = true;
            let effect = Effect::NamesWhole(last, whole);
            self.remember(&Record::NamesWhole { stream: last }, Some(effect));
        }
    }

    /// The log here now says that the beginning of `stream` is whole. The log of the stream `old`
    /// is removed.
    pub(crate) fn names_whole(&mut self, stream: Stream, old: Option<Stream>) {
        (self.kept.whole, self.kept.is_ending) = (Some(stream), false);
        if let Some(old) = old {
            self.write_names(old, removal());
        }
        match self.kept.at {
            Some((_, length)) if stream == self.kept.last => self.tell_kept(stream, length),
            _ => self.note_whole(),
        }
    }
}
