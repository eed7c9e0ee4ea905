//! Tests of the model's estimates between two byte counts, and of its corrections after a byte
//! count.

use std::time::Duration;

use evenfall_core::{Prng, Timestamp};
use evenfall_files_flow::{Config, FlowId, FlowModel, LinkIndex, ThreeTier, TopologyNode};

fn at(seconds: f64) -> Timestamp {
    Timestamp::ZERO + Duration::from_secs_f64(seconds)
}

/// Two hosts of a rack, joined by a path of two links of 125 MB/s.
fn pair() -> (FlowModel, Vec<LinkIndex>) {
    let mut topology = ThreeTier::thesis(2.0, 8.0).build();
    let path = topology.paths(TopologyNode(0), TopologyNode(1)).path(0).to_vec();
    (FlowModel::new(Config::default(), topology.links()), path)
}

#[test]
fn a_flow_keeps_its_share_through_the_first_second_whatever_is_counted() {
    let (mut model, path) = pair();
    model.add(at(0.0), FlowId(1), &path, Some(1e9));
    model.count(at(0.9), FlowId(1), 9e6);
    assert_eq!(model.share(FlowId(1)), Some(125e6), "frozen");
    assert_eq!(model.left(at(0.9), FlowId(1)), Some(991e6), "what is left is corrected at once");
    model.count(at(1.9), FlowId(1), 109e6);
    assert_eq!(model.share(FlowId(1)), Some(100e6), "100 MB in the last second");
    assert_eq!(model.left(at(2.9), FlowId(1)), Some(791e6), "goes on at the share");
}

#[test]
fn the_end_of_a_flow_gives_its_share_to_those_it_met() {
    let (mut model, path) = pair();
    for name in 0..5 {
        model.add(at(0.0), FlowId(name), &path, Some(1e9));
    }
    assert_eq!(model.share(FlowId(4)), Some(25e6));
    for name in 0..4 {
        assert!(model.remove(at(1.0), FlowId(name)));
    }
    assert_eq!(model.share(FlowId(4)), Some(125e6));
    assert!(!model.remove(at(1.0), FlowId(0)), "known no more");
}

#[test]
fn a_flow_of_unknown_size_counts_as_an_average_elephant() {
    let (mut model, path) = pair();
    model.add(at(0.0), FlowId(1), &path, None);
    assert_eq!(model.left(at(7.0), FlowId(1)), Some(128e6));
    let estimate = model.estimate(at(7.0), &path);
    assert_eq!(estimate.share, 62.5e6);
    assert!((estimate.harm_s - 1.024).abs() < 1e-9, "128 MB at half the speed: {estimate:?}");
}

#[test]
fn a_flow_that_nobody_counts_any_more_expires() {
    let (mut model, path) = pair();
    model.add(at(0.0), FlowId(1), &path, Some(1e9));
    model.add(at(0.0), FlowId(2), &path, Some(1e9));
    model.count(at(4.0), FlowId(2), 100e6);
    assert_eq!(model.expire(at(6.0), Duration::from_secs(5)), [FlowId(1)]);
    assert_eq!(model.len(), 1);
}

#[test]
fn after_the_last_flow_the_network_is_as_at_the_start() {
    let spec = ThreeTier::thesis(2.0, 8.0);
    let mut topology = spec.build();
    let mut model = FlowModel::new(Config::default(), topology.links());
    let mut prng = Prng::new(5);
    let hosts = u64::from(spec.host_count());
    for name in 0..400u64 {
        let [from, to] = [(); 2].map(|()| TopologyNode(prng.below(hosts) as u32));
        let paths = topology.paths(from, to);
        let path = paths.path(prng.below(paths.len() as u64) as usize);
        let now = at(name as f64 / 10.0);
        let share = model.add(now, FlowId(name), path, Some(1e8));
        assert!(share > 0.0);
        if name >= 50 {
            assert!(model.remove(now, FlowId(name - 50)));
        }
    }
    for name in 350..400 {
        assert!(model.remove(at(41.0), FlowId(name)));
    }
    assert!(model.is_empty());
    let paths = topology.paths(TopologyNode(0), TopologyNode(63));
    assert_eq!(model.estimate(at(42.0), paths.path(0)).share, spec.core_bytes_per_s);
}
