//! Chunks whose messages were shredded: every byte, names and types, hostile footers.

use std::fmt::Debug;

use bytes::Bytes;
use evenfall_core::Prng;
use evenfall_store_format::columnar::{ChunkCodec as _, GROUPS_PER_CHUNK, MessageValues};
use evenfall_store_format::messages::parts::{
    PARTED_RECORD_BYTES, PartedMessage, RECORDS_PER_GROUP, parted_schema,
};
use evenfall_store_format::messages::{
    FieldPlace, FormatLayout, KindLayout, LineField, LineForm, MessageField, MessageLayout,
    MessageLayouts,
};
use evenfall_store_format::schema::ArrivalOrder;
use evenfall_store_format::{Field, FieldType, Schema};
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::RowAccessor as _;
use proptest::prelude::*;

use evenfall_store_columns::ParquetCodec;

use crate::{CHUNK, decoded, raw};

const DAY_NS: i64 = 86_400_000_000_000;
/// Five hours behind UTC.
const ZONE_NS: i64 = 5 * 3_600_000_000_000;
/// Midnight of the venue.
const MIDNIGHT_NS: i64 = 19_000 * DAY_NS + ZONE_NS;

/// A venue of binary orders and one of lines.
#[derive(Debug)]
struct Venues;

impl MessageLayouts for Venues {
    fn layouts_of(&self, _: &Schema) -> Option<Vec<FormatLayout>> {
        let place = |field, at, len| FieldPlace { field, at, len };
        let head = || vec![place(MessageField::Locate, 1, 2), place(MessageField::Time, 3, 6)];
        let mut order = head();
        order.extend([place(MessageField::OrderRef, 9, 8), place(MessageField::Symbol, 18, 8)]);
        let mut trade = head();
        trade.extend([place(MessageField::Price, 9, 4), place(MessageField::Match, 13, 8)]);
        let kind = |letter, len, fields| KindLayout { letter, len, fields };
        let kinds = MessageLayout::Kinds(vec![
            kind(b'A', 26, order),
            kind(b'P', 21, trade),
            kind(b'Z', 30, head()),
        ]);
        let line = |form| {
            let field = |field, form| LineField { field, form };
            MessageLayout::Line(vec![
                field(MessageField::Time, form),
                field(MessageField::Price, LineForm::Number),
            ])
        };
        Some(vec![
            FormatLayout { tag: 1, layout: kinds },
            FormatLayout { tag: 2, layout: line(LineForm::Seconds) },
            FormatLayout { tag: 2, layout: line(LineForm::ShortSeconds) },
        ])
    }

    fn wall_ns(&self, _: u8, recorded_ns: i64, day_ns: Option<u64>) -> Option<i64> {
        let wall_ns = recorded_ns.checked_sub(ZONE_NS)?;
        Some(day_ns.map_or(wall_ns, |day_ns| wall_ns - wall_ns.rem_euclid(DAY_NS) + day_ns as i64))
    }

    fn type_name(&self, tag: u8, _: &[u8]) -> Option<&'static str> {
        (tag == 3).then_some("Packet")
    }
}

fn schema() -> Schema {
    let mut schema = Schema::of(&[
        ("time", FieldType::Time),
        ("number", FieldType::U64),
        ("length", FieldType::U16),
        ("format", FieldType::U8),
    ]);
    let (name, kind, aggregate) = ("message".to_owned(), FieldType::Bytes, false);
    schema.fields.push(Field { name, offset: 19, len: 53, kind, aggregate });
    schema.record_bytes = 72;
    schema
}

fn put(row: &mut [u8], time_ns: i64, number: u64, tag: u8, message: &[u8]) {
    row[..8].copy_from_slice(&time_ns.to_le_bytes());
    row[8..16].copy_from_slice(&number.to_le_bytes());
    row[16..18].copy_from_slice(&(message.len() as u16).to_le_bytes());
    row[18] = tag;
    row[19..19 + message.len()].copy_from_slice(message);
}

fn order(letter: u8, len: usize, day_ns: i64, order: u64) -> Vec<u8> {
    let mut message = vec![b' '; len];
    message[0] = letter;
    message[1..3].copy_from_slice(&[0, 13]);
    message[3..9].copy_from_slice(&day_ns.to_be_bytes()[2..]);
    message[9..17].copy_from_slice(&order.to_be_bytes());
    message
}

/// A day's messages of both venues, and some that no layout reads.
fn feed(prng: &mut Prng) -> impl FnMut(&mut [u8]) {
    let (mut day_ns, mut number) = (34_200_000_000_000, 0);
    move |row| {
        (day_ns, number) = (day_ns + prng.below(90_000) as i64, number + 1);
        let time_ns = MIDNIGHT_NS + day_ns;
        match prng.below(100) {
            0..60 => {
                let mut message = order(b'A', 26, day_ns, 1_000 + number / 3);
                message[17] = b'B';
                message[18..22].copy_from_slice(b"AAPL");
                put(row, time_ns, number, 1, &message);
            }
            60..80 => {
                let mut message = order(b'P', 21, day_ns, 0);
                message[9..13].copy_from_slice(&2_900_000u32.to_be_bytes());
                message[13..21].copy_from_slice(&number.to_be_bytes());
                put(row, time_ns, number, 1, &message);
            }
            80..90 => {
                let (seconds, ns) = (day_ns / 1_000_000_000, day_ns % 1_000_000_000);
                let line = format!("{seconds}.{ns:09}");
                let line = format!("{},-25,rest", line.trim_end_matches('0').trim_end_matches('.'));
                put(row, time_ns, number, 2, line.as_bytes());
            }
            90..95 => put(row, time_ns, number, 3, &number.to_be_bytes()),
            95 => put(row, time_ns, number, 1, b"A message of another length"),
            96 => put(row, time_ns, number, 2, b"34200.5,007"),
            97 => {
                // A message that went back in time has its own time behind its bytes.
                put(row, time_ns, number, 1, &order(b'A', 26, day_ns, number));
                row[17] |= 0x80;
                row[45..53].copy_from_slice(&(time_ns - 5_000).to_le_bytes());
            }
            98 => put(row, i64::MAX, u64::MAX, 255, b""),
            _ => crate::fill(prng, row),
        }
    }
}

fn encode(chunk: &Bytes) -> Bytes {
    let stored = ParquetCodec.encode(&schema(), CHUNK, chunk, Some(&Venues));
    stored.expect("a whole chunk").expect("columns take less")
}

#[test]
fn every_byte_of_messages_comes_back_whatever_they_are() {
    let chunk = raw(&schema(), feed(&mut Prng::new(1)));
    let stored = encode(&chunk);
    ParquetCodec.check(&stored, "here").expect("checksums");
    assert!(decoded(&stored).expect("rows") == chunk);
    let as_bytes =
        ParquetCodec.encode(&schema(), CHUNK, &chunk, None).expect("a chunk").expect("less");
    assert!(stored.len() * 3 < as_bytes.len() * 2, "{} of {}", stored.len(), as_bytes.len());
    // Fields of the records come out of the columns too.
    let fields = ParquetCodec.decode_fields(&stored, 1..3, &[1, 4], "here").expect("fields");
    let fields = fields.expect("columns");
    let group = chunk.len() / GROUPS_PER_CHUNK as usize;
    let rows = chunk[group..3 * group].chunks(16_384);
    let mut rows = rows.flat_map(|segment| segment[32..32 + 227 * 72].chunks(72));
    let of_rows = fields[0].chunks(8).zip(fields[1].chunks(53));
    for (number, message) in of_rows {
        let row = rows.next().expect("as many rows");
        assert!(row[8..16] == *number && row[19..] == *message);
    }
    assert!(rows.next().is_none());
}

#[test]
fn other_readers_find_the_values_of_messages() {
    let chunk = raw(&schema(), feed(&mut Prng::new(2)));
    let file = SerializedFileReader::new(encode(&chunk)).expect("a Parquet file");
    let names = file.metadata().file_metadata().schema_descr();
    let names: Vec<&str> = names.columns().iter().map(|column| column.name()).collect();
    assert_eq!(names[..6], ["seq", "time", "recorded_offset", "format", "type", "locate"]);
    let place = |name: &str| names.iter().position(|other| *other == name).expect(name);
    let rows = chunk.chunks(16_384).flat_map(|segment| segment[32..32 + 227 * 72].chunks(72));
    let (mut orders, mut unread) = (0, 0);
    for (found, row) in file.get_row_iter(None).expect("rows").zip(rows) {
        let found = found.expect("a row");
        let number = u64::from_le_bytes(row[8..16].try_into().expect("eight"));
        assert_eq!(found.get_long(place("seq")).expect("seq"), number.wrapping_add(1) as i64);
        let is_null = |name: &str| found.get_column_iter().nth(place(name)).map(|c| c.1.clone());
        let is_null = |name| is_null(name) == Some(parquet::record::Field::Null);
        if (row[18], row[19], row[16], row[17]) == (1, b'A', 26, 0) {
            orders += 1;
            let time = i64::from_le_bytes(row[..8].try_into().expect("eight"));
            assert_eq!(found.get_string(place("type")).expect("type"), "A");
            assert_eq!(found.get_string(place("symbol")).expect("symbol"), "AAPL");
            assert_eq!(found.get_int(place("locate")).expect("locate"), 13);
            assert_eq!(found.get_bytes(place("rest")).expect("rest").data(), b"B");
            assert_eq!(found.get_long(place("recorded_offset")).expect("offset"), ZONE_NS);
            assert!(is_null("price") && is_null("length"), "{time}");
        } else if (row[18], row[16], row[17]) == (3, 8, 0) {
            unread += 1;
            assert_eq!(found.get_string(place("type")).expect("type"), "Packet");
            assert_eq!(found.get_bytes(place("rest")).expect("rest").data(), &row[19..27]);
        }
    }
    assert!(orders > 30_000 && unread > 2_000, "{orders} {unread}");
}

#[test]
fn values_of_messages_come_out_without_their_rows() {
    let chunk = raw(&schema(), feed(&mut Prng::new(3)));
    let fields = [MessageField::OrderRef, MessageField::Symbol];
    let found = ParquetCodec.decode_messages(&encode(&chunk), 1..2, &fields, "here");
    let found = found.expect("columns").expect("messages");
    let rows = chunk.chunks(16_384).skip(64).take(64);
    let mut rows = rows.flat_map(|segment| segment[32..32 + 227 * 72].chunks(72));
    let MessageValues::Numbers(orders) = &found.values[0] else { panic!("numbers") };
    let MessageValues::Texts(symbols) = &found.values[1] else { panic!("texts") };
    assert_eq!(orders.len(), 64 * 227);
    assert!(orders.iter().flatten().count() > 64 * 227 / 2, "most messages are orders");
    for at in 0..orders.len() {
        let row = rows.next().expect("as many rows");
        assert_eq!(found.numbers[at].to_le_bytes(), row[8..16]);
        assert_eq!(found.recorded_ns[at].to_le_bytes(), row[..8]);
        assert_eq!(found.tags[at], row[18]);
        match found.is_shredded[at] {
            true if row[19] == b'A' => {
                let order = u64::from_be_bytes(row[28..36].try_into().expect("eight"));
                assert_eq!(orders[at], Some(order as i64));
                assert_eq!(symbols[at].as_deref(), Some(&b"AAPL"[..]));
            }
            true => assert!(matches!(row[18], 1 | 2)),
            false => assert_eq!((orders[at], &symbols[at]), (None, &None)),
        }
    }
    let plain =
        ParquetCodec.encode(&schema(), CHUNK, &chunk, None).expect("a chunk").expect("less");
    assert_eq!(ParquetCodec.decode_messages(&plain, 0..1, &fields, "here").expect("none"), None);
}

#[test]
fn rows_that_are_no_messages_keep_the_columns_of_their_fields() {
    let mut schema = schema();
    schema.fields[2].name = "size".into();
    let chunk = raw(&schema, feed(&mut Prng::new(4)));
    let stored = ParquetCodec.encode(&schema, CHUNK, &chunk, Some(&Venues));
    let stored = stored.expect("a whole chunk").expect("columns take less");
    let file = SerializedFileReader::new(stored.clone()).expect("a Parquet file");
    assert_eq!(file.metadata().file_metadata().schema_descr().column(2).name(), "size");
    assert!(decoded(&stored).expect("rows") == chunk);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn any_bytes_in_records_of_messages_come_back(seed: u64, noise in 0u64..3) {
        let mut prng = Prng::new(seed);
        let mut other = Prng::new(seed);
        let mut feed = feed(&mut other);
        let chunk = raw(&schema(), |row| {
            feed(row);
            // Few bytes of a message are changed, or many.
            for _ in 0..noise * prng.below(4) {
                row[prng.below(72) as usize] = prng.next_u64() as u8;
            }
        });
        let stored = ParquetCodec.encode(&schema(), CHUNK, &chunk, Some(&Venues)).unwrap();
        let stored = stored.expect("a third of the bytes are zeros");
        prop_assert!(decoded(&stored).unwrap() == chunk);
    }
}

/// A chunk of messages in parts, as a recorder writes them.
fn parted(prng: &mut Prng, len_max: u64) -> (Bytes, Vec<(u64, Vec<u8>)>) {
    let size = usize::from(PARTED_RECORD_BYTES);
    let group = RECORDS_PER_GROUP as usize * size;
    let (mut records, mut messages) = (Vec::new(), Vec::new());
    let mut day_ns = 34_200_000_000_000;
    let mut last: Option<PartedMessage<'static>> = None;
    while records.len() < GROUPS_PER_CHUNK as usize * group {
        day_ns += prng.below(90_000) as i64;
        let number = messages.len() as u64;
        let bytes = match prng.below(10) {
            0 => vec![number as u8; prng.below(len_max) as usize],
            _ => {
                let mut message = order(b'A', 26, day_ns, 1_000 + number / 3);
                message[17] = b'B';
                message[18..22].copy_from_slice(b"AAPL");
                message
            }
        };
        let own_ns = Some(MIDNIGHT_NS).filter(|_| prng.below(500) == 0);
        let (recorded_ns, tag) = (MIDNIGHT_NS + day_ns, 1);
        let message = PartedMessage { recorded_ns, number, tag, missed: 9, own_ns, bytes: &bytes };
        let left = (group - records.len() % group) / size;
        if let Some(last) = last.filter(|_| message.records() > left) {
            last.put_filler(left, &mut records);
            continue;
        }
        message.put(&mut records);
        last = Some(PartedMessage { own_ns: None, bytes: &[], ..message });
        messages.push((number, bytes));
    }
    let mut rows = records.chunks_exact(size);
    let schema = parted_schema(&ArrivalOrder::default());
    let chunk = raw(&schema, |row| row.copy_from_slice(rows.next().expect("a record")));
    (chunk, messages)
}

#[test]
fn a_message_in_parts_is_one_row_and_its_records_come_back() {
    let schema = parted_schema(&ArrivalOrder::default());
    for (seed, len_max) in [(1, 60), (2, 3_000), (3, 65_536)] {
        let (chunk, messages) = parted(&mut Prng::new(seed), len_max);
        let stored = ParquetCodec.encode(&schema, CHUNK, &chunk, Some(&Venues));
        let stored = stored.expect("a whole chunk").expect("columns take less");
        ParquetCodec.check(&stored, "here").expect("checksums");
        assert!(decoded(&stored).expect("rows") == chunk);
        let found = ParquetCodec.decode_messages(&stored, 0..4, &[MessageField::Symbol], "here");
        let mut found = found.expect("columns").expect("messages");
        assert!(found.numbers.iter().copied().eq(0..messages.len() as u64));
        assert_eq!(found.records(), 4 * RECORDS_PER_GROUP);
        let file = SerializedFileReader::new(stored).expect("a Parquet file");
        for (row, (number, bytes)) in file.get_row_iter(None).expect("rows").zip(&messages) {
            let row = row.expect("a row");
            assert_eq!(row.get_long(0).expect("seq"), *number as i64 + 1);
            if bytes.first() != Some(&b'A') {
                assert_eq!(row.get_ushort(14).expect("length"), bytes.len() as u16);
                assert_eq!(&row.get_bytes(15).expect("rest").data()[..bytes.len()], &bytes[..]);
            }
        }
        // A part of the messages, by their records: none that begins or ends elsewhere.
        let from: u64 = found.records[..5].iter().map(|records| u64::from(*records)).sum();
        let to = from + u64::from(found.records[5]) + u64::from(found.records[6]);
        let mut longer = found.clone();
        found.cut(from..to);
        assert_eq!(found.numbers, [5, 6]);
        longer.cut(from..to + u64::from(longer.records[7]) - 1);
        assert_eq!(longer.numbers, [5, 6]);
    }
}

#[test]
fn a_chunk_with_a_message_that_was_cut_short_has_its_records_as_rows() {
    let schema = parted_schema(&ArrivalOrder::default());
    let (chunk, _) = parted(&mut Prng::new(4), 3_000);
    let mut first = true;
    let mut rows = chunk.chunks(16_384).flat_map(|segment| segment[32..32 + 255 * 64].chunks(64));
    let cut = raw(&schema, |row| {
        row.copy_from_slice(rows.next().expect("a record"));
        // The first record of the chunk becomes the first part of a message that does not go on.
        if std::mem::take(&mut first) {
            row[16..18].copy_from_slice(&[0xff, 0x7f]);
        }
    });
    let stored = ParquetCodec.encode(&schema, CHUNK, &cut, Some(&Venues));
    let stored = stored.expect("a whole chunk").expect("columns take less");
    assert!(decoded(&stored).expect("rows") == cut);
    let found = ParquetCodec.decode_messages(&stored, 0..4, &[], "here").expect("columns");
    assert_eq!(found, None);
}
