use evenfall_core::{Hedging, math};

use super::*;
use crate::delays::EdgeStats;

/// Hosts of lognormal slowness and links of gamma delay, the same model as for the reference
/// results.
fn synthetic(hosts: usize, seed: u64) -> DelayMatrix {
    let mut prng = Prng::new(seed);
    let slow: Vec<f64> = (0..hosts).map(|_| math::exp(0.25 * prng.normal())).collect();
    let mut delays = DelayMatrix::new((0..hosts).map(|host| format!("h{host}")).collect());
    for from in 0..hosts {
        for to in (0..hosts).filter(|&to| to != from) {
            let link: f64 = (0..3).map(|_| prng.exponential(8.0)).sum();
            let p50 = 20.0 * (slow[from] + slow[to]) + link;
            let at = |z: f64| (p50 * math::exp(0.3 * z)) as f32;
            let stats = EdgeStats {
                p25_us: at(-0.674),
                p50_us: at(0.0),
                p75_us: at(0.674),
                p90_us: at(1.282),
                p99_us: at(2.326),
                ..EdgeStats::UNKNOWN
            };
            delays.set(from, to, Some(stats));
        }
    }
    delays
}

fn lengths(delays: &DelayMatrix) -> Lengths {
    Lengths::new(&HostPool::new(delays, &pool(delays.hosts())), 0.9)
}

fn pool(hosts: usize) -> Vec<usize> {
    (0..hosts).collect()
}

#[test]
fn the_bound_is_the_optimum_of_small_pools() {
    for seed in 0..40 {
        let hosts = 7 + seed as usize % 3;
        let mut delays = synthetic(hosts, seed);
        let mut prng = Prng::new(seed);
        for pair in 0..hosts * hosts {
            if seed % 4 == 3 && prng.chance(0.3) {
                delays.set(pair / hosts, pair % hosts, None);
            }
        }
        let lengths = lengths(&delays);
        for (depth, fanout) in [(1, 3), (2, 2), (1, 6), (3, 1), (6, 1)] {
            let shape = TreeShape { depth, fanout };
            let root = [None, Some(seed as usize % hosts)][seed as usize % 2];
            let what = MinMax { root, seed, moves: 2_000, ..MinMax::new(shape) };
            let optimum = enumerate(&lengths, shape, root, hosts);
            match plan(&delays, &pool(hosts), &what, None) {
                Ok(plan) => {
                    assert_eq!(plan.bound_us, Some(optimum), "seed {seed} {shape:?}");
                    assert_eq!(plan.worst_leaf_us, optimum, "seed {seed} {shape:?}");
                    assert_eq!(lengths.worst_leaf(&plan.tree).1, optimum);
                }
                Err(error) => {
                    assert_eq!(error, MinMaxError::NoTree { proven: true });
                    assert_eq!(optimum, f64::INFINITY);
                }
            }
        }
    }
}

/// Tries every order of every choice of hosts, and skips only partial trees that are already worse.
fn enumerate(lengths: &Lengths, shape: TreeShape, root: Option<usize>, hosts: usize) -> f64 {
    fn fill(
        l: &Lengths,
        s: TreeShape,
        root: Option<usize>,
        n: usize,
        t: &mut Vec<usize>,
        best: &mut f64,
    ) {
        let worst = l.ways(s, t).iter().map(|way| way.us()).fold(0.0, f64::max);
        if worst >= *best {
            return;
        }
        if t.len() == s.places() {
            *best = worst;
            return;
        }
        for host in 0..n {
            if !t.contains(&host) && (!t.is_empty() || root.is_none_or(|root| root == host)) {
                t.push(host);
                fill(l, s, root, n, t, best);
                t.pop();
            }
        }
    }
    let mut best = f64::INFINITY;
    fill(lengths, shape, root, hosts, &mut Vec::new(), &mut best);
    best
}

#[test]
fn proofs_by_prices_and_trying_agree_with_exhaustion() {
    let (mut none, mut found) = (0, 0);
    for seed in 0..60 {
        let delays = synthetic(10, seed);
        let lengths = lengths(&delays);
        for (depth, fanout) in [(2, 2), (3, 1)] {
            let shape = TreeShape { depth, fanout };
            let what = MinMax { root: Some(0), seed, moves: 20_000, ..MinMax::new(shape) };
            let (us, _) = search(&lengths, &what, None).expect("a tree");
            for share in [0.9, 0.97, 0.999_999, 1.0, 1.05] {
                let limit = us * share;
                let labels = Labels::new(&lengths, Some(0), depth, limit);
                let mut market = Market::new(&lengths, shape, &labels, limit, true, &[0.1; 10]);
                let refused = market.refuses();
                let tried = proof::try_all(&market, 0, u64::MAX);
                let truth = proof::exhaust(&lengths, shape, Some(0), limit, u64::MAX);
                match &truth {
                    Verdict::Found(_) => {
                        found += 1;
                        assert!(!refused, "seed {seed} {shape:?} {share}");
                        let Verdict::Found(hosts) = tried else { panic!("{tried:?}") };
                        let tree = PlacedTree::new(shape, hosts);
                        assert!(lengths.worst_leaf(&tree).1 <= limit);
                    }
                    _ => {
                        none += 1;
                        assert_eq!(tried, Verdict::None, "seed {seed} {shape:?} {share}");
                    }
                }
            }
        }
    }
    assert!(none > 100 && found > 100, "{none} {found}");
}

#[test]
fn the_gap_is_within_five_percent_at_a_hundred_hosts() {
    for (depth, fanout) in [(2, 5), (3, 3)] {
        let shape = TreeShape { depth, fanout };
        let delays = synthetic(100, 1);
        let what = MinMax { root: Some(0), ..MinMax::new(shape) };
        let plan = plan(&delays, &pool(100), &what, None).expect("a plan");
        let gap = plan.gap().expect("a bound");
        assert!(gap <= 0.05, "{shape:?} {gap}");
    }
}

#[test]
fn one_seed_gives_one_plan_and_a_start_never_makes_it_worse() {
    let delays = synthetic(40, 2);
    let what = MinMax { moves: 30_000, ..MinMax::new(TreeShape { depth: 3, fanout: 2 }) };
    let first = plan(&delays, &pool(40), &what, None).expect("a plan");
    assert_eq!(plan(&delays, &pool(40), &what, None).expect("a plan"), first);
    let again = plan(&delays, &pool(40), &what, Some(&first.tree)).expect("a plan");
    assert!(again.worst_leaf_us <= first.worst_leaf_us);
}

#[test]
fn what_cannot_be_planned_is_said() {
    let delays = synthetic(6, 1);
    let what = MinMax::new(TreeShape { depth: 2, fanout: 2 });
    let error = plan(&delays, &pool(6), &what, None).expect_err("7 places");
    assert!(error.to_string().contains("1 are missing"), "{error}");
    let root = MinMax { root: Some(6), ..MinMax::new(TreeShape { depth: 1, fanout: 2 }) };
    assert_eq!(plan(&delays, &pool(6), &root, None), Err(MinMaxError::NoRoot));
    let p10 = MinMax { share: 0.1, ..MinMax::new(TreeShape { depth: 1, fanout: 2 }) };
    assert_eq!(plan(&delays, &pool(6), &p10, None), Err(MinMaxError::NoPercentile));
}

/// Every plan of a pool is the plan of that pool measured alone, whatever other hosts the delays
/// know: those may have died after they were measured.
#[test]
fn hosts_outside_the_pool_have_no_place_and_no_influence() {
    let mut prng = Prng::new(9);
    for seed in 0..24u64 {
        let (hosts, size) = (24, 12 + seed as usize % 8);
        let mut delays = synthetic(hosts, seed);
        let mut pool: Vec<usize> = (0..hosts).collect();
        prng.shuffle(&mut pool);
        let dead = pool.split_off(size);
        // The dead hosts have the shortest delays of all, so a faulty search would choose them.
        for (&dead, host) in dead.iter().flat_map(|dead| (0..hosts).map(move |host| (dead, host))) {
            delays.set(dead, host, Some(EdgeStats::constant(1.0)));
            delays.set(host, dead, Some(EdgeStats::constant(1.0)));
        }
        let (depth, fanout) = [(2, 2), (3, 1), (1, 9), (2, 3)][seed as usize % 4];
        let shape = TreeShape { depth, fanout };
        if shape.places() > size {
            continue;
        }
        let mut alone = DelayMatrix::new(pool.iter().map(|&host| format!("h{host}")).collect());
        for (i, j) in (0..size).flat_map(|i| (0..size).map(move |j| (i, j))) {
            alone.set(i, j, delays.edge(pool[i], pool[j]).copied());
        }
        for (hedging, root) in [(0, Some(pool[0])), (0, None), (1, Some(pool[0]))] {
            let hedging = Hedging(hedging);
            let what = MinMax { root, seed, hedging, moves: 2_000, ..MinMax::new(shape) };
            let plan_of_pool = plan(&delays, &pool, &what, None).expect("a plan");
            let used = plan_of_pool.tree.hosts();
            assert!(used.iter().all(|host| pool.contains(host)), "seed {seed}: {used:?}");
            let what = MinMax { root: root.map(|_| 0), ..what };
            let indices: Vec<usize> = (0..size).collect();
            let plan_alone = plan(&alone, &indices, &what, None).expect("a plan");
            let named: Vec<usize> = plan_alone.tree.hosts().iter().map(|&i| pool[i]).collect();
            assert_eq!((used, plan_of_pool.bound_us), (&named[..], plan_alone.bound_us));
        }
    }
}

/// Shows why percentiles of edges give no bound of trees with hedging. With delays of two values,
/// the percentile of a sum may be far below the sum of the percentiles.
#[test]
fn low_percentiles_of_edges_do_not_bound_those_of_a_path() {
    let us = |fast: bool| if fast { 50.0f32 } else { 80.0 };
    let mut edge: Vec<f32> = (0..1_000).map(|i| us(i % 5 == 0)).collect();
    let mut path: Vec<f32> = (0..25).flat_map(|i| [us(i % 5 == 0) + us(i / 5 == 0); 40]).collect();
    edge.sort_by(f32::total_cmp);
    path.sort_by(f32::total_cmp);
    let at = |sorted: &[f32], q| evenfall_core::nearest_rank(sorted, q).expect("samples");
    assert_eq!((2.0 * at(&edge, 0.225), at(&path, 0.225)), (160.0, 130.0));
    // The union bound needs the percentile 11.25, which the statistics do not contain.
    assert_eq!(2.0 * at(&edge, 0.1125), 100.0);
    let stats = EdgeStats::from_samples(&mut edge, 1_000).expect("samples");
    assert_eq!(stats.quantile_us(0.1125), Some(80.0));
}

#[test]
fn hedged_trees_are_judged_as_monte_carlo_judges_them() {
    let delays = synthetic(20, 5);
    let shape = TreeShape { depth: 3, fanout: 2 };
    let mut prng = Prng::new(3);
    for hedging in [1, 2].map(Hedging) {
        let what = MinMax { root: Some(0), hedging, ..MinMax::new(shape) };
        let tree = PlacedTree::new(shape, (0..15).collect());
        let ours = worst_leaf_us(&delays, &what, &tree);
        let mut leaves = vec![Vec::new(); 15];
        for _ in 0..20_000 {
            let mut times = [0.0; 15];
            for place in 1..15usize {
                let mut edge = |from: usize| {
                    let stats = delays.edge(from, place).expect("dense");
                    times[from] + stats.quantile_us(prng.unit()).expect("known")
                };
                let parent = (place - 1) / 2;
                // With two children, each ring has one other member, the parent's sibling.
                let aunt = if parent % 2 == 1 { parent + 1 } else { parent.max(1) - 1 };
                let first = edge(parent);
                times[place] = if parent == 0 { first } else { first.min(edge(aunt)) };
            }
            (7..15).for_each(|leaf| leaves[leaf].push(times[leaf] as f32));
        }
        let p90 = |us: &mut Vec<f32>| EdgeStats::from_samples(us, 20_000).map_or(0.0, |s| s.p90_us);
        let truth = leaves[7..].iter_mut().map(p90).fold(0.0, f32::max);
        assert!((ours / f64::from(truth) - 1.0).abs() < 0.02, "H{hedging}: {ours} {truth}");
    }
}

#[test]
fn hedging_is_planned_for_and_has_a_bound_of_its_own() {
    let delays = synthetic(25, 6);
    let shape = TreeShape { depth: 3, fanout: 2 };
    let pool = pool(25);
    let plain = MinMax { root: Some(0), moves: 50_000, ..MinMax::new(shape) };
    let hedged = MinMax { hedging: Hedging(1), ..plain };
    let without = plan(&delays, &pool, &plain, None).expect("a plan");
    let with = plan(&delays, &pool, &hedged, None).expect("a plan");
    let unplanned = worst_leaf_us(&delays, &hedged, &without.tree);
    assert!(with.worst_leaf_us <= unplanned && unplanned < without.worst_leaf_us);
    let gap = with.gap().expect("25 hosts have a bound");
    assert!(with.bound_us < without.bound_us && gap > 0.0 && gap < 0.5, "{gap}");
}

/// The judge's own error: 8,192 draws of each edge.
const JUDGED_WITHIN: f64 = 0.01;

#[test]
fn no_tree_that_hedges_is_better_than_the_bound() {
    let mut prng = Prng::new(8);
    for (hosts, depth, fanout, copies) in [(7, 2, 2, 1), (14, 2, 3, 2), (15, 3, 2, 1)] {
        let (delays, shape) = (synthetic(hosts, 4), TreeShape { depth, fanout });
        let what = MinMax { root: Some(0), hedging: Hedging(copies), ..MinMax::new(shape) };
        let (mut least, mut order) = (f64::INFINITY, pool(hosts));
        for _ in 0..150 {
            prng.shuffle(&mut order[1..]);
            let tree = PlacedTree::new(shape, order[..shape.places()].to_vec());
            least = least.min(worst_leaf_us(&delays, &what, &tree));
        }
        for root in [Some(0), None] {
            let what = MinMax { root, moves: 20_000, ..what };
            let plan = plan(&delays, &pool(hosts), &what, None).expect("a plan");
            let bound = plan.bound_us.expect("a small pool");
            assert!(bound <= least * (1.0 + JUDGED_WITHIN), "{shape:?}: {bound} above {least}");
            assert!(bound > 0.6 * plan.worst_leaf_us, "{shape:?}: {bound} says little: {plan:?}");
        }
    }
}

/// With edges that take no two times, the bound is the time of the tree, less a bin for each hop.
#[test]
fn the_bound_of_constant_delays_is_the_tree_itself() {
    let names = (0..9).map(|host| format!("h{host}")).collect();
    let delays = DelayMatrix::from_fn(names, |_, _| 50.0);
    let shape = TreeShape { depth: 2, fanout: 2 };
    let what = MinMax { hedging: Hedging(1), moves: 5_000, ..MinMax::new(shape) };
    let plan = plan(&delays, &pool(9), &what, None).expect("a plan");
    let gap = plan.gap().expect("a bound");
    assert!((plan.worst_leaf_us - 100.0).abs() < 1e-3 && gap < 0.01, "{plan:?}");
}
