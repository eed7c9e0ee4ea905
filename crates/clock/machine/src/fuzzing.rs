//! Checks that the fuzz targets and the replay of their corpora call. Each check takes any bytes,
//! and panics when a promise breaks.

use core::time::Duration;
use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_core::{Arrival, ClockError, ClockReading, Machine, Malformed, StampedBy, Timestamp};

use crate::wire::{ClockMessage, HEADER_BYTES, MAGIC, VERSION};
use crate::{ClockSeat, Config, Timekeeper};

/// Nodes of the run in which a machine is fuzzed.
const NODES: u32 = 5;
/// The run in which a machine is fuzzed.
const RUN: u64 = 7;

/// Reads a datagram. Encoding a decoded message and decoding it again gives the same message.
pub fn wire(data: &[u8]) {
    if let Ok(message) = ClockMessage::decode(data, None) {
        assert_eq!(ClockMessage::decode(&message.encode(None), None), Ok(message));
    }
}

/// The inputs of a reference and of another node. Each input has two bytes in front, which say what
/// the input is and how long it is. Datagrams get a header of this run, so that the bytes reach the
/// machine behind the checks of the header.
pub fn machine(data: &[u8]) {
    for number in [0, 2] {
        drive(number, data);
    }
}

fn drive(number: u32, data: &[u8]) {
    let address = |node: u32| SocketAddr::from(([10, 0, 0, 1], 1 + node as u16));
    let addresses: Vec<SocketAddr> = (0..NODES).map(address).collect();
    let mut now = Timestamp::from_nanos(1 << 50);
    let seat = ClockSeat { addresses, number, run: RUN, started: 1 };
    let mut keeper = Timekeeper::new(Config::default(), seat, None, now);
    let mut rest = data;
    while let Some((&[what, length], tail)) = rest.split_first_chunk::<2>() {
        let (bytes, tail) = tail.split_at(usize::from(length).min(tail.len()));
        rest = tail;
        match what % 8 {
            0 => now += Duration::from_millis(u64::from(length)),
            2 => {
                let word = bytes.first_chunk().map_or(0, |word| i64::from_le_bytes(*word));
                let error = ClockError::Within(Duration::from_nanos(word.unsigned_abs()));
                keeper.handle_clock(now, ClockReading { offset_ns: word, error });
            }
            3 => keeper.begin_use(),
            _ => {
                let (from, half) = (u32::from(what >> 3) % NODES, what >> 6 & 1);
                let kind = if what % 8 == 1 { 4 + (what >> 4 & 3) } else { what % 4 };
                let window = 2 + u32::from(what >> 7);
                let mut datagram = Vec::with_capacity(HEADER_BYTES + bytes.len());
                datagram.extend_from_slice(&MAGIC);
                datagram.extend_from_slice(&[VERSION, kind, 0, half, 0, 0]);
                datagram.extend_from_slice(&RUN.to_le_bytes());
                datagram.extend_from_slice(&from.to_le_bytes());
                datagram.extend_from_slice(&window.to_le_bytes());
                datagram.extend_from_slice(&[0; 8]);
                datagram.extend_from_slice(bytes);
                let datagram = Bytes::from(datagram);
                let arrival = Arrival::new(address(from), datagram, now, StampedBy::Kernel);
                // Malformed is an answer like any other.
                let _: Result<(), Malformed> = keeper.handle(now, arrival);
            }
        }
        if keeper.poll_timeout().is_some_and(|at| at <= now) {
            keeper.handle_timeout(now);
        }
        while keeper.poll_event().is_some() {}
        while let Some(transmit) = keeper.poll_transmit(now) {
            assert!(transmit.len() <= 1_200, "{} bytes", transmit.len());
        }
        let reading = keeper.read(now);
        assert!(reading.proven_ns.is_none() || reading.assumed_ns.is_some());
    }
}

#[cfg(test)]
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use evenfall_core::Prng;

    use super::*;

    #[test]
    fn hostile_estimates_and_verdicts_end_no_machine() {
        let mut prng = Prng::new(1);
        let extremes = [0, u64::MAX, 1 << 63, i64::MAX as u64, 1, 1 << 62, 0x3ff0 << 48];
        for _ in 0..4_000 {
            let mut data = Vec::new();
            for _ in 0..12 {
                let words = 1 + prng.below(20) as usize;
                data.extend_from_slice(&[prng.next_u64() as u8, (8 * words) as u8]);
                for _ in 0..words {
                    let word = match prng.below(3) {
                        0 => prng.below(1 << 20),
                        _ => extremes[prng.below(extremes.len() as u64) as usize],
                    };
                    data.extend_from_slice(&word.to_le_bytes());
                }
            }
            machine(&data);
        }
    }

    #[test]
    fn every_corpus_file_passes_its_check() {
        replay::corpora(&[("clock_machine", machine), ("clock_wire", wire)]);
    }
}
