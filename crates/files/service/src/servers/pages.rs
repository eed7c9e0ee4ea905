//! The pages of a server about itself: `/metrics` for Prometheus, `/healthz`, and `/status` as
//! JSON.
//!
//! The pages stand beside WebHDFS at the address of the server, and at the address `http` of its
//! node when the settings name one. Nothing secret is on them, so they are open at the second
//! address to everybody who reaches it, as the pages of all other roles are.

use std::net::SocketAddr;
use std::sync::Arc;

use evenfall_files_machine::dataserver::Dataserver;
use evenfall_files_machine::namespace::InodeKind;
use evenfall_files_machine::{FilesRefusal, Nameserver};
use evenfall_runtime::http::streams::{Content, StreamAnswer};
use evenfall_runtime::http::{HttpServer, Limits, Request, Routes, StatusCode};
use evenfall_runtime::telemetry::Metrics;
use serde_json::{Map, Value};

use super::owner::OwnerInbox;
use crate::ServiceError;

/// The content type of the Prometheus text format, with its version.
const METRICS_KIND: &str = "text/plain; version=0.0.4";

/// A figure of a server: its name, its help text and its value. Names of counters end in `_total`.
pub type ServerFigure = (&'static str, &'static str, u64);

/// What a server says of itself: its figures, and why it is not well.
pub type ServerReport = (Vec<ServerFigure>, Option<String>);

/// What looks at a server.
type Look = Box<dyn Fn() -> Result<ServerReport, FilesRefusal> + Send + Sync>;

/// The pages of a server.
#[derive(Clone)]
pub struct StatePages {
    name: String,
    role: &'static str,
    look: Arc<Look>,
}

impl StatePages {
    /// The pages of a server with this name and role.
    pub fn new(
        name: &str,
        role: &'static str,
        look: impl Fn() -> Result<ServerReport, FilesRefusal> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.to_owned(), role, look: Arc::new(Box::new(look)) }
    }

    /// The page that a request asks for; `None` for another path.
    pub fn answer(&self, request: &Request) -> Option<StreamAnswer> {
        let page = request.path.as_str();
        if request.method != "GET" || !["/metrics", "/healthz", "/status"].contains(&page) {
            return None;
        }
        let (status, kind, text) = match (self.look)() {
            // The process ends.
            Err(refusal) => (StatusCode::SERVICE_UNAVAILABLE, "text/plain", refusal.to_string()),
            Ok((figures, _)) if page == "/metrics" => {
                (StatusCode::OK, METRICS_KIND, self.metrics(&figures))
            }
            Ok((figures, ill)) if page == "/status" => {
                let mut all: Map<String, Value> = figures
                    .iter()
                    .map(|(name, _, value)| ((*name).into(), (*value).into()))
                    .collect();
                all.insert("name".into(), self.name.clone().into());
                all.insert("role".into(), self.role.into());
                all.insert("ill".into(), ill.into());
                (StatusCode::OK, "application/json", Value::Object(all).to_string())
            }
            Ok((_, None)) => (StatusCode::OK, "text/plain", "ok\n".to_owned()),
            Ok((_, Some(why))) => {
                (StatusCode::SERVICE_UNAVAILABLE, "text/plain", format!("{why}\n"))
            }
        };
        let headers = vec![("content-type", kind.to_owned())];
        Some(StreamAnswer { status, headers, content: Content::Whole(text.into()) })
    }

    fn metrics(&self, figures: &[ServerFigure]) -> String {
        let mut metrics = Metrics::of(&self.name, self.role);
        for (name, help, value) in figures {
            match name.ends_with("_total") {
                true => metrics.counter(name, help, 0, *value),
                false => metrics.gauge(name, help, 0, *value as f64),
            }
        }
        metrics.text()
    }

    /// Serves the pages at an address of their own, if there is one.
    ///
    /// # Errors
    /// When the address cannot be had.
    pub fn serve(&self, address: Option<SocketAddr>) -> Result<Option<HttpServer>, ServiceError> {
        let Some(address) = address else { return Ok(None) };
        let pages = self.clone();
        let nothing = || StreamAnswer {
            status: StatusCode::NOT_FOUND,
            headers: vec![("content-type", "text/plain".to_owned())],
            content: Content::Whole("try /metrics, /healthz, /status\n".into()),
        };
        let routes = Routes::default()
            .streams(move |request, _| pages.answer(request).unwrap_or_else(nothing));
        let server = HttpServer::bind(address, Limits::default(), routes);
        let failed = |error| ServiceError::Io(format!("listen on http = {address}"), error);
        server.map(Some).map_err(failed)
    }
}

/// What a nameserver says of itself.
pub fn of_nameserver(inbox: &OwnerInbox<Nameserver>) -> Result<ServerReport, FilesRefusal> {
    inbox.ask(|server, now| {
        let namespace = server.namespace();
        let is_directory = |inode: &&evenfall_files_machine::namespace::Inode| {
            matches!(inode.kind, InodeKind::Directory(_))
        };
        let directories = namespace.inodes().values().filter(is_directory).count() as u64;
        let files = namespace.inodes().len() as u64 - directories;
        let servers = server.servers();
        let live: Vec<_> = servers.iter().filter(|(disk, _)| server.is_live(now, **disk)).collect();
        let sum = |of: fn(&evenfall_files_machine::nameserver::KnownDataserver) -> u64| {
            live.iter().map(|(_, one)| of(one)).fold(0, u64::saturating_add)
        };
        let refused = server.check_changes().err().map(|refusal| refusal.to_string());
        let figures = vec![
            ("files", "Files with a name.", files),
            ("directories", "Directories.", directories),
            ("dataservers_live", "Dataservers that are alive.", live.len() as u64),
            (
                "dataservers_dead",
                "Dataservers that are silent.",
                (servers.len() - live.len()) as u64,
            ),
            (
                "dataservers_full",
                "Live dataservers whose disk refuses writes.",
                sum(|one| one.is_ill.into()),
            ),
            ("files_unsettled", "Files that may lack copies.", server.unsettled() as u64),
            (
                "files_unnamed",
                "Files on dataservers that the log never named.",
                server.strangers().len() as u64,
            ),
            (
                "files_leased",
                "Files whose lease a writer holds.",
                server.held_leases().len() as u64,
            ),
            ("used_bytes", "Bytes of files on live disks.", sum(|one| one.used)),
            ("free_bytes", "Bytes that live disks have left.", sum(|one| one.free)),
            ("log_copies", "Dataservers that keep the log.", namespace.keepers().len() as u64),
            ("changes_total", "Changes of the names in all lives.", namespace.changes()),
            ("changes_refused", "1 while changes are refused.", refused.is_some().into()),
            ("dropped_datagrams_total", "Datagrams dropped or of strangers.", server.dropped()),
        ];
        (figures, refused)
    })
}

/// What a dataserver says of itself.
pub fn of_dataserver(inbox: &OwnerInbox<Dataserver>) -> Result<ServerReport, FilesRefusal> {
    inbox.ask(|server, _| {
        let is_ill = server.is_ill();
        let figures = vec![
            ("copies", "Copies of files here.", server.copies() as u64),
            ("used_bytes", "Bytes of files on live disks.", server.used()),
            ("free_bytes", "Bytes that live disks have left.", server.free()),
            ("disk_refuses", "1 while the disk refuses writes.", is_ill.into()),
            ("dropped_datagrams_total", "Datagrams dropped or of strangers.", server.dropped()),
        ];
        (figures, is_ill.then(|| "the disk refuses writes".to_owned()))
    })
}
