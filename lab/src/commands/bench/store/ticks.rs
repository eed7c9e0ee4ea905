//! The records that the benchmarks append: ticks with exponential gaps, and a price that walks.
//! Columns of zeros and of arithmetic series take almost no bytes, and would say nothing about a
//! disk.

use evenfall_core::Prng;

/// Ticks that are made before a run and appended again and again. A row group in columns has fewer
/// rows, so that no column finds itself repeated.
const TICKS: usize = 1 << 16;
/// Mean of the nanoseconds between two ticks.
const GAP_NS: f64 = 1_000.0;

/// A source of records of one length.
pub(super) struct Ticks {
    gaps_ns: Vec<i64>,
    /// What follows the time in each record.
    bodies: Vec<u8>,
    body_bytes: usize,
    next: usize,
    clock_ns: i64,
}

impl Ticks {
    /// Ticks in records of this length.
    pub(super) fn new(record_bytes: u16) -> Self {
        let mut prng = Prng::new(1);
        let body_bytes = usize::from(record_bytes).saturating_sub(8);
        let (mut gaps_ns, mut bodies, mut price) = (Vec::new(), Vec::new(), 1_000_000_i64);
        for _ in 0..TICKS {
            gaps_ns.push(prng.exponential(GAP_NS) as i64);
            price += 100 * (prng.below(5) as i64 - 2);
            let price = price.to_le_bytes();
            let end = bodies.len() + body_bytes;
            bodies.extend(price.into_iter().take(body_bytes));
            while bodies.len() < end {
                bodies.push(prng.below(16) as u8);
            }
        }
        Self { gaps_ns, bodies, body_bytes, next: 0, clock_ns: 0 }
    }

    /// Writes the next ticks over the records of a batch.
    pub(super) fn fill_batch(&mut self, batch: &mut [u8]) {
        for record in batch.chunks_exact_mut(8 + self.body_bytes) {
            self.clock_ns += self.gaps_ns[self.next];
            let (time, body) = record.split_at_mut(8);
            time.copy_from_slice(&self.clock_ns.to_le_bytes());
            let from = self.next * self.body_bytes;
            body.copy_from_slice(&self.bodies[from..from + self.body_bytes]);
            self.next = (self.next + 1) % TICKS;
        }
    }
}
