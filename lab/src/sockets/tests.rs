//! Tests of reads over real connections, through routers and through Open vSwitch.

use evenfall_studies::files::{ReadParams, Steering};

use super::*;

/// Two pods of two racks of two hosts. Links above the racks have half of the rate of a host.
fn spec() -> ThreeTier {
    let (host, half) = (12.5e6, 6.25e6);
    ThreeTier {
        pods: 2,
        racks: 2,
        hosts: 2,
        aggs: 2,
        cores: 2,
        host_bytes_per_s: host,
        rack_bytes_per_s: half,
        core_bytes_per_s: half,
    }
}

fn sockets(switches: Switches) -> Option<Sockets> {
    Sockets::new(&spec(), switches).inspect_err(|error| say!("skipped: {error}")).ok()
}

#[test]
fn each_policy_reads_all_blocks_over_real_connections() {
    let Some(sockets) = sockets(Switches::Routers) else { return };
    let mut params = ReadParams { spec: spec(), part_bytes: 100_000, ..ReadParams::default() };
    (params.load.rate, params.load.reads, params.load.bytes) = (4.0, 12, 400_000);
    for (name, steering) in Steering::ALL {
        params.steering = steering;
        let (times, bound_s) =
            params.run_on(1, |plan, policy| sockets.run(plan, policy)).expect("it runs");
        assert!(times.reads_s.iter().all(|s| *s > bound_s / 4.0), "{name}: {times:?}");
    }
}

#[test]
fn a_flow_changes_its_way_and_its_length_while_it_reads() {
    let Some(sockets) = sockets(Switches::Routers) else { return };
    let (mut topology, (tell, told)) = (spec().build(), channel());
    let ends = [TopologyNode(0), TopologyNode(7)];
    let paths = topology.paths(ends[0], ends[1]);
    let way = |route, path| Way { ends, route, path: paths.path(path) };
    let (begun, flows) = (Instant::now(), BTreeMap::new());
    let mut network = Flows { sockets: &sockets, topology, begun, flows, tell, told, heard: begun };
    let flow = FlowId(1);
    network.start(0, flow, way(FlowRoute::Path(0), 0), 3_000_000);
    let end_of = |network: &mut Flows<'_>| loop {
        let until = network.now() + 1_000_000;
        if let (_, Some(ended)) = network.wait(until).expect("it moves") {
            break ended;
        }
    };
    for route in [FlowRoute::Path(5), FlowRoute::Port(9)] {
        network.reroute(0, flow, way(route, 5));
        while network.left(0, flow) > 2_500_000.0 {
            std::thread::yield_now();
        }
    }
    let left = network.left(0, flow);
    assert!(left > 0.0, "the link carries 6 MB a second");
    network.resize(0, flow, (left / 2.0) as u64);
    assert_eq!(end_of(&mut network), flow);
    network.left(0, flow);
    network.resize(0, flow, 100_000);
    assert_eq!(end_of(&mut network), flow);
    assert_eq!(network.left(0, flow), 0.0);
    network.stop(0, flow);
}

/// The rules of a read are those of its path, as Open vSwitch's own tool shows them, and its
/// counters tell of the bytes that the reader has got.
#[test]
fn a_flow_follows_its_rules_through_open_vswitch() {
    let Some(sockets) = sockets(Switches::OpenVswitch) else { return };
    let (mut topology, (tell, told)) = (spec().build(), channel());
    let ends = [TopologyNode(0), TopologyNode(7)];
    let paths = topology.paths(ends[0], ends[1]);
    let (begun, flows) = (Instant::now(), BTreeMap::new());
    let mut network = Flows { sockets: &sockets, topology, begun, flows, tell, told, heard: begun };
    let steered = |switch: usize| {
        let rules = sockets.lab().rules(switch).expect("it answers");
        rules.lines().filter(|rule| rule.contains("priority=100,")).count()
    };
    let all = |steered: &dyn Fn(usize) -> usize| (0..10).map(steered).collect::<Vec<_>>();
    let flow = FlowId(3);
    for number in [0, 5] {
        let way = Way { ends, route: FlowRoute::Path(number), path: paths.path(number) };
        match number {
            0 => network.start(0, flow, way, 2_000_000),
            _ => network.reroute(0, flow, way),
        }
        let nodes = way.path[1..].iter().map(|link| network.topology.links()[link.0 as usize].from);
        let nodes: Vec<usize> = nodes.map(|node| node.0 as usize - 8).collect();
        let expected: Vec<_> = (0..10).map(|switch| usize::from(nodes.contains(&switch))).collect();
        assert_eq!(all(&steered), expected, "path {number} over {nodes:?}");
        let left = if number == 0 { 1_500_000.0 } else { 0.0 };
        while network.left(0, flow) > left {
            network.wait(network.now() + 1_000_000).expect("it moves");
        }
    }
    // The counters tell of a packet within a tenth of a second, and of bytes that were sent again.
    let end = Instant::now() + SILENCE_MAX;
    let counted = loop {
        let counted = network.counted(3).expect("a switch").get(&flow).copied().unwrap_or(0);
        if counted >= 2_000_000 || Instant::now() > end {
            break counted;
        }
    };
    assert!((2_000_000..2_600_000).contains(&counted), "{counted}");
    network.stop(0, flow);
    // The answer to a barrier comes after the removals.
    network.counted(3).expect("a switch");
    let end = Instant::now() + SILENCE_MAX;
    while all(&steered).iter().sum::<usize>() > 0 {
        assert!(Instant::now() < end, "rules stay");
    }
    assert_eq!(sockets.setups_s().len(), 2);
}
