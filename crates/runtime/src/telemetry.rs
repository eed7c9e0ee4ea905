//! The pages of a role: `/metrics` for Prometheus, `/healthz`, `/status` and `/clock` as JSON, and
//! orders to a running role. A few times a second the role's thread copies its state, and another
//! thread makes a page of the copy (`Telemetry::publish_later`). With the feature `http` a server
//! in a thread of its own serves the pages. A service that shares its counts with other threads is
//! asked when a page is read instead (`Telemetry::observe`). So is the driver of the node's network
//! card, which may take milliseconds to answer (`pages/card.rs`).

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
#[cfg(feature = "http")]
use std::sync::OnceLock;
#[cfg(feature = "http")]
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenfall_core::Histogram;
use evenfall_core::histogram::BUCKETS;
use serde::Serialize;

#[cfg(feature = "http")]
use self::pages::HttpServer;
use crate::SettingsError;
use crate::process::PortTaken;

#[cfg(feature = "http")]
mod pages;
#[cfg(feature = "service")]
pub use self::pages::add_pages;

/// A kind of order that a running role takes: `POST PATH?to=VALUE`.
#[derive(Clone, Copy)]
pub struct Orders {
    /// Where the order is posted, such as `/mode`.
    pub path: &'static str,
    /// Refuses a value that the role does not know. The error names the allowed values.
    pub check: fn(&str) -> Result<(), SettingsError>,
}

/// A page of files that a role gives out: `GET PATH?QUERY`.
#[derive(Clone, Copy)]
pub struct FilesPage<'a> {
    /// The path of the page, such as `/experiment`.
    pub path: &'static str,
    /// The directory of the files.
    pub directory: &'a Path,
    /// Answers the query with text, or says why there is none: the client gets 400 for
    /// [`io::ErrorKind::InvalidInput`] and 503 for all else. It reads a MiB at most, because all
    /// pages share a thread.
    pub read: fn(&Path, &str) -> io::Result<String>,
}

/// Why the pages of a role are not served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TelemetryError {
    /// The address lies beyond loopback, and there is no key.
    #[error(
        "http = {0}: without a key nothing listens beyond loopback; set run.key_file, or an \
         address in 127.0.0.0/8"
    )]
    Unkeyed(SocketAddr),
    /// The address cannot be bound.
    #[error("http = {0}: {1}")]
    Bind(SocketAddr, io::Error),
    /// This build has no HTTP.
    #[error(
        "http = {0}: this program is built without HTTP; build it with the feature `http`, or \
         leave the address out"
    )]
    NotBuilt(SocketAddr),
}

/// The contents that the role publishes.
#[derive(Default)]
#[cfg_attr(not(feature = "http"), allow(dead_code, reason = "the server alone reads the page"))]
struct Page {
    metrics: String,
    status: String,
    clock: String,
    /// Why the role is not well.
    ill: Option<String>,
    /// The path and the value of each order that waits.
    orders: VecDeque<(&'static str, String)>,
    /// The labels of the node, once the role has published them.
    labels: Metrics,
    /// The kind of the role's port, and why, as a member of a JSON object.
    port: String,
    /// What is asked when a page is read.
    #[cfg(feature = "http")]
    host: Option<Arc<pages::HostMetrics>>,
}

/// A state of a role as the texts of its pages.
#[derive(Default)]
#[cfg_attr(not(feature = "http"), allow(dead_code, reason = "the server alone reads the page"))]
pub struct PageDraft {
    metrics: Metrics,
    status: String,
    clock: String,
    ill: Option<String>,
}

impl PageDraft {
    /// The texts of a role in this state, whose clock is in this state. `ill` says why the role is
    /// not well, if it is not.
    #[cfg(feature = "http")]
    pub fn new(
        metrics: Metrics,
        status: &impl Serialize,
        clock: &impl Serialize,
        ill: Option<String>,
    ) -> Self {
        let status = serde_json::to_string(status).unwrap_or_default();
        let clock = serde_json::to_string(clock).unwrap_or_default();
        Self { metrics, status, clock, ill }
    }

    /// Nothing, because this build has no pages.
    #[cfg(not(feature = "http"))]
    pub fn new(_: Metrics, _: &impl Serialize, _: &impl Serialize, _: Option<String>) -> Self {
        Self::default()
    }
}

/// Makes a page in the thread of pages.
#[cfg(feature = "http")]
type PageJob = Box<dyn FnOnce() + Send>;

/// Pages that may wait to be made. A page that finds no room is left out, because a newer one comes
/// at the next housekeeping.
#[cfg(feature = "http")]
const PAGES_WAITING_MAX: usize = 1;

/// The pages of one role. The pages are served if the role has an address.
#[derive(Default)]
pub struct Telemetry {
    page: Arc<Mutex<Page>>,
    #[cfg(feature = "http")]
    server: Option<HttpServer>,
    /// The thread that makes pages, from the first page on; `None` when it could not be started.
    #[cfg(feature = "http")]
    maker: OnceLock<Option<SyncSender<PageJob>>>,
}

fn lock(page: &Mutex<Page>) -> MutexGuard<'_, Page> {
    page.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Telemetry {
    /// Starts to serve the pages, if there is an address: those of the role, the orders that the
    /// role takes, and the page of its files.
    ///
    /// # Errors
    /// When the address cannot be bound, or lies beyond loopback without a key, or this build has
    /// no HTTP.
    pub fn start(
        address: Option<SocketAddr>,
        keyed: bool,
        orders: &'static [Orders],
        files: Option<FilesPage<'_>>,
    ) -> Result<Self, TelemetryError> {
        let mut telemetry = Self::default();
        lock(&telemetry.page).ill = Some("starting".into());
        let Some(address) = address else { return Ok(telemetry) };
        if !keyed && !address.ip().is_loopback() {
            return Err(TelemetryError::Unkeyed(address));
        }
        telemetry.serve(address, orders, files)?;
        Ok(telemetry)
    }

    /// Adds to the pages the kind of the role's port, and the packets that the card with this
    /// address lost.
    #[cfg(feature = "http")]
    pub(crate) fn describe_port(&mut self, port: &PortTaken, address: IpAddr) {
        if self.server.is_none() {
            return;
        }
        let host = Arc::new(pages::HostMetrics::new(port.kind, address));
        let mut page = lock(&self.page);
        page.port = format!("\"port\":{}", serde_json::to_string(port).unwrap_or_default());
        page.host = Some(host);
    }

    /// Does nothing, because this build has no pages.
    #[cfg(not(feature = "http"))]
    pub(crate) fn describe_port(&mut self, _: &PortTaken, _: IpAddr) {}

    #[cfg(feature = "http")]
    fn serve(
        &mut self,
        at: SocketAddr,
        orders: &'static [Orders],
        files: Option<FilesPage<'_>>,
    ) -> Result<(), TelemetryError> {
        let server = pages::serve(&self.page, at, orders, files);
        self.server = Some(server.map_err(|error| TelemetryError::Bind(at, error))?);
        Ok(())
    }

    #[cfg(not(feature = "http"))]
    fn serve(
        &mut self,
        at: SocketAddr,
        _: &'static [Orders],
        _: Option<FilesPage<'_>>,
    ) -> Result<(), TelemetryError> {
        Err(TelemetryError::NotBuilt(at))
    }

    /// Serves the pages of a running service, which is asked when a page is read. `labels` names
    /// the node.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    #[cfg(feature = "service")]
    pub fn observe(
        address: Option<SocketAddr>,
        keyed: bool,
        labels: Metrics,
        observed: Arc<dyn crate::service::Observed>,
    ) -> Result<Self, TelemetryError> {
        let mut telemetry = Self::default();
        let Some(at) = address else { return Ok(telemetry) };
        if !keyed && !at.ip().is_loopback() {
            return Err(TelemetryError::Unkeyed(at));
        }
        let server = pages::serve_observed(at, labels, observed);
        telemetry.server = Some(server.map_err(|error| TelemetryError::Bind(at, error))?);
        Ok(telemetry)
    }

    /// Whether anybody can read the pages.
    pub fn is_served(&self) -> bool {
        self.address().is_some()
    }

    /// The address at which the pages are served, if any.
    pub fn address(&self) -> Option<SocketAddr> {
        #[cfg(feature = "http")]
        return self.server.as_ref().map(HttpServer::address);
        #[cfg(not(feature = "http"))]
        None
    }

    /// Publishes the present state of the role and of its clock, where the pages are served.
    #[cfg(feature = "http")]
    pub fn publish(
        &self,
        metrics: Metrics,
        status: &impl Serialize,
        clock: &impl Serialize,
        ill: Option<String>,
    ) {
        let draft = PageDraft::new(metrics, status, clock, ill);
        put_draft(&self.page, draft, self.server.as_ref().map(count_connections));
    }

    /// Publishes the present state, where the pages are served.
    #[cfg(not(feature = "http"))]
    pub fn publish(&self, _: Metrics, _: &impl Serialize, _: &impl Serialize, _: Option<String>) {}

    /// Publishes a state, where the pages are served. Another thread calls `make`, and the role
    /// goes on.
    #[cfg(feature = "http")]
    pub fn publish_later(&self, make: impl FnOnce() -> PageDraft + Send + 'static) {
        let Some(server) = &self.server else { return };
        let (page, connections) = (Arc::clone(&self.page), count_connections(server));
        let job = move || put_draft(&page, make(), Some(connections));
        match self.maker.get_or_init(start_maker) {
            Some(to) => drop(to.try_send(Box::new(job))),
            None => job(),
        }
    }

    /// Publishes a state, where the pages are served.
    #[cfg(not(feature = "http"))]
    pub fn publish_later(&self, _: impl FnOnce() -> PageDraft + Send + 'static) {}

    /// The path and the value of the next order, if an order has come.
    pub fn order(&self) -> Option<(&'static str, String)> {
        lock(&self.page).orders.pop_front()
    }
}

/// Connections that a server closed at once, and those that made room.
#[cfg(feature = "http")]
fn count_connections(server: &HttpServer) -> [u64; 2] {
    [server.turned_away(), server.evicted()]
}

/// Puts a draft in the place of the last page.
#[cfg(feature = "http")]
fn put_draft(page: &Mutex<Page>, draft: PageDraft, connections: Option<[u64; 2]>) {
    let PageDraft { mut metrics, status, clock, ill } = draft;
    connections.into_iter().for_each(|counts| metrics.put_connections(counts));
    let text = metrics.text();
    let mut page = lock(page);
    let status = add_member(status, &page.port);
    (page.metrics, page.status, page.clock, page.ill) = (text, status, clock, ill);
    page.labels = Metrics { labels: metrics.labels, families: Vec::new() };
}

/// Starts the thread that makes pages. It ends with its telemetry.
#[cfg(feature = "http")]
fn start_maker() -> Option<SyncSender<PageJob>> {
    let (to, jobs) = sync_channel::<PageJob>(PAGES_WAITING_MAX);
    let work = move || {
        evenfall_host::pin::to_all_cores();
        jobs.into_iter().for_each(|make| make());
    };
    std::thread::Builder::new().name("pages".into()).spawn(work).ok().map(|_| to)
}

/// Adds a member to a JSON object, and leaves any other text as it is.
#[cfg(feature = "http")]
fn add_member(text: String, member: &str) -> String {
    match text.strip_suffix('}') {
        Some("{") => format!("{{{member}}}"),
        Some(members) if !member.is_empty() => format!("{members},{member}}}"),
        _ => text,
    }
}

/// Writes the Prometheus text format.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    labels: String,
    families: Vec<Family>,
}

/// The lines of one metric, which the format wants together.
#[derive(Clone, Debug)]
struct Family {
    name: String,
    lines: String,
}

/// The value of a label, in which the characters that the format escapes are replaced.
fn clean_label(value: &str) -> String {
    value.replace(['\\', '"', '\n'], "_")
}

impl Metrics {
    /// Metrics of one node.
    pub fn of(name: &str, role: &str) -> Self {
        let clean = clean_label(name);
        Self { labels: format!("node=\"{clean}\",role=\"{role}\""), families: Vec::new() }
    }

    fn metric(&mut self, kind: &str, name: &str, help: &str, tree: u32, value: f64) {
        let labels = format!("{},tree=\"{tree}\"", self.labels);
        self.put_value(kind, name, help, &labels, value);
    }

    /// Writes one value with these labels.
    fn put_value(
        &mut self,
        kind: &str,
        name: &str,
        help: &str,
        labels: &str,
        value: impl fmt::Display,
    ) {
        let name = format!("evenfall_{name}");
        let lines = self.lines_of(kind, &name, help);
        let _ = writeln!(lines, "{name}{{{labels}}} {value}");
    }

    /// The lines of a metric, which begin with its help and its kind.
    fn lines_of(&mut self, kind: &str, name: &str, help: &str) -> &mut String {
        let at = self.families.iter().position(|family| family.name == name);
        let at = at.unwrap_or_else(|| {
            let lines = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
            self.families.push(Family { name: name.to_owned(), lines });
            self.families.len() - 1
        });
        &mut self.families[at].lines
    }

    /// A distribution of durations, as a histogram in seconds with two buckets for each doubling.
    /// `sum_ns` is the sum of all durations.
    pub fn put_histogram(
        &mut self,
        name: &str,
        help: &str,
        tree: u32,
        counts: &Histogram,
        sum_ns: u64,
    ) {
        let labels = format!("{},tree=\"{tree}\"", self.labels);
        let name = format!("evenfall_{name}");
        let lines = self.lines_of("histogram", &name, help);
        let mut below = 0;
        for bucket in 0..BUCKETS {
            below += counts.count(bucket);
            // The last bucket also has all longer durations.
            if bucket % 4 == 3 && bucket + 1 < BUCKETS {
                let edge = Histogram::upper_edge(bucket).as_nanos() as f64 / 1e9;
                let _ = writeln!(lines, "{name}_bucket{{{labels},le=\"{edge}\"}} {below}");
            }
        }
        let _ = writeln!(lines, "{name}_bucket{{{labels},le=\"+Inf\"}} {below}");
        let _ = writeln!(lines, "{name}_sum{{{labels}}} {}", sum_ns as f64 / 1e9);
        let _ = writeln!(lines, "{name}_count{{{labels}}} {below}");
    }

    /// A value with labels of its own beside the labels of the node. `kind` is `counter` or
    /// `gauge`.
    #[cfg(feature = "http")]
    fn put_labelled(
        &mut self,
        kind: &str,
        name: &str,
        help: &str,
        own: &[(&str, &str)],
        value: u64,
    ) {
        let mut labels = self.labels.clone();
        for (label, value) in own {
            let _ = write!(labels, ",{label}=\"{}\"", clean_label(value));
        }
        self.put_value(kind, name, help, &labels, value);
    }

    #[cfg(feature = "http")]
    /// Adds the connections that a server closed at once, and those that made room.
    fn put_connections(&mut self, counts: [u64; 2]) {
        let [turned_away, evicted] = counts;
        let help = "HTTP connections closed because too many were open.";
        self.counter("http_turned_away_total", help, 0, turned_away);
        let help = "HTTP connections of silent clients that made room for others.";
        self.counter("http_evicted_total", help, 0, evicted);
    }

    /// The lines of all metrics.
    pub fn text(&self) -> String {
        self.families.iter().map(|family| family.lines.as_str()).collect()
    }

    /// A count that only grows.
    pub fn counter(&mut self, name: &str, help: &str, tree: u32, value: u64) {
        self.metric("counter", name, help, tree, value as f64);
    }

    /// Time that only grows, in seconds.
    pub fn counter_of_time(&mut self, name: &str, help: &str, tree: u32, value: Duration) {
        self.metric("counter", name, help, tree, value.as_secs_f64());
    }

    /// A present value.
    pub fn gauge(&mut self, name: &str, help: &str, tree: u32, value: f64) {
        self.metric("gauge", name, help, tree, value);
    }
}
