//! A client of WebHDFS, for the commands of `evenfall files`.
//!
//! A dataserver may die in the middle of a transfer. The client then asks the nameserver again and
//! goes on where the transfer stopped. Before it goes on with a write, it reads back what is there
//! and compares, so that no byte is written twice, and no other client's byte is taken for its own.

use std::fs::File;
use std::io::{self, BufRead as _, Read, Seek as _, SeekFrom, Write};
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes};
use evenfall_core::SharedKey;
use evenfall_runtime::address::{HostPort, SourcePorts, look_up};
use evenfall_runtime::causes::with_causes;
use evenfall_runtime::http::{Answered, Method, RequestError, StatusCode, Upload, exchange_from};
use serde_json::Value;

use super::flows::FlowSteering;
use super::leases::WRITER;
use super::owner::random_number;
use super::webhdfs::{ORDERS, PREFIX, escaped};
use crate::ServiceError;
use crate::settings::ReadLimits;

/// A server that sends nothing for this long is given up, however patient the client is.
const SILENCE: Duration = Duration::from_secs(90);
/// An attempt gets this much time at least. A server that is busy answers within it.
const ATTEMPT_MIN: Duration = Duration::from_secs(2);
/// A server waits for its log or for another server for this long, and then says why.
const SERVER_PATIENCE: Duration = Duration::from_secs(30);
/// A client that is as patient as the servers waits a little longer, to hear why they waited.
const GRACE: Duration = Duration::from_secs(5);
/// Time between two attempts.
const ROUND: Duration = Duration::from_millis(200);
/// Redirects that a reader follows until a server gives bytes.
const REDIRECTS_MAX: usize = 5;
/// Exceptions that may be gone when the client asks again. After an `IOException` of a dataserver,
/// the client reads back how much of the body was written.
const PASSING: [&str; 5] = [
    "RetriableException",
    "AlreadyBeingCreatedException",
    "RecoveryInProgressException",
    "IOException",
    "StandbyException",
];

/// Hears how many bytes are done.
pub type Tell<'a> = &'a mut dyn FnMut(u64);

/// Where the bytes of a file come from.
pub enum BytesSource {
    /// A local file. A transfer that stops in the middle goes on.
    File(PathBuf),
    /// Bytes in memory. A transfer that stops in the middle goes on.
    Bytes(Bytes),
    /// A stream. A transfer that stops in the middle ends.
    Stream(Box<dyn Read + Send>),
}

/// How to make a file whose dataserver died before the file was there.
struct Made {
    /// The request.
    url: String,
    /// The number of the file that is replaced.
    old: Option<u64>,
}

/// Where the bytes of a write go.
struct WriteTarget {
    method: Method,
    url: String,
}

/// The observer of a write, and the last refusal that the write got.
struct WriteCourse<'a> {
    tell: Tell<'a>,
    /// The last refusal. Bytes that are written after it remove it.
    named: Option<ServiceError>,
}

/// A client of a nameserver.
#[derive(Clone, Debug)]
pub struct FilesClient {
    nameserver: String,
    user: String,
    patience: Duration,
    key: Option<SharedKey>,
    /// Whether connections without a key may leave this host.
    is_open: bool,
    /// The name under which one operation writes. After the death of a dataserver, the operation
    /// gets its own lease again by this name.
    writer: Option<String>,
    pub(crate) steering: Option<FlowSteering>,
    pub(crate) limits: ReadLimits,
}

/// Whether an address belongs to this host, so that what is sent there leaves no interface.
fn is_own(address: SocketAddr) -> bool {
    address.ip().is_loopback() || UdpSocket::bind((address.ip(), 0)).is_ok()
}

/// The answer, unless it is an exception.
pub fn accepted(answer: Answered) -> Result<Answered, ServiceError> {
    if answer.status.is_success() || answer.status.is_redirection() {
        return Ok(answer);
    }
    let status = answer.status;
    let value: Value = serde_json::from_str(&answer.text().unwrap_or_default()).unwrap_or_default();
    let word = |name: &str| value["RemoteException"][name].as_str().map(str::to_owned);
    match (word("exception"), word("message")) {
        (Some(exception), Some(message)) => Err(ServiceError::Refused(exception, message)),
        _ => Err(ServiceError::Answer(format!("the server answers {status}"))),
    }
}

/// Where an answer sends the client.
pub fn location(answer: &Answered) -> Result<String, ServiceError> {
    let missing = || ServiceError::Answer("the answer names no dataserver".into());
    answer.header("location").map(str::to_owned).ok_or_else(missing)
}

fn value_of(answer: Answered) -> Result<Value, ServiceError> {
    let text = answer.text().map_err(|error| unanswered("the nameserver", error))?;
    if text.is_empty() {
        return Ok(Value::Null);
    }
    let wrong = |error: serde_json::Error| ServiceError::Answer(format!("no JSON: {error}"));
    serde_json::from_str(&text).map_err(wrong)
}

fn unanswered(whom: &str, error: RequestError) -> ServiceError {
    ServiceError::Unanswered(whom.to_owned(), error)
}

/// Limits how long a request is tried. The time counts from the beginning of the silence that was
/// the first failure, and not from the beginning of an attempt that has moved bytes for long.
pub struct Attempts {
    patience: Duration,
    failing_since: Option<Instant>,
    /// Whether the caller was told that the request is tried again.
    has_told: bool,
}

impl Attempts {
    /// The time that is left.
    pub fn left(&self) -> Duration {
        let failing = self.failing_since.map_or(Duration::ZERO, |since| since.elapsed());
        self.patience.saturating_sub(failing)
    }

    /// Whether to try again after a failure. `may` says whether the request may succeed later.
    /// An answer of true comes after a short sleep.
    pub fn again(&mut self, may: bool, error: &ServiceError) -> bool {
        let silence = match error {
            ServiceError::Unanswered(_, RequestError::Late(silence)) => *silence,
            ServiceError::Unanswered(_, RequestError::Connection(error))
                if error.kind() == io::ErrorKind::TimedOut =>
            {
                self.patience
            }
            _ => Duration::ZERO,
        };
        let now = Instant::now();
        self.failing_since.get_or_insert_with(|| now.checked_sub(silence).unwrap_or(now));
        let left = self.left();
        let is_again = may && !left.is_zero();
        if is_again {
            if !self.has_told && matches!(error, ServiceError::Unanswered(..)) {
                self.has_told = true;
                tracing::warn!("{}; trying again for {left:.0?}", with_causes(error));
            }
            std::thread::sleep(ROUND);
        }
        is_again
    }
}

/// Whether the same request may succeed later.
pub fn is_passing(error: &ServiceError) -> bool {
    match error {
        ServiceError::Unanswered(..) => true,
        ServiceError::Refused(exception, _) => PASSING.contains(&exception.as_str()),
        _ => false,
    }
}

/// The host and port of a URL.
pub fn authority(url: &str) -> &str {
    let rest = url.strip_prefix("http://").unwrap_or(url);
    rest.split('/').next().unwrap_or(rest)
}

impl FilesClient {
    /// A client of the nameserver at `HOST:PORT`, in the name of this user. An attempt is repeated
    /// while it may succeed later, until nothing has succeeded for `patience`.
    pub fn new(nameserver: &str, user: &str, patience: Duration) -> Self {
        let (nameserver, user) = (nameserver.to_owned(), user.to_owned());
        let (key, is_open, writer, steering) = (None, false, None, None);
        let limits = ReadLimits::default();
        Self { nameserver, user, patience, key, is_open, writer, steering, limits }
    }

    /// The same client, which reads files within these limits.
    #[must_use]
    pub fn within_limits(self, limits: ReadLimits) -> Self {
        Self { limits, ..self }
    }

    /// The same client, which also connects to other hosts without a key, in clear. The settings of
    /// such a cluster have `files.open = true`.
    #[must_use]
    pub fn open_to_other_hosts(self, is_open: bool) -> Self {
        Self { is_open, ..self }
    }

    /// The same client, whose connections are sealed under the key of the cluster.
    #[must_use]
    pub fn keyed(self, key: Option<SharedKey>) -> Self {
        Self { key, ..self }
    }

    /// The same client, for which this flowserver chooses copies.
    #[must_use]
    pub fn steered(self, flowserver: Option<HostPort>) -> Self {
        let steering = flowserver.map(|address| FlowSteering::new(address, self.key.clone()));
        Self { steering, ..self }
    }

    fn exchange(
        &self,
        url: &str,
        method: Method,
        body: Upload,
        tell: Tell<'_>,
    ) -> Result<Answered, ServiceError> {
        self.exchange_by(None, url, method, body, tell)
    }

    /// As [`exchange`](Self::exchange), from one of these ports.
    fn exchange_by(
        &self,
        ports: Option<SourcePorts>,
        url: &str,
        method: Method,
        body: Upload,
        tell: Tell<'_>,
    ) -> Result<Answered, ServiceError> {
        if self.key.is_none() && !self.is_open {
            // A redirect may lead anywhere, so every server is looked at.
            let at = look_up(authority(url)).map_err(ServiceError::Address)?;
            if !is_own(at) {
                return Err(ServiceError::Clear(at));
            }
        }
        let (key, silence) = (self.key.as_ref(), self.silence());
        let answer = exchange_from(ports, key, url, method, body, silence, tell);
        answer.map_err(|error| unanswered(authority(url), error))
    }

    /// How long a server may be silent in one attempt.
    fn silence(&self) -> Duration {
        // A little of the patience is over when an attempt begins.
        let is_as_patient = self.patience + ATTEMPT_MIN >= SERVER_PATIENCE;
        let grace = if is_as_patient { GRACE } else { Duration::ZERO };
        (self.patience.max(ATTEMPT_MIN) + grace).min(SILENCE)
    }

    /// How long to try again, from now on.
    pub(crate) fn attempts(&self) -> Attempts {
        Attempts { patience: self.patience, failing_since: None, has_told: false }
    }

    /// The same client in the rest of an operation, which has this much time left.
    pub(crate) fn within(&self, left: Duration) -> Self {
        Self { patience: left, ..self.clone() }
    }

    /// The same client, for one operation that writes.
    fn as_writer(&self) -> Result<Self, ServiceError> {
        let (process, number) = (std::process::id(), random_number()?);
        let writer = Some(format!("evenfall-{process}-{number:016x}"));
        Ok(Self { writer, ..self.clone() })
    }

    fn url(&self, path: &str, op: &str, arguments: &[(&str, &str)]) -> String {
        let (server, path) = (&self.nameserver, escaped(path));
        let mut url = format!("http://{server}{PREFIX}{path}?op={op}");
        let user = [("user.name", self.user.as_str())];
        let writer = self.writer.as_deref().map(|writer| (WRITER, writer));
        for (name, value) in arguments.iter().chain(&user).chain(&writer) {
            url += &format!("&{name}={}", escaped(value));
        }
        url
    }

    /// Asks the nameserver again and again while it cannot be reached or asks for another attempt.
    fn ask(&self, method: &Method, url: &str) -> Result<Answered, ServiceError> {
        let mut attempts = self.attempts();
        loop {
            let client = self.within(attempts.left());
            let answer = client.exchange(url, method.clone(), Upload::none(), &mut |_| {});
            let error = match answer.and_then(accepted) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            // A change whose answer is lost may have been made, so the change is not asked for
            // again.
            let is_without_effect = match &error {
                ServiceError::Unanswered(_, RequestError::Connection(_)) => true,
                ServiceError::Unanswered(..) => method == Method::GET,
                ServiceError::Refused(exception, _) => exception == "RetriableException",
                _ => false,
            };
            if !attempts.again(is_without_effect, &error) {
                return Err(error);
            }
        }
    }

    /// Asks for JSON by GET.
    ///
    /// # Errors
    /// The exception of the server, or that no server answers.
    pub fn get(
        &self,
        path: &str,
        op: &str,
        arguments: &[(&str, &str)],
    ) -> Result<Value, ServiceError> {
        value_of(self.ask(&Method::GET, &self.url(path, op, arguments))?)
    }

    /// As [`get`](Self::get), in one attempt.
    pub(crate) fn get_once(
        &self,
        path: &str,
        op: &str,
        arguments: &[(&str, &str)],
    ) -> Result<Value, ServiceError> {
        value_of(accepted(self.once(&self.url(path, op, arguments))?)?)
    }

    /// Makes a change by PUT.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn change(
        &self,
        path: &str,
        op: &str,
        arguments: &[(&str, &str)],
    ) -> Result<Value, ServiceError> {
        value_of(self.ask(&Method::PUT, &self.url(path, op, arguments))?)
    }

    /// Deletes a path, and returns whether the path existed.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn delete(&self, path: &str, recursive: bool) -> Result<bool, ServiceError> {
        let arguments = [("recursive", if recursive { "true" } else { "false" })];
        let url = self.url(path, "DELETE", &arguments);
        Ok(value_of(self.ask(&Method::DELETE, &url)?)?["boolean"] == true)
    }

    /// What the nameserver says at a path of its own: `status`, `fsck` or `leases`.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn report(&self, of: &str) -> Result<Value, ServiceError> {
        let url = format!("http://{}/evenfall/{of}", self.nameserver);
        value_of(self.ask(&Method::GET, &url)?)
    }

    /// Gives an order of an operator to the nameserver: `leave`, `stay`, `forget` or `balance`.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn order(&self, order: &str, arguments: &[(&str, &str)]) -> Result<Value, ServiceError> {
        let mut url = format!("http://{}{ORDERS}/{order}?", self.nameserver);
        let user = [("user.name", self.user.as_str())];
        for (name, value) in arguments.iter().chain(&user) {
            url += &format!("{name}={}&", escaped(value));
        }
        value_of(self.ask(&Method::POST, url.trim_end_matches(['&', '?']))?)
    }

    /// Gives the status of each entry of a directory, or of a file, page by page.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn list(&self, path: &str, each: &mut dyn FnMut(&Value)) -> Result<(), ServiceError> {
        let mut after = String::new();
        loop {
            let arguments = [("startAfter", after.as_str())];
            let arguments = if after.is_empty() { &[][..] } else { &arguments };
            let mut answer = self.get(path, "LISTSTATUS_BATCH", arguments)?;
            let listing = &mut answer["DirectoryListing"];
            let left = listing["remainingEntries"].as_u64();
            let page = listing["partialListing"]["FileStatuses"]["FileStatus"].take();
            let (Some(left), Some(page)) = (left, page.as_array()) else {
                return Err(ServiceError::Answer("the listing has no statuses".into()));
            };
            page.iter().for_each(&mut *each);
            let last = page.last().and_then(|last| last["pathSuffix"].as_str());
            match last.filter(|_| left > 0) {
                Some(last) => after = last.to_owned(),
                None => return Ok(()),
            }
        }
    }

    /// The length and the number of a file.
    pub(crate) fn file(&self, path: &str) -> Result<(u64, u64), ServiceError> {
        let status = self.get(path, "GETFILESTATUS", &[])?;
        if status["FileStatus"]["type"] == "DIRECTORY" {
            return Err(ServiceError::Answer(format!("{path} is a directory and not a file")));
        }
        let number = |name: &str| status["FileStatus"][name].as_u64();
        match (number("length"), number("fileId")) {
            (Some(length), Some(id)) => Ok((length, id)),
            _ => Err(ServiceError::Answer("the status of the file has no length".into())),
        }
    }

    /// Makes a file out of the source.
    ///
    /// # Errors
    /// The exception of a server, that no server answers, or that the source cannot be read.
    pub fn put(
        &self,
        source: BytesSource,
        path: &str,
        overwrite: bool,
        copies: Option<u16>,
        tell: Tell<'_>,
    ) -> Result<(), ServiceError> {
        let overwrite = if overwrite { "true" } else { "false" };
        let copies = copies.map(|copies| copies.to_string());
        let mut arguments = vec![("overwrite", overwrite)];
        arguments.extend(copies.as_deref().map(|copies| ("replication", copies)));
        let client = self.as_writer()?;
        let url = client.url(path, "CREATE", &arguments);
        let old = match overwrite == "true" {
            true => self.file(path).ok().map(|(_, id)| id),
            false => None,
        };
        let to = location(&client.ask(&Method::PUT, &url)?)?;
        let made = Made { url, old };
        let to = WriteTarget { method: Method::PUT, url: to };
        client.write(source, path, 0, to, Some(&made), tell)
    }

    /// Appends the source to a file.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn append(
        &self,
        source: BytesSource,
        path: &str,
        tell: Tell<'_>,
    ) -> Result<(), ServiceError> {
        let client = self.as_writer()?;
        let base = client.settle(path)?;
        let to = client.appending(path, base)?;
        let to = WriteTarget { method: Method::POST, url: to };
        client.write(source, path, base, to, None, tell)
    }

    /// Where bytes that begin at this place of a file are appended.
    fn appending(&self, path: &str, at: u64) -> Result<String, ServiceError> {
        let at = at.to_string();
        let url = self.url(path, "APPEND", &[("at", at.as_str())]);
        location(&self.ask(&Method::POST, &url)?)
    }

    /// Waits until no earlier write is under way, and returns the length of the file.
    fn settle(&self, path: &str) -> Result<u64, ServiceError> {
        let mut attempts = self.attempts();
        loop {
            // An append of no bytes returns when the nameserver knows the length.
            let url = self.url(path, "APPEND", &[]);
            let client = self.within(attempts.left());
            let to = location(&client.ask(&Method::POST, &url)?)?;
            match client.send(Method::POST, &to, Upload::none(), &mut |_| {}) {
                Ok(()) => return Ok(client.file(path)?.0),
                Err(error) if !attempts.again(is_passing(&error), &error) => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Writes by [`write_through`](Self::write_through). When nobody answers at the end, returns
    /// the last refusal instead, because a server whose disk is full also waits for its log.
    fn write(
        &self,
        source: BytesSource,
        path: &str,
        base: u64,
        to: WriteTarget,
        made: Option<&Made>,
        tell: Tell<'_>,
    ) -> Result<(), ServiceError> {
        let mut course = WriteCourse { tell, named: None };
        let written = self.write_through(source, path, base, to, made, &mut course);
        written.map_err(|error| match course.named {
            Some(named) if matches!(error, ServiceError::Unanswered(..)) => named,
            _ => error,
        })
    }

    /// Sends the source to a dataserver, and goes on when the dataserver dies meanwhile. `base` is
    /// the length of the file before, and `made` says how to make a new file again.
    fn write_through(
        &self,
        source: BytesSource,
        path: &str,
        base: u64,
        to: WriteTarget,
        made: Option<&Made>,
        course: &mut WriteCourse<'_>,
    ) -> Result<(), ServiceError> {
        let local = match source {
            BytesSource::Stream(from) => {
                return self.send(to.method, &to.url, Upload::of(from, None), &mut *course.tell);
            }
            BytesSource::File(path) => Local::File(path),
            BytesSource::Bytes(bytes) => Local::Bytes(bytes),
        };
        let length = local.len()?;
        let WriteTarget { mut method, url: mut to } = to;
        let (mut done, mut attempts) = (0, self.attempts());
        loop {
            let from = local.from(done)?.take(length - done);
            let body = Upload::of(Box::new(from), Some(length - done));
            (course.tell)(done);
            let client = self.within(attempts.left());
            let tell = &mut course.tell;
            let sent = client.send(method, &to, body, &mut |bytes| tell(done + bytes));
            let error = match sent {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if !attempts.again(is_passing(&error), &error) {
                return Err(error);
            }
            let is_refused = matches!(error, ServiceError::Refused(..));
            if is_refused {
                course.named = Some(error);
            }
            let client = self.within(attempts.left());
            // The dataserver may have died before the file was there. An append would then fail, or
            // go to the file that is to be replaced.
            if let Some(made) = made.filter(|_| done == 0)
                && client.lacks(path, made.old)?
            {
                (method, to) = (Method::PUT, location(&client.ask(&Method::PUT, &made.url)?)?);
                continue;
            }
            // Bytes of the connection that ended may still be on their way. The place to go on from
            // is known only when no earlier write can change the length.
            let there = client.settle(path)?.checked_sub(base).filter(|there| *there <= length);
            let other = || ServiceError::Answer(format!("another client has changed {path}"));
            let there = there.filter(|there| *there >= done).ok_or_else(other)?;
            // A length alone does not tell our bytes from those of another client.
            self.compare(&local, path, base, done..there)?;
            if there > done {
                (done, attempts) = (there, self.attempts());
                // The reason of an earlier attempt is no longer why the transfer stands still.
                course.named = course.named.take().filter(|_| is_refused);
            }
            if done == length {
                (course.tell)(done);
                return Ok(());
            }
            (method, to) = (Method::POST, self.appending(path, base + done)?);
        }
    }

    /// Whether the path has no file, or still has the old file.
    fn lacks(&self, path: &str, old: Option<u64>) -> Result<bool, ServiceError> {
        match self.file(path) {
            Ok((_, id)) => Ok(old == Some(id)),
            Err(ServiceError::Refused(name, _)) if name == "FileNotFoundException" => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Fails unless the file has the same bytes as the source in this range.
    fn compare(
        &self,
        local: &Local,
        path: &str,
        base: u64,
        range: std::ops::Range<u64>,
    ) -> Result<(), ServiceError> {
        let mut same = Same { source: local.from(range.start)?, is_same: true };
        let (_, id) = self.file(path)?;
        self.read(path, id, base + range.start..base + range.end, &mut same, &mut |_| {})?;
        match same.is_same {
            true => Ok(()),
            false => Err(ServiceError::Answer(format!("another client writes {path}, too"))),
        }
    }

    /// Gives the bytes of a file to `out`, and returns how many there were.
    ///
    /// # Errors
    /// The exception of a server, that no server answers, or that `out` takes no bytes.
    pub fn open(
        &self,
        path: &str,
        out: &mut dyn Write,
        begin: &mut dyn FnMut(u64),
        tell: Tell<'_>,
    ) -> Result<u64, ServiceError> {
        let (length, id) = self.file(path)?;
        begin(length);
        self.read(path, id, 0..length, out, tell)?;
        Ok(length)
    }

    /// Gives a range of the file with this number to `out`. When a copy fails, the reading goes on
    /// in another copy.
    ///
    /// # Errors
    /// As [`open`](Self::open), and when another file has the path now.
    pub fn read(
        &self,
        path: &str,
        id: u64,
        range: std::ops::Range<u64>,
        out: &mut dyn Write,
        tell: Tell<'_>,
    ) -> Result<(), ServiceError> {
        let (mut at, mut attempts, mut failed) = (range.start, self.attempts(), None);
        while at < range.end {
            let before = at;
            let client = self.within(attempts.left());
            let read = client.read_some((path, id), &mut at, range.end, &mut failed, out, tell);
            let error = match read {
                Ok(()) => continue,
                Err(error) => error,
            };
            if at > before {
                attempts = self.attempts();
            }
            if !attempts.again(is_passing(&error), &error) {
                return Err(error);
            }
            if self.within(attempts.left()).file(path)?.1 != id {
                let what = format!("{path} was replaced meanwhile");
                return Err(ServiceError::Refused("ConcurrentModificationException".into(), what));
            }
        }
        Ok(())
    }

    /// Reads as much as one dataserver gives. `failed` is the dataserver that failed last, which is
    /// not asked in this attempt.
    fn read_some(
        &self,
        (path, id): (&str, u64),
        at: &mut u64,
        end: u64,
        failed: &mut Option<String>,
        out: &mut dyn Write,
        tell: Tell<'_>,
    ) -> Result<(), ServiceError> {
        let (offset, length, id) = (at.to_string(), (end - *at).to_string(), id.to_string());
        let mut arguments = vec![("offset", offset.as_str()), ("length", length.as_str())];
        arguments.push(("number", id.as_str()));
        let without = failed.take();
        arguments.extend(without.as_deref().map(|without| ("excludedatanodes", without)));
        let url = self.url(path, "OPEN", &arguments);
        let mut answer = match without {
            None => self.ask(&Method::GET, &url)?,
            Some(_) => accepted(self.once(&url)?)?,
        };
        let mut whom = authority(&url).to_owned();
        for _ in 0..REDIRECTS_MAX {
            if !answer.status.is_redirection() {
                break;
            }
            let to = location(&answer)?;
            whom = authority(&to).to_owned();
            // Before the server is asked: whatever ends this attempt, the next one leaves the
            // server out.
            *failed = Some(whom.clone());
            answer = accepted(self.once(&to)?)?;
        }
        while *at < end {
            let cut = |error: io::Error| ServiceError::cut(&whom, error);
            let piece = answer.fill_buf().map_err(cut)?;
            let len = piece.len().min(usize::try_from(end - *at).unwrap_or(usize::MAX));
            if len == 0 {
                return Err(cut(io::ErrorKind::UnexpectedEof.into()));
            }
            let unwritten = |error| ServiceError::Io("write what was read".into(), error);
            out.write_all(&piece[..len]).map_err(unwritten)?;
            answer.consume(len);
            *at += len as u64;
            tell(*at);
        }
        *failed = None;
        Ok(())
    }

    /// Asks a server once.
    pub(crate) fn once(&self, url: &str) -> Result<Answered, ServiceError> {
        self.once_from(None, url)
    }

    /// Asks a server once, over a connection from one of these ports.
    pub(crate) fn once_from(
        &self,
        ports: Option<SourcePorts>,
        url: &str,
    ) -> Result<Answered, ServiceError> {
        self.exchange_by(ports, url, Method::GET, Upload::none(), &mut |_| {})
    }

    /// Sends a body to a dataserver.
    fn send(
        &self,
        method: Method,
        to: &str,
        body: Upload,
        tell: Tell<'_>,
    ) -> Result<(), ServiceError> {
        let answer = accepted(self.exchange(to, method, body, tell)?)?;
        match answer.status {
            StatusCode::OK | StatusCode::CREATED => Ok(()),
            status => Err(ServiceError::Answer(format!("the dataserver answers {status}"))),
        }
    }
}

/// A source that can be read again.
enum Local {
    File(PathBuf),
    Bytes(Bytes),
}

impl Local {
    fn failed(path: &Path) -> impl Fn(io::Error) -> ServiceError {
        move |error| ServiceError::Io(format!("read {}", path.display()), error)
    }

    fn len(&self) -> Result<u64, ServiceError> {
        match self {
            Self::File(path) => Ok(std::fs::metadata(path).map_err(Self::failed(path))?.len()),
            Self::Bytes(bytes) => Ok(bytes.len() as u64),
        }
    }

    /// The bytes from this place on.
    fn from(&self, at: u64) -> Result<Box<dyn Read + Send>, ServiceError> {
        match self {
            Self::File(path) => {
                let mut file = File::open(path).map_err(Self::failed(path))?;
                file.seek(SeekFrom::Start(at)).map_err(Self::failed(path))?;
                Ok(Box::new(file))
            }
            Self::Bytes(bytes) => {
                let at = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
                Ok(Box::new(bytes.slice(at..).reader()))
            }
        }
    }
}

/// A writer that keeps nothing, and compares what it is given with a local file.
struct Same {
    source: Box<dyn Read + Send>,
    is_same: bool,
}

impl Write for Same {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut own = vec![0; bytes.len()];
        self.source.read_exact(&mut own)?;
        self.is_same &= own == bytes;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
