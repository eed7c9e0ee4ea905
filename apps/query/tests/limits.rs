//! Clients that send too much, too little or nothing, and statements that nobody waits for.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use arrow::datatypes::{DataType, Schema};
use arrow_flight::sql::client::FlightSqlServiceClient;
use arrow_flight::sql::{
    ActionCancelQueryRequest, ActionCancelQueryResult, Any, CommandStatementQuery,
    ProstMessageExt as _,
};
use arrow_flight::{
    Action, CancelFlightInfoRequest, CancelFlightInfoResult, CancelStatus, FlightDescriptor,
    FlightInfo,
};
use futures_util::{StreamExt as _, TryStreamExt as _};
use prost::Message as _;
use tonic::transport::{Channel, Endpoint};

use crate::pg::PgClient;
use crate::served::{Served, record_day};

/// A join without an equality that finds nothing.
const PAIRS: &str = "SELECT count(*) FROM generate_series(1, 1000000) AS a(x)
     JOIN generate_series(1, 1000000) AS b(y) ON a.x + b.y < 0";
/// An as-of join whose sides have no end.
pub(crate) const ASOF: &str = "SELECT count(b.y) FROM generate_series(1, 1000000000000) AS a(x)
     ASOF JOIN generate_series(1, 1000000000000) AS b(y) MATCH_CONDITION (a.x >= b.y)";
/// A window join that pairs each left row with all right rows.
const WINDOW: &str = "SELECT count(b.y) FROM generate_series(1, 1000000) AS a(x)
     LEFT JOIN generate_series(1, 1000000) AS b(y) ON b.y BETWEEN a.x - 2000000 AND a.x + 2000000";
/// All pairs, added up above the join.
const ALL_PAIRS: &str = "SELECT sum(a.x * b.y % 7)
     FROM generate_series(1, 1000000) AS a(x), generate_series(1, 1000000) AS b(y)";

/// Statements that compute for hours and give no row: each is one kind of operator that may not
/// yield by itself.
pub(crate) const ENDLESS: &[&str] = &[
    PAIRS,
    ALL_PAIRS,
    ASOF,
    WINDOW,
    // A join of one key whose condition finds nothing.
    "SELECT count(*) FROM generate_series(1, 1000000) AS a(x)
     JOIN generate_series(1, 1000000) AS b(y) ON a.x / 2000000 = b.y / 2000000 AND a.x + b.y < 0",
    // An anti join.
    "SELECT count(*) FROM generate_series(1, 1000000) AS a(x) WHERE NOT EXISTS
     (SELECT 1 FROM generate_series(1, 1000000) AS b(y) WHERE a.x + b.y < 0)",
    // Rows out of nothing.
    "SELECT count(*) FROM generate_series(1, 1000000000000)",
    "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i FROM n) SELECT count(*) FROM n",
];

fn assert_lives(served: &Served) {
    let mut client = PgClient::connect(&served.pg, "day").unwrap();
    assert_eq!(client.query("SELECT 1"), Ok(vec![vec![Some("1".to_owned())]]));
}

#[test]
fn a_client_cancels_a_statement_inside_each_operator() {
    let dir = record_day();
    let served = Served::start(dir.path(), &[]);
    for sql in ENDLESS {
        let mut client = PgClient::connect(&served.pg, "day").unwrap();
        client.send(b'Q', &[sql.as_bytes(), b"\0"].concat()).unwrap();
        // The statement computes by now, or is about to.
        std::thread::sleep(std::time::Duration::from_millis(500));
        let mut packet = (client.key.len() as u32 + 8).to_be_bytes().to_vec();
        packet.extend(80_877_102u32.to_be_bytes());
        packet.extend(&client.key);
        TcpStream::connect(&served.pg).unwrap().write_all(&packet).unwrap();
        let cancelled = client.rows().expect_err(sql);
        assert!(cancelled.contains("57014"), "{sql}: {cancelled}");
        served.until_idle();
        assert_eq!(client.query("SELECT 1"), Ok(vec![vec![Some("1".to_owned())]]), "{sql}");
    }
}

#[test]
fn a_time_limit_and_a_vanished_client_end_each_kind_of_join() {
    let dir = record_day();
    let served = Served::start(dir.path(), &[]);
    for sql in [PAIRS, ASOF, WINDOW] {
        let mut client = PgClient::connect(&served.pg, "day").unwrap();
        client.query("SET statement_timeout = '300ms'").unwrap();
        for late in [client.query(sql), client.query_prepared(sql, &[])] {
            let late = late.unwrap_err();
            assert!(late.contains("57014") && late.contains("timeout"), "{sql}: {late}");
        }
        served.until_idle();
        let mut client = PgClient::connect(&served.pg, "day").unwrap();
        client.send(b'Q', &[sql.as_bytes(), b"\0"].concat()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(500));
        drop(client);
        served.until_idle();
    }
    assert_lives(&served);
}

#[test]
fn long_messages_are_refused_and_others_go_on() {
    let dir = record_day();
    let served = Served::start(dir.path(), &[]);
    let mut client = PgClient::connect(&served.pg, "day").unwrap();
    let before = served.memory_kib();
    let long = format!("SELECT '{}'", "x".repeat(10 << 20));
    let refused = client.query(&long).unwrap_err();
    assert!(refused.contains("54000") && refused.contains("--statement-bytes"), "{refused}");
    let refused = client.query_prepared(&long, &[]).unwrap_err();
    assert!(refused.contains("54000"), "{refused}");
    // Within what is buffered, and beyond what is taken.
    let long = format!("SELECT '{}'", "x".repeat((1 << 20) + 100));
    let refused = client.query(&long).unwrap_err();
    assert!(refused.contains("--statement-bytes"), "{refused}");
    assert_eq!(client.query("SELECT 2"), Ok(vec![vec![Some("2".to_owned())]]));

    // A password of a gibibyte, of which the first byte never comes.
    let mut client = PgClient::connect(&served.pg, "day").unwrap();
    client.stream.write_all(&[b'p', 0x40, 0, 0, 0]).unwrap();
    assert!(matches!(client.read_message(), Ok((b'E', _))));
    assert_eq!(client.stream.read(&mut [0; 1]).unwrap_or(0), 0);
    // A number of rows that nobody has the memory for.
    let mut client = PgClient::connect(&served.pg, "day").unwrap();
    client.send(b'P', b"\0SELECT 7\0\0\0").unwrap();
    client.send(b'B', b"\0\0\0\0\0\0\0\0").unwrap();
    client.send(b'E', b"\0\x7f\xff\xff\xff").unwrap();
    client.send(b'S', b"").unwrap();
    assert_eq!(client.rows(), Ok(vec![vec![Some("7".to_owned())]]));
    let grown = served.memory_kib().saturating_sub(before);
    assert!(grown < 100 << 10, "the program grew by {grown} KiB");
    assert_lives(&served);
}

#[test]
fn a_statement_that_nests_deeply_ends_no_process() {
    let dir = record_day();
    let served = Served::start(dir.path(), &[]);
    let mut client = PgClient::connect(&served.pg, "day").unwrap();
    for (levels, is_taken) in [(900, true), (100_000, false)] {
        for sql in [
            format!("SELECT {}", vec!["1"; levels].join("+")),
            format!("SELECT {}", vec!["true"; levels].join(" OR ")),
            vec!["SELECT 1"; levels / 3].join(" UNION ALL "),
        ] {
            for answer in [client.query(&sql), client.query_prepared(&sql, &[])] {
                match answer {
                    Ok(_) => assert!(is_taken, "{levels} levels are taken"),
                    Err(error) => assert!(!is_taken, "{levels} levels: {error}"),
                }
            }
        }
        // The parser refuses brackets earlier than the measure does.
        let brackets = format!("SELECT {}1{}", "(".repeat(levels), ")".repeat(levels));
        let _ = client.query(&brackets);
        let _ = client.query(&format!("SELECT {}true", "NOT ".repeat(levels)));
    }
    assert_lives(&served);
}

#[test]
fn half_a_startup_packet_is_given_up() {
    let dir = record_day();
    let served = Served::start(dir.path(), &["--connections", "2"]);
    let mut half = TcpStream::connect(&served.pg).unwrap();
    half.write_all(&[0, 0, 0, 40, 0, 3]).unwrap();
    assert_lives(&served);
    let mut told = Vec::new();
    half.read_to_end(&mut told).unwrap();
    assert!(String::from_utf8_lossy(&told).contains("not started in time"), "{told:?}");
    // A client of HTTP/2 that does not begin.
    let mut half = TcpStream::connect(&served.flight).unwrap();
    half.write_all(b"PRI * HT").unwrap();
    let _ = half.read_to_end(&mut told);
}

#[test]
fn a_thousand_clients_are_seated_and_the_next_is_told() {
    let dir = record_day();
    let served = Served::start(dir.path(), &[]);
    let clients: Vec<_> =
        (0..1_000).map(|_| PgClient::connect(&served.pg, "day").unwrap()).collect();
    for _ in 0..10 {
        let refused = PgClient::connect(&served.pg, "day").err().unwrap();
        assert!(refused.contains("53300") && refused.contains("--connections"), "{refused}");
    }
    drop(clients);
    let again = (0..100).find(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        PgClient::connect(&served.pg, "day").is_ok()
    });
    assert!(again.is_some(), "no seat is free after all clients have gone");
}

#[test]
fn a_slow_reader_holds_two_batches_and_no_more() {
    let dir = record_day();
    let served = Served::start(dir.path(), &[]);
    let before = served.memory_kib();
    let sql = "SELECT repeat('x', 1000) FROM generate_series(1, 100000000)";
    let mut plain = PgClient::connect(&served.pg, "day").unwrap();
    plain.send(b'Q', &[sql.as_bytes(), b"\0"].concat()).unwrap();
    let mut prepared = PgClient::connect(&served.pg, "day").unwrap();
    prepared.send(b'P', &[b"\0", sql.as_bytes(), b"\0\0\0"].concat()).unwrap();
    prepared.send(b'B', b"\0\0\0\0\0\0\0\0").unwrap();
    prepared.send(b'E', b"\0\0\0\0\0").unwrap();
    prepared.send(b'S', b"").unwrap();
    // Nobody reads. The statements fill the buffers, and then wait.
    served.until_idle();
    let grown = served.memory_kib().saturating_sub(before);
    assert!(grown < 400 << 10, "the program grew by {grown} KiB");
    assert_lives(&served);
    // A reader that wakes up gets the next rows.
    for mut client in [plain, prepared] {
        let rows = std::iter::from_fn(|| client.read_message().ok());
        assert_eq!(rows.filter(|(kind, _)| *kind == b'D').take(50_000).count(), 50_000);
    }
    served.until_idle();
}

#[test]
fn a_connection_keeps_so_many_prepared_statements() {
    let dir = record_day();
    let served = Served::start(dir.path(), &[]);
    let mut client = PgClient::connect(&served.pg, "day").unwrap();
    for name in 0..1_001 {
        client.send(b'P', format!("s{name}\0SELECT 1\0\0\0").as_bytes()).unwrap();
    }
    client.send(b'S', b"").unwrap();
    let refused = client.rows().unwrap_err();
    assert!(refused.contains("54000"), "{refused}");
    client.send(b'C', b"Ss7\0").unwrap();
    client.send(b'P', b"again\0SELECT 1\0\0\0").unwrap();
    client.send(b'S', b"").unwrap();
    assert_eq!(client.rows(), Ok(Vec::new()));
}

async fn flight_client(served: &Served) -> FlightSqlServiceClient<Channel> {
    let address = format!("http://{}", served.flight);
    let channel = Endpoint::from_shared(address).unwrap().connect().await.unwrap();
    FlightSqlServiceClient::new(channel)
}

#[tokio::test(flavor = "multi_thread")]
async fn flight_statements_are_bounded_and_end_when_nobody_waits() {
    let dir = record_day();
    let served = Served::start(dir.path(), &[]);
    let mut client = flight_client(&served).await;
    let long = format!("SELECT '{}'", "x".repeat(10 << 20));
    let refused = client.execute(long, None).await.unwrap_err().to_string();
    assert!(refused.contains("too large") && refused.contains("1114112 bytes"), "{refused}");
    for (sql, action) in
        [(PAIRS, "CancelFlightInfo"), (ASOF, "CancelQuery"), (WINDOW, "CancelFlightInfo")]
    {
        // Cancelled by the answer that gave the ticket, while the rows are waited for.
        let info = client.execute(sql.to_owned(), None).await.unwrap();
        let ticket = info.endpoint[0].ticket.clone().unwrap();
        let mut fetching = client.clone();
        let fetched = tokio::spawn(async move {
            let rows = fetching.do_get(ticket).await.map_err(|error| error.to_string())?;
            rows.try_collect::<Vec<_>>().await.map_err(|error| error.to_string())
        });
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        cancel(&mut client, action, info).await;
        let ended = fetched.await.unwrap().unwrap_err();
        assert!(ended.contains("cancelled"), "{sql}: {ended}");
        served.until_idle();
    }
    // A client that goes.
    for sql in [ALL_PAIRS, ASOF, WINDOW] {
        let mut client = flight_client(&served).await;
        let info = client.execute(sql.to_owned(), None).await.unwrap();
        let ticket = info.endpoint[0].ticket.clone().unwrap();
        let mut rows = client.do_get(ticket).await.unwrap();
        let waited = tokio::time::timeout(std::time::Duration::from_millis(500), rows.next()).await;
        assert!(waited.is_err(), "an endless statement gave {waited:?}");
        drop(rows);
        drop(client);
        served.until_idle();
    }
    assert_lives(&served);
}

/// Cancels a statement by one of the two actions that clients have for it.
async fn cancel(client: &mut FlightSqlServiceClient<Channel>, action: &str, info: FlightInfo) {
    let body = match action {
        "CancelFlightInfo" => CancelFlightInfoRequest { info: Some(info) }.encode_to_vec(),
        _ => {
            let info = info.encode_to_vec().into();
            ActionCancelQueryRequest { info }.as_any().encode_to_vec()
        }
    };
    let asked = Action { r#type: action.to_owned(), body: body.into() };
    let mut results = client.inner_mut().do_action(asked).await.unwrap().into_inner();
    let result = results.next().await.unwrap().unwrap();
    if action == "CancelFlightInfo" {
        let result = CancelFlightInfoResult::decode(result.body).unwrap();
        assert_eq!(result.status(), CancelStatus::Cancelled);
    } else {
        let result = Any::decode(result.body).unwrap();
        let result = result.unpack::<ActionCancelQueryResult>().unwrap().unwrap();
        assert_eq!(result.result().as_str_name(), "CANCEL_RESULT_CANCELLED");
    }
}

#[test]
fn an_answer_of_a_function_is_taken_out_of_the_memory_of_queries() {
    let dir = record_day();
    let served = Served::start(dir.path(), &["--memory", "64MiB"]);
    let mut client = PgClient::connect(&served.pg, "day").unwrap();
    let before = served.memory_kib();
    for sql in [
        "SELECT length(repeat('x', 2000000000))",
        "SELECT max(length(rpad(symbol, 100000000, 'x'))) FROM messages",
        "SELECT cardinality(array_repeat(seq, 1000000000)) FROM messages",
    ] {
        let refused = client.query(sql).unwrap_err();
        assert!(refused.contains("()") && refused.contains("53"), "{sql}: {refused}");
    }
    let grown = served.memory_kib().saturating_sub(before);
    assert!(grown < 100 << 10, "the program grew by {grown} KiB");
    let length = client.query("SELECT length(repeat('xy', 1000))");
    assert_eq!(length, Ok(vec![vec![Some("2000".to_owned())]]));
}

#[tokio::test(flavor = "multi_thread")]
async fn flight_tells_the_columns_of_a_statement_without_running_it() {
    let dir = record_day();
    let served = Served::start(dir.path(), &[]);
    let mut client = flight_client(&served).await;
    let mut columns = async |query: &str| {
        let command = CommandStatementQuery { query: query.to_owned(), transaction_id: None };
        let asked = FlightDescriptor::new_cmd(command.as_any().encode_to_vec());
        let told = client.inner_mut().get_schema(asked).await;
        told.map(|told| Schema::try_from(told.into_inner()).unwrap())
    };
    let schema = columns("SELECT symbol, price, count(*) AS n FROM day.trades GROUP BY 1, 2").await;
    let schema = schema.unwrap();
    let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(names, ["symbol", "price", "n"]);
    assert_eq!(schema.field(1).data_type(), &DataType::Decimal128(18, 4));
    let refused = columns("SELECT pricee FROM day.trades").await.unwrap_err();
    assert!(refused.message().contains("pricee"), "{refused}");
}
