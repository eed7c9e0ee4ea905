//! The reads of a run: their start times, clients and copies (the workload of the thesis, 3.4.1).

use evenfall_core::{Prng, math};
use evenfall_files_flow::{ThreeTier, TopologyNode};

use crate::files::tpch;

/// A read.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Start, in seconds.
    pub at_s: f64,
    /// The host that reads.
    pub client: TopologyNode,
    /// The hosts that have a copy, the primary first.
    pub copies: [TopologyNode; 3],
    /// Length in bytes.
    pub bytes: u64,
}

/// The rule that places the copies of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The second copy is in another rack of the primary's pod, and the third copy in another pod:
    /// the workload of the thesis.
    Spread,
    /// The second copy is in the rack of the primary, and the third copy in any other rack: the
    /// rule of HDFS and of the thesis' prototype.
    Rack,
}

/// Distances of clients from the primary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Locality {
    /// Share of clients in the primary's rack.
    pub rack: f64,
    /// Share of clients in other racks of the primary's pod. The remaining clients are in other
    /// pods.
    pub pod: f64,
}

/// Parameters of the workload.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadLoad {
    /// Reads that begin per second and host.
    pub rate: f64,
    /// Number of reads.
    pub reads: usize,
    /// Length of each read, or of a block.
    pub bytes: u64,
    /// The scale factor of TPC-H whose queries read ([`tpch`]); `None` for the workload of the
    /// thesis, of which the next two fields are.
    pub queries: Option<u64>,
    /// Number of files, which are read by Zipf's law.
    pub files: usize,
    /// Skewness of Zipf's law.
    pub skewness: f64,
    /// Distances of clients from the primary.
    pub locality: Locality,
    /// Placement of copies.
    pub placement: Placement,
}

/// A random host among the hosts for which `fits` holds.
pub(super) fn host(
    prng: &mut Prng,
    spec: &ThreeTier,
    fits: impl Fn(TopologyNode) -> bool,
) -> TopologyNode {
    let hosts: Vec<_> =
        (0..spec.host_count()).map(TopologyNode).filter(|&host| fits(host)).collect();
    hosts[prng.below(hosts.len() as u64) as usize]
}

/// Random hosts for the three copies of a file, the primary first.
pub(super) fn place(prng: &mut Prng, spec: &ThreeTier, placement: Placement) -> [TopologyNode; 3] {
    let primary = host(prng, spec, |_| true);
    let (rack, pod) = (spec.rack_of(primary), spec.pod_of(primary));
    let second = host(prng, spec, |host| match placement {
        Placement::Spread => spec.pod_of(host) == pod && spec.rack_of(host) != rack,
        Placement::Rack => spec.rack_of(host) == rack && host != primary,
    });
    let third = host(prng, spec, |host| match placement {
        Placement::Spread => spec.pod_of(host) != pod,
        Placement::Rack => spec.rack_of(host) != rack,
    });
    [primary, second, third]
}

/// A client at the drawn distance from the primary. A host with a copy is never drawn, because it
/// would read its own disk without the network.
pub(super) fn client(
    prng: &mut Prng,
    spec: &ThreeTier,
    locality: Locality,
    copies: &[TopologyNode],
) -> TopologyNode {
    let (rack, pod) = (spec.rack_of(copies[0]), spec.pod_of(copies[0]));
    let draw = prng.unit();
    host(prng, spec, |host| {
        let distant = if draw < locality.rack {
            spec.rack_of(host) == rack
        } else if draw < locality.rack + locality.pod {
            spec.pod_of(host) == pod && spec.rack_of(host) != rack
        } else {
            spec.pod_of(host) != pod
        };
        distant && !copies.contains(&host)
    })
}

/// Draws the reads, ordered by time.
pub fn jobs(spec: &ThreeTier, load: &ReadLoad, seed: u64) -> Vec<Job> {
    if let Some(factor) = load.queries {
        return tpch::jobs(spec, load, factor, seed);
    }
    let mut root = Prng::new(seed);
    let [mut places, mut times, mut choices] = [1, 2, 3].map(|part| root.fork(part));
    let files: Vec<_> = (0..load.files).map(|_| place(&mut places, spec, load.placement)).collect();
    let mut sums = Vec::with_capacity(load.files);
    let mut sum = 0.0;
    for rank in 1..=load.files {
        sum += math::pow(rank as f64, -load.skewness);
        sums.push(sum);
    }
    let gap_s = 1.0 / (load.rate * f64::from(spec.host_count()));
    let mut at_s = 0.0;
    let mut job = |_| {
        at_s += times.exponential(gap_s);
        let draw = choices.unit() * sum;
        let copies = files[sums.partition_point(|&below| below <= draw).min(load.files - 1)];
        let client = client(&mut choices, spec, load.locality, &copies);
        Job { at_s, client, copies, bytes: load.bytes }
    };
    (0..load.reads).map(&mut job).collect()
}

/// A background flow: a flow that belongs to no read.
#[derive(Clone, Debug, PartialEq)]
pub struct Stranger {
    /// Start, in seconds.
    pub at_s: f64,
    /// The host that sends.
    pub from: TopologyNode,
    /// The host that receives.
    pub to: TopologyNode,
    /// Length in bytes.
    pub bytes: u64,
}

/// Draws background flows until `until_s`, ordered by time. Sizes follow N(96, 64) MB, cut to
/// 32..256 MB. Two tenths of the flows stay in their rack, three tenths in their pod, and five
/// tenths leave the pod (thesis, 3.4.7).
pub fn strangers(spec: &ThreeTier, rate: f64, until_s: f64, seed: u64) -> Vec<Stranger> {
    let mut prng = Prng::new(seed).fork(4);
    let gap_s = 1.0 / (rate * f64::from(spec.host_count()));
    let mut at_s = 0.0;
    let mut all = Vec::new();
    loop {
        at_s += prng.exponential(gap_s);
        if at_s >= until_s {
            return all;
        }
        let from = host(&mut prng, spec, |_| true);
        let to = client(&mut prng, spec, Locality { rack: 0.2, pod: 0.3 }, &[from]);
        let bytes = loop {
            let drawn = 96e6 + 64e6 * prng.normal();
            if (32e6..=256e6).contains(&drawn) {
                break drawn as u64;
            }
        };
        all.push(Stranger { at_s, from, to, bytes });
    }
}

/// A time in which a host sends nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hang {
    /// The host.
    pub host: TopologyNode,
    /// When the host falls silent, in seconds.
    pub at_s: f64,
    /// When the host sends again.
    pub until_s: f64,
}

/// Draws hangs until `until_s`, ordered by their begin. Each host falls silent `rate` times a
/// second, for `hang_s` in the mean.
pub fn hangs(spec: &ThreeTier, rate: f64, hang_s: f64, until_s: f64, seed: u64) -> Vec<Hang> {
    let mut prng = Prng::new(seed).fork(5);
    let gap_s = 1.0 / (rate * f64::from(spec.host_count()));
    let (mut at_s, mut all) = (0.0, Vec::<Hang>::new());
    loop {
        at_s += prng.exponential(gap_s);
        if at_s >= until_s {
            return all;
        }
        let host = host(&mut prng, spec, |_| true);
        let end_s = at_s + prng.exponential(hang_s);
        if all.iter().all(|hang| hang.host != host || hang.until_s < at_s) {
            all.push(Hang { host, at_s, until_s: end_s });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_have_the_rate_the_distances_and_the_skewness_asked_for() {
        let spec = ThreeTier::thesis(2.0, 8.0);
        let load = ReadLoad {
            rate: 0.1,
            reads: 50_000,
            bytes: 128_000_000,
            queries: None,
            files: 10_000,
            skewness: 1.1,
            locality: Locality { rack: 0.5, pod: 0.3 },
            placement: Placement::Spread,
        };
        let jobs = jobs(&spec, &load, 1);
        let rate = jobs.len() as f64 / jobs[jobs.len() - 1].at_s;
        assert!((rate / 6.4 - 1.0).abs() < 0.02, "{rate}");
        let near = |job: &&Job| spec.rack_of(job.client) == spec.rack_of(job.copies[0]);
        let near = jobs.iter().filter(near).count() as f64 / jobs.len() as f64;
        assert!((near - 0.5).abs() < 0.01, "{near}");
        let mut counts = std::collections::BTreeMap::new();
        for job in &jobs {
            *counts.entry(job.copies).or_insert(0u32) += 1;
            assert!(!job.copies.contains(&job.client));
        }
        let most = f64::from(*counts.values().max().expect("a file")) / jobs.len() as f64;
        // The expected share is 1 divided by the sum of rank^-1.1 over 10,000 ranks.
        assert!((most - 0.151).abs() < 0.01, "{most}");
    }
}
