//! Pages and orders as a client of the network meets them.

use super::super::{Metrics, PageDraft, Telemetry};
use super::*;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

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

/// The order of a root, which is a mode.
const ORDERS: Orders = Orders {
    path: "/mode",
    check: |value| match value {
        "tree" | "hedge" => Ok(()),
        other => Err(crate::SettingsError::new(format!("{other} is neither tree nor hedge"))),
    },
};

fn start(takes_orders: bool) -> (Telemetry, SocketAddr) {
    let any = "127.0.0.1:0".parse().unwrap();
    let orders: &[Orders] = if takes_orders { &[ORDERS] } else { &[] };
    let telemetry = Telemetry::start(Some(any), false, orders, None).unwrap();
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
    telemetry.publish(metrics, &"fine", &(), None);
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
    assert!(page.contains("evenfall_http_evicted_total{"), "{page}");
    assert!(ask(address, "GET /healthz").contains("200"));
    assert!(ask(address, "GET /status").ends_with("\"fine\""));
    assert!(ask(address, "POST /mode?to=walk").contains("hedge"), "names what is allowed");
    assert!(ask(address, "POST /mode?to=tree").contains("202"));
    assert_eq!(telemetry.order(), Some(("/mode", "tree".to_owned())));
}

#[test]
fn a_page_is_made_by_another_thread_than_that_of_the_role() {
    let (telemetry, address) = start(true);
    let role = std::thread::current().id();
    telemetry.publish_later(move || {
        let other = std::thread::current().id() != role;
        PageDraft::new(Metrics::of("a", "root"), &[other], &(), None)
    });
    // The other thread may take a moment.
    let is_made = (0..500).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        ask(address, "GET /status").contains("[true]")
    });
    assert!(is_made);
}

#[test]
fn files_are_given_out_by_the_function_of_their_page() {
    fn read(directory: &Path, query: &str) -> io::Result<String> {
        match query {
            "file=a" => Ok(format!("a of {}", directory.display())),
            "file=b" => Err(io::Error::other("file b comes later")),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "ask for file=a")),
        }
    }
    let files = FilesPage { path: "/files", directory: Path::new("there"), read };
    let any = "127.0.0.1:0".parse().unwrap();
    let telemetry = Telemetry::start(Some(any), false, &[], Some(files)).unwrap();
    let address = telemetry.address().unwrap();
    assert!(ask(address, "GET /files?file=a").ends_with("a of there"));
    // A role without the page answers 404, so that a client can tell the three states apart.
    let wanted = [
        ("GET /files?file=b", " 503 ", "file b comes later"),
        ("GET /files?file=c", " 400 ", "ask for file=a"),
        ("GET /other", " 404 ", "GET /files"),
    ];
    for (request, status, why) in wanted {
        let refused = ask(address, request);
        assert!(refused.contains(status) && refused.contains(why), "{request}: {refused}");
    }
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
        // The attacker's own name points to this host, so the page has the same origin.
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
    let address = Some("10.0.0.1:1".parse().unwrap());
    let error = Telemetry::start(address, false, &[], None).err().unwrap();
    assert!(error.to_string().contains("key"), "{error}");
}
