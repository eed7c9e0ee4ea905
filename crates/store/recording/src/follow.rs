//! The messages of a recording that still grows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenfall_store_engine::{KnownEnd, RecordSource, StoreError};

use crate::catalog::Catalog;
use crate::decode::{DecodedStream, MessageDecoder};
use crate::rows::MessageRow;
use crate::snapshot::{ALL_TIMES, RecordingSnapshot};

/// How long a message may be missing while later ones exist, before it counts as lost.
const HOLE_CLOSES: Duration = Duration::from_secs(2);
/// How often the files of the recording are listed. A file appears with the first message of its
/// size.
const LIST_EVERY: Duration = Duration::from_secs(1);
/// Least time between two looks at a recording that grows all the time. A look costs some dozens of
/// requests per stream, which the recorder itself answers.
const LOOKS_APART_MIN: Duration = Duration::from_millis(5);
/// Time from one look to the next, in times of what the first took. A follower of many streams thus
/// keeps the recorder busy for a quarter of the time.
const LOOKS_APART_PER_LOOK: u32 = 4;

/// One stream that is followed.
struct StreamFollower {
    decoder: Option<MessageDecoder>,
    next: u64,
    /// Since when the next message is missing although a later one exists.
    hole: Option<Instant>,
}

/// A reader that remembers how far a recording has been read.
pub struct RecordingFollower {
    source: Arc<dyn RecordSource>,
    catalog: Catalog,
    listed_at: Instant,
    name: String,
    streams: BTreeMap<u32, StreamFollower>,
    /// How far the files of messages reached at the last look; `None` before it.
    seen: Option<Vec<KnownEnd>>,
    /// When the last look began, and how long it took to learn how far the recording reaches.
    /// Reading the messages is no part of that, because it costs as much in fewer looks.
    looked_at: Instant,
    look_took: Duration,
}

impl RecordingFollower {
    /// Follows a recording from the first message that this snapshot still has whole.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn new(snapshot: &RecordingSnapshot) -> Result<Self, StoreError> {
        Self::beginning_with(snapshot, u64::MAX)
    }

    /// Follows a recording from the last `count` messages of each stream on.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn beginning_with(snapshot: &RecordingSnapshot, count: u64) -> Result<Self, StoreError> {
        let source = Arc::clone(snapshot.source());
        let streams = snapshot.streams().iter().map(|stream| {
            let numbers = stream.numbers();
            let next = numbers.start.max(numbers.end.saturating_sub(count));
            (stream.stream(), StreamFollower { decoder: None, next, hole: None })
        });
        Ok(Self {
            catalog: Catalog::read(&*source)?,
            listed_at: Instant::now(),
            name: snapshot.name().to_owned(),
            streams: streams.collect(),
            seen: None,
            looked_at: Instant::now(),
            look_took: Duration::ZERO,
            source,
        })
    }

    /// Waits until there may be messages that [`read_new`](Self::read_new) has not given, or until
    /// the moment. A message wakes the wait; see [`RecordSource::wait_past`] for sources that
    /// cannot wake. The wait also ends when it is time to look for new files or for lost messages.
    /// Returns whether the source has said that there are messages.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn wait_new(&mut self, until: Instant) -> Result<bool, StoreError> {
        let mut until = until.min(self.listed_at + LIST_EVERY);
        let holes = self.streams.values().filter_map(|stream| stream.hole);
        // A hole that was closed at the last look has no later message in the store, and another
        // look would find none either.
        for closes in holes.map(|hole| hole + HOLE_CLOSES).filter(|at| *at > self.looked_at) {
            until = until.min(closes);
        }
        let Some(seen) = &self.seen else { return Ok(false) };
        let apart = LOOKS_APART_MIN.max(self.look_took * LOOKS_APART_PER_LOOK);
        let earliest = until.min(self.looked_at + apart);
        std::thread::sleep(earliest.saturating_duration_since(Instant::now()));
        self.source.wait_past(seen, until)
    }

    /// Gives the messages that have come. The files of a recording grow one after the other, so a
    /// missing message gets some time to appear.
    ///
    /// # Errors
    /// The errors of the source and of `each`.
    pub fn read_new<E: From<StoreError>>(
        &mut self,
        each: &mut dyn FnMut(MessageRow) -> Result<(), E>,
    ) -> Result<(), E> {
        self.looked_at = Instant::now();
        if self.listed_at.elapsed() >= LIST_EVERY {
            self.catalog = Catalog::read(&*self.source)?;
            self.listed_at = Instant::now();
        }
        let Some(files) = self.catalog.recording(&self.name) else {
            self.seen = Some(Vec::new());
            return Ok(());
        };
        let now = RecordingSnapshot::open(Arc::clone(&self.source), files)?;
        self.look_took = self.looked_at.elapsed();
        self.seen = Some(now.known_ends(files));
        for stream in now.streams() {
            let numbers = stream.numbers();
            let new = || StreamFollower { decoder: None, next: numbers.start, hole: None };
            let following = self.streams.entry(stream.stream()).or_insert_with(new);
            if numbers.end <= following.next {
                continue;
            }
            if following.decoder.is_none() {
                following.decoder = Some(now.decoder_at(following.next)?);
            }
            let Some(decoder) = &mut following.decoder else { continue };
            let source = &*self.source;
            let mut replay = stream.replay(source, following.next..numbers.end, &ALL_TIMES)?;
            while let Some(recorded) = replay.next_message()? {
                if recorded.number > following.next
                    && following.hole.get_or_insert_with(Instant::now).elapsed() < HOLE_CLOSES
                {
                    break;
                }
                (following.next, following.hole) = (recorded.number + 1, None);
                each(decoder.decode(DecodedStream { source, stream }, recorded, None)?.0)?;
            }
        }
        Ok(())
    }
}
