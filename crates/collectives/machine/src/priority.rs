//! Keys that order packets: the packet with the larger key goes first.
//!
//! The greatest remaining processing fraction of a packet is the part of its message from this
//! packet on, divided by the whole message. Equal messages have packets at the same fractions, and
//! would all go to the same receiver at once. The fraction is therefore taken at a random offset
//! within the packet (section 6.1.5). The offset is a hash of operation, sender, receiver and
//! packet. Both ends know these four numbers, so no seed has to be sent.

use evenfall_core::math::mix;

/// The seed of the random offsets of one message.
pub fn message_seed(operation: u64, from: u16, to: u16) -> u64 {
    mix(mix(operation) ^ (u64::from(from) << 16 | u64::from(to)).wrapping_mul(0x9e37_79b9))
}

/// The part of a message of `total` bytes that is left at packet `index`, in units of 2^-32.
pub fn fraction(total: u32, packet_bytes: u32, index: u32, seed: Option<u64>) -> u64 {
    if total == 0 {
        return 0;
    }
    let total = u64::from(total);
    let begin = (u64::from(index) * u64::from(packet_bytes)).min(total);
    let length = u64::from(packet_bytes).min(total - begin);
    let word = seed.map_or(0, |seed| mix(seed ^ u64::from(index)) >> 32);
    let left = ((total - begin) << 32) - length * word;
    left / total
}

/// Breaks ties between messages of the same priority; the larger value goes first. The value is the
/// distance in the ring of ranks from sender to receiver, so equal messages of all senders go to
/// different receivers. Ordered by rank instead, all senders would begin with the same receiver.
pub fn tie(distance: usize, members: usize) -> u16 {
    (members - 1 - distance % members) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In figure 3.6, messages of 5 and 3 packets are sent in the order 1, 1, .8, .67, .6, .4, .33,
    /// .2.
    #[test]
    fn figure_3_6_schedule_follows_the_remaining_fraction() {
        let mut schedule: Vec<(u64, u32)> = (0..5)
            .map(|i| (fraction(5_000, 1_000, i, None), 5))
            .chain((0..3).map(|i| (fraction(3_000, 1_000, i, None), 3)))
            .collect();
        schedule.sort_by(|a, b| b.cmp(a));
        let order: Vec<u32> = schedule.iter().map(|entry| entry.1).collect();
        assert_eq!(order, [5, 3, 5, 3, 5, 5, 3, 5]);
    }

    #[test]
    fn randomised_fractions_stay_within_their_packet() {
        for index in 0..10 {
            let seed = message_seed(1, 2, 3);
            let random = fraction(10_000, 1_000, index, Some(seed));
            assert!(random <= fraction(10_000, 1_000, index, None));
            assert!(random > fraction(10_000, 1_000, index + 1, None));
        }
    }
}
