//! Rebuilds a nameserver that lost its disk from the copies of its log on dataservers.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::SharedKey;
use evenfall_files_machine::DiskId;
use evenfall_files_machine::log_replication::{self, FoundLog};
use evenfall_files_machine::nameserver::LOG;
use evenfall_runtime::http::{Method, StatusCode, Upload, exchange_under};

use super::owner::lock;
use crate::{Options, ServiceError};

/// The path at which a dataserver serves its copy of the nameserver's log.
pub const NAMES: &str = "/evenfall/names";
/// The header with the disk of the dataserver.
pub const DISK: &str = "x-evenfall-disk";
/// The header with the generation of the last stream that began on the dataserver.
pub const GENERATION: &str = "x-evenfall-generation";
/// A dataserver that sends nothing for this long counts as silent.
const PATIENCE: Duration = Duration::from_secs(10);

/// The copy from which a nameserver was rebuilt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuildSource {
    /// The dataserver whose copy was taken.
    pub from: SocketAddr,
    /// Number of bytes of the log.
    pub bytes: u64,
    /// Number of dataservers and disks that did not answer and may have a newer copy.
    pub missing: usize,
    /// Whether the copy names a dataserver that keeps the log. A copy without one may lack changes
    /// that were acknowledged.
    pub is_kept: bool,
}

fn copy_of(server: SocketAddr, key: Option<&SharedKey>) -> Option<FoundLog> {
    let url = format!("http://{server}{NAMES}");
    let answer = exchange_under(key, &url, Method::GET, Upload::none(), PATIENCE, &mut |_| {});
    let mut answer = answer.ok().filter(|answer| answer.status == StatusCode::OK)?;
    let number = |name| u64::from_str_radix(answer.header(name)?, 16).ok();
    let (disk, generation) = (DiskId(number(DISK)?), number(GENERATION)?);
    let mut log = Vec::new();
    answer.read_to_end(&mut log).ok()?;
    Some(FoundLog { disk, generation, log: Bytes::from(log) })
}

/// Writes the log to the nameserver's directory. A crash leaves the whole log or no log.
fn put(directory: &Path, log: &[u8]) -> io::Result<()> {
    let new = directory.join(format!("{LOG}.new"));
    let mut file = File::create(&new)?;
    file.write_all(log)?;
    file.sync_all()?;
    std::fs::rename(&new, directory.join(LOG))?;
    File::open(directory)?.sync_all()
}

/// Writes the log of a nameserver from the newest copy that these dataservers have. A directory
/// that already has a log is refused, so that no log is overwritten by mistake.
///
/// # Errors
/// When the directory has a log, or no dataserver has a copy. Without `is_forced`, also when a
/// dataserver or a disk that may have a newer copy did not answer, and when the newest copy is of
/// the time before a dataserver kept the log.
pub fn rebuild(
    options: &Options,
    dataservers: &[SocketAddr],
    is_forced: bool,
) -> Result<RebuildSource, ServiceError> {
    options.check()?;
    options.check_others(dataservers)?;
    let _lock = lock(&options.directory)?;
    let directory = options.directory.display();
    let path = options.directory.join(LOG);
    if std::fs::metadata(&path).is_ok_and(|about| about.len() > 0) {
        let what = format!("{directory} has a log of names: move it away before a rebuild");
        return Err(ServiceError::Answer(what));
    }
    let key = options.key.as_ref();
    let heard = dataservers.iter().filter_map(|server| Some((*server, copy_of(*server, key)?)));
    let (servers, found): (Vec<SocketAddr>, Vec<FoundLog>) = heard.unzip();
    let nobody = || {
        let asked: Vec<String> = dataservers.iter().map(SocketAddr::to_string).collect();
        let asked = asked.join(", ");
        ServiceError::Answer(format!("none of {asked} has a copy of the nameserver's log"))
    };
    let best = log_replication::rebuilt(&found).ok_or_else(nobody)?;
    // An older copy does not name a dataserver that has become a keeper since, so every silent
    // dataserver may have a newer copy.
    let silent = dataservers.iter().filter(|server| !servers.contains(server));
    let silent = silent.map(|server| format!("the dataserver {server}"));
    let disks = best.missing.iter().map(|disk| format!("the disk {disk}"));
    let missing: Vec<String> = silent.chain(disks).collect();
    if !missing.is_empty() && !is_forced {
        let missing = missing.join(", ");
        return Err(ServiceError::Answer(format!(
            "{missing} may have a newer copy of the nameserver's log: start every dataserver, or \
             give --force to rebuild from the copies that were found"
        )));
    }
    if !best.is_kept && !is_forced {
        return Err(ServiceError::Answer(
            "the newest copy of the nameserver's log is of a time at which no dataserver kept the \
             log, so changes that were acknowledged later may be in the lost log alone: give \
             --force to rebuild from this copy"
                .into(),
        ));
    }
    let missing = missing.len();
    let at = found.iter().position(|one| one.disk == best.disk).unwrap_or(0);
    let failed = |error| ServiceError::Io(format!("write the log in {directory}"), error);
    put(&options.directory, &best.log).map_err(failed)?;
    Ok(RebuildSource {
        from: servers[at],
        bytes: best.log.len() as u64,
        missing,
        is_kept: best.is_kept,
    })
}
