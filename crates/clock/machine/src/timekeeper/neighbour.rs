//! What a node remembers of a neighbour: the pairs that are on their way, and those that came in.

use core::time::Duration;
use std::collections::VecDeque;

use evenfall_core::Timestamp;

use super::{ClockSeat, PAIRS_PER_SECOND_MAX};
use crate::wire::CodedProbe;
use crate::{CodedPair, PairMeter};

/// Pairs of probes that a node remembers for each neighbour, sent and received. At 20 pairs a
/// second eight pairs are 400 ms, and an answer that takes longer is of no use.
pub(super) const PAIRS_KEPT: usize = 8;

/// A neighbour that has proven no probe for this long may start again with any number. Neighbours
/// send two pairs a second at least.
const SILENCE: Duration = Duration::from_secs(5);

/// The stamps of a pair of this node that is on its way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Departure {
    pub(super) number: u32,
    pub(super) asked: [Timestamp; 2],
    pub(super) left: [Option<Timestamp>; 2],
}

impl Departure {
    pub(super) fn at(&self) -> [Timestamp; 2] {
        [0, 1].map(|half| self.left[half].unwrap_or(self.asked[half]))
    }
}

/// A neighbour.
#[derive(Debug)]
pub(super) struct Neighbour {
    pub(super) number: u32,
    /// Only the end with the lower number has a meter.
    pub(super) meter: Option<PairMeter>,
    pub(super) next: u32,
    pub(super) departures: VecDeque<Departure>,
    /// Arrivals of the neighbour's pairs, by number.
    pub(super) arrivals: VecDeque<(u32, [Option<Timestamp>; 2], [Timestamp; 2])>,
    /// The last pair that came in whole.
    pub(super) heard: (u32, [Timestamp; 2]),
    /// Number of the own pair whose echo was used last, and of the neighbour's pair completed last.
    pub(super) used: (u32, u32),
    /// Pairs of probes in this window that contradict the proven bounds of the last window.
    pub(super) defying: u32,
    /// Whether `heard` and `arrivals` are of this life of the neighbour and of this node. Known
    /// only where datagrams are under keys of two ends.
    is_proven: bool,
    /// When the last proven probe of the neighbour came.
    proven_at: Timestamp,
}

impl Neighbour {
    pub(super) fn new(number: u32, seat: &ClockSeat) -> Self {
        Self {
            number,
            meter: (seat.number < number).then(PairMeter::default),
            next: seat.started.wrapping_mul(PAIRS_PER_SECOND_MAX),
            departures: VecDeque::new(),
            arrivals: VecDeque::new(),
            heard: (0, [Timestamp::ZERO; 2]),
            used: (0, 0),
            defying: 0,
            is_proven: false,
            proven_at: Timestamp::ZERO,
        }
    }

    /// Refuses a probe that the neighbour made at an earlier time. Returns whether the probe may
    /// complete a pair: `None` when the probe is refused, `Some(false)` when the neighbour has
    /// heard nothing yet, so that the probe proves nothing.
    ///
    /// The neighbour tells which pair of this node it heard last. It cannot know the number of a
    /// pair that this node has not sent, so a probe that tells of one of the last pairs is new.
    pub(super) fn admit(
        &mut self,
        now: Timestamp,
        number: u32,
        probe: &CodedProbe,
    ) -> Option<bool> {
        let nothing = [Timestamp::ZERO; 2];
        // Numbers begin again after 49 days, so those of a neighbour that starts again may look
        // old.
        self.is_proven &= now.since(self.proven_at) <= SILENCE;
        let behind = self.heard.0.wrapping_sub(number);
        let is_newer = self.heard.1 == nothing || behind == 0 || behind > u32::MAX / 2;
        if probe.heard[0] == Timestamp::ZERO {
            // The neighbour has begun. Its pairs are answered, so that it can prove the next ones.
            if self.is_proven && !is_newer {
                return None;
            }
            if !is_newer {
                self.arrivals.clear();
                self.heard = (0, nothing);
            }
            self.is_proven = false;
            return Some(false);
        }
        if !self.departures.iter().any(|own| own.number == probe.heard_number) {
            return None;
        }
        if !self.is_proven {
            // What came before may have been an old probe of a neighbour that had begun then.
            self.arrivals.clear();
            if !is_newer {
                self.heard = (0, nothing);
            }
            self.is_proven = true;
        } else if !is_newer && behind > PAIRS_KEPT as u32 {
            return None;
        }
        self.proven_at = now;
        Some(true)
    }

    pub(super) fn arrived(&mut self, number: u32, probe: &CodedProbe, at: Timestamp) {
        let half = usize::from(probe.second);
        let known = self.arrivals.iter().position(|arrival| arrival.0 == number);
        let place = known.unwrap_or_else(|| {
            if self.arrivals.len() == PAIRS_KEPT {
                self.arrivals.pop_front();
            }
            self.arrivals.push_back((number, [None; 2], [Timestamp::ZERO; 2]));
            self.arrivals.len() - 1
        });
        let arrival = &mut self.arrivals[place];
        // A second copy of the probe, made by the network, is ignored.
        if arrival.1[half].is_some() {
            return;
        }
        arrival.1[half] = Some(at);
        arrival.2[half] = probe.sent;
        if let [Some(first), Some(second)] = arrival.1
            && (self.heard.1 == [Timestamp::ZERO; 2] || number.wrapping_sub(self.heard.0) < 1 << 31)
        {
            self.heard = (number, [first, second]);
        }
    }

    /// The neighbour's pair of this number, with its departures. Each pair is returned once.
    pub(super) fn completed(&mut self, number: u32, departed: [Timestamp; 2]) -> Option<CodedPair> {
        if number == 0 || number == self.used.1 || departed[0] == Timestamp::ZERO {
            return None;
        }
        let arrival = self.arrivals.iter().find(|arrival| arrival.0 == number)?;
        let [Some(first), Some(second)] = arrival.1 else { return None };
        self.used.1 = number;
        Some(CodedPair { sent: departed, received: [first, second] })
    }

    /// The pair of this node that the neighbour has heard. Each pair is returned once.
    pub(super) fn echoed(&mut self, probe: &CodedProbe) -> Option<CodedPair> {
        if probe.heard_number == self.used.0 || probe.heard[0] == Timestamp::ZERO {
            return None;
        }
        let number = probe.heard_number;
        let departure = self.departures.iter().find(|departure| departure.number == number)?;
        if departure.asked.contains(&Timestamp::ZERO) {
            return None;
        }
        self.used.0 = number;
        Some(CodedPair { sent: departure.at(), received: probe.heard })
    }
}
