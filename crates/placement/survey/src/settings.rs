//! The section `[survey]` of the settings, and the agents among the nodes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use evenfall_placement_machine::{AgentConfig, Timing};
use evenfall_runtime::settings::{
    InjectSettings, Io, Node, RunSettings, SettingsDocument, SettingsError, SettingsMistake,
    check_closed, check_nodes,
};
use serde::{Deserialize, Serialize};

/// The word of the role in `[[node]]`.
pub const AGENT: &str = "agent";

/// Live measurement: the limits of an agent, and the waits of a surveyor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SurveySettings {
    /// Most probes per second that an agent sends to all receivers together. Faster jobs are
    /// refused.
    pub agent_probes_per_second_max: u64,
    /// Time between two polls of the hosts of a job. A poll is a heartbeat, and repeats lost
    /// messages.
    #[serde(with = "humantime_serde")]
    pub poll: Duration,
    /// Time that one layer of a job may take besides the probes themselves.
    #[serde(with = "humantime_serde")]
    pub step: Duration,
    /// An agent that is not polled for this long drops its job. An agent that does not answer for
    /// this long counts as dead.
    #[serde(with = "humantime_serde")]
    pub lease: Duration,
    /// Directory in which `evenfall plan run` keeps the runs of an experiment on this machine. The
    /// agent gives them out on its pages, for `evenfall plan fetch`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub results: Option<PathBuf>,
}

impl Default for SurveySettings {
    fn default() -> Self {
        let Timing { poll, step, lease } = Timing::default();
        let agent = AgentConfig::default();
        let agent_probes_per_second_max = agent.probes_per_second_max;
        Self { agent_probes_per_second_max, poll, step, lease, results: None }
    }
}

impl SurveySettings {
    /// The times of the machines' control messages.
    pub fn timing(&self) -> Timing {
        Timing { poll: self.poll, step: self.step, lease: self.lease }
    }
}

impl SurveySettings {
    /// # Errors
    /// Which durations do not fit each other.
    pub fn check(&self) -> Result<(), SettingsMistake> {
        let least = Duration::from_millis(1);
        let key = match self {
            Self { poll, .. } if *poll < least => "survey.poll",
            Self { poll, step, .. } if step < poll => "survey.step",
            Self { poll, lease, .. } if *lease < *poll * 2 => "survey.lease",
            _ => return Ok(()),
        };
        let why = format!(
            "{key}: poll {:?}, step {:?}, lease {:?}: poll must be 1ms or more, step at least a \
             poll and lease at least two",
            self.poll, self.step, self.lease
        );
        Err(SettingsMistake::new(key, why))
    }
}

/// The settings that agents and surveyors read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The run itself.
    pub run: RunSettings,
    /// Sockets and threads.
    pub io: Io,
    /// Injected delays.
    pub inject: InjectSettings,
    /// Live measurement.
    pub survey: SurveySettings,
    /// The agents.
    pub agents: Vec<Node>,
}

impl Settings {
    /// Reads the file, then the environment, then `sets` (`key=value`).
    ///
    /// # Errors
    /// Which file, line and key, or which override, and what is allowed.
    pub fn load(path: &Path, sets: &[String]) -> Result<Self, SettingsError> {
        Self::of(&SettingsDocument::load(path, sets)?)
    }

    /// The settings of a document.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn of(document: &SettingsDocument) -> Result<Self, SettingsError> {
        let mut nodes: Vec<Node> = document.list("node")?;
        check_nodes(&nodes).map_err(|mistake| document.refuse(mistake))?;
        nodes.retain(|node| node.role == AGENT);
        let mut settings = Self {
            run: document.part("run")?,
            io: document.part("io")?,
            inject: document.part("inject")?,
            survey: document.part("survey")?,
            agents: nodes,
        };
        document.check_durations()?;
        settings.check().map_err(|mistake| document.refuse(mistake))?;
        settings.run.rebase(document.base());
        settings.inject.rebase(document.base());
        let results = settings.survey.results.take();
        settings.survey.results = results.map(|results| document.base().join(results));
        Ok(settings)
    }

    fn check(&self) -> Result<(), SettingsMistake> {
        self.run.check()?;
        self.io.check()?;
        self.survey.check()
    }

    /// Refuses agents that are open to more than this machine, when there is no key.
    ///
    /// # Errors
    /// The first of them, and what to do.
    pub fn check_closed(&self) -> Result<(), SettingsMistake> {
        check_closed(&self.agents, self.run.is_keyed())
    }

    /// The agent of this name.
    ///
    /// # Errors
    /// Which names there are.
    pub fn agent(&self, name: &str) -> Result<&Node, SettingsError> {
        self.agents.iter().find(|node| node.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.agents.iter().map(|n| n.name.as_str()).collect();
            SettingsError::new(format!(
                "no agent is called {name}; there are: {}",
                names.join(", ")
            ))
        })
    }
}
