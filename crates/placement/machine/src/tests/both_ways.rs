//! Pairs that are measured in both ways: a surveyor and agents whose clocks differ, over paths
//! without queues.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use evenfall_core::Install;
use evenfall_placement_planner::builder::RootRule;
use evenfall_placement_planner::planner::{PlanMethod, Planner};
use evenfall_placement_planner::shapes::ShapeSearch;
use evenfall_placement_planner::tree::TreeShape;

use super::*;

const HOSTS: usize = 8;
/// Clocks in microseconds that make some hosts look near and others far.
const WRONG: [i64; HOSTS] = [3, 40, -50, 0, -20, 45, -45, 10];

/// The true delay in microseconds between two hosts. Some hosts are far from all others.
fn way_us(from: usize, to: usize) -> i64 {
    let far = |host: usize| [0, 4, 30, 9, 17, 2, 25, 12][host];
    60 + far(from) + far(to)
}

/// The datagrams under way, by the time of their arrival.
#[derive(Default)]
struct Net {
    flying: BTreeMap<Timestamp, VecDeque<(SocketAddr, SocketAddr, Bytes)>>,
    groups: BTreeMap<SocketAddr, Arc<[SocketAddr]>>,
}

/// The place of an address: agents have the first places, and the surveyor has the last.
fn place(address: SocketAddr) -> usize {
    let SocketAddr::V4(address) = address else { unreachable!("all addresses are IPv4") };
    usize::from(address.ip().octets()[3]) - 1
}

impl Net {
    fn drain(&mut self, now: Timestamp, from: SocketAddr, machine: &mut impl Machine) {
        while machine.poll_event().is_some() {}
        while let Some(install) = machine.poll_install() {
            if let Install::Group(_, members) = install {
                self.groups.insert(from, members);
            }
        }
        while let Some(transmit) = machine.poll_transmit(now) {
            let datagram = Bytes::from([transmit.head.as_slice(), &transmit.body].concat());
            let to: Arc<[SocketAddr]> = match transmit.to {
                Destination::One(to) => Arc::from([to]),
                Destination::Group(_) => self.groups[&from].clone(),
            };
            for &to in &*to {
                let far = HOSTS <= place(from).max(place(to));
                let us = if far { 100 } else { way_us(place(from), place(to)) };
                let at = now + Duration::from_micros(us as u64);
                self.flying.entry(at).or_default().push_back((from, to, datagram.clone()));
            }
        }
    }
}

fn survey() -> TreeSurvey {
    surveying("p90", TreeShape { depth: 1, fanout: 3 }, Extent::ByParent)
}

fn surveying(method: &str, shape: TreeShape, extent: Extent) -> TreeSurvey {
    let names = (0..HOSTS).map(|host| format!("h{host}")).collect();
    let planner = Planner {
        root: RootRule::Host(0),
        candidates: Some(HOSTS - 1),
        ..Planner::new(PlanMethod::parse(method).expect("a method"), shape)
    };
    let pace = ProbePace { duration: Duration::from_millis(200), ..ProbePace::default() };
    TreeSurvey::new(planner, names, pace, extent)
}

/// The survey of agents whose clocks are ahead by `clocks` microseconds and state the error
/// `stated`.
fn surveyed(clocks: [i64; HOSTS], stated: ClockError) -> TreeSurvey {
    run(survey(), clocks, stated)
}

fn run(survey: TreeSurvey, clocks: [i64; HOSTS], stated: ClockError) -> TreeSurvey {
    let addresses: Vec<SocketAddr> = (1..=HOSTS as u8).map(address).collect();
    let (own, mut now, mut net) = (address(HOSTS as u8 + 1), at(0), Net::default());
    let config = SurveyorConfig::default();
    let mut surveyor = Surveyor::new(config, 7, addresses.clone(), survey, now);
    let agent = |ahead_us: i64| {
        let mut agent = Agent::new(AgentConfig::default());
        agent.handle_clock(now, ClockReading { offset_ns: 1_000 * ahead_us, error: stated });
        agent
    };
    let mut agents = clocks.map(agent);
    while !surveyor.is_over() {
        assert!(now < at(60_000), "the survey does not end");
        surveyor.handle_timeout(now);
        net.drain(now, own, &mut surveyor);
        for (agent, &address) in agents.iter_mut().zip(&addresses) {
            agent.handle_timeout(now);
            net.drain(now, address, agent);
        }
        let due = agents.iter().filter_map(Machine::poll_timeout).chain(surveyor.poll_timeout());
        let next = due.chain(net.flying.keys().next().copied()).min().expect("work is left");
        now = next.max(now + Duration::from_nanos(1));
        let arrived = net.flying.range(..=now).map(|(at, _)| *at).collect::<Vec<_>>();
        for datagrams in arrived.into_iter().filter_map(|at| net.flying.remove(&at)) {
            for (from, to, datagram) in datagrams {
                let arrival = Arrival::new(from, datagram, now, StampedBy::Kernel);
                let taken = match agents.get_mut(place(to)) {
                    Some(agent) => agent.handle(now, arrival),
                    None => surveyor.handle(now, arrival),
                };
                taken.expect("well formed");
            }
        }
    }
    surveyor.into_program()
}

fn tree(survey: &TreeSurvey) -> &[usize] {
    survey.result().expect("a plan").tree.hosts()
}

#[test]
fn clocks_choose_no_tree_where_parents_measure_both_ways() {
    let right = surveyed([0; HOSTS], ClockError::SameClock);
    let misled = surveyed(WRONG, ClockError::SameClock);
    assert_ne!(tree(&misled), tree(&right), "clocks that nobody corrects choose the tree");
    let corrected = surveyed(WRONG, ClockError::Unknown);
    assert_eq!(tree(&corrected), tree(&right));
    // One survey measures one way to each candidate, and the other survey measures both ways. Both
    // surveys end with a multicast over three edges.
    let (one_way, both_ways) = (right.probes(), corrected.probes());
    assert!(both_ways > 3 * one_way / 2, "{one_way} probes, {both_ways} both ways");
}

#[test]
fn delays_that_were_measured_both_ways_are_the_true_ones_and_say_how_wrong_they_may_be() {
    for stated in [ClockError::Unknown, ClockError::Within(Duration::from_micros(50))] {
        let survey = surveyed(WRONG, stated);
        for host in 1..HOSTS {
            let stats = survey.delays().edge(0, host).expect("measured");
            let truth = way_us(0, host) as f32;
            assert!((stats.p50_us - truth).abs() < 0.1, "h{host}: {} {truth}", stats.p50_us);
            // Both ways are equally long here, so that the longer way is the delay itself.
            assert!((stats.clock_error_us - truth).abs() < 0.1, "h{host}: {stats:?}");
        }
    }
    let clocks = ClockError::Within(Duration::from_micros(10));
    let survey = surveyed(WRONG, clocks);
    let (near, far) = (way_us(0, 2) as f32 - 53.0, way_us(0, 1) as f32 + 37.0);
    for (host, shown) in [(1, far - 20.0), (2, near + 20.0)] {
        let stats = survey.delays().edge(0, host).expect("measured");
        assert!((stats.p50_us - shown).abs() < 0.1, "h{host} is corrected by 20 us: {stats:?}");
        assert!((stats.clock_error_us - 40.0).abs() < 0.1, "h{host}: {stats:?}");
    }
}

#[test]
fn pools_of_one_clock_measure_one_way() {
    let kind = |clock| {
        let mut survey = survey();
        let welcome = || Ok(Welcome { software: "evenfall".into(), clock });
        survey.greeted(&(0..HOSTS).map(|_| welcome()).collect::<Vec<_>>());
        match survey.next() {
            SurveyStep::Job(spec) => spec.kind,
            SurveyStep::Done => unreachable!("nothing is measured"),
        }
    };
    assert_eq!(kind(ClockError::SameClock), MeasurementKind::Parent);
    assert_eq!(kind(ClockError::Unknown), MeasurementKind::BothWays);
}

#[test]
fn trees_of_some_pairs_are_measured_in_both_ways_on_every_layer() {
    let shape = TreeShape { depth: 2, fanout: 2 };
    let survey = || surveying("minmax", shape, Extent::Pairs(60));
    let right = run(survey(), [0; HOSTS], ClockError::SameClock);
    // Clocks that are half as wrong make no delay of a pair look negative.
    let corrected = run(survey(), WRONG.map(|us| us / 2), ClockError::Unknown);
    let mut measured = 0;
    for (from, to) in (0..HOSTS).flat_map(|from| (0..HOSTS).map(move |to| (from, to))) {
        let Some(stats) = corrected.delays().edge(from, to) else { continue };
        let truth = way_us(from, to) as f32;
        assert!((stats.p50_us - truth).abs() < 0.1, "h{from} to h{to}: {stats:?}, {truth} us");
        measured += 1;
    }
    assert!(measured > 12, "{measured} pairs");
    let longest = |survey: &TreeSurvey| {
        let tree = &survey.result().expect("a plan").tree;
        let mut ways = vec![0; tree.hosts().len()];
        for place in 1..ways.len() {
            let above = (place - 1) / usize::from(shape.fanout);
            ways[place] = ways[above] + way_us(tree.hosts()[above], tree.hosts()[place]);
        }
        ways.into_iter().max()
    };
    assert_eq!(longest(&corrected), longest(&right));
}

#[test]
fn a_survey_chooses_the_shape_that_costs_least() {
    let shape = |copy_us: f64| {
        let search = ShapeSearch { receivers: 4, fanout: None, copy_us };
        let given = TreeShape { depth: 3, fanout: 2 };
        let survey = surveying("minmax", given, Extent::ByParent).choosing_shape(search);
        let survey = run(survey, [0; HOSTS], ClockError::SameClock);
        assert_eq!(survey.shape_costs().len(), 2, "four leaves in one hop or in two");
        let shape = survey.result().expect("a plan").tree.shape();
        (shape.depth, shape.fanout)
    };
    assert_eq!(shape(4.2), (1, 4));
    // Three copies of a tenth of a millisecond are dearer than a second hop.
    assert_eq!(shape(100.0), (2, 2));
}

#[test]
fn a_tree_below_a_host_is_planned_without_a_place_for_the_host() {
    let shape = TreeShape { depth: 1, fanout: 2 };
    let survey = surveying("minmax", shape, Extent::ByParent).planning_below(0);
    let survey = run(survey, [0; HOSTS], ClockError::SameClock);
    let plan = survey.result().expect("a plan");
    assert!(plan.tree.hosts().len() == 3 && !plan.tree.hosts().contains(&0), "{plan:?}");
    assert_eq!(plan.evaluation.leaves.len(), 2);
    // Host 5 is nearest to all others.
    assert_eq!(plan.tree.hosts()[0], 5, "{plan:?}");
}
