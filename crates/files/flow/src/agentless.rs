//! The rules of a reader that gets no help from the network.
//!
//! A tenant of a cloud cannot set up paths, and no switch tells the tenant the load of a link. A
//! reader controls two things: the copy that it asks, and the source port of a connection. Switches
//! hash the port, so a connection from a new port takes a random other path.
//!
//! The obvious way is to change the port of every slow connection. Most slow connections share a
//! network card with others, and a new path does not help them. The reader therefore first asks
//! what its connection could have: the max-min share of the card beside the other connections
//! ([`fair_share`]), and no more than the fastest connection had. A connection that is much slower
//! is congested between the cards, and tries another port ([`PathTrials`]):
//!
//! ```text
//!            slower than CONGESTED of its share, and ports are left
//!    stays  ------------------------------------------------------->  tries a new port
//!      ^                                                                |        |
//!      |  BETTER times as fast as the old port: the new port is kept    |        |
//!      +----------------------------------------------------------------+        |
//!      +-------------------------------------------------------------------------+
//!         not so fast: back to the old port
//! ```
//!
//! `evenfall files get` and the simulated policy `agentless` of the laboratory read by these rules.
//! When the last bytes of a read are late, the reader asks for them a second time
//! ([`is_end_late`]). The wait for a silent connection is that of [`Patience`](crate::Patience).

use core::time::Duration;

/// A connection below this part of the rate that it could have counts as congested between the
/// network cards.
pub const CONGESTED: f64 = 0.8;
/// A connection keeps a new port that is this many times as fast as the old port. Without this
/// margin, connections would change between equal paths for ever.
pub const BETTER: f64 = 1.2;
/// Limit of the ports that a connection tries. Two pods of the simulated network have eight
/// shortest paths between them, and eight random ports hit a given quarter of the paths nine times
/// in ten.
pub const PORTS_MAX: u32 = 8;
/// How long a host that fell silent is not read, unless there is no other copy. A disk that is busy
/// with the writes of others may take a second.
pub const REST: Duration = Duration::from_secs(2);
/// The end of a read is late when it takes this many times as long as elsewhere. Rates change by
/// half within a second where flows begin and end.
const LATE: f64 = 2.0;

/// What a connection does after a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathChange {
    /// The connection stays at its port. A port on trial is kept.
    Keep,
    /// The connection tries a new port. A port that was on trial is kept until then.
    Try,
    /// The port on trial is not faster: the connection goes back to the port before.
    Back,
}

/// The ports that a connection has tried.
#[derive(Clone, Copy, Debug)]
pub struct PathTrials {
    ports_max: u32,
    /// Ports so far, the first one included.
    ports: u32,
    /// The rate of the port before the one on trial, in bytes a second.
    before: Option<f64>,
}

impl PathTrials {
    /// A connection at its first port, which tries up to `ports_max` ports.
    pub fn new(ports_max: u32) -> Self {
        Self { ports_max, ports: 1, before: None }
    }

    /// Ports that were tried beside the first one.
    pub fn tried(&self) -> u32 {
        self.ports - 1
    }

    /// Judges a measured rate of the present port. `promised` is what the connection could have,
    /// and `None` when no other path is worth a trial. Both are bytes a second.
    pub fn judge_rate(&mut self, rate: f64, promised: Option<f64>) -> PathChange {
        if let Some(before) = self.before.take()
            && rate < before * BETTER
        {
            return PathChange::Back;
        }
        let is_congested = promised.is_some_and(|promised| rate < CONGESTED * promised);
        if !is_congested || self.ports >= self.ports_max {
            return PathChange::Keep;
        }
        self.before = Some(rate);
        self.ports += 1;
        PathChange::Try
    }

    /// Ends a trial. The next rate is not compared with the rate of the port before.
    pub fn end_trial(&mut self) {
        self.before = None;
    }
}

/// The share that a card of this capacity gives to one more flow beside flows of these rates, in
/// bytes a second. Flows that are slower than their share leave the rest to the others.
pub fn fair_share(capacity: f64, mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    let (mut room, mut count) = (capacity, rates.len() + 1);
    for rate in rates {
        if rate * count as f64 > room {
            break;
        }
        (room, count) = (room - rate, count - 1);
    }
    room / count as f64
}

/// Whether the last `left` bytes of a read come so late over a connection of this rate that they
/// are worth a second connection, which has the rate `elsewhere` and takes `begin` to its first
/// byte. Rates are bytes a second.
pub fn is_end_late(left: u64, rate: f64, elsewhere: f64, begin: Duration) -> bool {
    let own_s = left as f64 / rate.max(1.0);
    let other_s = begin.as_secs_f64() + left as f64 / elsewhere.max(1.0);
    own_s > LATE * other_s
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_congested_connection_keeps_a_faster_port_and_leaves_a_slower_one() {
        let mut trials = PathTrials::new(PORTS_MAX);
        assert_eq!(trials.judge_rate(90.0, Some(100.0)), PathChange::Keep);
        assert_eq!(trials.judge_rate(50.0, Some(100.0)), PathChange::Try);
        // 59 is less than 1.2 times 50.
        assert_eq!(trials.judge_rate(59.0, Some(100.0)), PathChange::Back);
        assert_eq!(trials.judge_rate(50.0, Some(100.0)), PathChange::Try);
        // The new port is kept, and is still congested.
        assert_eq!(trials.judge_rate(61.0, Some(100.0)), PathChange::Try);
        assert_eq!(trials.judge_rate(85.0, Some(100.0)), PathChange::Keep);
        assert_eq!(trials.tried(), 3);
    }

    #[test]
    fn a_connection_tries_no_more_ports_than_the_limit_and_none_without_another_path() {
        let mut trials = PathTrials::new(2);
        assert_eq!(trials.judge_rate(1.0, None), PathChange::Keep);
        assert_eq!(trials.judge_rate(1.0, Some(100.0)), PathChange::Try);
        trials.end_trial();
        // The trial ended without a measurement, so the old port is not compared with it.
        assert_eq!(trials.judge_rate(1.0, Some(100.0)), PathChange::Keep);
    }

    #[test]
    fn slow_flows_leave_the_rest_of_a_card_to_the_others() {
        assert_eq!(fair_share(100.0, vec![]), 100.0);
        assert_eq!(fair_share(100.0, vec![80.0]), 50.0);
        assert_eq!(fair_share(100.0, vec![80.0, 10.0]), 45.0);
    }

    #[test]
    fn an_end_is_late_when_another_connection_is_done_in_half_of_the_time() {
        let begin = Duration::from_millis(250);
        // 900 KB take 9 s here, and .26 s elsewhere.
        assert!(is_end_late(900_000, 100e3, 100e6, begin));
        // They take .3 s here, and the first byte elsewhere takes .25 s.
        assert!(!is_end_late(900_000, 3e6, 100e6, begin));
        assert!(!is_end_late(0, 0.0, 100e6, begin));
    }
}
