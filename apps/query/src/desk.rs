//! Who answers `reprice` and `nbbo`: the recordings of the place, or standing workers.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use evenfall_host::whole_file::read_text_up_to;
use evenfall_query_member::{WORKER_SILENCE, WorkerAccess, parse_addresses};
use evenfall_query_sql::DeskSource;
use evenfall_runtime::settings::read_key;

/// Bytes of a file of addresses: a hundred thousand lines.
const LIST_BYTES_MAX: u64 = 4 << 20;

/// Standing workers, and how they are asked.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Who answers reprice and nbbo")]
pub(crate) struct DeskArgs {
    /// Standing workers: a file with the address of each, one a line. They are recorders that run
    /// with --burst. Without this option the recordings of PLACE answer.
    #[arg(long, value_name = "FILE")]
    workers: Option<PathBuf>,
    /// The address of this host from which the workers are asked. Needed when they are on other
    /// hosts.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", requires = "workers")]
    own: SocketAddr,
    /// The file of the key that the workers share. Nothing is sent beyond loopback without a key.
    #[arg(long, value_name = "FILE", requires = "workers")]
    key_file: Option<PathBuf>,
    /// How long a worker may be silent before the others answer without it: 250ms by default.
    #[arg(long, value_name = "DURATION", requires = "workers",
          value_parser = humantime::parse_duration)]
    silence: Option<Duration>,
    /// The fewest workers of an answer; by default more than half of them.
    #[arg(long, value_name = "COUNT", requires = "workers")]
    workers_min: Option<usize>,
}

impl DeskArgs {
    /// The source of the answers.
    ///
    /// # Errors
    /// A file that cannot be read, and workers that cannot be asked.
    pub(crate) fn source(&self) -> Result<DeskSource, Box<dyn std::error::Error>> {
        let Some(file) = &self.workers else { return Ok(DeskSource::default()) };
        let about =
            |error: &dyn std::fmt::Display| format!("--workers {}: {error}", file.display());
        let text = read_text_up_to(file, LIST_BYTES_MAX).map_err(|error| about(&error))?;
        let workers = parse_addresses(&text).map_err(|error| about(&error))?;
        let key = self.key_file.as_deref().map(read_key).transpose();
        let key = key.map_err(|why| format!("--key-file {why}"))?;
        let silence = self.silence.unwrap_or(WORKER_SILENCE);
        let (own, workers_min) = (self.own, self.workers_min);
        let access = WorkerAccess { workers, own, key, silence, workers_min };
        Ok(DeskSource::of_workers(access).map_err(|error| about(&error))?)
    }
}
