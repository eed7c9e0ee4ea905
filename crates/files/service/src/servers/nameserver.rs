//! The process of a nameserver.

use std::sync::Arc;
use std::time::Duration;

use evenfall_files_machine::nameserver::{Event, LOG};
use evenfall_files_machine::{NameConfig, Nameserver};
use evenfall_host::writes::Writes;
use evenfall_runtime::http::{HttpServer, Limits, Routes};

use super::owner::{self, Owner, WaitingRequests};
use super::webhdfs_nameserver::NameserverRoutes;
use crate::{Options, ServiceError};

/// Time between two readings of the wall clock for the times of files.
const CLOCK_EVERY: Duration = Duration::from_millis(100);

/// The limits of connections of both kinds of servers.
pub fn limits() -> Limits {
    Limits {
        // Each connection has a thread while its request is answered.
        connections_max: 256,
        // A path of 8,000 bytes has up to 24,000 bytes when it is escaped.
        header_bytes_max: 64 << 10,
        headers_max: 64,
        // Clients keep connections between two requests.
        header_timeout: Duration::from_secs(30),
        // No byte moves while a request waits for another server, and every such wait is shorter.
        request_timeout: Duration::from_secs(60),
    }
}

/// Runs a nameserver until SIGINT or SIGTERM. `started` is called once, when clients can connect.
///
/// # Errors
/// When an address cannot be had, or the log cannot be read.
pub fn run(options: &Options, started: impl FnOnce()) -> Result<(), ServiceError> {
    options.check()?;
    // Before the log is read: two nameservers on one log would acknowledge changes that exclude
    // each other.
    let _lock = owner::lock(&options.directory)?;
    let failed = |what: String| move |error| ServiceError::Io(what, error);
    let at = options.directory.display();
    let writes = Writes::open(&options.directory).map_err(failed(format!("open {at}")))?;
    let log = writes.read(LOG).map_err(ServiceError::Disk)?;
    let (dead_after, room_bytes_min) = (options.files.dead_after, options.files.room_bytes_min);
    let keepers = usize::from(options.files.log_copies);
    let (lease_soft, lease_hard) = (options.files.lease_soft_limit, options.files.lease_hard_limit);
    let config = NameConfig {
        dead_after,
        room_bytes_min,
        keepers,
        lease_soft,
        lease_hard,
        ..NameConfig::default()
    };
    let seed = owner::random_number()?;
    let machine = Nameserver::new(config, seed, &log);
    let mut machine = machine.map_err(|e| ServiceError::Log(options.directory.join(LOG), e))?;
    if options.key.is_some() {
        machine.trust_senders();
    }
    let advice = "move it away, and `evenfall files rebuild` writes it anew from a copy";
    writes.warn_of_cut(LOG, log.len() as u64, machine.logged_bytes(), advice);
    drop(log);
    let listen = options.listen;
    let key = options.key.as_ref();
    let (owner, inbox) = Owner::new(machine, (listen, key), writes, CLOCK_EVERY)?;
    let names = Arc::new(NameserverRoutes::new(inbox, config.dead_after, options));
    let _pages = names.pages().serve(options.http)?;
    let routes = Routes::default().streams(move |request, body| names.answer(request, body));
    let server = HttpServer::bind_guarded(listen, limits(), routes, options.guard());
    let _server = server.map_err(failed(format!("listen on {listen}")))?;
    started();
    let take = |_: &Nameserver, waits: &mut WaitingRequests, event: Event| {
        match event {
            Event::Done { token } => waits.end(token, Ok(())),
            Event::Failed(error) => tracing::warn!("the log of names: {error}"),
            Event::Lost { file, range: (from, to) } => {
                tracing::error!("file {}: bytes {from} to {to} are on no disk any more", file.0);
            }
            _ => {}
        }
        None
    };
    owner.run(take, |machine| machine.set_at_ms(owner::now_ms()))
}
