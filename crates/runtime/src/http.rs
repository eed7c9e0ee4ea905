//! An HTTP server for the pages of a process: state, metrics and orders. The server knows no role.
//!
//! A service registers plain functions from a [`Request`] to a [`Response`]. All functions run on
//! one thread beside the service, so a function only reads the values that the service left for it.
//! Requests that wait, and bodies that are longer than the memory for them, belong to [`streams`].
//!
//! Anybody who reaches the port may send anything. Therefore every connection has a time limit at
//! every moment of its life, and every size that a client can enlarge has a bound:
//!
//! ```text
//! accepted --headers, within header_timeout--> request --within request_timeout--> answered
//!     ^                                                                               |
//!     +------------- kept alive: the next headers, within header_timeout -------------+
//! ```
//!
//! A connection that is late in any phase is closed. A stream is late when nothing has moved for
//! the time of both phases. When all places are taken, a connection whose client is silent makes
//! room for a new one ([`places`]). Memory is bounded by `connections_max` times the headers and
//! the body of one request, or the pieces of one stream. The crate hyper implements HTTP/1.1.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
pub use hyper::{Method, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

mod client;
mod places;
mod reader;
mod sealed;
mod site;
pub mod streams;
#[cfg(test)]
mod tests;

pub use client::{Answered, Reply, RequestError, Upload, ask, exchange_from, exchange_under};
use places::{Awaited, Life, Places};
pub use reader::{PageAddress, PageReader};
pub use sealed::Guard;
use sealed::Stream;
pub use site::{AllowedHosts, ForeignRequest};
use streams::{Arriving, Outgoing, StreamAnswer, Streams};

/// Connections at once: some scrapers, some people and a probe of the orchestrator. A process also
/// needs file descriptors for other uses, and 1,024 is a common limit.
const CONNECTIONS_MAX: usize = 64;
/// Bytes of a request line with its headers. A browser with the cookies of other services on the
/// same host sends up to 8 KiB. hyper accepts no limit below 8 KiB.
const HEADER_BYTES_MAX: usize = 16 << 10;
/// Headers of a request. A browser sends about 20.
const HEADERS_MAX: usize = 64;
/// Time from the accept, or from the last answer on the same connection, to the end of the headers.
/// A client on another continent needs less than a second. A scraper that keeps its connection
/// between scrapes connects again.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time from the end of the headers to the end of the answer: the body must arrive, and the client
/// must take the answer. A page of a thousand receivers over a slow line takes a second or two.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long accepting pauses when the kernel refuses a connection, for example because file
/// descriptors are short.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// The limits of what clients may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once. Beyond this number a connection whose client is silent makes room. When
    /// no client is silent, the newest connection is closed at once. Both are counted.
    pub connections_max: usize,
    /// Bytes of a request line and its headers, 8 KiB at least. A longer request is answered by
    /// 431. As many bytes of a body are read from a connection at once.
    pub header_bytes_max: usize,
    /// Headers of a request. A request with more is answered by 431.
    pub headers_max: usize,
    /// Time for the headers of a request, counted from the accept or the last answer. The same time
    /// limits an idle connection. A connection that takes longer is closed.
    pub header_timeout: Duration,
    /// Time for the body of a request and the answer. A late body is answered by 408. When the
    /// client does not take the answer in time, the connection is closed.
    pub request_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: CONNECTIONS_MAX,
            header_bytes_max: HEADER_BYTES_MAX,
            headers_max: HEADERS_MAX,
            header_timeout: HEADER_TIMEOUT,
            request_timeout: REQUEST_TIMEOUT,
        }
    }
}

/// A whole request.
#[derive(Debug)]
pub struct Request {
    /// The method: GET, POST and so on.
    pub method: Method,
    /// The path as the client sent it, with its escapes, such as `/metrics`.
    pub path: String,
    /// The text after the question mark; empty without one.
    pub query: String,
    /// The body; empty unless the route takes one.
    pub body: Bytes,
    /// The client's address.
    pub from: SocketAddr,
    /// The name by which the client addressed this server, with its port; empty without one.
    host: String,
    headers: HeaderMap,
}

impl Request {
    fn new(head: &mut hyper::Request<()>, body: Bytes, from: SocketAddr) -> Self {
        let host = host_of(head).unwrap_or_default().to_owned();
        Self {
            host,
            method: head.method().clone(),
            path: head.uri().path().to_owned(),
            query: head.uri().query().unwrap_or_default().to_owned(),
            body,
            from,
            headers: core::mem::take(head.headers_mut()),
        }
    }

    /// The value of a header; `None` when it is missing or is no text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// The host that a request names. A request for a whole URL, as proxies send it, names its host in
/// the URL, and its header `Host` says nothing (RFC 9112, section 3.2.2).
fn host_of<B>(head: &hyper::Request<B>) -> Option<&str> {
    let of_url = head.uri().authority().map(hyper::http::uri::Authority::as_str);
    of_url.or_else(|| head.headers().get(header::HOST)?.to_str().ok())
}

/// Refuses a request of HTTP/1.1 that does not have exactly one `Host`, and any request that has a
/// second one (RFC 9112, section 3.2).
fn check_host<B>(head: &hyper::Request<B>) -> Result<(), &'static str> {
    let mut hosts = head.headers().get_all(header::HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    match first {
        None if head.version() == hyper::Version::HTTP_11 => Err("the request has no Host"),
        _ if second.is_some() => Err("the request has two Hosts"),
        Some(host) if host.to_str().is_err() => Err("the Host of the request is no text"),
        _ => Ok(()),
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status, 200 and so on.
    pub status: StatusCode,
    /// The content type.
    pub kind: &'static str,
    /// The page.
    pub body: Bytes,
}

impl Response {
    /// A page of this content type.
    pub fn page(kind: &'static str, body: impl Into<Bytes>) -> Self {
        Self { status: StatusCode::OK, kind, body: body.into() }
    }

    /// A line of text with a status.
    pub fn text(status: StatusCode, line: impl fmt::Display) -> Self {
        Self { status, kind: "text/plain; charset=utf-8", body: format!("{line}\n").into() }
    }
}

/// The function of a route. The function must not wait, because all requests share its thread.
type Answer = Box<dyn Fn(&Request) -> Response + Send + Sync>;

struct Route {
    method: Method,
    path: &'static str,
    /// Bytes that the body may have.
    body_bytes_max: usize,
    answer: Answer,
}

/// The routes of a server.
#[derive(Default)]
pub struct Routes {
    routes: Vec<Route>,
    streams: Option<Arc<Streams>>,
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.routes.iter().map(|route| (&route.method, route.path))).finish()
    }
}

impl Routes {
    /// Adds a page.
    #[must_use]
    pub fn get(
        self,
        path: &'static str,
        answer: impl Fn(&Request) -> Response + Send + Sync + 'static,
    ) -> Self {
        self.with(Method::GET, path, 0, answer)
    }

    /// Adds an action that takes a body of at most `body_bytes_max` bytes; 0 refuses any body.
    #[must_use]
    pub fn post(
        self,
        path: &'static str,
        body_bytes_max: usize,
        answer: impl Fn(&Request) -> Response + Send + Sync + 'static,
    ) -> Self {
        self.with(Method::POST, path, body_bytes_max, answer)
    }

    /// Adds a function that answers every request without a route of its own. The function runs on
    /// a thread of its own for each request, so the function may wait.
    #[must_use]
    pub fn streams(
        mut self,
        answer: impl Fn(&Request, Arriving) -> StreamAnswer + Send + Sync + 'static,
    ) -> Self {
        self.streams = Some(Arc::new(answer));
        self
    }

    fn with(
        mut self,
        method: Method,
        path: &'static str,
        body_bytes_max: usize,
        answer: impl Fn(&Request) -> Response + Send + Sync + 'static,
    ) -> Self {
        self.routes.push(Route { method, path, body_bytes_max, answer: Box::new(answer) });
        self
    }

    fn find(&self, method: &Method, path: &str) -> Option<&Route> {
        // HEAD asks whether a page exists. hyper leaves the body of the answer out.
        let method = if method == Method::HEAD { &Method::GET } else { method };
        self.routes.iter().find(|route| route.method == method && route.path == path)
    }

    fn not_found(&self) -> Response {
        let all = self.routes.iter().map(|route| format!("{} {}", route.method, route.path));
        let all = all.collect::<Vec<_>>().join(", ");
        Response::text(StatusCode::NOT_FOUND, format_args!("try {all}"))
    }

    /// Answers a request whose headers have arrived.
    async fn answer(
        &self,
        request: hyper::Request<Incoming>,
        from: SocketAddr,
        timeout: Duration,
    ) -> Response {
        let (head, body) = request.into_parts();
        let route = self.find(&head.method, head.uri.path());
        let limit = route.map_or(0, |route| route.body_bytes_max);
        // A body that is too long is refused before it arrives.
        if body.size_hint().lower() > limit as u64 {
            return too_large(limit);
        }
        let body = match tokio::time::timeout(timeout, Limited::new(body, limit).collect()).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<LengthLimitError>() => return too_large(limit),
            Ok(Err(error)) => return Response::text(StatusCode::BAD_REQUEST, error),
            Err(_) => return Response::text(StatusCode::REQUEST_TIMEOUT, "the body is late"),
        };
        let Some(route) = route else { return self.not_found() };
        let mut head = hyper::Request::from_parts(head, ());
        (route.answer)(&Request::new(&mut head, body, from))
    }
}

fn too_large(limit: usize) -> Response {
    let why = format!("a body of {limit} bytes at most is taken here");
    Response::text(StatusCode::PAYLOAD_TOO_LARGE, why)
}

/// Counters of a server.
#[derive(Debug, Default)]
struct Counts {
    turned_away: AtomicU64,
    evicted: AtomicU64,
}

/// A server, which serves until it is dropped. Dropping it takes no longer than a function of a
/// route or of a stream.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
    counts: Arc<Counts>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Starts to serve; port 0 takes any free port.
    ///
    /// # Errors
    /// When the address cannot be bound, or no thread can be started.
    pub fn bind(address: SocketAddr, limits: Limits, routes: Routes) -> std::io::Result<Self> {
        Self::bind_guarded(address, limits, routes, None)
    }

    /// Starts to serve connections that the guard allows: those that are sealed under its key, and
    /// plain connections from this host. Without a guard all connections are plain.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_guarded(
        address: SocketAddr,
        limits: Limits,
        routes: Routes,
        guard: Option<Guard>,
    ) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            // A connection has one request at a time, and so one thread of a stream.
            .max_blocking_threads(limits.connections_max.max(1))
            .build()?;
        let listener = runtime.block_on(TcpListener::bind(address))?;
        let address = listener.local_addr()?;
        let counts = Arc::new(Counts::default());
        let (stop, stopped) = oneshot::channel::<()>();
        let shared = Arc::new(Shared { limits, routes, guard, counts: Arc::clone(&counts) });
        let work = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, shared) => {}
                    _ = stopped => {}
                }
            });
            // Connections are tasks of the runtime. All connections end at once when the runtime is
            // dropped.
        };
        let thread = std::thread::Builder::new().name("http".into()).spawn(work)?;
        Ok(Self { address, counts, stop: Some(stop), thread: Some(thread) })
    }

    /// The address at which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections closed at once because there were too many.
    pub fn turned_away(&self) -> u64 {
        self.counts.turned_away.load(Ordering::Relaxed)
    }

    /// Connections of silent clients that made room for others.
    pub fn evicted(&self) -> u64 {
        self.counts.evicted.load(Ordering::Relaxed)
    }

    /// Reads [`turned_away`](Self::turned_away) and [`evicted`](Self::evicted) from a route of the
    /// server itself.
    pub(crate) fn counts_reader(&self) -> impl Fn() -> [u64; 2] + Send + Sync + 'static {
        let counts = Arc::clone(&self.counts);
        move || [&counts.turned_away, &counts.evicted].map(|count| count.load(Ordering::Relaxed))
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has been printed.
            drop(thread.join());
        }
    }
}

/// The state that all connections of a server share.
#[derive(Debug)]
struct Shared {
    limits: Limits,
    routes: Routes,
    guard: Option<Guard>,
    counts: Arc<Counts>,
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let limits = shared.limits;
    // hyper limits the time for headers, but not the time in which a client takes an answer.
    // Therefore the whole connection must always finish its request and the next headers within
    // this time.
    let patience = limits.header_timeout + limits.request_timeout;
    let places = Arc::new(Mutex::new(Places::new(limits.connections_max)));
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_REST).await;
            continue;
        };
        let place = lock(&places).take(from.ip(), patience);
        let Some(place) = place else {
            shared.counts.turned_away.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        shared.counts.evicted.fetch_add(u64::from(place.has_evicted), Ordering::Relaxed);
        let (shared, places) = (Arc::clone(&shared), Arc::clone(&places));
        tokio::spawn(async move {
            tokio::select! {
                () = converse(stream, from, &shared, &place.life) => {}
                () = place.life.evicted() => place.life.cut(),
            }
            lock(&places).leave(place.number);
        });
    }
}

/// Locks the places. A thread that panicked while it held the lock has left them in order.
fn lock(places: &Mutex<Places>) -> MutexGuard<'_, Places> {
    places.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves one connection until it ends or is late.
async fn converse(stream: TcpStream, from: SocketAddr, shared: &Arc<Shared>, life: &Arc<Life>) {
    let limits = shared.limits;
    let stream = match &shared.guard {
        None => Stream::Plain(stream),
        Some(guard) => {
            let accepted = Stream::accept(stream, from, guard);
            match tokio::time::timeout(limits.header_timeout, accepted).await {
                Ok(Ok(stream)) => stream,
                // The client is late, or does not have the key.
                _ => return,
            }
        }
    };
    let service = hyper::service::service_fn(|request: hyper::Request<Incoming>| {
        life.awaits(Awaited::Answer);
        let life = Arc::clone(life);
        async move { Ok::<_, Infallible>(respond(request, from, shared, life).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(limits.header_bytes_max)
        .max_headers(limits.headers_max)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    loop {
        let until = life.due();
        tokio::select! {
            // A client that made a mistake has been answered or is gone.
            _ = connection.as_mut() => return,
            () = tokio::time::sleep_until(until) => if life.due() <= until {
                return life.cut();
            },
        }
    }
}

/// Answers a request whose headers have arrived.
async fn respond(
    request: hyper::Request<Incoming>,
    from: SocketAddr,
    shared: &Shared,
    life: Arc<Life>,
) -> hyper::Response<Outgoing> {
    let routes = &shared.routes;
    let answer = match check_host(&request) {
        Err(why) => Response::text(StatusCode::BAD_REQUEST, why),
        Ok(()) => {
            let is_routed = routes.find(request.method(), request.uri().path()).is_some();
            if let Some(streams) = routes.streams.as_ref().filter(|_| !is_routed) {
                return streams::answer(Arc::clone(streams), request, from, life).await;
            }
            life.owes_body(true);
            let answer = routes.answer(request, from, shared.limits.request_timeout).await;
            life.owes_body(false);
            answer
        }
    };
    as_hyper(answer, life)
}

fn as_hyper(answer: Response, life: Arc<Life>) -> hyper::Response<Outgoing> {
    let mut response = hyper::Response::new(Outgoing::whole(answer.body, life));
    *response.status_mut() = answer.status;
    let kind = HeaderValue::from_static(answer.kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
