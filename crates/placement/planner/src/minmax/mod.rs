//! Finds the tree with the best worst leaf, and bounds how far it is from the best possible tree.
//!
//! TreeBuilder looks at one parent at a time, and LemonDrop at the sum over all edges. But the
//! latest leaf sets the deadline, and its delay is a property of a whole path. Min-max therefore
//! searches for the tree that minimises
//!
//! ```text
//! max over leaves of percentile(way from the root to the leaf)
//! ```
//!
//! with the path percentiles of [`paths`](crate::paths), by local search from any tree (modules
//! `search` and `refine`). A *lower bound* states how good a tree can be at all. For a threshold T,
//! the search for the bound asks whether any tree has all its leaves within T. The search can prove
//! in three ways that no tree has:
//!
//! | none within T, because | cost |
//! |---|---|
//! | too few hosts can be reached over any others (`labels`) | hosts squared |
//! | all trees cost more than all hosts are worth (`prices`) | hosts squared or cubed |
//! | all were tried, one by one, as far as work allows (`proof`) | exponential |
//!
//! Trees with hedging have their own search (`hedged`) and their own bound (`hedged_bound`), which
//! is wider.
//!
//! A plan therefore states a `gap`, a bound on how much worse its tree is than the best tree. Only
//! plans with hedging in pools of more than 220 hosts have none. Bound and tree are judged by the
//! same estimates of path percentiles, which are 3.5 to 7 % off. The gap states the quality of the
//! search, and says nothing about the network.

mod hedged;
mod hedged_bound;
mod hosts;
mod labels;
mod prices;
mod proof;
mod refine;
mod search;

use evenfall_core::{Hedging, Prng};

use crate::delays::{DelayMatrix, HostPool};
use crate::paths::Lengths;
use crate::tree::{PlacedTree, TreeShape};
use labels::Labels;
use prices::Market;
use proof::Verdict;
use refine::Refine;
use search::Search;

/// The goal and the effort of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MinMax {
    /// D and F.
    pub shape: TreeShape,
    /// The root, when it is given.
    pub root: Option<usize>,
    /// The percentile that counts, as a share: 0.5 to 0.999.
    pub share: f64,
    /// H: extra copies that every node below the first level gets from its parent's siblings.
    pub hedging: Hedging,
    /// Moves of the local search. 0 chooses a number that suits the shape.
    pub moves: u64,
    /// Limit of the work of one exhaustive proof, in partial trees.
    pub work: u64,
    /// Randomness of the search.
    pub seed: u64,
}

impl MinMax {
    /// The 90th percentile of plain paths, without hedging, with the usual effort.
    pub fn new(shape: TreeShape) -> Self {
        let hedging = Hedging::NONE;
        Self { shape, root: None, share: 0.9, hedging, moves: 0, work: 2_000_000, seed: 1 }
    }

    /// Number of aunts that a node can have, which the number of its parent's siblings limits.
    /// Trees without aunts are judged by their plain paths.
    fn aunts(&self) -> usize {
        let is_deep = self.shape.depth > 1;
        let siblings = self.shape.fanout.saturating_sub(1) as usize;
        if is_deep { self.hedging.copies().min(siblings) } else { 0 }
    }
}

/// A tree with its estimated quality.
#[derive(Clone, Debug, PartialEq)]
pub struct MinMaxPlan {
    /// The tree.
    pub tree: PlacedTree,
    /// The estimated percentile of its worst leaf, microseconds.
    pub worst_leaf_us: f64,
    /// No tree of this pool has a better worst leaf by the same estimates, microseconds; `None`
    /// when trees hedge and the pool has more than 220 hosts.
    pub bound_us: Option<f64>,
}

impl MinMaxPlan {
    /// Bound on how much worse the tree is than the best possible tree, as a share; 0 when the tree
    /// is proved to be the best.
    pub fn gap(&self) -> Option<f64> {
        Some((self.worst_leaf_us / self.bound_us? - 1.0).max(0.0))
    }
}

/// Reasons why min-max has no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MinMaxError {
    /// A tree of no depth or no fan-out, or of too many places.
    #[error(
        "depth and fan-out must be 1 or more, and the tree has {} places at most",
        crate::delays::HOSTS_MAX
    )]
    NoShape,
    /// Fewer hosts than places.
    #[error(
        "the tree has {places} places and the pool {hosts} hosts: {} are missing",
        .places.saturating_sub(*.hosts)
    )]
    PoolTooSmall {
        /// Places of the tree.
        places: usize,
        /// Hosts of the pool.
        hosts: usize,
    },
    /// The root is not in the pool.
    #[error("the root is not in the pool")]
    NoRoot,
    /// The percentile is outside 50 to 99.9.
    #[error("the percentile must be 50 to 99.9")]
    NoPercentile,
    /// No tree was found whose edges can all be used.
    #[error(
        "{}; measure more pairs",
        match .proven {
            true => "the usable edges do not make a tree",
            false => "no tree of usable edges was found",
        }
    )]
    NoTree {
        /// Whether it is certain that there is none.
        proven: bool,
    },
}

/// Largest pool that is searched exhaustively. Behind a root, nine hosts have 362,880 orders.
const EXHAUSTED_HOSTS: usize = 10;
/// Largest pool in which the bound at depth 3 considers all pairs below each proxy. The work grows
/// with the cube of the pool.
const PAIRS_HOSTS: usize = 220;
/// Largest pool whose hosts are considered as root one by one, when no root is given.
const ROOTS_HOSTS: usize = 150;
/// Thresholds tried between bound and tree. Ten halvings leave a thousandth of the first gap.
const THRESHOLDS: u32 = 10;
/// Gap, as a share, below which no further threshold is tried.
const GAP_MIN: f64 = 0.001;

/// Searches for a tree, beginning at `start` when it is given, and computes the bound.
///
/// # Errors
/// When the pool, the root or the percentile is invalid, or when no tree of usable edges was found.
pub fn plan(
    delays: &DelayMatrix,
    pool: &[usize],
    what: &MinMax,
    start: Option<&PlacedTree>,
) -> Result<MinMaxPlan, MinMaxError> {
    let pool = HostPool::new(delays, pool);
    let what = &number_root(&pool, what)?;
    let start = start.and_then(|tree| pool.numbered(tree));
    let plan = plan_numbered(&pool, what, start.as_ref())?;
    Ok(MinMaxPlan { tree: pool.named(&plan.tree), ..plan })
}

/// The worst leaf of the tree that [`plan`] finds before it computes the bound, microseconds. The
/// bound takes most of the time of a plan, and its proofs may still improve the tree.
///
/// # Errors
/// As [`plan`].
pub(crate) fn searched_worst_leaf_us(
    delays: &DelayMatrix,
    pool: &[usize],
    what: &MinMax,
) -> Result<f64, MinMaxError> {
    let pool = HostPool::new(delays, pool);
    let what = &number_root(&pool, what)?;
    let (us, tree) = search(&Lengths::new(&pool, what.share), what, None)?;
    if us >= UNUSABLE_US {
        // Only a proof may still find a tree.
        return Ok(plan_numbered(&pool, what, None)?.worst_leaf_us);
    }
    Ok(if what.aunts() > 0 { hedged_search(&pool, what, tree).0 } else { us })
}

/// The settings with the root as a number of the pool. From here on hosts are numbers of the pool,
/// so that no other host can be chosen.
fn number_root(pool: &HostPool<'_>, what: &MinMax) -> Result<MinMax, MinMaxError> {
    let root = what.root.map(|root| pool.number(root).ok_or(MinMaxError::NoRoot)).transpose()?;
    Ok(MinMax { root, ..*what })
}

fn plan_numbered(
    pool: &HostPool<'_>,
    what: &MinMax,
    start: Option<&PlacedTree>,
) -> Result<MinMaxPlan, MinMaxError> {
    let lengths = Lengths::new(pool, what.share);
    let found = search(&lengths, what, start)?;
    if what.aunts() > 0 && found.0 < UNUSABLE_US {
        let (worst_leaf_us, tree) = hedged_search(pool, what, found.1);
        let bound_us = hedged_bound::bound(pool, what, worst_leaf_us);
        return Ok(MinMaxPlan { tree, worst_leaf_us, bound_us });
    }
    let (bound_us, found) = bound(&lengths, what, found);
    if found.0 >= UNUSABLE_US {
        return Err(MinMaxError::NoTree { proven: bound_us >= UNUSABLE_US });
    }
    let tree = settle(&lengths, what, &found.1);
    let worst_leaf_us = lengths.worst_leaf(&tree).1;
    Ok(MinMaxPlan { tree, worst_leaf_us, bound_us: Some(bound_us.min(worst_leaf_us)) })
}

/// Hosts without a place in a tree.
fn spares(lengths: &Lengths, tree: &PlacedTree) -> Vec<usize> {
    (0..lengths.hosts()).filter(|host| !tree.hosts().contains(host)).collect()
}

/// Improves the other leaves of a tree without making its worst leaf later.
fn settle(lengths: &Lengths, what: &MinMax, tree: &PlacedTree) -> PlacedTree {
    let moves = if what.moves > 0 { what.moves } else { moves_for(what.shape, lengths.hosts()) };
    let mut search = Search::new(lengths, tree, &spares(lengths, tree), what.root.is_some());
    search.settle(moves / 2, &mut Prng::new(what.seed))
}

/// The better of two trees, both judged with hedging: the given tree, and the result of a further
/// search with hedging. Returns the tree with its worst leaf, microseconds.
fn hedged_search(pool: &HostPool<'_>, what: &MinMax, tree: PlacedTree) -> (f64, PlacedTree) {
    let further = hedged::search(pool, what, &tree);
    let judge = |tree: PlacedTree| (hedged::worst_leaf(pool, what, &tree), tree);
    let (plain, further) = (judge(tree), judge(further));
    if further.0 < plain.0 { further } else { plain }
}

/// The hosts with the shortest ways, place by place. This tree needs all pairs and no search.
///
/// # Errors
/// As [`plan`].
pub fn greedy_tree(
    delays: &DelayMatrix,
    pool: &[usize],
    what: &MinMax,
) -> Result<PlacedTree, MinMaxError> {
    let pool = HostPool::new(delays, pool);
    let what = &number_root(&pool, what)?;
    let places = check(pool.hosts(), what)?;
    let lengths = Lengths::new(&pool, what.share);
    let tree = greedy(&lengths, what, places);
    if lengths.worst_leaf(&tree).1 >= UNUSABLE_US {
        return Err(MinMaxError::NoTree { proven: false });
    }
    Ok(pool.named(&tree))
}

/// The estimated percentile of the worst leaf of a tree, hedging taken into account, microseconds.
pub fn worst_leaf_us(delays: &DelayMatrix, what: &MinMax, tree: &PlacedTree) -> f64 {
    let pool = HostPool::new(delays, tree.hosts());
    let numbered = PlacedTree::new(tree.shape(), (0..tree.hosts().len()).collect());
    if what.aunts() > 0 {
        hedged::worst_leaf(&pool, &MinMax { shape: tree.shape(), ..*what }, &numbered)
    } else {
        Lengths::new(&pool, what.share).worst_leaf(&numbered).1
    }
}

/// No tree of the pool that hedges has a worst leaf below this value, microseconds. `most` is the
/// worst leaf of a tree that is known. `None` for trees without aunts, for a root outside the pool,
/// and for pools of more than 220 hosts.
pub fn hedged_bound_us(
    delays: &DelayMatrix,
    pool: &[usize],
    what: &MinMax,
    most: f64,
) -> Option<f64> {
    let pool = HostPool::new(delays, pool);
    let what = number_root(&pool, what).ok()?;
    (what.aunts() > 0).then(|| hedged_bound::bound(&pool, &what, most))?
}

/// Path length in microseconds from which on a path counts as having an unusable edge.
pub(crate) const UNUSABLE_US: f64 = 1e9;

fn check(hosts: usize, what: &MinMax) -> Result<usize, MinMaxError> {
    if !(0.5..=0.999).contains(&what.share) {
        return Err(MinMaxError::NoPercentile);
    }
    let places = what.shape.checked_places().filter(|_| what.shape.depth > 0);
    let places = places.ok_or(MinMaxError::NoShape)?;
    if hosts < places {
        return Err(MinMaxError::PoolTooSmall { places, hosts });
    }
    Ok(places)
}

/// The best tree that local search finds, with the percentile of its worst leaf. No bound is
/// computed.
///
/// # Errors
/// When the pool is invalid.
pub(crate) fn search(
    lengths: &Lengths,
    what: &MinMax,
    start: Option<&PlacedTree>,
) -> Result<(f64, PlacedTree), MinMaxError> {
    let places = check(lengths.hosts(), what)?;
    let mut prng = Prng::new(what.seed);
    let mut best = (f64::INFINITY, None);
    let moves = if what.moves > 0 { what.moves } else { moves_for(what.shape, lengths.hosts()) };
    let starts = start.cloned().into_iter().chain([greedy(lengths, what, places)]);
    for tree in starts {
        let mut search = Search::new(lengths, &tree, &spares(lengths, &tree), what.root.is_some());
        let (us, tree) = search.run(moves, &mut prng);
        if us < best.0 {
            best = (us, Some(tree));
        }
    }
    let (us, tree) = best;
    let mut best = (us, tree.ok_or(MinMaxError::NoTree { proven: false })?);
    if what.shape.depth > 1 && best.0 < UNUSABLE_US {
        let mut refine = Refine::new(lengths, &best.1, what.root.is_some());
        let edges = EDGES_PER_MOVE * moves * if lengths.hosts() > 1_000 { 4 } else { 1 };
        refine.run(edges, &mut best, &mut prng);
    }
    Ok(best)
}

/// Edges that `refine` reads for every move of the preceding search, so that both take about the
/// same time.
const EDGES_PER_MOVE: u64 = 100;

/// Moves for a shape, enough to try every host on every place several times.
fn moves_for(shape: TreeShape, hosts: usize) -> u64 {
    (shape.places() as u64 * hosts as u64 * 200).clamp(200_000, 3_000_000)
}

/// The hosts with the shortest ways, level by level; any order when edges are missing.
fn greedy(lengths: &Lengths, what: &MinMax, places: usize) -> PlacedTree {
    let mut free: Vec<usize> = (0..lengths.hosts()).collect();
    let nearest = |from: usize| {
        let mut us: Vec<f64> = (0..lengths.hosts()).map(|to| lengths.edge(from, to).us()).collect();
        us.sort_by(f64::total_cmp);
        us[(what.shape.fanout as usize).min(us.len()) - 1]
    };
    let best = || (0..lengths.hosts()).min_by(|&a, &b| nearest(a).total_cmp(&nearest(b)));
    let root = what.root.or_else(best).unwrap_or_default();
    free.retain(|&host| host != root);
    let mut hosts = vec![root];
    let mut ways = vec![crate::paths::Length::default()];
    for place in 1..places {
        let parent = (place - 1) / what.shape.fanout as usize;
        let way = |host: usize| ways[parent].plus(lengths.edge(hosts[parent], host));
        let us = free.iter().map(|&host| way(host).us()).enumerate();
        let Some((index, _)) = us.min_by(|a, b| a.1.total_cmp(&b.1)) else { break };
        ways.push(way(free[index]));
        hosts.push(free.swap_remove(index));
    }
    PlacedTree::new(what.shape, hosts)
}

/// A given root, or no root when every host may be the root; with the labels of its search.
struct Root {
    host: Option<usize>,
    labels: Labels,
    bound: f64,
    prices: Vec<f64>,
}

/// Computes the bound. Returns also a better tree, when a proof found one.
fn bound(
    lengths: &Lengths,
    what: &MinMax,
    mut best: (f64, PlacedTree),
) -> (f64, (f64, PlacedTree)) {
    let hosts: Vec<Option<usize>> = match what.root {
        Some(root) => vec![Some(root)],
        None if lengths.hosts() <= ROOTS_HOSTS => (0..lengths.hosts()).map(Some).collect(),
        None => vec![None],
    };
    let prices = vec![1.0 / lengths.hosts() as f64; lengths.hosts()];
    let leaves = what.shape.leaves().len();
    let root = |host: Option<usize>| {
        let labels = Labels::new(lengths, host, what.shape.depth, best.0.min(UNUSABLE_US));
        let bound = labels.bound(what.shape.depth, leaves).min(best.0);
        Root { host, labels, bound, prices: prices.clone() }
    };
    let mut roots: Vec<Root> = hosts.into_iter().map(root).collect();
    // A long proof first tests whether the tree itself is the best.
    let least = |roots: &[Root]| roots.iter().map(|root| root.bound).fold(f64::INFINITY, f64::min);
    for _ in 0..THRESHOLDS {
        let limit = best.0.next_down();
        let verdict = ask_all(lengths, what, &mut roots, limit, what.work);
        let Some(hosts) = verdict else { break };
        let tree = PlacedTree::new(what.shape, hosts);
        best = (lengths.worst_leaf(&tree).1, tree);
    }
    let mut top = best.0;
    for _ in 0..THRESHOLDS {
        let low = least(&roots);
        if low * (1.0 + GAP_MIN) >= top || !top.is_finite() {
            break;
        }
        let limit = low + (top.min(UNUSABLE_US) - low) / 2.0;
        if let Some(hosts) = ask_all(lengths, what, &mut roots, limit, what.work / 10) {
            let tree = PlacedTree::new(what.shape, hosts);
            best = (lengths.worst_leaf(&tree).1, tree);
        }
        if least(&roots) < limit {
            top = limit;
        }
    }
    (least(&roots).min(best.0), best)
}

/// Raises the bound of every root that has no tree within the limit. Returns a tree within the
/// limit, if a proof found one.
fn ask_all(
    lengths: &Lengths,
    what: &MinMax,
    roots: &mut [Root],
    limit: f64,
    work: u64,
) -> Option<Vec<usize>> {
    for root in roots.iter_mut().filter(|root| root.bound <= limit) {
        match ask(lengths, what, root, limit, work) {
            Verdict::None => root.bound = limit.next_up(),
            Verdict::Found(hosts) => return Some(hosts),
            Verdict::Unknown => {}
        }
    }
    None
}

/// Whether a root has a tree within the limit.
fn ask(lengths: &Lengths, what: &MinMax, root: &mut Root, limit: f64, work: u64) -> Verdict {
    let shape = what.shape;
    let limit = limit.min(UNUSABLE_US);
    if lengths.hosts() <= EXHAUSTED_HOSTS {
        return proof::exhaust(lengths, shape, root.host, limit, u64::MAX);
    }
    // With one level, all leaves are children of the root, so any reachable hosts form a tree.
    if shape.depth == 1 {
        return Verdict::Unknown;
    }
    let pairs = lengths.hosts() <= PAIRS_HOSTS;
    let mut market = Market::new(lengths, shape, &root.labels, limit, pairs, &root.prices);
    let refused = market.refuses();
    root.prices.copy_from_slice(market.prices());
    match root.host {
        _ if refused => Verdict::None,
        Some(root) => proof::try_all(&market, root, work),
        None => Verdict::Unknown,
    }
}

#[cfg(test)]
mod tests;
