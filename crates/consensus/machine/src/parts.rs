//! Values that are longer than a datagram: cutting them, and putting them together again.
//!
//! A value with a name has the same bytes at every node that has it. A receiver therefore keeps
//! parts from all senders, and a value that is sent again fills the gaps. Only values that the
//! replica waits for are kept, and the caller says how long each may be, so that the memory is
//! bounded: by the pipeline, by the members of the super-leaf and by the limits in
//! [`config`](crate::config).

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::wire::{PART_HEAD_BYTES, ValuePart, Whole};

/// Shortest part. It is used when the configured datagram has no room behind the head.
const PART_BYTES_MIN: usize = 64;

/// The parts of a value from `offset` on, up to this many bytes.
pub fn cut(
    of: Whole,
    value: &Bytes,
    offset: usize,
    bytes_max: usize,
    datagram_bytes: usize,
) -> impl Iterator<Item = ValuePart> + '_ {
    let step = datagram_bytes.saturating_sub(PART_HEAD_BYTES).max(PART_BYTES_MIN);
    let end = value.len().min(offset.saturating_add(bytes_max));
    (offset..end).step_by(step).map(move |at| ValuePart {
        of,
        length: value.len() as u32,
        offset: at as u32,
        bytes: value.slice(at..(at + step).min(end)),
    })
}

/// Bytes that a value gets room for when its first part comes. Longer values grow with their parts,
/// so that a length that is only claimed takes little memory.
const ROOM_BYTES_MAX: usize = 256 << 10;

/// One value of which some parts are there. Parts come in order nearly always, and each is then
/// copied once, to its place in the value.
#[derive(Debug, Default)]
struct Gathering {
    length: u32,
    /// The bytes from the first on, up to the first gap.
    whole: Vec<u8>,
    /// The parts behind the first gap, by their offsets.
    beyond: BTreeMap<usize, Bytes>,
}

impl Gathering {
    fn new(length: u32) -> Self {
        let whole = Vec::with_capacity((length as usize).min(ROOM_BYTES_MAX));
        Self { length, whole, beyond: BTreeMap::new() }
    }

    fn add_part(&mut self, offset: usize, bytes: &[u8]) {
        let known = self.whole.len();
        if offset > known {
            let is_longer = |part: &Bytes| part.len() >= bytes.len();
            if !self.beyond.get(&offset).is_some_and(is_longer) {
                // The datagram may be a small slice of a large buffer.
                self.beyond.insert(offset, Bytes::copy_from_slice(bytes));
            }
            return;
        }
        self.whole.extend_from_slice(bytes.get(known - offset..).unwrap_or_default());
        while let Some(next) = self.beyond.first_entry()
            && *next.key() <= self.whole.len()
        {
            let (offset, bytes) = next.remove_entry();
            let known = self.whole.len() - offset;
            self.whole.extend_from_slice(bytes.get(known..).unwrap_or_default());
        }
    }
}

/// Values on their way.
#[derive(Debug, Default)]
pub struct ValueParts {
    gatherings: BTreeMap<Whole, Gathering>,
}

impl ValueParts {
    /// Takes a part. Returns the value when this was its last missing part. A part that gives the
    /// value another length than the parts before it begins the value anew.
    pub fn take(&mut self, part: ValuePart) -> Option<Bytes> {
        let gathering = self.gatherings.entry(part.of).or_default();
        if gathering.length != part.length {
            *gathering = Gathering::new(part.length);
        }
        gathering.add_part(part.offset as usize, &part.bytes);
        if gathering.whole.len() < gathering.length as usize {
            return None;
        }
        self.gatherings.remove(&part.of).map(|gathering| gathering.whole.into())
    }

    /// How many bytes of a value are there without a gap.
    pub fn contiguous(&self, of: Whole) -> usize {
        self.gatherings.get(&of).map_or(0, |gathering| gathering.whole.len())
    }

    /// Forgets values that nobody waits for any more.
    pub fn retain(&mut self, is_wanted: impl Fn(Whole) -> bool) {
        self.gatherings.retain(|of, _| is_wanted(*of));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VnodeId;

    const OF: Whole = Whole::State(3, VnodeId(1));

    #[test]
    fn parts_of_several_senders_with_other_datagrams_fit_together() {
        let value: Bytes = (0..1_000_u32).map(|byte| byte as u8).collect();
        let mut parts = ValueParts::default();
        let short: Vec<ValuePart> = cut(OF, &value, 0, usize::MAX, 120).collect();
        let long: Vec<ValuePart> = cut(OF, &value, 0, usize::MAX, 441).collect();
        assert_eq!((short.len(), long.len()), (13, 3));
        for part in short.into_iter().skip(3) {
            assert_eq!(parts.take(part), None);
        }
        assert_eq!(parts.contiguous(OF), 0);
        assert_eq!(parts.take(long[0].clone()), Some(value));
        assert_eq!(parts.contiguous(OF), 0);
    }

    #[test]
    fn a_value_of_another_length_begins_anew() {
        let (old, new) = (Bytes::from_static(&[1; 300]), Bytes::from_static(&[2; 200]));
        let mut parts = ValueParts::default();
        let first = cut(OF, &old, 0, usize::MAX, 200).next().expect("a part");
        assert_eq!(parts.take(first), None);
        let taken: Vec<_> = cut(OF, &new, 0, usize::MAX, 200).map(|p| parts.take(p)).collect();
        assert_eq!(taken.last(), Some(&Some(new)));
    }
}
