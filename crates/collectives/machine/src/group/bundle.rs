//! A bundle holds messages of several ranks. Trees, hypercubes and meshes pass bundles on.
//!
//! ```text
//!  0        2        4                8
//!  | from   | to     | length         | bytes | next entry ...
//! ```
//!
//! Integers are little-endian, without padding. Decoding is total and shares the bytes of the
//! bundle. An entry that ends beyond the bundle is refused.

use bytes::{BufMut, Bytes, BytesMut};
use evenfall_core::Malformed;

/// Bytes in front of each entry.
pub const ENTRY_BYTES: usize = 8;

/// One message in a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleEntry {
    /// The rank that sent it.
    pub from: u16,
    /// The rank that the message is for; 0 where the message is for all ranks, or for the root.
    pub to: u16,
    /// Bytes of the message.
    pub body: Bytes,
}

/// Packs the entries into one bundle, in this order.
pub fn pack<'a>(entries: impl Iterator<Item = &'a BundleEntry> + Clone) -> Bytes {
    let bytes = entries.clone().map(|entry| ENTRY_BYTES + entry.body.len()).sum();
    let mut bundle = BytesMut::with_capacity(bytes);
    for BundleEntry { from, to, body } in entries {
        bundle.put_u16_le(*from);
        bundle.put_u16_le(*to);
        bundle.put_u32_le(body.len() as u32);
        bundle.put_slice(body);
    }
    bundle.freeze()
}

/// The entries of a bundle.
///
/// # Errors
/// [`Malformed`] when an entry is cut off.
pub fn unpack(bundle: &Bytes) -> Result<Vec<BundleEntry>, Malformed> {
    let mut entries = Vec::new();
    let mut at = 0;
    while at < bundle.len() {
        let Some(head) = bundle.get(at..at + ENTRY_BYTES) else {
            return Err(Malformed { what: "a bundle ends within an entry's head", offset: at });
        };
        let from = u16::from_le_bytes([head[0], head[1]]);
        let to = u16::from_le_bytes([head[2], head[3]]);
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let begin = at + ENTRY_BYTES;
        if length > bundle.len() - begin {
            return Err(Malformed { what: "a bundle ends within an entry", offset: at });
        }
        entries.push(BundleEntry { from, to, body: bundle.slice(begin..begin + length) });
        at = begin + length;
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use evenfall_core::Prng;

    use super::*;

    fn entries(prng: &mut Prng) -> Vec<BundleEntry> {
        let entry = |_| BundleEntry {
            from: prng.next_u64() as u16,
            to: prng.next_u64() as u16,
            body: (0..prng.below(30)).map(|_| prng.next_u64() as u8).collect(),
        };
        (0..5).map(entry).collect()
    }

    #[test]
    fn what_was_packed_unpacks_to_itself() {
        let mut prng = Prng::new(1);
        for _ in 0..100 {
            let all = entries(&mut prng);
            assert_eq!(unpack(&pack(all.iter())), Ok(all));
        }
    }

    #[test]
    fn any_bytes_are_a_bundle_or_malformed() {
        let mut prng = Prng::new(2);
        for _ in 0..10_000 {
            let mut bytes = pack(entries(&mut prng).iter()).to_vec();
            bytes.truncate(prng.below(bytes.len() as u64 + 1) as usize);
            if let Some(byte) = bytes.first_mut() {
                *byte ^= 1;
            }
            for _ in 0..prng.below(3) {
                let at = prng.below(bytes.len().max(1) as u64) as usize;
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = prng.next_u64() as u8;
                }
            }
            let bytes = Bytes::from(bytes);
            if let Ok(all) = unpack(&bytes) {
                assert_eq!(pack(all.iter()), bytes);
            }
        }
    }
}
