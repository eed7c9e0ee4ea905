//! Faults do what they say, and plans cover them.

use crate::common::{MS, Probe, Probes, Saw, US, heard, ms, probes, quiet, send};
use core::time::Duration;

use evenfall_core::{Destination, GroupId, Timestamp};
use evenfall_sim::{
    Action, Bounds, Bursts, Collect, Coverage, Cut, DiskFaults, Fault, FaultKind, HostSpec, Late,
    Loss, NodeIndex, ObjectFaults, Observer, Plan, Rates, Seen, SimTime, Victims, Wire,
};

const A: NodeIndex = NodeIndex(0);
const B: NodeIndex = NodeIndex(1);

#[test]
fn random_rates_are_met() {
    let (mut world, mut watch) = probes(2, &HostSpec::ideal());
    let rates = Rates { loss: 0.1, duplicate: 0.05, reorder: 0.02, reorder_by: 10 * MS };
    world.set_rates(rates);
    for i in 0..100_000u64 {
        world.run_until(SimTime::from_micros(i), &mut watch);
        send(&mut world, &mut watch, (0, 1), &[2]);
    }
    world.run_until(ms(1_000), &mut watch);
    let tally = world.tally();
    assert!(tally.lost(Loss::Random).abs_diff(10_000) < 300, "{tally:?}");
    assert!(tally.duplicated.abs_diff(5_000) < 250, "{tally:?}");
    assert_eq!(
        heard(&watch, 1).len() as u64,
        100_000 + tally.duplicated - tally.lost(Loss::Random)
    );
    let late = watch.0.iter().filter(|(seen, _)| seen.at > SimTime::from_micros(100_050)).count();
    assert!(late > 50, "some were reordered past the end: {late}");
}

#[test]
fn a_paused_node_keeps_what_its_buffer_holds_and_resumes() {
    let spec = HostSpec { receive_queue: 100, ..HostSpec::ideal() };
    let (mut world, mut watch) = probes(2, &spec);
    world.run_until(ms(1), &mut watch);
    world.call(B, &mut watch, |probe, now| probe.timeout = Some(now + MS));
    world.pause(B, 10 * MS);
    for i in 0..150 {
        world.run_until(ms(1) + i * 10 * US, &mut watch);
        send(&mut world, &mut watch, (0, 1), &[2]);
    }
    world.run_until(ms(10), &mut watch);
    assert_eq!(heard(&watch, 1), []);
    world.run_until(ms(20), &mut watch);
    assert_eq!(heard(&watch, 1), [(11_000_000, 2); 100]);
    assert_eq!(world.tally().lost(Loss::Socket), 50);
    let late = watch.0.iter().find(|(_, saw)| matches!(saw, Saw::Timeout(_)));
    assert_eq!(late.expect("the timeout is late, not lost").0.at, ms(11));
}

/// Each of three nodes sends to both others. How many datagrams each node hears.
fn heard_by(world: &mut Probes, watch: &mut Collect<Saw>) -> [usize; 3] {
    watch.0.clear();
    for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
        send(world, watch, (from, to), &[2]);
    }
    world.run_until(world.now() + MS, watch);
    [0, 1, 2].map(|node| heard(watch, node).len())
}

#[test]
fn partitions_cut_both_ways_add_up_and_heal() {
    let (mut world, mut watch) = probes(3, &HostSpec::ideal());
    assert_eq!(heard_by(&mut world, &mut watch), [2, 2, 2]);
    let first = world.partition(&[A]);
    assert_eq!(heard_by(&mut world, &mut watch), [0, 1, 1]);
    let second = world.partition(&[B]);
    assert_eq!(heard_by(&mut world, &mut watch), [0, 0, 0]);
    world.heal(first);
    assert_eq!(heard_by(&mut world, &mut watch), [1, 0, 1]);
    world.heal(second);
    assert_eq!(heard_by(&mut world, &mut watch), [2, 2, 2]);
    assert_eq!(world.tally().lost(Loss::Partition), 4 + 6 + 4);
}

#[test]
fn a_cut_in_one_direction_leaves_the_other_alone() {
    let (mut world, mut watch) = probes(3, &HostSpec::ideal());
    let deaf = world.cut(&[A], Cut::Deaf);
    assert_eq!(heard_by(&mut world, &mut watch), [0, 2, 2]);
    world.heal(deaf);
    let mute = world.cut(&[A], Cut::Mute);
    assert_eq!(heard_by(&mut world, &mut watch), [2, 1, 1]);
    // A node that is deaf as well as mute is cut off. A later cut does not end an earlier cut.
    world.cut(&[A], Cut::Deaf);
    assert_eq!(heard_by(&mut world, &mut watch), [0, 1, 1]);
    world.heal(mute);
    assert_eq!(heard_by(&mut world, &mut watch), [0, 2, 2]);
    world.heal_all();
    let both = world.partition(&[A]);
    assert_eq!(heard_by(&mut world, &mut watch), [0, 1, 1]);
    world.heal(both);
    assert_eq!(heard_by(&mut world, &mut watch), [2, 2, 2]);
}

/// The share of packets that bursts swallow at this pace, and the mean number lost in a row.
fn burst_losses(gap: Duration) -> (f64, f64) {
    let (mut world, mut watch) = probes(2, &HostSpec::ideal());
    let bursts = Bursts { good: 9 * MS, bad: MS, loss: 1.0 };
    world.set_bursts(bursts);
    let (mut sent, mut lost, mut runs, mut in_run) = (0, 0, 0, false);
    let mut at = SimTime::ZERO;
    while at < ms(40_000) {
        world.run_until(at, &mut watch);
        let before = world.tally().lost(Loss::Random);
        send(&mut world, &mut watch, (0, 1), &[2]);
        let is_lost = world.tally().lost(Loss::Random) > before;
        (sent, lost) = (sent + 1, lost + u32::from(is_lost));
        runs += u32::from(is_lost && !in_run);
        in_run = is_lost;
        at = at + gap;
    }
    world.set_bursts(Bursts::default());
    let before = world.tally().lost(Loss::Random);
    (0..100).for_each(|_| send(&mut world, &mut watch, (0, 1), &[2]));
    assert_eq!(world.tally().lost(Loss::Random), before, "the bursts are over");
    (f64::from(lost) / f64::from(sent), f64::from(lost) / f64::from(runs))
}

#[test]
fn bursts_lose_the_same_share_at_any_pace_and_last_as_long() {
    let ((fast, in_a_row), (slow, alone)) = (burst_losses(100 * US), burst_losses(20 * MS));
    for share in [fast, slow] {
        assert!((share - 0.1).abs() < 0.02, "{share} of all packets were lost");
    }
    // A millisecond has ten packets of the fast feed, and at most one of the slow feed.
    assert!((9.0..12.0).contains(&in_a_row), "{in_a_row} in a row");
    assert!(alone < 1.3, "{alone} in a row");
}

#[test]
fn late_packets_come_after_all_others_and_are_not_lost() {
    let (mut world, mut watch) = probes(2, &HostSpec::ideal());
    world.set_late(Late { share: 0.1, by: 100 * MS });
    for i in 0..10_000u64 {
        world.run_until(SimTime::from_micros(i), &mut watch);
        send(&mut world, &mut watch, (0, 1), &[2]);
    }
    world.set_late(Late::default());
    world.run_until(ms(60), &mut watch);
    let before = heard(&watch, 1).len();
    world.run_until(ms(200), &mut watch);
    assert_eq!(heard(&watch, 1).len(), 10_000);
    // A tenth is late by up to 100 ms, and half of those by more than 55 ms or so.
    assert!((9_400..9_650).contains(&before), "{before} in time");
}

/// Brings back quiet probes.
#[derive(Default)]
struct Reviver {
    watch: Collect<Saw>,
    revived: Vec<(NodeIndex, Timestamp)>,
    faults: Vec<SimTime>,
}

impl Observer<Probe, Wire> for Reviver {
    fn event(&mut self, seen: Seen, event: Saw) {
        Observer::<Probe, Wire>::event(&mut self.watch, seen, event);
    }

    fn revive(&mut self, node: NodeIndex, now: Timestamp) -> Option<Probe> {
        self.revived.push((node, now));
        Some(quiet())
    }

    fn fault(&mut self, at: SimTime, _: &Fault) {
        self.faults.push(at);
    }
}

#[test]
fn a_crash_loses_timers_groups_and_buffer_and_a_restart_begins_anew() {
    let (mut world, _) = probes(2, &HostSpec::ideal());
    let mut owner = Reviver::default();
    let to = world.address(B);
    world.call(A, &mut owner, |probe, now| {
        probe.install(1, &[to]);
        probe.timeout = Some(now + 15 * MS);
    });
    world.schedule(ms(10), Action::Fault(Fault::Crash(A)));
    world.schedule(ms(20), Action::Fault(Fault::Restart(A)));
    world.invoke_at(ms(12), A, 0);
    world.run_until(ms(5), &mut owner);
    world.pause(A, 100 * MS);
    send(&mut world, &mut owner, (1, 0), &[2]);
    world.run_until(ms(12), &mut owner);
    assert!(!world.is_up(A));
    send(&mut world, &mut owner, (1, 0), &[4]);
    assert_eq!(world.call(A, &mut owner, |_, _| ()), None);
    world.run_until(ms(20), &mut owner);
    assert_eq!(world.tally().lost(Loss::Down), 2);
    assert_eq!(world.tally().invokes_missed, 1);
    send(&mut world, &mut owner, (1, 0), &[6]);
    world.call(A, &mut owner, |probe, _| probe.send(Destination::Group(GroupId(1)), &[8]));
    world.run_until(ms(200), &mut owner);
    assert_eq!(heard(&owner.watch, 0), [(20_050_000, 6)]);
    assert_eq!(heard(&owner.watch, 1), [], "the group went with the process");
    assert!(!owner.watch.0.iter().any(|(_, saw)| matches!(saw, Saw::Timeout(_))));
    assert_eq!(owner.faults, [ms(10), ms(20)]);
    assert_eq!(owner.revived.len(), 1);
}

#[test]
fn foreign_addresses_and_empty_datagrams_are_counted() {
    let (mut world, mut watch) = probes(2, &HostSpec::ideal());
    let foreign = Destination::One("192.168.0.1:7000".parse().expect("an address"));
    world.call(A, &mut watch, |probe, _| probe.send(foreign, &[2]));
    send(&mut world, &mut watch, (0, 77), &[2]);
    send(&mut world, &mut watch, (0, 1), &[]);
    world.run_until(ms(1), &mut watch);
    assert_eq!(world.tally().lost(Loss::Unroutable), 2);
    assert_eq!(world.tally().malformed, 1);
}

fn plan(seed: u64) -> Plan {
    let bounds = Bounds {
        knobs: vec![("receivers", 2..=40), ("hedging", 0..=2)],
        kinds: FaultKind::ALL.to_vec(),
        ..Bounds::default()
    };
    let mut plan = Plan::new(seed, &bounds);
    let any: Vec<_> = (1..=plan.knob("receivers") as u32).map(NodeIndex).collect();
    plan.aim(&bounds, &Victims { expendable: any[1..].to_vec(), any });
    plan
}

#[test]
fn plans_cover_every_kind_and_the_whole_range_of_knobs() {
    let mut halves = [Coverage::default(), Coverage::default()];
    (0..500).for_each(|seed| halves[seed as usize % 2].add(&plan(seed)));
    let [mut coverage, other] = halves;
    coverage.merge(&other);
    assert_eq!(coverage.runs, 500);
    for kind in FaultKind::ALL {
        let runs = coverage.runs_with(kind);
        assert!((150..=300).contains(&runs), "{kind:?} in {runs} runs\n{coverage}");
    }
    let text = coverage.to_string();
    assert!(text.contains("receivers    from 2 to 40"), "{text}");
    assert!(text.contains("clock-step"), "{text}");
}

#[test]
fn plans_stay_in_their_window_and_end_what_can_end() {
    for seed in 0..500 {
        let plan = plan(seed);
        assert_eq!(plan, self::plan(seed));
        assert!(plan.faults.is_sorted_by_key(|&(at, _)| at));
        for (i, (at, fault)) in plan.faults.iter().enumerate() {
            assert!((ms(100)..=ms(1_000)).contains(at), "{plan}");
            let ended = |end: &Fault| plan.faults[i..].iter().any(|(_, later)| later == end);
            match fault {
                Fault::Bursts(_) => assert!(ended(&Fault::Bursts(Bursts::default())), "{plan}"),
                Fault::Late(late) => {
                    assert!(ended(&Fault::Late(Late::default())), "{plan}");
                    assert!(*at + late.by <= ms(1_000), "{plan}");
                }
                Fault::Partition(_) | Fault::OneWay(..) => assert!(ended(&Fault::Heal), "{plan}"),
                Fault::Slow(node, _) => assert!(ended(&Fault::Slow(*node, 1.0)), "{plan}"),
                Fault::Disk(node, _) => {
                    assert!(ended(&Fault::Disk(*node, DiskFaults::default())), "{plan}");
                }
                Fault::Objects(_) => {
                    assert!(ended(&Fault::Objects(ObjectFaults::default())), "{plan}");
                }
                Fault::Rates(_) => assert!(ended(&Fault::Rates(Rates::default())), "{plan}"),
                Fault::Pause(_, duration) => assert!(*at + *duration <= ms(1_000), "{plan}"),
                _ => {}
            }
        }
    }
}

#[test]
fn any_plan_runs() {
    for seed in 0..100 {
        let plan = plan(seed);
        let nodes = 1 + plan.knob("receivers") as u32;
        let (mut world, _) = probes(nodes, &HostSpec::default());
        let mut owner = Reviver::default();
        plan.schedule(&mut world);
        for at in 0..120 {
            world.run_until(ms(10 * at), &mut owner);
            (1..nodes).for_each(|to| send(&mut world, &mut owner, (0, to), &[3]));
        }
        world.run_until(ms(1_300), &mut owner);
        let answers = heard(&owner.watch, 0).len() as u32;
        assert!(answers > nodes * 20, "{answers} answers\n{plan}");
        assert_eq!(owner.faults.len(), plan.faults.len());
        // Nothing appears or vanishes uncounted.
        let tally = world.tally();
        let lost = |losses: &[Loss]| losses.iter().map(|&loss| tally.lost(loss)).sum::<u64>();
        let on_the_way = lost(&[Loss::Random, Loss::Buffer, Loss::Partition, Loss::Unroutable]);
        assert_eq!(tally.sent + tally.duplicated, tally.hops + on_the_way, "{plan}");
        let handed_in = (0..nodes).map(|node| heard(&owner.watch, node).len() as u64).sum::<u64>();
        assert_eq!(tally.hops, handed_in + lost(&[Loss::Down, Loss::Socket]), "{plan}");
    }
}
