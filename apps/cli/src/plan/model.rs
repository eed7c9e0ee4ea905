//! `evenfall plan live --model-out`: the model of a pool out of its survey.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use evenfall_model::{Model, Pair, PoolError, PoolSurvey, Stack};
use evenfall_placement_machine::TreeSurvey;
use evenfall_placement_machine::job::MESH_HOSTS_MAX;

/// Whether a survey writes the model of its pool, and where.
#[derive(clap::Args, Clone, Debug)]
#[group(id = "model")]
pub struct Args {
    /// Write a model of the pool into this file, for `evenfall sim multicast --model FILE`. All
    /// pairs are then measured at the same time.
    #[arg(long, value_name = "FILE", conflicts_with = "pairs")]
    model_out: Option<PathBuf>,
    /// The model from which the numbers are taken that a survey does not measure, such as the
    /// limits of network cards: aws, gcp, quiet, namespaces, or the path of a file.
    #[arg(long, value_name = "NAME|FILE", default_value = "aws")]
    model_base: String,
}

/// A file that is to be written.
pub struct ModelOutput {
    path: PathBuf,
    base: Model,
}

type Failed = Box<dyn std::error::Error>;

impl Args {
    /// The arguments, as another process gets them.
    pub fn as_arguments(&self) -> Vec<String> {
        let Some(path) = &self.model_out else { return Vec::new() };
        let base = format!("--model-base={}", self.model_base);
        vec![format!("--model-out={}", path.display()), base]
    }

    /// What is to be written, if anything. Refuses what cannot be written before any measurement.
    pub fn wanted(&self, hosts: usize) -> Result<Option<ModelOutput>, Failed> {
        let Some(path) = &self.model_out else { return Ok(None) };
        let shown = path.display();
        let base = Model::named(&self.model_base)
            .map_err(|error| format!("--model-base {}: {error}", self.model_base))?;
        if hosts < PoolSurvey::HOSTS_MIN {
            return Err(format!("--model-out: {}", PoolError::Hosts(hosts)).into());
        }
        if hosts > MESH_HOSTS_MAX {
            return Err(format!(
                "--model-out: all pairs of {MESH_HOSTS_MAX} agents at most are measured, not of \
                 {hosts}; name some of the agents with --agents"
            )
            .into());
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        if parent.is_some_and(|parent| !parent.is_dir()) {
            return Err(format!("--model-out {shown}: its directory does not exist").into());
        }
        if path.is_dir() {
            return Err(format!("--model-out {shown}: is a directory; name a file").into());
        }
        Ok(Some(ModelOutput { path: path.clone(), base }))
    }
}

impl ModelOutput {
    /// Writes the model of the measured pool. Each pair was measured for this long. Returns the
    /// path.
    pub fn write(&self, survey: &TreeSurvey, measured: Duration) -> Result<&PathBuf, Failed> {
        let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let pairs = survey.records().map(|(from, to, sent, record)| Pair {
            from,
            to,
            sent,
            record: record.clone(),
        });
        let pool = PoolSurvey {
            hosts: survey.delays().hosts(),
            pairs: pairs.collect(),
            seconds: measured.as_secs_f64(),
            stack: Stack::Sockets,
            date: now.split('T').next().unwrap_or(&now).to_owned(),
        };
        let failed =
            |error: &dyn std::fmt::Display| format!("--model-out {}: {error}", self.path.display());
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let model = pool.model(&stem, &self.base).map_err(|error| failed(&error))?;
        let text = model.to_toml();
        // A survey of strange delays may give numbers that no program would read again.
        Model::parse(&stem, &text).map_err(|error| failed(&error))?;
        fs::write(&self.path, text).map_err(|error| failed(&error))?;
        Ok(&self.path)
    }
}
