//! Which rank adds up the rows of a key: by a hash of the key, or by its range.
//!
//! A hash gives each rank as many keys as any other, and not as many rows: a key that a tenth of
//! all rows have fills its rank beside whatever else the hash sends there. The thesis names the
//! remedy (section 2.6) and did not build it: splitters of the keys, found by the recursive
//! [partition](crate::partition) of the sort. The rows of a key stay together, because one rank
//! must add them up or join them:
//!
//! ```text
//!  rows by key    aaaa bb ccccccccccccccccccccc ddd ee
//!  splitters           |      |      |      |
//!  rank           0    1      2      3      4
//!  gets           aaaa bb     ccc... none   ddd ee
//! ```
//!
//! A key that several splitters fall into has a rank to itself, and the ranks behind it up to its
//! last splitter get nothing. A key with one splitter goes whole to the rank behind the splitter. A
//! rank therefore gets less than two means, or one key.

use core::str::FromStr;
use std::sync::Arc;

use evenfall_core::math::mix;

use crate::partition::PartitionConfig;
use crate::pivots::{Tag, Weighted, key, tag};
use crate::rows::UnknownName;

/// How the rank of a key is chosen. All ranks choose alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyPlacement {
    /// By a hash of the key.
    #[default]
    Hash,
    /// By ranges of keys, which the ranks agree on first.
    Range,
}

impl KeyPlacement {
    /// The name in options and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hash => "hash",
            Self::Range => "range",
        }
    }
}

impl FromStr for KeyPlacement {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        match name {
            "hash" => Ok(Self::Hash),
            "range" => Ok(Self::Range),
            _ => Err(UnknownName { allowed: "hash and range" }),
        }
    }
}

/// The partition that finds ranges: two levels and weighted splitters, as the sort has them.
pub(crate) fn range_partition() -> PartitionConfig {
    PartitionConfig { levels: 2, pivots_per_rank: 1, rule: Arc::new(Weighted) }
}

/// The place of each key.
#[derive(Clone, Debug)]
pub(crate) enum KeyPlaces {
    Hash {
        ranks: usize,
    },
    /// The keys of the splitters, ascending; a key may come several times.
    Range {
        splitters: Vec<u64>,
    },
}

impl KeyPlaces {
    /// The places of ranges with these splitters.
    pub(crate) fn of_splitters(splitters: &[Tag]) -> Self {
        Self::Range { splitters: splitters.iter().map(|&splitter| number_of(splitter)).collect() }
    }

    /// The rank of a key.
    pub(crate) fn rank_of(&self, key: u64) -> usize {
        match self {
            Self::Hash { ranks } => (mix(key) % (*ranks).max(1) as u64) as usize,
            Self::Range { splitters } => {
                let first = splitters.partition_point(|&splitter| splitter < key);
                let last = splitters.partition_point(|&splitter| splitter <= key);
                // Of two splitters in a key, the first begins a part that has no other key.
                if last - first > 1 { first + 1 } else { last }
            }
        }
    }
}

/// The sorted tags of keys, which a partition draws its pivots from.
pub(crate) fn sorted_tags(keys: impl Iterator<Item = u64>, rank: u16) -> Arc<[Tag]> {
    let tag_of = |(key, index): (u64, u32)| {
        let mut bytes = [0; crate::pivots::KEY_BYTES];
        bytes[..8].copy_from_slice(&key.to_be_bytes());
        tag(&bytes, rank, index)
    };
    let mut tags: Vec<Tag> = keys.zip(0..).map(tag_of).collect();
    tags.sort_unstable();
    tags.into()
}

fn number_of(splitter: Tag) -> u64 {
    let bytes = key(splitter);
    u64::from_be_bytes(core::array::from_fn(|i| bytes[i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_several_splitters_has_a_rank_to_itself() {
        // The drawing above: a, b, c, d, e are 1 to 5.
        let places = KeyPlaces::Range { splitters: vec![2, 3, 3, 4] };
        let ranks = [1, 2, 3, 4, 5].map(|key| places.rank_of(key));
        assert_eq!(ranks, [0, 1, 2, 4, 4]);
        let once = KeyPlaces::Range { splitters: vec![3] };
        assert_eq!([2, 3, 4].map(|key| once.rank_of(key)), [0, 1, 1]);
        assert_eq!(KeyPlaces::of_splitters(&[]).rank_of(7), 0);
    }

    #[test]
    fn splitters_of_tags_are_their_keys() {
        let tags = sorted_tags([9, u64::MAX, 0, 9].into_iter(), 3);
        let KeyPlaces::Range { splitters } = KeyPlaces::of_splitters(&tags) else {
            panic!("ranges");
        };
        assert_eq!(splitters, [0, 9, 9, u64::MAX]);
    }
}
