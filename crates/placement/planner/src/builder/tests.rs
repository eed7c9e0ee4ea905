use super::*;

fn plan(depth: u8, fanout: u16, candidates: usize) -> BuildPlan {
    BuildPlan {
        shape: TreeShape { depth, fanout },
        candidates,
        strategy: Strategy::p50(),
        pick: Pick::Best,
        root: RootRule::Random,
        racing: Racing::OFF,
    }
}

fn pool(hosts: usize) -> Vec<usize> {
    (0..hosts).collect()
}

fn random_delays(hosts: usize, seed: u64) -> DelayMatrix {
    let mut prng = Prng::new(seed);
    let cells: Vec<f64> = (0..hosts * hosts).map(|_| 30.0 + 60.0 * prng.unit()).collect();
    let names = (0..hosts).map(|host| format!("h{host}")).collect();
    DelayMatrix::from_fn(names, |from, to| cells[from * hosts + to])
}

/// The thesis' algorithm 2 in its plainest form, drawing candidates as the builder does.
fn algorithm_2(delays: &DelayMatrix, plan: &BuildPlan, seed: u64) -> Vec<usize> {
    let mut prng = Prng::new(seed);
    let mut pool: Vec<usize> = (0..delays.hosts()).collect();
    let mut slice = |pool: &[usize], count: usize| {
        let mut hosts = pool.to_vec();
        prng.shuffle(&mut hosts);
        hosts.truncate(count);
        hosts
    };
    let mut tree = slice(&pool, 1);
    pool.retain(|host| *host != tree[0]);
    for place in 0..plan.shape.inner() {
        let mut children = slice(&pool, plan.candidates);
        let us = |host: &usize| delays.edge(tree[place], *host).expect("dense").p50_us;
        children.sort_by(|a, b| us(a).total_cmp(&us(b)));
        if plan.pick == Pick::Worst {
            children.reverse();
        }
        children.truncate(plan.shape.fanout as usize);
        pool.retain(|host| !children.contains(host));
        tree.extend(children);
    }
    tree
}

#[test]
fn thesis_section_3_2_3_algorithm_2_gives_the_same_tree() {
    for seed in 0..50 {
        let delays = random_delays(25, seed);
        for pick in [Pick::Best, Pick::Worst] {
            let plan = BuildPlan { pick, ..plan(3, 2, 4) };
            let mut builder = TreeBuilder::new(plan.clone(), &pool(25), seed).expect("a plan");
            let tree = builder.run_on(&delays).expect("a tree");
            assert_eq!(tree.hosts(), algorithm_2(&delays, &plan, seed), "seed {seed} {pick:?}");
            assert_eq!((builder.jobs(), builder.probing()), (7, 28.0), "I jobs of K candidates");
        }
    }
}

#[test]
fn a_pool_too_small_says_how_many_are_missing() {
    let error = TreeBuilder::new(plan(3, 2, 4), &pool(12), 1).expect_err("15 places");
    assert!(error.to_string().ends_with("3 are missing"), "{error}");
    let error = TreeBuilder::new(plan(2, 5, 4), &pool(100), 1).expect_err("K < F");
    assert!(error.to_string().contains("let candidates be 5"), "{error}");
    assert!(TreeBuilder::new(plan(0, 5, 5), &pool(100), 1).is_err());
    assert!(TreeBuilder::new(plan(40, 5, 5), &pool(100), 1).is_err());
    let outside = BuildPlan { root: RootRule::Host(100), ..plan(1, 2, 2) };
    assert!(
        TreeBuilder::new(outside, &pool(9), 1).is_err_and(|e| e.to_string().contains("not in"))
    );
}

#[test]
fn failed_hosts_are_left_out_with_their_reason() {
    for seed in 0..200 {
        let delays = random_delays(25, seed);
        let mut prng = Prng::new(seed);
        let dead: Vec<usize> = (0..25).filter(|_| prng.chance(0.3)).collect();
        let mut builder = TreeBuilder::new(plan(3, 2, 4), &pool(25), seed).expect("a plan");
        let tree = loop {
            let request = match builder.step() {
                BuilderStep::Done(tree) => break Ok(tree),
                BuilderStep::Failed(error) => break Err(error),
                BuilderStep::Measure(request) => request,
            };
            if dead.contains(&request.parent) {
                builder.answer_failed("gone");
                continue;
            }
            let result = |&host: &usize| {
                let stats = *delays.edge(request.parent, host).expect("dense");
                let failure = Failure::Host("gone".into());
                (host, if dead.contains(&host) { Err(failure) } else { Ok(stats) })
            };
            let results: Vec<_> = request.candidates.iter().map(result).collect();
            builder.answer(&results);
        };
        assert!(builder.dropped().iter().all(|(host, why)| dead.contains(host) && why == "gone"));
        match tree {
            Ok(tree) => assert!(tree.hosts().iter().all(|host| !dead.contains(host))),
            Err(BuildError::PoolTooSmall { hosts, places: 15 }) => {
                assert!(hosts < 15 && dead.len() > 10, "{hosts} {}", dead.len());
            }
            Err(other) => panic!("seed {seed}: {other}"),
        }
    }
}

#[test]
fn sparse_measurements_give_a_tree_of_measured_edges_or_an_error() {
    let mut built = 0;
    for seed in 0..300 {
        let mut delays = random_delays(20, seed);
        let mut prng = Prng::new(seed);
        for from in 0..20 {
            for to in 0..20 {
                if prng.chance(0.7) {
                    delays.set(from, to, None);
                }
            }
        }
        let mut builder = TreeBuilder::new(plan(2, 2, 4), &pool(20), seed).expect("a plan");
        if let Ok(tree) = builder.run_on(&delays) {
            assert!(tree.edges().all(|(from, to)| delays.edge(from, to).is_some()));
            built += 1;
        }
    }
    assert!(built > 280, "{built}");
}

#[test]
fn a_host_that_feeds_nobody_becomes_a_leaf() {
    // Host 1 is by far the best child, but nothing was measured from it.
    let mut delays = random_delays(7, 3);
    (1..7).for_each(|to| delays.set(1, to, None));
    delays.set(0, 1, Some(EdgeStats::constant(1.0)));
    let plan = BuildPlan { root: RootRule::Host(0), ..plan(2, 2, 6) };
    let tree =
        TreeBuilder::new(plan, &pool(7), 1).expect("a plan").run_on(&delays).expect("a tree");
    assert!(tree.hosts()[3..].contains(&1), "{:?}", tree.hosts());
}

#[test]
fn the_root_with_the_best_reach_is_chosen() {
    let delays = random_delays(30, 9);
    let rule = RootRule::Reach(30);
    let plan = BuildPlan { root: rule, ..plan(2, 3, 29) };
    let mut builder = TreeBuilder::new(plan, &pool(30), 2).expect("a plan");
    let tree = builder.run_on(&delays).expect("a tree");
    let reach = |from: usize| {
        let mut us: Vec<f32> =
            (0..30).filter_map(|to| Some(delays.edge(from, to)?.p50_us)).collect();
        us.sort_by(f32::total_cmp);
        us[2]
    };
    assert!((0..30).all(|host| reach(tree.hosts()[0]) <= reach(host)));
    assert_eq!(builder.jobs(), 30, "what was measured is not measured again");
}

#[test]
fn a_rebuild_leaves_the_rest_alone() {
    let delays = random_delays(25, 5);
    let plan = plan(3, 2, 6);
    let tree = TreeBuilder::new(plan.clone(), &pool(25), 1).expect("a plan").run_on(&delays);
    let tree = tree.expect("a tree");
    let slow = tree.hosts()[9];
    for (part, changed) in
        [(TreePart::Below(1), vec![3, 4, 7, 8, 9, 10]), (TreePart::Leaves, (7..15).collect())]
    {
        let avoid = [slow];
        let builder = TreeBuilder::rebuild(plan.clone(), &tree, part, &pool(25), &avoid, 7);
        let again = builder.expect("a plan").run_on(&delays).expect("a tree");
        for place in (0..15).filter(|place| !changed.contains(place)) {
            assert_eq!(again.hosts()[place], tree.hosts()[place], "{part:?}");
        }
        assert!(!again.hosts().contains(&slow) && again != tree);
    }
}

#[test]
fn lossy_candidates_are_passed_over() {
    let mut delays = random_delays(6, 1);
    for from in 0..6 {
        let lossy = EdgeStats { loss: 0.6, ..EdgeStats::constant(5.0) };
        delays.set(from, 2, Some(lossy));
    }
    let plan = BuildPlan { root: RootRule::Host(0), ..plan(1, 4, 5) };
    let tree =
        TreeBuilder::new(plan, &pool(6), 1).expect("a plan").run_on(&delays).expect("a tree");
    assert!(!tree.hosts().contains(&2));
}

#[test]
fn random_trees_probe_only_whom_they_take() {
    let delays = random_delays(25, 1);
    let random = BuildPlan { pick: Pick::Random, ..plan(3, 2, 4) };
    let mut builder = TreeBuilder::new(random, &pool(25), 1).expect("a plan");
    builder.run_on(&delays).expect("a tree");
    assert_eq!(builder.probing(), 14.0);
}

#[test]
fn any_order_of_failures_ends() {
    for seed in 0..500 {
        let delays = random_delays(14, seed);
        let mut prng = Prng::new(seed);
        let rule = [RootRule::Random, RootRule::Host(3), RootRule::Reach(3)][seed as usize % 3];
        let racing = [Racing::OFF, Racing::default()][seed as usize % 2];
        let plan = BuildPlan { root: rule, racing, ..plan(2, 2, 3) };
        let mut builder = TreeBuilder::new(plan, &pool(14), seed).expect("a plan");
        let mut steps = 0;
        while let BuilderStep::Measure(request) = builder.step() {
            steps += 1;
            assert!(steps < 2_000, "seed {seed}");
            match prng.below(20) {
                0 => builder.answer_failed("crashed"),
                1 => builder.drop_host(prng.below(14) as usize, "vanished".into()),
                2 => builder.answer(&[]),
                _ => {
                    let mut result = |&host: &usize| {
                        let stats = *delays.edge(request.parent, host).expect("dense");
                        let result = match prng.below(12) {
                            0 => Err(Failure::Host("crashed".into())),
                            1 => Err(Failure::Edge("timed out".into())),
                            2 => Ok(EdgeStats { p50_us: -4.0, ..stats }),
                            3 => Ok(EdgeStats { loss: 0.99, ..stats }),
                            _ => Ok(stats),
                        };
                        (host, result)
                    };
                    let results: Vec<_> = request.candidates.iter().map(&mut result).collect();
                    builder.answer(&results);
                }
            }
        }
        if let BuilderStep::Done(tree) = builder.step() {
            let dropped = |host: &usize| builder.dropped().iter().any(|(gone, _)| gone == host);
            assert!(!tree.hosts().iter().any(dropped), "seed {seed}");
        }
    }
}
