//! Network models: the cloud's delays, and that a switch with priorities fits the trait.

use std::collections::VecDeque;

use crate::common::{US, heard, ms, probes_on, quiet};
use evenfall_core::{Class, Destination, Head, Prng, Transmit};
use evenfall_sim::network::{Agenda, Ticket};
use evenfall_sim::{
    Cloud, CloudProfile, HostIndex, HostSpec, Network, NodeIndex, Packet, Quantiles, Rates,
    SimTime, Verdict,
};

fn cloud(profile: CloudProfile, hosts: usize) -> Cloud {
    let mut cloud = Cloud::new(profile, 7);
    (0..hosts).for_each(|_| cloud.add_host(&HostSpec::ideal()));
    cloud
}

/// Delay in nanoseconds of a packet sent at this time.
fn delay(cloud: &mut Cloud, prng: &mut Prng, (from, to): (u32, u32), at: SimTime) -> u64 {
    let packet = Packet {
        at,
        from: NodeIndex(from),
        to: NodeIndex(to),
        from_host: HostIndex(from),
        to_host: HostIndex(to),
        bytes: 100,
        class: Class::Live,
    };
    match cloud.route(&packet, prng, &mut Agenda::default()) {
        Verdict::Deliver(arrival) => arrival.nanos() - at.nanos(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn measured_quantiles_come_out_as_they_went_in() {
    let text: String = (1..=99).map(|p| format!("{}\n", 40 + p)).collect();
    let jitter = Quantiles::parse(&text, US).expect("a good table");
    let mut cloud = cloud(CloudProfile { jitter, ..CloudProfile::constant(10 * US) }, 2);
    let mut prng = Prng::new(1);
    let mut sample: Vec<_> =
        (0..100_000).map(|i| delay(&mut cloud, &mut prng, (0, 1), ms(i))).collect();
    sample.sort_unstable();
    for percent in [1, 10, 50, 90, 99] {
        let ns = sample[percent * 1_000];
        assert!(ns.abs_diff((50 + percent as u64) * 1_000) < 500, "p{percent} {ns}");
    }
}

#[test]
fn a_pair_keeps_its_delay_and_pairs_differ() {
    let profile = CloudProfile {
        base: Quantiles::lognormal(50 * US, 0.3),
        slowness_sigma: 0.1,
        ..CloudProfile::constant(US)
    };
    let mut cloud = cloud(profile, 300);
    let mut prng = Prng::new(1);
    let mut base = Vec::new();
    for (from, to) in (0..300).flat_map(|from| (0..300).map(move |to| (from, to))) {
        if from != to {
            let pair = (HostIndex(from), HostIndex(to));
            let ns = delay(&mut cloud, &mut prng, (from, to), ms(1));
            assert!(ns.abs_diff(cloud.base_ns(pair.0, pair.1)) <= 1);
            base.push(ns);
        }
    }
    base.sort_unstable();
    let ratio = |q: f64| base[(base.len() as f64 * q) as usize] as f64 / 50_000.0;
    // Lognormals multiply: sigma = sqrt(.3^2 + .1^2 + .1^2) = .33; the 84th percentile is e^.33.
    assert!((ratio(0.5) - 1.0).abs() < 0.05, "{}", ratio(0.5));
    assert!((ratio(0.841) - 1.39).abs() < 0.07, "{}", ratio(0.841));
}

#[test]
fn spikes_are_as_rare_and_as_long_as_stated() {
    let profile = CloudProfile {
        spike_chance: 0.01,
        spike: Quantiles::pareto(100 * US, 1.5, 10_000 * US),
        ..CloudProfile::constant(10 * US)
    };
    let mut cloud = cloud(profile, 2);
    let mut prng = Prng::new(1);
    let sample: Vec<_> =
        (0..200_000).map(|i| delay(&mut cloud, &mut prng, (0, 1), ms(20 * i))).collect();
    let longer = |us: u64| sample.iter().filter(|&&ns| ns > us * 1_000).count();
    assert!(longer(20).abs_diff(2_000) < 150, "{}", longer(20));
    // (100 / 400)^1.5 = 1/8 of them exceed 400 us.
    assert!(longer(410).abs_diff(250) < 60, "{}", longer(410));
}

#[test]
fn drift_is_slow_of_the_stated_size_and_different_per_pair() {
    let profile = CloudProfile { wander: 0.1, ..CloudProfile::constant(1_000 * US) };
    let mut cloud = cloud(profile, 3);
    let mut prng = Prng::new(1);
    let mut series = |pair| -> Vec<f64> {
        let at = (0..20_000).map(|i| ms(100 * i));
        at.map(|at| delay(&mut cloud, &mut prng, pair, at) as f64 / 1e6 - 1.0).collect()
    };
    let (a, b) = (series((0, 1)), series((2, 1)));
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    let product =
        |a: &[f64], b: &[f64]| mean(&a.iter().zip(b).map(|(x, y)| x * y).collect::<Vec<_>>());
    let deviation = product(&a, &a).sqrt();
    // Straight lines between the values smooth the stated 10 % to sqrt(2/3) of it.
    assert!((0.07..0.10).contains(&deviation), "{deviation}");
    assert!(mean(&a).abs() < 0.02, "{}", mean(&a));
    let steps: Vec<f64> = a.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(product(&steps, &steps).sqrt() < 0.01, "100 ms of a 5 s period change little");
    let correlation = product(&a, &b) / deviation / deviation;
    assert!(correlation.abs() < 0.2, "pairs are independent: {correlation}");
}

#[test]
fn packets_of_a_pair_stay_in_order_unless_told_otherwise() {
    let jitter = Quantiles::exponential(100 * US);
    let profile = CloudProfile { jitter, ..CloudProfile::constant(10 * US) };
    let overtaken = |profile: CloudProfile, rates: Rates| {
        let mut cloud = cloud(profile, 2);
        cloud.set_rates(rates);
        let mut prng = Prng::new(1);
        let at = (0..10_000u64).map(|i| SimTime::from_micros(10 * i));
        let arrivals: Vec<_> =
            at.map(|at| at.nanos() + delay(&mut cloud, &mut prng, (0, 1), at)).collect();
        arrivals.windows(2).filter(|pair| pair[1] < pair[0]).count()
    };
    assert_eq!(overtaken(profile.clone(), Rates::default()), 0);
    let free = CloudProfile { in_order: false, ..profile.clone() };
    assert!(overtaken(free, Rates::default()) > 3_000);
    let rates = Rates { reorder: 0.05, reorder_by: 10_000 * US, ..Rates::default() };
    assert!(overtaken(profile, rates).abs_diff(490) < 80);
}

#[test]
fn six_thousand_hosts_need_no_table_of_pairs() {
    let mut cloud = cloud(CloudProfile::default(), 6_000);
    let mut prng = Prng::new(1);
    let mut sum = 0;
    for i in 0..1_000_000u64 {
        let (from, to) = (prng.below(6_000) as u32, prng.below(6_000) as u32);
        sum += delay(&mut cloud, &mut prng, (from, to), SimTime::from_micros(i));
    }
    assert!((30..60).contains(&(sum / 1_000_000_000)), "mean {} ns", sum / 1_000_000);
}

/// One link shared by all, 10 us a packet, strict priority: a later packet overtakes those that
/// wait, which no model can know when they are sent.
#[derive(Default)]
struct Link {
    waiting: [VecDeque<Ticket>; 4],
    tickets: u64,
    busy: bool,
}

impl Network for Link {
    fn add_host(&mut self, _: &HostSpec) {}

    fn route(&mut self, packet: &Packet, _: &mut Prng, agenda: &mut Agenda) -> Verdict {
        if !std::mem::replace(&mut self.busy, true) {
            agenda.wake_at(packet.at + 10 * US, 0);
            return Verdict::Deliver(packet.at + 10 * US);
        }
        self.tickets += 1;
        self.waiting[packet.class as usize].push_back(Ticket(self.tickets));
        Verdict::Hold(Ticket(self.tickets))
    }

    fn wake(&mut self, now: SimTime, _: u64, _: &mut Prng, agenda: &mut Agenda) {
        match self.waiting.iter_mut().find_map(VecDeque::pop_front) {
            Some(ticket) => {
                agenda.wake_at(now + 10 * US, 0);
                agenda.release(ticket, Verdict::Deliver(now + 10 * US));
            }
            None => self.busy = false,
        }
    }

    fn set_rates(&mut self, _: Rates) {}

    fn slow(&mut self, _: HostIndex, _: f64) {}
}

#[test]
fn a_switch_with_priorities_fits_the_trait() {
    let (mut world, mut watch) = probes_on(Link::default(), 2, &HostSpec::ideal());
    let to = Destination::One(world.address(NodeIndex(1)));
    let classes =
        [Class::Bulk, Class::Bulk, Class::Repair, Class::Live, Class::Control, Class::Live];
    world.call(NodeIndex(0), &mut watch, |probe, _| {
        for (i, class) in classes.into_iter().enumerate() {
            let head = Head::new(&[2 * i as u8]);
            probe.outbox.push_back(Transmit::new(class, to, head, bytes::Bytes::new()));
        }
    });
    world.run_until(ms(1), &mut watch);
    let order: Vec<_> = heard(&watch, 1).iter().map(|&(at, tag)| (at / 1_000, tag / 2)).collect();
    assert_eq!(order, [(10, 0), (20, 4), (30, 3), (40, 5), (50, 2), (60, 1)]);
    assert!(quiet().outbox.is_empty());
}
