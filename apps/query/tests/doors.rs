//! One list of texts means the same through each door.

use std::process::Command;

use arrow::array::{Array as _, RecordBatch};
use arrow::datatypes::DataType;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow_flight::sql::client::FlightSqlServiceClient;
use arrow_flight::sql::{CommandGetDbSchemas, CommandGetTables, SqlInfo};
use futures_util::TryStreamExt as _;
use tonic::transport::{Channel, Endpoint};

use crate::pg::{PgClient, TextRows};
use crate::served::{ORDERS, Served, record_day};

/// Statements with more than one meaning in the world, each of which has one here.
const TEXTS: &[&str] = &[
    "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 20)
     SELECT i, i * i AS square FROM n ORDER BY i",
    "SELECT symbol, count(*) FILTER (WHERE type = 'E') AS executed, count(*) AS all_of_it
     FROM messages GROUP BY symbol ORDER BY symbol",
    "SELECT seq, ts, sum(shares) OVER (ORDER BY ts RANGE BETWEEN 3000000 PRECEDING AND CURRENT ROW)
     FROM messages ORDER BY seq LIMIT 40",
    "SELECT * FROM (VALUES (1, 'a'), (2, NULL), (NULL, 'c')) AS v (number, letter) ORDER BY letter",
    "SELECT order_ref FROM messages WHERE type = 'A' AND order_ref NOT IN
     (SELECT order_ref FROM messages WHERE type = 'E' AND ts > 34200200000000) ORDER BY 1",
    "SELECT 1 WHERE 3 NOT IN (SELECT column1 FROM (VALUES (1), (2), (NULL)) AS v)",
    "SELECT price, price * 2, price / 3, avg(price) OVER (), 0.1 + 0.2,
     CAST(price AS decimal(20, 6)) AS longer FROM messages
     WHERE price IS NOT NULL ORDER BY seq LIMIT 5",
    "SELECT time, utc, ts FROM messages WHERE time < '2026-11-20 09:30:00.005000006' ORDER BY seq",
    "SELECT time FROM messages WHERE time = '2026-11-20 09:30:00.003000003'",
    "SELECT symbol, price, new_order_ref, price IS NULL FROM messages ORDER BY seq LIMIT 6",
    "SELECT NULL AS a, NULL::bigint AS b, true, false, 'it''s ü', ''",
    "SELECT row_number() OVER (ORDER BY seq), -shares FROM messages ORDER BY seq LIMIT 4",
    "SELECT t.symbol, t.price, q.bid, q.ask FROM trades t ASOF JOIN quotes q
     MATCH_CONDITION (t.ts > q.ts) ON t.symbol = q.symbol ORDER BY t.seq LIMIT 20",
    "SELECT time_bucket('100 milliseconds', time) AS b, first(price, seq), last(price, seq),
     vwap(price, shares) FROM messages WHERE type = 'A' GROUP BY 1 ORDER BY 1",
    "SELECT count(*) FROM messages WHERE false",
    "SELECT symbol FROM messages WHERE false",
];

/// Statements that fail, and a word of the sentence that each door says.
const MISTAKES: &[(&str, &str)] = &[
    ("SELECT pricee FROM messages", "pricee"),
    ("SELEC 1", "SELEC"),
    ("SELECT * FROM nosuch", "nosuch"),
    ("CREATE TABLE t AS SELECT 1", "only statements that read are taken"),
    ("COPY (SELECT 1) TO '/tmp/x.csv'", "only statements that read are taken"),
    ("SELECT 1 / 0", "zero"),
];

/// Values as text, as PostgreSQL writes them.
fn text_rows(batches: &[RecordBatch]) -> TextRows {
    let options = FormatOptions::new().with_display_error(false);
    let mut rows = Vec::new();
    for batch in batches {
        let columns = batch.columns().iter();
        let columns: Vec<_> =
            columns.map(|column| ArrayFormatter::try_new(column, &options).unwrap()).collect();
        for row in 0..batch.num_rows() {
            let values = columns.iter().zip(batch.columns()).map(|(format, column)| {
                let text = column.is_valid(row).then(|| format.value(row).to_string())?;
                Some(match column.data_type() {
                    DataType::Null => return None,
                    DataType::Boolean => text[..1].to_owned(),
                    DataType::Timestamp(_, zone) => postgres_time(&text, zone.is_some()),
                    _ => text,
                })
            });
            rows.push(values.collect());
        }
    }
    rows
}

/// A time with six digits, cut.
fn postgres_time(text: &str, has_zone: bool) -> String {
    let text = text.trim_end_matches('Z').replace('T', " ");
    let (seconds, digits) = text.split_once('.').unwrap_or((&text, ""));
    let digits = format!("{digits:0<6}");
    format!("{seconds}.{}{}", &digits[..6], if has_zone { "+00" } else { "" })
}

async fn flight_client(served: &Served) -> FlightSqlServiceClient<Channel> {
    let address = format!("http://{}", served.flight);
    let channel = Endpoint::from_shared(address).unwrap().connect().await.unwrap();
    let mut client = FlightSqlServiceClient::new(channel);
    client.set_header("database", "day");
    client
}

async fn fetch(
    client: &mut FlightSqlServiceClient<Channel>,
    info: arrow_flight::FlightInfo,
) -> Result<Vec<RecordBatch>, String> {
    let mut batches = Vec::new();
    for endpoint in info.endpoint {
        let rows = client.do_get(endpoint.ticket.unwrap()).await;
        let rows = rows.map_err(|error| error.to_string())?;
        batches.extend(rows.try_collect::<Vec<_>>().await.map_err(|error| error.to_string())?);
    }
    Ok(batches)
}

async fn flight_rows(
    client: &mut FlightSqlServiceClient<Channel>,
    sql: &str,
) -> Result<Vec<RecordBatch>, String> {
    let info = client.execute(sql.to_owned(), None).await.map_err(|error| error.to_string())?;
    fetch(client, info).await
}

/// The batches of the program in one shot.
fn program_rows(dir: &std::path::Path, sql: &str) -> Result<Vec<RecordBatch>, String> {
    let mut program = Command::new(env!("CARGO_BIN_EXE_evenfall-query"));
    let output = program.arg(dir).arg(sql).args(["--format", "arrow"]).output().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8(output.stderr).unwrap());
    }
    let reader = arrow::ipc::reader::StreamReader::try_new(&output.stdout[..], None).unwrap();
    Ok(reader.collect::<Result<_, _>>().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_means_the_same_in_process_and_through_each_door() {
    let dir = record_day();
    let answers: Vec<_> = TEXTS.iter().map(|sql| program_rows(dir.path(), sql).unwrap()).collect();
    let refusals: Vec<_> = MISTAKES.iter().map(|(sql, _)| program_rows(dir.path(), sql)).collect();
    let served = Served::start(dir.path(), &[]);
    let mut pg = PgClient::connect(&served.pg, "day").unwrap();
    let mut flight = flight_client(&served).await;
    for (sql, answer) in TEXTS.iter().zip(answers) {
        let expected = text_rows(&answer);
        assert_eq!(pg.query(sql).as_ref(), Ok(&expected), "plain: {sql}");
        assert_eq!(pg.query_prepared(sql, &[]).as_ref(), Ok(&expected), "prepared: {sql}");
        let batches = flight_rows(&mut flight, sql).await.unwrap();
        assert_eq!(text_rows(&batches), expected, "flight: {sql}");
        for (ours, theirs) in answer.iter().zip(&batches) {
            for (ours, theirs) in ours.columns().iter().zip(theirs.columns()) {
                let kind = match ours.data_type() {
                    DataType::Utf8View => &DataType::Utf8,
                    other => other,
                };
                assert_eq!(theirs.data_type(), kind, "{sql}");
            }
        }
    }
    for ((sql, word), refusal) in MISTAKES.iter().zip(refusals) {
        let flight = flight_rows(&mut flight, sql).await;
        for (door, answer) in [
            ("process", refusal.map(|_| ())),
            ("plain", pg.query(sql).map(|_| ())),
            ("prepared", pg.query_prepared(sql, &[]).map(|_| ())),
            ("flight", flight.map(|_| ())),
        ] {
            let words = answer.expect_err(sql);
            assert!(words.to_lowercase().contains(&word.to_lowercase()), "{door}: {sql}: {words}");
        }
    }
    assert!(!std::path::Path::new("/tmp/x.csv").exists(), "a file was written");
}

#[tokio::test(flavor = "multi_thread")]
async fn flight_has_parameters_tables_and_a_word_about_itself() {
    let dir = record_day();
    let served = Served::start(dir.path(), &[]);
    let mut client = flight_client(&served).await;
    let sql = "SELECT count(*) AS n FROM messages WHERE symbol = ? AND shares >= ?";
    let mut prepared = client.prepare(sql.to_owned(), None).await.unwrap();
    assert_eq!(prepared.parameter_schema().unwrap().fields().len(), 2);
    for (symbol, shares) in [("AAPL", 0i64), ("MSFT", 200), ("NONE", 0)] {
        let symbols = arrow::array::StringArray::from(vec![symbol]);
        let shares = arrow::array::Int64Array::from(vec![shares]);
        let row = RecordBatch::try_from_iter([
            ("1", std::sync::Arc::new(symbols) as _),
            ("2", std::sync::Arc::new(shares.clone()) as _),
        ]);
        prepared.set_parameters(row.unwrap()).unwrap();
        let info = prepared.execute().await.unwrap();
        let batches = fetch(&mut client, info).await.unwrap();
        let plain = format!(
            "SELECT count(*) AS n FROM messages WHERE symbol = '{symbol}' AND shares >= {}",
            shares.value(0)
        );
        let expected = flight_rows(&mut client, &plain).await.unwrap();
        assert_eq!(text_rows(&batches), text_rows(&expected), "{symbol}");
    }
    prepared.close().await.unwrap();

    let info = client.get_tables(CommandGetTables { include_schema: true, ..Default::default() });
    let tables = info.await.unwrap();
    let tables = text_rows(&fetch(&mut client, tables).await.unwrap());
    let names: Vec<_> = tables.iter().map(|row| row[2].clone().unwrap()).collect();
    assert_eq!(names, ["messages", "quotes", "raw", "trades"]);
    let schemas = client.get_db_schemas(CommandGetDbSchemas::default()).await.unwrap();
    let schemas = text_rows(&fetch(&mut client, schemas).await.unwrap());
    assert_eq!(schemas.len(), 2, "{schemas:?}");
    let catalogs = client.get_catalogs().await.unwrap();
    let catalogs = text_rows(&fetch(&mut client, catalogs).await.unwrap());
    assert_eq!(catalogs, [[Some("day".to_owned())]]);
    let kinds = client.get_table_types().await.unwrap();
    assert_eq!(fetch(&mut client, kinds).await.unwrap()[0].num_rows(), 1);
    let about = client.get_sql_info(vec![SqlInfo::FlightSqlServerName]).await.unwrap();
    let about = text_rows(&fetch(&mut client, about).await.unwrap());
    assert!(about[0][1].as_ref().unwrap().contains("evenfall"), "{about:?}");
}

#[test]
fn a_prepared_statement_is_bound_again_and_again() {
    let dir = record_day();
    let served = Served::start(dir.path(), &[]);
    let mut client = PgClient::connect(&served.pg, "day").unwrap();
    let sql = "SELECT count(*) FROM messages WHERE seq > $1";
    for after in [0, 590] {
        let rows = client.query_prepared(sql, &[&after.to_string()]).unwrap();
        assert_eq!(rows, [[Some((2 * ORDERS - after).to_string())]]);
    }
    let wrong = client.query_prepared(sql, &[]).unwrap_err();
    assert!(wrong.contains("08P01"), "{wrong}");
}
