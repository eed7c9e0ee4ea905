//! The leases of writers: how a dataserver gets one for the client that writes through it.
//!
//! The first step of `CREATE` and of `APPEND` takes no lease, as in HDFS. The dataserver asks for
//! the lease when the bytes come, and gives it back with the length of the file:
//!
//! ```text
//!  client ── APPEND ──> nameserver         a redirect
//!    └─ APPEND, bytes ─> dataserver ── LEASE ──> nameserver: the lease, and its generation
//!                            │ appends under this generation; they renew the lease
//!                            └─ the length, and the lease is given back ──> nameserver
//! ```
//!
//! The holder of a lease is the request. A client that asks again after the death of a dataserver
//! names itself (`writer`), and then gets its own lease again at once. Other clients get the lease
//! when the request has ended, or when its bytes have stopped for longer than the soft limit.

use std::time::Duration;

use evenfall_files_machine::{FilesRefusal, HeldLease, InodeId, Nameserver};
use evenfall_runtime::http::streams::StreamAnswer;
use evenfall_runtime::http::{Method, StatusCode};
use serde_json::{Value, json};

use super::owner::{OwnerInbox, now_ms, random_number};
use super::reports;
use super::webhdfs::{self, WebHdfsException, WebHdfsRequest, escaped, json_of};
use super::webhdfs_dataserver::DataserverRoutes;
use super::webhdfs_nameserver::NameserverRoutes;

/// Evenfall's own operation with which a dataserver asks for the lease of a file.
pub const LEASE: &str = "LEASE";
/// Evenfall's own argument with which a client names itself as a writer.
pub const WRITER: &str = "writer";
/// What a dataserver says when the answer of a nameserver names no lease.
pub const OLD_NAMESERVER: &str = "the nameserver is of an earlier build, which grants no leases: \
    start the build of its dataservers there";
/// Longest wait for a nameserver that grants a lease: more than the nameserver waits for its log.
const GRANT_PATIENCE: Duration = Duration::from_secs(40);

/// The name under which a request holds a lease: the user, and the client's name for itself. For a
/// client without a name, these are the user, the address and a random number.
///
/// # Errors
/// When the user has no name that may be one, or the kernel gives no random number.
pub fn writer_of(request: &WebHdfsRequest) -> Result<String, WebHdfsException> {
    let user = request.user()?;
    if let Some(own) = request.text(WRITER) {
        return Ok(format!("{user}/{own}"));
    }
    let number = random_number().map_err(|error| WebHdfsException::io(error.to_string()))?;
    Ok(format!("{user}@{}/{number:016x}", request.from))
}

impl NameserverRoutes {
    /// Grants the lease of a file to the writer that a dataserver names.
    pub fn grant_lease(&self, request: &WebHdfsRequest) -> Result<StreamAnswer, WebHdfsException> {
        let missing = || WebHdfsException::argument("LEASE needs file=NUMBER and writer=NAME");
        let number = request.number("file")?.ok_or_else(missing)?;
        let writer = request.text(WRITER).ok_or_else(missing)?.to_owned();
        let (path, caller) = (request.path.clone(), self.caller(request)?);
        let generation = reports::logged_value(&self.inbox, move |server, now, token| {
            let (id, _) = server.namespace().find_as(&caller, &path)?;
            // The bytes are for the file that the dataserver leads, and not for a later one.
            if id != InodeId(number) {
                return Err(FilesRefusal::Changed(path));
            }
            server.grant_lease(now, now_ms(), token, &caller, id, &writer)
        })?;
        Ok(json_of(&json!({ "lease": generation })))
    }
}

/// The leases that writers hold.
pub fn held_leases(inbox: &OwnerInbox<Nameserver>) -> Result<StreamAnswer, WebHdfsException> {
    let all = inbox.ask(|server, _| {
        let one = |held: &HeldLease| {
            let HeldLease { file, generation, holder, is_ending } = held;
            json!({
                "path": server.namespace().path(*file), "generation": generation,
                "writer": holder.writer, "since": holder.since_ms, "until": holder.until_ms,
                "state": if *is_ending { "ending" } else { "held" }, "words": holder.to_string(),
            })
        };
        server.held_leases().iter().map(one).collect::<Vec<Value>>()
    })?;
    Ok(json_of(&json!({ "leases": all })))
}

impl DataserverRoutes {
    /// Asks the nameserver for the lease of a file that this dataserver leads.
    ///
    /// # Errors
    /// The exception of the nameserver, which names the holder of the lease when there is one.
    pub fn ask_for_lease(
        &self,
        request: &WebHdfsRequest,
        file: InodeId,
    ) -> Result<u64, WebHdfsException> {
        let (names, path) = (&self.nameserver, escaped(&request.path));
        let writer = escaped(&writer_of(request)?);
        let user = escaped(request.user()?);
        let url = format!(
            "http://{names}{}{path}?op={LEASE}&file={}&{WRITER}={writer}&user.name={user}",
            webhdfs::PREFIX,
            file.0
        );
        let what =
            |error: &dyn std::fmt::Display| format!("the lease of {}: {error}", request.path);
        let granted = match self.ask(&url, Method::PUT, GRANT_PATIENCE) {
            Ok(granted) if granted.status == StatusCode::OK => granted.text(),
            Ok(granted) => return Err(WebHdfsException::of(granted)),
            Err(error) => Err(error),
        };
        // Nothing was written yet, so the client may ask again.
        let granted = granted.map_err(|error| WebHdfsException::again(what(&error)))?;
        let granted: Value = serde_json::from_str(&granted).unwrap_or_default();
        granted["lease"].as_u64().ok_or_else(|| WebHdfsException::io(what(&OLD_NAMESERVER)))
    }
}
