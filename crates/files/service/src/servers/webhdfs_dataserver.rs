//! WebHDFS at a dataserver: the bytes of files.

use std::io::{self, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenfall_core::SharedKey;
use evenfall_files_machine::config::{APPEND_BYTES_MAX, BLOCK_BYTES};
use evenfall_files_machine::{CopyView, Dataserver, FilesRefusal, InodeId};
use evenfall_runtime::address::HostPort;
use evenfall_runtime::http::streams::{Arriving, Content, Pieces, StreamAnswer};
use evenfall_runtime::http::{
    self, AllowedHosts, Answered, Method, RequestError, StatusCode, Upload, exchange_under,
};
use serde_json::json;

use super::checksums::BlockChecksum;
use super::create_concat::{CREATE_ARGUMENTS, GATHER, MAKE};
use super::flows::{Counts, FlowSteering};
use super::leases::{OLD_NAMESERVER, WRITER, writer_of};
use super::logs::Logs;
use super::owner::OwnerInbox;
use super::pages::{StatePages, of_dataserver};
use super::reading::FileReading;
use super::rebuilding;
use super::webhdfs::{self, WebHdfsException, WebHdfsRequest, escaped, json_of};
use super::writing::{PATIENCE, Pipeline, ROUND};
use crate::Options;
use crate::settings::DATASERVER;

/// Hadoop's name of the checksum that does not depend on blocks (`dfs.checksum.combine.mode`).
const COMPOSITE: &str = "COMPOSITE_CRC";
/// Longest wait of a reader for bytes that the nameserver knows of and that have not come here yet.
const READ_PATIENCE: Duration = Duration::from_secs(10);
/// How long a reader waits here before it is sent to the primary. A follower learns the committed
/// length within a tick.
const BEHIND_PATIENCE: Duration = Duration::from_secs(1);
/// Longest wait of a writer for a lead that another dataserver has. The nameserver may have named
/// this dataserver before the lead came here.
const LEAD_PATIENCE: Duration = Duration::from_secs(2);
/// Shortest body of a write that is reported to the flowserver.
const FLOW_BYTES_MIN: u64 = 8 << 20;
/// Longest wait for a nameserver that makes a file: more than the nameserver waits for its log.
const MAKE_PATIENCE: Duration = Duration::from_secs(40);
/// A request that waits for the lead of a new file, or for the committed length, first looks again
/// after this time. The lead takes one write of the log here. Later looks are further apart.
const FIRST_ROUND: Duration = Duration::from_micros(250);
/// Limit of the files that clients write at once. Each file has up to 13 MB on the way to the
/// disks, and the machine has a limit for the bytes of all files together.
const WRITERS_MAX: usize = 64;

/// The routes of a dataserver.
#[derive(Clone)]
pub struct DataserverRoutes {
    inbox: OwnerInbox<Dataserver>,
    directory: PathBuf,
    /// Where this dataserver takes HTTP.
    own: SocketAddr,
    pub(super) nameserver: HostPort,
    key: Option<SharedKey>,
    counts: Counts,
    steering: Option<FlowSteering>,
    /// The names by which browsers may address this server.
    hosts: AllowedHosts,
    pages: StatePages,
    /// Requests that write a file now.
    writing: Arc<AtomicUsize>,
}

/// A request that writes a file, counted until the value is dropped.
struct Writing<'a>(&'a AtomicUsize);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl DataserverRoutes {
    /// The routes in front of this dataserver.
    pub fn new(inbox: OwnerInbox<Dataserver>, options: &Options, counts: Counts) -> Self {
        let Options { directory, reached_at: own, nameserver, key, .. } = options.clone();
        let (steering, hosts) = (options.steering(), options.allowed_hosts());
        let (writing, looked_at) = (Arc::default(), inbox.clone());
        let pages = StatePages::new(&options.name, DATASERVER, move || of_dataserver(&looked_at));
        Self { inbox, directory, own, nameserver, key, counts, steering, hosts, pages, writing }
    }

    /// The pages of the server about itself.
    pub fn pages(&self) -> &StatePages {
        &self.pages
    }

    /// How requests reach the machine.
    pub fn inbox(&self) -> &OwnerInbox<Dataserver> {
        &self.inbox
    }

    /// Answers with this dataserver's copy of the nameserver's log. The headers name the disk and
    /// the generation of the copy.
    fn names(&self) -> Result<StreamAnswer, WebHdfsException> {
        let look = |server: &mut Dataserver, _| (server.disk(), server.log_replica_position());
        let (disk, (generation, log)) = self.inbox.ask(look)?;
        let logs = Logs::new(self.directory.clone());
        let (length, pieces) = match log {
            Some(log) => {
                logs.pieces(&log).map_err(|error| WebHdfsException::io(error.to_string()))?
            }
            None => (0, Box::new(std::iter::empty()) as Pieces),
        };
        let headers = vec![
            (rebuilding::DISK, disk.to_string()),
            (rebuilding::GENERATION, format!("{generation:016x}")),
        ];
        let content = Content::Stream(Some(length), pieces);
        Ok(StreamAnswer { status: StatusCode::OK, headers, content })
    }

    /// Answers a request.
    pub fn answer(&self, request: &http::Request, body: Arriving) -> StreamAnswer {
        if let Some(page) = self.pages.answer(request) {
            return page;
        }
        if let Err(foreign) = self.hosts.check(request) {
            return WebHdfsException::from(foreign).into();
        }
        if (&request.method, request.path.as_str()) == (&Method::GET, rebuilding::NAMES) {
            return self.names().unwrap_or_else(StreamAnswer::from);
        }
        let answered = WebHdfsRequest::read(request, "bytes of files are below /webhdfs/v1");
        let is_long = request
            .header("content-length")
            .is_none_or(|text| text.parse().is_ok_and(|bytes: u64| bytes >= FLOW_BYTES_MIN));
        let client = is_long.then(|| request.from.ip().to_canonical());
        let method = &request.method;
        let answered = answered.and_then(|read| self.operate(method, &read, client, body));
        answered.unwrap_or_else(StreamAnswer::from)
    }

    fn operate(
        &self,
        method: &Method,
        request: &WebHdfsRequest,
        client: Option<IpAddr>,
        body: Arriving,
    ) -> Result<StreamAnswer, WebHdfsException> {
        let op = request.op.as_str();
        let is_ours = matches!(
            (method.as_str(), op),
            ("GET", "OPEN" | "GETFILECHECKSUM") | ("PUT", "CREATE") | ("POST", "APPEND" | GATHER)
        );
        if !is_ours {
            let what = format!("a dataserver has no {method} {op:.50}: ask the nameserver");
            return Err(WebHdfsException::unsupported(what));
        }
        let (file, lease) = match request.number("file")?.map(InodeId) {
            Some(file) => (file, None),
            None if op == "CREATE" => self.make(request)?,
            None => {
                let what = "there is no argument file: ask the nameserver, which gives the address";
                return Err(WebHdfsException::argument(what));
            }
        };
        match op {
            "OPEN" => self.open(request, file),
            "GETFILECHECKSUM" => self.checksum(request, file),
            GATHER => self.gather(request, file),
            _ => self.write(request, (file, lease), client, body),
        }
    }

    fn view(&self, file: InodeId) -> Result<Option<(CopyView, Option<u64>)>, WebHdfsException> {
        let look = move |server: &mut Dataserver, _| {
            server.view(file).map(|view| (view, server.epoch(file)))
        };
        Ok(self.inbox.ask(look)?)
    }

    /// Waits until the copy has `end` bytes that all members have. If a copy that does not lead
    /// still lacks some of these bytes after a while, the wait ends with the address of its
    /// primary, which has all of them. Hadoop's client does not follow a redirect from a
    /// dataserver.
    fn wait_for(
        &self,
        file: InodeId,
        end: u64,
    ) -> Result<Result<Found, SocketAddr>, WebHdfsException> {
        let (begun, mut rest) = (Instant::now(), FIRST_ROUND);
        loop {
            match self.view(file)? {
                Some((view, epoch)) if view.committed >= end => return Ok(Ok((view, epoch))),
                Some((view, _)) if !view.is_primary && begun.elapsed() >= BEHIND_PATIENCE => {
                    let primary = view.members.first().map(|place| place.http);
                    if let Some(primary) = primary.filter(|primary| *primary != self.own) {
                        return Ok(Err(primary));
                    }
                }
                // The file was deleted, or this dataserver has just been given a copy of the file.
                None if begun.elapsed() >= BEHIND_PATIENCE => {
                    return Err(FilesRefusal::NotHere.into());
                }
                _ => {}
            }
            if begun.elapsed() >= READ_PATIENCE {
                return Err(WebHdfsException::again(
                    "this dataserver lacks bytes of the file: try again",
                ));
            }
            std::thread::sleep(rest);
            rest = ROUND.min(rest * 2);
        }
    }

    fn open(
        &self,
        request: &WebHdfsRequest,
        file: InodeId,
    ) -> Result<StreamAnswer, WebHdfsException> {
        let end = request.number("end")?.unwrap_or(0);
        let offset = request.number("offset")?.unwrap_or(0);
        let length = request.number("length")?;
        let (view, epoch) = match self.wait_for(file, end)? {
            Ok(found) => found,
            Err(other) => return Ok(elsewhere(request, file, other)),
        };
        let committed = view.committed;
        if offset > committed {
            return Err(WebHdfsException::io(format!(
                "Offset={offset} out of the range [0, {committed}]"
            )));
        }
        let bytes = length.unwrap_or(u64::MAX).min(committed - offset);
        let others = view.members.iter().map(|place| place.http).filter(|http| *http != self.own);
        // The reader is a dataserver that found its own copy damaged, and wants the bytes of this
        // copy only.
        let others = if request.flag("only")? { Vec::new() } else { others.collect() };
        let range = offset..offset + bytes;
        let (directory, of) = (self.directory.clone(), (file, request.path.as_str()));
        let others = (others, self.key.clone());
        let reading = FileReading::new(&self.inbox, directory, of, (view, epoch), range, others);
        let headers = vec![("content-type", "application/octet-stream".to_owned())];
        let flow = request.number("flow")?.map(|flow| (flow, self.counts.clone()));
        let content = Content::Stream(Some(bytes), Box::new(reading.counted(flow)));
        Ok(StreamAnswer { status: StatusCode::OK, headers, content })
    }

    /// The checksum of the whole file: the one that Hadoop's client reads, or the one that does not
    /// depend on blocks.
    fn checksum(
        &self,
        request: &WebHdfsRequest,
        file: InodeId,
    ) -> Result<StreamAnswer, WebHdfsException> {
        let end = request.number("end")?.unwrap_or(0);
        let (view, epoch) = match self.wait_for(file, end)? {
            Ok(found) => found,
            Err(other) => return Ok(elsewhere(request, file, other)),
        };
        if !request.text("combine").is_some_and(|mode| mode.eq_ignore_ascii_case(COMPOSITE)) {
            let block = request.number("block")?.filter(|block| *block > 0);
            let mut sum = BlockChecksum::new(block.unwrap_or(BLOCK_BYTES));
            let others = view.members.iter().map(|place| place.http);
            let others: Vec<_> = others.filter(|http| *http != self.own).collect();
            let (directory, of) = (self.directory.clone(), (file, request.path.as_str()));
            let (range, others) = (0..view.committed, (others, self.key.clone()));
            let reading =
                FileReading::new(&self.inbox, directory, of, (view, epoch), range, others);
            for piece in reading.counted(None) {
                sum.add(&piece.map_err(|error| WebHdfsException::again(error.to_string()))?);
            }
            let (algorithm, bytes) = sum.finish();
            let length = bytes.len() / 2;
            return Ok(json_of(&json!({ "FileChecksum": {
                "algorithm": algorithm, "bytes": bytes, "length": length,
            } })));
        }
        let mut logs = Logs::new(self.directory.clone());
        let sum = logs.checksum(file, &view.chunks, view.committed);
        let sum = sum.map_err(|error| WebHdfsException::again(error.to_string()))?;
        let sum =
            sum.ok_or_else(|| WebHdfsException::again("the copy here is damaged or was replaced"))?;
        Ok(json_of(&json!({ "FileChecksum": {
            "algorithm": "COMPOSITE-CRC32C", "bytes": format!("{sum:08x}"), "length": 4,
        } })))
    }

    /// Asks another server, without a body.
    pub(super) fn ask(
        &self,
        url: &str,
        method: Method,
        patience: Duration,
    ) -> Result<Answered, RequestError> {
        exchange_under(self.key.as_ref(), url, method, Upload::none(), patience, &mut |_| {})
    }

    /// Asks the nameserver to make the file whose bytes this dataserver is about to take. The
    /// request gets the lease of the file.
    fn make(&self, request: &WebHdfsRequest) -> Result<LeasedFile, WebHdfsException> {
        // Without room for one more writer, the new file would replace the old file and then get no
        // bytes.
        expect_room(self.writing.load(Ordering::Relaxed))?;
        let disk = self.inbox.ask(|server, _| server.disk())?;
        let (names, path) = (&self.nameserver, escaped(&request.path));
        let mut url = format!("http://{names}{}{path}?op={MAKE}&disk={}", webhdfs::PREFIX, disk.0);
        url += &format!("&{WRITER}={}", escaped(&writer_of(request)?));
        for name in CREATE_ARGUMENTS.iter().chain(&["user.name"]) {
            if let Some(value) = request.text(name) {
                url += &format!("&{name}={}", escaped(value));
            }
        }
        let made = self.ask(&url, Method::PUT, MAKE_PATIENCE);
        let wrong = |error: &dyn std::fmt::Display| {
            WebHdfsException::io(format!("{} may have been made or not: {error}", request.path))
        };
        let made = match made {
            Ok(made) if made.status == StatusCode::OK => made.text().map_err(|e| wrong(&e))?,
            Ok(made) => return Err(WebHdfsException::of(made)),
            Err(error @ RequestError::Connection(_)) => {
                return Err(WebHdfsException::again(format!("the nameserver: {error}")));
            }
            Err(error) => return Err(wrong(&error)),
        };
        let made: serde_json::Value = serde_json::from_str(&made).map_err(|e| wrong(&e))?;
        let file = made["file"].as_u64().ok_or_else(|| wrong(&"the answer has no number"))?;
        let lease = made["lease"].as_u64().ok_or_else(|| wrong(&OLD_NAMESERVER))?;
        Ok((InodeId(file), Some(lease)))
    }

    /// Copies the beginnings of files into a new file. Each part is a number, the address of a
    /// dataserver that has a copy, and a length.
    fn gather(
        &self,
        request: &WebHdfsRequest,
        file: InodeId,
    ) -> Result<StreamAnswer, WebHdfsException> {
        // No client knows the name of the new file, so the file needs no lease.
        let _writing = self.begin_to_write()?;
        let view = self.wait_to_lead(file, None, PATIENCE)?;
        if view.queued > 0 {
            return Err(WebHdfsException::io(format!("{} has bytes already", request.path)));
        }
        let parts = request.text("parts").unwrap_or_default().split(',');
        let mut pipeline = Pipeline::new(self, file, None, 0);
        for part in parts.filter(|part| !part.is_empty()) {
            let wrong = || WebHdfsException::argument("a part is NUMBER@ADDRESS@LENGTH");
            let mut words = part.split('@');
            let mut word = || words.next().ok_or_else(wrong);
            let (id, http, length) = (word()?, word()?, word()?);
            let id: u64 = id.parse().map_err(|_| wrong())?;
            let http: SocketAddr = http.parse().map_err(|_| wrong())?;
            let length: u64 = length.parse().map_err(|_| wrong())?;
            if self.key.is_none() && !http.ip().is_loopback() {
                return Err(WebHdfsException::argument(
                    "without a key a part is on a loopback address",
                ));
            }
            let from = format!("http://{http}{}/?op=OPEN&file={id}", webhdfs::PREFIX);
            let from = format!("{from}&end={length}&offset=0&length={length}");
            let gone =
                |error: &dyn std::fmt::Display| WebHdfsException::again(format!("{http}: {error}"));
            let from = self.ask(&from, Method::GET, READ_PATIENCE);
            let from = from.map_err(|error| gone(&error))?;
            if from.status != StatusCode::OK {
                return Err(gone(&from.status));
            }
            let mut from = from.take(length);
            let next = || {
                let mut piece = Vec::with_capacity(APPEND_BYTES_MAX);
                let most = APPEND_BYTES_MAX as u64;
                from.by_ref().take(most).read_to_end(&mut piece).map(|_| piece.into())
            };
            push_all(&mut pipeline, next, Some(length))?;
        }
        pipeline.finish()?;
        self.flush(file, None)?;
        Ok(webhdfs::empty(StatusCode::OK))
    }

    fn write(
        &self,
        request: &WebHdfsRequest,
        (file, lease): LeasedFile,
        client: Option<IpAddr>,
        body: Arriving,
    ) -> Result<StreamAnswer, WebHdfsException> {
        let _writing = self.begin_to_write()?;
        self.wait_to_lead(file, None, PATIENCE)?;
        let lease = lease.map_or_else(|| self.ask_for_lease(request, file), Ok)?;
        let written = self.write_under(request, file, lease, client, body);
        // The nameserver learns the length, and gets the lease back, even when the body was cut.
        let flushed = self.flush(file, Some(lease));
        written.and(flushed)?;
        if request.op != "CREATE" {
            return Ok(webhdfs::empty(StatusCode::OK));
        }
        let mut answer = webhdfs::empty(StatusCode::CREATED);
        let location = format!("webhdfs://{}{}", self.nameserver, escaped(&request.path));
        answer.headers.push(("location", location));
        Ok(answer)
    }

    /// Writes the body of a request under the lease of this generation.
    fn write_under(
        &self,
        request: &WebHdfsRequest,
        file: InodeId,
        lease: u64,
        client: Option<IpAddr>,
        mut body: Arriving,
    ) -> Result<(), WebHdfsException> {
        let at = request.number("at")?;
        // The lease comes here with the next assignment of the file.
        let view = self.wait_to_lead(file, Some(lease), PATIENCE)?;
        if request.op == "CREATE" && view.queued > 0 {
            let what = format!("{} has bytes already: create it anew", request.path);
            return Err(WebHdfsException::io(what));
        }
        if let Some(at) = at.filter(|at| *at != view.queued) {
            let what = format!("{} has {} bytes and not {at}", request.path, view.queued);
            return Err(WebHdfsException::again(what));
        }
        let flows = self.begin_flows(client, &view);
        let mut pipeline = Pipeline::new(self, file, Some(lease), view.queued);
        let pushed = push_all(&mut pipeline, || body.next_bytes(APPEND_BYTES_MAX), None);
        let written = pushed.and_then(|()| pipeline.finish());
        if let Some(steering) = &self.steering {
            steering.end(&flows);
        }
        written
    }

    /// Tells the flowserver of the flows of a long write: one from the client, and one to each
    /// other member.
    fn begin_flows(&self, client: Option<IpAddr>, view: &CopyView) -> Vec<u64> {
        let (Some(steering), Some(client)) = (&self.steering, client) else { return Vec::new() };
        let own = self.own.ip();
        let others = view.members.iter().map(|place| place.http.ip()).filter(|ip| *ip != own);
        let flows = others.map(|other| (own, other)).chain([(client, own)]);
        flows.filter_map(|(from, to)| steering.write(from, to)).collect()
    }

    fn begin_to_write(&self) -> Result<Writing<'_>, WebHdfsException> {
        let writing = Writing(&self.writing);
        expect_room(self.writing.fetch_add(1, Ordering::Relaxed))?;
        Ok(writing)
    }

    /// Whether this dataserver leads the file now.
    ///
    /// # Errors
    /// The process ends.
    pub fn leads(&self, file: InodeId) -> Result<bool, WebHdfsException> {
        Ok(self.view(file)?.is_some_and(|(view, _)| view.is_primary))
    }

    /// Waits until this dataserver leads the file, and knows the lease of this generation.
    ///
    /// # Errors
    /// When this dataserver does not lead in time, or another dataserver has led for a while.
    pub fn wait_to_lead(
        &self,
        file: InodeId,
        lease: Option<u64>,
        patience: Duration,
    ) -> Result<CopyView, WebHdfsException> {
        let (begun, mut rest) = (Instant::now(), FIRST_ROUND);
        loop {
            let found = self.view(file)?;
            if let Some((view, _)) = &found
                && view.is_primary
                && lease <= Some(view.lease.generation)
            {
                return Ok(view.clone());
            }
            let is_elsewhere = found.is_some_and(|(view, _)| {
                view.members.first().is_some_and(|place| place.http != self.own)
            });
            let patience = if is_elsewhere { LEAD_PATIENCE } else { patience };
            if begun.elapsed() >= patience {
                return Err(FilesRefusal::NotPrimary.into());
            }
            std::thread::sleep(rest);
            rest = ROUND.min(rest * 2);
        }
    }

    /// Waits until the nameserver knows the length, and has the lease back.
    fn flush(&self, file: InodeId, lease: Option<u64>) -> Result<(), WebHdfsException> {
        let begun = Instant::now();
        loop {
            let pending = self.inbox.begin(move |server, _, token| match lease {
                Some(lease) => server.flush_and_release(token, file, lease),
                None => server.flush(token, file),
            });
            match pending.wait(PATIENCE.saturating_sub(begun.elapsed())) {
                Some(Ok(())) => return Ok(()),
                Some(Err(refusal @ FilesRefusal::NotHere)) => return Err(refusal.into()),
                // A dataserver that was left out of the group will not lead soon.
                Some(Err(FilesRefusal::NotPrimary)) if begun.elapsed() < LEAD_PATIENCE => {
                    std::thread::sleep(ROUND);
                }
                // The bytes may be there, so nobody may be asked to send them again.
                Some(Err(_)) | None => {
                    let what =
                        "the nameserver has not noted the length: read the file to find its end";
                    return Err(WebHdfsException::io(what));
                }
            }
        }
    }
}

/// The state of a copy, and its epoch.
type Found = (CopyView, Option<u64>);

/// A file, and the generation of its lease when the request has the lease already.
type LeasedFile = (InodeId, Option<u64>);

/// Refuses one more file when `writing` requests are as many as this server takes.
fn expect_room(writing: usize) -> Result<(), WebHdfsException> {
    if writing >= WRITERS_MAX {
        let what = format!("{WRITERS_MAX} files are written here already");
        return Err(WebHdfsException::again(what));
    }
    Ok(())
}

/// Appends every piece that `next` gives, up to an empty piece. A given length has to be the length
/// of all pieces together.
fn push_all(
    pipeline: &mut Pipeline<'_>,
    mut next: impl FnMut() -> io::Result<Bytes>,
    length: Option<u64>,
) -> Result<(), WebHdfsException> {
    let mut done = 0;
    loop {
        let piece = next();
        let piece =
            piece.map_err(|error| WebHdfsException::io(format!("the body was cut: {error}")))?;
        if piece.is_empty() {
            let is_whole = length.is_none_or(|length| length == done);
            return is_whole.then_some(()).ok_or_else(|| WebHdfsException::io("the body was cut"));
        }
        done += piece.len() as u64;
        pipeline.push(piece)?;
    }
}

/// Sends the client to another dataserver with the same arguments.
fn elsewhere(request: &WebHdfsRequest, file: InodeId, other: SocketAddr) -> StreamAnswer {
    let mut query = format!("op={}&file={}", request.op, file.0);
    for name in ["offset", "length", "end", "only", "flow", "block", "combine"] {
        if let Some(value) = request.text(name) {
            query += &format!("&{name}={}", escaped(value));
        }
    }
    webhdfs::redirect_to(&format!(
        "http://{other}{}{}?{query}",
        webhdfs::PREFIX,
        escaped(&request.path)
    ))
}
