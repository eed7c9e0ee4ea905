//! The process of a dataserver.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenfall_files_machine::chunk::Damage;
use evenfall_files_machine::dataserver::{Event, LOG};
use evenfall_files_machine::{DataConfig, Dataserver};
use evenfall_host::writes::Writes;
use evenfall_runtime::http::{Response, Routes, Server, StatusCode};

use crate::bytes_front::Files;
use crate::logs::Logs;
use crate::nameserver::limits;
use crate::owner::{self, Input, Owner, Waits};
use crate::reading::Joins;
use crate::{ServiceError, Settings};

/// Time between two looks at how much room the disk has.
const ROOM_EVERY: Duration = Duration::from_secs(2);

/// Bytes that the disk of a directory has left.
fn free(directory: &Path) -> u64 {
    let room = rustix::fs::statvfs(directory);
    room.map_or(0, |room| room.f_bavail.saturating_mul(room.f_frsize))
}

/// Runs a dataserver until SIGINT or SIGTERM. `started` is called once, when clients can connect.
///
/// # Errors
/// When an address cannot be had, or the disk cannot be read.
pub fn run(settings: &Settings, started: impl FnOnce()) -> Result<(), ServiceError> {
    settings.check()?;
    let _lock = owner::lock(&settings.directory)?;
    let directory = settings.directory.clone();
    let failed = |what: String| move |error| ServiceError::Io(what, error);
    let at = directory.display();
    let writes = Writes::open(&directory).map_err(failed(format!("open {at}")))?;
    let log = writes.read(LOG).map_err(ServiceError::Disk)?;
    let chunks = Logs::new(directory.clone()).scan().map_err(ServiceError::Disk)?;
    let (listen, nameserver) = (settings.listen, settings.nameserver);
    let (seed, config) = (owner::random_number()?, DataConfig::default());
    let machine = Dataserver::new(config, nameserver, listen, seed, &log, chunks);
    let machine = machine.map_err(ServiceError::Files)?;
    drop(log);
    let (owner, inbox) = Owner::new(machine, listen, writes, ROOM_EVERY)?;
    let files = Arc::new(Files::new(inbox, directory.clone(), listen, nameserver));
    let routes = Routes::default()
        .get("/healthz", |_| Response::text(StatusCode::OK, "ok"))
        .streams(move |request, body| files.answer(request, body));
    let server = Server::bind(listen, limits(), routes);
    let _server = server.map_err(failed(format!("listen on {listen}")))?;
    started();
    let mut joins = Joins::new(directory.clone());
    let take = |machine: &Dataserver, waits: &mut Waits, event: Event| {
        match event {
            Event::Appended { token, .. } | Event::Flushed { token } => waits.end(token, Ok(())),
            Event::Refused { token, why } => waits.end(token, Err(why)),
            Event::Failed(error) => tracing::warn!("the disk: {error}"),
            Event::Read { file, disk, offset } => {
                let chunks = machine.view(file)?.chunks;
                let appends = joins.read(file, disk, chunks, offset).or_else(|damage| {
                    tracing::warn!("file {}: {damage}", file.0);
                    match damage {
                        // The machine takes a copy without these appends for damaged.
                        Damage::At(_) => Ok(Vec::new()),
                        // The disk may open the log when the machine asks again.
                        Damage::Disk(error) => Err(error),
                    }
                });
                let appends = appends.ok()?;
                let give: Input<Dataserver> =
                    Box::new(move |machine, _, _| machine.give(file, disk, offset, appends));
                return Some(give);
            }
            _ => {}
        }
        None
    };
    owner.run(take, |machine| machine.set_free(free(&directory)))
}
