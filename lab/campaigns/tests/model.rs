//! Every number of a model has its place in the simulator.

use core::time::Duration;

use evenfall_campaigns::model::{Model, Simulated as _, Stack};
use evenfall_core::ClockError;
use evenfall_sim::Outages;

#[test]
fn every_built_in_model_is_a_world() {
    for name in Model::names() {
        let model = Model::named(name).expect(name);
        let (cloud, host) = (model.cloud(), model.host(Stack::Sockets));
        assert!(cloud.base > Duration::ZERO && host.copy_cost > Duration::ZERO, "{name}");
    }
}

/// A built-in model in which no two numbers are equal, and none is 0.
fn distinct(name: &str) -> Model {
    let mut model = Model::named(name).expect(name);
    let (path, clock) = (&mut model.path, &mut model.clock);
    let shares = [&mut path.pair_sigma, &mut path.wander];
    let times = [
        &mut path.flow_gbit_per_s,
        &mut clock.offset_ns,
        &mut clock.noise_ns,
        &mut clock.slew_ppb,
        &mut clock.stated_ns,
    ];
    shares.into_iter().zip([0.11, 0.04]).for_each(|(number, is)| number.is = is);
    times.into_iter().zip([7.0, 410.0, 520.0, 630.0, 740.0]).for_each(|(n, is)| n.is = is);
    let keys = model.numbers().into_iter().enumerate();
    keys.fold(model, |model, (at, (key, _))| {
        model.scaled(&key, 1.0 - at as f64 / 1_000.0).unwrap_or(model)
    })
}

/// The simulator counts whole nanoseconds, bits and packets.
fn is_near(got: f64, wanted: f64) -> bool {
    (got - wanted).abs() <= 1.0 + 1e-6 * wanted.abs()
}

#[test]
fn every_plain_number_of_a_path_has_its_place_in_the_simulator() {
    for name in ["aws", "gcp"] {
        let (model, cloud) = (distinct(name), distinct(name).cloud());
        let has_routes = |key: &str| !key.starts_with("reroutes") || name == "gcp";
        let number = |key: &str| match model.number(&format!("path.{key}")) {
            Ok(number) => number,
            Err(_) if !has_routes(key) => 0.0,
            Err(error) => panic!("{error}"),
        };
        let shares = [
            ("sender_sigma", cloud.spread.sender),
            ("receiver_sigma", cloud.spread.receiver),
            ("host_correlation", cloud.spread.correlation),
            ("pair_sigma", cloud.spread.pair),
            ("direction_sigma", cloud.spread.direction),
            ("straggler_share", cloud.stragglers.share),
            ("straggler_send", cloud.stragglers.send),
            ("straggler_receive", cloud.stragglers.receive),
            ("wander", cloud.wander),
            ("reroutes.sigma", cloud.reroutes.map_or(0.0, |routes| routes.sigma)),
            ("random_loss", cloud.loss.random),
            ("losses.within", cloud.loss.within),
        ];
        for (key, got) in shares {
            assert_eq!(got.to_bits(), number(key).to_bits(), "{name}: {key}");
        }
        let gap = |outages: &Option<Outages>| outages.as_ref().map(|one| one.mean_gap);
        let times = [
            ("base_us", 1e3, Some(cloud.base)),
            ("spikes.gap_ms", 1e6, gap(&cloud.spikes)),
            ("losses.gap_ms", 1e6, gap(&cloud.loss.bursts)),
            ("wander_period_s", 1e9, Some(cloud.wander_period)),
            ("reroutes.every_s", 1e9, cloud.reroutes.map(|routes| routes.every)),
            ("loopback_us", 1e3, Some(cloud.loopback)),
            ("send_queue_us", 1e3, Some(cloud.send_queue)),
        ];
        for (key, unit_ns, got) in times {
            let got = got.unwrap_or_default().as_nanos() as f64;
            assert!(is_near(got, number(key) * unit_ns), "{name}: {key} is {got} ns");
        }
        let limit = number("flow_gbit_per_s") * 1e9;
        assert!(is_near(cloud.flow_bits_per_s as f64, limit), "{name}");
    }
}

#[test]
fn every_plain_number_of_a_host_has_its_place_in_the_simulator() {
    for (name, stack) in [("aws", Stack::Sockets), ("gcp", Stack::KernelBypass)] {
        let (model, host) = (distinct(name), distinct(name).host(stack));
        let number = |key: &str| {
            let key = key.replace("STACK", &stack.to_string());
            model.number(&key).unwrap_or_else(|error| panic!("{error}"))
        };
        let ns = |time: Duration| time.as_nanos() as f64;
        let clock = &host.clock;
        let ClockError::Within(stated) = clock.stated else { panic!("a model states a bound") };
        let stalled = |at: usize| host.stalls.get(at).map_or(0.0, |one| ns(one.mean_gap));
        let numbers = [
            ("host.cores", 1.0, f64::from(host.cores)),
            ("host.nic_gbit_per_s", 1e9, host.nic_bits_per_s as f64),
            ("host.nic_packets_per_s", 1.0, host.nic_packets_per_s as f64),
            ("host.ingress_queue_us", 1e3, ns(host.ingress_queue)),
            ("host.stalls.0.gap_ms", 1e6, stalled(0)),
            ("host.stalls.1.gap_ms", 1e6, stalled(1)),
            ("stack.STACK.wake_ns", 1.0, ns(host.wake_cost)),
            ("stack.STACK.receive_ns", 1.0, ns(host.receive_cost)),
            ("stack.STACK.send_ns", 1.0, ns(host.send_cost)),
            ("stack.STACK.copy_ns", 1.0, ns(host.copy_cost)),
            ("stack.STACK.send_threads", 1.0, f64::from(host.send_threads)),
            ("stack.STACK.card_ns", 1.0, ns(host.card_cost)),
            ("path.send_queue_us", 1e3, ns(host.send_queue)),
            ("clock.drift_ppb", 1.0, f64::from(clock.drift_spread_ppb)),
            ("clock.wander_ppb", 1.0, f64::from(clock.wander_ppb)),
            ("clock.wander_period_s", 1e9, ns(clock.wander_period)),
            ("clock.offset_ns", 1.0, ns(clock.offset_spread)),
            ("clock.noise_ns", 1.0, ns(clock.noise)),
            ("clock.slew_ppb", 1.0, f64::from(clock.slew_ppb)),
            ("clock.stated_ns", 1.0, ns(stated)),
            ("clock.period_ms", 1e6, ns(clock.period)),
        ];
        for (key, unit, got) in numbers {
            assert!(is_near(got, number(key) * unit), "{name}: {key} is {got}");
        }
    }
}
