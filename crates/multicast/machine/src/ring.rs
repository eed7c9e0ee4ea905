//! Frames kept for repair, in a ring that is bounded in frames and in bytes, and the repair_queue
//! that answers requests from the ring.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use evenfall_core::{NodeId, Timestamp};
use std::net::SocketAddr;
use std::ops::Range;

use crate::config::Repair;
use crate::pace::Pace;
use crate::wire::OriginHeader;

/// A frame as it is forwarded: header, flags and sealed body.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub fixed: OriginHeader,
    pub flags: u8,
    pub body: Bytes,
}

/// The amounts that a machine keeps at present. Each number has its limit in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stored {
    /// Frames in the ring (`repair.ring_frames`).
    pub frames: usize,
    /// Bytes of their bodies (`repair.ring_bytes`).
    pub bytes: usize,
    /// Longest queue of frames that one neighbour asked for (`repair.child_queue_max`).
    pub asked: usize,
    /// Frames waiting to be sent (`framing.send_queue_frames`).
    pub queued: usize,
}

/// The newest frames, by number.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    frames: VecDeque<Option<Frame>>,
    /// Number of the frame at the front.
    base: u64,
    bytes: usize,
    frames_max: usize,
    bytes_max: usize,
}

impl Ring {
    pub(crate) fn new(config: &Repair, start: u64) -> Self {
        Self {
            frames: VecDeque::new(),
            base: start,
            bytes: 0,
            frames_max: config.ring_frames,
            bytes_max: config.ring_bytes,
        }
    }

    pub(crate) fn insert(&mut self, frame: Frame) {
        let Some(at) = frame.fixed.sequence.checked_sub(self.base) else { return };
        if at >= (self.frames.len() + self.frames_max) as u64 {
            self.frames.clear();
            self.bytes = 0;
            self.base = frame.fixed.sequence;
            return self.insert(frame);
        }
        let at = at as usize;
        while self.frames.len() <= at {
            self.frames.push_back(None);
        }
        self.bytes += frame.body.len();
        if let Some(old) = self.frames[at].replace(frame) {
            self.bytes -= old.body.len();
        }
        while self.frames.len() > self.frames_max || self.bytes > self.bytes_max {
            match self.frames.pop_front() {
                Some(old) => self.bytes -= old.map_or(0, |f| f.body.len()),
                None => break,
            }
            self.base += 1;
        }
    }

    /// Reads the oldest frame, which makes room for the next, and the newest.
    pub(crate) fn prefetch_far(&self) -> u64 {
        let ends = [self.frames.front(), self.frames.back()].into_iter().flatten().flatten();
        ends.fold(0, |word, frame| word ^ frame.fixed.sequence ^ frame.body.len() as u64)
    }

    /// Size of the ring at present.
    pub(crate) fn size(&self) -> Stored {
        Stored { frames: self.frames.len(), bytes: self.bytes, asked: 0, queued: 0 }
    }

    /// Numbers from the oldest frame to the newest. Some frames between them may be missing.
    fn numbers(&self) -> Range<u64> {
        self.base..self.base + self.frames.len() as u64
    }

    pub(crate) fn get(&self, sequence: u64) -> Option<&Frame> {
        self.frames.get(sequence.checked_sub(self.base)? as usize)?.as_ref()
    }
}

/// The requests of one asker.
#[derive(Clone, Debug)]
struct Queue {
    to: SocketAddr,
    wanted: BTreeSet<u64>,
}

/// Copies that may leave at once. A full datagram takes 12 us on a link of 1 Gb/s, so a live frame
/// waits at most a tenth of a millisecond behind eight copies.
const BURST: u32 = 8;

/// Serves repair requests in turn, so that an asker with a long queue delays no other asker. Copies
/// leave no faster than `repair.frames_per_second`, so that the live feed is not delayed.
#[derive(Clone, Debug)]
pub(crate) struct RepairQueue {
    queues: BTreeMap<NodeId, Queue>,
    /// Requests that were dropped per asker because its queue was full, and the time since which
    /// they are counted.
    drops: BTreeMap<NodeId, (Timestamp, u32)>,
    /// The asker that had the last turn.
    last: NodeId,
    pace: Pace,
}

impl RepairQueue {
    pub(crate) fn new(config: &Repair) -> Self {
        Self {
            queues: BTreeMap::new(),
            drops: BTreeMap::new(),
            last: NodeId(0),
            pace: Pace::new(config.frames_per_second, BURST),
        }
    }

    /// Queues a request. Returns `true` when the asker overflowed its queue so often within a
    /// second that it is too slow to stay.
    pub(crate) fn ask(
        &mut self,
        now: Timestamp,
        (from, to): (NodeId, SocketAddr),
        ranges: &[(u64, u16)],
        ring: &Ring,
        config: &Repair,
    ) -> bool {
        let queue =
            self.queues.entry(from).or_insert_with(|| Queue { to, wanted: BTreeSet::new() });
        queue.to = to;
        let mut dropped = 0;
        for &(first, count) in ranges {
            let held = ring.numbers();
            let end = first.saturating_add(u64::from(count)).min(held.end);
            for sequence in first.max(held.start)..end {
                // An asker that repeats a request before the answer has left gets one copy.
                if ring.get(sequence).is_none() || queue.wanted.contains(&sequence) {
                    continue;
                }
                if queue.wanted.len() >= config.child_queue_max {
                    dropped += 1;
                } else {
                    queue.wanted.insert(sequence);
                }
            }
        }
        if queue.wanted.is_empty() {
            self.queues.remove(&from);
        }
        if dropped == 0 {
            return false;
        }
        let (since, count) = self.drops.entry(from).or_insert((now, 0));
        if now.since(*since).as_secs() >= 1 {
            (*since, *count) = (now, 0);
        }
        *count += dropped;
        *count > config.evict_after_drops
    }

    /// Length of the longest queue.
    pub(crate) fn longest(&self) -> usize {
        self.queues.values().map(|queue| queue.wanted.len()).max().unwrap_or(0)
    }

    /// Drops all requests of a node.
    pub(crate) fn forget(&mut self, node: NodeId) {
        self.queues.remove(&node);
        self.drops.remove(&node);
    }

    /// When a copy may leave that was wanted too early.
    pub(crate) fn poll_timeout(&self) -> Option<Timestamp> {
        self.pace.retry_at()
    }

    pub(crate) fn handle_timeout(&mut self, now: Timestamp) {
        self.pace.handle_timeout(now);
    }

    /// The next copy to send; `None` when no copy may leave yet.
    pub(crate) fn next(&mut self, now: Timestamp, ring: &Ring) -> Option<(SocketAddr, Frame)> {
        while !self.queues.is_empty() && self.pace.allows(now) {
            let after = self.queues.range(NodeId(self.last.0.wrapping_add(1))..).next();
            let node = *after.or_else(|| self.queues.iter().next())?.0;
            self.last = node;
            let queue = self.queues.get_mut(&node).expect("just found");
            let found = queue.wanted.pop_first().and_then(|sequence| ring.get(sequence)).cloned();
            let to = queue.to;
            if queue.wanted.is_empty() {
                self.queues.remove(&node);
            }
            if let Some(frame) = found {
                self.pace.spend(now);
                return Some((to, frame));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::DatagramKind;

    fn frame(sequence: u64, bytes: usize) -> Frame {
        let fixed =
            OriginHeader { sequence, ..OriginHeader::control(DatagramKind::Data, 0, 0, sequence) };
        Frame { fixed, flags: 0, body: vec![0; bytes].into() }
    }

    fn config() -> Repair {
        Repair { ring_frames: 8, ring_bytes: 100, child_queue_max: 4, ..Repair::default() }
    }

    #[test]
    fn the_ring_forgets_the_oldest_by_count_and_by_bytes() {
        let mut ring = Ring::new(&config(), 0);
        (0..20).for_each(|s| ring.insert(frame(s, 1)));
        assert!(ring.get(11).is_none() && ring.get(12).is_some() && ring.get(20).is_none());
        (20..24).for_each(|s| ring.insert(frame(s, 40)));
        assert!(ring.get(21).is_none() && ring.get(22).is_some());
        ring.insert(frame(1_000, 1));
        assert!(ring.get(23).is_none() && ring.get(1_000).is_some());
    }

    #[test]
    fn askers_are_served_in_turn_and_an_overflowing_one_is_named() {
        let mut ring = Ring::new(&config(), 0);
        (0..8).for_each(|s| ring.insert(frame(s, 1)));
        let config = Repair { evict_after_drops: 5, ..config() };
        let mut repair_queue = RepairQueue::new(&config);
        let now = Timestamp::from_nanos(1 << 40);
        let asker = |n: u32| (NodeId(n), SocketAddr::from(([127, 0, 0, 1], n as u16)));
        assert!(!repair_queue.ask(now, asker(1), &[(0, 8)], &ring, &config));
        assert!(!repair_queue.ask(now, asker(2), &[(6, 9)], &ring, &config));
        let order: Vec<(u16, u64)> = core::iter::from_fn(|| repair_queue.next(now, &ring))
            .map(|(to, frame)| (to.port(), frame.fixed.sequence))
            .collect();
        assert_eq!(order, [(1, 0), (2, 6), (1, 1), (2, 7), (1, 2), (1, 3)]);
        assert!(repair_queue.ask(now, asker(1), &[(0, 8)], &ring, &config), "4 + 4 drops");
        assert!(!repair_queue.ask(now, asker(2), &[(3, 2), (0, u16::MAX)], &ring, &config));
        repair_queue.forget(NodeId(1));
        assert!(!repair_queue.ask(now, asker(2), &[(3, 2)], &ring, &config));
        let later = now + core::time::Duration::from_secs(1);
        let sent: Vec<u64> = core::iter::from_fn(|| repair_queue.next(later, &ring))
            .map(|(_, frame)| frame.fixed.sequence)
            .collect();
        assert_eq!(sent, [0, 1, 3, 4], "asked for twice, sent once");
    }
}
