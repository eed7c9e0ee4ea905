//! The cache of segments in memory.
//!
//! CLOCK: each entry has a bit that a hit sets and a passing hand clears; the hand evicts the first
//! entry whose bit is clear. CLOCK keeps the used segments nearly as well as LRU does, and needs no
//! list to be relinked on a hit. A pass over history must not push out the recent segments that all
//! readers read, so the segments of a scan enter with their bits clear.
//!
//! Values are shared bytes. An evicted segment stays in memory until its last reader drops it, and
//! no longer counts as cached.

use std::collections::BTreeMap;

/// The reason for which an entry is inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// The segment was just appended or read. The segment stays for at least one turn of the hand.
    Recent,
    /// A scan reads the segment once. The segment is evicted first.
    Passing,
}

/// Counts of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Look-ups that found their entry.
    pub hits: u64,
    /// Look-ups that found no entry.
    pub misses: u64,
    /// Entries that were evicted.
    pub evictions: u64,
}

#[derive(Debug)]
struct Entry<K, V> {
    key: K,
    value: V,
    used: bool,
}

/// One shard of a cache. `entries_max` is its size in segments.
#[derive(Debug)]
pub struct Cache<K, V> {
    entries_max: usize,
    places: BTreeMap<K, usize>,
    entries: Vec<Entry<K, V>>,
    hand: usize,
    counts: CacheCounts,
}

impl<K: Ord + Copy, V: Clone> Cache<K, V> {
    /// An empty cache. With `entries_max` of 0 it keeps nothing.
    pub fn new(entries_max: usize) -> Self {
        let (places, entries) = (BTreeMap::new(), Vec::new());
        Self { entries_max, places, entries, hand: 0, counts: CacheCounts::default() }
    }

    /// The value that is kept under this key.
    pub fn get(&mut self, key: &K) -> Option<V> {
        match self.places.get(key) {
            Some(at) => {
                let entry = &mut self.entries[*at];
                entry.used = true;
                self.counts.hits += 1;
                Some(entry.value.clone())
            }
            None => {
                self.counts.misses += 1;
                None
            }
        }
    }

    /// Inserts an entry. A full cache evicts the first unused entry that the hand finds.
    pub fn insert(&mut self, key: K, value: V, interest: Interest) {
        let used = interest == Interest::Recent;
        if let Some(at) = self.places.get(&key) {
            self.entries[*at].value = value;
            self.entries[*at].used |= used;
            return;
        }
        if self.entries_max == 0 {
            return;
        }
        let entry = Entry { key, value, used };
        if self.entries.len() < self.entries_max {
            self.places.insert(key, self.entries.len());
            self.entries.push(entry);
            return;
        }
        // Two turns at most: the first clears every bit.
        while self.entries[self.hand].used {
            self.entries[self.hand].used = false;
            self.hand = (self.hand + 1) % self.entries.len();
        }
        self.places.remove(&self.entries[self.hand].key);
        self.places.insert(key, self.hand);
        self.entries[self.hand] = entry;
        self.hand = (self.hand + 1) % self.entries.len();
        self.counts.evictions += 1;
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Counts so far.
    pub fn counts(&self) -> CacheCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_does_not_push_out_what_is_used() {
        let mut cache = Cache::new(100);
        for key in 0..50 {
            cache.insert(key, key, Interest::Recent);
        }
        for key in 1_000..9_000 {
            cache.insert(key, key, Interest::Passing);
            for hot in 0..50 {
                assert_eq!(cache.get(&hot), Some(hot));
            }
        }
        assert_eq!(cache.len(), 100);
    }

    #[test]
    fn it_never_holds_more_than_its_limit() {
        let mut cache = Cache::new(3);
        for key in 0..10 {
            cache.insert(key, key, Interest::Recent);
            assert!(cache.len() <= 3);
        }
        assert_eq!(cache.counts().evictions, 7);
        let mut none = Cache::new(0);
        none.insert(1, 1, Interest::Recent);
        assert_eq!(none.get(&1), None);
    }
}
