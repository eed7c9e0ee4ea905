//! A pool of machines in the cloud of a model, for studies of planners.
//!
//! Planners read delays between hosts. A pool asks the simulated network itself for the delay of a
//! packet on a path at a time. No machines and no processors are simulated, so that a pool of 1,500
//! hosts can be measured in seconds. Losses are left out. A pool has two epochs:
//!
//! ```text
//! 0                10 minutes                       time of the network
//! |-- measured --|  ...  |-- judged: messages down the tree --|
//! ```
//!
//! Where delays drift, routes change in between as often as the model says. Else no route changes.

use core::time::Duration;

use evenfall_campaigns::model::{Model, Simulated, Stack};
use evenfall_core::time::nanos;
use evenfall_placement_planner::delays::{DelayMatrix, EdgeStats};
use evenfall_placement_planner::tree::PlacedTree;
use evenfall_sim::network::Network;
use evenfall_sim::{Cloud, CloudProfile, HostIndex, HostSpec, SimTime};

use crate::tables::Table;

/// Time between two probes of a pair, and between two messages. A wait of a path lasts for less.
const SPACING: Duration = Duration::from_millis(1);
/// Time that a pair has for a measurement. Measurements of another name have other times.
const MEASUREMENT: Duration = Duration::from_secs(20);
/// From the first measurement to the judgement: each pair has changed its route several times,
/// where the model has such changes.
const JUDGED_AFTER: Duration = Duration::from_secs(600);

/// A pool of hosts in a cloud.
pub struct Pool {
    profile: CloudProfile,
    host: HostSpec,
    seed: u64,
    /// How much slower than usual each host is.
    slowness: Vec<f64>,
    /// How much slower both ways a straggler of the model is.
    straggler: f64,
    cloud: Cloud,
}

impl Pool {
    /// A pool of this many hosts.
    pub fn new(model: &Model, hosts: usize, drift: bool, seed: u64) -> Self {
        let mut profile = model.cloud();
        if !drift {
            profile.reroutes = None;
        }
        let straggler = (profile.stragglers.send * profile.stragglers.receive).sqrt();
        let host = model.host(Stack::Sockets);
        Self::of(profile, host, seed, vec![1.0; hosts], straggler)
    }

    fn of(
        profile: CloudProfile,
        host: HostSpec,
        seed: u64,
        slowness: Vec<f64>,
        straggler: f64,
    ) -> Self {
        let mut cloud = Cloud::new(profile.clone(), seed);
        for &slowness in &slowness {
            cloud.add_host(&HostSpec { slowness, ..host.clone() });
        }
        Self { profile, host, seed, slowness, straggler, cloud }
    }

    /// The same pool after one of its hosts has turned into a straggler.
    pub fn slowed(&self, host: usize) -> Self {
        let mut slowness = self.slowness.clone();
        slowness[host] *= self.straggler;
        Self::of(self.profile.clone(), self.host.clone(), self.seed, slowness, self.straggler)
    }

    /// Number of hosts.
    pub fn hosts(&self) -> usize {
        self.slowness.len()
    }

    fn arrival(&self, from: usize, to: usize, at: u64) -> u64 {
        let (from, to) = (HostIndex(from as u32), HostIndex(to as u32));
        self.cloud.arrival(from, to, SimTime::from_nanos(at)).nanos()
    }

    /// One measurement of a pair: statistics of this many probes. The name of a measurement decides
    /// its time, so that everybody who asks for the same measurement gets the same result.
    pub fn probe(&self, from: usize, to: usize, probes: u32, name: u64) -> EdgeStats {
        let begins = nanos(MEASUREMENT) * name;
        let delay = |number: u64| {
            let at = begins + number * nanos(SPACING);
            ((self.arrival(from, to, at) - at) as f64 / 1e3) as f32
        };
        let mut samples: Vec<f32> = (0..u64::from(probes)).map(delay).collect();
        EdgeStats::from_samples(&mut samples, probes).unwrap_or(EdgeStats::UNKNOWN)
    }

    /// All pairs measured with this many probes each.
    pub fn measure(&self, probes: u32) -> DelayMatrix {
        let mut delays = DelayMatrix::new((0..self.hosts()).map(|host| host.to_string()).collect());
        for from in 0..self.hosts() {
            for to in (0..self.hosts()).filter(|&to| to != from) {
                delays.set(from, to, Some(self.probe(from, to, probes, 0)));
            }
        }
        delays
    }

    /// The statistics of the leaf whose 90th percentile is worst, over this many messages that a
    /// tree carries after the measurements. Plans are compared on the same messages at the same
    /// times, and no planner has seen these times.
    pub fn judge(&self, tree: &PlacedTree, messages: u32) -> EdgeStats {
        let (shape, hosts) = (tree.shape(), tree.hosts());
        let sent = |number: u64| nanos(JUDGED_AFTER) + number * nanos(SPACING);
        let mut worst: Option<EdgeStats> = None;
        let mut times: Vec<Vec<u64>> = vec![(0..u64::from(messages)).map(sent).collect()];
        for place in 1..hosts.len() {
            let parent = shape.parent(place).unwrap_or(0);
            let arrival = |at: &u64| self.arrival(hosts[parent], hosts[place], *at);
            let arrivals: Vec<u64> = times[parent].iter().map(arrival).collect();
            if place < shape.leaves().start {
                times.push(arrivals);
                continue;
            }
            let delay = |(at, sent): (&u64, &u64)| ((at - sent) as f64 / 1e3) as f32;
            let mut delays: Vec<f32> = arrivals.iter().zip(&times[0]).map(delay).collect();
            let stats =
                EdgeStats::from_samples(&mut delays, messages).unwrap_or(EdgeStats::UNKNOWN);
            if worst.is_none_or(|worst| stats.p90_us > worst.p90_us) {
                worst = Some(stats);
            }
        }
        worst.unwrap_or(EdgeStats::UNKNOWN)
    }
}

/// Statistics over the 110 measured pairs of 20 hosts by quantiles: 10, 25, 50, 75 and 90 %.
const FILE: [(&str, [f64; 5]); 6] = [
    ("p50, us", [65.0, 72.0, 84.0, 97.0, 112.0]),
    ("(p90 - p50) / p50", [0.424, 0.440, 0.484, 0.532, 0.636]),
    ("(p75 - p50) / (p50 - p25)", [1.125, 1.219, 1.310, 1.433, 1.556]),
    ("(p90 - p50) / (p50 - p25)", [2.286, 2.467, 2.769, 3.071, 3.455]),
    ("stddev, us", [24.7, 27.7, 34.3, 47.2, 106.9]),
    ("stddev / (p90 - p50)", [0.698, 0.724, 0.836, 1.117, 2.109]),
];

/// The public measurements of Google Cloud and a model side by side: quantiles over pairs.
pub fn fit(model: &Model, pools: u64) -> Table {
    let mut table = Table::new(
        "Measured pairs of Google Cloud and the model's",
        format!(
            "quantiles over pairs of 20 hosts: 110 measured pairs (100,000 probes each) and \
             {pools} simulated pools of model {} (20,000 probes)",
            model.name
        ),
        &[
            "statistic",
            "file 10 %",
            "25 %",
            "50 %",
            "75 %",
            "90 %",
            "model 10 %",
            "25 %",
            "50 %",
            "75 %",
            "90 %",
        ],
    );
    let mut values: [Vec<f64>; 6] = Default::default();
    for seed in 1..=pools {
        let pool = Pool::new(model, 20, true, seed);
        for pair in (0..400).filter(|pair| pair / 20 != pair % 20) {
            let s = pool.probe(pair / 20, pair % 20, 20_000, 0);
            let [p25, p50, p75, p90] = [s.p25_us, s.p50_us, s.p75_us, s.p90_us].map(f64::from);
            let sd = f64::from(s.stddev_us);
            let (up, low) = (p90 - p50, p50 - p25);
            let row = [p50, up / p50, (p75 - p50) / low, up / low, sd, sd / up];
            values.iter_mut().zip(row).for_each(|(all, value)| all.push(value));
        }
    }
    for ((name, file), mut ours) in FILE.into_iter().zip(values) {
        ours.sort_by(f64::total_cmp);
        let model = [0.1, 0.25, 0.5, 0.75, 0.9].map(|q| evenfall_core::nearest_rank(&ours, q));
        table.row(name.into(), file.map(Some).into_iter().chain(model));
    }
    table
}

#[cfg(test)]
mod tests {
    use evenfall_core::math;
    use evenfall_placement_planner::tree::TreeShape;

    use super::*;

    fn gcp() -> Model {
        Model::named("gcp").expect("built in")
    }

    #[test]
    fn the_model_has_the_medians_of_the_measurements() {
        let table = fit(&gcp(), 3);
        for (name, values) in &table.rows {
            let value = |i: usize| values[i].expect("a value");
            let (file, model) = (value(2), value(7));
            // The body of a lognormal wait is more skewed than that of the measured pairs.
            assert!((model / file - 1.0).abs() < 0.2, "{name}: {file} {model}");
        }
    }

    #[test]
    fn routes_change_between_measurement_and_judgement_only_where_delays_drift() {
        let tree = PlacedTree::new(TreeShape { depth: 1, fanout: 1 }, vec![0, 1]);
        let change = |drift: bool| {
            let pairs = (1..30).map(|seed| {
                let pool = Pool::new(&gcp(), 2, drift, seed);
                let judged = pool.judge(&tree, 2_000).p50_us;
                math::ln(f64::from(judged / pool.probe(0, 1, 2_000, 0).p50_us)).abs()
            });
            pairs.fold(0.0, f64::max)
        };
        // The median of 2,000 probes is good to a hundredth.
        let (still, drifted) = (change(false), change(true));
        assert!(still < 0.06 && drifted > 0.1, "{still} {drifted}");
    }

    #[test]
    fn a_measurement_of_one_name_is_the_same_and_of_another_name_another() {
        let pool = Pool::new(&gcp(), 4, false, 1);
        assert_eq!(pool.probe(0, 1, 100, 0), pool.probe(0, 1, 100, 0));
        assert_ne!(pool.probe(0, 1, 100, 0), pool.probe(0, 1, 100, 1));
        let slow = pool.slowed(1).probe(0, 1, 2_000, 0);
        let ratio = slow.p50_us / pool.probe(0, 1, 2_000, 0).p50_us;
        assert!((1.3..1.45).contains(&ratio), "sqrt(1.22 * 1.57) is 1.38: {ratio}");
    }
}
