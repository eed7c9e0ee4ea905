//! Compares the choices of the selector with a search that weighs every candidate.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use evenfall_core::{Prng, Timestamp};
use evenfall_files_flow::{
    BeginningRead, Config, FlowId, FlowLeg, FlowRoute, PathCandidate, Policy, Selector, ThreeTier,
    Topology, TopologyNode, Two,
};

const BYTES: u64 = 128_000_000;

fn selector(two: Two) -> Selector {
    let topology = ThreeTier::thesis(2.0, 8.0).build();
    Selector::new(topology, Config::default(), two, Duration::from_secs(1))
}

fn read(client: u32, copies: &[TopologyNode], name: u64) -> BeginningRead<'_> {
    let flows = [FlowId(name), FlowId(name + 1)];
    BeginningRead { client: TopologyNode(client), copies, bytes: BYTES, flows }
}

#[test]
fn the_choice_is_the_least_cost_over_all_candidates() {
    let mut prng = Prng::new(3);
    let mut selector = selector(Two::Finish);
    for name in 0..300u64 {
        let copies: Vec<_> = (0..3).map(|_| TopologyNode(prng.below(64) as u32)).collect();
        let client = TopologyNode(prng.below(64) as u32);
        let now = Timestamp::ZERO + Duration::from_millis(name * 20);
        let best = selector.best(now, client, &copies, BYTES).expect("a path");
        let mut least = f64::INFINITY;
        for &copy in &copies {
            let paths = selector.topology_mut().paths(copy, client);
            for path in paths.iter() {
                let estimate = selector.model_mut().estimate(now, path);
                least = least.min(estimate.cost_s(BYTES as f64));
            }
        }
        assert_eq!(best.cost_s, least);
        selector.choose(now, &read(client.0, &copies, 2 * name));
        if name >= 40 {
            selector.ended(now, FlowId(2 * name - 80));
            selector.ended(now, FlowId(2 * name - 79));
        }
    }
}

#[test]
fn of_equal_copies_the_nearest_is_read() {
    let copies = [TopologyNode(40), TopologyNode(5), TopologyNode(1)];
    let legs = selector(Two::Never).choose(Timestamp::ZERO, &read(0, &copies, 0));
    assert_eq!(legs[0].copy, TopologyNode(1));
}

/// Both copies are in other pods. Each path carries half the bandwidth of the client's link.
#[test]
fn two_copies_are_read_where_one_path_is_narrower_than_the_client() {
    let copies = [TopologyNode(20), TopologyNode(40)];
    let legs = selector(Two::Finish).choose(Timestamp::ZERO, &read(0, &copies, 0));
    assert_eq!(legs.len(), 2);
    assert_ne!(legs[0].copy, legs[1].copy);
    assert_eq!(legs[0].bytes + legs[1].bytes, BYTES);
    assert_eq!(legs[0].bytes, BYTES / 2, "both end together");
}

/// Two flows of half the duration have the same summed duration as one flow, so the printed sum is
/// never less.
#[test]
fn the_printed_rule_reads_one_copy_where_two_would_halve_the_time() {
    let copies = [TopologyNode(20), TopologyNode(40)];
    let legs = selector(Two::Printed).choose(Timestamp::ZERO, &read(0, &copies, 0));
    assert_eq!(legs.len(), 1);
    assert_eq!(legs[0].bytes, BYTES);
}

#[test]
fn a_try_of_two_copies_that_is_given_up_leaves_no_trace() {
    let copies = [TopologyNode(1), TopologyNode(5)];
    let [mut tried, mut plain] = [Two::Finish, Two::Never].map(selector);
    for selector in [&mut tried, &mut plain] {
        selector.choose(Timestamp::ZERO, &read(0, &copies, 0));
    }
    assert_eq!(tried.model().len(), 1, "the client's link is full with one");
    assert_eq!(tried.model().share(FlowId(0)), plain.model().share(FlowId(0)));
}

#[test]
fn a_copy_on_the_client_itself_costs_nothing() {
    let copies = [TopologyNode(40), TopologyNode(7)];
    let mut selector = selector(Two::Finish);
    let best = selector.best(Timestamp::ZERO, TopologyNode(7), &copies, BYTES).expect("itself");
    assert_eq!((best.copy, best.cost_s), (TopologyNode(7), 0.0));
    assert_eq!(selector.choose(Timestamp::ZERO, &read(7, &copies, 0)).len(), 1);
}

#[test]
fn a_client_without_wires_is_told_that_there_is_no_way() {
    let mut topology = Topology::new();
    let [one, other] = [(); 2].map(|()| topology.node());
    let second = Duration::from_secs(1);
    let mut selector = Selector::new(topology, Config::default(), Two::Finish, second);
    let flows = [FlowId(0), FlowId(1)];
    let read = BeginningRead { client: one, copies: &[other], bytes: BYTES, flows };
    assert!(selector.choose(Timestamp::ZERO, &read).is_empty());
}

/// Weighs every second path by what the model does when the flow is added, without any bound.
/// Returns the cost for each copy and path.
fn second_costs(
    selector: &Selector,
    now: Timestamp,
    read: &BeginningRead<'_>,
    first: &PathCandidate,
    live: &BTreeSet<FlowId>,
) -> BTreeMap<(TopologyNode, usize), f64> {
    let (bytes, [half, other]) = (read.bytes as f64, read.flows);
    let mut selector = selector.clone();
    let path = selector.topology_mut().paths(first.copy, read.client);
    selector.model_mut().add(now, half, path.path(first.path), Some(bytes));
    let mut costs = BTreeMap::new();
    for &copy in read.copies.iter().filter(|&&copy| copy != first.copy) {
        for (number, path) in selector.topology_mut().paths(copy, read.client).iter().enumerate() {
            let mut model = selector.model().clone();
            model.add(now, other, path, Some(bytes));
            let harm = |&flow: &FlowId| {
                let of = |share: Option<f64>| share.expect("a live flow");
                let left = of(selector.model().left(now, flow));
                left / of(model.share(flow)) - left / of(selector.model().share(flow))
            };
            let harm_s: f64 = live.iter().map(harm).sum();
            let shares = [half, other].map(|flow| model.share(flow).expect("just added"));
            let cost_s = bytes / (shares[0] + shares[1]) + first.estimate.harm_s + harm_s;
            costs.insert((copy, number), cost_s);
        }
    }
    costs
}

#[test]
fn a_second_copy_is_the_least_cost_over_all_candidates_and_below_that_of_one() {
    let (mut prng, mut selector) = (Prng::new(8), selector(Two::Finish));
    let (mut live, mut divided) = (BTreeSet::new(), 0);
    for name in (0..800u64).step_by(2) {
        let copies: Vec<_> = (0..3).map(|_| TopologyNode(prng.below(64) as u32)).collect();
        let client = TopologyNode(prng.below(64) as u32);
        let now = Timestamp::ZERO + Duration::from_millis(name * 10);
        let read = read(client.0, &copies, name);
        let first = selector.best(now, client, &copies, BYTES).expect("a path");
        let costs = second_costs(&selector, now, &read, &first, &live);
        let legs = selector.choose(now, &read);
        let least = costs.values().copied().fold(f64::INFINITY, f64::min);
        let near = 1e-9 * first.cost_s;
        match legs[..] {
            [_, FlowLeg { copy, route: FlowRoute::Path(path), .. }] => {
                assert!(costs[&(copy, path)] <= least + near, "read {name}: {least}");
                assert!(least < first.cost_s + near);
                divided += 1;
            }
            _ => assert!(copies.contains(&client) || least >= first.cost_s - near),
        }
        live.extend(legs.iter().map(|leg| leg.flow));
        for flow in [name, name + 1].map(|name| FlowId(name.wrapping_sub(120))) {
            if live.remove(&flow) {
                selector.ended(now, flow);
            }
        }
    }
    assert!(divided > 50, "{divided} reads took two copies");
}
