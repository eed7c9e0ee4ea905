//! A lower bound on the mean time of the reads of a run, which no policy can beat.
//!
//! Every read crosses the link of its client. A read without a copy in its client's rack also
//! crosses the links into the rack, and a read without a copy in the pod crosses the links into the
//! pod. The bound treats each of these bundles as a single link that serves only its own reads. The
//! link serves the read with the fewest bytes left first, which is the best order on a single link
//! (Schrage, 1968). No schedule of the whole network gives the reads of the bundle a smaller sum of
//! times.
//!
//! Each read counts in one bundle, so the sum over the bundles is a bound. The reads of a rack or
//! pod can be divided among bundles in several ways, and the division with the largest sum is
//! taken. The links of the copies' hosts are left out, because any of three hosts may serve a read.
//! The true optimum therefore lies above the bound.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use evenfall_files_flow::ThreeTier;

use crate::files::workload::Job;

/// The sum of the times of all reads on one link that serves the read with the fewest bytes left
/// first.
fn shortest_first(jobs: &[&Job], bytes_per_s: f64) -> f64 {
    let mut waiting: BinaryHeap<Reverse<(u64, u64)>> = BinaryHeap::new();
    let (mut now, mut sum) = (0.0_f64, 0.0);
    let mut next = 0;
    // The heap orders whole nanoseconds, because floating-point numbers have no total order.
    while next < jobs.len() || !waiting.is_empty() {
        if waiting.is_empty() {
            now = now.max(jobs[next].at_s);
        }
        while next < jobs.len() && jobs[next].at_s <= now {
            let left_ns = (jobs[next].bytes as f64 / bytes_per_s * 1e9) as u64;
            waiting.push(Reverse((left_ns, next as u64)));
            next += 1;
        }
        let Some(Reverse((left_ns, number))) = waiting.pop() else { continue };
        let end = now + left_ns as f64 / 1e9;
        match jobs.get(next).filter(|job| job.at_s < end) {
            Some(job) => {
                let served = ((job.at_s - now) * 1e9) as u64;
                now = job.at_s;
                waiting.push(Reverse((left_ns.saturating_sub(served), number)));
            }
            None => {
                now = end;
                sum += end - jobs[number as usize].at_s;
            }
        }
    }
    sum
}

/// The lower bound on the mean time of these reads, in seconds.
pub fn mean_s(spec: &ThreeTier, jobs: &[Job]) -> f64 {
    let rack_bytes_per_s = spec.rack_bytes_per_s * f64::from(spec.aggs);
    let pod_bytes_per_s = spec.core_bytes_per_s * f64::from(spec.aggs * spec.cores);
    let clients = |jobs: &[&Job]| -> f64 {
        let of = |host: u32| jobs.iter().copied().filter(move |job| job.client.0 == host);
        let hosts = (0..spec.host_count()).map(|host| of(host).collect::<Vec<_>>());
        hosts.map(|jobs| shortest_first(&jobs, spec.host_bytes_per_s)).sum()
    };
    let racks = |jobs: &[&Job]| -> f64 {
        let mut sum = 0.0;
        for rack in 0..spec.pods * spec.racks {
            let own = jobs.iter().copied().filter(|job| spec.rack_of(job.client) == rack);
            let own: Vec<&Job> = own.collect();
            let inside = |job: &&Job| job.copies.iter().any(|&copy| spec.rack_of(copy) == rack);
            let (near, far): (Vec<&Job>, Vec<&Job>) = own.iter().copied().partition(inside);
            let divided = clients(&near) + shortest_first(&far, rack_bytes_per_s);
            sum += divided.max(clients(&own));
        }
        sum
    };
    let mut sum = 0.0;
    for pod in 0..spec.pods {
        let own: Vec<&Job> = jobs.iter().filter(|job| spec.pod_of(job.client) == pod).collect();
        let inside = |job: &&Job| job.copies.iter().any(|&copy| spec.pod_of(copy) == pod);
        let (near, far): (Vec<&Job>, Vec<&Job>) = own.iter().copied().partition(inside);
        let divided = racks(&near) + shortest_first(&far, pod_bytes_per_s);
        sum += divided.max(racks(&own));
    }
    sum / jobs.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenfall_files_flow::TopologyNode;

    fn job(at_s: f64, client: u32, copies: [u32; 3], bytes: u64) -> Job {
        Job { at_s, client: TopologyNode(client), copies: copies.map(TopologyNode), bytes }
    }

    #[test]
    fn the_shortest_rest_goes_first() {
        let long = job(0.0, 0, [1, 5, 40], 250_000_000);
        let short = job(1.0, 0, [1, 5, 40], 62_500_000);
        // The short read starts at once and takes .5 s. The long read ends after 2.5 s.
        assert!((shortest_first(&[&long, &short], 125e6) - 3.0).abs() < 1e-6);
    }

    #[test]
    fn a_lone_read_takes_the_time_of_its_clients_link() {
        let spec = ThreeTier::thesis(2.0, 8.0);
        let jobs = [job(0.0, 0, [1, 5, 40], 125_000_000)];
        assert!((mean_s(&spec, &jobs) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn reads_from_beyond_the_pod_share_the_links_into_it() {
        let spec = ThreeTier::thesis(2.0, 32.0);
        // 16 hosts of pod 0 read from pod 2 over 4 links of 125 Mb/s.
        let jobs: Vec<_> = (0..16).map(|host| job(0.0, host, [32, 36, 48], 62_500_000)).collect();
        let mean = mean_s(&spec, &jobs);
        assert!((mean - 17.0 / 2.0).abs() < 1e-6, "one second each, one by one: {mean}");
    }
}
