use core::time::Duration;

use evenfall_core::math::{exp, square};
use evenfall_core::{ClockError, Prng};
use evenfall_placement_machine::DelayRecord;

use crate::effects::Effects;
use crate::{DelayShape, Model, Pair, PoolError, PoolSurvey, Stack};

/// A pool whose parameters are known, drawn without the simulator.
struct Drawn {
    hosts: usize,
    probes: u64,
    clock: ClockError,
    /// Index of a host that is slow, if one is.
    slow: Option<usize>,
    /// Number of probes of which one is lost; 0 when none is lost.
    lost_of: u64,
}

const BASE_US: f64 = 40.0;
const WAIT_US: f64 = 30.0;
const WAIT_SIGMA: f64 = 0.5;
const SENDER: f64 = 0.1;
const RECEIVER: f64 = 0.15;
const DIRECTION: f64 = 0.05;
/// Share of probes that meet a spike, and the mean of what they wait then.
const SPIKE_SHARE: f64 = 0.002;
const SPIKE_US: f64 = 1_500.0;

impl Drawn {
    const ORDINARY: Self = Self {
        hosts: 24,
        probes: 1_000,
        clock: ClockError::Within(Duration::from_nanos(500)),
        slow: None,
        lost_of: 0,
    };

    fn survey(&self, seed: u64) -> PoolSurvey {
        let mut prng = Prng::new(seed);
        let hosts: Vec<(f64, f64)> = (0..self.hosts)
            .map(|host| {
                let slow = if self.slow == Some(host) { 0.5 } else { 0.0 };
                (SENDER * prng.normal() + slow, RECEIVER * prng.normal() + slow)
            })
            .collect();
        // What sending costs by the model `aws` on sockets.
        let cost_us = 2.2;
        let mut pairs = Vec::new();
        for from in 0..self.hosts {
            for to in (0..self.hosts).filter(|&to| to != from) {
                let scale = exp(hosts[from].0 + hosts[to].1 + DIRECTION * prng.normal());
                let mut record = DelayRecord::default();
                for probe in 0..self.probes {
                    if self.lost_of > 0 && probe % self.lost_of == 0 {
                        continue;
                    }
                    let mut wait = WAIT_US * scale * exp(WAIT_SIGMA * prng.normal());
                    if prng.unit() < SPIKE_SHARE {
                        wait = wait.max(prng.exponential(SPIKE_US));
                    }
                    let us = BASE_US * scale + wait + cost_us;
                    record.record((us * 1e3) as i64, self.clock);
                }
                pairs.push(Pair { from, to, sent: self.probes, record });
            }
        }
        PoolSurvey {
            hosts: self.hosts,
            pairs,
            seconds: 1.0,
            stack: Stack::Sockets,
            date: "2026-11-23".into(),
        }
    }
}

fn model(drawn: &Drawn, seed: u64) -> Model {
    let base = Model::named("aws").expect("built in");
    drawn.survey(seed).model("pool", &base).expect("a model")
}

/// Half the width of the interval that the source of a number states.
fn stated(source: &str, before: &str) -> f64 {
    let from = source.rfind(before).expect(source) + before.len();
    let word = source[from..].split_whitespace().next().expect(source);
    word.trim_end_matches(',').parse().expect(source)
}

#[test]
fn the_parameters_of_a_known_pool_are_found_within_their_stated_errors() {
    let mut misses = Vec::new();
    let mut looked = 0;
    for seed in 1..=8 {
        let model = model(&Drawn::ORDINARY, seed);
        let path = &model.path;
        let mut look = |key: &str, is: f64, truth: f64, error: f64| {
            looked += 1;
            assert!(error > 0.0 && error < truth, "{key}: {is} +- {error}");
            if (is - truth).abs() > error {
                misses.push(format!("seed {seed} {key}: {is} +- {error}, not {truth}"));
            }
        };
        let plain = [
            ("base", &path.base_us, BASE_US),
            ("sender", &path.sender_sigma, SENDER),
            ("receiver", &path.receiver_sigma, RECEIVER),
            ("direction", &path.direction_sigma, DIRECTION),
        ];
        for (key, number, truth) in plain {
            look(key, number.is, truth, stated(&number.source, "+- "));
        }
        let DelayShape::Lognormal { median_us, sigma } = path.wait.shape else {
            panic!("lognormal")
        };
        look("wait", median_us, WAIT_US, stated(&path.wait.source, "median +- "));
        look("sigma", sigma, WAIT_SIGMA, stated(&path.wait.source, "sigma +- "));
        let spikes = path.spikes.as_ref().expect("there are spikes");
        let DelayShape::Exponential { mean_us } = spikes.length.shape else {
            panic!("exponential")
        };
        look("spike", mean_us, SPIKE_US, stated(&spikes.length.source, "+- "));
        let gap_ms = SPIKE_US / 1e3 / SPIKE_SHARE;
        look("gap", spikes.gap_ms.is, gap_ms, stated(&spikes.gap_ms.source, "+- "));
    }
    // One interval in twenty may miss. Twice as many misses happen by luck once in some thousands
    // of tests.
    assert!(misses.len() * 10 <= looked, "{} of {looked}: {misses:#?}", misses.len());
}

#[test]
fn the_file_says_of_each_number_whether_it_was_measured() {
    let model = model(&Drawn::ORDINARY, 1);
    let text = model.to_toml();
    assert_eq!(Model::parse("pool", &text).expect("a model"), model);
    for line in text.lines().filter(|line| line.contains("source =")) {
        let is_measured = line.contains("measured 2026-11-23, 552 pairs of 24 hosts");
        assert!(is_measured || line.contains("not measured, as aws: "), "{line}");
    }
    assert!(text.contains("base_us = { is = "), "{text}");
    let host = text.lines().find(|line| line.starts_with("cores")).expect("cores");
    assert!(host.contains("not measured, as aws"), "{host}");
}

#[test]
fn a_slow_host_is_a_straggler_and_not_part_of_the_spread() {
    let drawn = Drawn { slow: Some(3), ..Drawn::ORDINARY };
    let path = model(&drawn, 2).path;
    assert!(path.straggler_share.source.starts_with("1 of 24"), "{:?}", path.straggler_share);
    assert!((path.straggler_share.is - 1.0 / 24.0).abs() < 1e-3, "{:?}", path.straggler_share);
    // The host is drawn as any other and slow on top of it: e times both ways, four standard
    // deviations of hosts more or less.
    let both = path.straggler_send.is * path.straggler_receive.is;
    assert!((1.3..5.7).contains(&both), "{path:?}");
    assert!(path.sender_sigma.is < 0.15 && path.receiver_sigma.is < 0.22, "{path:?}");
}

#[test]
fn directions_are_not_told_apart_by_poor_clocks() {
    for clock in [ClockError::Unknown, ClockError::Within(Duration::from_micros(30))] {
        let path = model(&Drawn { clock, ..Drawn::ORDINARY }, 3).path;
        assert!(path.direction_sigma.source.starts_with("not measured"), "{path:?}");
        assert!(path.sender_sigma.source.contains("too poor"), "{path:?}");
        assert!((path.base_us.is / BASE_US - 1.0).abs() < 0.1, "{:?}", path.base_us);
        // The host's own part of both directions, half of each: here without correlation.
        let both = (square(SENDER) + square(RECEIVER)).sqrt() / 2.0;
        let (s, r) = (path.sender_sigma.is, path.receiver_sigma.is);
        let found = (square(s) + square(r) + 2.0 * path.host_correlation.is * s * r).sqrt() / 2.0;
        assert!((found / both - 1.0).abs() < 0.4, "{found}, not {both}");
    }
}

#[test]
fn lost_probes_are_counted_and_none_lost_says_little() {
    let path = model(&Drawn { lost_of: 100, ..Drawn::ORDINARY }, 4).path;
    let bursts = path.losses.as_ref().expect("as in aws");
    let share = path.random_loss.is + bursts.within.is * 1.0 / bursts.gap_ms.is;
    assert!((share / 0.01 - 1.0).abs() < 0.01, "{share}");
    let path = model(&Drawn::ORDINARY, 4).path;
    assert_eq!(path.random_loss.is, Model::named("aws").expect("built in").path.random_loss.is);
    assert!(path.random_loss.source.contains("none of the probes"), "{:?}", path.random_loss);
}

#[test]
fn a_survey_that_says_too_little_is_refused_by_what_it_lacks() {
    let base = Model::named("aws").expect("built in");
    let refused = |drawn: &Drawn| drawn.survey(1).model("pool", &base).expect_err("too little");
    let few = refused(&Drawn { hosts: 3, ..Drawn::ORDINARY });
    assert_eq!(few, PoolError::Hosts(3));
    assert!(few.to_string().contains("survey more agents"), "{few}");
    let short = refused(&Drawn { probes: 20, ..Drawn::ORDINARY });
    assert_eq!(short, PoolError::Hosts(0));
    let mut holes = Drawn::ORDINARY.survey(1);
    holes.pairs.retain(|pair| (pair.from + pair.to) % 3 == 0);
    let error = holes.model("pool", &base).expect_err("too few pairs");
    assert!(matches!(error, PoolError::Pairs { all: 552, .. }), "{error}");
    assert!(error.to_string().contains("survey for longer"), "{error}");
    let mut one_way = Drawn { clock: ClockError::Unknown, ..Drawn::ORDINARY }.survey(1);
    one_way.pairs.retain(|pair| pair.from < pair.to);
    let error = one_way.model("pool", &base).expect_err("no pair both ways");
    assert_eq!(error, PoolError::OneWay { all: 552, known: 0 });
    assert!(error.to_string().contains("both directions"), "{error}");
}

#[test]
fn effects_of_hosts_are_found_where_half_of_the_pairs_are_known() {
    let sender = [0.3, -0.1, 0.0, -0.2];
    let receiver = [0.1, 0.1, -0.4, 0.2];
    let all = (0..16).map(|pair| (pair / 4, pair % 4)).filter(|(from, to)| from != to);
    let pairs: Vec<(usize, usize, f64)> = all
        .filter(|(from, to)| (from + 2 * to) % 5 != 0)
        .map(|(from, to)| (from, to, 4.0 + sender[from] + receiver[to]))
        .collect();
    let effects = Effects::of(4, &pairs);
    for (from, to, y) in &pairs {
        let fitted = effects.mean + effects.hosts(*from, *to);
        assert!((fitted - y).abs() < 1e-6, "{from} {to}: {fitted}, not {y}");
    }
    assert!(effects.parts(&pairs).rest < 1e-5);
}
