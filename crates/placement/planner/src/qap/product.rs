//! A dense product on one core: tiles of 4 x 8 sums that stay in registers.
//!
//! Both operands are laid out once so that the innermost loop reads them in order: the left in
//! strips of four rows, the right in strips of eight columns. The left operand does not change
//! during a run and is packed once. The right operand is gathered by rows, so that a permutation of
//! its rows needs no multiplication.

use super::lanes::widest;

/// Rows of a tile. The sums of a tile fill 8 AVX2 registers, and 8 registers remain for operands.
const ROWS: usize = 4;
/// Columns of a tile, which are two AVX2 registers.
const COLUMNS: usize = 8;

/// Terms of a sum that are added before the next tile's turn: one strip of each operand, 24 KiB,
/// stays in the first-level cache.
const DEPTH: usize = 256;

/// The sums of one tile.
type Tile = [[f64; COLUMNS]; ROWS];

/// A left operand, n x k, packed by strips of four rows and blocks of `DEPTH` columns.
#[derive(Clone, Debug)]
pub(super) struct Left {
    rows: usize,
    depth: usize,
    packed: Vec<f64>,
}

impl Left {
    /// Packs blocks side by side: `[first, second, ...]`, each `rows` x `rows`.
    pub fn new(rows: usize, blocks: &[&[f64]]) -> Self {
        let depth = rows * blocks.len();
        let cell = |row: usize, k: usize| blocks[k / rows][row * rows + k % rows];
        let strips = rows.div_ceil(ROWS);
        let mut packed = Vec::with_capacity(strips * ROWS * depth);
        for from in (0..depth).step_by(DEPTH) {
            for strip in 0..strips {
                for k in from..depth.min(from + DEPTH) {
                    let strip = strip * ROWS..strip * ROWS + ROWS;
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
        let tall = n.div_ceil(ROWS) * ROWS;
        for from in (0..self.depth).step_by(DEPTH) {
            let depth = DEPTH.min(self.depth - from);
            pack_right(n, depth, |k| right(from + k), room);
            let left = &self.packed[from * tall..][..depth * tall];
            widest(
                #[inline(always)]
                || {
                    for (across, right) in room.chunks_exact(depth * COLUMNS).enumerate() {
                        for (down, left) in left.chunks_exact(depth * ROWS).enumerate() {
                            let sums = tile(left, right);
                            add(out, n, down * ROWS, across * COLUMNS, scale, &sums);
                        }
                    }
                },
            );
        }
    }
}

/// Lays rows out in strips of columns.
fn pack_right<'a>(n: usize, depth: usize, row: impl Fn(usize) -> &'a [f64], room: &mut Vec<f64>) {
    room.resize(n.div_ceil(COLUMNS) * COLUMNS * depth, 0.0);
    for k in 0..depth {
        let (strips, rest) = row(k).as_chunks::<COLUMNS>();
        let mut at = k * COLUMNS;
        for strip in strips {
            room[at..at + COLUMNS].copy_from_slice(strip);
            at += depth * COLUMNS;
        }
        if !rest.is_empty() {
            room[at..at + COLUMNS].fill(0.0);
            room[at..at + rest.len()].copy_from_slice(rest);
        }
    }
}

/// The sums of one tile.
#[inline(always)]
fn tile(left: &[f64], right: &[f64]) -> Tile {
    let mut sums = [[0.0; COLUMNS]; ROWS];
    let (left, right) = (left.as_chunks::<ROWS>().0, right.as_chunks::<COLUMNS>().0);
    for (left, right) in left.iter().zip(right) {
        for (sums, &a) in sums.iter_mut().zip(left) {
            for (sum, &b) in sums.iter_mut().zip(right) {
                *sum += a * b;
            }
        }
    }
    sums
}

/// Adds a tile to the result. Sums beyond the edge of the matrix are padding, and are dropped.
#[inline(always)]
fn add(out: &mut [f64], n: usize, row: usize, column: usize, scale: f64, sums: &Tile) {
    let width = COLUMNS.min(n - column);
    for (sums, row) in sums.iter().zip(row..n) {
        for (cell, sum) in out[row * n + column..][..width].iter_mut().zip(sums) {
            *cell += scale * sum;
        }
    }
}
