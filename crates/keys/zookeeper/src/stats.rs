//! What the front counts, of all connections together and of each.

use crate::refusals::RefusalCounts;

/// What a connection shows of itself in `cons`, under ZooKeeper's names.
#[derive(Clone, Copy, Debug)]
pub struct ShownConnection {
    /// When the connection was made, in milliseconds since 1970.
    pub established_ms: u64,
    /// The operation that was answered last.
    pub last_operation: i32,
    /// The xid of the request that was answered last.
    pub last_xid: i32,
    /// The revision of the last answer.
    pub last_revision: u64,
    /// When the last answer was made, in milliseconds since 1970.
    pub last_response_ms: u64,
    /// The times that answers took.
    pub latency: Latency,
    /// The time that the last answer took, in microseconds.
    pub last_latency_us: u64,
}

/// The times of answers: their number, and their sum, the least and the greatest in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Latency {
    /// Answers.
    pub count: u64,
    /// The sum.
    pub sum_us: u64,
    /// The least.
    pub least_us: u64,
    /// The greatest.
    pub most_us: u64,
}

impl Latency {
    /// Adds an answer that took this long.
    pub fn add(&mut self, us: u64) {
        self.least_us = if self.count == 0 { us } else { self.least_us.min(us) };
        self.most_us = self.most_us.max(us);
        self.sum_us += us;
        self.count += 1;
    }
}

/// What the front counts over all connections.
#[derive(Debug, Default)]
pub struct Stats {
    /// Connections that were accepted.
    pub accepted: u64,
    /// Connections that were closed at once, because there were as many as may be.
    pub turned_away: u64,
    /// Connections that were closed because their bytes could not be read.
    pub malformed: u64,
    /// Requests that were read.
    pub received: u64,
    /// Answers and events.
    pub sent: u64,
    /// The times of all calls and syncs.
    pub latency: Latency,
    /// Why clients were refused.
    pub refusals: RefusalCounts,
}
