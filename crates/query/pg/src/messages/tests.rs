//! Messages whole, cut, too long and too slow.

use super::*;

fn bounds() -> MessageBounds {
    MessageBounds::new(1 << 20, Duration::from_secs(60))
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend((body.len() as u32 + 4).to_be_bytes());
    bytes.extend(body);
    bytes
}

fn startup() -> Vec<u8> {
    let mut body = 196_608u32.to_be_bytes().to_vec();
    body.extend(b"user\0me\0database\0day\0\0");
    let mut bytes = (body.len() as u32 + 4).to_be_bytes().to_vec();
    bytes.extend(body);
    bytes
}

/// All messages of these bytes, until there is none.
async fn read_all(
    mut reader: MessageReader,
    bytes: &[u8],
) -> (Vec<PgWireFrontendMessage>, NoMessage) {
    let mut socket = bytes;
    let mut messages = Vec::new();
    loop {
        match reader.next(&mut socket).await {
            Ok(message) => messages.push(message),
            Err(end) => return (messages, end),
        }
    }
}

fn started() -> MessageReader {
    MessageReader { is_started: true, ..MessageReader::new(bounds()) }
}

#[tokio::test]
async fn the_messages_of_a_statement_are_read_one_by_one() {
    let mut bytes = startup();
    bytes.extend(message(b'P', b"s\0SELECT $1\0\x00\x01\x00\x00\x00\x17"));
    bytes.extend(message(b'B', b"\0s\0\x00\x01\x00\x01\x00\x01\x00\x00\x00\x01x\x00\x00"));
    bytes.extend(message(b'E', b"\0\x00\x00\x00\x00"));
    bytes.extend(message(b'S', b""));
    let (messages, end) = read_all(MessageReader::new(bounds()), &bytes).await;
    assert!(matches!(end, NoMessage::Gone));
    let [first, parse, bind, ..] = &messages[..] else { panic!("{messages:?}") };
    let PgWireFrontendMessage::Startup(first) = first else { panic!("{first:?}") };
    assert_eq!(first.parameters["database"], "day");
    let PgWireFrontendMessage::Parse(parse) = parse else { panic!("{parse:?}") };
    assert_eq!((parse.query.as_str(), &parse.type_oids[..]), ("SELECT $1", &[23][..]));
    let PgWireFrontendMessage::Bind(bind) = bind else { panic!("{bind:?}") };
    assert_eq!(bind.parameters, [Some(Bytes::from_static(b"x"))]);
    assert_eq!(messages.len(), 5);
}

#[tokio::test]
async fn a_body_that_is_cut_or_too_long_is_malformed() {
    let whole = [
        (b'Q', &b"SELECT 1\0"[..]),
        (b'P', b"s\0SELECT 1\0\x00\x01\x00\x00\x00\x17"),
        (b'B', b"\0s\0\x00\x01\x00\x01\x00\x01\x00\x00\x00\x01x\x00\x01\x00\x01"),
        (b'D', b"Ss\0"),
        (b'C', b"Ps\0"),
        (b'E', b"\0\x00\x00\x00\x00"),
        (b'S', b""),
    ];
    for (kind, body) in whole {
        for length in 0..body.len() {
            let bytes = message(kind, &body[..length]);
            let (messages, end) = read_all(started(), &bytes).await;
            assert!(messages.is_empty(), "{length} bytes of {body:?}: {messages:?}");
            assert!(matches!(end, NoMessage::Refused(refusal) if refusal.is_fatal));
        }
        let longer = [body, b"x"].concat();
        let (messages, _) = read_all(started(), &message(kind, &longer)).await;
        assert!(messages.is_empty(), "{messages:?}");
    }
    let packet = startup();
    for length in 0..packet.len() {
        let mut bytes = packet[..length].to_vec();
        if length >= 4 {
            bytes[..4].copy_from_slice(&(length as u32).to_be_bytes());
        }
        let (messages, _) = read_all(MessageReader::new(bounds()), &bytes).await;
        assert!(messages.is_empty(), "{length} bytes: {messages:?}");
    }
}

#[tokio::test]
async fn an_announced_length_is_judged_before_a_byte_of_it_is_held() {
    for (kind, length) in [(b'p', 1 << 30), (b'Q', 1 << 30), (b'B', u32::MAX), (b'E', 20_000)] {
        let mut reader = started();
        let mut socket: &[u8] = &[&[kind][..], &u32::to_be_bytes(length)].concat();
        let refused = reader.next(&mut socket).await;
        let Err(NoMessage::Refused(refusal)) = refused else { panic!("{refused:?}") };
        assert!(refusal.words.contains(&length.to_string()), "{}", refusal.words);
        assert!(reader.held_bytes() <= 2 * READ_BYTES, "{}", reader.held_bytes());
        assert_eq!(refusal.is_fatal, kind == b'p');
    }
    let mut reader = MessageReader::new(bounds());
    let refused = reader.next(&mut &0x1603_0100u32.to_be_bytes()[..]).await;
    assert!(matches!(refused, Err(NoMessage::Refused(refusal)) if refusal.is_fatal));
}

#[tokio::test]
async fn the_message_after_a_refused_one_is_read() {
    let mut bytes = message(b'Q', &[b'x'; 10 << 20]);
    bytes.extend(message(b'Q', b"SELECT 1\0"));
    let (mut reader, mut socket) = (started(), &bytes[..]);
    let Err(NoMessage::Refused(refusal)) = reader.next(&mut socket).await else { panic!("taken") };
    assert!(refusal.words.contains("--statement-bytes"), "{}", refusal.words);
    let Ok(PgWireFrontendMessage::Query(query)) = reader.next(&mut socket).await else {
        panic!("no message")
    };
    assert_eq!(query.query, "SELECT 1");
    assert!(reader.held_bytes() <= 4 * READ_BYTES, "{}", reader.held_bytes());
}

#[tokio::test]
async fn long_messages_of_all_clients_share_a_budget() {
    let bounds = bounds();
    let reader = || MessageReader { is_started: true, ..MessageReader::new(bounds.clone()) };
    let mut long = vec![b'x'; 1 << 20];
    long.push(0);
    let long = message(b'Q', &long);
    let mut held = Vec::new();
    let refusal = loop {
        let mut reader = reader();
        match reader.next(&mut &long[..]).await {
            Ok(_) => held.push(reader),
            Err(NoMessage::Refused(refusal)) => break refusal,
            Err(NoMessage::Gone) => panic!("the message is whole"),
        }
        assert!(held.len() < 100, "there is no budget");
    };
    assert_eq!((refusal.code, refusal.is_fatal), ("53200", false));
    // A short statement is taken all the same, and the budget comes back.
    assert!(reader().next(&mut &message(b'Q', b"SELECT 1\0")[..]).await.is_ok());
    held.pop();
    assert!(reader().next(&mut &long[..]).await.is_ok());
}

#[tokio::test]
async fn half_a_message_has_a_time_limit_and_an_idle_client_has_none() {
    let (mut client, mut socket) = tokio::io::duplex(64);
    let bounds = MessageBounds::new(1 << 20, Duration::from_millis(1));
    let mut reader = MessageReader { is_started: true, ..MessageReader::new(bounds) };
    let idle = Duration::from_millis(50);
    let idle = tokio::time::timeout(idle, reader.next(&mut socket)).await;
    assert!(idle.is_err(), "{idle:?}");
    tokio::io::AsyncWriteExt::write_all(&mut client, b"Q\0\0").await.unwrap();
    let late = reader.next(&mut socket).await;
    let Err(NoMessage::Refused(refusal)) = late else { panic!("{late:?}") };
    assert!(refusal.is_fatal && refusal.words.contains("not whole"), "{}", refusal.words);
}
