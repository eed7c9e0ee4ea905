//! Local clocks that drift, synchronised clocks that step, and timers that survive both.

use std::time::Duration;

use crate::common::{MS, Probe, Saw, US, ms, probes, quiet, send};
use evenfall_core::{Clock, ClockError, Timestamp};
use evenfall_sim::{ClockSpec, Collect, HostSpec, NodeIndex, SimTime, Wire, World};

const NODE: NodeIndex = NodeIndex(0);

fn with_clock(clock: ClockSpec) -> HostSpec {
    HostSpec { clock, ..HostSpec::ideal() }
}

fn timeouts(watch: &Collect<Saw>) -> Vec<(u64, Timestamp)> {
    let fired = |(seen, saw): &(evenfall_sim::Seen, Saw)| match saw {
        Saw::Timeout(local) => Some((seen.at.nanos(), *local)),
        _ => None,
    };
    watch.0.iter().filter_map(fired).collect()
}

#[test]
fn a_timer_on_a_fast_clock_fires_early_in_truth_and_on_time_by_itself() {
    let drift_ppb = 100_000;
    let (mut world, mut watch) =
        probes(1, &with_clock(ClockSpec { drift_ppb, ..ClockSpec::default() }));
    let due = world.call(NODE, &mut watch, |probe, now| {
        let due = now + Duration::from_secs(1);
        probe.timeout = Some(due);
        due
    });
    world.run_until(ms(2_000), &mut watch);
    // 1 s / 1.0001
    assert_eq!(timeouts(&watch), [(999_900_010, due.expect("node is up"))]);
}

#[test]
fn a_change_of_drift_moves_armed_timers() {
    let (mut world, mut watch) = probes(1, &HostSpec::ideal());
    world.call(NODE, &mut watch, |probe, now| probe.timeout = Some(now + 100 * MS));
    world.run_until(ms(50), &mut watch);
    world.set_drift(NODE, 1_000_000);
    world.run_until(ms(200), &mut watch);
    let [(at, _)] = timeouts(&watch)[..] else { panic!("one timeout") };
    assert!(at.abs_diff(50_000_000 + 49_950_050) < 10, "{at}");
}

#[test]
fn the_clock_of_a_stopped_process_goes_on_when_its_rate_changes() {
    let (mut world, mut watch) = probes(1, &HostSpec::ideal());
    world.run_until(ms(1_000), &mut watch);
    let before = world.local(NODE);
    world.pause(NODE, Duration::from_secs(2));
    world.run_until(ms(1_100), &mut watch);
    world.set_drift(NODE, 1_000);
    world.run_until(ms(1_200), &mut watch);
    assert_eq!(world.local(NODE).since(before), Duration::from_nanos(200_000_100 - 1));
    // The next life of the process is not stopped, and its timer is on time.
    world.restart(NODE, quiet());
    world.call(NODE, &mut watch, |probe, now| probe.timeout = Some(now + 10 * MS));
    world.run_until(ms(1_300), &mut watch);
    let [(at, _)] = timeouts(&watch)[..] else { panic!("one timeout") };
    assert!(at.abs_diff(1_210_000_000) < 20, "{at}");
}

#[test]
fn moving_a_timeout_later_or_away_fires_nothing_meanwhile() {
    let (mut world, mut watch) = probes(1, &HostSpec::ideal());
    world.call(NODE, &mut watch, |probe, now| probe.timeout = Some(now + 10 * MS));
    world.call(NODE, &mut watch, |probe, now| probe.timeout = Some(now + 30 * MS));
    world.run_until(ms(20), &mut watch);
    assert_eq!(timeouts(&watch), []);
    world.call(NODE, &mut watch, |probe, now| probe.timeout = Some(now + MS));
    world.run_until(ms(25), &mut watch);
    assert_eq!(timeouts(&watch).len(), 1);
    world.call(NODE, &mut watch, |probe, now| probe.timeout = Some(now + MS));
    world.call(NODE, &mut watch, |probe, _| probe.timeout = None);
    world.run_until(ms(100), &mut watch);
    assert_eq!(timeouts(&watch).len(), 1);
}

#[test]
fn a_step_is_read_at_once_and_touches_no_timer() {
    let mut world = World::new(Wire::new(50 * US), 1);
    world.add(Probe::default(), HostSpec::ideal());
    let mut watch = Collect::default();
    world.call(NODE, &mut watch, |probe, now| probe.timeout = Some(now + 70 * MS));
    world.run_until(ms(60), &mut watch);
    world.step_clock(NODE, -25_000_000, &mut watch);
    world.run_until(ms(99), &mut watch);
    let sync: Vec<_> = watch.0.iter().map(|(seen, _)| (seen.at, seen.sync.nanos())).collect();
    // The second of the regular readings comes at the host's own phase.
    assert!(sync[1].0 < ms(60) && sync[1].0.nanos() == sync[1].1, "{sync:?}");
    assert_eq!(sync[0], (ms(0), 0));
    assert_eq!(sync[2..], [(ms(60), 35_000_000), (ms(70), 45_000_000)]);
    assert!(matches!(watch.0[0].1, Saw::Clock(_)), "the first input is a reading");
    let local = |i: usize| watch.0[i].0.local;
    assert_eq!(local(2).since(local(0)), 60 * MS, "local time does not step");
    assert_eq!(timeouts(&watch).len(), 1);
}

#[test]
fn readings_come_every_period_and_correct_the_drift_between() {
    let clock = ClockSpec {
        drift_ppb: 50_000,
        noise: Duration::from_nanos(200),
        stated: ClockError::Within(Duration::from_nanos(200)),
        period: 10 * MS,
        ..ClockSpec::default()
    };
    let mut world = World::new(Wire::new(50 * US), 1);
    world.add(Probe::default(), with_clock(clock));
    world.add(quiet(), HostSpec::ideal());
    let mut watch = Collect::default();
    for at in 0..99 {
        world.run_until(ms(at), &mut watch);
        send(&mut world, &mut watch, (1, 0), &[2]);
    }
    world.run_until(ms(99), &mut watch);
    let readings = watch.0.iter().filter(|(_, saw)| matches!(saw, Saw::Clock(_))).count();
    assert!((10..=11).contains(&readings), "{readings}: the phase is the host's own");
    let error = |seen: &evenfall_sim::Seen| seen.sync.nanos().abs_diff(seen.at.nanos());
    let worst = watch.0.iter().map(|(seen, _)| error(seen)).max().expect("saw something");
    // 50 ppm over 10 ms are 500 ns, and 200 of noise.
    assert!((400..=700).contains(&worst), "{worst}");
    let reading = world.machine(NODE).clock.reading();
    assert_eq!(reading.error, ClockError::Within(Duration::from_nanos(200)));
    assert_ne!(world.machine(NODE).clock, Clock::default());
}

#[test]
fn arrivals_carry_the_time_at_the_socket_and_not_of_their_reading() {
    let (mut world, mut watch) = probes(2, &HostSpec::ideal());
    world.run_until(ms(1), &mut watch);
    world.pause(NODE, 5 * MS);
    send(&mut world, &mut watch, (1, 0), &[2]);
    world.run_until(ms(10), &mut watch);
    let (seen, Saw::Datagram(_, received)) = watch.0[0] else { panic!("a datagram") };
    assert_eq!(seen.at, ms(6));
    assert_eq!(seen.local.since(received), 5 * MS - 50 * US);
}

#[test]
fn origins_differ_between_hosts_unless_stated() {
    let (world, _) = probes(3, &HostSpec::ideal());
    let locals: Vec<_> = (0..3).map(|n| world.local(NodeIndex(n))).collect();
    assert!(locals[0] != locals[1] && locals[1] != locals[2], "{locals:?}");
    let origin = Some(Timestamp::from_nanos(17));
    let (world, _) = probes(1, &with_clock(ClockSpec { origin, ..ClockSpec::default() }));
    assert_eq!(world.local(NODE), Timestamp::from_nanos(17));
    assert_eq!(world.now(), SimTime::ZERO);
}

#[test]
fn hosts_read_their_clocks_at_their_own_phases() {
    let mut world = World::new(Wire::new(50 * US), 1);
    for _ in 0..20 {
        world.add(Probe::default(), HostSpec::ideal());
    }
    let mut watch = Collect::default();
    world.run_until(ms(500), &mut watch);
    let mut at: Vec<_> =
        watch.0.iter().map(|(seen, _)| seen.at).filter(|at| *at > SimTime::ZERO).collect();
    let readings = at.len();
    at.sort_unstable();
    at.dedup();
    assert!(readings >= 80 && at.len() == readings, "{readings} readings at {} times", at.len());
}

#[test]
fn a_crystal_wanders_with_temperature_and_never_goes_back() {
    let clock = ClockSpec {
        wander_ppb: 5_000,
        wander_period: Duration::from_secs(2),
        ..ClockSpec::default()
    };
    let mut world = World::new(Wire::new(50 * US), 1);
    let every = Some(MS);
    world.add(Probe { every, silent_clock: true, ..Probe::default() }, with_clock(clock));
    let mut watch = Collect::default();
    world.call(NODE, &mut watch, |probe, now| probe.timeout = Some(now + MS));
    let (mut rates, mut last) = (Vec::new(), world.local(NODE));
    for at in 1..40 {
        world.run_until(ms(1_000 * at), &mut watch);
        let local = world.local(NODE);
        rates.push(local.since(last).as_nanos() as f64 - 1e9);
        last = local;
    }
    let (least, most) = rates
        .iter()
        .fold((0.0f64, 0.0f64), |(least, most), &rate| (least.min(rate), most.max(rate)));
    // Nanoseconds a second are parts per billion: about two deviations either way.
    assert!(
        (-25_000.0..-3_000.0).contains(&least) && (3_000.0..25_000.0).contains(&most),
        "{rates:?}"
    );
    let fired = timeouts(&watch);
    assert!(fired.len() > 38_900 && fired.windows(2).all(|pair| pair[0].1 < pair[1].1));
}

#[test]
fn a_stepped_clock_slews_back_at_its_rate() {
    let clock = ClockSpec { slew_ppb: 100_000, offset_ns: 300, ..ClockSpec::default() };
    let mut world = World::new(Wire::new(50 * US), 1);
    world.add(Probe::default(), with_clock(clock));
    let mut watch = Collect::default();
    world.run_until(ms(1_000), &mut watch);
    world.step_clock(NODE, 50_000, &mut watch);
    world.run_until(ms(2_000), &mut watch);
    let error = |(seen, _): &(evenfall_sim::Seen, Saw)| {
        (seen.at.nanos() / 1_000_000, seen.sync.nanos() as i64 - seen.at.nanos() as i64)
    };
    let errors: Vec<_> = watch.0.iter().map(error).collect();
    let at_step = errors.iter().position(|e| e.1 == 50_300).expect("the step is read at once");
    // 100 ppm of 100 ms are 10 us a reading.
    let after: Vec<i64> = errors[at_step + 1..].iter().map(|e| e.1).collect();
    assert!(after.windows(2).all(|w| w[0] - w[1] == 10_000 || w[1] == 300), "{errors:?}");
    assert_eq!(after.last(), Some(&300));
}

#[test]
fn timers_of_an_idle_host_are_late_and_those_of_a_busy_one_are_not() {
    let late = evenfall_sim::Quantiles::constant(60 * US);
    let spec = HostSpec { timer_late: late, ..HostSpec::ideal() };
    let (mut world, mut watch) = probes(2, &spec);
    world.call(NODE, &mut watch, |probe, now| probe.timeout = Some(now + MS));
    world.run_until(ms(2), &mut watch);
    assert_eq!(timeouts(&watch).iter().map(|t| t.0).collect::<Vec<_>>(), [1_060_000]);
    // A packet 20 us after the time wakes the node, which then sees that the timer is due.
    world.call(NODE, &mut watch, |probe, now| probe.timeout = Some(now + MS));
    world.run_until(SimTime::from_micros(2_970), &mut watch);
    send(&mut world, &mut watch, (1, 0), &[2]);
    world.run_until(ms(4), &mut watch);
    assert_eq!(timeouts(&watch)[1].0, 3_020_000);
}
