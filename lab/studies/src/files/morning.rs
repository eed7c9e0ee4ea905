//! A backtest's morning: eight hosts begin to read the same recorded day at once.
//!
//! The day has three copies, so all bytes leave by the links of three hosts. A policy that reads
//! the nearest copy may send all hosts to the same one. The study compares the policies by the
//! times of the reads and by the work of the links. The load of a link is its bytes divided by its
//! capacity: the seconds for which the link would work at its full rate.

use std::fmt::Write as _;

use evenfall_campaigns::seeds::{in_parallel, mean_and_half_width};
use evenfall_core::Prng;
use evenfall_core::statistics::mean;
use evenfall_files_flow::{ThreeTier, TopologyNode};

use crate::files::scene::ReadPlan;
use crate::files::workload::{self, Job, Placement};
use crate::files::{ReadParams, Steering, bound, fluids};
use crate::tables::Table;

/// Hosts that read the day.
pub const READERS: usize = 8;
/// Bytes of the day: the compressed file of all NASDAQ messages of 2019-01-30, as its publisher
/// packed it. It has 368,366,634 messages.
pub const DAY_BYTES: u64 = 4_764_426_091;
/// All hosts begin within this time, in seconds.
const BEGIN_WITHIN_S: f64 = 1.0;

/// The tiers of the network, and how many links of each one the picture shows.
const TIERS: [(&str, usize); 3] = [("hosts", 12), ("racks to pods", 16), ("pods to cores", 16)];

/// Results of one policy; each list has one value per seed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Mean time of the eight reads, seconds.
    pub mean_s: Vec<f64>,
    /// Time of the slowest read, seconds. Of eight values, it is also the 95th percentile.
    pub last_s: Vec<f64>,
    /// Load of the link with the highest load, seconds of full rate.
    pub peak_s: Vec<f64>,
    /// Share of reads from two copies.
    pub divided: Vec<f64>,
    /// Lower bound on the mean time, seconds.
    pub bound_s: Vec<f64>,
    /// For each tier, the loads of its links in seconds of full rate, the highest first: the mean
    /// over the seeds of the first link, of the second link, and so on.
    pub loads_s: [Vec<f64>; 3],
}

/// The results of all policies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Morning {
    /// The policies, by name.
    pub rows: Vec<(&'static str, Row)>,
    /// The first seed and the number of seeds.
    pub seeds: (u64, u64),
}

/// One run of one policy.
struct Run {
    times_s: Vec<f64>,
    divided: usize,
    bound_s: f64,
    loads_s: [Vec<f64>; 3],
}

/// The eight reads of a seed, ordered by time.
fn reads(spec: &ThreeTier, seed: u64) -> Vec<Job> {
    let mut prng = Prng::new(seed);
    let copies = workload::place(&mut prng, spec, Placement::Spread);
    let mut clients: Vec<TopologyNode> = Vec::new();
    while clients.len() < READERS {
        let fits = |host| !copies.contains(&host) && !clients.contains(&host);
        clients.push(workload::host(&mut prng, spec, fits));
    }
    let mut begins: Vec<f64> = clients.iter().map(|_| prng.unit() * BEGIN_WITHIN_S).collect();
    begins.sort_by(f64::total_cmp);
    let job = |(client, at_s)| Job { at_s, client, copies, bytes: DAY_BYTES };
    clients.into_iter().zip(begins).map(job).collect()
}

/// A lower bound on the mean time of these reads, in seconds, that no policy can beat.
///
/// A read takes its bytes over the link of its client. When the k-th read ends, the bytes of k
/// reads have left by the links of the copies' hosts. The bound of [`bound::mean_s`] counts the
/// links into racks and pods instead, and the larger of both holds.
fn bound_s(spec: &ThreeTier, jobs: &[Job]) -> f64 {
    let alone_s = DAY_BYTES as f64 / spec.host_bytes_per_s;
    let copies = jobs.first().map_or(1, |job| job.copies.len());
    let first_s = jobs.first().map_or(0.0, |job| job.at_s);
    let time = |(before, job): (usize, &Job)| {
        let left_s = first_s + (before + 1) as f64 * alone_s / copies as f64;
        left_s.max(job.at_s + alone_s) - job.at_s
    };
    let times: Vec<f64> = jobs.iter().enumerate().map(time).collect();
    mean(&times).unwrap_or(0.0).max(bound::mean_s(spec, jobs))
}

fn run(steering: Steering, seed: u64) -> Run {
    let ReadParams { spec, interval, part_bytes, .. } = ReadParams::default();
    let jobs = reads(&spec, seed);
    let mut policy = steering.policy(&spec, interval, seed);
    let (setup, strangers) = (steering.setup(), &[][..]);
    let (spec, jobs, hangs, seen) = (&spec, &jobs, &[][..], false);
    let plan = ReadPlan { spec, jobs, strangers, hangs, seen, setup, part_bytes, seed };
    let times = fluids::run(plan, policy.as_mut());
    let (topology, hosts) = (spec.build(), spec.host_count());
    let mut loads_s = [const { Vec::new() }; 3];
    for (link, bytes) in topology.links().iter().zip(&times.carried) {
        // Hosts have the first numbers, and cores the next ones.
        let tier = match link.from.0.min(link.to.0) {
            node if node < hosts => 0,
            node if node < hosts + spec.cores => 2,
            _ => 1,
        };
        loads_s[tier].push(bytes / link.bytes_per_s);
    }
    loads_s.iter_mut().for_each(|loads| loads.sort_by(|one, other| other.total_cmp(one)));
    let bound_s = bound_s(spec, jobs);
    Run { times_s: times.reads_s, divided: times.divided, bound_s, loads_s }
}

impl Row {
    fn take(&mut self, run: &Run, seeds: f64) {
        let most = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
        self.mean_s.push(mean(&run.times_s).unwrap_or(f64::NAN));
        self.last_s.push(most(&mut run.times_s.iter().copied()));
        self.peak_s.push(most(&mut run.loads_s.iter().flatten().copied()));
        self.divided.push(run.divided as f64 / run.times_s.len() as f64);
        self.bound_s.push(run.bound_s);
        for (sums, loads) in self.loads_s.iter_mut().zip(&run.loads_s) {
            sums.resize(loads.len(), 0.0);
            sums.iter_mut().zip(loads).for_each(|(sum, load)| *sum += load / seeds);
        }
    }
}

impl Morning {
    /// Runs every policy under the seeds `first..first + seeds`.
    pub fn of(first: u64, seeds: u64, progress: &mut dyn FnMut(&str)) -> Self {
        let mut rows = Vec::new();
        for (name, steering) in Steering::ALL {
            progress(&format!("morning: {name}"));
            let mut row = Row::default();
            for run in in_parallel(first, seeds, |seed| run(steering, seed), |_| {}) {
                row.take(&run, seeds as f64);
            }
            rows.push((name, row));
        }
        Self { rows, seeds: (first, seeds) }
    }

    /// The table of the study.
    pub fn table(&self, title: &str) -> Table {
        let (first, seeds) = self.seeds;
        let method = format!("Seeds {first} to {}; columns +- are 95 % by t.", first + seeds - 1);
        let columns = ["policy", "mean", "+-", "p95", "+-", "busiest link", "+-", "two copies"];
        let mut table = Table::new(title, method, &columns);
        let mut bound = None;
        for (name, row) in &self.rows {
            let [mean, last, peak] =
                [&row.mean_s, &row.last_s, &row.peak_s].map(|values| mean_and_half_width(values));
            let divided = mean_and_half_width(&row.divided).0;
            let values = [mean.0, mean.1, last.0, last.1, peak.0, peak.1, divided];
            table.row((*name).to_owned(), values);
            bound = Some(mean_and_half_width(&row.bound_s));
        }
        let (mean, half) = bound.unwrap_or_default();
        table.row("bound".to_owned(), [mean, half].into_iter().chain([None; 5]));
        table
    }

    /// A picture of the loads of links: a row for each policy, a cell for each link, the busiest
    /// links of a tier first. Darker cells have more load.
    pub fn svg(&self) -> String {
        let all = self.rows.iter().flat_map(|(_, row)| row.loads_s.iter().flatten());
        let most = all.copied().fold(1e-9, f64::max);
        let tier_x = |tier: usize| {
            let before = &TIERS[..tier];
            LEFT + before.iter().map(|(_, cells)| *cells as f64 * CELL + GAP).sum::<f64>()
        };
        let (width, height) = (tier_x(3) + RIGHT, TOP + self.rows.len() as f64 * LINE + BOTTOM);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{width}\" \
             height=\"{height}\" fill=\"white\"/>\n<text x=\"10\" y=\"18\">Load of the busiest \
             links, seconds of full rate, by policy</text>\n"
        );
        // Writing to a string cannot fail.
        for (tier, (name, cells)) in TIERS.iter().enumerate() {
            let (x, y) = (tier_x(tier), TOP - 8.0);
            let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\">{name}: {cells} busiest</text>");
        }
        let (x, y) = (tier_x(3), TOP - 8.0);
        let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\">mean read</text>");
        for (at, (name, row)) in self.rows.iter().enumerate() {
            let y = TOP + at as f64 * LINE;
            let (text_y, name_x) = (y + 15.0, LEFT - 8.0);
            let _ = writeln!(
                out,
                "<text x=\"{name_x}\" y=\"{text_y}\" text-anchor=\"end\">{name}</text>"
            );
            for (tier, loads) in row.loads_s.iter().enumerate() {
                for (cell, load) in loads.iter().take(TIERS[tier].1).enumerate() {
                    drawn(&mut out, tier_x(tier) + cell as f64 * CELL, y, *load, most);
                }
            }
            let mean_s = mean(&row.mean_s).unwrap_or(f64::NAN);
            let _ = writeln!(out, "<text x=\"{x}\" y=\"{text_y}\">{mean_s:.0} s</text>");
        }
        scale(&mut out, TOP + self.rows.len() as f64 * LINE + 14.0, most);
        out.push_str("</svg>\n");
        out
    }
}

/// Sizes of the picture, in units of the SVG: a cell, a row, the space between tiers, and the
/// margins.
const CELL: f64 = 11.0;
const LINE: f64 = 22.0;
const GAP: f64 = 18.0;
const LEFT: f64 = 130.0;
const RIGHT: f64 = 80.0;
const TOP: f64 = 52.0;
const BOTTOM: f64 = 44.0;
/// Cells of the scale below the picture.
const STEPS: u32 = 10;

/// A cell whose colour goes from near white to dark blue with the load.
fn drawn(out: &mut String, x: f64, y: f64, load: f64, most: f64) {
    let part = load / most;
    let [red, green, blue] = [(244.0, 8.0), (248.0, 48.0), (252.0, 107.0)]
        .map(|(low, high)| (low + (high - low) * part).round() as u8);
    let (wide, tall) = (CELL - 1.0, LINE - 2.0);
    let _ = writeln!(
        out,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{wide}\" height=\"{tall}\" \
         fill=\"#{red:02x}{green:02x}{blue:02x}\"><title>{load:.1} s</title></rect>"
    );
}

/// The scale of the colours.
fn scale(out: &mut String, y: f64, most: f64) {
    for step in 0..=STEPS {
        let load = most * f64::from(step) / f64::from(STEPS);
        drawn(out, LEFT + f64::from(step) * CELL, y, load, most);
    }
    let (zero_x, most_x, text_y) = (LEFT - 8.0, LEFT + f64::from(STEPS + 1) * CELL + 4.0, y + 15.0);
    let _ = writeln!(
        out,
        "<text x=\"{zero_x}\" y=\"{text_y}\" text-anchor=\"end\">0</text>\n\
         <text x=\"{most_x}\" y=\"{text_y}\">{most:.0} s</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_ends_the_eight_reads_carries_each_byte_once_and_keeps_the_bound() {
        let least_s = DAY_BYTES as f64 / ReadParams::default().spec.host_bytes_per_s;
        for (name, steering) in Steering::ALL {
            let run = run(steering, 3);
            assert_eq!(run.times_s.len(), READERS);
            assert!(run.times_s.iter().all(|time| *time >= least_s), "{name}: {:?}", run.times_s);
            let mean_s = mean(&run.times_s).expect("eight reads");
            assert!(mean_s >= run.bound_s, "{name}: {mean_s} below the bound {}", run.bound_s);
            // Each byte leaves one host and comes to one host.
            let carried_s: f64 = run.loads_s[0].iter().sum();
            let asked_s = 2.0 * READERS as f64 * least_s;
            assert!((carried_s / asked_s - 1.0).abs() < 1e-6, "{name}: {carried_s}");
        }
    }

    #[test]
    fn the_bound_of_reads_that_begin_together_is_the_work_of_the_three_copies() {
        let spec = ReadParams::default().spec;
        let mut jobs = reads(&spec, 1);
        jobs.iter_mut().for_each(|job| job.at_s = 0.0);
        let alone_s = DAY_BYTES as f64 / spec.host_bytes_per_s;
        let thirds: u32 = (1..=READERS as u32).map(|k| k.max(3)).sum();
        let least_s = alone_s * f64::from(thirds) / 3.0 / READERS as f64;
        assert!(bound_s(&spec, &jobs) >= least_s * (1.0 - 1e-9));
    }

    #[test]
    fn the_picture_has_a_row_for_each_policy() {
        let morning = Morning::of(1, 2, &mut |_| {});
        let drawing = morning.svg();
        for (name, _) in Steering::ALL {
            assert!(drawing.contains(&format!(">{name}</text>")), "{name}");
        }
        assert!(!drawing.contains("NaN"), "{drawing}");
        assert_eq!(morning.table("t").rows.len(), Steering::ALL.len() + 1);
    }
}
