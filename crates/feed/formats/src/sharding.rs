//! Chooses the tree of a message, and hashes all messages to prove that they arrived.
//!
//! Several trees run side by side and share their receivers. Order holds within a tree, not between
//! trees, so messages that must stay in order (those of a symbol or a channel) go to one tree. The
//! hash of the received messages must not depend on how the trees interleave. [`ContentHash`]
//! therefore hashes each tree's messages in their order, and then the hashes in the order of the
//! trees. A receiver that releases each tree in order gets the same 32 bytes as the file.

use blake3::Hasher;
use core::fmt;

/// The key of a message that concerns all keys, such as a halt of the whole market.
pub const GLOBAL: u32 = u32::MAX;

/// The trees, of `trees`, that carry messages of this key. A key has one tree, and the key
/// [`GLOBAL`] has all. There is no order between trees, so a message that must stay in order with
/// every symbol goes by every tree. A receiver gets it once from each tree, in its place among the
/// messages of that tree.
///
/// # Panics
/// When `trees` is zero.
#[inline]
pub fn trees_of(shard_key: u32, trees: u32) -> core::ops::Range<u32> {
    if shard_key == GLOBAL {
        return 0..trees;
    }
    let tree = shard_of(shard_key, trees);
    tree..tree + 1
}

/// The tree, of `trees`, that carries messages of this key. The result never changes between
/// versions, because sender and receiver must agree on it.
///
/// Neighbouring keys (locates are given alphabetically, so related symbols are neighbours) are
/// spread by a mix of all bits first (the finaliser of MurmurHash3).
///
/// # Panics
/// When `trees` is zero.
#[inline]
pub fn shard_of(shard_key: u32, trees: u32) -> u32 {
    assert!(trees > 0, "a message needs a tree to go by");
    let mut mix = shard_key;
    mix = (mix ^ mix >> 16).wrapping_mul(0x85eb_ca6b);
    mix = (mix ^ mix >> 13).wrapping_mul(0xc2b2_ae35);
    mix ^= mix >> 16;
    ((u64::from(mix) * u64::from(trees)) >> 32) as u32
}

/// Bytes that are gathered before they are hashed. The hash works on as many 1-KiB pieces side by
/// side as the processor has lanes, and 40 bytes at a time would use no lane.
const GATHER_BYTES: usize = 16 * 1024;

/// A hash of all messages, each shard in its order.
#[derive(Clone)]
pub struct ContentHash {
    shards: Vec<Shard>,
}

#[derive(Clone)]
struct Shard {
    hasher: Hasher,
    gathered: Vec<u8>,
    messages: u64,
}

impl Shard {
    fn update(&mut self, message: &[u8]) {
        self.messages += 1;
        if self.gathered.len() + 4 + message.len() > GATHER_BYTES {
            self.hasher.update(&self.gathered);
            self.gathered.clear();
        }
        // The length goes first, so that messages cannot be joined or split unnoticed.
        let length = u32::try_from(message.len()).expect("a message is below 4 GiB");
        self.gathered.extend_from_slice(&length.to_le_bytes());
        if message.len() > GATHER_BYTES {
            self.hasher.update(&self.gathered);
            self.gathered.clear();
            self.hasher.update(message);
        } else {
            self.gathered.extend_from_slice(message);
        }
    }
}

impl ContentHash {
    /// The hash of no messages over this many shards.
    pub fn new(shards: usize) -> Self {
        let shard = Shard { hasher: Hasher::new(), gathered: Vec::new(), messages: 0 };
        Self { shards: vec![shard; shards] }
    }

    /// Adds the next message of a shard.
    ///
    /// # Panics
    /// When the shard is not below the number given to [`ContentHash::new`], or the message is
    /// 4 GiB or longer.
    pub fn update(&mut self, shard: usize, message: &[u8]) {
        self.shards[shard].update(message);
    }

    /// Replaces the hash of a shard by that of the same shard in `other`. Threads that hash one
    /// shard each are joined in this way.
    ///
    /// # Panics
    /// When one of the two hashes has no such shard.
    pub fn take_shard(&mut self, shard: usize, other: &Self) {
        self.shards[shard].clone_from(&other.shards[shard]);
    }

    /// The hash of the messages so far. More messages may follow.
    pub fn finish(&self) -> [u8; 32] {
        let mut whole = Hasher::new();
        for shard in &self.shards {
            let mut hasher = shard.hasher.clone();
            hasher.update(&shard.gathered);
            whole.update(hasher.finalize().as_bytes());
        }
        *whole.finalize().as_bytes()
    }

    /// [`ContentHash::finish`] in 64 hexadecimal digits.
    pub fn finish_hex(&self) -> String {
        hex(&self.finish())
    }

    /// Messages added over all shards.
    pub fn messages(&self) -> u64 {
        self.shards.iter().map(|shard| shard.messages).sum()
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentHash({} messages, {})", self.messages(), self.finish_hex())
    }
}

/// A hash in 64 lower-case hexadecimal digits.
pub fn hex(hash: &[u8; 32]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shards_are_even_and_pinned() {
        let mut counts = [0u32; 8];
        for key in 0..8_714 {
            counts[shard_of(key, 8) as usize] += 1;
        }
        assert!(counts.iter().all(|count| count.abs_diff(8_714 / 8) < 120), "{counts:?}");
        // The values are pinned: two versions that disagree would split a symbol over two trees.
        let pinned: Vec<u32> = (0..8).map(|key| shard_of(key, 16)).collect();
        assert_eq!(pinned, PINNED);
        assert!((0..100).all(|key| shard_of(key, 1) == 0));
    }

    #[test]
    fn what_concerns_all_goes_by_every_tree() {
        assert_eq!(trees_of(GLOBAL, 3), 0..3);
        assert_eq!(trees_of(1, 16), 5..6);
        let halt = crate::itch::MwcbStatus::default().encode();
        let live = crate::FeedMessage::live(0, 0, crate::codec::ITCH, halt.to_vec().into());
        assert_eq!(live.shard_key, GLOBAL);
    }

    const PINNED: [u32; 8] = [0, 5, 3, 8, 2, 12, 5, 1];

    #[test]
    fn joined_split_and_swapped_messages_change_the_hash() {
        let hash = |messages: &[&[u8]]| {
            let mut hash = ContentHash::new(1);
            messages.iter().for_each(|message| hash.update(0, message));
            hash.finish()
        };
        let whole = hash(&[b"ab", b"c"]);
        for other in [&[&b"a"[..], b"bc"][..], &[b"abc"], &[b"c", b"ab"], &[b"ab", b"c", b""]] {
            assert_ne!(hash(other), whole);
        }
        assert_ne!(ContentHash::new(1).finish(), ContentHash::new(2).finish());
        assert_eq!(hex(&[0xa5; 32]), "a5".repeat(32));
    }

    proptest! {
        #[test]
        fn interleaving_of_shards_does_not_matter(
            messages in prop::collection::vec(
                (0usize..4, prop::collection::vec(any::<u8>(), 0..5000)), 0..30),
        ) {
            let mut mixed = ContentHash::new(4);
            for (shard, message) in &messages {
                mixed.update(*shard, message);
            }
            let mut sorted = ContentHash::new(4);
            let mut by_shard: Vec<_> = messages.iter().collect();
            by_shard.sort_by_key(|(shard, _)| *shard);
            for (shard, message) in by_shard {
                sorted.update(*shard, message);
                // Finishing does not change the hash.
                let _ = sorted.finish();
            }
            prop_assert_eq!(mixed.finish(), sorted.finish());
            prop_assert_eq!(mixed.messages(), messages.len() as u64);
        }
    }
}
