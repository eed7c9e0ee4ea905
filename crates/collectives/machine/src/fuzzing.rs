//! Checks that the fuzz targets and the replay of their corpora call. Each check takes any bytes,
//! and panics when a promise breaks.

use bytes::Bytes;
use evenfall_core::{Arrival, Machine, StampedBy, Timestamp};

use crate::config::ShuffleConfig;
use crate::group::bundle;
use crate::shuffle::{Shuffle, ShufflePlan};
use crate::wire::{HEADER_BYTES, ShuffleHeader, ShuffleKind, encode_ranges, ranges};

/// Packing the entries of a readable bundle gives the same bytes, and no entry is longer than the
/// bundle.
pub fn bundles(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let Ok(entries) = bundle::unpack(&bytes) else { return };
    assert_eq!(bundle::pack(entries.iter()), bytes);
}

/// Input is datagrams, each after two bytes of length. Encoding a decoded datagram gives the same
/// bytes, and a shuffle in the midst of an operation takes any datagram.
pub fn datagrams(data: &[u8]) {
    let members: Vec<std::net::SocketAddr> =
        (1..=3).map(|port| ([127, 0, 0, 1], port).into()).collect();
    let config = ShuffleConfig { incoming_bytes_max: 1 << 20, ..ShuffleConfig::default() };
    let mut shuffle = Shuffle::new(config);
    let messages = vec![Bytes::from_static(&[7; 4_000]); 3];
    let plan = ShufflePlan::shuffle(1, 0, members.clone(), messages);
    shuffle.start(Timestamp::ZERO, plan).expect("a plan of our own is right");
    let (mut at, mut number) = (0, 0);
    while let Some(head) = data.get(at..at + 2) {
        let length = usize::from(u16::from_le_bytes([head[0], head[1]]));
        let datagram = &data[at + 2..data.len().min(at + 2 + length)];
        at += 2 + length;
        number += 1;
        if let Ok(header) = ShuffleHeader::decode(datagram) {
            let payload = &datagram[HEADER_BYTES..];
            let again = header.encode();
            assert_eq!(again.as_slice(), &datagram[..HEADER_BYTES]);
            if header.kind == ShuffleKind::Resend {
                let all: Vec<_> = ranges(&header, payload).collect();
                assert_eq!(encode_ranges(&all), payload);
            }
        }
        let now = Timestamp::from_nanos(number * 1_000_000);
        let (from, stamped_by) = (members[1 + number as usize % 2], StampedBy::User);
        let datagram = Bytes::copy_from_slice(datagram);
        // A malformed datagram is refused, and nothing else happens.
        shuffle.handle(now, Arrival::new(from, datagram, now, stamped_by)).ok();
        shuffle.handle_timeout(now);
        while shuffle.poll_event().is_some() {}
        while shuffle.poll_transmit(now).is_some() {}
    }
}

#[cfg(test)]
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_corpus_file_passes_its_check() {
        replay::corpora(&[("shuffle_bundles", bundles), ("shuffle_datagrams", datagrams)]);
    }
}
