//! What signing takes of a root, and checking of a receiver: the time of their calls for frames of
//! one message, with and without signatures. One thread calls both machines, and no datagram
//! leaves.

use std::time::Duration;

use evenfall_core::{Destination, Format, Machine as _};
use evenfall_host::clock::MonotonicClock;
use evenfall_multicast_machine::signing::BATCH_FRAMES_MAX;
use evenfall_multicast_machine::{ReleaseAfter, SharedKey};
use serde::Serialize;

use super::{SignedFeed, address, as_arrival};

/// The pace of the goal: frames of one message a second.
const RATE: u32 = 10_000;

/// Nanoseconds a frame, of one kind of feed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FrameCost {
    /// The root's calls.
    pub root_ns: f64,
    /// A receiver's calls.
    pub receiver_ns: f64,
}

/// The feed with and without signatures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SigningCost {
    /// Without signatures.
    pub plain: FrameCost,
    /// With signatures.
    pub signed: FrameCost,
    /// Share of a core that signing takes of the root at 10,000 frames a second.
    pub root_core_share: f64,
    /// Share of a core that checking takes of a receiver at this pace.
    pub receiver_core_share: f64,
    /// The root's time with signatures by its time without.
    pub root_ratio: f64,
    /// The receiver's time with signatures by its time without.
    pub receiver_ratio: f64,
}

/// Sends this many frames at 10,000 a second of the machines' own time.
fn frame_cost(frames: u32, size: usize, checked: super::Checked) -> FrameCost {
    let key = SharedKey::new(1, [5; 32]);
    let mut feed = SignedFeed::new(1, Some(&key), checked);
    let message = vec![b'm'; size];
    let (mut root_ns, mut receiver_ns) = (0, 0);
    let mut sent = Vec::new();
    for _ in 0..frames {
        feed.now += Duration::from_secs(1) / RATE;
        let now = feed.now;
        let root = &mut feed.root;
        let before = MonotonicClock::now();
        root.handle_timeout(now);
        root.publish(now, Format::OPAQUE, &message).expect("room in the queue");
        root.flush(now);
        sent.extend(core::iter::from_fn(|| root.poll_transmit(now)));
        while root.poll_event().is_some() {}
        root_ns += MonotonicClock::now().since(before).as_nanos();
        let is_for_all = |to: &Destination| matches!(to, Destination::Group(_));
        let mine = |to: &Destination| is_for_all(to) || *to == Destination::One(address(1));
        let arrivals: Vec<_> = sent
            .drain(..)
            .filter(|transmit| mine(&transmit.to))
            .map(|transmit| as_arrival(&transmit, address(0), now))
            .collect();
        let receiver = &mut feed.receivers[0];
        let before = MonotonicClock::now();
        for arrival in arrivals {
            receiver.handle(now, arrival).ok();
        }
        receiver.handle_timeout(now);
        while receiver.poll_event().is_some() {}
        receiver_ns += MonotonicClock::now().since(before).as_nanos();
        let reports: Vec<_> = core::iter::from_fn(|| receiver.poll_transmit(now)).collect();
        for report in reports {
            feed.root.handle(now, as_arrival(&report, address(1), now)).ok();
        }
    }
    // The last frames still wait for their signature.
    let last = 2 * BATCH_FRAMES_MAX as u64;
    let trust = feed.receivers[0].status().trust;
    let is_checked = trust.is_none_or(|t| t.breaks == 0 && t.verified + last >= u64::from(frames));
    assert!(trust.is_some() == checked.is_some() && is_checked, "{trust:?}");
    let per_frame = |ns: u128| ns as f64 / f64::from(frames);
    FrameCost { root_ns: per_frame(root_ns), receiver_ns: per_frame(receiver_ns) }
}

/// Measures both kinds of feed in turns, and gives the medians.
pub fn measure(rounds: usize, frames: u32, size: usize) -> SigningCost {
    let (mut plain, mut signed) = (Vec::new(), Vec::new());
    for _ in 0..rounds.max(1) {
        plain.push(frame_cost(frames, size, None));
        signed.push(frame_cost(frames, size, Some(ReleaseAfter::Deadline)));
    }
    let median = |all: &[FrameCost], of: fn(&FrameCost) -> f64| {
        let mut values: Vec<f64> = all.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let cost = |all: &[FrameCost]| FrameCost {
        root_ns: median(all, |cost| cost.root_ns),
        receiver_ns: median(all, |cost| cost.receiver_ns),
    };
    let (plain, signed) = (cost(&plain), cost(&signed));
    let share = |more_ns: f64| more_ns * f64::from(RATE) / 1e9;
    SigningCost {
        plain,
        signed,
        root_core_share: share(signed.root_ns - plain.root_ns),
        receiver_core_share: share(signed.receiver_ns - plain.receiver_ns),
        root_ratio: signed.root_ns / plain.root_ns,
        receiver_ratio: signed.receiver_ns / plain.receiver_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearly_every_frame_of_a_measured_feed_is_verified() {
        // The measure itself asserts it.
        let cost = measure(1, 200, 40);
        assert!(cost.signed.root_ns > 0.0 && cost.plain.receiver_ns > 0.0, "{cost:?}");
    }
}
