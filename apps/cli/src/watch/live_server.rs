//! Serves the live page. A browser takes the page once, and then asks for what is new.
//!
//! What a browser gets is made once a look, whoever asks, so that a hundred open pages cost the
//! watcher copies of bytes, and the run nothing.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use evenfall_runtime::http::{
    AllowedHosts, HttpServer, Limits, Request, Response, Routes, StatusCode,
};
use evenfall_runtime::page::page;
use serde_json::{Value, json};

use super::history::RunHistory;
use super::observer::{LOOK_EVERY, PageOwner, RunObserver};

const SCRIPT: &str = include_str!("../../../../web/live.js");
/// Browsers at once. Each keeps one connection.
const BROWSERS_MAX: usize = 256;

/// What the routes answer with.
#[derive(Default)]
struct Shown {
    tick: u64,
    /// The picture and the events, as JSON without the closing brace.
    present: String,
    history: RunHistory,
}

fn lock(shown: &Mutex<Shown>) -> MutexGuard<'_, Shown> {
    shown.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The server of a live page.
pub struct LiveServer {
    shown: Arc<Mutex<Shown>>,
    server: HttpServer,
}

impl LiveServer {
    /// Starts to serve at this address.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let shown = Arc::new(Mutex::new(Shown::default()));
        let html = page("Live", SCRIPT, &Value::Null);
        let state = Arc::clone(&shown);
        let guarded = |answer: Box<dyn Fn(&Request) -> Response + Send + Sync>| {
            let hosts = AllowedHosts::of_this_host();
            move |request: &Request| match hosts.check(request) {
                Ok(()) => answer(request),
                Err(why) => Response::text(StatusCode::FORBIDDEN, why),
            }
        };
        let routes = Routes::default()
            .get(
                "/",
                guarded(Box::new(move |_| {
                    Response::page("text/html; charset=utf-8", html.clone())
                })),
            )
            .get("/live", guarded(Box::new(move |request| answer_live(request, &lock(&state)))));
        let limits = Limits { connections_max: BROWSERS_MAX, ..Limits::default() };
        Ok(Self { shown, server: HttpServer::bind(address, limits, routes)? })
    }

    /// The address of the page.
    pub fn url(&self) -> String {
        format!("http://{}/", self.server.address())
    }

    /// Shows what the observer sees now.
    pub fn publish(&self, observer: &RunObserver) {
        let events: Vec<_> = observer.events().collect();
        let text = json!({ "picture": observer.present_picture(), "events": events }).to_string();
        // The closing brace follows behind the points.
        let present = text.strip_suffix('}').unwrap_or_default().to_owned();
        let mut shown = lock(&self.shown);
        (shown.present, shown.tick) = (present, observer.tick());
        shown.history.clone_from(observer.history());
    }
}

/// The present picture, and the points after the tick that the browser has.
fn answer_live(request: &Request, shown: &Shown) -> Response {
    if shown.present.is_empty() {
        return Response::text(StatusCode::SERVICE_UNAVAILABLE, "the first look is under way");
    }
    let after = request.query.strip_prefix("after=").and_then(|tick| tick.parse().ok());
    // A tick of the future is that of an earlier watcher.
    let after: u64 = after.filter(|tick| *tick <= shown.tick).unwrap_or(0);
    let rows: Vec<_> = shown.history.points_after(after).map(|point| point.row()).collect();
    let rows = serde_json::to_string(&rows).unwrap_or_default();
    let body = format!("{},\"tick\":{},\"points\":{rows}}}", shown.present, shown.tick);
    Response::page("application/json", body)
}

/// A live page beside the work of this process.
pub struct LiveThread {
    url: String,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LiveThread {
    /// Serves the page of a run of these nodes at any free port of loopback, until it is dropped.
    ///
    /// # Errors
    /// When no port can be bound, or no thread can be started.
    pub fn start(owners: &[PageOwner]) -> io::Result<Self> {
        let mut observer = RunObserver::new(owners).map_err(io::Error::other)?;
        let server = LiveServer::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let (url, stop) = (server.url(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let work = move || {
            while !stopped.load(Ordering::Relaxed) {
                observer.look();
                server.publish(&observer);
                std::thread::park_timeout(LOOK_EVERY);
            }
        };
        let thread = std::thread::Builder::new().name("live page".into()).spawn(work)?;
        Ok(Self { url, stop, thread: Some(thread) })
    }

    /// The address of the page.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for LiveThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic in the thread has been printed. A look takes half a second at most.
            drop(thread.join());
        }
    }
}
