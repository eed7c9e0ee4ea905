//! Shuffle matrices for measurements, after chapter 5 of the thesis.
//!
//! A matrix in which every node sends and receives the same amount is the hard case: each link is a
//! bottleneck, so no link may rest. Such a matrix is also hard to make, because rows and columns
//! must both add up. The module has two generators, and each makes matrices that the other cannot
//! make:
//!
//! - [`by_sorting`] counts the keys that a distributed sort would move. The sums are right by
//!   construction. Duplicate keys cause skewness, in patterns of their own.
//! - [`by_sampling`] draws message sizes from a random distribution, row by row. A greedy placement
//!   and a walk along the receivers then repair the columns.
//!
//! Both generators give *normalised* matrices, whose cells average 1. [`Normal::bytes`] turns a
//! normalised matrix into bytes.

use evenfall_core::{Prng, math};

use super::matrix::{MESSAGE_BYTES_MAX, Matrix};

/// Keys per cell of [`by_sorting`]. With 100 keys per cell, cells take many different counts.
const KEYS_PER_CELL: usize = 100;
/// Distributions that are tried before the nearest one is taken.
const TRIES_MAX: usize = 4_000;
/// Distance from the wanted skewness that is accepted.
const TOLERANCE: f64 = 0.01;
/// Steps that a random distribution has at most.
const STEPS_MAX: u64 = 12;
/// Cells drawn to estimate the skewness of a distribution.
const PROBE_CELLS: usize = 4_000;

/// A normalised shuffle matrix: cells average 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Normal {
    nodes: usize,
    cells: Vec<f64>,
}

impl Normal {
    /// A matrix in which all messages are equal.
    pub fn uniform(nodes: usize) -> Self {
        Self { nodes, cells: vec![1.0; nodes * nodes] }
    }

    /// How many nodes take part.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// The cells, row by row.
    pub fn cells(&self) -> &[f64] {
        &self.cells
    }

    /// As [`Matrix::skewness`].
    pub fn skewness(&self) -> f64 {
        deviation(&self.cells) / (self.nodes.max(2) as f64 - 1.0).sqrt()
    }

    /// The matrix in bytes, for messages of this mean. Rounding follows a running sum along each
    /// row, so a row is off by less than a byte.
    pub fn bytes(&self, mean_bytes: f64) -> Matrix {
        let mut cells = Vec::with_capacity(self.cells.len());
        for row in self.cells.chunks(self.nodes.max(1)) {
            let (mut sum, mut given) = (0.0, 0);
            for cell in row {
                sum += cell * mean_bytes;
                let bytes = (sum.round() as u64).saturating_sub(given).min(MESSAGE_BYTES_MAX);
                given += bytes;
                cells.push(bytes);
            }
        }
        Matrix::of(self.nodes, cells)
    }

    /// The same traffic with skewed data: node `i` sends `weight[i]` times as many bytes.
    ///
    /// # Panics
    /// When the number of weights is not the number of nodes.
    pub fn weighted(mut self, weight: &[f64]) -> Self {
        assert_eq!(weight.len(), self.nodes, "one weight per node");
        for (row, weight) in self.cells.chunks_mut(self.nodes).zip(weight) {
            row.iter_mut().for_each(|cell| *cell *= weight);
        }
        let mean = self.cells.iter().sum::<f64>() / self.cells.len() as f64;
        self.cells.iter_mut().for_each(|cell| *cell /= mean.max(f64::MIN_POSITIVE));
        self
    }

    fn permuted(mut self, prng: &mut Prng) -> Self {
        let (mut rows, mut columns): (Vec<usize>, Vec<usize>) =
            ((0..self.nodes).collect(), (0..self.nodes).collect());
        prng.shuffle(&mut rows);
        prng.shuffle(&mut columns);
        let cell =
            |at: usize| self.cells[rows[at / self.nodes] * self.nodes + columns[at % self.nodes]];
        self.cells = (0..self.cells.len()).map(cell).collect();
        self
    }
}

fn deviation(cells: &[f64]) -> f64 {
    let n = cells.len().max(1) as f64;
    let mean = cells.iter().sum::<f64>() / n;
    (cells.iter().map(|c| math::square(c - mean)).sum::<f64>() / n).sqrt()
}

/// The shuffle of a distributed sort (section 5.1). `duplicates` in `0..=1` is the share of keys
/// drawn from a few popular values: 0 gives near-uniform messages, 1 the largest skewness.
pub fn by_sorting(nodes: usize, duplicates: f64, prng: &mut Prng) -> Normal {
    let keys_per_node = KEYS_PER_CELL * nodes;
    let mut keys: Vec<(u64, u32)> = Vec::with_capacity(keys_per_node * nodes);
    // With a single popular value, each node sends its popular keys to one receiver. More values
    // spread the keys out again.
    let values = (nodes as f64 / 8.0 * (1.0 - duplicates)) as u64;
    let popular: Vec<u64> = (0..=values).map(|_| prng.next_u64()).collect();
    for node in 0..nodes as u32 {
        for _ in 0..keys_per_node {
            let key = if prng.chance(duplicates) {
                // The head of a Zipf distribution: half of all keys take the first value, a third
                // the second value.
                let at = (prng.unit() * prng.unit() * popular.len() as f64) as usize;
                popular[at.min(popular.len() - 1)]
            } else {
                prng.next_u64()
            };
            keys.push((key, node));
        }
    }
    // Equal keys are ordered by node. This order keeps the sort stable and turns equal keys into a
    // skewed message.
    keys.sort_unstable();
    let mut cells = vec![0.0; nodes * nodes];
    for (receiver, range) in keys.chunks(keys_per_node.max(1)).enumerate() {
        for &(_, sender) in range {
            cells[sender as usize * nodes + receiver] += 1.0 / KEYS_PER_CELL as f64;
        }
    }
    Normal { nodes, cells }.permuted(prng)
}

/// A random distribution of message sizes: a stepped line through random points.
struct Sizes {
    points: Vec<(f64, f64)>,
}

impl Sizes {
    fn draw(nodes: usize, prng: &mut Prng) -> Self {
        let steps = 1 + prng.below(STEPS_MAX);
        // The uniform draw of the thesis would hardly ever give small messages, so other scales are
        // mixed in.
        let power = 1.0 + 4.0 * prng.unit();
        let mut x: Vec<f64> =
            (0..steps).map(|_| nodes as f64 * math::pow(prng.unit(), power)).collect();
        let mut y: Vec<f64> = (0..steps).map(|_| prng.unit()).collect();
        x.sort_by(f64::total_cmp);
        y.sort_by(f64::total_cmp);
        let mut points = vec![(0.0, 0.0)];
        points.extend(x.into_iter().zip(y));
        points.push((nodes as f64, 1.0));
        Self { points }
    }

    fn sample(&self, prng: &mut Prng) -> f64 {
        let y = prng.unit();
        let at = self.points.partition_point(|point| point.1 <= y).min(self.points.len() - 1);
        let (low, high) = (self.points[at - 1], self.points[at]);
        let part = (y - low.1) / (high.1 - low.1).max(f64::MIN_POSITIVE);
        low.0 + part * (high.0 - low.0)
    }

    /// One row that adds up: the row is cut when it is full, and the last cell takes the rest.
    fn row(&self, nodes: usize, prng: &mut Prng) -> Vec<f64> {
        let mut row = vec![0.0; nodes];
        let mut left = nodes as f64;
        for cell in &mut row {
            *cell = self.sample(prng).min(left);
            left -= *cell;
            if left <= 0.0 {
                break;
            }
        }
        row[nodes - 1] += left.max(0.0);
        row
    }

    fn skewness(&self, nodes: usize, prng: &mut Prng) -> f64 {
        let rows = (PROBE_CELLS / nodes).clamp(1, nodes);
        let cells: Vec<f64> = (0..rows).flat_map(|_| self.row(nodes, prng)).collect();
        deviation(&cells) / (nodes as f64 - 1.0).sqrt()
    }
}

/// A matrix of about this skewness, sampled from a random distribution (section 5.2). Near 0 and
/// near 1, the result is the nearest of a few thousand tries. [`Normal::skewness`] gives the
/// skewness of the result.
pub fn by_sampling(nodes: usize, skewness: f64, prng: &mut Prng) -> Normal {
    if nodes < 2 || skewness <= 0.0 {
        return Normal::uniform(nodes);
    }
    let mut best: Option<(f64, Normal)> = None;
    let (mut near, mut tries) = (0.05, 0);
    while tries < TRIES_MAX {
        tries += 1;
        let blend = blend_for(nodes, skewness, prng);
        let Some((sizes, share)) = blend else { continue };
        if (sizes.skewness(nodes, prng) * share - skewness).abs() > near {
            near *= 1.01;
            continue;
        }
        let rows = (0..nodes).flat_map(|_| sizes.row(nodes, prng));
        // The blend pulls cells towards the mean, so rows still add up.
        let cells = rows.map(|cell| 1.0 + (cell - 1.0) * share).collect();
        let matrix = repair(&Normal { nodes, cells }, prng).permuted(prng);
        let off = (matrix.skewness() - skewness).abs();
        if best.as_ref().is_none_or(|best| off < best.0) {
            best = Some((off, matrix));
        }
        if off < TOLERANCE || tries > TRIES_MAX / 10 && off < 5.0 * TOLERANCE {
            break;
        }
    }
    best.map_or_else(|| Normal::uniform(nodes), |best| best.1)
}

/// A distribution, and the share of its deviation to keep so that its skewness is not above the
/// wanted skewness.
fn blend_for(nodes: usize, skewness: f64, prng: &mut Prng) -> Option<(Sizes, f64)> {
    let sizes = Sizes::draw(nodes, prng);
    let own = sizes.skewness(nodes, prng);
    // A blend leaves no message empty, so half of the matrices stay as they were drawn.
    if own < skewness - TOLERANCE || own > skewness + TOLERANCE && prng.chance(0.5) {
        return None;
    }
    // Low skewness is rare without a blend, so a blend is always allowed for it.
    let share = if own > skewness + TOLERANCE {
        if skewness > 0.3 {
            return None;
        }
        skewness / own
    } else {
        1.0
    };
    Some((sizes, share))
}

/// Makes every column add up too, without changing the sums of the rows.
fn repair(preliminary: &Normal, prng: &mut Prng) -> Normal {
    let nodes = preliminary.nodes;
    let placed = place(preliminary, prng);
    let order = column_order(&placed, nodes);
    let mut cells = vec![0.0; nodes * nodes];
    // Walks along the receivers' intervals, column by column. A message that crosses the end of an
    // interval continues in the next interval.
    let (mut at, mut room) = (0, nodes as f64);
    for &column in &order {
        for sender in 0..nodes {
            let mut left = placed[sender * nodes + column];
            while left > 0.0 {
                let last = at == nodes - 1;
                let part = if last { left } else { left.min(room) };
                cells[sender * nodes + order[at]] += part;
                left -= part;
                room -= part;
                if room <= 1e-9 && !last {
                    at += 1;
                    room += nodes as f64;
                } else if part == 0.0 {
                    break;
                }
            }
        }
    }
    Normal { nodes, cells }
}

/// Rearranges the cells of each row so that columns add up to about the same. The longest cell of a
/// row goes first, into the emptiest column that the row has not used.
fn place(preliminary: &Normal, prng: &mut Prng) -> Vec<f64> {
    let nodes = preliminary.nodes;
    let mut longest: Vec<u32> = (0..(nodes * nodes) as u32).collect();
    prng.shuffle(&mut longest);
    let length = |at: u32| preliminary.cells[at as usize];
    longest.sort_by(|&a, &b| length(b).total_cmp(&length(a)));
    let mut placed = vec![0.0; nodes * nodes];
    let mut used = vec![false; nodes * nodes];
    let mut free = vec![nodes as f64; nodes];
    for at in longest.into_iter().filter(|&at| length(at) > 0.0) {
        let row = at as usize / nodes * nodes;
        let open = (0..nodes).filter(|column| !used[row + column]);
        let column = open.max_by(|&a, &b| free[a].total_cmp(&free[b])).unwrap_or(0);
        used[row + column] = true;
        placed[row + column] = length(at);
        free[column] -= length(at);
    }
    placed
}

/// The order of columns in which overfull and underfull columns cancel out best.
fn column_order(placed: &[f64], nodes: usize) -> Vec<usize> {
    let free = |column: usize| {
        nodes as f64 - (0..nodes).map(|row| placed[row * nodes + column]).sum::<f64>()
    };
    let mut sorted: Vec<(usize, f64)> = (0..nodes).map(|column| (column, free(column))).collect();
    sorted.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut sorted: std::collections::VecDeque<_> = sorted.into();
    let (mut order, mut sum) = (Vec::with_capacity(nodes), 0.0f64);
    while let (Some(&head), Some(&tail)) = (sorted.front(), sorted.back()) {
        let take_head = (sum + head.1).abs() <= (sum + tail.1).abs();
        let taken = if take_head { sorted.pop_front() } else { sorted.pop_back() };
        let (column, free) = taken.unwrap_or((0, 0.0));
        order.push(column);
        sum += free;
    }
    order
}
