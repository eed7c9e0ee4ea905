//! The process of a dataserver.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenfall_files_machine::chunk::{self, Damage};
use evenfall_files_machine::dataserver::{Event, LOG};
use evenfall_files_machine::{DataConfig, Dataserver};
use evenfall_host::disk_room::measure_room;
use evenfall_host::interrupt;
use evenfall_host::writes::{RoomReserve, Writes};
use evenfall_runtime::http::{HttpServer, Limits, Routes};

use super::flows::Counts;
use super::logs::Logs;
use super::nameserver::limits;
use super::owner::{self, Owner, OwnerInbox, OwnerInput, WaitingRequests};
use super::reading::Joins;
use super::scrubbing::Scrubber;
use super::webhdfs_dataserver::DataserverRoutes;
use crate::{Options, ServiceError};

/// Time between two looks at how much room the disk has.
const ROOM_EVERY: Duration = Duration::from_secs(2);

/// Time between two looks for the address of a nameserver that has a name. Within two of them, the
/// dataserver reports to the new address.
const NAME_EVERY: Duration = Duration::from_secs(5);

/// Bytes of a body that are read from a connection at once. With 256 KiB in place of 64 KiB a put
/// of 64 MB takes an eighth less processor time, because the threads of a put wake each other less
/// often. All connections together then hold 320 MiB at most.
const BODY_BYTES: usize = 256 << 10;

/// Bytes of the disk that chunks leave to the logs. A nameserver logs each deletion on the disks of
/// dataservers too, so nothing could be deleted from a disk that chunks have filled to its end. The
/// log of the nameserver and a checkpoint beside it have 32 MiB.
const LOG_ROOM: u64 = 64 << 20;

/// Bytes that the disk of a directory has left.
fn free(directory: &Path) -> u64 {
    let room = File::open(directory).and_then(measure_room);
    room.map_or(0, |room| room.free_bytes)
}

/// Starts the thread that tells the flowserver of the flows that leave.
fn count(counts: &Counts, options: &Options) -> Result<(), ServiceError> {
    let Some(steering) = options.steering() else { return Ok(()) };
    let (counts, host, rack) = (counts.clone(), options.reached_at.ip(), options.rack.clone());
    let tell = move || counts.tell(&steering, host, &rack);
    let started = std::thread::Builder::new().name("flows".into()).spawn(tell);
    let failed = |error| ServiceError::Io("start the thread that counts flows".into(), error);
    started.map(drop).map_err(failed)
}

/// Starts the thread that looks the name of the nameserver up again and again, if it has a name. A
/// nameserver may come back at another address, and answers no beat by which the loss of the old
/// address could be noticed.
fn follow_name(
    inbox: &OwnerInbox<Dataserver>,
    options: &Options,
    mut known: SocketAddr,
) -> Result<(), ServiceError> {
    if !options.nameserver.is_name() {
        return Ok(());
    }
    let (inbox, options) = (inbox.clone(), options.clone());
    let follow = move || {
        while !interrupt::raised() {
            std::thread::sleep(NAME_EVERY);
            let Ok(found) = options.nameserver_at() else { continue };
            if found == known || options.check_others(&[found]).is_err() {
                continue;
            }
            tracing::warn!("the nameserver {} is at {found} now", options.nameserver);
            known = found;
            if inbox.ask(move |server, _| server.follow_nameserver(found)).is_err() {
                return;
            }
        }
    };
    let started = std::thread::Builder::new().name("nameserver".into()).spawn(follow);
    let failed = |error| ServiceError::Io("start the thread that looks names up".into(), error);
    started.map(drop).map_err(failed)
}

/// Starts the thread that looks for damage.
fn scrub(inbox: &OwnerInbox<Dataserver>, options: &Options) -> Result<(), ServiceError> {
    let bytes_per_s = options.files.scrub_bytes_per_second;
    if bytes_per_s == 0 {
        return Ok(());
    }
    let scrubber = Scrubber::new(inbox.clone(), options.directory.clone(), bytes_per_s);
    let started = std::thread::Builder::new().name("scrub".into()).spawn(|| scrubber.run());
    let failed = |error| ServiceError::Io("start the thread that looks for damage".into(), error);
    started.map(drop).map_err(failed)
}

/// Runs a dataserver until SIGINT or SIGTERM. `started` is called once, when clients can connect.
///
/// # Errors
/// When an address cannot be had, or the disk cannot be read.
pub fn run(options: &Options, started: impl FnOnce()) -> Result<(), ServiceError> {
    options.check()?;
    evenfall_host::memory::keep_freed();
    let _lock = owner::lock(&options.directory)?;
    let directory = options.directory.clone();
    let failed = |what: String| move |error| ServiceError::Io(what, error);
    let at = directory.display();
    let reserve = RoomReserve { bytes: LOG_ROOM, is_bulk: |log| chunk::of_name(log).is_some() };
    let writes =
        Writes::open_with_reserve(&directory, reserve).map_err(failed(format!("open {at}")))?;
    let log = writes.read(LOG).map_err(ServiceError::Disk)?;
    let chunks = Logs::new(directory.clone()).scan().map_err(ServiceError::Disk)?;
    let (listen, http) = (options.listen, options.reached_at);
    let nameserver = options.nameserver_at()?;
    // A renewal may be lost, so several of them fit into the limit.
    let renew = options.files.lease_soft_limit / 4;
    let (seed, config) = (owner::random_number()?, DataConfig { renew, ..DataConfig::default() });
    let machine = Dataserver::new(config, nameserver, http, seed, &log, chunks);
    let mut machine = machine.map_err(|e| ServiceError::Log(directory.join(LOG), e))?;
    machine.set_labels(&options.name, &options.rack);
    if options.key.is_some() {
        machine.trust_senders();
    }
    let advice = "give this dataserver an empty directory, and its files are copied anew";
    writes.warn_of_cut(LOG, log.len() as u64, machine.logged_bytes(), advice);
    drop(log);
    let key = options.key.as_ref();
    let (owner, inbox) = Owner::new(machine, (listen, key), writes, ROOM_EVERY)?;
    scrub(&inbox, options)?;
    follow_name(&inbox, options, nameserver)?;
    let counts = Counts::default();
    count(&counts, options)?;
    let files = Arc::new(DataserverRoutes::new(inbox, options, counts));
    let _pages = files.pages().serve(options.http)?;
    let routes = Routes::default().streams(move |request, body| files.answer(request, body));
    let limits = Limits { header_bytes_max: BODY_BYTES, ..limits() };
    let server = HttpServer::bind_guarded(listen, limits, routes, options.guard());
    let _server = server.map_err(failed(format!("listen on {listen}")))?;
    started();
    let mut joins = Joins::new(directory.clone());
    let take = |machine: &Dataserver, waits: &mut WaitingRequests, event: Event| {
        match event {
            Event::Appended { token, .. } | Event::Flushed { token } => waits.end(token, Ok(())),
            Event::Refused { token, why } => waits.end(token, Err(why)),
            Event::Failed(error) => tracing::warn!("the disk: {error}"),
            Event::Read { file, disk, offset } => {
                let chunks = machine.view(file)?.chunks;
                let appends = joins.read(file, disk, chunks, offset).or_else(|damage| {
                    tracing::warn!("file {}: {damage}", file.0);
                    match damage {
                        // Without these appends, the machine takes the copy for damaged.
                        Damage::At(_) => Ok(Vec::new()),
                        // The disk may open the log when the machine asks again.
                        Damage::Disk(error) => Err(error),
                    }
                });
                let appends = appends.ok()?;
                let give: OwnerInput<Dataserver> =
                    Box::new(move |machine, _, _| machine.give(file, disk, offset, appends));
                return Some(give);
            }
            _ => {}
        }
        None
    };
    owner.run(take, |machine| machine.set_free(free(&directory)))
}
