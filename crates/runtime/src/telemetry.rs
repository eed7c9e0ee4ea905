//! `/metrics` for Prometheus, `/healthz`, `/status` as JSON, and orders to a running role, over
//! HTTP from a thread of its own: the role's thread only swaps in a page a few times a second.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use evenfall_multicast_machine::Mode;
use serde::Serialize;
use tiny_http::{Header, Method, Request, Response, Server};

/// What may be asked of a role while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Travel in another mode from now on (root only).
    Mode(Mode),
}

/// Orders that may wait; a role takes them several times a second.
const ORDERS_MAX: usize = 16;

/// What the role publishes.
#[derive(Debug, Default)]
struct Page {
    metrics: String,
    status: String,
    /// Why it is not well.
    ill: Option<String>,
    orders: VecDeque<Order>,
}

/// The page of one role, served if it has an address.
#[derive(Default)]
pub struct Telemetry {
    page: Arc<Mutex<Page>>,
    server: Option<(Arc<Server>, JoinHandle<()>)>,
}

fn lock(page: &Mutex<Page>) -> MutexGuard<'_, Page> {
    page.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Telemetry {
    /// Starts serving, if there is an address. Orders exist only where the role takes them.
    ///
    /// # Errors
    /// When the address cannot be bound, or lies beyond loopback without a key.
    pub fn start(
        address: Option<SocketAddr>,
        keyed: bool,
        takes_orders: bool,
    ) -> Result<Self, String> {
        let page = Arc::new(Mutex::new(Page { ill: Some("starting".into()), ..Page::default() }));
        let Some(address) = address else { return Ok(Self { page, server: None }) };
        if !keyed && !address.ip().is_loopback() {
            return Err(format!(
                "http = {address}: without a key nothing listens beyond loopback; \
                 set run.key_file, or an address in 127.0.0.0/8"
            ));
        }
        let server = Server::http(address).map_err(|error| format!("http = {address}: {error}"))?;
        let server = Arc::new(server);
        let own = takes_orders.then_some(address.ip());
        let (serving, shared) = (Arc::clone(&server), Arc::clone(&page));
        let serve = move || {
            for request in serving.incoming_requests() {
                answer(request, &shared, own);
            }
        };
        let thread = std::thread::Builder::new()
            .name("telemetry".into())
            .spawn(serve)
            .map_err(|error| format!("telemetry thread: {error}"))?;
        Ok(Self { page, server: Some((server, thread)) })
    }

    /// Publishes the state of now.
    pub fn publish(&self, metrics: String, status: &impl Serialize, ill: Option<String>) {
        let status = serde_json::to_string(status).unwrap_or_default();
        let mut page = lock(&self.page);
        (page.metrics, page.status, page.ill) = (metrics, status, ill);
    }

    /// The next order, if one came in.
    pub fn order(&self) -> Option<Order> {
        lock(&self.page).orders.pop_front()
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        if let Some((server, thread)) = self.server.take() {
            server.unblock();
            thread.join().ok();
        }
    }
}

/// Whether who asks is on this host, of which `own` is the address that is served. Pages may be
/// read from afar; orders do not say who gives them.
fn is_here(from: IpAddr, own: IpAddr) -> bool {
    let from = from.to_canonical();
    from.is_loopback() || from == own
}

/// `own` is the address that is served, where orders are taken at all.
fn answer(request: Request, page: &Mutex<Page>, own: Option<IpAddr>) {
    let (path, query) = match request.url().split_once('?') {
        Some((path, query)) => (path.to_owned(), query.to_owned()),
        None => (request.url().to_owned(), String::new()),
    };
    let (code, kind, body) = match (request.method(), path.as_str()) {
        (Method::Get, "/metrics") => (200, "text/plain; version=0.0.4", lock(page).metrics.clone()),
        (Method::Get, "/status") => (200, "application/json", lock(page).status.clone()),
        (Method::Get, "/healthz") => match &lock(page).ill {
            None => (200, "text/plain", "ok\n".to_owned()),
            Some(why) => (503, "text/plain", format!("{why}\n")),
        },
        (Method::Post, "/mode") if own.is_some() => {
            let from = request.remote_addr().map(SocketAddr::ip);
            match from.zip(own) {
                Some((from, own)) if is_here(from, own) => order_mode(&query, page),
                _ => (403, "text/plain", "orders are taken from this host only\n".into()),
            }
        }
        _ => {
            let orders = if own.is_some() { " or POST /mode?to=MODE" } else { "" };
            (404, "text/plain", format!("try /metrics, /healthz, /status{orders}\n"))
        }
    };
    let header = Header::from_bytes("Content-Type", kind).expect("a header of ASCII");
    let response = Response::from_string(body).with_status_code(code).with_header(header);
    // Who asked may be gone; that is nobody else's concern.
    request.respond(response).ok();
}

fn order_mode(query: &str, page: &Mutex<Page>) -> (u16, &'static str, String) {
    let wanted = query.strip_prefix("to=").unwrap_or("");
    let value = serde_json::Value::String(wanted.to_owned());
    match serde_json::from_value::<Mode>(value) {
        Ok(mode) => {
            let mut page = lock(page);
            if page.orders.len() >= ORDERS_MAX {
                return (503, "text/plain", "too many orders are waiting\n".into());
            }
            page.orders.push_back(Order::Mode(mode));
            (202, "text/plain", format!("{wanted} from one of the next frames on\n"))
        }
        Err(error) => (400, "text/plain", format!("POST /mode?to=MODE: {error}\n")),
    }
}

/// Writes the Prometheus text format.
#[derive(Debug, Default)]
pub struct Metrics {
    text: String,
    labels: String,
}

impl Metrics {
    /// Metrics of one node.
    pub fn of(name: &str, role: &str) -> Self {
        let clean = name.replace(['\\', '"', '\n'], "_");
        Self { text: String::new(), labels: format!("node=\"{clean}\",role=\"{role}\"") }
    }

    fn metric(&mut self, kind: &str, name: &str, help: &str, tree: u32, value: f64) {
        let full = format!("evenfall_{name}");
        if !self.text.contains(&format!("# TYPE {full} ")) {
            let _ = writeln!(self.text, "# HELP {full} {help}\n# TYPE {full} {kind}");
        }
        let _ = writeln!(self.text, "{full}{{{},tree=\"{tree}\"}} {value}", self.labels);
    }

    /// A count that only grows.
    pub fn counter(&mut self, name: &str, help: &str, tree: u32, value: u64) {
        self.metric("counter", name, help, tree, value as f64);
    }

    /// A value of now.
    pub fn gauge(&mut self, name: &str, help: &str, tree: u32, value: f64) {
        self.metric("gauge", name, help, tree, value);
    }

    /// The text.
    pub fn finish(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn pages_are_served_and_orders_taken() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let telemetry = Telemetry::start(Some(free), false, true).unwrap();
        assert!(ask(free, "GET /healthz").contains("503"));
        let mut metrics = Metrics::of("a\"b", "root");
        metrics.counter("frames_total", "Frames.", 0, 7);
        metrics.counter("frames_total", "Frames.", 1, 8);
        telemetry.publish(metrics.finish(), &"fine", None);
        let page = ask(free, "GET /metrics");
        assert!(page.contains("evenfall_frames_total{node=\"a_b\",role=\"root\",tree=\"1\"} 8"));
        assert_eq!(page.matches("# TYPE").count(), 1);
        assert!(ask(free, "GET /healthz").contains("200"));
        assert!(ask(free, "GET /status").ends_with("\"fine\""));
        assert!(ask(free, "POST /mode?to=walk").contains("cloudex"), "names what is allowed");
        assert!(ask(free, "POST /mode?to=tree").contains("202"));
        assert_eq!(telemetry.order(), Some(Order::Mode(Mode::Tree)));
    }

    #[test]
    fn orders_are_taken_by_who_obeys_them_and_from_this_host_only() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let telemetry = Telemetry::start(Some(free), false, false).unwrap();
        assert!(ask(free, "POST /mode?to=tree").contains("404"), "a proxy has no mode");
        assert_eq!(telemetry.order(), None);
        let is_here = |from: &str| is_here(from.parse().unwrap(), "10.0.0.1".parse().unwrap());
        assert!(is_here("127.0.0.1") && is_here("::ffff:127.0.0.1") && is_here("10.0.0.1"));
        assert!(!is_here("10.0.0.7") && !is_here("::ffff:10.0.0.7"));
    }

    #[test]
    fn nothing_listens_beyond_loopback_without_a_key() {
        let error =
            Telemetry::start(Some("10.0.0.1:1".parse().unwrap()), false, false).err().unwrap();
        assert!(error.contains("key"), "{error}");
    }
}
