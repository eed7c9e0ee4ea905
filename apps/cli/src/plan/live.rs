//! `evenfall plan live`: measures running agents and ends with a tree, or with a part of one.

use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use evenfall_core::SharedKey;
use evenfall_host::interrupt;
use evenfall_host::whole_file::{DELAYS_BYTES_MAX, read_text_up_to};
use evenfall_placement_machine::job::{HOSTS_MAX, MESH_HOSTS_MAX};
use evenfall_placement_machine::{
    Extent, JobOutcome, MeasurementKind, PlanSurveyError, SurveyLine, SurveyPlan, SurveyorConfig,
    SurveyorEvent, TreeSurvey,
};
use evenfall_placement_planner::accuracy::LengthError;
use evenfall_placement_planner::builder::RootRule;
use evenfall_placement_planner::delays::EdgeStats;
use evenfall_placement_planner::planner::Planner;
use evenfall_placement_planner::tree::PlacedTree;
use evenfall_placement_survey::Settings;
use evenfall_placement_survey::settings::SurveySettings;
use evenfall_placement_survey::surveyor;
use evenfall_runtime::{SettingsError, settings};
use serde_json::{Value, json};

use super::apply::FeedSettingsFile;
use super::model;
use super::rebuild::RebuiltPart;
use super::wanted::{WantedSurvey, WantedTree};
use crate::Outcome;

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
    wanted: WantedTree,
    #[command(flatten)]
    model: model::Args,
    /// Keep the measurements in this file. An existing file is continued.
    #[arg(long, conflicts_with = "model_out")]
    state: Option<PathBuf>,
    /// Write the plan into the settings file of a feed on the agents' machines: roles, ids and the
    /// shape. A file that does not fit is refused before any measurement.
    #[arg(long, value_name = "FILE")]
    apply: Option<PathBuf>,
    /// Plan the part of the feed's tree that begins at this node, and leave the rest of the file of
    /// --apply as it is. The machines of the part and the spares of the feed are measured.
    #[arg(
        long,
        value_name = "NODE",
        requires = "apply",
        conflicts_with_all = ["depth", "fanout", "receivers", "root", "pairs", "model_out"]
    )]
    rebuild: Option<String>,
    /// Give no place to the machine of this node or agent. The option may be given several times.
    #[arg(long, value_name = "HOST")]
    avoid: Vec<String>,
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

impl Pool {
    /// Some of the agents, by number.
    fn only(&self, agents: &[usize]) -> Self {
        Self {
            names: agents.iter().map(|agent| self.names[*agent].clone()).collect(),
            addresses: agents.iter().map(|agent| self.addresses[*agent]).collect(),
        }
    }
}

/// The agents of a pool that are measured, and what the plan is for.
struct Selection {
    /// The agents, in the order of their numbers in the survey.
    agents: Vec<usize>,
    /// The part of a feed's tree that is planned; `None` for a whole tree.
    part: Option<RebuiltPart>,
}

impl Selection {
    /// The agents that the arguments leave.
    fn of(args: &Args, pool: &Pool, feed: Option<&FeedSettingsFile>) -> Result<Self, String> {
        let number = |name: &String| {
            let of_feed = feed.and_then(|feed| feed.agent_of(name));
            let agent = of_feed.or_else(|| pool.names.iter().position(|known| known == name));
            agent.ok_or_else(|| format!("--avoid {name}: no agent and no node is called so"))
        };
        let avoided = args.avoid.iter().map(number).collect::<Result<Vec<usize>, String>>()?;
        let Some((name, feed)) = args.rebuild.as_ref().zip(feed) else {
            let agents = (0..pool.names.len()).filter(|agent| !avoided.contains(agent)).collect();
            return Ok(Self { agents, part: None });
        };
        let part = RebuiltPart::of(feed, name, &avoided)?;
        let agents = part.measured();
        if agents.len() > MESH_HOSTS_MAX {
            return Err(format!(
                "--rebuild {name}: {} machines may take its places, and all pairs of \
                 {MESH_HOSTS_MAX} at most are measured; leave some out by --avoid",
                agents.len()
            ));
        }
        Ok(Self { agents, part: Some(part) })
    }

    /// The survey that plans the tree or the part.
    fn survey(&self, wanted: WantedSurvey, names: Vec<String>) -> TreeSurvey {
        let WantedSurvey { planner, extent, pace, shapes } = wanted;
        let Some(part) = &self.part else {
            let survey = TreeSurvey::new(planner, names, pace, extent);
            return match shapes {
                Some(search) => survey.choosing_shape(search),
                None => survey,
            };
        };
        // The machine above the part has the first number. It is the root of a leaf's tree.
        let planner = Planner { root: RootRule::Host(0), shape: part.shape(), ..planner };
        let survey = TreeSurvey::new(planner, names, pace, Extent::AllPairs);
        if part.is_leaf() { survey } else { survey.planning_below(0) }
    }

    /// The tree of the feed with the planned tree or part.
    fn whole_tree(&self, planned: &PlacedTree) -> PlacedTree {
        let agents: Vec<usize> = planned.hosts().iter().map(|host| self.agents[*host]).collect();
        match &self.part {
            Some(part) => part.join(&agents),
            None => PlacedTree::new(planned.shape(), agents),
        }
    }
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
                aside!("--state: {error}; further measurements are not kept");
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
            aside!("  {}: {reason}", names[*host]);
        }
    };
    match event {
        SurveyorEvent::Greeted { usable, failures } => {
            aside!("{usable} of {} agents answered", names.len());
            list(failures);
        }
        SurveyorEvent::Ordered { job, kind, leader, hosts, .. } => {
            let others = hosts - 1;
            match kind {
                MeasurementKind::Parent => {
                    aside!("job {job}: {} to {others} candidates", names[*leader])
                }
                MeasurementKind::BothWays => {
                    aside!("job {job}: {} to {others} candidates and back", names[*leader]);
                }
                MeasurementKind::Multicast => {
                    aside!("job {job}: multicast over the tree, {hosts} hosts")
                }
                MeasurementKind::AllToAll => aside!("job {job}: all to all, {hosts} hosts"),
            }
        }
        SurveyorEvent::Finished(outcome) => {
            let JobOutcome { job, failures, took, pairs, .. } = &**outcome;
            aside!("job {job}: {} delays in {:.2} s", pairs.len(), took.as_secs_f64());
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
        return Settings::of(&settings::SettingsDocument::parse(
            "", "defaults", overrides, &args.set,
        )?);
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
    let all = pool(args, &settings)?;
    // The file is read before any measurement, because a file that does not fit now will not fit
    // later.
    let feed =
        args.apply.as_ref().map(|path| FeedSettingsFile::read(path, &all.names, &all.addresses));
    let feed = feed.transpose()?;
    let selection = Selection::of(args, &all, feed.as_ref())?;
    let pool = all.only(&selection.agents);
    // A file that cannot be written now cannot be written after the survey either.
    let model = args.model.wanted(pool.names.len())?;
    let wanted =
        WantedTree { all_to_all: args.wanted.all_to_all || model.is_some(), ..args.wanted.clone() };
    let asked = wanted.survey(&pool.names, feed.as_ref().map(FeedSettingsFile::receivers))?;
    let pace = asked.pace;
    if let Some(note) = wanted.note_of_large(pool.names.len()) {
        aside!("{note}");
    }
    let mut state = State::open(args.state.as_deref())?;
    let survey = selection.survey(asked, pool.names.clone());
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
            let whole = selection.whole_tree(&plan.tree);
            let applied = feed.as_ref().map(|feed| feed.with(&whole)).transpose()?;
            if let (Some(feed), Some((text, _))) = (&feed, &applied) {
                feed.save(text)?;
            }
            let applied = applied.map(|(_, changes)| changes);
            let names = &pool.names;
            let model = written.as_ref().and_then(|written| written.as_ref().ok().copied());
            let report = Report { survey: &survey, plan, names, jobs, seconds, applied, model };
            if args.json {
                say!("{}", report.json())
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
        let shapes = self.survey.shape_costs().iter().map(|cost| {
            json!({
                "depth": cost.shape.depth,
                "fanout": cost.shape.fanout,
                "planned_us": cost.worst_leaf_us,
                "sending_us": cost.sending_us,
                "cost_us": cost.total_us(),
            })
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
            "shapes": shapes.collect::<Vec<_>>(),
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
            say!("{}{}", "  ".repeat(level as usize), names.join("  "));
        }
        say!(
            "{:<24}{:>9}{:>9}{:>9}{:>9}{:>8}  error of p90",
            "leaf, us",
            "p50",
            "p90",
            "p99",
            "stddev",
            "loss"
        );
        for (host, loss, f) in &self.plan.evaluation.leaves {
            say!(
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
            say!("worst leaf: {}, p90 {us:.1} us", self.names[host]);
        }
        if let Some((plan, error)) = self.plan.planned.as_ref().zip(self.planned_error()) {
            let (us, parts) = (plan.worst_leaf_us, super::error_parts(error));
            say!("planned worst leaf: p90 {us:.1} us; error: {parts}");
        }
        for cost in self.survey.shape_costs() {
            let mark = if cost.shape == shape { ", chosen" } else { "" };
            say!(
                "depth {}, fan-out {}: planned {:.1} us + sending {:.1} us = {:.1} us{mark}",
                cost.shape.depth,
                cost.shape.fanout,
                cost.worst_leaf_us,
                cost.sending_us,
                cost.total_us()
            );
        }
        let errors = self.plan.evaluation.leaves.iter().map(|(_, _, f)| f.clock_error_us);
        match errors.collect::<Option<Vec<f64>>>() {
            Some(all) => {
                say!("clock error: {:.1} us at most", all.iter().fold(0.0, |a, b| f64::max(a, *b)));
            }
            None => say!("clock error: unknown, because no clock states a bound"),
        }
        for (host, reason) in self.survey.dropped() {
            say!("left out: {}: {reason}", self.names[*host]);
        }
        say!("{} jobs, {} probes, {:.1} s", self.jobs, self.survey.probes(), self.seconds);
        match &self.applied {
            Some(changes) if changes.is_empty() => say!("applied: the feed has this plan"),
            Some(changes) => changes.iter().for_each(|change| say!("applied: {change}")),
            None => {}
        }
        if let Some(path) = self.model {
            say!("model of the pool: {}", path.display());
        }
    }
}
