//! The messages of a stream that is still being recorded.

use std::time::{Duration, Instant};

use evenfall_store_engine::{RecordSource, StoreError};

use crate::catalog::first_whole;
use crate::read::MessageDecoder;
use crate::replay::StreamReplay;
use crate::rows::MessageRow;

/// How long a message may be missing while later ones exist, before it counts as lost.
const HOLE_CLOSES: Duration = Duration::from_secs(2);

/// A reader that remembers how far a stream has been read.
pub struct StreamFollower {
    stream: u32,
    decoder: MessageDecoder,
    next: u64,
    /// Since when the next message is missing although a later one exists.
    hole: Option<Instant>,
}

impl StreamFollower {
    /// Follows a stream from its first whole message on.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn new(
        source: &dyn RecordSource,
        recording: &str,
        stream: u32,
    ) -> Result<Self, StoreError> {
        let next = first_whole(source, recording, stream)?;
        let decoder = MessageDecoder::new(source, recording)?;
        Ok(Self { stream, decoder, next, hole: None })
    }

    /// Gives the messages that have come. The files of a recording grow one after the other, so a
    /// missing message gets some time to appear.
    ///
    /// # Errors
    /// The errors of the source and of `each`.
    pub fn read_new<E: From<StoreError>>(
        &mut self,
        source: &dyn RecordSource,
        recording: &str,
        each: &mut dyn FnMut(MessageRow) -> Result<(), E>,
    ) -> Result<(), E> {
        let stream = self.stream;
        let mut replay = StreamReplay::from_number(source, recording, stream, self.next)?;
        while let Some(recorded) = replay.next_message()? {
            if recorded.number > self.next
                && self.hole.get_or_insert_with(Instant::now).elapsed() < HOLE_CLOSES
            {
                return Ok(());
            }
            (self.next, self.hole) = (recorded.number + 1, None);
            each(self.decoder.decode(stream, recorded, None).0)?;
        }
        Ok(())
    }
}
