//! The figures of chapter 6 that show a shuffle over time: 6.2, 6.3, 6.4 and 6.9.
//!
//! Time is divided by the least time that the links allow, so that shuffles of different seeds can
//! be laid over each other. The thesis shows one workload. In our figures each point has one value
//! per seed.

use core::fmt;
use std::collections::BTreeMap;

use evenfall_campaigns::shuffle::rivals::ShuffleRival;
use evenfall_campaigns::shuffle::scene::{ShuffleParams, timeline};
use evenfall_campaigns::shuffle::unfinished::Unfinished;
use evenfall_campaigns::shuffle::watch::ShuffleSample;

use super::curves::Curves;
use super::study::{HADOOPS, Setup, ShuffleRun, randomised};

/// Samples in the least time that the links allow.
const SAMPLES_PER_BOUND: u32 = 20;
/// Samples in all. The slowest rival takes twice the least time.
const SAMPLES: usize = 40;
/// The first word of a record, by which it differs from the records of [`super::study`].
const WORD: &str = "course";

/// Seeds whose workloads at skewness .5 have a mean of 34 to 69 messages for each node. The
/// workload of figures 6.2b, 6.3 and 6.4 seems to have as many: at a quarter of the time, its
/// receivers have 5 to 95 messages left. Of seeds 1 to 20, all but one have 6 to 13 messages for
/// each node.
const DENSE: [u64; 5] = [20, 62, 97, 125, 141];

/// The part of a sample that a figure shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The share of time in which uplinks are busy.
    Uplinks,
    /// The share of messages that are complete.
    Completed,
    /// Messages that a node receives: the fewest, the median, the most.
    Incoming(usize),
    /// Messages that a node sends: the fewest, the median, the most.
    Outgoing(usize),
}

/// Parts in the order of a record's numbers.
const PARTS: [Part; 8] = [
    Part::Uplinks,
    Part::Completed,
    Part::Incoming(0),
    Part::Incoming(1),
    Part::Incoming(2),
    Part::Outgoing(0),
    Part::Outgoing(1),
    Part::Outgoing(2),
];

impl Part {
    fn of(self, sample: &ShuffleSample) -> f64 {
        match self {
            Self::Uplinks => sample.uplinks,
            Self::Completed => sample.completed,
            Self::Incoming(which) => sample.incoming[which] as f64,
            Self::Outgoing(which) => sample.outgoing[which] as f64,
        }
    }

    /// The value of this part after the end of a run.
    fn after(self) -> f64 {
        if self == Self::Completed { 1.0 } else { 0.0 }
    }
}

/// A finished run, sample by sample.
#[derive(Clone, Debug, PartialEq)]
pub struct ShuffleTimeline {
    /// [`ShuffleRun::key`].
    pub key: String,
    samples: Vec<[f64; PARTS.len()]>,
}

impl ShuffleTimeline {
    /// Runs the simulation and collects its samples.
    ///
    /// # Errors
    /// As [`timeline`].
    pub fn run(run: &ShuffleRun) -> Result<Self, Unfinished> {
        let params = run.params();
        let sample_every = Some(params.shortest() / SAMPLES_PER_BOUND);
        let (_, samples) = timeline(&ShuffleParams { sample_every, ..params })?;
        let samples = samples.iter().take(SAMPLES).map(|s| PARTS.map(|part| part.of(s)));
        Ok(Self { key: run.key(), samples: samples.collect() })
    }

    /// Reads a line. Returns `None` when the line is not a record of this kind.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let key: Vec<&str> = words.by_ref().take(3).collect();
        if words.next() != Some(WORD) {
            return None;
        }
        let samples: usize = words.next()?.parse().ok()?;
        let numbers: Vec<f64> = words.map_while(|word| word.parse().ok()).collect();
        let samples = (numbers.len() == samples * PARTS.len()).then_some(numbers)?;
        let samples = samples.chunks_exact(PARTS.len()).filter_map(|s| s.try_into().ok());
        Some(Self { key: key.join(" "), samples: samples.collect() })
    }
}

impl fmt::Display for ShuffleTimeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {WORD} {}", self.key, self.samples.len())?;
        let mut numbers = self.samples.iter().flatten();
        // Three digits are enough for a drawing. Counts are whole numbers.
        numbers.try_for_each(|value| write!(f, " {}", (value * 1e3).round() / 1e3))
    }
}

/// A figure over time.
#[derive(Clone, Debug)]
pub struct CourseFigure {
    /// The number of the figure, such as `6.2b`.
    pub number: &'static str,
    title: &'static str,
    skewness_percent: u32,
    /// Whether the seeds are those of [`DENSE`]. Otherwise seeds count from 1.
    dense: bool,
    curves: Vec<(String, Setup, Part)>,
}

impl CourseFigure {
    fn seeds(&self, runs: u64) -> Vec<u64> {
        let dense = DENSE.into_iter().take(runs as usize);
        if self.dense { dense.collect() } else { (1..=runs).collect() }
    }

    /// The runs of the figure, ordered by seed.
    pub fn runs(&self, runs: u64) -> Vec<ShuffleRun> {
        let skewness_percent = self.skewness_percent;
        let of = |seed| {
            self.curves.iter().map(move |&(_, setup, _)| ShuffleRun {
                setup,
                skewness_percent,
                seed,
            })
        };
        self.seeds(runs).into_iter().flat_map(of).collect()
    }

    /// The curves of the figure, made from the records that exist.
    pub fn curves(&self, runs: u64, records: &[ShuffleTimeline]) -> Curves {
        let by_key: BTreeMap<&str, &ShuffleTimeline> =
            records.iter().map(|r| (r.key.as_str(), r)).collect();
        let skewness_percent = self.skewness_percent;
        let curve = |&(ref name, setup, part): &(String, Setup, Part)| {
            let number = PARTS.iter().position(|&p| p == part).unwrap_or(0);
            let found = self.seeds(runs).into_iter().filter_map(|seed| {
                by_key.get(ShuffleRun { setup, skewness_percent, seed }.key().as_str()).copied()
            });
            let found: Vec<&ShuffleTimeline> = found.collect();
            let value = |course: &ShuffleTimeline, at: usize| {
                course.samples.get(at).map_or(part.after(), |sample| sample[number])
            };
            let points = (0..SAMPLES).map(|at| found.iter().map(|c| value(c, at)).collect());
            (name.clone(), points.collect())
        };
        Curves {
            number: self.number,
            title: self.title,
            x: "time over the best",
            at: (1..=SAMPLES).map(|at| at as f64 / f64::from(SAMPLES_PER_BOUND)).collect(),
            worst: 10,
            curves: self.curves.iter().map(curve).collect(),
        }
    }
}

/// The figures, in the order of the thesis.
pub fn figures() -> Vec<CourseFigure> {
    let quiet = |rival: ShuffleRival| (rival.to_string(), Setup::new(160, 16, rival));
    let all = || {
        HADOOPS
            .map(|c| quiet(ShuffleRival::Hadoop(c)))
            .into_iter()
            .chain([quiet(ShuffleRival::Grpf)])
    };
    let one = |part| all().map(move |(name, setup)| (name, setup, part)).collect::<Vec<_>>();
    let figure = |number, title, skewness_percent, curves| CourseFigure {
        number,
        title,
        skewness_percent,
        dense: false,
        curves,
    };
    let dense = |figure| CourseFigure { dense: true, ..figure };
    let spread = |of: fn(usize) -> Part| {
        let few =
            [ShuffleRival::Hadoop(10), ShuffleRival::Hadoop(1000), ShuffleRival::Grpf].map(quiet);
        let words = ["fewest", "median", "most"];
        let curves = few.into_iter().flat_map(move |(name, setup)| {
            [0, 1, 2].map(|which| (format!("{name}, {}", words[which]), setup, of(which)))
        });
        curves.collect::<Vec<_>>()
    };
    let [_, even, random] = randomised();
    let chance = || {
        let curves = [("without chance", even), ("with chance", random)];
        curves.map(|(name, setup)| (name.to_owned(), setup, Part::Uplinks)).to_vec()
    };
    vec![
        figure("6.2a", "uplinks busy, skewness .05", 5, one(Part::Uplinks)),
        dense(figure("6.2b", "uplinks busy, skewness .5", 50, one(Part::Uplinks))),
        figure("6.2s", "the same, few messages for each node", 50, one(Part::Uplinks)),
        figure("6.2c", "uplinks busy, skewness .95", 95, one(Part::Uplinks)),
        dense(figure("6.3", "messages completed, skewness .5", 50, one(Part::Completed))),
        dense(figure("6.4a", "messages to a node, skewness .5", 50, spread(Part::Incoming))),
        dense(figure("6.4b", "messages from a node, skewness .5", 50, spread(Part::Outgoing))),
        figure("6.9a", "uplinks busy by chance in priorities, skewness .05", 5, chance()),
        figure("6.9b", "the same, skewness .25", 25, chance()),
        figure("6.9c", "the same, skewness .5", 50, chance()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_course_that_was_written_reads_back_and_one_cut_off_does_not() {
        let setup = Setup::new(4, 8, ShuffleRival::Hadoop(2));
        let course = ShuffleTimeline::run(&ShuffleRun { setup, skewness_percent: 50, seed: 3 })
            .expect("runs");
        let line = course.to_string();
        assert_eq!(ShuffleTimeline::parse(&line).expect("a record").to_string(), line);
        assert_eq!(ShuffleTimeline::parse(&line[..line.len() - 40]), None);
        assert_eq!(super::super::study::Record::parse(&line), None);
    }

    #[test]
    fn a_receiver_of_two_works_on_two_until_all_is_there() {
        let setup = Setup::new(8, 20, ShuffleRival::Hadoop(2));
        let course = ShuffleTimeline::run(&ShuffleRun { setup, skewness_percent: 10, seed: 1 })
            .expect("runs");
        assert!(course.samples[4][4] <= 2.0, "{:?}", course.samples[4]);
        let last = course.samples.last().expect("samples");
        assert_eq!((last[1], last[4]), (1.0, 0.0));
    }

    #[test]
    fn senders_of_high_entropy_need_no_grants() {
        let setup = Setup::new(4, 8, ShuffleRival::Entropy);
        let course = ShuffleTimeline::run(&ShuffleRun { setup, skewness_percent: 0, seed: 1 })
            .expect("runs");
        assert_eq!(course.samples.last().expect("samples")[1], 1.0, "all messages are there");
    }
}
