//! A recording compared with its signatures: shows, long after the feed, that a root wrote it.
//!
//! [`ChainAudit`] knows the rules. This module reads frames, messages and signatures of each stream
//! in the order of their numbers, and says where and when the first difference was recorded.

use core::fmt;
use std::sync::Arc;

use evenfall_multicast_machine::SignatureVerifier;
use evenfall_multicast_machine::signing::{AuditBreak, AuditCause, AuditCounts, ChainAudit};
use evenfall_store_engine::StoreError;
use evenfall_store_engine::source::RecordSource;
use evenfall_store_format::layout::record_time;
use evenfall_store_recording::files::frames_name;
use evenfall_store_recording::replay::first_where;
use evenfall_store_recording::{Catalog, StreamReplay};

use crate::frames::{FrameRecord, RECORD_BYTES, numbers_of};
use crate::signatures::{RecordedSignature, SignatureReader};

/// Frames that are read at once: 96 KiB.
const READ_FRAMES: u64 = 2_048;

/// The first place at which a recording is not what a root signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedBreak {
    /// The stream.
    pub stream: u32,
    /// Number of the frame or of the signature, and how it differs.
    pub at: AuditBreak,
    /// When the frame was recorded, in nanoseconds since 1970; when the frame behind it was, where
    /// the frame itself is missing. `None` behind the last frame.
    pub time_ns: Option<i64>,
}

impl fmt::Display for RecordedBreak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stream, at: AuditBreak { number, cause }, .. } = self;
        write!(f, "stream {stream}, frame {number}: {cause}")
    }
}

/// What a recording has of signatures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignedRecording {
    /// Over all streams, up to the first break.
    pub counts: AuditCounts,
    /// Messages that belong to no recorded frame, so that no signature covers them. A crash leaves
    /// some at the end of a recording.
    pub unframed_messages: u64,
    /// The first break of the first stream that has one.
    pub broken: Option<RecordedBreak>,
}

/// Compares all streams of a recording with their signatures.
///
/// # Errors
/// The errors of the source. A break is no error of this function.
pub fn audit_recording(
    source: &dyn RecordSource,
    name: &str,
    verifier: &Arc<dyn SignatureVerifier>,
) -> Result<SignedRecording, StoreError> {
    let mut seen = SignedRecording::default();
    let catalog = Catalog::read(source)?;
    let streams: Vec<u32> =
        catalog.recording(name).map_or_else(Vec::new, |files| files.streams().collect());
    for stream in streams {
        let mut audit = StreamAudit::new(source, name, stream, verifier)?;
        let broken = audit.read_all()?;
        seen.counts.add_stream(&audit.chain.finish());
        seen.unframed_messages += audit.unframed_messages;
        if let Some(at) = broken {
            let time_ns = time_of(source, name, stream, at.number)?;
            seen.broken = Some(RecordedBreak { stream, at, time_ns });
            break;
        }
    }
    Ok(seen)
}

/// When the frame of this number was recorded, or the first frame behind it.
fn time_of(
    source: &dyn RecordSource,
    name: &str,
    stream: u32,
    number: u64,
) -> Result<Option<i64>, StoreError> {
    let file = frames_name(name, stream);
    let numbers = source.between(&file, i64::MIN, i64::MAX)?;
    let is_it = |record: &[u8]| FrameRecord::of(record).sequence >= number;
    let at = first_where(source, &file, numbers.clone(), is_it)?;
    if !numbers.contains(&at) {
        return Ok(None);
    }
    Ok(Some(record_time(&source.numbers(&file, at..at + 1)?)))
}

/// One stream while it is compared.
struct StreamAudit<'a> {
    source: &'a dyn RecordSource,
    frames: String,
    replay: StreamReplay<'a>,
    signatures: SignatureReader<'a>,
    next: Option<RecordedSignature>,
    chain: ChainAudit,
    unframed_messages: u64,
}

impl<'a> StreamAudit<'a> {
    fn new(
        source: &'a dyn RecordSource,
        name: &str,
        stream: u32,
        verifier: &Arc<dyn SignatureVerifier>,
    ) -> Result<Self, StoreError> {
        let mut signatures = SignatureReader::new(source, name, stream)?;
        Ok(Self {
            source,
            frames: frames_name(name, stream),
            replay: StreamReplay::new(source, name, stream, i64::MIN..=i64::MAX)?,
            next: signatures.next_signature()?,
            signatures,
            chain: ChainAudit::new(stream, Arc::clone(verifier)),
            unframed_messages: 0,
        })
    }

    /// Compares all frames. Returns the first break.
    fn read_all(&mut self) -> Result<Option<AuditBreak>, StoreError> {
        // Messages that no recorder wrote, of a feed file for example, have no frames.
        let numbers = numbers_of(self.source, &self.frames)?;
        let mut at = numbers.start;
        while at < numbers.end {
            let until = (at + READ_FRAMES).min(numbers.end);
            let records = self.source.numbers(&self.frames, at..until)?;
            for record in records.chunks_exact(RECORD_BYTES) {
                if let Some(broken) = self.take(&FrameRecord::of(record))? {
                    return Ok(Some(broken));
                }
            }
            at = until;
        }
        let broken = self.take_signatures(u64::MAX)?;
        while self.replay.next_message()?.is_some() {
            self.unframed_messages += 1;
        }
        Ok(broken)
    }

    /// Takes the signatures below this number, whose own frames are not recorded.
    fn take_signatures(&mut self, below: u64) -> Result<Option<AuditBreak>, StoreError> {
        while let Some(signature) = self.next.take_if(|next| next.number < below) {
            let RecordedSignature { number, run_id, body } = signature;
            if let Err(broken) = self.chain.take_signature(number, run_id, &body) {
                return Ok(Some(broken));
            }
            self.next = self.signatures.next_signature()?;
        }
        Ok(None)
    }

    /// Takes the next frame, or the signature that has its number.
    fn take(&mut self, frame: &FrameRecord) -> Result<Option<AuditBreak>, StoreError> {
        let number = frame.sequence;
        if let Some(broken) = self.take_signatures(number)? {
            return Ok(Some(broken));
        }
        if self.next.as_ref().is_some_and(|next| next.number == number) {
            return self.take_signatures(number + 1);
        }
        if frame.is_signature {
            let cause = AuditCause::MissingSignature;
            return Ok(self.chain.is_anchored().then_some(AuditBreak { number, cause }));
        }
        let passed = &mut self.unframed_messages;
        let Some(archived) = frame.with_messages(&mut self.replay, passed)? else {
            return Ok(Some(AuditBreak { number, cause: AuditCause::MissingFrame }));
        };
        let run_id = self.next.as_ref().map(|next| next.run_id);
        Ok(self.chain.take_frame(&archived, run_id).err())
    }
}
