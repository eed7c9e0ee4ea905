//! Shortest ways from the root, when a way may use a host any number of times.
//!
//! A way has two numbers, and neither of two ways need be better in both. Each host therefore keeps
//! all ways that no other way beats in both numbers (Pareto).

use crate::paths::{Length, Lengths};

/// The ways to every host, by number of hops.
pub(super) struct Labels {
    /// The root; `None` when any host may be the root.
    pub root: Option<usize>,
    levels: Vec<Vec<Vec<Length>>>,
}

impl Labels {
    /// Finds the ways of 0 to `hops` hops that are not longer than `limit`.
    pub fn new(lengths: &Lengths, root: Option<usize>, hops: u8, limit: f64) -> Self {
        let mut first = vec![Vec::new(); lengths.hosts()];
        match root {
            Some(root) => first[root].push(Length::default()),
            None => first.iter_mut().for_each(|ways| ways.push(Length::default())),
        }
        let mut levels = vec![first];
        for _ in 0..hops {
            let above = &levels[levels.len() - 1];
            let mut level = vec![Vec::new(); lengths.hosts()];
            for to in (0..lengths.hosts()).filter(|&to| Some(to) != root) {
                let mut ways: Vec<Length> = Vec::new();
                for (from, above) in above.iter().enumerate() {
                    let edge = lengths.edge(from, to);
                    ways.extend(above.iter().map(|way| way.plus(edge)));
                }
                ways.retain(|way| way.us() <= limit);
                level[to] = unbeaten(ways);
            }
            levels.push(level);
        }
        Self { root, levels }
    }

    /// The ways of this many hops, by host.
    pub fn level(&self, hops: usize) -> &[Vec<Length>] {
        &self.levels[hops]
    }

    /// No tree has a worst leaf below this value, because the tree must reach as many hosts as it
    /// has leaves. Infinite when fewer hosts can be reached within the limit.
    pub fn bound(&self, hops: u8, leaves: usize) -> f64 {
        let least =
            |ways: &Vec<Length>| ways.iter().map(|way| way.us()).fold(f64::INFINITY, f64::min);
        let mut us: Vec<f64> = self.levels[hops as usize].iter().map(least).collect();
        us.sort_unstable_by(f64::total_cmp);
        us.get(leaves - 1).copied().unwrap_or(f64::INFINITY)
    }
}

fn unbeaten(mut ways: Vec<Length>) -> Vec<Length> {
    ways.sort_unstable_by(|a, b| {
        a.mean_us.total_cmp(&b.mean_us).then(a.excess_us2.total_cmp(&b.excess_us2))
    });
    let mut least = f64::INFINITY;
    ways.retain(|way| {
        let kept = way.excess_us2 < least;
        least = least.min(way.excess_us2);
        kept
    });
    ways
}
