//! `evenfall plan live`: measures running agents and ends with a tree.

use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenfall_core::SharedKey;
use evenfall_host::interrupt;
use evenfall_host::whole_file::{DELAYS_BYTES_MAX, read_text_up_to};
use evenfall_placement_machine::job::{HOSTS_MAX, MESH_HOSTS_MAX};
use evenfall_placement_machine::{
    Extent, JobOutcome, MeasurementKind, PlanSurveyError, ProbePace, SurveyLine, SurveyPlan,
    SurveyorConfig, SurveyorEvent, TreeSurvey,
};
use evenfall_placement_planner::accuracy::LengthError;
use evenfall_placement_planner::builder::{Racing, RootRule};
use evenfall_placement_planner::delays::EdgeStats;
use evenfall_placement_planner::explorer::PAIRS_PER_HOST;
use evenfall_placement_planner::planner::{PlanMethod, Planner};
use evenfall_placement_planner::tree::TreeShape;
use evenfall_placement_survey::Settings;
use evenfall_placement_survey::settings::SurveySettings;
use evenfall_placement_survey::surveyor;
use evenfall_runtime::{SettingsError, settings};
use humantime::parse_duration;
use serde_json::{Value, json};

use super::apply::Feed;
use super::model;
use crate::Outcome;

/// The wanted tree, and how its delays are measured.
#[derive(clap::Args, Clone, Debug)]
pub struct Wanted {
    /// Hops from the root to a leaf.
    #[arg(long, default_value_t = 2)]
    pub depth: u8,
    /// Children of the root and of every inner node.
    #[arg(long, default_value_t = 2)]
    pub fanout: u16,
    /// Candidates for each parent's children. Without this option, twice the fan-out.
    #[arg(long)]
    pub candidates: Option<usize>,
    /// The planner. weighted, p90, p50, rand, or a sum such as "max(p90, mean + 2 * stddev)"
    /// measure parent by parent. minmax, greedy and lemondrop measure all pairs.
    #[arg(long, alias = "strategy", default_value = "weighted")]
    pub method: String,
    /// The agent that is the root, by name or address.
    #[arg(long, conflicts_with = "roots")]
    pub root: Option<String>,
    /// Number of agents that are tried as root. The agent with the best reach is taken.
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
    /// Rounds of a measurement. A measurement ends early after the round in which the choice is
    /// clear. With 1, each measurement takes its whole time.
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

impl Wanted {
    /// The arguments, as another process gets them.
    pub fn as_arguments(&self) -> Vec<String> {
        let mut all = vec![
            format!("--depth={}", self.depth),
            format!("--fanout={}", self.fanout),
            format!("--method={}", self.method),
            format!("--rate={}", self.rate),
            format!("--duration={}", humantime::format_duration(self.duration)),
            format!("--warmup={}", humantime::format_duration(self.warmup)),
            format!("--rounds={}", self.rounds),
            format!("--seed={}", self.seed),
        ];
        all.extend(self.candidates.map(|candidates| format!("--candidates={candidates}")));
        all.push(match &self.root {
            Some(root) => format!("--root={root}"),
            None => format!("--roots={}", self.roots),
        });
        all.extend(self.all_to_all.then(|| "--all-to-all".to_owned()));
        all.extend(self.pairs.map(|pairs| format!("--pairs={pairs}")));
        all
    }
}

/// Arguments of `evenfall plan live`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Agents, as address:port separated by commas. Without it, the agents of the settings file.
    #[arg(long, value_delimiter = ',', value_parser = evenfall_runtime::address::look_up)]
    agents: Vec<SocketAddr>,
    /// Settings file with the nodes of role agent, the key, and `[survey]`.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Change a setting, such as --set survey.lease=2s. The option may be given several times.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    #[command(flatten)]
    wanted: Wanted,
    #[command(flatten)]
    model: model::Args,
    /// Keep the measurements in this file. An existing file is continued.
    #[arg(long, conflicts_with = "model_out")]
    state: Option<PathBuf>,
    /// Write the plan into the settings file of a feed on the agents' machines: roles, ids and the
    /// shape. A file that does not fit is refused before any measurement.
    #[arg(long, value_name = "FILE")]
    apply: Option<PathBuf>,
    /// Print the plan as one JSON object.
    #[arg(long)]
    json: bool,
}

/// The percentile of planned and measured lengths, as a share.
const SHARE: f64 = 0.9;

/// The names and addresses of a pool.
struct Pool {
    names: Vec<String>,
    addresses: Vec<SocketAddr>,
}

type Failed = Box<dyn std::error::Error>;

fn pool(args: &Args, settings: &Settings) -> Result<Pool, Failed> {
    let (names, addresses): (Vec<String>, Vec<SocketAddr>) = if args.agents.is_empty() {
        let agents = settings.agents.iter();
        agents.map(|node| (node.name.clone(), node.address)).unzip()
    } else {
        args.agents.iter().map(|agent| (agent.to_string(), *agent)).unzip()
    };
    if addresses.is_empty() {
        return Err("no agents: name them with --agents, or in a settings file with \
                    [[node]] role = \"agent\" and --config"
            .into());
    }
    if addresses.len() > HOSTS_MAX {
        return Err(format!("{} agents: {HOSTS_MAX} at most in one job", addresses.len()).into());
    }
    let mut sorted = addresses.clone();
    sorted.sort_unstable();
    if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("agent {} is named twice", twice[0]).into());
    }
    if let Some(open) = addresses.iter().find(|address| address.port() == 0) {
        return Err(format!("agent {open}: must have a port, so that it can be found").into());
    }
    Ok(Pool { names, addresses })
}

/// The pairs that the method needs.
fn extent(wanted: &Wanted, method: &PlanMethod, hosts: usize) -> Result<Extent, Failed> {
    let extent = match (wanted.pairs, method) {
        (Some(pairs), PlanMethod::MinMax) => Extent::Pairs(pairs),
        (Some(_), _) => {
            let why = "--pairs: needs --method minmax, which alone plans on a part of the pairs";
            return Err(why.into());
        }
        (None, _) if wanted.all_to_all => Extent::AllPairs,
        (None, PlanMethod::MinMax) if hosts > MESH_HOSTS_MAX => {
            Extent::Pairs(PAIRS_PER_HOST * hosts as u64)
        }
        (None, method) => Extent::ByParent.fit(method),
    };
    if extent == Extent::AllPairs && hosts > MESH_HOSTS_MAX {
        return Err(format!(
            "{hosts} agents: all pairs are measured in pools of {MESH_HOSTS_MAX} agents at most; \
             use --method minmax, which needs only some pairs, or --method weighted, which \
             measures parent by parent"
        )
        .into());
    }
    Ok(extent)
}

fn plan_of(wanted: &Wanted, pool: &Pool) -> Result<(Planner, Extent, ProbePace), Failed> {
    let pace = ProbePace {
        rate_hz: wanted.rate,
        duration: wanted.duration,
        warm_up: wanted.warmup,
        ..ProbePace::default()
    };
    pace.check()?;
    let method = super::method(&wanted.method)?;
    let random = method == PlanMethod::random();
    let extent = extent(wanted, &method, pool.names.len())?;
    let root = match &wanted.root {
        Some(name) => {
            let found = pool.names.iter().position(|known| known == name);
            RootRule::Host(found.ok_or(format!("--root {name}: no agent is called so"))?)
        }
        None if random || wanted.roots == 1 => RootRule::Random,
        None => RootRule::Reach(wanted.roots),
    };
    let rounds = wanted.rounds;
    let planner = Planner {
        candidates: wanted.candidates,
        root,
        racing: Racing { rounds, rounds_min: rounds.min(Racing::default().rounds_min) },
        seed: wanted.seed,
        ..Planner::new(method, TreeShape { depth: wanted.depth, fanout: wanted.fanout })
    };
    Ok((planner, extent, pace))
}

/// Lines that an earlier survey kept, and the file for further lines.
struct State {
    kept: Vec<SurveyLine>,
    file: Option<File>,
    written: usize,
}

impl State {
    fn open(path: Option<&Path>) -> Result<Self, Failed> {
        let Some(path) = path else {
            return Ok(Self { kept: Vec::new(), file: None, written: 0 });
        };
        let shown = path.display();
        let text = match read_text_up_to(path, DELAYS_BYTES_MAX) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(format!("--state {shown}: {error}").into()),
        };
        // A line that a dying process did not finish does not count as measured.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let line = |(number, line): (usize, &str)| {
            serde_json::from_str(line)
                .map_err(|error| format!("--state {shown}: line {}: {error}", number + 1))
        };
        let kept: Vec<SurveyLine> =
            text[..whole].lines().enumerate().map(line).collect::<Result<_, _>>()?;
        let failed = |error| format!("--state {shown}: {error}");
        let file = File::options().create(true).append(true).open(path).map_err(failed)?;
        file.set_len(whole as u64).map_err(failed)?;
        Ok(Self { kept, file: Some(file), written: 0 })
    }

    /// Writes the new lines. After a crash a line is whole or missing.
    fn keep(&mut self, lines: &[SurveyLine]) {
        let Some(file) = &mut self.file else { return };
        for line in &lines[self.written.min(lines.len())..] {
            let text = serde_json::to_string(line).unwrap_or_default() + "\n";
            if let Err(error) = file.write_all(text.as_bytes()) {
                eprintln!("--state: {error}; further measurements are not kept");
                self.file = None;
                return;
            }
            self.written += 1;
        }
    }
}

/// Prints one line on stderr for each event.
fn progress(names: &[String], event: &SurveyorEvent) {
    let list = |failures: &[(usize, evenfall_placement_machine::HostFailure)]| {
        for (host, reason) in failures {
            eprintln!("  {}: {reason}", names[*host]);
        }
    };
    match event {
        SurveyorEvent::Greeted { usable, failures } => {
            eprintln!("{usable} of {} agents answered", names.len());
            list(failures);
        }
        SurveyorEvent::Ordered { job, kind, leader, hosts, .. } => {
            let others = hosts - 1;
            match kind {
                MeasurementKind::Parent => {
                    eprintln!("job {job}: {} to {others} candidates", names[*leader])
                }
                MeasurementKind::BothWays => {
                    eprintln!("job {job}: {} to {others} candidates and back", names[*leader]);
                }
                MeasurementKind::Multicast => {
                    eprintln!("job {job}: multicast over the tree, {hosts} hosts")
                }
                MeasurementKind::AllToAll => eprintln!("job {job}: all to all, {hosts} hosts"),
            }
        }
        SurveyorEvent::Finished(outcome) => {
            let JobOutcome { job, failures, took, pairs, .. } = &**outcome;
            eprintln!("job {job}: {} delays in {:.2} s", pairs.len(), took.as_secs_f64());
            list(failures);
        }
        SurveyorEvent::Over => {}
    }
}

/// The settings of the file. Without a file, these are the default settings. In both cases the
/// overrides are applied.
fn settings_of(args: &Args) -> Result<Settings, SettingsError> {
    let Some(path) = &args.config else {
        let overrides = settings::overrides()?.into_iter();
        return Settings::of(&settings::Document::parse("", "defaults", overrides, &args.set)?);
    };
    Settings::load(path, &args.set)
}

/// The error of a survey that ended without a plan. When a user stopped the survey, the error says
/// how the survey can go on.
fn unplanned(error: PlanSurveyError, stopped: bool, has_state: bool) -> Box<dyn std::error::Error> {
    let next = match (stopped, has_state) {
        (false, _) => return error.into(),
        (true, true) => "The same command goes on where it stopped",
        (true, false) => "With --state FILE it could go on",
    };
    format!("stopped; the agents are idle. {next}").into()
}

pub fn main(args: &Args) -> Outcome {
    interrupt::install()?;
    let settings = settings_of(args)?;
    let key: Option<SharedKey> = settings.run.key()?;
    let pool = pool(args, &settings)?;
    // A file that cannot be written now cannot be written after the survey either.
    let model = args.model.wanted(pool.names.len())?;
    let wanted =
        Wanted { all_to_all: args.wanted.all_to_all || model.is_some(), ..args.wanted.clone() };
    let (planner, extent, pace) = plan_of(&wanted, &pool)?;
    // The file is read before any measurement, because a file that does not fit now will not fit
    // later.
    let feed = args.apply.as_ref().map(|path| Feed::read(path, &pool.names, &pool.addresses));
    let feed = feed.transpose()?;
    let mut state = State::open(args.state.as_deref())?;
    let survey = TreeSurvey::new(planner, pool.names.clone(), pace, extent);
    let survey = survey.resume(std::mem::take(&mut state.kept));
    let survey = if model.is_some() { survey.keeping_records() } else { survey };
    let timing = SurveySettings::timing(&settings.survey);
    let config = SurveyorConfig {
        timing,
        greet: timing.lease,
        busy_patience: timing.idle_limit(8),
        ..SurveyorConfig::default()
    };
    let began = Instant::now();
    let mut jobs = 0;
    let mut on = |survey: &TreeSurvey, event: &SurveyorEvent| {
        jobs += u32::from(matches!(event, SurveyorEvent::Finished { .. }));
        progress(&pool.names, event);
        state.keep(survey.lines());
    };
    let run = surveyor::run(config, key.as_ref(), pool.addresses.clone(), survey, &mut on);
    let (survey, stopped) = run?;
    let written = model.as_ref().filter(|_| !stopped);
    let written = written.map(|model| model.write(&survey, pace.duration));
    match survey.result() {
        Ok(plan) => {
            let seconds = began.elapsed().as_secs_f64();
            let applied = feed.as_ref().map(|feed| feed.with(&plan.tree)).transpose()?;
            if let (Some(feed), Some((text, _))) = (&feed, &applied) {
                feed.save(text)?;
            }
            let applied = applied.map(|(_, changes)| changes);
            let names = &pool.names;
            let model = written.as_ref().and_then(|written| written.as_ref().ok().copied());
            let report = Report { survey: &survey, plan, names, jobs, seconds, applied, model };
            if args.json {
                println!("{}", report.json())
            } else {
                report.print()
            }
            // The plan is good even if the model could not be written.
            written.transpose().map(drop)
        }
        Err(error) => Err(unplanned(error, stopped, args.state.is_some())),
    }
}

/// The result, for printing.
struct Report<'a> {
    survey: &'a TreeSurvey,
    plan: &'a SurveyPlan,
    names: &'a [String],
    jobs: u32,
    seconds: f64,
    /// The changes in the settings of a feed.
    applied: Option<Vec<String>>,
    /// The file of the pool's model.
    model: Option<&'a PathBuf>,
}

impl Report<'_> {
    /// All measurements from host to host.
    fn edges(&self) -> impl Iterator<Item = (usize, usize, &EdgeStats)> {
        let delays = self.survey.delays();
        let hosts = 0..delays.hosts();
        let pairs = hosts.clone().flat_map(move |from| hosts.clone().map(move |to| (from, to)));
        pairs.filter_map(move |(from, to)| Some((from, to, delays.edge(from, to)?)))
    }

    /// The error of the planned length. `None` when the tree was grown parent by parent.
    fn planned_error(&self) -> Option<LengthError> {
        let plan = self.plan.planned.as_ref()?;
        Some(LengthError::of_tree(self.survey.delays(), &plan.tree, SHARE))
    }

    fn json(&self) -> Value {
        let name = |host: &usize| self.names[*host].as_str();
        let evaluation = &self.plan.evaluation;
        let with = |mut figures: Value, more: Value| {
            if let (Some(all), Value::Object(more)) = (figures.as_object_mut(), more) {
                all.extend(more);
            }
            figures
        };
        let leaves = evaluation.leaves.iter().map(|(host, loss, figures)| {
            let error = LengthError::of(&figures.edge(*loss), SHARE);
            let sampling_error_us = error.sampling_us;
            let more = json!({
                "host": name(host),
                "loss": loss,
                "sampling_error_us": sampling_error_us,
                "error_us": error.us(),
            });
            with(json!(figures), more)
        });
        let hops = evaluation.hops.iter().map(|(from, to, figures)| {
            with(json!(figures), json!({ "from": name(from), "to": name(to) }))
        });
        let edges = self.edges().map(|(from, to, stats)| {
            let sampling_error_us = LengthError::of(stats, SHARE).sampling_us;
            let more = json!({
                "from": name(&from),
                "to": name(&to),
                "sampling_error_us": sampling_error_us,
            });
            with(json!(stats), more)
        });
        let planned_error = self.planned_error();
        let failed = |failures: &[(usize, String)]| -> Vec<Value> {
            let one = |(host, why): &(usize, String)| json!({ "host": name(host), "reason": why });
            failures.iter().map(one).collect()
        };
        json!({
            "tree": self.plan.tree.hosts().iter().map(name).collect::<Vec<_>>(),
            "depth": self.plan.tree.shape().depth,
            "fanout": self.plan.tree.shape().fanout,
            "worst_leaf": evaluation.worst_leaf.map(|(host, _)| name(&host)),
            "worst_leaf_us": evaluation.worst_leaf.map(|(_, us)| us),
            "leaves": leaves.collect::<Vec<_>>(),
            "hops": hops.collect::<Vec<_>>(),
            "evaluation_failures": failed(&evaluation.failures),
            "failed": failed(self.survey.dropped()),
            "measured": edges.collect::<Vec<_>>(),
            "jobs": self.jobs,
            "probes": self.survey.probes(),
            "seconds": self.seconds,
            "planned_us": self.plan.planned.as_ref().map(|plan| plan.worst_leaf_us),
            "bound_us": self.plan.planned.as_ref().and_then(|plan| plan.bound_us),
            "planned_error": planned_error,
            "planned_error_us": planned_error.map(LengthError::us),
            "applied": self.applied,
            "model": self.model,
        })
    }

    fn print(&self) {
        let shape = self.plan.tree.shape();
        let hosts = self.plan.tree.hosts();
        for level in 0..=shape.depth {
            let names: Vec<&str> =
                shape.level(level).map(|place| self.names[hosts[place]].as_str()).collect();
            println!("{}{}", "  ".repeat(level as usize), names.join("  "));
        }
        println!(
            "{:<24}{:>9}{:>9}{:>9}{:>9}{:>8}  error of p90",
            "leaf, us", "p50", "p90", "p99", "stddev", "loss"
        );
        for (host, loss, f) in &self.plan.evaluation.leaves {
            println!(
                "{:<24}{:>9.1}{:>9.1}{:>9.1}{:>9.1}{:>7.2}%  {}",
                self.names[*host],
                f.p50_us,
                f.p90_us,
                f.p99_us,
                f.stddev_us,
                loss * 100.0,
                super::error_parts(LengthError::of(&f.edge(*loss), SHARE))
            );
        }
        if let Some((host, us)) = self.plan.evaluation.worst_leaf {
            println!("worst leaf: {}, p90 {us:.1} us", self.names[host]);
        }
        if let Some((plan, error)) = self.plan.planned.as_ref().zip(self.planned_error()) {
            let (us, parts) = (plan.worst_leaf_us, super::error_parts(error));
            println!("planned worst leaf: p90 {us:.1} us; error: {parts}");
        }
        let errors = self.plan.evaluation.leaves.iter().map(|(_, _, f)| f.clock_error_us);
        match errors.collect::<Option<Vec<f64>>>() {
            Some(all) => {
                println!(
                    "clock error: {:.1} us at most",
                    all.iter().fold(0.0, |a, b| f64::max(a, *b))
                );
            }
            None => println!("clock error: unknown, because no clock states a bound"),
        }
        for (host, reason) in self.survey.dropped() {
            println!("left out: {}: {reason}", self.names[*host]);
        }
        println!("{} jobs, {} probes, {:.1} s", self.jobs, self.survey.probes(), self.seconds);
        match &self.applied {
            Some(changes) if changes.is_empty() => println!("applied: the feed has this plan"),
            Some(changes) => changes.iter().for_each(|change| println!("applied: {change}")),
            None => {}
        }
        if let Some(path) = self.model {
            println!("model of the pool: {}", path.display());
        }
    }
}
