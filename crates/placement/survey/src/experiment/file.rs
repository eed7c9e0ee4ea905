//! The experiment file: which trees are built, how often, and on which delays.
//!
//! A mistake names the key, the line and what is allowed: everything is checked while it is read.

use std::path::{Path, PathBuf};
use std::time::Duration;

use evenfall_host::whole_file::{SETTINGS_BYTES_MAX, read_text_up_to};
use evenfall_placement_machine::ProbePace;
use evenfall_placement_planner::builder::{Racing, RootRule};
use evenfall_placement_planner::planner::{PlanMethod, Planner};
use evenfall_placement_planner::tree::TreeShape;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::error::ExperimentError;

/// Most runs of one experiment. Each run is a file.
pub const RUNS_MAX: usize = 10_000;

/// One experiment.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// First line of the report.
    pub title: String,
    /// The same seed gives the same runs on the same delays.
    #[serde(default = "one")]
    pub seed: u64,
    /// How often every tree is built, each time with another seed.
    #[serde(default = "once", deserialize_with = "within::<_, _, 1, 1_000>")]
    pub repetitions: u32,
    /// The machines, for `evenfall plan deploy`.
    #[serde(default)]
    pub pool: Option<PoolSettings>,
    /// Where the runs take place.
    pub on: On,
    /// How delays are measured.
    #[serde(default)]
    pub probe: ProbeSpec,
    /// How a finished tree is measured.
    #[serde(default)]
    pub evaluation: EvaluationSpec,
    /// The trees.
    #[serde(rename = "run")]
    pub runs: Vec<Trees>,
}

fn one() -> u64 {
    1
}

fn once() -> u32 {
    1
}

/// The machines of the pool, as a deployment brings them up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolSettings {
    /// The first part of the machines' names: `name-0`, `name-1` and so on.
    pub name: String,
    /// The provider of the machines.
    pub provider: Provider,
    /// Number of machines, with the root of the trees.
    #[serde(deserialize_with = "within::<_, _, 2, 4_096>")]
    pub count: u32,
    /// Type of the machines in the provider's words, such as c2-standard-8.
    #[serde(default)]
    pub machine_type: String,
    /// The image from which the machines start.
    #[serde(default)]
    pub image: String,
}

/// A provider of machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Provider {
    /// Google.
    Gcp,
    /// Amazon.
    Aws,
    /// Containers of one machine.
    Docker,
    /// A Kubernetes cluster.
    Kubernetes,
}

/// The field on which all runs of an experiment take place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum On {
    /// On delays in a file.
    Recorded {
        /// A dense matrix or a list of pairs, relative to the experiment file.
        owd: PathBuf,
    },
    /// Agents and surveyor in the simulator.
    Simulated(SimulatedPool),
    /// Running agents.
    Live {
        /// Settings file with the agents' addresses and the key, relative to the experiment file.
        settings: PathBuf,
    },
}

/// A pool in the simulator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulatedPool {
    /// Number of hosts. Their names are h0, h1 and so on.
    #[serde(deserialize_with = "within::<_, _, 2, 4_096>")]
    pub hosts: u32,
    /// Numbers of hosts that are slow, besides the hosts that the seed makes slow.
    #[serde(default)]
    pub slow: Vec<u32>,
    /// Factor by which these hosts are slower.
    #[serde(default = "slow_factor", deserialize_with = "factor")]
    pub slow_factor: f64,
    /// The cloud of the pool: the name of a built-in model, or the path of a model's file that ends
    /// in `.toml`, relative to the experiment file.
    #[serde(default = "model")]
    pub model: String,
}

/// Twenty measured machines of one zone.
fn model() -> String {
    "gcp".into()
}

/// The straggler of the public measurements receives 1.57 times as slowly as others.
fn slow_factor() -> f64 {
    1.57
}

/// How delays are measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProbeSpec {
    /// Probes per second from a sender to each receiver.
    #[serde(deserialize_with = "within::<_, _, 1, 100_000>")]
    pub rate: u32,
    /// Time in which probes count, in each whole measurement.
    #[serde(with = "humantime_serde")]
    pub duration: Duration,
    /// Time before the measurement, in which probes warm the path up.
    #[serde(with = "humantime_serde")]
    pub warm_up: Duration,
    /// Rounds into which a measurement is cut. A measurement ends early when the choice is clear.
    #[serde(deserialize_with = "within::<_, _, 1, 100>")]
    pub rounds: u32,
}

impl Default for ProbeSpec {
    fn default() -> Self {
        let ProbePace { rate_hz, duration, warm_up, .. } = ProbePace::default();
        Self { rate: rate_hz, duration, warm_up, rounds: 1 }
    }
}

impl ProbeSpec {
    /// The pace of the jobs of a survey.
    pub fn pace(&self) -> ProbePace {
        let Self { rate, duration, warm_up, .. } = *self;
        ProbePace { rate_hz: rate, duration, warm_up, ..ProbePace::default() }
    }

    /// The rounds of the race between candidates.
    pub fn racing(&self) -> Racing {
        let rounds_min = self.rounds.min(Racing::default().rounds_min);
        Racing { rounds: self.rounds, rounds_min }
    }
}

/// How a finished tree is measured, by multicasts over it, one after another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvaluationSpec {
    /// Number of multicasts. Each is a point of the series over time.
    #[serde(deserialize_with = "within::<_, _, 1, 1_000>")]
    pub windows: u32,
    /// Duration of each multicast.
    #[serde(with = "humantime_serde")]
    pub duration: Duration,
}

impl Default for EvaluationSpec {
    fn default() -> Self {
        Self { windows: 5, duration: Duration::from_secs(1) }
    }
}

/// Trees of one shape, one for every strategy, root and repetition.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trees {
    /// The name of these trees in the report.
    pub name: Name,
    /// Hops from the root to a leaf.
    #[serde(deserialize_with = "within::<_, _, 1, 16>")]
    pub depth: u8,
    /// Children of every inner place.
    #[serde(deserialize_with = "within::<_, _, 1, 1_000>")]
    pub fanout: u16,
    /// Candidates per parent; twice the fan-out when left out.
    #[serde(default)]
    pub candidates: Option<u32>,
    /// The strategies that choose the trees. See [`PlanMethod`].
    pub strategies: Vec<Chooser>,
    /// The rules for the root: "any", "reach 3" (the best of three), or a host.
    #[serde(default = "any_root")]
    pub roots: Vec<RootChoice>,
    /// Repetitions of these trees, instead of those of the experiment.
    #[serde(default)]
    pub repetitions: Option<u32>,
}

fn any_root() -> Vec<RootChoice> {
    vec![RootChoice("any".into())]
}

/// A name that may be a part of a file's name: letters, digits, `-`, `_` and `.`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Name(pub String);

impl TryFrom<String> for Name {
    type Error = ExperimentError;

    fn try_from(text: String) -> Result<Self, ExperimentError> {
        let fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if text.is_empty() || text.len() > 60 || text.starts_with('.') || !text.chars().all(fine) {
            return Err(ExperimentError::Refused(format!(
                "name = {text:?}: must be 1 to 60 letters, digits, - _ . and not begin with a dot, \
                 because a file gets this name"
            )));
        }
        Ok(Self(text))
    }
}

/// A strategy, as the file states it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Chooser(String);

impl TryFrom<String> for Chooser {
    type Error = ExperimentError;

    fn try_from(text: String) -> Result<Self, ExperimentError> {
        let chooser = Self(text.trim().to_ascii_lowercase());
        match PlanMethod::parse(&chooser.0) {
            Ok(_) => Ok(chooser),
            Err(error) => Err(format!("{error}; allowed: {}", PlanMethod::WORDS).into()),
        }
    }
}

impl Chooser {
    fn method(&self) -> PlanMethod {
        PlanMethod::parse(&self.0).expect("checked when it was read")
    }
}

/// A rule for the root, as the file states it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct RootChoice(String);

impl TryFrom<String> for RootChoice {
    type Error = ExperimentError;

    fn try_from(text: String) -> Result<Self, ExperimentError> {
        let text = text.trim().to_owned();
        let count = text.strip_prefix("reach ").map(|count| count.trim().parse::<u32>());
        match count {
            _ if text.is_empty() => {}
            None => return Ok(Self(text)),
            Some(Ok(1..=1_000)) => return Ok(Self(text)),
            Some(_) => {}
        }
        Err(ExperimentError::Refused(format!(
            "root {text:?}; allowed: \"any\", \"reach N\" with N from 1 to 1000, or a host's name"
        )))
    }
}

impl RootChoice {
    /// The rule in a pool with these names.
    ///
    /// # Errors
    /// When there is no such host.
    pub fn rule(&self, names: &[String]) -> Result<RootRule, ExperimentError> {
        if self.0 == "any" {
            return Ok(RootRule::Random);
        }
        if let Some(count) = self.0.strip_prefix("reach ") {
            return Ok(RootRule::Reach(count.trim().parse().unwrap_or(1)));
        }
        let host = names.iter().position(|name| *name == self.0);
        host.map(RootRule::Host).ok_or_else(|| {
            let some: Vec<&str> = names.iter().take(5).map(String::as_str).collect();
            let some = some.join(", ");
            let why = format!("root {:?}: no host is called so; there are {some} ...", self.0);
            ExperimentError::Refused(why)
        })
    }
}

fn within<'de, D, T, const LEAST: i64, const MOST: i64>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<i64>,
{
    let value = i64::deserialize(from)?;
    let fine = Some(value).filter(|value| (LEAST..=MOST).contains(value));
    fine.and_then(|value| T::try_from(value).ok())
        .ok_or_else(|| D::Error::custom(format!("{value}: must be {LEAST} to {MOST}")))
}

fn factor<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    let value = f64::deserialize(from)?;
    if (1.0..=1_000.0).contains(&value) {
        return Ok(value);
    }
    Err(D::Error::custom(format!("{value}: must be 1 to 1000")))
}

/// The plan of one run. Two runs of equal plans on equal delays are equal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunPlan {
    /// Name of the run's file without the ending, unique in the experiment.
    pub id: String,
    /// The name in the report of the run and its repetitions.
    pub group: String,
    /// Hops from the root to a leaf.
    pub depth: u8,
    /// Children of every inner place.
    pub fanout: u16,
    /// Candidates per parent.
    pub candidates: u32,
    /// The strategy that chooses the tree.
    pub strategy: Chooser,
    /// The rule for the root.
    pub root: RootChoice,
    /// Number of the repetition, from 1.
    pub repetition: u32,
    /// The seed of the experiment, and one more with every repetition. All strategies of a
    /// repetition have the same seed.
    pub seed: u64,
    /// How delays are measured.
    pub probe: ProbeSpec,
    /// How the tree is measured.
    pub evaluation: EvaluationSpec,
    /// The field on which the run takes place.
    pub on: On,
}

impl RunPlan {
    /// The planner of the tree in a pool with these names.
    ///
    /// # Errors
    /// When the root is none of the names.
    pub fn planner(&self, names: &[String], racing: Racing) -> Result<Planner, ExperimentError> {
        let root = self.root.rule(names)?;
        let (candidates, seed) = (Some(self.candidates as usize), self.seed);
        let planner = Planner::new(self.strategy.method(), self.shape());
        Ok(Planner { root, candidates, racing, seed, ..planner })
    }

    /// Whether all pairs are measured before there is a tree.
    pub fn needs_all_pairs(&self) -> bool {
        self.strategy.method().needs_all_pairs()
    }

    /// Depth and fan-out.
    pub fn shape(&self) -> TreeShape {
        TreeShape { depth: self.depth, fanout: self.fanout }
    }
}

impl Experiment {
    /// Reads a file; `sets` (`key=value`) change it.
    ///
    /// # Errors
    /// Which file, line and key, and what is allowed.
    pub fn load(path: &Path, sets: &[String]) -> Result<Self, ExperimentError> {
        let shown = path.display();
        let text = read_text_up_to(path, SETTINGS_BYTES_MAX).map_err(|error| {
            ExperimentError::Refused(format!("{shown}: {error}; name an experiment"))
        })?;
        let mut experiment = Self::parse(&text, &shown.to_string(), sets)?;
        let base = path.parent().unwrap_or(Path::new("."));
        match &mut experiment.on {
            On::Recorded { owd } => *owd = base.join(&*owd),
            On::Live { settings } => *settings = base.join(&*settings),
            On::Simulated(SimulatedPool { model, .. }) if model.ends_with(".toml") => {
                *model = base.join(&*model).display().to_string();
            }
            On::Simulated(_) => {}
        }
        Ok(experiment)
    }

    /// Reads a text.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn parse(text: &str, name: &str, sets: &[String]) -> Result<Self, ExperimentError> {
        let said = |error: toml::de::Error| format!("{name}: {}", error.to_string().trim_end());
        let mut experiment: Self =
            toml::from_str(text).map_err(|e| ExperimentError::Refused(said(e)))?;
        let mut document: toml_edit::DocumentMut =
            text.parse().map_err(|error| ExperimentError::Refused(format!("{name}: {error}")))?;
        for set in sets {
            let (key, value) = set.split_once('=').unwrap_or((set, ""));
            evenfall_runtime::settings::apply(&mut document, key.trim(), value.trim())
                .map_err(|why| ExperimentError::Refused(format!("--set {set}: {why}")))?;
            experiment = toml::from_str(&document.to_string()).map_err(|error| {
                ExperimentError::Refused(format!("--set {set}: {}", error.message()))
            })?;
        }
        experiment.check(text).map_err(|why| ExperimentError::Refused(format!("{name}: {why}")))?;
        Ok(experiment)
    }

    fn check(&self, text: &str) -> Result<(), String> {
        self.probe.pace().check().map_err(|why| format!("[probe]: {why}"))?;
        let evaluation = ProbePace { duration: self.evaluation.duration, ..self.probe.pace() };
        evaluation.check().map_err(|why| format!("[evaluation]: {why}"))?;
        if let On::Simulated(SimulatedPool { hosts, slow, .. }) = &self.on
            && let Some(none) = slow.iter().find(|host| *host >= hosts)
        {
            return Err(format!("on.simulated.slow: {none}: hosts are 0 to {}", hosts - 1));
        }
        if self.runs.is_empty() {
            return Err("run: empty; give one [[run]] at least".into());
        }
        for (number, trees) in self.runs.iter().enumerate() {
            let line = line_of(text, number);
            trees
                .check(self.hosts())
                .map_err(|why| format!("line {line}, [[run]] {:?}: {why}", trees.name.0))?;
        }
        let plans = self.plans();
        if plans.len() > RUNS_MAX {
            return Err(format!("{} runs: {RUNS_MAX} at most", plans.len()));
        }
        let mut ids: Vec<&str> = plans.iter().map(|plan| plan.id.as_str()).collect();
        ids.sort_unstable();
        match ids.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(twice) => Err(format!("run {}: twice; give each [[run]] its own name", twice[0])),
            None => Ok(()),
        }
    }

    /// Number of hosts in the pool; `None` when only the agents' settings or the recorded delays
    /// tell.
    fn hosts(&self) -> Option<u32> {
        match &self.on {
            On::Simulated(simulated) => Some(simulated.hosts),
            _ => None,
        }
    }

    /// All runs, repetition by repetition, so that an experiment that is stopped early has runs of
    /// every strategy.
    pub fn plans(&self) -> Vec<RunPlan> {
        let most = self.runs.iter().map(|trees| trees.repetitions.unwrap_or(self.repetitions));
        let mut plans = Vec::new();
        for repetition in 1..=most.max().unwrap_or(0) {
            for trees in &self.runs {
                if repetition > trees.repetitions.unwrap_or(self.repetitions) {
                    continue;
                }
                for (s, strategy) in trees.strategies.iter().enumerate() {
                    for (r, root) in trees.roots.iter().enumerate() {
                        plans.push(self.plan(trees, (s, strategy), (r, root), repetition));
                    }
                }
            }
        }
        plans
    }

    fn plan(
        &self,
        trees: &Trees,
        (s, strategy): (usize, &Chooser),
        (r, root): (usize, &RootChoice),
        repetition: u32,
    ) -> RunPlan {
        let (mut group, mut id) = (trees.name.0.clone(), trees.name.0.clone());
        if trees.strategies.len() > 1 {
            group += &format!(" {}", strategy.0);
            id += &format!("-s{}", s + 1);
        }
        if trees.roots.len() > 1 {
            group += &format!(", root {}", root.0);
            id += &format!("-r{}", r + 1);
        }
        RunPlan {
            id: format!("{id}-{repetition}"),
            group,
            depth: trees.depth,
            fanout: trees.fanout,
            candidates: trees.candidates.unwrap_or(2 * u32::from(trees.fanout)),
            strategy: strategy.clone(),
            root: root.clone(),
            repetition,
            seed: self.seed.wrapping_add(u64::from(repetition) - 1),
            probe: self.probe.clone(),
            evaluation: self.evaluation.clone(),
            on: self.on.clone(),
        }
    }
}

impl Trees {
    fn check(&self, hosts: Option<u32>) -> Result<(), String> {
        let shape = TreeShape { depth: self.depth, fanout: self.fanout };
        let Some(places) = shape.checked_places() else {
            let most = evenfall_placement_planner::delays::HOSTS_MAX;
            return Err(format!("depth and fanout: more than {most} places"));
        };
        if let Some(hosts) = hosts.filter(|hosts| (*hosts as usize) < places) {
            let missing = places - hosts as usize;
            return Err(format!("{places} places and {hosts} hosts: {missing} are missing"));
        }
        if self.strategies.is_empty() || self.roots.is_empty() {
            return Err("strategies and roots: one at least".into());
        }
        if self.repetitions.is_some_and(|repetitions| !(1..=1_000).contains(&repetitions)) {
            return Err("repetitions: must be 1 to 1000".into());
        }
        if self.candidates.is_some_and(|candidates| candidates < u32::from(self.fanout)) {
            return Err(format!("candidates: must be the fan-out, {}, at least", self.fanout));
        }
        for chooser in &self.strategies {
            let any_root = chooser.method().needs_all_pairs();
            if any_root && self.roots.iter().any(|root| root.0.starts_with("reach ")) {
                return Err(format!(
                    "roots: {} takes \"any\" (the best) or a host, not \"reach\"",
                    chooser.0
                ));
            }
        }
        Ok(())
    }
}

/// The line on which the run of this number begins.
fn line_of(text: &str, number: usize) -> usize {
    let heads = text.lines().enumerate().filter(|(_, line)| line.trim().starts_with("[[run]]"));
    heads.map(|(line, _)| line + 1).nth(number).unwrap_or(0)
}
