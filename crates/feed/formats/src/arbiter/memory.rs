//! Remembers which bytes came under which number.
//!
//! A copy has the number **and** the bytes of a message that was taken. The number alone says
//! nothing: a venue begins its numbers anew every week, and a sender that starts again begins anew
//! at any time. The bytes themselves would pin the buffers that they lie in, so a fingerprint of 64
//! bits is kept.

/// The bytes that came under a number, as far as they are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recall {
    /// The same bytes.
    Copy,
    /// Other bytes.
    OtherBytes,
    /// The number was never taken, or so long ago that it is forgotten.
    Unknown,
}

/// Fingerprints of the numbers that were taken last. Each number has one slot, and a later number
/// with the same slot overwrites it.
#[derive(Debug)]
pub(super) struct CopyMemory {
    /// Number and fingerprint of each slot. A fingerprint of zero is an empty slot. The slots are
    /// made with the first number, because an arbiter may wait for hours.
    slots: Vec<[u64; 2]>,
    slots_max: usize,
}

impl CopyMemory {
    /// A memory of this many numbers, rounded up to a power of two.
    pub fn new(numbers_max: usize) -> Self {
        Self { slots: Vec::new(), slots_max: numbers_max.max(1).next_power_of_two() }
    }

    /// Numbers that a run of numbers without a hole leaves in the memory.
    pub fn reach(&self) -> u64 {
        self.slots_max as u64
    }

    fn slot(&self, number: u64) -> usize {
        number as usize & (self.slots_max - 1)
    }

    pub fn remember(&mut self, number: u64, bytes: &[u8]) {
        if self.slots.is_empty() {
            self.slots = vec![[0; 2]; self.slots_max];
        }
        let slot = self.slot(number);
        self.slots[slot] = [number, fingerprint(bytes)];
    }

    pub fn recall(&self, number: u64, bytes: &[u8]) -> Recall {
        match self.slots.get(self.slot(number)) {
            Some(&[known, print]) if known == number && print != 0 => {
                if print == fingerprint(bytes) { Recall::Copy } else { Recall::OtherBytes }
            }
            _ => Recall::Unknown,
        }
    }
}

/// A hash of 64 bits, never zero. It takes a nanosecond for each eight bytes. Whoever can choose
/// two messages with one fingerprint can also send neither.
fn fingerprint(bytes: &[u8]) -> u64 {
    /// The fractional part of the golden ratio: an odd number with bits everywhere.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, word: u64| {
        let product = u128::from(hash ^ word) * u128::from(SPREAD);
        (product as u64 ^ (product >> 64) as u64).wrapping_add(SPREAD)
    };
    let (words, rest) = bytes.as_chunks::<8>();
    let mut tail = [0; 8];
    tail[..rest.len()].copy_from_slice(rest);
    let hash =
        words.iter().fold(bytes.len() as u64, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    mix(hash, u64::from_le_bytes(tail)).max(1)
}
