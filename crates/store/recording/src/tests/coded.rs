//! The tables of formats with columns of their own: CME's entries and MIAX's sides; and formats of
//! which no table is read.

use std::path::Path;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray as _;
use arrow_array::types::TimestampNanosecondType;
use arrow_schema::DataType;
use evenfall_feed_formats::MessageSource as _;
use evenfall_feed_formats::codec::{self, Format, ITCH, MACH, MDP3};
use evenfall_feed_formats::itch::{AddOrder, Symbols};
use evenfall_store_engine::{RecordSource, Store, StoreAckLevel};
use tempfile::TempDir;

use super::books::{lines, scanned, table, tables};
use super::{NOW_NS, dated};
use crate::tables::{TableError, recorded_batch};
use crate::times::TimeArg;
use crate::{BookRequest, Catalog, RecordingSnapshot, RecordingWriter, RowSelection, Tables as _};

/// The venue's time of a message that is recorded as message `n`.
fn venue_ns(n: u64) -> u64 {
    NOW_NS as u64 - 1_000_000 + n * 1_000
}

/// A packet of MDP 3.0 with one message: template, block, groups.
fn packet(sequence: u32, template: u16, block: &[u8], groups: &[u8]) -> Vec<u8> {
    let size = (10 + block.len() + groups.len()) as u16;
    let head = [size, block.len() as u16, template, 1, 9].map(u16::to_le_bytes).concat();
    let sent_ns = venue_ns(sequence.into()) + 50;
    let packet = [&sequence.to_le_bytes()[..], &sent_ns.to_le_bytes(), &head, block, groups];
    packet.concat()
}

/// The definition of a future with a name of more letters than a symbol of ITCH has.
fn definition(sequence: u32, security: i32, symbol: &str) -> Vec<u8> {
    let mut block = vec![0; 224];
    block[6..14].copy_from_slice(&venue_ns(sequence.into()).to_le_bytes());
    block[35..35 + symbol.len()].copy_from_slice(symbol.as_bytes());
    block[55..59].copy_from_slice(&security.to_le_bytes());
    packet(sequence, 54, &block, &[])
}

/// An entry of a book (template 46) or of a trade summary (48): both have 32 bytes.
struct Entry {
    /// In 1/1,000,000,000.
    price: i64,
    size: i32,
    security: i32,
    /// Level, action and type of a book; aggressor and action of a trade.
    last: [u8; 3],
}

fn entries(sequence: u32, template: u16, all: &[Entry]) -> Vec<u8> {
    let block = [&venue_ns(sequence.into()).to_le_bytes()[..], &[0x84, 0, 0]].concat();
    let mut groups = [&32u16.to_le_bytes()[..], &[all.len() as u8]].concat();
    for entry in all {
        let end = groups.len() + 32;
        groups.extend_from_slice(&entry.price.to_le_bytes());
        groups.extend_from_slice(&entry.size.to_le_bytes());
        groups.extend_from_slice(&entry.security.to_le_bytes());
        groups.extend_from_slice(&sequence.to_le_bytes());
        groups.extend_from_slice(&1i32.to_le_bytes());
        groups.extend_from_slice(&entry.last);
        groups.resize(end, 0);
    }
    packet(sequence, template, &block, &groups)
}

/// A store with the recording `r` of these messages in one stream, each recorded 100 ns after the
/// venue's time of its number.
fn recorded(messages: &[(Format, Vec<u8>)]) -> (TempDir, Arc<Store>) {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(dated(dir.path())).unwrap().store);
    let mut writer = RecordingWriter::new(&store, "r", 1, StoreAckLevel::Local).unwrap();
    for (number, (format, bytes)) in (0..).zip(messages) {
        let time_ns = venue_ns(number) as i64 + 100;
        writer.push(0, number, time_ns, *format, bytes).unwrap();
    }
    writer.flush().unwrap();
    drop(writer);
    (dir, store)
}

const SPREAD: &str = "ZCH7-ZCK7 SPREAD";

fn book(price: i64, size: i32, last: [u8; 3]) -> Entry {
    Entry { price, size, security: 411_873, last }
}

/// A definition, a book of two sides, a trade of an unnamed security, and a better bid.
fn small_day() -> Vec<(Format, Vec<u8>)> {
    let both = [book(-7_750_000_000, 5, [1, 0, b'0']), book(-7_500_000_000, 8, [1, 0, b'1'])];
    let trade = Entry { price: 342_250_000_000, size: 3, security: 77, last: [1, 0, 0] };
    let better = [book(-7_625_000_001, 2, [1, 0, b'0'])];
    [
        definition(0, 411_873, SPREAD),
        entries(1, 46, &both),
        entries(2, 48, &[trade]),
        entries(3, 46, &better),
    ]
    .map(|packet| (MDP3, packet))
    .into()
}

const MESSAGE_COLUMNS: [&str; 9] =
    ["seq", "type", "security_id", "symbol", "entry_type", "price", "size", "level", "aggressor"];

fn message_lines() -> [String; 5] {
    let book = "MDIncrementalRefreshBook";
    [
        format!("1 MDInstrumentDefinitionFuture 411873 {SPREAD} - - - - -"),
        format!("2 {book} 411873 {SPREAD} 0 -7750000000 5 1 -"),
        format!("2 {book} 411873 {SPREAD} 1 -7500000000 8 1 -"),
        "3 MDIncrementalRefreshTradeSummary 77 - 2 342250000000 3 - B".to_owned(),
        format!("4 {book} 411873 {SPREAD} 0 -7625000001 2 1 -"),
    ]
}

#[test]
fn messages_of_cme_have_a_row_for_each_entry_in_the_columns_of_the_codec() {
    let (_dir, store) = recorded(&small_day());
    let messages = table(&store, "messages");
    let schema = &messages.info().schema;
    let price = schema.field_with_name("price").unwrap();
    assert_eq!(*price.data_type(), DataType::Decimal128(19, 9));
    let symbol = schema.field_with_name("symbol").unwrap().metadata();
    assert_eq!(symbol.get("derived").map(String::as_str), Some("true"));
    assert_eq!(lines(&*messages, &messages.rows(), &MESSAGE_COLUMNS), message_lines());
    // The venue's time is that of the entry, and the packet was recorded later.
    let at = |name: &str| schema.index_of(name).unwrap();
    let times = scanned(&*messages, &messages.rows(), &[at("utc"), at("recorded")]);
    let ns = |batch: &RecordBatch, column: usize, row: usize| {
        batch.column(column).as_primitive::<TimestampNanosecondType>().value(row)
    };
    let second = venue_ns(1) as i64;
    assert_eq!((ns(&times[0], 0, 2), ns(&times[0], 1, 2)), (second, second + 100));
    // Without columns, the batches say how many rows there are.
    let counted = scanned(&*messages, &messages.rows(), &[]);
    assert_eq!(counted.iter().map(RecordBatch::num_rows).sum::<usize>(), 5);
}

#[test]
fn rows_from_the_middle_have_the_names_of_before_them() {
    let (_dir, store) = recorded(&small_day());
    let messages = table(&store, "messages");
    let last = RowSelection::of(Vec::from_iter(Some(3..4)));
    assert_eq!(lines(&*messages, &last, &MESSAGE_COLUMNS), message_lines()[4..]);
    let from_ns = venue_ns(2) as i64;
    let later = messages.between(from_ns, i64::MAX).unwrap();
    assert_eq!(lines(&*messages, &later, &MESSAGE_COLUMNS), message_lines()[3..]);
    assert_eq!(messages.parts(&messages.rows(), 4).len(), 1, "a stream is one part");
}

const TRADE_COLUMNS: [&str; 8] =
    ["seq", "type", "security_id", "symbol", "price", "shares", "side", "printable"];
const QUOTE_COLUMNS: [&str; 6] = ["security_id", "symbol", "bid", "bid_size", "ask", "ask_size"];

#[test]
fn trades_and_quotes_of_cme_have_nine_decimals() {
    let (_dir, store) = recorded(&small_day());
    let (trades, quotes) = (table(&store, "trades"), table(&store, "quotes"));
    // A buyer took the offer, so that the order that rested was to sell.
    let expected = ["3 MDIncrementalRefreshTradeSummary 77 - 342250000000 3 S true"];
    assert_eq!(lines(&*trades, &trades.rows(), &TRADE_COLUMNS), expected);
    let expected = [
        format!("411873 {SPREAD} -7750000000 5 -7500000000 8"),
        format!("411873 {SPREAD} -7625000001 2 -7500000000 8"),
    ];
    assert_eq!(lines(&*quotes, &quotes.rows(), &QUOTE_COLUMNS), expected);
    for (table, column) in [(&trades, "price"), (&quotes, "bid")] {
        let schema = &table.info().schema;
        let kind = schema.field_with_name(column).unwrap().data_type();
        assert_eq!(*kind, DataType::Decimal128(19, 9));
    }
    // Rows are chosen by the numbers and the times of messages.
    let later = quotes.between(venue_ns(2) as i64, i64::MAX).unwrap();
    assert_eq!(lines(&*quotes, &later, &QUOTE_COLUMNS), expected[1..]);
    let first = RowSelection::of(Vec::from_iter(Some(0..2)));
    assert_eq!(lines(&*quotes, &first, &QUOTE_COLUMNS), expected[..1]);
    assert_eq!(lines(&*trades, &first, &TRADE_COLUMNS), [""; 0]);
}

fn asked(symbol: &str, ns: u64) -> BookRequest {
    let (recording, symbol) = ("r".to_owned(), Some(symbol.to_owned()));
    BookRequest { recording, symbol, time: TimeArg::Instant(ns as i64), levels: 5 }
}

#[test]
fn a_book_is_found_by_a_long_name_and_by_the_number_of_a_security_without_one() {
    let mut messages = small_day();
    let unnamed = Entry { price: 1, size: 4, security: 77, last: [1, 0, b'1'] };
    messages.push((MDP3, entries(4, 46, &[unnamed])));
    let (_dir, store) = recorded(&messages);
    let tables = tables(&store);
    let depth = tables.read_book(&asked(SPREAD, venue_ns(1)), &|| true).unwrap();
    assert_eq!(depth.price_decimals, 9);
    let of = |levels: &[crate::depth::PriceLevel]| -> Vec<_> {
        levels.iter().map(|level| (level.price, level.shares, level.orders)).collect()
    };
    assert_eq!(of(&depth.bids), [(-7_750_000_000, 5, 1)]);
    assert_eq!(of(&depth.asks), [(-7_500_000_000, 8, 1)]);
    let later = tables.read_book(&asked(SPREAD, venue_ns(3)), &|| true).unwrap();
    assert_eq!(of(&later.bids), [(-7_625_000_001, 2, 1), (-7_750_000_000, 5, 1)]);
    let unnamed = tables.read_book(&asked("77", venue_ns(4)), &|| true).unwrap();
    assert_eq!(of(&unnamed.asks), [(1, 4, 1)]);
    let error = tables.read_book(&asked("ZCH7", venue_ns(4)), &|| true).unwrap_err();
    assert!(matches!(error, TableError::UnknownSymbol { .. }), "{error}");
}

/// A packet of MIAX with a bid or an offer of product 77 at 5 ns of a second, in 1/100 dollar.
fn miax_side(kind: u8, price: u16, size: u16) -> Vec<u8> {
    let mut message = [&[kind][..], &5u32.to_le_bytes(), &77u32.to_le_bytes()].concat();
    message.extend([price, size, 0].map(u16::to_le_bytes).concat());
    message.push(b'A');
    let length = 12 + message.len() as u16;
    [&5u64.to_le_bytes()[..], &length.to_le_bytes(), &[3, 1], &message].concat()
}

#[test]
fn sides_of_miax_are_rows_and_quotes_with_four_decimals() {
    let sides = [miax_side(b'B', 815, 10), miax_side(b'O', 840, 3)];
    let (_dir, store) = recorded(&sides.map(|bytes| (MACH, bytes)));
    let messages = table(&store, "messages");
    let expected = ["1 TopOfMarketBid 5 77 B 81500 10", "2 TopOfMarketOffer 5 77 S 84000 3"];
    let columns = ["seq", "type", "packet_sequence", "product_id", "side", "price", "size"];
    assert_eq!(lines(&*messages, &messages.rows(), &columns), expected);
    let quotes = table(&store, "quotes");
    let kind = quotes.info().schema.field_with_name("bid").unwrap().data_type().clone();
    assert_eq!(kind, DataType::Decimal128(18, 4));
    // Both have the same nanosecond of the venue.
    let expected = ["77 - 81500 10 84000 3"];
    assert_eq!(lines(&*quotes, &quotes.rows(), &QUOTE_COLUMNS), expected);
    let depth = tables(&store).read_book(&asked("77", NOW_NS as u64 + 10), &|| true).unwrap();
    assert_eq!((depth.bids.len(), depth.asks.len(), depth.price_decimals), (1, 1, 4));
}

#[test]
fn what_a_format_does_not_give_is_refused_by_its_name_with_the_way_out() {
    for (format, name) in [(Format::OPAQUE, "opaque bytes"), (Format(200), "format 200")] {
        let (_dir, store) = recorded(&[(format, vec![7; 30])]);
        assert_eq!(
            lines(
                &*table(&store, "messages"),
                &RowSelection::of(Vec::from_iter(Some(0..1))),
                &["seq"]
            ),
            ["1"]
        );
        for table_name in ["trades", "quotes"] {
            let refused = table(&store, table_name);
            let error = refused.scan(&refused.rows(), &[0], &mut |_| unreachable!("no row"));
            let error = error.unwrap_err().to_string();
            let begins = format!("table r.{table_name}: messages of {name} are not read into it");
            assert!(error.starts_with(&begins), "{error}");
            assert!(error.contains("r.messages") && error.contains("store export"), "{error}");
        }
        let error = tables(&store).read_book(&asked("A", venue_ns(1)), &|| true).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        // A list of all tables is made nevertheless.
        assert_eq!(tables(&store).tables().unwrap().len(), 4);
    }
}

#[test]
fn messages_of_other_formats_are_rows_with_their_type_alone() {
    let itch = AddOrder::default().encode();
    let mut messages = small_day();
    messages.truncate(1);
    messages.extend([(ITCH, itch.to_vec()), (Format::OPAQUE, vec![1; 20]), (MDP3, vec![0; 3])]);
    let (_dir, store) = recorded(&messages);
    let messages = table(&store, "messages");
    let kind = codec::of(ITCH).unwrap().type_name(&itch).unwrap();
    let expected = [
        format!("1 MDInstrumentDefinitionFuture {SPREAD}"),
        format!("2 {kind} -"),
        "3 - -".to_owned(),
        "4 - -".to_owned(),
    ];
    assert_eq!(lines(&*messages, &messages.rows(), &["seq", "type", "symbol"]), expected);
}

#[test]
fn rows_as_they_come_have_the_columns_of_their_codec() {
    let (_dir, store) = recorded(&small_day());
    let source: Arc<dyn RecordSource> = Arc::<Store>::clone(&store);
    let catalog = Catalog::read(&*source).unwrap();
    let snapshot = RecordingSnapshot::open(source, catalog.recording("r").unwrap()).unwrap();
    assert_eq!(snapshot.stated_format(), Some(MDP3));
    let mut rows = Vec::new();
    let mut take = |row| {
        rows.push(row);
        Ok::<_, TableError>(std::ops::ControlFlow::Continue(()))
    };
    snapshot.read(&snapshot.rows(), None, &mut take).unwrap();
    let batch = recorded_batch(&rows, &mut Symbols::new()).unwrap();
    let messages = table(&store, "messages");
    assert_eq!((batch.schema(), batch.num_rows()), (Arc::clone(&messages.info().schema), 5));
}

/// The project's real inputs, when they are there: `../shared/data` beside the repository, or
/// `EVENFALL_DATA`.
#[test]
fn a_real_session_of_cme_has_the_trades_and_quotes_of_its_entries() {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/data");
    let folder = std::env::var_os("EVENFALL_DATA").map_or_else(beside, std::path::PathBuf::from);
    let Ok(file) = std::fs::File::open(folder.join("pcap/Cme.Mdp3.Sbe.v6.1.pcap")) else {
        println!("skipped: no data (set EVENFALL_DATA)");
        return;
    };
    let mut source = evenfall_feed_formats::open(Box::new(file), "cme").unwrap();
    let read = std::iter::from_fn(|| source.next_message().unwrap());
    let of_both = read.map(|message| (message.shard_key, message.format, message.bytes.to_vec()));
    let of_both: Vec<_> = of_both.collect();
    let side = of_both[0].0;
    let of_side = of_both.into_iter().filter(|(key, ..)| *key == side);
    let messages: Vec<_> = of_side.map(|(_, format, bytes)| (format, bytes)).collect();
    assert_eq!(messages.len(), 5_000);
    let (_dir, store) = recorded(&messages);
    let count = |name: &str| lines(&*table(&store, name), &table(&store, name).rows(), &["stream"]);
    // As a program of its own counts them (`entries_of_cme_are_rows_trades_and_quotes_...`).
    let counts = ["messages", "trades", "quotes"].map(|name| count(name).len());
    assert_eq!(counts, [19_115, 355, 2_179]);
    let quotes = table(&store, "quotes");
    let best = lines(&*quotes, &quotes.rows(), &["bid", "ask"]);
    for pair in best.iter().filter(|pair| !pair.contains("- ") && !pair.ends_with('-')) {
        let (bid, ask) = pair.split_once(' ').unwrap();
        let [bid, ask] = [bid, ask].map(|price| price.parse::<i64>().unwrap());
        assert!(bid < ask, "{pair}");
    }
}
