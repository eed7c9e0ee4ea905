//! The tree that `plan live` and `plan lab` are asked for, and what is measured for it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use evenfall_placement_machine::job::MESH_HOSTS_MAX;
use evenfall_placement_machine::{Extent, ProbePace};
use evenfall_placement_planner::builder::{Racing, RootRule};
use evenfall_placement_planner::explorer::PAIRS_PER_HOST;
use evenfall_placement_planner::planner::{PlanMethod, Planner};
use evenfall_placement_planner::shapes::{COPY_US, ShapeSearch};
use evenfall_placement_planner::tree::TreeShape;
use humantime::parse_duration;

/// Fan-out of a tree whose depth is given alone.
const FANOUT: u16 = 2;

type Failed = Box<dyn std::error::Error>;

/// The value of `--depth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedDepth {
    /// The planner chooses the depth.
    Auto,
    /// This many hops.
    Hops(u8),
}

impl FromStr for WantedDepth {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => text.parse().map(Self::Hops).map_err(|_| "auto, or hops from 1 to 255".into()),
        }
    }
}

impl fmt::Display for WantedDepth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Hops(hops) => hops.fmt(f),
        }
    }
}

/// The wanted tree, and how its delays are measured.
#[derive(clap::Args, Clone, Debug)]
pub struct WantedTree {
    /// Hops from the root to a leaf, or auto: the depth and the fan-out whose tree costs least by
    /// the measured delays.
    #[arg(long, value_name = "HOPS|auto", default_value_t = WantedDepth::Hops(2))]
    pub depth: WantedDepth,
    /// Children of the root and of every inner node. Without it two, and with --depth auto what
    /// costs least.
    #[arg(long)]
    pub fanout: Option<u16>,
    /// With --depth auto: fewest leaves of the tree. Without it, the receivers of the file of
    /// --apply.
    #[arg(long)]
    pub receivers: Option<usize>,
    /// With --depth auto: time that a parent takes for each further copy, in microseconds.
    #[arg(long, value_name = "US", default_value_t = COPY_US)]
    pub copy_us: f64,
    /// Candidates for each parent's children, when parents are measured one by one. Without this
    /// option, twice the fan-out.
    #[arg(long)]
    pub candidates: Option<usize>,
    /// The planner. minmax, greedy and lemondrop measure all pairs. weighted, rand, p90 or another
    /// statistic of an edge (p50, p99, mean, stddev) measure parent by parent. Without this option:
    /// minmax for up to 512 agents, and weighted for more agents or with --candidates.
    #[arg(long, alias = "strategy")]
    pub method: Option<String>,
    /// The agent that is the root, by name or address.
    #[arg(long, conflicts_with = "roots")]
    pub root: Option<String>,
    /// Number of agents that are tried as root, when parents are measured one by one. The agent
    /// with the best reach is taken.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub roots: u32,
    /// Probes per second from a sender to each receiver.
    #[arg(long, value_name = "PROBES/S", default_value_t = 1_000)]
    pub rate: u32,
    /// Time in which probes count, in each whole measurement.
    #[arg(long, default_value = "1s", value_name = "DURATION", value_parser = parse_duration)]
    pub duration: Duration,
    /// Time before the measurement, in which probes warm the path up.
    #[arg(long, default_value = "100ms", value_name = "DURATION", value_parser = parse_duration)]
    pub warmup: Duration,
    /// Rounds of the measurement of a parent. A measurement ends early after the round in which the
    /// choice is clear. With 1, each measurement takes its whole time.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Measure every pair first, instead of parent by parent.
    #[arg(long)]
    pub all_to_all: bool,
    /// Measure at most this many pairs, chosen by the search of minmax. Without it, minmax measures
    /// every pair of up to 512 agents, and forty pairs per agent in larger pools.
    #[arg(long, conflicts_with = "all_to_all")]
    pub pairs: Option<u64>,
    /// Seed of the search. The same seed and the same delays give the same tree.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// The settings of a survey.
#[derive(Debug)]
pub struct WantedSurvey {
    /// What chooses the tree.
    pub planner: Planner,
    /// The pairs that are measured.
    pub extent: Extent,
    /// How probes are sent.
    pub pace: ProbePace,
    /// The search for a shape; `None` when the shape is given.
    pub shapes: Option<ShapeSearch>,
}

impl WantedTree {
    /// The arguments, as another process gets them.
    pub fn as_arguments(&self) -> Vec<String> {
        let mut all = vec![
            format!("--depth={}", self.depth),
            format!("--copy-us={}", self.copy_us),
            format!("--rate={}", self.rate),
            format!("--duration={}", humantime::format_duration(self.duration)),
            format!("--warmup={}", humantime::format_duration(self.warmup)),
            format!("--rounds={}", self.rounds),
            format!("--seed={}", self.seed),
        ];
        all.extend(self.fanout.map(|fanout| format!("--fanout={fanout}")));
        all.extend(self.receivers.map(|receivers| format!("--receivers={receivers}")));
        all.extend(self.method.as_ref().map(|method| format!("--method={method}")));
        all.extend(self.candidates.map(|candidates| format!("--candidates={candidates}")));
        all.push(match &self.root {
            Some(root) => format!("--root={root}"),
            None => format!("--roots={}", self.roots),
        });
        all.extend(self.all_to_all.then(|| "--all-to-all".to_owned()));
        all.extend(self.pairs.map(|pairs| format!("--pairs={pairs}")));
        all
    }

    /// The planner that is named, or min-max where all pairs can be measured.
    pub fn planner_for(&self, hosts: usize) -> Result<PlanMethod, String> {
        let is_small = hosts <= MESH_HOSTS_MAX && self.candidates.is_none();
        let usual = if is_small || self.pairs.is_some() { "minmax" } else { "weighted" };
        super::method(self.method.as_deref().unwrap_or(usual))
    }

    /// Why a large pool is measured otherwise than a small one, for a person who named no planner.
    pub fn note_of_large(&self, hosts: usize) -> Option<String> {
        let is_chosen = self.method.is_some() || self.candidates.is_some() || self.pairs.is_some();
        (!is_chosen && hosts > MESH_HOSTS_MAX).then(|| {
            format!(
                "{hosts} agents, more than {MESH_HOSTS_MAX}: planned parent by parent (weighted); \
                 --method minmax measures {PAIRS_PER_HOST} pairs an agent instead"
            )
        })
    }

    /// The search for a shape with --depth auto. `known` is the number of receivers of a feed.
    fn shape_search(
        &self,
        known: Option<usize>,
        hosts: usize,
    ) -> Result<Option<ShapeSearch>, String> {
        if self.depth != WantedDepth::Auto {
            return Ok(None);
        }
        let receivers = self.receivers.or(known).filter(|receivers| *receivers > 0).ok_or(
            "--depth auto: how many receivers? Give --receivers N, or the file of the feed by \
             --apply FILE",
        )?;
        if !(self.copy_us >= 0.0 && self.copy_us.is_finite()) {
            return Err(format!("--copy-us {}: microseconds, 0 or more", self.copy_us));
        }
        let search = ShapeSearch { receivers, fanout: self.fanout, copy_us: self.copy_us };
        if self.pairs.is_some() || hosts > MESH_HOSTS_MAX {
            return Err(format!(
                "--depth auto: compares trees over all pairs, which are measured in pools of \
                 {MESH_HOSTS_MAX} agents at most, and without --pairs; give --depth and --fanout"
            ));
        }
        if search.shapes_in(hosts).is_empty() {
            return Err(match search.places_min() {
                usize::MAX => format!(
                    "--fanout {}: no tree of this fan-out has {receivers} leaves; leave --fanout \
                     out, or give another one",
                    self.fanout.unwrap_or(FANOUT)
                ),
                places => format!(
                    "--depth auto: a tree with {receivers} leaves needs {places} agents, and there \
                     are {hosts}; start more agents, or ask for fewer --receivers"
                ),
            });
        }
        Ok(Some(search))
    }

    /// The pairs that the method needs.
    fn extent(&self, method: &PlanMethod, hosts: usize) -> Result<Extent, String> {
        let extent = match (self.pairs, method) {
            (Some(pairs), PlanMethod::MinMax) => Extent::Pairs(pairs),
            (Some(_), _) => {
                let why =
                    "--pairs: needs --method minmax, which alone plans on a part of the pairs";
                return Err(why.into());
            }
            (None, _) if self.all_to_all => Extent::AllPairs,
            (None, PlanMethod::MinMax) if hosts > MESH_HOSTS_MAX => {
                Extent::Pairs(PAIRS_PER_HOST * hosts as u64)
            }
            (None, method) => Extent::ByParent.fit(method),
        };
        if extent == Extent::AllPairs && hosts > MESH_HOSTS_MAX {
            return Err(format!(
                "{hosts} agents: all pairs are measured in pools of {MESH_HOSTS_MAX} agents at \
                 most; use --method minmax, which needs only some pairs, or --method weighted, \
                 which measures parent by parent"
            ));
        }
        Ok(extent)
    }

    /// The survey of these agents. `known` is the number of receivers of a feed.
    pub fn survey(&self, names: &[String], known: Option<usize>) -> Result<WantedSurvey, Failed> {
        let pace = ProbePace {
            rate_hz: self.rate,
            duration: self.duration,
            warm_up: self.warmup,
            ..ProbePace::default()
        };
        pace.check()?;
        let method = self.planner_for(names.len())?;
        let random = method == PlanMethod::random();
        let shapes = self.shape_search(known, names.len())?;
        let extent = self.extent(&method, names.len())?;
        let root = match &self.root {
            Some(name) => {
                let found = names.iter().position(|known| known == name);
                RootRule::Host(found.ok_or(format!("--root {name}: no agent is called so"))?)
            }
            None if random || self.roots == 1 => RootRule::Random,
            None => RootRule::Reach(self.roots),
        };
        let depth = match self.depth {
            WantedDepth::Hops(hops) => hops,
            // The search replaces this depth.
            WantedDepth::Auto => 1,
        };
        let shape = TreeShape { depth, fanout: self.fanout.unwrap_or(FANOUT) };
        let rounds = self.rounds;
        let planner = Planner {
            candidates: self.candidates,
            root,
            racing: Racing { rounds, rounds_min: rounds.min(Racing::default().rounds_min) },
            seed: self.seed,
            ..Planner::new(method, shape)
        };
        Ok(WantedSurvey { planner, extent, pace, shapes })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        wanted: WantedTree,
    }

    fn wanted(words: &str) -> WantedTree {
        let words = std::iter::once("plan").chain(words.split_whitespace());
        Line::try_parse_from(words).expect("arguments").wanted
    }

    fn names(hosts: usize) -> Vec<String> {
        (0..hosts).map(|host| format!("h{host}")).collect()
    }

    #[test]
    fn small_pools_are_planned_by_minmax_over_all_pairs_and_large_ones_parent_by_parent() {
        let plan = |words: &str, hosts: usize| {
            let wanted = wanted(words);
            let survey = wanted.survey(&names(hosts), None).expect(words);
            (survey.planner.method, survey.extent, wanted.note_of_large(hosts).is_some())
        };
        let weighted = || PlanMethod::parse("weighted").expect("a method");
        assert_eq!(plan("", 512), (PlanMethod::MinMax, Extent::AllPairs, false));
        assert_eq!(plan("", 513), (weighted(), Extent::ByParent, true));
        assert_eq!(plan("--candidates 5", 8), (weighted(), Extent::ByParent, false));
        assert_eq!(plan("--method weighted", 8), (weighted(), Extent::ByParent, false));
        assert_eq!(plan("--pairs 90", 600), (PlanMethod::MinMax, Extent::Pairs(90), false));
        let some = Extent::Pairs(PAIRS_PER_HOST * 600);
        assert_eq!(plan("--method minmax", 600), (PlanMethod::MinMax, some, false));
    }

    #[test]
    fn depth_auto_takes_the_receivers_from_the_feed_or_says_what_is_missing() {
        let search = |words: &str, known| {
            let survey = wanted(words).survey(&names(20), known);
            survey.map(|survey| survey.shapes.map(|search| (search.receivers, search.fanout)))
        };
        let shown = |words: &str, known| search(words, known).expect_err(words).to_string();
        assert_eq!(search("", Some(9)).expect("a shape is given"), None);
        assert_eq!(search("--depth auto", Some(9)).expect("a feed"), Some((9, None)));
        let all = "--depth auto --receivers 4 --fanout 2";
        assert_eq!(search(all, Some(9)).expect("named"), Some((4, Some(2))));
        assert!(shown("--depth auto", None).contains("--receivers N"));
        assert!(shown("--depth auto --receivers 20", None).contains("needs 21 agents"));
        assert!(shown("--depth auto --receivers 4 --fanout 1", None).contains("--fanout 1"));
        assert!(shown("--depth auto --receivers 4 --pairs 9", None).contains("without --pairs"));
        assert!(shown("--depth auto --receivers 4 --copy-us=-1", None).contains("0 or more"));
        let known = Line::try_parse_from(["plan", "--depth", "deep"]).err().map(|e| e.to_string());
        assert!(known.is_some_and(|text| text.contains("auto, or hops")));
    }

    #[test]
    fn arguments_come_back_out_of_their_words() {
        for words in ["", "--depth auto --receivers 6 --copy-us 2.5", "--method p90 --fanout 3"] {
            let first = wanted(words).as_arguments();
            let again = wanted(&first.join(" ")).as_arguments();
            assert_eq!(first, again, "{words}");
        }
    }
}
