//! The pages of a role: `/metrics` for Prometheus, `/healthz`, `/status` as JSON, and orders to a
//! running role. The role's thread only swaps in a page a few times a second; an
//! [`http::Server`](crate::http) serves it.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::http::{Limits, Request, Response, Routes, Server, StatusCode};

/// What may be asked of a role while it runs: `POST PATH?to=VALUE`.
#[derive(Clone, Copy)]
pub struct Orders {
    /// Where the order is posted, such as `/mode`.
    pub path: &'static str,
    /// Refuses a value that the role does not know, in words that name what is allowed.
    pub check: fn(&str) -> Result<(), String>,
}

/// The content type of the Prometheus text format, with its version.
const METRICS_KIND: &str = "text/plain; version=0.0.4";
/// Orders that may wait; a role takes them several times a second.
const ORDERS_MAX: usize = 16;

/// What the role publishes.
#[derive(Debug, Default)]
struct Page {
    metrics: String,
    status: String,
    /// Why it is not well.
    ill: Option<String>,
    orders: VecDeque<String>,
}

/// The page of one role, served if it has an address.
#[derive(Default)]
pub struct Telemetry {
    page: Arc<Mutex<Page>>,
    server: Option<Server>,
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
        orders: Option<Orders>,
    ) -> Result<Self, String> {
        let page = Arc::new(Mutex::new(Page { ill: Some("starting".into()), ..Page::default() }));
        let Some(address) = address else { return Ok(Self { page, server: None }) };
        if !keyed && !address.ip().is_loopback() {
            return Err(format!(
                "http = {address}: without a key nothing listens beyond loopback; \
                 set run.key_file, or an address in 127.0.0.0/8"
            ));
        }
        let orders = orders.map(|orders| (orders, address.ip()));
        let server = Server::bind(address, Limits::default(), routes(&page, orders))
            .map_err(|error| format!("http = {address}: {error}"))?;
        Ok(Self { page, server: Some(server) })
    }

    /// Where the pages are served, if anywhere.
    pub fn address(&self) -> Option<SocketAddr> {
        self.server.as_ref().map(Server::address)
    }

    /// Publishes the state of now.
    pub fn publish(&self, mut m: Metrics, status: &impl Serialize, ill: Option<String>) {
        if let Some(server) = &self.server {
            let help = "HTTP connections closed because too many were open.";
            m.counter("http_turned_away_total", help, 0, server.turned_away());
        }
        let status = serde_json::to_string(status).unwrap_or_default();
        let mut page = lock(&self.page);
        (page.metrics, page.status, page.ill) = (m.text(), status, ill);
    }

    /// The value of the next order, if one came in.
    pub fn order(&self) -> Option<String> {
        lock(&self.page).orders.pop_front()
    }
}

/// The pages of a role. Orders come with the address that is served, where they are taken at all.
fn routes(page: &Arc<Mutex<Page>>, orders: Option<(Orders, IpAddr)>) -> Routes {
    let on = |answer: fn(&Page) -> Response| {
        let page = Arc::clone(page);
        move |_: &Request| answer(&lock(&page))
    };
    let routes = Routes::default()
        .get("/metrics", on(|page| Response::page(METRICS_KIND, page.metrics.clone())))
        .get("/status", on(|page| Response::page("application/json", page.status.clone())))
        .get(
            "/healthz",
            on(|page| match &page.ill {
                None => Response::text(StatusCode::OK, "ok"),
                Some(why) => Response::text(StatusCode::SERVICE_UNAVAILABLE, why),
            }),
        );
    let Some((orders, own)) = orders else { return routes };
    let page = Arc::clone(page);
    routes.post(orders.path, 0, move |request| take_order(request, orders, own, &mut lock(&page)))
}

/// Whether a client is on this host, of which `own` is the address that is served.
fn is_here(from: IpAddr, own: IpAddr) -> bool {
    let from = from.to_canonical();
    from.is_loopback() || from == own
}

/// Takes an order. Pages may be read from afar. An order does not say who gives it, so it must come
/// from this host, and not by way of a browser from somebody else's page.
fn take_order(request: &Request, orders: Orders, own: IpAddr, page: &mut Page) -> Response {
    if !is_here(request.from.ip(), own) {
        return Response::text(StatusCode::FORBIDDEN, "orders are taken from this host only");
    }
    if !request.is_of_this_site() {
        let why = "orders are not taken from pages of other sites, nor under a name other than \
                   localhost; name this host by its address";
        return Response::text(StatusCode::FORBIDDEN, why);
    }
    let wanted = request.query.strip_prefix("to=").unwrap_or("");
    match (orders.check)(wanted) {
        Ok(()) if page.orders.len() >= ORDERS_MAX => {
            Response::text(StatusCode::SERVICE_UNAVAILABLE, "too many orders are waiting")
        }
        Ok(()) => {
            page.orders.push_back(wanted.to_owned());
            let words = format_args!("{wanted} from one of the next frames on");
            Response::text(StatusCode::ACCEPTED, words)
        }
        Err(why) => {
            let words = format_args!("POST {}?to=VALUE: {why}", orders.path);
            Response::text(StatusCode::BAD_REQUEST, words)
        }
    }
}

/// Writes the Prometheus text format.
#[derive(Debug, Default)]
pub struct Metrics {
    labels: String,
    families: Vec<Family>,
}

/// The lines of one metric: the format wants them together.
#[derive(Debug)]
struct Family {
    name: String,
    lines: String,
}

impl Metrics {
    /// Metrics of one node.
    pub fn of(name: &str, role: &str) -> Self {
        let clean = name.replace(['\\', '"', '\n'], "_");
        Self { labels: format!("node=\"{clean}\",role=\"{role}\""), families: Vec::new() }
    }

    fn metric(&mut self, kind: &str, name: &str, help: &str, tree: u32, value: f64) {
        let name = format!("evenfall_{name}");
        let at = self.families.iter().position(|family| family.name == name);
        let at = at.unwrap_or_else(|| {
            let lines = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
            self.families.push(Family { name: name.clone(), lines });
            self.families.len() - 1
        });
        let lines = &mut self.families[at].lines;
        let _ = writeln!(lines, "{name}{{{},tree=\"{tree}\"}} {value}", self.labels);
    }

    fn text(&self) -> String {
        self.families.iter().map(|family| family.lines.as_str()).collect()
    }

    /// A count that only grows.
    pub fn counter(&mut self, name: &str, help: &str, tree: u32, value: u64) {
        self.metric("counter", name, help, tree, value as f64);
    }

    /// A value of now.
    pub fn gauge(&mut self, name: &str, help: &str, tree: u32, value: f64) {
        self.metric("gauge", name, help, tree, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn ask_with(address: SocketAddr, request: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "{request} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn ask(address: SocketAddr, request: &str) -> String {
        ask_with(address, request, &format!("Host: {address}\r\n"))
    }

    /// As a root's, whose order is a mode.
    const ORDERS: Orders = Orders {
        path: "/mode",
        check: |value| match value {
            "tree" | "hedge" => Ok(()),
            other => Err(format!("{other} is neither tree nor hedge")),
        },
    };

    fn start(takes_orders: bool) -> (Telemetry, SocketAddr) {
        let any = "127.0.0.1:0".parse().unwrap();
        let orders = takes_orders.then_some(ORDERS);
        let telemetry = Telemetry::start(Some(any), false, orders).unwrap();
        let address = telemetry.address().unwrap();
        (telemetry, address)
    }

    #[test]
    fn pages_are_served_and_orders_taken() {
        let (telemetry, address) = start(true);
        assert!(ask(address, "GET /healthz").contains("503"));
        let mut metrics = Metrics::of("a\"b", "root");
        metrics.counter("frames_total", "Frames.", 0, 7);
        metrics.gauge("held", "Held.", 0, 1.5);
        metrics.counter("frames_total", "Frames.", 1, 8);
        telemetry.publish(metrics, &"fine", None);
        let page = ask(address, "GET /metrics");
        let lines = [
            "# HELP evenfall_frames_total Frames.",
            "# TYPE evenfall_frames_total counter",
            "evenfall_frames_total{node=\"a_b\",role=\"root\",tree=\"0\"} 7",
            "evenfall_frames_total{node=\"a_b\",role=\"root\",tree=\"1\"} 8",
            "# HELP evenfall_held Held.",
        ];
        assert!(page.contains(&lines.join("\n")), "the lines of a metric are together: {page}");
        assert!(page.contains("evenfall_http_turned_away_total{"), "{page}");
        assert!(ask(address, "GET /healthz").contains("200"));
        assert!(ask(address, "GET /status").ends_with("\"fine\""));
        assert!(ask(address, "POST /mode?to=walk").contains("hedge"), "names what is allowed");
        assert!(ask(address, "POST /mode?to=tree").contains("202"));
        assert_eq!(telemetry.order(), Some("tree".to_owned()));
    }

    #[test]
    fn orders_are_taken_by_who_obeys_them_and_from_this_host_only() {
        let (telemetry, address) = start(false);
        assert!(ask(address, "POST /mode?to=tree").contains("404"), "a proxy has no mode");
        assert_eq!(telemetry.order(), None);
        let is_here = |from: &str| is_here(from.parse().unwrap(), "10.0.0.1".parse().unwrap());
        assert!(is_here("127.0.0.1") && is_here("::ffff:127.0.0.1") && is_here("10.0.0.1"));
        assert!(!is_here("10.0.0.7") && !is_here("::ffff:10.0.0.7"));
    }

    #[test]
    fn order_of_a_page_of_another_site_is_refused() {
        let (telemetry, address) = start(true);
        let port = address.port();
        for (host, origin) in [
            (format!("127.0.0.1:{port}"), "Origin: https://evil.example\r\n"),
            (format!("127.0.0.1:{port}"), "Origin: null\r\n"),
            (format!("127.0.0.1:{port}"), "Origin: \u{e9}\r\n"),
            // A name of the attacker's that points here: the page is of the same origin.
            (format!("evil.example:{port}"), &format!("Origin: http://evil.example:{port}\r\n")),
            (format!("evil.example:{port}"), ""),
        ] {
            let headers = format!("Host: {host}\r\n{origin}");
            let answer = ask_with(address, "POST /mode?to=tree", &headers);
            assert!(answer.contains(" 403 "), "{headers}{answer}");
        }
        assert_eq!(telemetry.order(), None);
        let own = [
            format!("Host: {address}\r\nOrigin: http://{address}\r\n"),
            format!("Host: localhost:{port}\r\n"),
            format!("Host: [::1]:{port}\r\nOrigin: http://[::1]:{port}\r\n"),
        ];
        for headers in own {
            let answer = ask_with(address, "POST /mode?to=tree", &headers);
            assert!(answer.contains(" 202 "), "{headers}{answer}");
        }
    }

    #[test]
    fn nothing_listens_beyond_loopback_without_a_key() {
        let error =
            Telemetry::start(Some("10.0.0.1:1".parse().unwrap()), false, None).err().unwrap();
        assert!(error.contains("key"), "{error}");
    }
}
