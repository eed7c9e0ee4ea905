//! What ZooKeeper 3.8.4 answers to these bytes, and what clients of other languages count on.

use super::*;

/// The first message of a client that names no field for servers that serve reads alone.
fn hello() -> JuteMessage {
    JuteMessage::default().int(0).long(0).int(4_000).long(0).buffer(&[0; 16])
}

/// A client with a session.
fn open(at: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(at).expect("connected");
    exchange(&mut stream, hello().bool(false));
    stream
}

/// The xid and the error of an answer.
fn head(answer: &[u8]) -> (i32, i32) {
    let xid = Fields::new(answer).int().expect("a xid");
    (xid, Fields::new(&answer[12..]).int().expect("an error"))
}

/// A new node that everybody may change.
fn create(message: JuteMessage, path: &[u8], mode: i32) -> JuteMessage {
    let message = message.buffer(path).buffer(b"x").int(1).int(31).text("world").text("anyone");
    message.int(mode)
}

fn word(at: SocketAddr, word: &[u8; 4]) -> String {
    let mut text = String::new();
    let mut stream = TcpStream::connect(at).expect("connected");
    stream.write_all(word).expect("sent");
    stream.read_to_string(&mut text).expect("an answer");
    text
}

fn counted(at: SocketAddr, name: &str) -> u64 {
    let text = word(at, b"mntr");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
    line.trim().parse().expect("a number")
}

#[test]
fn clients_of_go_rust_java_and_clickhouse_get_the_answers_that_they_wait_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = replica(directory.path());

    // A client that sends 44 bytes gets 36, and one that sends 45 gets 37.
    for (hello, bytes) in [(hello(), 36), (hello().bool(false), 37), (hello().bool(true), 37)] {
        let mut stream = TcpStream::connect(at).expect("connected");
        assert_eq!(exchange(&mut stream, hello).len(), bytes);
    }

    // A proof is answered under its own xid, whether it is taken or not.
    let mut stream = open(at);
    for xid in [1, 77, -4] {
        let proof = JuteMessage::default().int(xid).int(op::AUTH).int(0);
        let answer = exchange(&mut stream, proof.text("digest").buffer(b"ann:x"));
        assert_eq!(head(&answer), (xid, error::OK));
    }
    let proof = JuteMessage::default().int(9).int(op::AUTH).int(0).text("sasl").buffer(b"x");
    assert_eq!(head(&exchange(&mut open(at), proof)), (9, error::AUTH_FAILED));

    // Nodes that come with a stat are of the kind that Java's client knows.
    let kinds = [(op::CREATE_CONTAINER, "/box", 4), (op::CREATE_TTL, "/late", 5)];
    let multi = JuteMessage::default().int(2).int(op::MULTI);
    let multi = kinds.iter().fold(multi, |multi, (number, path, mode)| {
        let multi = multi.int(*number).bool(false).int(-1);
        let multi = create(multi, path.as_bytes(), *mode);
        if *number == op::CREATE_TTL { multi.long(60_000) } else { multi }
    });
    let answer = exchange(&mut stream, multi.int(-1).bool(true).int(-1));
    let mut fields = Fields::new(&answer[16..]);
    for (_, path, _) in kinds {
        let found = (fields.int(), fields.bool(), fields.int(), fields.text());
        assert_eq!(found, (Ok(op::CREATE2), Ok(false), Ok(0), Ok(path.into())));
        // Only a session is the owner of a node.
        assert_eq!(fields.stat().expect("a stat").owner, 0, "{path}");
    }
    for (_, path, _) in kinds {
        let ask = JuteMessage::default().int(3).int(op::EXISTS).text(path).bool(false);
        let answer = exchange(&mut stream, ask);
        assert_eq!(Fields::new(&answer[16..]).stat().expect("a stat").owner, 0, "{path}");
    }
}

#[test]
fn requests_that_cannot_be_read_are_answered_and_the_connection_goes_on() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = replica(directory.path());
    let mut stream = open(at);
    let ask = |number: i32| JuteMessage::default().int(5).int(number);
    let odd = b"/\xff";
    let acl = |scheme: &str| {
        let message = ask(op::CREATE).text("/rights").buffer(b"x").int(1).int(31);
        message.text(scheme).buffer(b"ann\xff:digest").int(0)
    };
    let cases = [
        ("exists", ask(op::EXISTS).buffer(odd).bool(false), error::NO_NODE),
        ("getData", ask(op::GET_DATA).buffer(odd).bool(false), error::NO_NODE),
        ("getChildren", ask(op::GET_CHILDREN).buffer(odd).bool(false), error::NO_NODE),
        ("delete", ask(op::DELETE).buffer(odd).int(-1), error::NO_NODE),
        ("create", create(ask(op::CREATE), odd, 0), error::BAD_ARGUMENTS),
        ("setData", ask(op::SET_DATA).buffer(odd).buffer(b"x").int(-1), error::BAD_ARGUMENTS),
        ("rights", acl("digest"), error::OK),
        ("cut exists", ask(op::EXISTS), error::MARSHALLING),
        ("cut create", ask(op::CREATE).text("/a"), error::MARSHALLING),
        ("cut multi", ask(op::MULTI).int(op::CREATE), error::MARSHALLING),
        ("an odd multi", ask(op::MULTI).int(77).bool(false).int(-1), error::MARSHALLING),
        ("a cut call of our own", ask(op::CALL).buffer(&[3]), error::MARSHALLING),
        ("a long list", ask(op::SET_WATCHES).long(0).int(i32::MAX), error::MARSHALLING),
    ];
    for (what, message, number) in cases {
        assert_eq!(head(&exchange(&mut stream, message)), (5, number), "{what}");
    }
    assert_eq!(counted(at, "zk_evenfall_refused_request"), 6);
    let odd = ask(op::AUTH).int(0).text("digest").buffer(b"a\xff:b");
    assert_eq!(head(&exchange(&mut stream, odd)), (5, error::OK));
}

#[test]
fn a_transaction_with_two_mistakes_names_the_first() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = replica(directory.path());
    let mut stream = open(at);
    let made = create(JuteMessage::default().int(1).int(op::CREATE), b"/there", 0);
    assert_eq!(head(&exchange(&mut stream, made)), (1, error::OK));
    let begin = || JuteMessage::default().int(2).int(op::MULTI);
    let head_of = |message: JuteMessage, number: i32| message.int(number).bool(false).int(-1);
    let nothing = |message| head_of(message, op::DELETE).text("/none").int(-1);
    let again = |message| create(head_of(message, op::CREATE), b"/there", 0);
    let new = |message| create(head_of(message, op::CREATE), b"/new", 0);
    let bad_path = |message| create(head_of(message, op::CREATE), b"no path", 0);
    let bad_rights = |message| {
        let message = head_of(message, op::CREATE).text("/rights").buffer(b"x");
        message.int(1).int(31).text("none").text("such").int(0)
    };
    let (ok, after) = (error::OK, error::INCONSISTENT);
    let cases = [
        (bad_rights(nothing(begin())), vec![error::NO_NODE, after]),
        (bad_path(again(begin())), vec![error::NODE_EXISTS, after]),
        (bad_path(new(begin())), vec![ok, error::BAD_ARGUMENTS]),
        (nothing(bad_rights(new(begin()))), vec![ok, error::INVALID_ACL, after]),
    ];
    for (message, expected) in cases {
        let answer = exchange(&mut stream, message.int(-1).bool(true).int(-1));
        let mut fields = Fields::new(&answer[16..]);
        let found: Vec<i32> = expected
            .iter()
            .map(|_| {
                let (kind, is_last) = (fields.int().expect("a kind"), fields.bool());
                assert_eq!((kind, is_last), (-1, Ok(false)));
                let again = (fields.int().expect("an error"), fields.int().expect("an error"));
                assert_eq!(again.0, again.1);
                again.0
            })
            .collect();
        assert_eq!(found, expected);
    }
    let ask = JuteMessage::default().int(3).int(op::EXISTS).text("/new").bool(false);
    assert_eq!(head(&exchange(&mut stream, ask)), (3, error::NO_NODE), "nothing was made");
}

#[test]
fn refusals_are_counted_and_a_longer_message_is_taken_where_the_option_says_so() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut settings = settings(directory.path());
    settings.zookeeper.set("jute.maxbuffer=4194304").expect("an option");
    let at = start(settings);
    let mut stream = open(at);
    // Java's and Node's clients set twenty thousand watches again by one message of 1.3 MB.
    let again = JuteMessage::default().int(1).int(op::SET_WATCHES).long(0).int(20_000);
    let path = |n: usize| format!("/{n:060}");
    let again = (0..20_000).fold(again, |message, n| message.text(&path(n))).int(0).int(0);
    assert!(again.length() > 1 << 20);
    stream.write_all(&again.finish()).expect("sent");
    let mut first = [0; 4];
    stream.read_exact(&mut first).expect("an answer, or an event in front of it");

    let long = (5_u32 << 20).to_be_bytes();
    let mut stream = open(at);
    stream.write_all(&long).expect("sent");
    assert_eq!(stream.read(&mut [0; 8]).unwrap_or(0), 0, "the limit ends the connection");
    assert_eq!(counted(at, "zk_evenfall_refused_too_long"), 1);

    // A client that has seen more than this replica has, and one of a session that is unknown.
    let ahead = JuteMessage::default().int(0).long(1 << 40).int(4_000).long(0).buffer(&[0; 16]);
    let mut stream = TcpStream::connect(at).expect("connected");
    stream.write_all(&ahead.finish()).expect("sent");
    assert_eq!(stream.read(&mut [0; 8]).unwrap_or(0), 0, "it is turned away");
    let unknown = JuteMessage::default().int(0).long(0).int(4_000).long(7).buffer(&[0; 16]);
    let mut stream = TcpStream::connect(at).expect("connected");
    let answer = exchange(&mut stream, unknown);
    assert_eq!(Fields::new(&answer[8..]).long(), Ok(0), "no session");
    assert_eq!(counted(at, "zk_evenfall_refused_ahead"), 1);
    assert_eq!(counted(at, "zk_evenfall_refused_session"), 1);
}

#[test]
fn monitors_read_every_line_and_every_column() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut settings = settings(directory.path());
    settings.zookeeper.set("4lw.commands.whitelist=*").expect("an option");
    let at = start(settings);
    let mut stream = open(at);
    let ask = JuteMessage::default().int(7).int(op::EXISTS).text("/").bool(false);
    assert_eq!(head(&exchange(&mut stream, ask)), (7, error::OK));
    // Telegraf takes no line that does not begin so.
    let monitored = word(at, b"mntr");
    for line in monitored.lines() {
        let (name, value) = line.split_once('\t').expect("a tab");
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        let is_right = name.starts_with("zk_") && name.chars().all(is_name);
        assert!(is_right && !value.is_empty(), "{line}");
    }
    assert!(counted(at, "zk_open_file_descriptor_count") > 3);
    assert!(counted(at, "zk_max_file_descriptor_count") > 3);
    // Go's client and Elastic's Beats read the version by this form.
    let state = loop {
        // The replica notes a few times a second whether it takes part.
        let state = word(at, b"srvr");
        if !state.contains("Mode: observer") {
            break state;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let version = state.lines().next().expect("a line");
    let (version, day) = version.split_once(", built on ").expect("a day");
    let version = version.strip_prefix("Zookeeper version: ").expect("a version");
    assert!(!version.contains(' ') && day.ends_with(" GMT"), "{state}");
    assert!(state.contains("Mode: standalone\n"), "{state}");
    let clients = word(at, b"cons");
    let line = clients.lines().find(|line| line.contains("sid=0x")).expect("a session");
    let columns = [
        "queued=",
        "recved=",
        "sent=",
        "sid=0x",
        "lop=EXIS",
        "est=",
        "to=2000",
        "lcxid=0x7",
        "lzxid=0x",
        "lresp=",
        "llat=",
        "minlat=",
        "avglat=",
        "maxlat=",
    ];
    let mut at = 0;
    for column in columns {
        at += line[at..].find(column).unwrap_or_else(|| panic!("{column} in its place: {line}"));
    }
}
