use super::*;
use crate::books::TopOfBook;
use crate::books::levels::{LevelBooks, MarketMessage, MarketRow};
use crate::columns::{ColumnBuffers, ColumnValues};

/// A packet of number 7, sent at 9, of these messages without their sizes.
fn packet_of(messages: &[Vec<u8>]) -> Vec<u8> {
    let mut packet = [&7u32.to_le_bytes()[..], &9u64.to_le_bytes()].concat();
    for message in messages {
        let size = message.len() as u16 + 2;
        packet.extend_from_slice(&size.to_le_bytes());
        packet.extend_from_slice(message);
    }
    packet
}

/// A message of schema 1, version 9: a block, and whatever groups follow.
fn message(template: u16, block: &[u8], groups: &[u8]) -> Vec<u8> {
    let head = [block.len() as u16, template, 1, 9].map(u16::to_le_bytes).concat();
    [&head[..], block, groups].concat()
}

/// The block of an incremental refresh: its time, the bits of the event.
fn block(ns: u64) -> Vec<u8> {
    [&ns.to_le_bytes()[..], &[0x84, 0, 0]].concat()
}

fn group(entries: &[Vec<u8>]) -> Vec<u8> {
    let len = entries[0].len() as u16;
    [&len.to_le_bytes()[..], &[entries.len() as u8], &entries.concat()].concat()
}

/// An entry of 32 bytes of a book or of a trade summary: the last bytes differ.
fn entry(price: i64, security: i32, rpt_seq: u32, last: [u8; 3]) -> Vec<u8> {
    let mut entry = [&price.to_le_bytes()[..], &5i32.to_le_bytes()].concat();
    entry.extend_from_slice(&security.to_le_bytes());
    entry.extend_from_slice(&rpt_seq.to_le_bytes());
    entry.extend_from_slice(&2i32.to_le_bytes());
    entry.extend_from_slice(&last);
    entry.resize(32, 0);
    entry
}

fn definition(security: i32, symbol: &str, depth: u8) -> Vec<u8> {
    let mut fields = vec![0; 224];
    fields[6..14].copy_from_slice(&1u64.to_le_bytes());
    fields[14] = 17;
    fields[35..35 + symbol.len()].copy_from_slice(symbol.as_bytes());
    fields[55..59].copy_from_slice(&security.to_le_bytes());
    let groups = [group(&[vec![0; 9]]), group(&[vec![b'G', b'B', b'X', depth]])].concat();
    message(54, &fields, &groups)
}

/// A named row: its columns that have a value, as text.
fn rows_of(packet: &[u8], symbols: &mut Symbols) -> Vec<Vec<(&'static str, String)>> {
    let mut buffers = ColumnBuffers::new(Mdp3.columns());
    Mdp3.put_rows(packet, symbols, &mut buffers);
    let mut rows = vec![Vec::new(); buffers.rows()];
    for (column, values) in buffers.columns() {
        let texts: Vec<Option<String>> = match values {
            ColumnValues::Unsigned(values) => {
                values.iter().map(|value| value.map(|value| value.to_string())).collect()
            }
            ColumnValues::Decimal(values) => {
                values.iter().map(|value| value.map(|value| value.to_string())).collect()
            }
            ColumnValues::Text(values) => {
                values.iter().map(|value| value.map(Into::into)).collect()
            }
            ColumnValues::Boolean(_) => panic!("no column is true or false"),
        };
        for (row, text) in rows.iter_mut().zip(texts) {
            row.extend(text.map(|text| (column.name, text)));
        }
    }
    rows
}

fn value_of<'a>(row: &'a [(&'static str, String)], name: &str) -> Option<&'a str> {
    row.iter().find(|(column, _)| *column == name).map(|(_, value)| &value[..])
}

#[test]
fn a_packet_is_told_by_its_structure_and_named_by_its_first_message() {
    let heartbeat = message(12, &[], &[]);
    let book = message(46, &block(5), &group(&[entry(1, 2, 3, [1, 0, b'0'])]));
    let whole = packet_of(&[book.clone(), heartbeat]);
    assert_eq!(Mdp3.type_name(&whole), Some("MDIncrementalRefreshBook"));
    assert_eq!(Mdp3.packet_head(&whole), Some(PacketHead { sequence: 7, sent_ns: 9 }));
    for end in 0..whole.len() {
        // A cut between two messages leaves a valid packet.
        assert_eq!(Mdp3.is_packet(&whole[..end]), end == HEAD_BYTES + book.len() + 2, "{end}");
    }
    assert!(!Mdp3.is_packet(&[&whole[..], b"x"].concat()));
    let mut other_schema = whole;
    other_schema[HEAD_BYTES + 6] = 2;
    assert!(!Mdp3.is_packet(&other_schema));
}

#[test]
fn each_entry_is_a_row_with_nine_decimals_and_the_symbol_of_its_definition() {
    let mut symbols = Symbols::new();
    let named = packet_of(&[definition(411_873, "ESZ6-ESH7 SPREAD", 10)]);
    let rows = rows_of(&named, &mut symbols);
    assert_eq!(rows.len(), 1);
    assert_eq!(value_of(&rows[0], "symbol"), Some("ESZ6-ESH7 SPREAD"));
    assert_eq!(value_of(&rows[0], "trading_status"), Some("17"));
    // Version 9 has nine decimals, templates of before have seven.
    let entries = |price| {
        group(&[entry(price, 411_873, 8, [1, 0, b'0']), entry(i64::MAX, 5, 9, [2, 2, b'1'])])
    };
    for (template, price) in [(46, 402_750_000_000), (32, 4_027_500_000)] {
        let packet = packet_of(&[message(template, &block(1), &entries(price))]);
        let rows = rows_of(&packet, &mut symbols);
        assert_eq!(rows.len(), 2);
        let expected = [
            ("type", "MDIncrementalRefreshBook"),
            ("packet_sequence", "7"),
            ("sending_time_ns", "9"),
            ("transact_time_ns", "1"),
            ("match_event", "132"),
            ("security_id", "411873"),
            ("symbol", "ESZ6-ESH7 SPREAD"),
            ("entry_type", "0"),
            ("update_action", "0"),
            ("price", "402750000000"),
            ("size", "5"),
            ("orders", "2"),
            ("level", "1"),
            ("rpt_seq", "8"),
        ];
        for (name, value) in expected {
            assert_eq!(value_of(&rows[0], name), Some(value), "{name}");
        }
        // The greatest price stands for none, and nothing has named security 5.
        assert_eq!(value_of(&rows[1], "price"), None);
        assert_eq!(value_of(&rows[1], "symbol"), None);
        assert_eq!(value_of(&rows[1], "entry_type"), Some("1"));
    }
}

#[test]
fn a_message_without_entries_and_an_unknown_template_are_rows_too() {
    let none = [32u16.to_le_bytes().to_vec(), vec![0]].concat();
    let packet = packet_of(&[
        message(46, &block(1), &none),
        message(12, &[], &[]),
        message(200, &[1, 2, 3], &[4]),
        // An entry that is shorter than its fields.
        message(46, &block(1), &[10, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    ]);
    let rows = rows_of(&packet, &mut Symbols::new());
    let kinds: Vec<_> = rows.iter().map(|row| value_of(row, "type").unwrap()).collect();
    let book = "MDIncrementalRefreshBook";
    assert_eq!(kinds, [book, "AdminHeartbeat12", "other template of MDP 3.0", book]);
    assert!(rows.iter().all(|row| value_of(row, "security_id").is_none()));
    assert!(rows_of(b"no packet", &mut Symbols::new()).is_empty());
}

#[test]
fn orders_behind_the_entries_of_a_book_name_their_entry() {
    let order = |id: u64, reference: u8| {
        let mut order = [id.to_le_bytes(), 77u64.to_le_bytes()].concat();
        order.extend_from_slice(&3i32.to_le_bytes());
        order.extend_from_slice(&[reference, 1, 0, 0]);
        order
    };
    let orders = [order(1001, 1), order(1002, 255)].concat();
    let head = [&24u16.to_le_bytes()[..], &[0; 5], &[2]].concat();
    let groups = [group(&[entry(1_000_000_000, 5, 9, [1, 0, b'1'])]), head, orders].concat();
    let rows = rows_of(&packet_of(&[message(46, &block(1), &groups)]), &mut Symbols::new());
    assert_eq!(rows.len(), 3);
    let shown = |row: usize, name| value_of(&rows[row], name);
    assert_eq!((shown(0, "order_id"), shown(0, "level")), (None, Some("1")));
    assert_eq!((shown(1, "order_id"), shown(1, "security_id")), (Some("1001"), Some("5")));
    assert_eq!((shown(1, "size"), shown(1, "update_action")), (Some("3"), Some("1")));
    assert_eq!((shown(1, "level"), shown(1, "price")), (None, Some("1000000000")));
    assert_eq!((shown(2, "order_id"), shown(2, "security_id")), (Some("1002"), None));
}

#[test]
fn books_and_trades_come_out_of_entries_and_implied_prices_do_not() {
    let mut books = LevelBooks::<u32>::default();
    let mut rows = Vec::new();
    let entries = [
        entry(100_000_000_000, 5, 1, [1, 0, b'0']),
        entry(101_000_000_000, 5, 2, [1, 0, b'1']),
        entry(100_500_000_000, 5, 3, [1, 0, b'E']),
    ];
    let trade = entry(101_000_000_000, 5, 4, [1, 0, 0]);
    let taken_back = entry(101_000_000_000, 5, 5, [1, 2, 0]);
    let packets = [
        packet_of(&[definition(5, "ESZ6", 10), message(46, &block(10), &group(&entries))]),
        packet_of(&[message(48, &block(20), &group(&[trade, taken_back]))]),
        packet_of(&[message(4, &30u64.to_le_bytes(), &[])]),
    ];
    for (place, bytes) in (0..).zip(&packets) {
        let message = MarketMessage { bytes, recorded_ns: 0 };
        books.take_message(&Mdp3, message, place, &mut |place, row| rows.push((place, row)));
    }
    books.end_nanosecond(&mut |place, row| rows.push((place, row)));
    let [(0, MarketRow::Quote(quote)), (1, MarketRow::Trade(trade)), (2, MarketRow::Quote(empty))] =
        &rows[..]
    else {
        panic!("{rows:?}")
    };
    let top = |price| Some(TopOfBook { price, shares: 5 });
    assert_eq!((quote.bid, quote.ask), (top(100_000_000_000), top(101_000_000_000)));
    assert_eq!((quote.time_ns, quote.name.as_deref()), (10, Some("ESZ6")));
    assert_eq!((trade.stated.price, trade.stated.size), (Some(101_000_000_000), 5));
    assert_eq!((trade.stated.resting, trade.time_ns), (Some(OrderSide::Ask), 20));
    assert_eq!((empty.bid, empty.ask, empty.time_ns), (None, None, 30));
}

#[test]
fn a_snapshot_states_the_whole_book() {
    let mut fields = vec![0; 59];
    fields[8..12].copy_from_slice(&5i32.to_le_bytes());
    fields[12..16].copy_from_slice(&40u32.to_le_bytes());
    fields[16..24].copy_from_slice(&50u64.to_le_bytes());
    let level = |price: i64, level: u8, kind: u8| {
        let mut entry =
            [&price.to_le_bytes()[..], &6i32.to_le_bytes(), &1i32.to_le_bytes()].concat();
        entry.extend_from_slice(&[level, 0, 0, 0, 0, kind]);
        entry
    };
    // The last entry is the price of the last trade, which is no trade now.
    let entries = group(&[level(7, 1, b'0'), level(8, 1, b'1'), level(7, 127, b'2')]);
    let packet = packet_of(&[message(52, &fields, &entries)]);
    let (mut books, mut rows) = (LevelBooks::<()>::default(), Vec::new());
    let message = MarketMessage { bytes: &packet, recorded_ns: 0 };
    books.take_message(&Mdp3, message, (), &mut |(), row| rows.push(row));
    books.end_nanosecond(&mut |(), row| rows.push(row));
    let [MarketRow::Quote(quote)] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!(
        (quote.bid.map(|bid| bid.price), quote.ask.map(|ask| ask.price)),
        (Some(7), Some(8))
    );
    let shown = rows_of(&packet, &mut Symbols::new());
    assert_eq!(value_of(&shown[0], "rpt_seq"), Some("40"));
    assert_eq!(value_of(&shown[2], "level"), None);
}

#[test]
fn an_event_has_the_symbol_of_its_security_where_it_fits() {
    let mut symbols = Symbols::new();
    let book = |security| message(46, &block(5), &group(&[entry(1, security, 3, [1, 0, b'0'])]));
    let mut events = Vec::new();
    let packet = packet_of(&[definition(5, "ESZ6", 10), book(5), book(6)]);
    Mdp3.events(&packet, &mut symbols, &mut |event| events.push(event));
    let seen: Vec<_> = events.iter().map(|event| (event.event_ns, event.symbol)).collect();
    let named = Stock::new("ESZ6");
    assert_eq!(seen, [(Some(1), named), (Some(5), named), (Some(5), None)]);
}
