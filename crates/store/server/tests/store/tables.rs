//! Tables over a store in this process, a server, objects alone and a cluster: one body over all.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{Decimal128Type, Int64Type, UInt64Type};
use arrow_array::{Array as _, RecordBatch};
use evenfall_feed_formats::codec::ITCH;
use evenfall_feed_formats::itch::{AddOrder, Alpha, Code, OrderExecuted, Price4};
use evenfall_store_engine::{
    Archive, BucketOptions, Client, ClusterSource, ConnectOptions, Freshness, RecordSource,
    RemoteSource, Store, StoreAckLevel,
};
use evenfall_store_recording::{
    RecordingWriter, RowSelection, Snapshot, StoreTables, TableName, Tables,
};
use evenfall_store_server::Server;
use tempfile::TempDir;

use crate::servers::each_directory;
use crate::suite::{Backend, records, said, schema};

/// Records of the user's file. Each has seven times its number as value.
const RECORDS: u64 = 100_000;
/// Messages of each stream of the recording.
const MESSAGES: u64 = 5_000;

/// Every tenth message is an order, and the others execute the order before them.
fn message(number: u64) -> Vec<u8> {
    let stock_locate = 1 + (number / 10 % 3) as u16;
    if number.is_multiple_of(10) {
        let stock = Alpha::new(["AAPL", "IBM", "MSFT"][usize::from(stock_locate - 1)]).unwrap();
        let (side, price) = (Code(b'B'), Price4(1_012_500));
        let order = AddOrder { stock_locate, stock, side, price, ..AddOrder::default() };
        return AddOrder { order_reference: number + 1, shares: 100, ..order }.encode().into();
    }
    let order_reference = number / 10 * 10 + 1;
    let done = OrderExecuted { stock_locate, order_reference, ..OrderExecuted::default() };
    OrderExecuted { executed_shares: 7, match_number: number, ..done }.encode().into()
}

fn fill(store: &Store) {
    let file = store.create("ticks", &schema()).expect("a file");
    store.append(&file, &records(0..RECORDS), StoreAckLevel::Object).expect("published");
    let mut writer =
        RecordingWriter::new(store, "day.one", 2, StoreAckLevel::Object).expect("a recording");
    for number in 0..MESSAGES {
        for stream in 0..2 {
            let time_ns = 1_000 * number as i64;
            writer.push(stream, number, time_ns, ITCH, &message(number)).expect("taken");
        }
    }
    writer.flush().expect("published");
}

fn scanned(of: &dyn Snapshot, rows: &RowSelection, columns: &[usize]) -> Vec<RecordBatch> {
    let mut all = Vec::new();
    of.scan(rows, columns, &mut |batch| {
        all.push(batch);
        ControlFlow::Continue(())
    })
    .expect("a scan");
    all
}

fn count(batches: &[RecordBatch]) -> u64 {
    batches.iter().map(|batch| batch.num_rows() as u64).sum()
}

fn place(of: &dyn Snapshot, column: &str) -> usize {
    of.info().schema.index_of(column).expect("a column")
}

/// The body.
fn behave(tables: &dyn Tables) {
    let all = tables.tables().expect("tables");
    let names: Vec<String> = all.iter().map(|table| table.name.to_string()).collect();
    let of_day = ["day.one.messages", "day.one.trades", "day.one.quotes", "day.one.raw"];
    assert_eq!((&names[0][..], &names[1..]), ("ticks", &of_day.map(String::from)[..]));
    assert_eq!(
        all.iter().map(|table| table.rows).collect::<Vec<_>>(),
        [Some(RECORDS), Some(2 * MESSAGES), None, None, Some(2 * MESSAGES)]
    );
    assert_eq!(all[0].times, Some((0, RECORDS as i64 - 1)));
    assert_eq!(all[1].times, Some((0, 1_000 * (MESSAGES as i64 - 1))));
    assert_eq!(all[1].sorted_by, ["stream", "seq"]);
    file_is_a_table(tables);
    recording_is_two_tables(tables);
    books_are_two_tables(tables);
    let unknown = tables.open(&TableName::of_recording("day.one", "ticks")).err();
    assert!(unknown.expect("unknown").to_string().contains("no table day.one.ticks"));
    for name in ["day.one", "day.one.0.messages", "nothing"] {
        assert!(tables.open(&TableName::of_file(name)).is_err(), "{name}");
    }
}

fn file_is_a_table(tables: &dyn Tables) {
    let ticks = tables.open(&TableName::of_file("ticks")).expect("a table");
    let rows = ticks.rows();
    assert_eq!(rows, RowSelection::of(Vec::from_iter(Some(0..RECORDS))));
    let some = ticks.between(1_000, 1_999).expect("rows");
    assert_eq!(some, RowSelection::of(Vec::from_iter(Some(1_000..2_000))));
    let summary = ticks.summary(&some).expect("a summary");
    assert_eq!((summary.count, summary.times), (Some(1_000), Some((1_000, 1_999))));
    let value = &summary.columns[0];
    assert_eq!((value.column, value.least, value.greatest), (1, 7_000, 7 * 1_999));
    assert_eq!(value.sum, (1_000..2_000).map(|n| n * 7).sum::<i128>());
    assert_eq!(ticks.summary(&RowSelection::of(vec![])).expect("none").count, Some(0));
    let batches = scanned(&*ticks, &some, &[1]);
    let values = batches.iter().flat_map(|batch| {
        assert_eq!(batch.num_columns(), 1);
        batch.column(0).as_primitive::<UInt64Type>().values().to_vec()
    });
    assert!(values.eq((1_000..2_000).map(|n| n * 7)));
    assert_eq!(count(&scanned(&*ticks, &rows, &[])), RECORDS);
    let wrong = ticks.scan(&rows, &[2], &mut |_| ControlFlow::Continue(()));
    assert!(wrong.expect_err("no column").to_string().contains("ticks"));
    // `each` may end a scan, and may read from the same tables meanwhile.
    let mut batches = 0;
    ticks
        .scan(&rows, &[0], &mut |_| {
            batches += 1;
            let again = tables.open(&TableName::of_file("ticks")).expect("a table");
            assert_eq!(count(&scanned(&*again, &some, &[0])), 1_000);
            ControlFlow::Break(())
        })
        .expect("a scan");
    assert_eq!(batches, 1);
    parts_are_the_whole(&*ticks, &rows, per_segment());
}

/// Parts are read by threads of their own, and are cut where segments end.
fn parts_are_the_whole(of: &dyn Snapshot, rows: &RowSelection, unit: u64) {
    let parts = of.parts(rows, 3);
    assert!((2..=3).contains(&parts.len()), "{parts:?}");
    let joined: Vec<u64> = parts.iter().flat_map(|part| &part.ranges).cloned().flatten().collect();
    assert!(joined.iter().copied().eq(rows.ranges.iter().cloned().flatten()));
    let mut cuts = parts.iter().skip(1).map(|part| part.ranges[0].start);
    assert!(cuts.all(|cut| cut % unit == 0), "{parts:?}");
    let read: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> =
            parts.iter().map(|part| scope.spawn(|| count(&scanned(of, part, &[0])))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a scan")).sum()
    });
    assert_eq!(read, joined.len() as u64);
}

fn per_segment() -> u64 {
    schema().layout().expect("a layout").records_per_segment()
}

fn recording_is_two_tables(tables: &dyn Tables) {
    let messages = tables.open(&TableName::of_recording("day.one", "messages")).expect("a table");
    let rows = messages.rows();
    assert_eq!(rows.ranges, [0..MESSAGES, MESSAGES..2 * MESSAGES]);
    assert_eq!(messages.summary(&rows).expect("a summary").count, Some(2 * MESSAGES));
    assert_eq!(count(&scanned(&*messages, &rows, &[])), 2 * MESSAGES);
    parts_are_the_whole(&*messages, &rows, 1);
    // The orders of these executions lie before the first time.
    let some = messages.between(2_003_000, 2_004_000).expect("rows");
    assert_eq!(messages.summary(&some).expect("a summary").count, Some(4));
    let names =
        ["seq", "type", "symbol", "order_ref", "shares", "price", "side", "match", "stream"];
    let columns = names.map(|name| place(&*messages, name));
    let [batch] = &scanned(&*messages, &some, &columns)[..] else { panic!("one batch") };
    let longs = |at: usize| batch.column(at).as_primitive::<Int64Type>();
    assert_eq!(longs(0).values(), &[2_004, 2_005, 2_004, 2_005], "from 1");
    let texts = |at: usize| batch.column(at).as_string::<i32>();
    assert_eq!(texts(1).iter().collect::<Vec<_>>(), [Some("E"); 4]);
    assert_eq!(texts(2).iter().collect::<Vec<_>>(), [Some("MSFT"); 4]);
    assert_eq!(longs(3).values(), &[2_001; 4]);
    assert_eq!(longs(4).values(), &[7; 4]);
    assert_eq!(batch.column(5).null_count(), 4, "an execution states no price");
    assert_eq!(batch.column(6).null_count(), 4, "and no side");
    assert_eq!(longs(7).values(), &[2_003, 2_004, 2_003, 2_004]);
    let raw = tables.open(&TableName::of_recording("day.one", "raw")).expect("a table");
    let order = raw.between(2_000_000, 2_000_000).expect("rows");
    let columns = ["message", "price", "symbol"].map(|name| place(&*raw, name));
    let [batch] = &scanned(&*raw, &order, &columns)[..] else { panic!("one batch") };
    assert_eq!(batch.column(0).as_binary::<i32>().value(0), message(2_000));
    assert_eq!(batch.column(1).as_primitive::<Decimal128Type>().value(0), 1_012_500);
    assert_eq!(batch.column(2).as_string::<i32>().value(1), "MSFT");
}

/// Each order is executed by seven shares nine times, and its price becomes the best bid.
fn books_are_two_tables(tables: &dyn Tables) {
    let trades = tables.open(&TableName::of_recording("day.one", "trades")).expect("a table");
    assert_eq!(count(&scanned(&*trades, &trades.rows(), &[])), 2 * MESSAGES / 10 * 9);
    let some = trades.between(2_003_000, 2_004_000).expect("rows");
    let columns = ["seq", "symbol", "price", "shares", "side"].map(|name| place(&*trades, name));
    let [batch] = &scanned(&*trades, &some, &columns)[..] else { panic!("one batch") };
    let longs = |at: usize| batch.column(at).as_primitive::<Int64Type>().values().to_vec();
    assert_eq!((longs(0), longs(3)), (vec![2_004, 2_005, 2_004, 2_005], vec![7; 4]));
    let texts = |at: usize| batch.column(at).as_string::<i32>().iter().collect::<Vec<_>>();
    assert_eq!((texts(1), texts(4)), (vec![Some("MSFT"); 4], vec![Some("B"); 4]));
    let prices = batch.column(2).as_primitive::<Decimal128Type>();
    assert_eq!(prices.values(), &[1_012_500; 4]);
    // All messages have one venue time, so that each stream has one quote of each symbol.
    let quotes = tables.open(&TableName::of_recording("day.one", "quotes")).expect("a table");
    let rows = quotes.rows();
    assert_eq!(count(&scanned(&*quotes, &rows, &[])), 2 * 3);
    assert_eq!(quotes.parts(&rows, 8).len(), 2, "one part a stream");
}

fn rows_of(source: &Arc<dyn RecordSource>, name: &TableName) -> u64 {
    StoreTables::new(Arc::clone(source)).open(name).expect("a table").info().rows.expect("known")
}

#[test]
fn tables_are_the_same_over_a_store_a_server_objects_and_a_cluster() {
    each_directory(|names| {
        let (objects, path) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let backend = Backend {
            objects: objects.path().display().to_string(),
            options: BucketOptions::default(),
            names: Some(names.address()),
            is_atomic: true,
        };
        let store = Arc::new(backend.open(path.path()));
        fill(&store);
        let server =
            Server::start(Arc::clone(&store), "127.0.0.1:0".parse().unwrap()).expect("a port");
        let member = store.member().expect("a member");
        member.serve_at(Some(server.address().to_string())).expect("said");
        let client = Client::connect(server.address()).expect("a client");
        let cluster = ClusterSource::open(
            &names.address(),
            None,
            &BucketOptions::default(),
            Freshness::Fresh,
        );
        // A node that has none of the files.
        let elsewhere = TempDir::new().unwrap();
        let other = Arc::new(backend.open(elsewhere.path()));
        let other =
            Server::start(Arc::clone(&other), "127.0.0.1:0".parse().unwrap()).expect("a port");
        let options = ConnectOptions { freshness: Freshness::Fresh, ..ConnectOptions::default() };
        let node = Client::connect_with(other.address(), &options).expect("a client");
        let live: [Arc<dyn RecordSource>; 4] = [
            Arc::<Store>::clone(&store),
            Arc::new(RemoteSource::new(client)),
            Arc::new(cluster.expect("a cluster")),
            Arc::new(RemoteSource::new(node)),
        ];
        behave(&StoreTables::new(Arc::new(Archive::of(backend.bucket()).expect("objects"))));
        // The last source answers by the same frames as the second, and has its own tests.
        for source in live.iter().take(3) {
            behave(&StoreTables::new(Arc::clone(source)));
        }
        // Every append that has returned is in a snapshot, whatever its level.
        let file = store.file("ticks").expect("the file");
        let mut writer =
            RecordingWriter::new(&store, "day.one", 2, StoreAckLevel::Memory).expect("there");
        for more in 1..=20 {
            let next = RECORDS + more - 1;
            store.append(&file, &records(next..next + 1), StoreAckLevel::Memory).expect("taken");
            let number = MESSAGES + more - 1;
            let time_ns = 1_000 * number as i64;
            writer.push(1, number, time_ns, ITCH, &message(number)).expect("taken");
            writer.flush().expect("taken");
            for source in &live {
                assert_eq!(rows_of(source, &TableName::of_file("ticks")), RECORDS + more);
                let messages = TableName::of_recording("day.one", "messages");
                assert_eq!(rows_of(source, &messages), 2 * MESSAGES + more);
            }
        }
        drop((live, file, writer));
        other.stop();
        server.stop();
        Arc::into_inner(store).expect("alone").close().expect("a clean stop");
    });
}

#[test]
fn a_server_for_readers_takes_no_records_and_one_name_is_one_thing() {
    let path = TempDir::new().unwrap();
    let config = evenfall_store_engine::StoreConfig::new(path.path());
    let store = Arc::new(Store::open(config).expect("a store").store);
    let file = store.create("ticks", &schema()).expect("a file");
    store.append(&file, &records(0..10), StoreAckLevel::Memory).expect("taken");
    RecordingWriter::new(&store, "day", 1, StoreAckLevel::Memory).expect("a recording");
    let address = "127.0.0.1:0".parse().unwrap();
    let readers = Server::start_for_readers(Arc::clone(&store), address).expect("a port");
    let mut client = Client::connect(readers.address()).expect("a client");
    let ticks = client.open("ticks").expect("a file");
    assert_eq!(client.numbers(&ticks, 0..10).expect("records"), records(0..10));
    client.append(&ticks, &records(10..11), StoreAckLevel::Memory).expect("sent");
    let refused = said(client.completion().expect("an answer").expect("one").first);
    assert!(refused.contains("takes no records"), "{refused}");
    let refused = said(client.create("more", &schema()));
    assert!(refused.contains("takes no records"), "{refused}");
    assert_eq!(client.size(&ticks).expect("a size"), 0..10);
    readers.stop();

    let server = Server::start(Arc::clone(&store), address).expect("a port");
    let mut client = Client::connect(server.address()).expect("a client");
    let refused = said(client.create("day", &schema()));
    assert!(refused.contains("day is the name of a recording already"), "{refused}");
    let part = store.file("day.0.messages").expect("a part").schema.as_ref().clone();
    let refused = said(client.create("ticks.0.messages", &part));
    assert!(refused.contains("ticks is the name of a file already"), "{refused}");
    client.create("ticks", &schema()).expect("the file that is there");
    client.create("more", &schema()).expect("another file");
    server.stop();
}
