//! Linear assignment: a permutation of least summed cost.
//!
//! Every Frank-Wolfe step solves an assignment, on costs that changed only a little since the step
//! before. The solver therefore keeps its column prices between calls. Gradients are near to
//! matrices of rank one and two, which are the worst case for augmenting paths: every path runs
//! through most columns. Auctions with a falling epsilon first bring the prices near. Rows then
//! take the columns that they want most, a short bidding moves the other rows, and only the
//! remaining rows look for a shortest augmenting path. These paths make the answer exact whatever
//! the prices were. The rows of costs are swept in order, without index lists: settled columns hold
//! NaN, which loses every comparison, so the sweep has no branch and vectorises.
//!
//! Source: R. Jonker and A. Volgenant, "A shortest augmenting path algorithm for dense and sparse
//! linear assignment problems", Computing 38 (1987): augmenting row reduction, and Dijkstra's
//! algorithm on reduced costs. D. P. Bertsekas, "The auction algorithm", Annals of Operations
//! Research 14 (1988): bids, and epsilon scaling.

use super::lanes::widest;

/// No row, no column.
const NONE: usize = usize::MAX;

/// Lanes of the sweeps; two SSE2 or one AVX register of `f64`.
const LANES: usize = 4;

/// Bids of a phase, per row. Rows that are not settled by then are left to the next phase.
const PHASE_BIDS: usize = 20;

/// Epsilon of the first phase without prices, as a share of the range of costs. This constant and
/// the three below it were measured on gradients of 100 to 1,000 hosts.
const COLD_FIRST: f64 = 0.1;
/// Epsilon of the first phase with the prices of the call before: they are nearly right.
const WARM_FIRST: f64 = 0.001;
/// Each phase has this share of the epsilon of the phase before.
const EPSILON_FALL: f64 = 0.05;
/// Epsilon ends at this share of the range for all rows together. Further phases would cost more
/// than the paths that they save.
const LAST_SHARE: f64 = 0.01;

/// Number of rows from which on auctions save time. With fewer rows, the augmenting paths are short
/// without auctions.
const AUCTION_SIZE: usize = 50;

/// The solver: column prices of the last call and room for the next.
#[derive(Clone, Debug)]
pub struct AssignmentSolver {
    size: usize,
    /// Price of a column. Any prices are a valid start, and good prices make the call short.
    price: Vec<f64>,
    column_of: Vec<usize>,
    row_of: Vec<usize>,
    /// Length of the shortest path to a column that is still open, NaN when it is settled.
    open: Vec<f64>,
    /// Row before a column on its shortest path. As wide as `open`, so that both blend alike.
    before: Vec<u64>,
    settled: Vec<(usize, f64)>,
    free: Vec<usize>,
    warm: bool,
}

impl AssignmentSolver {
    /// A solver for n x n costs, which knows no prices yet.
    pub fn new(size: usize) -> Self {
        Self {
            size,
            price: vec![0.0; size],
            column_of: vec![NONE; size],
            row_of: vec![NONE; size],
            open: vec![0.0; size],
            before: vec![0; size],
            settled: Vec::with_capacity(size),
            free: Vec::with_capacity(size),
            warm: false,
        }
    }

    /// The column of every row at least summed cost. Deterministic, also among equals.
    ///
    /// # Panics
    /// When `costs` is not n x n, row by row, or holds a value that is not finite.
    pub fn solve(&mut self, costs: &[f64]) -> &[usize] {
        assert_eq!(costs.len(), self.size * self.size, "costs are n x n");
        widest(
            #[inline(always)]
            || self.settle(costs),
        );
        &self.column_of
    }

    #[inline(always)]
    fn settle(&mut self, costs: &[f64]) {
        let (low, high) = range(costs);
        let mut epsilon = (high - low) * if self.warm { WARM_FIRST } else { COLD_FIRST };
        let last = (high - low) * LAST_SHARE / self.size as f64;
        self.warm = true;
        while self.size >= AUCTION_SIZE && epsilon > last {
            self.auction(costs, epsilon);
            epsilon *= EPSILON_FALL;
        }
        self.vacate();
        self.bid(costs);
        let mut free = core::mem::take(&mut self.free);
        for &row in &free {
            self.augment(costs, row);
        }
        free.clear();
        self.free = free;
    }

    /// Frees all rows and columns, and keeps the prices.
    fn vacate(&mut self) {
        self.row_of.fill(NONE);
        self.column_of.fill(NONE);
        self.free.clear();
        self.free.extend((0..self.size).rev());
    }

    /// One phase of an auction: every row takes its cheapest column, and raises its price until the
    /// column is worse by epsilon than the row's second choice. Only the prices are kept.
    #[inline(always)]
    fn auction(&mut self, costs: &[f64], epsilon: f64) {
        let n = self.size;
        self.vacate();
        for _ in 0..PHASE_BIDS * n {
            let Some(row) = self.free.pop() else { return };
            let (first, least, second_least) = two_least(&costs[row * n..][..n], &self.price);
            if !second_least.is_finite() {
                return;
            }
            self.price[first] -= second_least - least + epsilon;
            let holder = core::mem::replace(&mut self.row_of[first], row);
            if holder != NONE {
                self.free.push(holder);
            }
        }
    }

    /// Augmenting row reduction: a row takes its cheapest column, and raises the price until its
    /// second choice is as good. The former owner of the column bids again. The number of bids is
    /// bounded, because prices may rise by less than a rounding error. Rows that are left over get
    /// an augmenting path.
    #[inline(always)]
    fn bid(&mut self, costs: &[f64]) {
        let n = self.size;
        let mut waiting = core::mem::take(&mut self.free);
        let mut left = Vec::new();
        let mut bids = 4 * n;
        while let Some(row) = waiting.pop() {
            if bids == 0 {
                left.push(row);
                continue;
            }
            bids -= 1;
            let (first, least, second_least) = two_least(&costs[row * n..][..n], &self.price);
            let holder = self.row_of[first];
            let raised = self.price[first] - (second_least - least);
            let lower = raised < self.price[first];
            if lower && second_least.is_finite() {
                self.price[first] = raised;
            } else if holder != NONE {
                // In a tie the row takes no column, because the former owner would only come back
                // with the same bid.
                left.push(row);
                continue;
            }
            self.row_of[first] = row;
            self.column_of[row] = first;
            if holder != NONE {
                self.column_of[holder] = NONE;
                waiting.push(holder);
            }
        }
        self.free = left;
    }

    /// Dijkstra from a free row to the nearest free column, then the prices along the way.
    #[inline(always)]
    fn augment(&mut self, costs: &[f64], free_row: usize) {
        let n = self.size;
        self.open.fill(f64::INFINITY);
        self.settled.clear();
        let mut row = free_row;
        let mut reached = 0.0;
        let end = loop {
            let line = &costs[row * n..][..n];
            // Reduced cost of the edge by which `row` was entered is zero: start from there.
            let own = match self.column_of[row] {
                NONE => 0.0,
                column => line[column] - self.price[column],
            };
            let base = reached - own;
            reached = self.relax(line, base, row as u64);
            let column = self.nearest(reached);
            self.settled.push((column, reached));
            self.open[column] = f64::NAN;
            match self.row_of[column] {
                NONE => break column,
                holder => row = holder,
            }
        };
        for &(column, length) in &self.settled {
            self.price[column] += length - reached;
        }
        let mut column = end;
        loop {
            let row = self.before[column] as usize;
            self.row_of[column] = row;
            core::mem::swap(&mut self.column_of[row], &mut column);
            if row == free_row {
                break;
            }
        }
    }

    /// Shortens the paths that are better through `row`. Returns the least open length.
    #[inline(always)]
    fn relax(&mut self, line: &[f64], base: f64, row: u64) -> f64 {
        let mut least = [f64::INFINITY; LANES];
        let whole = line.len() / LANES * LANES;
        let lanes = line.chunks_exact(LANES).zip(self.price.chunks_exact(LANES));
        let state = self.open.chunks_exact_mut(LANES).zip(self.before.chunks_exact_mut(LANES));
        for ((cost, price), (open, before)) in lanes.zip(state) {
            for lane in 0..LANES {
                let length = base + (cost[lane] - price[lane]);
                let better = length < open[lane];
                open[lane] = if better { length } else { open[lane] };
                before[lane] = if better { row } else { before[lane] };
                least[lane] = if open[lane] < least[lane] { open[lane] } else { least[lane] };
            }
        }
        let tail = line[whole..].iter().zip(&self.price[whole..]);
        let state = self.open[whole..].iter_mut().zip(&mut self.before[whole..]);
        for ((cost, price), (open, before)) in tail.zip(state) {
            let length = base + (cost - price);
            if length < *open {
                *open = length;
                *before = row;
            }
            least[0] = if *open < least[0] { *open } else { least[0] };
        }
        least.into_iter().fold(f64::INFINITY, |a, b| if b < a { b } else { a })
    }

    /// A column at this length. A free column is preferred, because it ends the path.
    #[inline(always)]
    fn nearest(&self, length: f64) -> usize {
        let mut found = NONE;
        for (column, open) in self.open.iter().enumerate() {
            if *open == length {
                if self.row_of[column] == NONE {
                    return column;
                }
                if found == NONE {
                    found = column;
                }
            }
        }
        assert!(found != NONE, "costs are finite, so an open column is always within reach");
        found
    }
}

/// The cheapest column, its reduced cost, and the reduced cost of the second choice.
#[inline(always)]
fn two_least(line: &[f64], price: &[f64]) -> (usize, f64, f64) {
    let mut least = [f64::INFINITY; LANES];
    let mut second = [f64::INFINITY; LANES];
    for (cost, price) in line.chunks_exact(LANES).zip(price.chunks_exact(LANES)) {
        for lane in 0..LANES {
            let reduced = cost[lane] - price[lane];
            let beaten = if reduced < least[lane] { least[lane] } else { reduced };
            least[lane] = if reduced < least[lane] { reduced } else { least[lane] };
            second[lane] = if beaten < second[lane] { beaten } else { second[lane] };
        }
    }
    let (mut first, mut next) = (f64::INFINITY, f64::INFINITY);
    let whole = line.len() / LANES * LANES;
    let tail = line[whole..].iter().zip(&price[whole..]).map(|(cost, price)| cost - price);
    for value in least.into_iter().chain(second).chain(tail) {
        if value < first {
            next = first;
            first = value;
        } else if value < next {
            next = value;
        }
    }
    let at = line.iter().zip(price).position(|(cost, price)| cost - price == first);
    (at.unwrap_or(0), first, next)
}

/// Least and most of all costs.
#[inline(always)]
fn range(costs: &[f64]) -> (f64, f64) {
    let (mut low, mut high) = ([f64::INFINITY; LANES], [f64::NEG_INFINITY; LANES]);
    let (lanes, rest) = costs.as_chunks::<LANES>();
    for cells in lanes {
        for (lane, &cell) in cells.iter().enumerate() {
            low[lane] = if cell < low[lane] { cell } else { low[lane] };
            high[lane] = if cell > high[lane] { cell } else { high[lane] };
        }
    }
    let low = low.iter().chain(rest).fold(f64::INFINITY, |a, &b| a.min(b));
    (low, high.iter().chain(rest).fold(f64::NEG_INFINITY, |a, &b| a.max(b)))
}
