//! The rehearsal of the feed: empty frames that measure the paths before the first message.

use std::time::Duration;

use evenfall_core::Timestamp;
use evenfall_host::clock::MonotonicClock;
use evenfall_multicast_machine::Root;

use super::{RoleError, Run};

/// The bursts of the rehearsal before the first message, as numbers of empty frames and the time
/// between two frames. The rehearsal measures the hold of a burst before the market's open brings
/// one. Receivers take a burst without gaps in few wake-ups. A burst whose frames each wake all
/// receivers is the hard case on crowded cores.
const REHEARSED: [(usize, Duration); 8] = [
    (1, Duration::ZERO),
    (32, Duration::from_micros(400)),
    (4, Duration::ZERO),
    (32, Duration::from_micros(200)),
    (16, Duration::ZERO),
    (32, Duration::from_micros(100)),
    (64, Duration::ZERO),
    (32, Duration::from_micros(50)),
];
/// Single frames after each burst. Most of a feed is quiet, so the hold of a quiet frame must be
/// known best. Eight bursts with their single frames take half a second. Four seconds therefore
/// bring more than the thousand frames after which the hold no longer adds a guard for a small
/// sample.
const REHEARSED_ALONE: usize = 20;
/// How long the tree rests after a burst, at least. The rest grows with the frames of the burst.
const REST_MIN: Duration = Duration::from_millis(2);
const REST_PER_FRAME: Duration = Duration::from_micros(400);
/// Frames of a burst that leave in one turn: as many as `PUBLISH_BATCH` messages fill.
const REHEARSED_BATCH: usize = 8;

impl Run<'_> {
    /// Rehearses the feed. `false` when a signal came.
    pub(super) fn rehearse_for(&mut self, span: Duration) -> Result<bool, RoleError> {
        let end = MonotonicClock::now() + span;
        for burst in REHEARSED.into_iter().cycle() {
            if MonotonicClock::now() >= end {
                break;
            }
            let alone = [(1, Duration::ZERO); REHEARSED_ALONE];
            for (frames, apart) in core::iter::once(burst).chain(alone) {
                if !self.rehearse(frames, apart)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Sends a burst of empty frames and lets it drain. `false` when a signal came.
    fn rehearse(&mut self, frames: usize, apart: Duration) -> Result<bool, RoleError> {
        let start = MonotonicClock::now();
        let apart = apart.max(self.settings.multicast.framing.coalesce);
        for sent in 1..=frames {
            // As with messages, each frame goes to one tree.
            let tree = self.rehearsed % self.roots.len();
            self.rehearsed += 1;
            self.on_root(tree, Root::warm_up)?;
            let next = start + apart * sent as u32;
            let is_turn = sent % REHEARSED_BATCH == 0 || MonotonicClock::now() < next;
            if is_turn && !self.turn_until(next)? {
                return Ok(false);
            }
        }
        self.turn_until(MonotonicClock::now() + REST_MIN + REST_PER_FRAME * frames as u32)
    }

    /// Takes turns until this moment, and at least one. `false` when a signal came.
    fn turn_until(&mut self, until: Timestamp) -> Result<bool, RoleError> {
        loop {
            if !self.turn(Some(until))? {
                return Ok(false);
            }
            if MonotonicClock::now() >= until {
                return Ok(true);
            }
        }
    }
}
