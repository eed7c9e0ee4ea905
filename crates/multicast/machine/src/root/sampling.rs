//! Which frames receivers report one by one.

use core::time::Duration;
use std::collections::VecDeque;

use evenfall_core::Timestamp;

use crate::hold::LoadClass;

/// Frames that are sampled back to back. A receiver's report holds twice as many.
const BURST: u32 = 100;

/// Sampled frames that are remembered: four seconds at the default rate. A later report of a frame
/// does not count.
const SAMPLED_MAX: usize = 8_192;

/// The state of a sampled frame, which the root keeps until receivers have reported the frame's
/// delay.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampledFrame {
    /// How long the frame was to be held, if it had a deadline.
    pub(super) hold_ns: Option<u32>,
    pub(super) messages: u16,
    pub(super) load: LoadClass,
    /// Whether the frame was late, once that is known.
    pub(super) was_late: Option<bool>,
}

/// The latest sampled frames, by number. The numbers of a root's frames only grow.
#[derive(Debug, Default)]
pub(super) struct SampledFrames(VecDeque<(u64, SampledFrame)>);

impl SampledFrames {
    /// Remembers a frame, whose number is above all numbers before.
    pub(super) fn push_frame(&mut self, sequence: u64, frame: SampledFrame) {
        if self.0.len() >= SAMPLED_MAX {
            self.0.pop_front();
        }
        self.0.push_back((sequence, frame));
    }

    /// The frame with this number, if it is remembered.
    pub(super) fn find_frame(&mut self, sequence: u64) -> Option<&mut SampledFrame> {
        let at = self.0.binary_search_by_key(&sequence, |(number, _)| *number).ok()?;
        self.0.get_mut(at).map(|(_, frame)| frame)
    }
}

/// Chooses frames at a bounded mean rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampleCredit {
    next: Timestamp,
}

impl SampleCredit {
    pub(super) fn new(now: Timestamp) -> Self {
        Self { next: now }
    }

    /// Whether a frame that leaves now is chosen, at this many frames per second in the long run.
    pub(super) fn choose(&mut self, now: Timestamp, per_second: u32) -> bool {
        // Credit lets a burst be sampled as densely as the quiet time before it, because late
        // messages are late in bursts.
        let every = Duration::from_secs(1) / per_second;
        self.next = self.next.max(now - every * BURST);
        if now < self.next {
            return false;
        }
        self.next += every;
        true
    }
}
