//! Injected delays and losses of arriving datagrams, for experiments on one machine.
//!
//! A lab of namespaces has one kernel: every hop takes the same few microseconds, and not every
//! kernel has `netem`. The *receiving* driver therefore holds each datagram back for a randomly
//! drawn time before any machine sees it. A receiver knows both ends, so a rule may name one
//! ordered pair, one sender, one receiver or all. A host that is slow both ways has two rules.
//!
//! The driver looks at the file of rules ten times a second. Replacing the file (write another,
//! then rename) turns a host slow during a run:
//!
//! ```text
//! # FROM       TO          FIXED_US  MEAN_JITTER_US  LOSS
//! *            *           30        10              0.01
//! 10.77.0.3    *           2000
//! *            10.77.0.3   2000      50
//! ```
//!
//! The delays of all matching rules add up, and so do their losses (shares of 1). An end is `*`, an
//! address, or `address:port`. Jitter is exponential. Datagrams of one sender stay in order, as on
//! a path of the network.

use std::collections::{BTreeMap, BinaryHeap};
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use evenfall_core::{Arrival, Prng, StampedBy, Timestamp};

use crate::Counters;

/// Settings of injected delays. The documentation of the module describes the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inject {
    /// File of the rules. A missing file means no delay.
    pub file: PathBuf,
    /// Seed of the delays. Each address draws its own sequence from the same seed.
    pub seed: u64,
    /// Datagrams that are held back at once. Beyond this number the newest are dropped and counted.
    pub queue_datagrams_max: usize,
}

/// Time between two looks at the file. The time is short beside the second in which an experiment
/// watches, and a look costs a few microseconds.
const LOOK: Duration = Duration::from_millis(100);
/// Longest delay that a rule may name. No protocol timer works with a longer one.
const DELAY_US_MAX: f64 = 60e6;
/// Senders whose delays are remembered. Beyond this number all delays are computed again.
const SENDERS_MAX: usize = 4_096;

/// One end of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Any,
    Host(IpAddr),
    Port(SocketAddr),
}

impl End {
    fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::Any);
        }
        let port = text.parse().map(Self::Port);
        port.or_else(|_| text.parse().map(Self::Host)).ok()
    }

    fn matches(self, address: SocketAddr) -> bool {
        match self {
            Self::Any => true,
            Self::Host(ip) => ip == address.ip(),
            Self::Port(own) => own == address,
        }
    }
}

/// A line of the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rule {
    from: End,
    to: End,
    delay: Delay,
}

/// A fixed part, the mean of an exponential part, and the share of datagrams that is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Delay {
    fixed_us: f64,
    jitter_us: f64,
    loss: f64,
}

pub(crate) fn parse(text: &str) -> Result<Vec<Rule>, String> {
    let rule = |(number, line): (usize, &str)| {
        let fields: Vec<&str> = line.split('#').next()?.split_whitespace().collect();
        let microseconds = |field: &str| {
            field.parse().ok().filter(|us| (0.0..=DELAY_US_MAX).contains(us)).ok_or_else(|| {
                format!("line {}: `{field}` is not 0 to 60000000 microseconds", number + 1)
            })
        };
        let end = |field: &str| {
            End::parse(field).ok_or_else(|| {
                format!("line {}: `{field}` is neither *, an address nor address:port", number + 1)
            })
        };
        let share = |field: &str| {
            field.parse().ok().filter(|loss| (0.0..=1.0).contains(loss)).ok_or_else(|| {
                format!("line {}: `{field}` is not a share lost, 0 to 1", number + 1)
            })
        };
        let whole = |from, to, fixed, jitter, loss| {
            let (fixed_us, jitter_us) = (microseconds(fixed)?, microseconds(jitter)?);
            let delay = Delay { fixed_us, jitter_us, loss: share(loss)? };
            Ok(Rule { from: end(from)?, to: end(to)?, delay })
        };
        match fields[..] {
            [] => None,
            [from, to, fixed] => Some(whole(from, to, fixed, "0", "0")),
            [from, to, fixed, jitter] => Some(whole(from, to, fixed, jitter, "0")),
            [from, to, fixed, jitter, loss] => Some(whole(from, to, fixed, jitter, loss)),
            _ => Some(Err(format!(
                "line {}: wanted FROM TO FIXED_US [MEAN_JITTER_US [LOSS]], found `{line}`",
                number + 1
            ))),
        }
    };
    text.lines().enumerate().filter_map(rule).collect()
}

/// A datagram that is held back. The heap has the earliest on top.
struct Held {
    due: Timestamp,
    number: u64,
    arrival: Arrival,
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        (self.due, self.number) == (other.due, other.number)
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.due, other.number).cmp(&(self.due, self.number))
    }
}

/// The datagrams that the rules hold back.
pub(super) struct DelayLine {
    inject: Inject,
    here: SocketAddr,
    rules: Vec<Rule>,
    read_of: Option<SystemTime>,
    look_at: Timestamp,
    /// By sender, its delay, and when its last datagram is due.
    senders: BTreeMap<SocketAddr, (Delay, Timestamp)>,
    held: BinaryHeap<Held>,
    number: u64,
    prng: Prng,
    fresh: Vec<Arrival>,
}

impl DelayLine {
    pub(super) fn new(inject: &Inject, here: SocketAddr) -> Self {
        let ip = match here.ip() {
            IpAddr::V4(ip) => u64::from(u32::from(ip)),
            IpAddr::V6(ip) => u128::from(ip) as u64,
        };
        Self {
            prng: Prng::new(inject.seed).fork(ip << 16 ^ u64::from(here.port())),
            inject: inject.clone(),
            here,
            rules: Vec::new(),
            read_of: None,
            look_at: Timestamp::ZERO,
            senders: BTreeMap::new(),
            held: BinaryHeap::new(),
            number: 0,
            fresh: Vec::new(),
        }
    }

    /// The list into which the driver puts new arrivals for [`hold`](Self::hold).
    pub(super) fn fresh(&mut self) -> &mut Vec<Arrival> {
        &mut self.fresh
    }

    /// Reads the file again when it has changed. A file that cannot be read or has a mistake
    /// changes nothing, and one note reports it.
    fn look(&mut self, now: Timestamp) {
        if now < self.look_at {
            return;
        }
        self.look_at = now + LOOK;
        let changed = fs::metadata(&self.inject.file).and_then(|meta| meta.modified()).ok();
        if changed == self.read_of {
            return;
        }
        self.read_of = changed;
        match read(&self.inject.file) {
            Ok(rules) => {
                self.rules = rules;
                let (rules, here) = (&self.rules, self.here);
                for (from, (delay, _)) in &mut self.senders {
                    *delay = delay_of(rules, *from, here);
                }
            }
            Err(why) => tracing::warn!("{}: {why}", self.inject.file.display()),
        }
    }

    /// Holds the new arrivals back.
    pub(super) fn hold(&mut self, now: Timestamp, counters: &mut Counters) {
        self.look(now);
        let mut fresh = std::mem::take(&mut self.fresh);
        for arrival in fresh.drain(..) {
            if self.is_lost(&arrival) {
                counters.inject_lost += 1;
                continue;
            }
            if self.held.len() >= self.inject.queue_datagrams_max {
                counters.inject_dropped += 1;
                continue;
            }
            let due = self.due(&arrival);
            self.number += 1;
            self.held.push(Held { due, number: self.number, arrival });
        }
        self.fresh = fresh;
    }

    /// The delay of a sender, and when its last datagram is due.
    fn sender(&mut self, from: SocketAddr) -> &mut (Delay, Timestamp) {
        if self.senders.len() >= SENDERS_MAX && !self.senders.contains_key(&from) {
            self.senders.clear();
        }
        let (rules, here) = (&self.rules, self.here);
        self.senders.entry(from).or_insert_with(|| (delay_of(rules, from, here), Timestamp::ZERO))
    }

    fn is_lost(&mut self, arrival: &Arrival) -> bool {
        let loss = self.sender(arrival.from).0.loss;
        loss > 0.0 && self.prng.chance(loss)
    }

    fn due(&mut self, arrival: &Arrival) -> Timestamp {
        let delay = self.sender(arrival.from).0;
        let mut us = delay.fixed_us;
        if delay.jitter_us > 0.0 {
            us += self.prng.exponential(delay.jitter_us);
        }
        let last = &mut self.sender(arrival.from).1;
        *last = (arrival.received + Duration::from_nanos((us * 1e3) as u64)).max(*last);
        *last
    }

    /// Appends the datagrams that are due, which arrive now.
    pub(super) fn release(&mut self, now: Timestamp, out: &mut Vec<Arrival>) {
        while self.held.peek().is_some_and(|held| held.due <= now) {
            let Held { due, mut arrival, .. } = self.held.pop().expect("peeked");
            // The kernel would have stamped the datagram on arrival, and this process when it read
            // the datagram.
            arrival.received = if arrival.stamped_by == StampedBy::User { now } else { due };
            out.push(arrival);
        }
    }

    /// When the next datagram is due.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.held.peek().map(|held| held.due)
    }
}

fn read(file: &Path) -> Result<Vec<Rule>, String> {
    match fs::read_to_string(file) {
        Ok(text) => parse(&text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error.to_string()),
    }
}

fn delay_of(rules: &[Rule], from: SocketAddr, to: SocketAddr) -> Delay {
    let matching = rules.iter().filter(|rule| rule.from.matches(from) && rule.to.matches(to));
    matching.fold(Delay::default(), |sum, Rule { delay, .. }| Delay {
        fixed_us: sum.fixed_us + delay.fixed_us,
        jitter_us: sum.jitter_us + delay.jitter_us,
        loss: sum.loss + delay.loss,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn rules_that_match_add_up() {
        let text = "# slow host\n* * 30 10\n10.77.0.3 * 2000 # out\n* 10.77.0.3 500 5\n\n\
                    10.77.0.1:9000 10.77.0.2 7\n";
        let rules = parse(text).unwrap();
        let of = |from, to| delay_of(&rules, at(from), at(to));
        let delay = |fixed_us, jitter_us| Delay { fixed_us, jitter_us, loss: 0.0 };
        assert_eq!(of("10.77.0.1:1", "10.77.0.2:9000"), delay(30.0, 10.0));
        assert_eq!(of("10.77.0.1:9000", "10.77.0.2:9000"), delay(37.0, 10.0));
        assert_eq!(of("10.77.0.3:9000", "10.77.0.2:9000"), delay(2_030.0, 10.0));
        assert_eq!(of("10.77.0.2:9000", "10.77.0.3:9000"), delay(530.0, 15.0));
    }

    #[test]
    fn a_mistake_names_its_line() {
        for (text, wanted) in [
            ("* * 1\n* *\n", "line 2"),
            ("* host 1\n", "`host`"),
            ("* * -1\n", "`-1`"),
            ("* * NaN\n", "`NaN`"),
            ("* * 1 2 3\n", "`3`"),
            ("* * 1 2 0 4\n", "FIXED_US"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn the_stated_share_is_lost_and_counted() {
        let inject = Inject { file: "no such file".into(), seed: 1, queue_datagrams_max: 9_999 };
        let mut line = DelayLine::new(&inject, at("127.0.0.1:1"));
        line.rules = parse("* * 0 0 0.2\n").unwrap();
        line.look_at = Timestamp::MAX;
        let mut counters = Counters::default();
        line.fresh().extend((0..5_000).map(|_| arrival(at("127.0.0.1:2"), 0)));
        line.hold(Timestamp::from_nanos(1_000_000), &mut counters);
        assert!((900..1_100).contains(&counters.inject_lost), "{}", counters.inject_lost);
    }

    fn arrival(from: SocketAddr, number: u8) -> Arrival {
        let received = Timestamp::from_nanos(1_000_000);
        let datagram = bytes::Bytes::copy_from_slice(&[number]);
        Arrival::new(from, datagram, received, StampedBy::User)
    }

    #[test]
    fn datagrams_wait_in_order_and_the_newest_beyond_the_limit_are_dropped() {
        let inject = Inject { file: "no such file".into(), seed: 1, queue_datagrams_max: 3 };
        let mut line = DelayLine::new(&inject, at("127.0.0.1:1"));
        line.rules = parse("* * 100 1000\n").unwrap();
        let mut counters = Counters::default();
        let now = Timestamp::from_nanos(1_000_000);
        line.look_at = Timestamp::MAX;
        line.fresh().extend((0..5).map(|number| arrival(at("127.0.0.1:2"), number)));
        line.hold(now, &mut counters);
        assert_eq!(counters.inject_dropped, 2);
        let mut out = Vec::new();
        line.release(now + Duration::from_micros(99), &mut out);
        assert!(out.is_empty() && line.next_due().unwrap() >= now + Duration::from_micros(100));
        line.release(now + Duration::from_secs(1), &mut out);
        let numbers: Vec<u8> = out.iter().map(|arrival| arrival.datagram[0]).collect();
        assert_eq!(numbers, [0, 1, 2]);
        assert_eq!(out[0].received, now + Duration::from_secs(1));
    }
}
