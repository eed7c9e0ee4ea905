//! The server's answers to clients of all kinds. No client costs the server more than its limits.

use super::*;
use crate::address::SourcePorts;
use evenfall_core::SharedKey;
use std::io::{Read, Write};
use std::net::TcpStream as Client;

/// Limits with short phases, so that a test sees their ends.
fn hasty() -> Limits {
    let timeout = Duration::from_millis(300);
    Limits { header_timeout: timeout, request_timeout: timeout, ..Limits::default() }
}

fn serve(limits: Limits) -> HttpServer {
    let echo = |request: &Request| Response::page("text/plain", request.body.clone());
    let routes = Routes::default()
        .get("/healthz", |_| Response::text(StatusCode::OK, "ok"))
        .get("/query", |request| Response::text(StatusCode::OK, &request.query))
        .get("/long", |_| Response::page("text/plain", vec![b'x'; 32 << 20]))
        .post("/echo", 100, echo);
    HttpServer::bind("127.0.0.1:0".parse().unwrap(), limits, routes).unwrap()
}

fn connect(server: &HttpServer) -> Client {
    Client::connect(server.address()).unwrap()
}

/// The bytes that come back until the server closes the connection.
fn ask(server: &HttpServer, request: &str) -> String {
    let mut client = connect(server);
    client.write_all(request.as_bytes()).unwrap();
    rest_of(&mut client)
}

fn rest_of(client: &mut Client) -> String {
    let mut answer = Vec::new();
    // A connection that is cut still brings the bytes that came before.
    client.read_to_end(&mut answer).ok();
    String::from_utf8_lossy(&answer).into_owned()
}

fn is_well(server: &HttpServer) -> bool {
    ask(server, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ends_with("ok\n")
}

/// Asks until a connection of the attack has been closed and there is room again.
fn gets_well(server: &HttpServer) {
    while !is_well(server) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn routes_answer_by_method_and_path() {
    let server = serve(Limits::default());
    let close = "Host: x\r\nConnection: close\r\n";
    let get = |path: &str| ask(&server, &format!("GET {path} HTTP/1.1\r\n{close}\r\n"));
    assert!(get("/healthz").starts_with("HTTP/1.1 200"));
    assert!(get("/query?a=1&b").ends_with("a=1&b\n"));
    let other = get("/other");
    assert!(other.contains(" 404 ") && other.contains("try GET /healthz, GET /query"), "{other}");
    assert!(get("/echo").contains(" 404 "), "POST only");
    let head = ask(&server, &format!("HEAD /healthz HTTP/1.1\r\n{close}\r\n"));
    assert!(head.contains(" 200 ") && !head.ends_with("ok\n"), "{head}");
    let post = format!("POST /echo HTTP/1.1\r\n{close}Content-Length: 3\r\n\r\nabc");
    assert!(ask(&server, &post).ends_with("abc"));
}

#[test]
fn requests_follow_each_other_on_one_connection() {
    let server = serve(Limits::default());
    let one = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
    let last = "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    assert_eq!(ask(&server, &format!("{one}{one}{last}")).matches("\r\n\r\nok\n").count(), 3);
}

#[test]
fn body_that_nobody_wants_is_refused_by_its_length_alone() {
    let server = serve(Limits::default());
    let lengths = ["1", "5000", "4611686018427387904", "18446744073709551615"];
    for path in ["/healthz", "/other", "/echo"] {
        for length in lengths.into_iter().filter(|length| path != "/echo" || *length != "1") {
            let head =
                format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
            let answer = ask(&server, &head);
            // hyper takes the last text for no length, and answers before any route is asked.
            assert!(answer.contains(" 413 ") || answer.contains(" 431 "), "{head}{answer}");
        }
    }
    let chunks = "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    let answer = ask(&server, &format!("{chunks}c8\r\n{}\r\n", "x".repeat(200)));
    assert!(answer.contains(" 413 "), "{answer}");
    assert!(is_well(&server));
}

#[test]
fn body_that_does_not_come_is_not_waited_for() {
    let server = serve(hasty());
    let head = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n";
    let mut silent = connect(&server);
    silent.write_all(head.as_bytes()).unwrap();
    assert!(is_well(&server), "others are served meanwhile");
    let answer = rest_of(&mut silent);
    assert!(answer.contains(" 408 "), "{answer}");
}

#[test]
fn header_without_end_is_refused_at_its_limit() {
    let server = serve(Limits::default());
    let mut client = connect(&server);
    client.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: ").unwrap();
    let chunk = vec![b'a'; 64 << 10];
    // The body is far larger than the kernel's buffers. The server stops reading and closes.
    let sent = (0..1_000).take_while(|_| client.write_all(&chunk).is_ok()).count();
    assert!(sent < 1_000, "{sent} times 64 KiB of a header");
    let many: String = (0..1_000).map(|n| format!("X-{n}: 1\r\n")).collect();
    let answer = ask(&server, &format!("GET /healthz HTTP/1.1\r\nHost: x\r\n{many}\r\n"));
    assert!(answer.contains(" 431 "), "{answer}");
    assert!(is_well(&server));
}

#[test]
fn connections_beyond_the_limit_are_closed_and_counted() {
    const IDLE: u64 = 500;
    let limits = hasty();
    let server = serve(limits);
    let idle: Vec<Client> = (0..IDLE).map(|_| connect(&server)).collect();
    // Every idle connection ends. Most end at once, the others when their headers are late.
    for mut client in idle {
        assert!(rest_of(&mut client).is_empty());
    }
    gets_well(&server);
    let closed = server.turned_away() + server.evicted();
    assert!(closed > 0 && closed <= IDLE + 100, "{closed}");
}

/// Limits under which a silent client is never late.
fn patient() -> Limits {
    let timeout = Duration::from_secs(3_600);
    Limits { header_timeout: timeout, request_timeout: timeout, ..Limits::default() }
}

#[test]
fn silent_connections_make_room_for_a_client_that_asks() {
    for beginning in ["", "GET /healthz HTTP/1.1\r\nHost: x\r\n"] {
        let server = serve(patient());
        let silent: Vec<Client> = (0..300)
            .map(|_| {
                let mut client = connect(&server);
                client.write_all(beginning.as_bytes()).ok();
                client
            })
            .collect();
        assert!(is_well(&server), "after {beginning:?}");
        assert!(server.evicted() > 0 && server.turned_away() == 0);
        drop(silent);
    }
}

#[test]
fn a_connection_that_is_kept_alive_makes_room_and_one_that_is_answered_does_not() {
    let limits = Limits { connections_max: 2, ..patient() };
    let server = serve(limits);
    // This client does not take its answer, so that the server is still answering.
    let mut answered = connect(&server);
    answered.write_all(b"GET /long HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut first = [0; 1];
    answered.read_exact(&mut first).unwrap();
    let mut kept = connect(&server);
    kept.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    kept.read_exact(&mut first).unwrap();
    for _ in 0..5 {
        assert!(is_well(&server));
    }
    assert!(rest_of(&mut kept).ends_with("ok\n"), "it was answered before it made room");
    assert_eq!(rest_of(&mut answered).len().div_euclid(32 << 20), 1, "the whole answer came");
}

#[test]
fn a_body_that_does_not_come_makes_room_after_a_while() {
    let server = serve(Limits { connections_max: 1, ..patient() });
    let mut silent = connect(&server);
    let head = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\nhalf";
    silent.write_all(head.as_bytes()).unwrap();
    gets_well(&server);
    assert!(rest_of(&mut silent).is_empty());
}

#[test]
fn requests_have_one_host() {
    let server = serve(Limits::default());
    let get = |fields: &str| {
        ask(&server, &format!("GET /healthz HTTP/1.1\r\n{fields}Connection: close\r\n\r\n"))
    };
    assert!(get("Host: x\r\n").starts_with("HTTP/1.1 200 "));
    for fields in ["", "Host: x\r\nHost: y\r\n", "Host: x\r\nHost: x\r\n", "Host: \u{e4}\r\n"] {
        let answer = get(fields);
        assert!(answer.starts_with("HTTP/1.1 400 "), "{fields:?}: {answer}");
    }
    let old = ask(&server, "GET /healthz HTTP/1.0\r\n\r\n");
    assert!(old.starts_with("HTTP/1.0 200 "), "{old}");
}

#[test]
fn client_that_does_not_take_its_answer_is_let_go() {
    let limits = Limits { connections_max: 1, ..hasty() };
    let server = serve(limits);
    let mut client = connect(&server);
    client.write_all(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    gets_well(&server);
    assert!(rest_of(&mut client).len() < 32 << 20, "the answer was cut");
}

#[test]
fn bytes_that_are_no_requests_end_their_connection_only() {
    let server = serve(hasty());
    let mut prng = evenfall_core::Prng::new(9);
    for length in 1..200 {
        let mut client = connect(&server);
        let bytes: Vec<u8> = (0..length).map(|_| prng.next_u64() as u8).collect();
        client.write_all(&bytes).ok();
        client.shutdown(std::net::Shutdown::Write).ok();
        rest_of(&mut client);
    }
    assert!(is_well(&server));
}

#[test]
fn server_ends_while_clients_are_in_every_phase() {
    let server = serve(Limits::default());
    let phases = [
        "",
        "GET /heal",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\nabc",
        "GET /long HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    ];
    let clients = phases.map(|bytes| {
        let mut client = connect(&server);
        client.write_all(bytes.as_bytes()).unwrap();
        client
    });
    assert!(is_well(&server));
    drop(server);
    drop(clients);
}

const PATIENCE: Duration = Duration::from_secs(10);

#[test]
fn the_client_reads_what_the_server_answers() {
    let server = serve(Limits::default());
    let get = |path: &str| super::ask(server.address(), Method::GET, path, PATIENCE);
    assert_eq!(get("/healthz").unwrap().text, "ok\n");
    assert_eq!(get("/query?a=1").unwrap().text, "a=1\n");
    assert_eq!(get("/other").unwrap().status, StatusCode::NOT_FOUND);
    let posted = super::ask(server.address(), Method::POST, "/echo", PATIENCE).unwrap();
    assert_eq!((posted.status, posted.text.as_str()), (StatusCode::OK, ""));
    let path = get("no path");
    assert!(matches!(path, Err(RequestError::Path(_))), "{path:?}");
}

#[test]
fn the_client_names_a_server_that_is_absent_mute_or_endless() {
    let absent = super::ask("127.0.0.1:1".parse().unwrap(), Method::GET, "/", PATIENCE);
    assert!(matches!(absent, Err(RequestError::Connection(_))), "{absent:?}");

    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let moment = Duration::from_millis(50);
    let late = super::ask(mute.local_addr().unwrap(), Method::GET, "/", moment);
    assert!(matches!(late, Err(RequestError::Late(_))), "{late:?}");

    let server = serve(Limits::default());
    let endless = super::ask(server.address(), Method::GET, "/long", PATIENCE);
    assert!(matches!(endless, Err(RequestError::Body(_))), "{endless:?}");
}

/// A server that gives back what it gets, piece by piece. It answers the number of pieces at
/// `/count`, nothing that it gets at `/refuse`, and half of what it promises at `/half`.
fn streaming(limits: Limits) -> HttpServer {
    let routes = Routes::default().streams(|request, mut body| {
        let echo = std::iter::from_fn(move || {
            let mut piece = vec![0; 50_000];
            let len = body.read(&mut piece);
            len.map(|len| (len > 0).then(|| Bytes::copy_from_slice(&piece[..len]))).transpose()
        });
        let length = request.header("content-length").and_then(|text| text.parse().ok());
        let content = match request.path.as_str() {
            "/count" => streams::Content::Whole(echo.count().to_string().into()),
            "/echo" => streams::Content::Stream(length, Box::new(echo)),
            "/refuse" => streams::Content::Whole(Bytes::from("no")),
            _ => streams::Content::Stream(Some(8), Box::new([Ok(Bytes::from("half"))].into_iter())),
        };
        streams::StreamAnswer {
            status: StatusCode::OK,
            headers: vec![("x-a", "b".into())],
            content,
        }
    });
    HttpServer::bind("127.0.0.1:0".parse().unwrap(), limits, routes).unwrap()
}

fn url(server: &HttpServer, path: &str) -> String {
    format!("http://{}{path}", server.address())
}

/// Sends these bytes to `/echo`, with their number or without, and reads what comes back.
fn echoed(server: &HttpServer, bytes: &[u8], length: Option<u64>) -> Vec<u8> {
    let from = Upload::of(Box::new(std::io::Cursor::new(bytes.to_vec())), length);
    let url = url(server, "/echo");
    let mut answer = exchange_under(None, &url, Method::PUT, from, PATIENCE, &mut |_| {}).unwrap();
    let mut all = Vec::new();
    answer.read_to_end(&mut all).unwrap();
    assert_eq!((answer.status, answer.header("x-a")), (StatusCode::OK, Some("b")));
    all
}

#[test]
fn a_body_that_no_buffer_holds_streams_through_with_its_length_and_without() {
    let server = streaming(Limits::default());
    let body: Vec<u8> = (0..4_u32 << 20).map(|n| (n / 251) as u8).collect();
    for length in [Some(100_000), None] {
        assert!(echoed(&server, &body[..100_000], length) == body[..100_000]);
    }
    let mut client = connect(&server);
    let head = format!("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n", body.len());
    client.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).unwrap();
    let mut reader = client.try_clone().unwrap();
    let answer = std::thread::scope(|scope| {
        scope.spawn(|| client.write_all(&body).unwrap());
        let mut answer = Vec::new();
        reader.read_to_end(&mut answer).unwrap();
        answer
    });
    let begin = answer.len() - body.len();
    assert!(answer[begin..] == body[..], "{}", String::from_utf8_lossy(&answer[..begin]));
}

#[test]
fn a_sealed_connection_carries_bodies_both_ways_and_opens_under_no_other_key() {
    let key = SharedKey::new(1, [7; 32]);
    let routes = Routes::default().streams(|_, mut body| {
        let mut all = Vec::new();
        body.read_to_end(&mut all).unwrap();
        let content = streams::Content::Whole(all.into());
        streams::StreamAnswer { status: StatusCode::OK, headers: Vec::new(), content }
    });
    let guard = Some(sealed::Guard { key: key.clone(), is_open: false });
    let local = "127.0.0.1:0".parse().unwrap();
    let server = HttpServer::bind_guarded(local, Limits::default(), routes, guard).unwrap();
    let body: Vec<u8> = (0..3_u32 << 20).map(|n| (n / 251) as u8).collect();
    let asked = |key: Option<&SharedKey>| {
        let from = Upload::of(Box::new(std::io::Cursor::new(body.clone())), None);
        let mut all = Vec::new();
        exchange_under(key, &url(&server, "/"), Method::PUT, from, PATIENCE, &mut |_| {})?
            .read_to_end(&mut all)
            .map_err(RequestError::Connection)?;
        Ok::<_, RequestError>(all)
    };
    assert!(asked(Some(&key)).unwrap() == body);
    assert!(asked(None).unwrap() == body, "a plain client of this host");
    assert!(asked(Some(&SharedKey::new(1, [8; 32]))).is_err());
    assert!(asked(Some(&SharedKey::new(2, [7; 32]))).is_err());
}

#[test]
fn a_sealed_connection_shows_nothing_and_takes_nothing_that_was_changed() {
    let key = SharedKey::new(1, [7; 32]);
    let routes = Routes::default().get("/word", |_| Response::text(StatusCode::OK, "hidden"));
    let guard = Some(sealed::Guard { key: key.clone(), is_open: false });
    let local = "127.0.0.1:0".parse().unwrap();
    let server = HttpServer::bind_guarded(local, Limits::default(), routes, guard).unwrap();
    // A middleman that hands on what both ends send, and flips a bit of one byte of the client.
    let through = |flipped: Option<usize>| {
        let middle = std::net::TcpListener::bind(local).unwrap();
        let url = format!("http://{}/word", middle.local_addr().unwrap());
        std::thread::scope(|scope| {
            let server = &server;
            let carried = scope.spawn(move || {
                let (mut client, _) = middle.accept().unwrap();
                let mut to = connect(server);
                let (mut back, mut out) = (to.try_clone().unwrap(), client.try_clone().unwrap());
                let down = std::thread::spawn(move || {
                    let mut all = Vec::new();
                    let mut piece = [0; 1_024];
                    while let Ok(len @ 1..) = back.read(&mut piece) {
                        all.extend_from_slice(&piece[..len]);
                        out.write_all(&piece[..len]).ok();
                    }
                    out.shutdown(std::net::Shutdown::Both).ok();
                    all
                });
                let (mut seen, mut piece) = (Vec::new(), [0; 1_024]);
                while let Ok(len @ 1..) = client.read(&mut piece) {
                    let begin = seen.len();
                    seen.extend_from_slice(&piece[..len]);
                    if let Some(at) = flipped.filter(|at| (begin..begin + len).contains(at)) {
                        piece[at - begin] ^= 1;
                    }
                    to.write_all(&piece[..len]).ok();
                }
                to.shutdown(std::net::Shutdown::Both).ok();
                seen.extend(down.join().unwrap());
                seen
            });
            let none = Upload::none();
            let answer = exchange_under(Some(&key), &url, Method::GET, none, PATIENCE, &mut |_| {});
            let text = answer.map(|answer| answer.text());
            (text.is_ok_and(|text| text.is_ok_and(|text| text == "hidden\n")), carried.join())
        })
    };
    let (is_answered, seen) = through(None);
    let seen = seen.unwrap();
    assert!(is_answered);
    assert!(!seen.windows(4).any(|bytes| bytes == b"word" || bytes == b"HTTP" || bytes == b"hidd"));
    for at in [0, 5, 20, 40, 43, 70] {
        assert!(!through(Some(at)).0, "a flip of byte {at}");
    }
}

#[test]
fn a_connection_comes_from_the_ports_that_its_client_chose() {
    let routes = Routes::default()
        .get("/port", |request| Response::text(StatusCode::OK, request.from.port()));
    let server =
        HttpServer::bind("127.0.0.1:0".parse().unwrap(), Limits::default(), routes).unwrap();
    let ports = SourcePorts { first: 22_000, last: 22_399 };
    let port = || {
        let (url, none) = (url(&server, "/port"), Upload::none());
        let answer =
            exchange_from(Some(ports), None, &url, Method::GET, none, PATIENCE, &mut |_| {});
        answer.unwrap().text().unwrap().trim().parse::<u16>().unwrap()
    };
    let (one, other) = (port(), port());
    assert!([one, other].iter().all(|port| (ports.first..=ports.last).contains(port)));
    assert_ne!(one, other, "connections take turns among the ports");
}

#[test]
fn an_answer_that_ends_early_is_an_error_at_the_client() {
    let server = streaming(Limits::default());
    let half = url(&server, "/half");
    let answer = exchange_under(None, &half, Method::GET, Upload::none(), PATIENCE, &mut |_| {});
    let mut all = Vec::new();
    // The connection may end before the head of the answer has left, or behind a part of the body.
    assert!(answer.is_err() || answer.unwrap().read_to_end(&mut all).is_err());
    assert!(b"half".starts_with(&all), "{all:?}");
}

#[test]
fn a_function_that_wants_no_body_answers_without_it() {
    let server = streaming(Limits::default());
    // More than the buffers of the kernel hold, from a client that sends first and reads later.
    let len = 12 << 20;
    let from = Upload::of(Box::new(std::io::repeat(7).take(len)), Some(len));
    let refuse = url(&server, "/refuse");
    let answer = exchange_under(None, &refuse, Method::PUT, from, PATIENCE, &mut |_| {}).unwrap();
    assert_eq!(answer.text().unwrap(), "no");
}

#[test]
fn a_client_that_waits_to_send_gets_a_word_to_go_on_or_an_answer_and_never_both() {
    let server = streaming(Limits::default());
    let head = |path: &str| {
        let fields = "Host: x\r\nExpect: 100-continue\r\nConnection: close\r\n";
        format!("PUT {path} HTTP/1.1\r\n{fields}Content-Length: 5\r\n\r\n")
    };
    for is_sent in [false, true] {
        let mut client = connect(&server);
        client.write_all(head("/refuse").as_bytes()).unwrap();
        let mut answer = vec![0; 1_000];
        let len = client.read(&mut answer).unwrap();
        assert!(answer[..len].starts_with(b"HTTP/1.1 200 "), "{answer:?}");
        // The client may send the body all the same, or close the connection.
        client.write_all(if is_sent { b"12345" } else { b"" }).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let answer = String::from_utf8_lossy(&answer[..len]).into_owned() + &rest_of(&mut client);
        assert!(answer.ends_with("no") && !answer.contains(" 100 "), "{answer}");
    }
    let mut client = connect(&server);
    client.write_all(head("/count").as_bytes()).unwrap();
    let word = "HTTP/1.1 100 Continue\r\n\r\n";
    let mut come = vec![0; word.len()];
    client.read_exact(&mut come).unwrap();
    assert_eq!(String::from_utf8_lossy(&come), word);
    client.write_all(b"12345").unwrap();
    let answer = rest_of(&mut client);
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n1"), "{answer}");
}

#[test]
fn a_body_that_is_late_or_cut_ends_in_an_error_and_not_like_a_whole_one() {
    let (tell, told) = std::sync::mpsc::channel();
    let routes = Routes::default().streams(move |_, mut body| {
        let mut all = Vec::new();
        let read = body.read_to_end(&mut all).map_err(|error| error.kind());
        tell.send((all, read.is_ok())).unwrap();
        let content = streams::Content::Whole(Bytes::new());
        streams::StreamAnswer { status: StatusCode::OK, headers: Vec::new(), content }
    });
    let server = HttpServer::bind("127.0.0.1:0".parse().unwrap(), hasty(), routes).unwrap();
    for (head, piece) in
        [("Content-Length: 10", "12345"), ("Transfer-Encoding: chunked", "5\r\n12345\r\n")]
    {
        let request = format!("PUT /x HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n{piece}");
        for is_late in [true, false] {
            let mut client = connect(&server);
            client.write_all(request.as_bytes()).unwrap();
            if is_late {
                rest_of(&mut client);
            }
            drop(client);
            assert_eq!(told.recv().unwrap(), (b"12345".to_vec(), false), "{head} {is_late}");
        }
    }
}
