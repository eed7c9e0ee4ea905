//! A dense product on one core: tiles of 4 x 4 sums that stay in registers.
//!
//! Both operands are laid out once so that the innermost loop reads them in order: the left in
//! strips of four rows, the right in strips of four columns. The left one never changes during a
//! run and is packed once; the right one is gathered by rows, which is how a permutation takes
//! part in a product without being one.

/// Rows and columns of a tile: 8 SSE2 registers of sums, and as many left for operands.
const TILE: usize = 4;

/// Terms of a sum that are added before the next tile's turn: one strip of each operand, 8 KiB,
/// stays in the first-level cache.
const DEPTH: usize = 256;

/// A left operand, n x k, packed by strips of four rows and blocks of `DEPTH` columns.
#[derive(Clone, Debug)]
pub(super) struct Left {
    rows: usize,
    depth: usize,
    packed: Vec<f64>,
}

/// Strips that cover so many rows.
fn strips(rows: usize) -> usize {
    rows.div_ceil(TILE)
}

impl Left {
    /// Packs blocks side by side: `[first, second, ...]`, each `rows` x `rows`.
    pub fn new(rows: usize, blocks: &[&[f64]]) -> Self {
        let depth = rows * blocks.len();
        let cell = |row: usize, k: usize| blocks[k / rows][row * rows + k % rows];
        let mut packed = Vec::with_capacity(strips(rows) * TILE * depth);
        for from in (0..depth).step_by(DEPTH) {
            for strip in 0..strips(rows) {
                for k in from..depth.min(from + DEPTH) {
                    let strip = strip * TILE..strip * TILE + TILE;
                    packed.extend(strip.map(|row| if row < rows { cell(row, k) } else { 0.0 }));
                }
            }
        }
        Self { rows, depth, packed }
    }

    /// `out += scale * self * right`, where row k of `right` is `right(k)`.
    pub fn multiply<'a>(
        &self,
        scale: f64,
        right: impl Fn(usize) -> &'a [f64],
        out: &mut [f64],
        room: &mut Vec<f64>,
    ) {
        let n = self.rows;
        let tall = strips(n) * TILE;
        for from in (0..self.depth).step_by(DEPTH) {
            let depth = DEPTH.min(self.depth - from);
            pack_right(n, depth, |k| right(from + k), room);
            let left = &self.packed[from * tall..][..depth * tall];
            for (across, right) in room.chunks_exact(depth * TILE).enumerate() {
                for (down, left) in left.chunks_exact(depth * TILE).enumerate() {
                    let sums = tile(left, right);
                    add(out, n, down * TILE, across * TILE, scale, &sums);
                }
            }
        }
    }
}

/// Lays rows out in strips of four columns.
fn pack_right<'a>(n: usize, depth: usize, row: impl Fn(usize) -> &'a [f64], room: &mut Vec<f64>) {
    room.resize(strips(n) * TILE * depth, 0.0);
    for k in 0..depth {
        let row = row(k);
        let mut at = k * TILE;
        let mut quads = row.chunks_exact(TILE);
        for quad in &mut quads {
            room[at..at + TILE].copy_from_slice(quad);
            at += depth * TILE;
        }
        let rest = quads.remainder();
        if !rest.is_empty() {
            room[at..at + TILE].fill(0.0);
            room[at..at + rest.len()].copy_from_slice(rest);
        }
    }
}

/// The sums of one tile.
#[inline]
fn tile(left: &[f64], right: &[f64]) -> [[f64; TILE]; TILE] {
    let mut sums = [[0.0; TILE]; TILE];
    let (left, right) = (left.as_chunks::<TILE>().0, right.as_chunks::<TILE>().0);
    for (left, right) in left.iter().zip(right) {
        for (sums, &a) in sums.iter_mut().zip(left) {
            for (sum, &b) in sums.iter_mut().zip(right) {
                *sum += a * b;
            }
        }
    }
    sums
}

/// Adds a tile where it belongs; what hangs over the edge is padding.
fn add(out: &mut [f64], n: usize, row: usize, column: usize, scale: f64, sums: &[[f64; 4]; 4]) {
    let width = TILE.min(n - column);
    for (sums, row) in sums.iter().zip(row..n) {
        for (cell, sum) in out[row * n + column..][..width].iter_mut().zip(sums) {
            *cell += scale * sum;
        }
    }
}
