//! The event queue: a wheel of buckets over a slab, with a heap for what is far away.
//!
//! A binary heap of a hundred thousand packets costs about a hundred nanoseconds per event, most
//! of it waiting for memory. Packets in flight are nearly all due within a few milliseconds, so
//! they hang in a wheel: pushing links a slab slot into the list of its bucket, and reaching a
//! bucket sorts its few slots. Two bits per bucket, in two levels, skip what is empty.
//!
//! ```text
//!            base (being drained, sorted in `current`)
//!              v
//!  heads  ...|b |b+1|b+2|      ...      |b+N-1|   N buckets of 2^SHIFT ns; lists through the slab
//!             far: everything at b+N and later, a heap by (time, push order)
//! ```
//!
//! Order is by time, then by push. No sequence number is stored for it: a list is newest first, and
//! is reversed before a stable sort. An event that waits in `far` enters a bucket at the moment
//! when the wheel covers its time, so before any later push could.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

/// A bucket is 2^8 = 256 ns: at 15 packets per simulated microsecond, a list of four.
const SHIFT: u32 = 8;
/// Buckets: the wheel spans 4.2 ms, more than the delay of nearly every packet.
const BUCKETS: usize = 1 << 14;
/// Words of the bitmap of occupied buckets.
const WORDS: usize = BUCKETS / 64;
/// Words of the bitmap of words that are not zero.
const SUMMARY: usize = WORDS / 64;
/// No slot.
const NONE: u32 = u32::MAX;

/// The place of a slot in its bucket, apart from the item of the slot. When the queue reaches a
/// bucket it walks from link to link, and each step waits for the memory. Links without the items
/// between them are small enough for a faster cache.
struct Link {
    time: u64,
    next: u32,
}

/// A priority queue of `(time, item)`; first pushed first out at equal times.
pub(crate) struct Queue<T> {
    links: Vec<Link>,
    /// The items of the slots.
    items: Vec<Option<T>>,
    free: u32,
    heads: Box<[u32]>,
    words: [u64; WORDS],
    summary: [u64; SUMMARY],
    /// The events that are due in the bucket `base` (or, in theory, before), the next event last.
    current: Vec<(u64, u32)>,
    base: u64,
    /// Whether `current` was just filled with several items.
    is_begun: bool,
    far: BinaryHeap<Reverse<(u64, u64, u32)>>,
    far_pushed: u64,
    len: usize,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self {
            links: Vec::new(),
            items: Vec::new(),
            free: NONE,
            heads: vec![NONE; BUCKETS].into_boxed_slice(),
            words: [0; WORDS],
            summary: [0; SUMMARY],
            current: Vec::new(),
            base: 0,
            is_begun: false,
            far: BinaryHeap::new(),
            far_pushed: 0,
            len: 0,
        }
    }

    /// The number of items that wait.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn push(&mut self, time: u64, item: T) {
        self.len += 1;
        let slot = if self.free == NONE {
            self.links.push(Link { time, next: NONE });
            self.items.push(Some(item));
            (self.links.len() - 1) as u32
        } else {
            let index = self.free;
            let link = &mut self.links[index as usize];
            self.free = link.next;
            link.time = time;
            self.items[index as usize] = Some(item);
            index
        };
        let bucket = time >> SHIFT;
        if bucket <= self.base {
            let at = self.current.partition_point(|&(t, _)| t > time);
            self.current.insert(at, (time, slot));
        } else if bucket < self.base + BUCKETS as u64 {
            self.link(bucket, slot);
        } else {
            self.far_pushed += 1;
            self.far.push(Reverse((time, self.far_pushed, slot)));
        }
    }

    #[inline]
    fn link(&mut self, bucket: u64, slot: u32) {
        let place = bucket as usize % BUCKETS;
        let head = &mut self.heads[place];
        self.links[slot as usize].next = *head;
        *head = slot;
        self.words[place / 64] |= 1 << (place % 64);
        self.summary[place / 4096] |= 1 << (place / 64 % 64);
    }

    /// The first item due at or before `limit`, if there is one. When there is none, nothing may
    /// be pushed before `limit` any more.
    #[inline]
    pub(crate) fn pop_until(&mut self, limit: u64) -> Option<(u64, T)> {
        if self.current.is_empty() {
            self.advance(limit);
        }
        let &(time, index) = self.current.last()?;
        if time > limit {
            return None;
        }
        self.current.pop();
        self.len -= 1;
        self.links[index as usize].next = self.free;
        self.free = index;
        self.items[index as usize].take().map(|item| (time, item))
    }

    /// No item is due before this time; `u64::MAX` when no item waits.
    pub(crate) fn earliest(&self) -> u64 {
        if let Some(&(time, _)) = self.current.last() {
            return time;
        }
        let near = self.next_occupied().map(|bucket| bucket << SHIFT);
        let far = self.far.peek().map(|Reverse((time, ..))| *time);
        near.into_iter().chain(far).min().unwrap_or(u64::MAX)
    }

    /// Takes all items out, in order.
    pub(crate) fn drain(&mut self) -> Vec<(u64, T)> {
        core::iter::from_fn(|| self.pop_until(u64::MAX)).collect()
    }

    /// Nothing will be pushed into the queue, which is empty, before this time.
    pub(crate) fn begin_at(&mut self, time: u64) {
        debug_assert_eq!(self.len, 0);
        self.base = time >> SHIFT;
    }

    /// The items of the bucket that is being drained, if the bucket was just begun.
    #[inline]
    pub(crate) fn begun(&mut self) -> Option<impl Iterator<Item = &T> + Clone> {
        let Self { items, current, .. } = self;
        let slots = core::mem::take(&mut self.is_begun).then_some(current)?;
        Some(slots.iter().filter_map(|&(_, slot)| items[slot as usize].as_ref()))
    }

    /// Moves `base` to the next occupied bucket, but not past that of `limit`.
    fn advance(&mut self, limit: u64) {
        if self.len == 0 {
            // No item is pushed before `limit` any more, so the wheel may jump there. An endless
            // limit is no such promise.
            if limit != u64::MAX {
                self.base = self.base.max(limit >> SHIFT);
            }
            return;
        }
        let near = self.next_occupied();
        let far = self.far.peek().map(|Reverse((time, ..))| time >> SHIFT);
        let next = match (near, far) {
            (Some(near), Some(far)) => near.min(far),
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => return,
        };
        self.base = self.base.max(next.min(limit >> SHIFT));
        self.fetch_far();
        if next == self.base {
            self.load();
        }
    }

    /// Hangs what the wheel has come to cover into its buckets.
    fn fetch_far(&mut self) {
        while let Some(&Reverse((time, _, slot))) = self.far.peek() {
            let bucket = time >> SHIFT;
            if bucket >= self.base + BUCKETS as u64 {
                return;
            }
            self.far.pop();
            self.link(bucket, slot);
        }
    }

    /// Sorts the bucket `base` into `current`, which is empty.
    fn load(&mut self) {
        let place = self.base as usize % BUCKETS;
        let mut index = core::mem::replace(&mut self.heads[place], NONE);
        self.words[place / 64] &= !(1 << (place % 64));
        if self.words[place / 64] == 0 {
            self.summary[place / 4096] &= !(1 << (place / 64 % 64));
        }
        while index != NONE {
            let link = &self.links[index as usize];
            self.current.push((link.time, index));
            index = link.next;
        }
        // Newest first, so a stable descending sort leaves the oldest of equal times last.
        if self.current.len() > 1 {
            self.current.sort_by_key(|&(time, _)| Reverse(time));
            self.is_begun = true;
        }
    }

    /// The first occupied bucket after `base`, looking once around the wheel.
    fn next_occupied(&self) -> Option<u64> {
        let start = (self.base as usize + 1) % BUCKETS;
        let place = self.occupied_from(start).or_else(|| self.occupied_from(0))?;
        let distance = (place + BUCKETS - start) % BUCKETS;
        Some(self.base + 1 + distance as u64)
    }

    /// The first occupied place of the wheel at or after `start`, without wrapping around.
    fn occupied_from(&self, start: usize) -> Option<usize> {
        let first = self.words[start / 64] & (!0 << (start % 64));
        if first != 0 {
            return Some(start / 64 * 64 + first.trailing_zeros() as usize);
        }
        let word = start / 64 + 1;
        let mut mask = !0 << (word % 64);
        for group in word / 64..SUMMARY {
            let bits = self.summary[group] & mask;
            if bits != 0 {
                let word = group * 64 + bits.trailing_zeros() as usize;
                return Some(word * 64 + self.words[word].trailing_zeros() as usize);
            }
            mask = !0;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use evenfall_core::Prng;

    use super::*;

    /// The same calls on a queue and on a map by (time, push order) give the same answers.
    #[test]
    fn behaves_as_a_map_by_time_and_push_order() {
        for seed in 0..40 {
            let mut prng = Prng::new(seed);
            let (mut queue, mut model) = (Queue::new(), BTreeMap::new());
            let (mut now, mut pushed) = (0u64, 0u64);
            for _ in 0..4_000 {
                let spread = [1, 300, 50_000, 3_000_000, 40_000_000][prng.below(5) as usize];
                if prng.chance(0.55) {
                    let time = now + prng.below(spread);
                    queue.push(time, pushed);
                    model.insert((time, pushed), pushed);
                    pushed += 1;
                } else {
                    let limit = now + prng.below(spread);
                    let expected = model.first_key_value().map(|(&key, _)| key);
                    let expected = expected.filter(|&(time, _)| time <= limit);
                    assert_eq!(queue.pop_until(limit), expected, "seed {seed}");
                    now = expected.map_or(limit, |(time, _)| time);
                    expected.map(|key| model.remove(&key));
                }
                assert_eq!(queue.len(), model.len());
            }
            while let Some(popped) = queue.pop_until(u64::MAX) {
                assert_eq!(Some(popped), model.pop_first().map(|(key, _)| key), "seed {seed}");
            }
            assert!(model.is_empty());
        }
    }

    #[test]
    fn an_empty_queue_can_be_left_far_behind() {
        let mut queue = Queue::new();
        assert_eq!(queue.pop_until(10_000_000_000), None);
        queue.push(10_000_000_001, 'a');
        assert_eq!(queue.pop_until(u64::MAX), Some((10_000_000_001, 'a')));
        assert_eq!(queue.pop_until(u64::MAX), None);
        queue.push(10_000_000_001, 'b');
        assert_eq!(queue.pop_until(u64::MAX), Some((10_000_000_001, 'b')));
    }
}
