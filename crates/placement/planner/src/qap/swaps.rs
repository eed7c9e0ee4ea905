//! The change of the cost by every swap of two hosts, kept up to date.
//!
//! Computing one change from scratch takes O(n). There are n^2 / 2 pairs, and a search makes a swap
//! after each scan of all pairs. Three measures keep the cost of a scan at O(n^2):
//!
//! - B is stored in the order of the permutation, `C[i][j] = B[p(i)][p(j)]`; a swap of places
//!   r, s exchanges two rows and two columns of it.
//! - A pair u, v that shares no place with the swap changes by a product (Taillard, "Robust taboo
//!   search for the quadratic assignment problem", 1991), with x the difference of the rows r and
//!   s in A and y that in C: (x_u - x_v) (y_u - y_v), and the same for columns. Rows against
//!   rows, no lists: it vectorises.
//! - The pairs of r and s themselves, O(n) each if summed, come from inner products that are kept
//!   as well: `N[v][u] = sum over k of A[k][u] C[k][v] + A[u][k] C[v][k]`. A swap adds x y^T to N
//!   and exchanges two of its rows.
//!
//! When both matrices are symmetric, rows and columns are equal, and half of the work is left out.

use super::lanes::widest;
use super::{Instance, symmetric, transposed};

/// Swaps after which all sums are computed again, so that rounding errors of fractions do not add
/// up.
const REFRESH_SWAPS: u64 = 100_000;

/// Lanes of the sweeps; two SSE2 or one AVX register of `f64`.
const LANES: usize = 4;

/// A permutation with the change of the cost by each of its swaps.
#[derive(Clone, Debug)]
pub struct Swaps {
    n: usize,
    symmetric: bool,
    a: Vec<f64>,
    /// A's columns as rows; empty when symmetric.
    a_across: Vec<f64>,
    b: Vec<f64>,
    /// B in the order of the permutation, and its columns as rows.
    c: Vec<f64>,
    c_across: Vec<f64>,
    /// N, row by row.
    inner: Vec<f64>,
    /// Change of the cost by swapping u and v, at `u * n + v` with v > u. Cells with v <= u are not
    /// kept.
    delta: Vec<f64>,
    permutation: Vec<usize>,
    swaps: u64,
    x: Vec<f64>,
    y: Vec<f64>,
    x_across: Vec<f64>,
    y_across: Vec<f64>,
}

/// The better of two swaps: change of the cost, u, v.
pub type Swap = (f64, usize, usize);

impl Swaps {
    /// Computes all sums for this permutation, in O(n^3).
    ///
    /// # Panics
    /// When `permutation` is not a permutation of the instance's size.
    pub fn new(instance: &Instance, permutation: Vec<usize>) -> Self {
        let n = instance.size;
        assert_eq!(permutation.len(), n, "one host for every place");
        let symmetrised = instance.symmetrised();
        let work = symmetrised.as_ref().unwrap_or(instance);
        let both = symmetric(n, &work.a) && symmetric(n, &work.b);
        let across = if both { Vec::new() } else { transposed(n, &work.a) };
        let mut swaps = Self {
            n,
            symmetric: both,
            a: work.a.clone(),
            a_across: across,
            b: work.b.clone(),
            c: vec![0.0; n * n],
            c_across: vec![0.0; if both { 0 } else { n * n }],
            inner: vec![0.0; n * n],
            delta: vec![0.0; n * n],
            permutation,
            swaps: 0,
            x: vec![0.0; n],
            y: vec![0.0; n],
            x_across: vec![0.0; n],
            y_across: vec![0.0; n],
        };
        swaps.refresh();
        swaps
    }

    /// Continues from another permutation: O(n^3).
    pub fn restart(&mut self, permutation: &[usize]) {
        self.permutation.copy_from_slice(permutation);
        self.refresh();
    }

    /// The present permutation.
    pub fn permutation(&self) -> &[usize] {
        &self.permutation
    }

    /// Swaps made so far.
    pub fn count(&self) -> u64 {
        self.swaps
    }

    /// The cost of the permutation, summed from the matrices.
    pub fn cost(&self) -> f64 {
        self.a.iter().zip(&self.c).map(|(a, c)| a * c).sum()
    }

    /// The change of the cost by swapping the hosts of two places.
    pub fn delta(&self, u: usize, v: usize) -> f64 {
        self.delta[u.min(v) * self.n + u.max(v)]
    }

    /// Row u of the changes: `[v - u - 1]` is that of the pair u, v.
    #[inline(always)]
    pub(super) fn deltas(&self, u: usize) -> &[f64] {
        &self.delta[u * self.n + u + 1..(u + 1) * self.n]
    }

    /// Sums C, N and the changes anew.
    fn refresh(&mut self) {
        let n = self.n;
        for (i, &host) in self.permutation.iter().enumerate() {
            let row = &self.b[host * n..][..n];
            for (cell, &p) in self.c[i * n..][..n].iter_mut().zip(&self.permutation) {
                *cell = row[p];
            }
        }
        if !self.symmetric {
            self.c_across = transposed(n, &self.c);
        }
        widest(
            #[inline(always)]
            || self.sum(),
        );
    }

    #[inline(always)]
    fn sum(&mut self) {
        let n = self.n;
        self.inner.fill(0.0);
        // Sum over k of row k of A times row k of C, as outer products: contiguous.
        outer_products(n, &self.a, &self.c, &mut self.inner);
        if !self.symmetric {
            outer_products(n, &self.a_across, &self.c_across, &mut self.inner);
        }
        for u in 0..n {
            self.renew(u, u + 1);
        }
    }

    /// Computes the changes of the pairs u, v for v >= from, out of N.
    #[inline(always)]
    fn renew(&mut self, u: usize, from: usize) {
        for v in (from..self.n).filter(|&v| v != u) {
            let change = self.change(u, v);
            self.delta[u.min(v) * self.n + u.max(v)] = change;
        }
    }

    /// The change by swapping u and v out of N: the sum over all k, less the terms of k = u and k =
    /// v, plus the change of the pair itself.
    #[inline(always)]
    fn change(&self, u: usize, v: usize) -> f64 {
        let n = self.n;
        let (uu, uv, vu, vv) = (u * n + u, u * n + v, v * n + u, v * n + v);
        let (a, c, inner) = (&self.a, &self.c, &self.inner);
        let all = inner[uv] + inner[vu] - inner[uu] - inner[vv];
        let pair = (a[uu] - a[vv]) * (c[vv] - c[uu]);
        if self.symmetric {
            let own = (a[uu] - a[uv]) * (c[uv] - c[uu]) + (a[uv] - a[vv]) * (c[vv] - c[uv]);
            return 2.0 * (all - own) + pair;
        }
        let column = (a[uu] - a[uv]) * (c[uv] - c[uu]) + (a[vu] - a[vv]) * (c[vv] - c[vu]);
        let row = (a[uu] - a[vu]) * (c[vu] - c[uu]) + (a[uv] - a[vv]) * (c[vv] - c[uv]);
        all - column - row + pair + (a[uv] - a[vu]) * (c[vu] - c[uv])
    }

    /// Swaps the hosts of two places and updates all sums.
    ///
    /// # Panics
    /// When the places are the same or beyond the instance.
    pub fn swap(&mut self, r: usize, s: usize) {
        assert!(r != s, "a swap is of two places");
        self.swaps += 1;
        self.permutation.swap(r, s);
        if self.swaps.is_multiple_of(REFRESH_SWAPS) {
            self.refresh();
            return;
        }
        widest(
            #[inline(always)]
            || self.follow(r, s),
        );
    }

    /// Updates the sums after a swap.
    #[inline(always)]
    fn follow(&mut self, r: usize, s: usize) {
        let n = self.n;
        difference(n, &self.a, r, s, &mut self.x);
        difference(n, &self.c, s, r, &mut self.y);
        if !self.symmetric {
            difference(n, &self.a_across, r, s, &mut self.x_across);
            difference(n, &self.c_across, s, r, &mut self.y_across);
        }
        // N with the rows of C exchanged, then its columns.
        for (row, v) in self.inner.chunks_exact_mut(n).zip(0..) {
            let y = self.y[v];
            if self.symmetric {
                row.iter_mut().zip(&self.x).for_each(|(cell, x)| *cell += x * y);
            } else {
                let y_across = self.y_across[v];
                for ((cell, x), x_across) in row.iter_mut().zip(&self.x).zip(&self.x_across) {
                    *cell += x * y + x_across * y_across;
                }
            }
        }
        swap_rows(n, &mut self.inner, r, s);
        swap_rows(n, &mut self.c, r, s);
        swap_columns(n, &mut self.c, r, s);
        if !self.symmetric {
            swap_rows(n, &mut self.c_across, r, s);
            swap_columns(n, &mut self.c_across, r, s);
        }
        self.update_pairs();
        self.renew(r, 0);
        self.renew(s, 0);
    }

    /// Taillard's update, for all pairs; those of the swapped places are renewed afterwards.
    #[inline(always)]
    fn update_pairs(&mut self) {
        let n = self.n;
        if self.symmetric {
            self.x.iter_mut().for_each(|x| *x *= 2.0);
        }
        for u in 0..n - 1 {
            let row = &mut self.delta[u * n + u + 1..(u + 1) * n];
            let (x, y) = (&self.x[u..], &self.y[u..]);
            let (x_u, y_u) = (x[0], y[0]);
            // y belongs to C before the swap, so its sign is reversed here.
            if self.symmetric {
                for ((cell, x), y) in row.iter_mut().zip(&x[1..]).zip(&y[1..]) {
                    *cell -= (x_u - x) * (y_u - y);
                }
            } else {
                let (across, down) = (&self.x_across[u..], &self.y_across[u..]);
                let (x2_u, y2_u) = (across[0], down[0]);
                let other = across[1..].iter().zip(&down[1..]);
                let own = row.iter_mut().zip(&x[1..]).zip(&y[1..]);
                for (((cell, x), y), (x2, y2)) in own.zip(other) {
                    *cell -= (x_u - x) * (y_u - y) + (x2_u - x2) * (y2_u - y2);
                }
            }
        }
    }

    /// The swap that lowers the cost most, or raises it least; the first among equals.
    pub fn best(&self) -> Option<Swap> {
        let mut best = (f64::INFINITY, 0);
        for u in 0..self.n - 1 {
            let least = least(self.deltas(u));
            if least < best.0 {
                best = (least, u);
            }
        }
        let (change, u) = best;
        let at = self.deltas(u).iter().position(|&delta| delta == change)?;
        Some((change, u, u + 1 + at))
    }

    /// Steepest descent: swaps until none lowers the cost. Returns how many.
    pub fn descend(&mut self) -> u64 {
        let before = self.swaps;
        // With fractions, rounding errors can look like a descent. A change below one part in 10^12
        // of the largest change counts as zero.
        let scale = self.delta.iter().fold(0.0_f64, |most, delta| most.max(delta.abs()));
        while let Some((change, u, v)) = self.best() {
            if change >= -1e-12 * scale {
                break;
            }
            self.swap(u, v);
        }
        self.swaps - before
    }
}

/// The least of a row.
#[inline]
fn least(row: &[f64]) -> f64 {
    let mut least = [f64::INFINITY; LANES];
    let (lanes, rest) = row.as_chunks::<LANES>();
    for cells in lanes {
        for (least, &cell) in least.iter_mut().zip(cells) {
            *least = if cell < *least { cell } else { *least };
        }
    }
    least.iter().chain(rest).fold(f64::INFINITY, |a, &b| if b < a { b } else { a })
}

/// `out[v][u] += sum over k of left[k][u] * right[k][v]`.
#[inline(always)]
fn outer_products(n: usize, left: &[f64], right: &[f64], out: &mut [f64]) {
    for (left, right) in left.chunks_exact(n).zip(right.chunks_exact(n)) {
        for (row, &weight) in out.chunks_exact_mut(n).zip(right) {
            if weight != 0.0 {
                row.iter_mut().zip(left).for_each(|(cell, x)| *cell += weight * x);
            }
        }
    }
}

/// Row r less row s.
#[inline(always)]
fn difference(n: usize, m: &[f64], r: usize, s: usize, out: &mut [f64]) {
    let rows = m[r * n..][..n].iter().zip(&m[s * n..][..n]);
    out.iter_mut().zip(rows).for_each(|(out, (r, s))| *out = r - s);
}

#[inline(always)]
fn swap_rows(n: usize, m: &mut [f64], r: usize, s: usize) {
    let (low, high) = (r.min(s), r.max(s));
    let (above, below) = m.split_at_mut(high * n);
    above[low * n..][..n].swap_with_slice(&mut below[..n]);
}

#[inline(always)]
fn swap_columns(n: usize, m: &mut [f64], r: usize, s: usize) {
    m.chunks_exact_mut(n).for_each(|row| row.swap(r, s));
}
