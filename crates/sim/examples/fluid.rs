//! What fluid flows cost: bulk reads among 64 hosts, at light and at heavy load.
//!
//! `cargo run --release -p evenfall-sim --example fluid`

use std::time::Instant;

use evenfall_core::Prng;
use evenfall_sim::{Fluid, FluidLink, SimTime};

/// Reads of a run.
const READS: usize = 100_000;
/// 64 hosts in 16 racks, each rack with two links up and two down.
const HOSTS: u64 = 64;
const RACK_HOSTS: u64 = 4;

/// Host up, rack up, rack down, host down.
fn path(prng: &mut Prng) -> Vec<FluidLink> {
    let from = prng.below(HOSTS);
    let to = (from + 1 + prng.below(HOSTS - 1)) % HOSTS;
    let [up, down] = [from, to].map(|host| host / RACK_HOSTS);
    let spine = prng.below(2);
    let mut links = vec![from];
    if up != down {
        links.extend([2 * HOSTS + 2 * up + spine, 2 * HOSTS + 32 + 2 * down + spine]);
    }
    links.push(HOSTS + to);
    links.into_iter().map(|link| FluidLink(link as u32)).collect()
}

#[expect(clippy::disallowed_methods, reason = "this program measures wall time")]
fn main() {
    for gap_s in [0.16, 0.08, 0.055] {
        let (mut fluid, mut prng) = (Fluid::new(), Prng::new(1));
        for link in 0..2 * HOSTS + 64 {
            fluid.link(if link < 2 * HOSTS { 125_000_000 } else { 62_500_000 });
        }
        let (begun, mut at, mut most) = (Instant::now(), 0.0, 0);
        for _ in 0..READS {
            at += prng.exponential(gap_s * 1e9);
            let now = SimTime::from_nanos(at as u64);
            while let Some((end, flow)) = fluid.next_end().filter(|(end, _)| *end <= now) {
                fluid.stop(end, flow);
            }
            fluid.start(now, &path(&mut prng), 128_000_000);
            most = most.max(fluid.len());
        }
        let seconds = begun.elapsed().as_secs_f64();
        println!("{READS} reads, {:.1}/s, up to {most} at once: {seconds:.2} s", 1.0 / gap_s);
    }
}
