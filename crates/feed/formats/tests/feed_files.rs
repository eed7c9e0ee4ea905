//! Feed files as people have them: what other tools write, pad, pack and put behind each other. The
//! inputs of the folder `field` are read where the folder is there (beside the repository, or where
//! `EVENFALL_FIELD` says). Siblings of each are made here.

use evenfall_feed_formats::event::{Event, Events};
use evenfall_feed_formats::itch::{self, Code, Stock, SystemEvent};
use evenfall_feed_formats::{FeedMessage, MessageSource, framed, open};
use std::io::{Cursor, Write};
use std::path::Path;

/// The bytes of an input of the field.
fn field(name: &str) -> Option<Vec<u8>> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/field");
    let folder = std::env::var_os("EVENFALL_FIELD").map_or_else(beside, Into::into);
    let bytes = std::fs::read(folder.join(name)).ok();
    if bytes.is_none() {
        println!("skipped: no {name} (set EVENFALL_FIELD)");
    }
    bytes
}

/// Everything that a file gives.
struct Reading {
    messages: Vec<FeedMessage>,
    error: Option<String>,
    notes: Vec<String>,
    date: Option<String>,
    skipped: u64,
}

impl Reading {
    fn texts(&self) -> Vec<&str> {
        self.messages.iter().map(|message| std::str::from_utf8(&message.bytes).unwrap()).collect()
    }

    fn events(&self) -> Vec<Event> {
        let mut events = Events::new();
        self.messages.iter().map(|m| events.read(m.format, &m.bytes)).collect()
    }

    /// All messages were read without a note.
    fn assert_whole(&self, count: usize) {
        assert_eq!((self.messages.len(), &self.error, &*self.notes), (count, &None, &[][..]));
    }
}

fn read(bytes: impl Into<Vec<u8>>) -> Reading {
    let mut reading =
        Reading { messages: Vec::new(), error: None, notes: Vec::new(), date: None, skipped: 0 };
    let mut source = match open(Box::new(Cursor::new(bytes.into())), "f") {
        Ok(source) => source,
        Err(error) => {
            reading.error = Some(error.to_string());
            return reading;
        }
    };
    reading.error = loop {
        match source.next_message() {
            Ok(Some(message)) => reading.messages.push(message),
            Ok(None) => break None,
            Err(error) => break Some(error.to_string()),
        }
    };
    reading.notes = source.notes();
    reading.date = source.date().map(|date| date.to_string());
    reading.skipped = source.skipped().total();
    reading
}

fn error_of(bytes: impl Into<Vec<u8>>) -> String {
    read(bytes).error.unwrap_or_else(|| "no error".to_owned())
}

// LOBSTER.

const LINES: [&str; 2] = ["34200.017459617,1,5,1,2238200,-1", "34201,1,11885113,21,2238100,1"];

#[test]
fn lobster_files_of_today_are_read() {
    let file = |lines: &[&str]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let both = file(&LINES);
    read(both.clone()).assert_whole(2);
    // A participant behind the six fields, and whatever a tool adds behind it.
    let seven = LINES.map(|line| format!("{line},UBSS,note"));
    let seven = read(file(&[&seven[0], &seven[1]]));
    seven.assert_whole(2);
    assert_eq!(seven.events()[0].attribution, itch::Mpid::new("UBSS"));
    assert_eq!(read(file(&["1,1,5,1,2,1,null"])).events()[0].attribution, None);
    // A file that begins on a whole second, and numbers as pandas writes them.
    read(file(&[LINES[1]])).assert_whole(1);
    let decimals = read(file(&["34200.5,1.0,7.0,21.0,2238200.0,-1.0"]));
    decimals.assert_whole(1);
    let event = decimals.events()[0];
    assert_eq!((event.kind, event.price, event.side), (Some("1"), Some(2_238_200), Some('S')));
    assert!(error_of(file(&[LINES[0], "34202,1,7,21,2238200.5,-1"])).contains("malformed LOBSTER"));
    // A byte-order mark and lines that end as Windows ends them.
    read(format!("\u{feff}{}", both.replace('\n', "\r\n"))).assert_whole(2);
    for header in
        ["time,type,order_id,size,price,direction", "\"Time\",Type,ID,Size,Price,Dir,MPID"]
    {
        let headed = read(format!("\u{feff}{header}\n{both}"));
        assert_eq!((headed.texts(), &headed.error), (LINES.to_vec(), &None));
        assert!(headed.notes[0].contains("names of the columns"), "{:?}", headed.notes);
    }
    // A header belongs in front, and one alone is no feed.
    assert!(error_of(format!("{both}time,type,order_id,size,price,direction\n")).contains("line"));
    assert!(error_of("time,type,order_id,size,price,direction\n").contains("a CSV table"));
}

#[test]
fn a_last_line_without_a_newline_is_a_message_when_nothing_of_it_can_be_lost() {
    let file = LINES.join("\n");
    let whole = read(file.clone());
    assert_eq!((whole.texts(), &whole.error), (LINES.to_vec(), &None));
    assert!(whole.notes[0].contains("no newline"), "{:?}", whole.notes);
    let cut = read(&file[..file.len() - 2]);
    assert_eq!(cut.messages.len(), 1);
    assert!(cut.error.unwrap().contains("cut short"));
    assert_eq!(read(LINES[1]).messages.len(), 1);
}

#[test]
fn the_halts_of_lobster_have_no_price_and_say_their_kind() {
    let lines = ["36023.7,7,0,0,-1,-1", "36323.0,7,0,0,0,-1", "36923.02,7,0,0,1,-1"];
    let events = read(lines.join("\n")).events();
    assert!(
        events.iter().all(|event| {
            event.price.is_none() && event.shares.is_none() && event.side.is_none()
        })
    );
    let states: Vec<_> = events.iter().filter_map(|event| event.trading_state).collect();
    assert_eq!(states, ['H', 'Q', 'T']);
}

#[test]
fn the_fields_lobster_files_are_read() {
    if let Some(file) = field("a03-lobster-7-columns_2021-04-12_message_10.csv") {
        read(file).assert_whole(2);
    }
    if let Some(file) = field("a03-lobster-header_2012-06-21_message.csv") {
        let reading = read(file);
        assert_eq!((reading.messages.len(), reading.error), (1, None));
    }
    if let Some(file) = field("a04-lobster-halt_2012-06-21_message.csv") {
        let reading = read(file);
        assert_eq!(reading.error, None);
        let prices: Vec<_> = reading.events().iter().filter_map(|event| event.price).collect();
        assert!(prices.iter().all(|price| *price > 1_000_000), "{prices:?}");
        let sides = reading.events().iter().filter(|event| event.side.is_some()).count();
        assert_eq!(sides, 2, "halts and crosses have no side");
    }
}

// ITCH.

fn system_event(event_code: u8, timestamp_ns: u64) -> Vec<u8> {
    SystemEvent { event_code: Code(event_code), timestamp_ns, ..Default::default() }.encode().into()
}

const HOUR_NS: u64 = 3_600_000_000_000;

/// A day of this symbol under locate 7.
fn day(symbol: &str) -> Vec<Vec<u8>> {
    let stock = Stock::new(symbol).unwrap();
    let (stock_locate, timestamp_ns) = (7, 10 * HOUR_NS);
    let order_reference = 1;
    let directory =
        itch::StockDirectory { stock_locate, timestamp_ns, stock, ..Default::default() };
    let executed =
        itch::OrderExecuted { stock_locate, timestamp_ns, order_reference, ..Default::default() };
    vec![
        system_event(b'O', 3 * HOUR_NS),
        directory.encode().into(),
        executed.encode().into(),
        system_event(b'C', 20 * HOUR_NS),
    ]
}

fn framed(messages: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    messages.iter().for_each(|message| framed::write_frame(&mut file, message));
    file
}

fn ended(messages: &[Vec<u8>]) -> Vec<u8> {
    [framed(messages), vec![0, 0]].concat()
}

#[test]
fn zeros_behind_the_end_mark_are_nothing_and_other_bytes_are_a_note() {
    let file = ended(&day("TEST"));
    read(file.clone()).assert_whole(4);
    for zeros in [1, 2, 3, 70_000] {
        read([file.clone(), vec![0; zeros]].concat()).assert_whole(4);
    }
    for rest in [&b"x"[..], b"\0\0rest", b"\0\0\0and\0\0", &[b'z'; 100_000]] {
        let reading = read([&file[..], rest].concat());
        assert_eq!((reading.messages.len(), &reading.error), (4, &None));
        assert!(reading.notes[0].contains("behind the end of the session"), "{:?}", reading.notes);
    }
    read(vec![0, 0]).assert_whole(0);
    // A hole in a file, which a download left, is no end.
    let holed = [file.clone(), vec![0; 501], framed(&day("TEST"))].concat();
    assert!(error_of(holed).contains("zero bytes in front of further messages"));
}

#[test]
fn sessions_behind_one_another_are_one_feed_and_days_are_not() {
    let mut parts = day("TEST");
    let later = parts.split_off(2);
    let reading = read([ended(&parts), ended(&later)].concat());
    assert_eq!((reading.messages.len(), &reading.error), (4, &None));
    assert!(reading.notes[0].contains("2 sessions"), "{:?}", reading.notes);
    for file in [
        [ended(&day("TEST")), ended(&day("OTHR"))].concat(),
        [framed(&day("TEST")), framed(&day("OTHR"))].concat(),
    ] {
        let reading = read(file);
        assert_eq!(reading.messages.len(), 4);
        let error = reading.error.unwrap();
        assert!(error.contains("from 20:00:00 to 03:00:00: another day begins"), "{error}");
        assert!(error.contains("--date"), "{error}");
    }
    let lobster = "57599.5,1,5,1,2238200,-1\n34200.5,1,5,1,2238200,-1\n";
    assert!(error_of(lobster).contains("another day begins"));
}

#[test]
fn a_later_days_directory_gives_a_locate_another_symbol() {
    let mut events = Events::new();
    let mut symbols = Vec::new();
    for message in [day("TEST"), day("OTHR")].concat() {
        let event = events.read(evenfall_feed_formats::codec::ITCH, &message);
        symbols.extend(event.symbol.filter(|_| event.kind == Some("E")));
    }
    assert_eq!(symbols, ["TEST", "OTHR"].map(|symbol| Stock::new(symbol).unwrap()));
}

#[test]
fn lengths_of_zero_are_read_by_the_types() {
    let messages = day("TEST");
    let zeros = |messages: &[Vec<u8>]| {
        messages.iter().flat_map(|message| [&[0, 0], &message[..]].concat()).collect::<Vec<u8>>()
    };
    let file = zeros(&messages);
    for end in [&[][..], &[0, 0], &[0, 0, 0, 0, 0]] {
        let reading = read([&file[..], end].concat());
        let bytes: Vec<_> = reading.messages.iter().map(|message| &message.bytes[..]).collect();
        assert_eq!((bytes, &reading.error), (messages.iter().map(|m| &m[..]).collect(), &None));
        assert!(reading.notes[0].contains("RITCH"), "{:?}", reading.notes);
    }
    let cut = read(&file[..file.len() - 1]);
    assert_eq!(cut.messages.len(), 3);
    assert!(cut.error.unwrap().contains("truncated frame"));
    let foreign = read([&file[..], b"\0\0z-unknown"].concat());
    assert!(foreign.error.unwrap().contains("lengths are zero"));
    let many = zeros(&vec![messages[2].clone(); 40]);
    let stated = read([many, framed(&messages)].concat());
    assert!(stated.error.unwrap().contains("length 12 and type"));
}

#[test]
fn a_first_message_of_a_later_version_does_not_hide_the_format() {
    let later = [b"z\0\x03\0\0\0\0\0\0\0\x07 of a later version".to_vec()];
    let reading = read([framed(&later), framed(&day("TEST"))].concat());
    assert_eq!((reading.messages.len(), reading.error), (5, None));
    assert!(error_of(framed(&later)).contains("unknown format"));
}

#[test]
fn the_fields_itch_files_are_read() {
    if let Some(file) = field("a05-ritch-zero-lengths_20191230.itch50") {
        let reading = read(file);
        assert_eq!((reading.messages.len(), reading.error), (56, None));
        assert!(reading.notes[0].contains("RITCH"));
    }
    if let Some(file) = field("a11-two-days-one-locate_20191230.itch50") {
        let reading = read(file);
        assert_eq!(reading.messages.len(), 56);
        assert!(reading.error.unwrap().contains("another day begins here"));
    }
    if let Some(file) = field("a17-large-order-numbers_20191230.itch50") {
        let reading = read(file);
        assert_eq!((reading.messages.len(), &reading.error), (9, &None));
        let events = reading.events();
        let orders: Vec<u64> = events.iter().filter_map(|event| event.order_reference).collect();
        // No order is taken for its neighbour: they differ in the last of 61 bits.
        let entered: Vec<u64> = (1..=5).map(|order| (1 << 60) + order).collect();
        assert_eq!(orders, [&entered[..], &[(1 << 60) + 4, (1 << 60) + 5]].concat());
    }
    if let Some(file) = field("a18-hours_20191230.itch50") {
        let reading = read(file);
        assert_eq!((reading.messages.len(), &reading.error), (8, &None));
        let events = reading.events();
        let entered = events.iter().filter(|event| event.kind == Some("A"));
        let hours: Vec<u64> =
            entered.filter_map(|event| event.event_ns).map(|ns| ns / 3_600_000_000_000).collect();
        assert_eq!(hours, [5, 9, 10, 11, 12, 15], "hours of the venue's clock");
    }
}

// Packing.

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

#[test]
fn zeros_behind_gzip_are_nothing_and_other_bytes_are_a_note() {
    let file = ended(&day("TEST"));
    let packed = gzip(&file);
    for zeros in [0, 1, 511, 200_000] {
        read([packed.clone(), vec![0; zeros]].concat()).assert_whole(4);
    }
    let halves = [gzip(&file[..20]), vec![0; 512], gzip(&file[20..]), vec![0; 9]].concat();
    read(halves).assert_whole(4);
    for (rest, count) in [(&b"rest"[..], 4), (b"\0\0\x1e\x8b", 2), (&[7; 100_000], 100_000)] {
        let reading = read([&packed[..], rest].concat());
        assert_eq!((reading.messages.len(), &reading.error), (4, &None));
        let words = format!("{count} bytes behind the packed data");
        assert!(reading.notes[0].contains(&words), "{:?}", reading.notes);
    }
    // A second member that was cut is damage, from its first byte on.
    for end in 1..packed.len() {
        let later = gzip(&ended(&day("TEST")[3..]));
        let error = error_of([&packed[..], &later[..end.min(later.len() - 1)]].concat());
        assert!(error.contains("cut short") || error.contains("is damaged"), "{end}: {error}");
    }
    let cut = error_of(&packed[..packed.len() - 9]);
    assert!(cut.contains("cut short") && !cut.contains("permission"), "{cut}");
}

#[test]
fn gzip_of_very_many_members_is_read_in_little_depth() {
    let message = framed(&[system_event(b'O', 1)]);
    let members: Vec<u8> = (0..100_000).flat_map(|_| gzip(&message)).collect();
    read(members).assert_whole(100_000);
}

fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        writer.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

#[test]
fn a_zip_with_one_feed_of_any_format_is_read() {
    let itch = ended(&day("TEST"));
    let reading = read(zip(&[("20191230.itch50", &itch)]));
    reading.assert_whole(4);
    assert_eq!(reading.date.as_deref(), Some("2019-12-30"));
    read(zip(&[("x.gz", &gzip(&itch))])).assert_whole(4);
    read(zip(&[("__MACOSX/._x", b"resource"), ("ReadMe.txt", b"words"), ("x", &itch)]))
        .assert_whole(4);
    read(gzip(&gzip(&itch))).assert_whole(4);
    let lines = LINES.map(|line| format!("{line}\n")).concat();
    read(zip(&[("orders.csv", lines.as_bytes())])).assert_whole(2);
    let capture = capture(MICROSECONDS, 3);
    assert_eq!(read(zip(&[("day.pcap", &capture)])).messages.len(), 3);
}

#[test]
fn a_zip_that_is_not_read_says_why() {
    let itch = ended(&day("TEST"));
    for (file, words) in [
        (zip(&[("a.itch50", &itch), ("b.itch50", &itch)]), "2 files and no message file"),
        (zip(&[]), "a zip without entries"),
        (zip(&[("x.zst", b"\x28\xb5\x2f\xfd more")]), "this is zstd"),
        (zip(&[("x.zip", &zip(&[("a", &itch)]))]), "a zip in another archive"),
        (gzip(&zip(&[("a", &itch)])), "a zip in another archive"),
        (
            zip(&[
                ("A_2012-06-21_message_1.csv", LINES[0].as_bytes()),
                ("B_2012-06-21_message_1.csv", LINES[0].as_bytes()),
            ]),
            "are not days of one symbol; unpack the zip",
        ),
    ] {
        let error = error_of(file);
        assert!(error.contains(words), "{error}");
        assert!(!error.contains("damaged"), "{error}");
    }
}

#[test]
fn the_fields_packed_files_are_read() {
    if let Some(file) = field("a10-gzip-zero-padding_20191230.itch50.gz") {
        let reading = read(file);
        assert!(!reading.messages.is_empty());
        assert_eq!((reading.error, reading.notes.len()), (None, 0));
    }
    if let Some(file) = field("a14-itch-in-zip_20191230.zip") {
        let reading = read(file);
        assert_eq!((reading.messages.len(), &reading.error), (56, &None));
        assert_eq!(reading.date.as_deref(), Some("2019-12-30"));
    }
    if let Some(file) = field("a14-itch_20191230.itch50.zst") {
        assert!(error_of(file).contains("this is zstd; unpack it, or give it by a pipe: zstd -dc"));
    }
}

// Foreign files.

#[test]
fn foreign_files_are_named_and_come_with_a_way_out() {
    let mut tar = vec![b'x'; 512];
    tar[257..262].copy_from_slice(b"ustar");
    let messages = day("TEST");
    let soup = |message: &Vec<u8>| {
        let length = (message.len() as u16 + 1).to_be_bytes();
        [&length[..], b"S", message].concat()
    };
    let soup: Vec<u8> = messages.iter().flat_map(soup).collect();
    let long = |message: &Vec<u8>| [&(message.len() as u32).to_be_bytes()[..], message].concat();
    let long: Vec<u8> = messages.iter().flat_map(long).collect();
    let erf = [&[0, 0, 0, 0, 0xe8, 9, 10, 0x5e, 2, 4, 0, 82, 0, 0, 0, 64][..], &[1; 66]].concat();
    for (file, name) in [
        (b"\x28\xb5\x2f\xfd zstd".to_vec(), "zstd"),
        (b"BZh91AY".to_vec(), "bzip2"),
        (b"\xfd7zXZ\0\0".to_vec(), "xz"),
        (b"\x04\x22\x4d\x18 lz4".to_vec(), "lz4"),
        (b"7z\xbc\xaf\x27\x1c\0\x04".to_vec(), "7z"),
        (b"Rar!\x1a\x07\0".to_vec(), "rar"),
        (tar, "tar"),
        (b"DBN\x02 metadata".to_vec(), "DBN"),
        (b"\x51\x2a\x4d\x18\x10\0\0\0DBZ\x01".to_vec(), "DBZ"),
        (b"snoop\0\0\0\0\0\0\x02".to_vec(), "snoop"),
        (erf, "ERF"),
        (b"PAR1\x15\x04".to_vec(), "Parquet"),
        (b"ARROW1\0\0".to_vec(), "Arrow"),
        (b"\x89HDF\r\n\x1a\n".to_vec(), "HDF5"),
        (b"\0\x05T\0\0\x85\x98\0\x06S\0\0\0\x05O".to_vec(), "ITCH 4.1"),
        (soup, "SoupBinTCP"),
        (long, "4-byte lengths"),
        (messages.concat(), "ITCH 5.0 without lengths"),
        (b"<!DOCTYPE html><html>".to_vec(), "web page"),
        (b"{\"time\": 1}".to_vec(), "JSON"),
        (b"5859400,200,5853300,18\n".to_vec(), "order book CSV"),
        (b"5859400,1,5853300,18,5859800,100,5853000,1\n".to_vec(), "order book CSV"),
        (b"\xff\xfe3\x004\x00".to_vec(), "UTF-16"),
        (vec![0; 4096], "zero bytes"),
        // The times, types and lengths of records that these bytes make are those of ERF.
        (b"bin_10ms,messages_in_bin_lower_bound\n0,3841\n1,4831\n".to_vec(), "a CSV table"),
        (b"ts_event,price,size,symbol,side\n17951849,4720.25,3,ESH4,B\n".to_vec(), "--csv"),
        ("time,Größe".as_bytes()[..8].to_vec(), "a CSV table"),
        (b"# 50,000 rows; row of line 30,002 goes back\npython3\nexit\n".to_vec(), "text of no"),
        (b"SAMPLE DATA AND THE LIKE: LETTERS OF MESSAGES\n".to_vec(), "this is text"),
    ] {
        for (file, wrapping) in [(file.clone(), "plain"), (gzip(&file), "gzip")] {
            let error = error_of(file);
            assert!(
                error.contains("this is") && error.contains(name),
                "{name}, {wrapping}: {error}"
            );
            assert!(!error.contains("unknown format"), "{error}");
        }
    }
    assert!(error_of(b"\x7fELF\x02\x01\x01\0").contains("unknown format"));
}

#[test]
fn the_fields_foreign_files_are_named() {
    for (name, words) in
        [("a09-endace.erf", "an Endace ERF capture"), ("a12-itch41-S031413-v41.txt", "ITCH 4.1")]
    {
        let Some(file) = field(name) else { continue };
        let error = error_of(file);
        assert!(error.contains(words), "{name}: {error}");
    }
}

// Captures.

const MICROSECONDS: [u8; 4] = [0xd4, 0xc3, 0xb2, 0xa1];
const NANOSECONDS: [u8; 4] = [0xa1, 0xb2, 0x3c, 0x4d];
const MODIFIED: [u8; 4] = [0x34, 0xcd, 0xb2, 0xa1];

/// A datagram on the wire, in Ethernet.
fn frame() -> Vec<u8> {
    let ethernet = [&[1; 12][..], &[8, 0]].concat();
    let ip = [0x45, 0, 0, 30, 0, 1, 0x40, 0, 17, 17, 0, 0, 10, 0, 0, 1, 224, 0, 0, 1];
    [&ethernet[..], &ip, &[0, 9, 0x37, 0xe6, 0, 10, 0, 0], b"hi"].concat()
}

/// A capture of this many datagrams, big-endian where the magic is.
fn capture(magic: [u8; 4], count: u32) -> Vec<u8> {
    let is_big = magic[0] == 0xa1;
    let long = |value: u32| if is_big { value.to_be_bytes() } else { value.to_le_bytes() };
    let short = |value: u16| if is_big { value.to_be_bytes() } else { value.to_le_bytes() };
    let head = [short(2), short(4)].concat();
    let head = [&magic[..], &head, &[0; 8], &long(65_535), &long(1)].concat();
    let record = |at: u32| {
        let length = frame().len() as u32;
        let fields = [long(1_577_716_200 + at), long(5), long(length), long(length)].concat();
        let patch = if magic == MODIFIED { &[1, 0, 0, 0, 0, 8, 0, 0][..] } else { &[] };
        [&fields[..], patch, &frame()].concat()
    };
    (0..count).fold(head, |file, at| [file, record(at)].concat())
}

#[test]
fn a_modified_pcap_is_read() {
    let reading = read(capture(MODIFIED, 3));
    // The datagrams are of no known format, which is the only note.
    assert_eq!((reading.messages.len(), &reading.error, reading.notes.len()), (3, &None, 1));
    assert!(reading.messages.iter().all(|message| message.bytes == "hi"));
    let times: Vec<_> = reading.messages.iter().map(|message| message.time_ns).collect();
    assert_eq!(times[2], 1_577_716_202_000_005_000);
    let cut = capture(MODIFIED, 3);
    assert!(error_of(&cut[..cut.len() - 1]).contains("truncated pcap record"));
}

#[test]
fn captures_behind_one_another_are_one_feed_with_a_note() {
    let files = [capture(MICROSECONDS, 2), capture(NANOSECONDS, 3), capture(MODIFIED, 1)];
    let reading = read(files.concat());
    assert_eq!((reading.messages.len(), &reading.error), (6, &None));
    assert_eq!(reading.messages[2].time_ns, 1_577_716_200_000_000_005);
    assert_eq!(reading.messages[5].time_ns, 1_577_716_200_000_005_000);
    assert!(reading.notes[0].contains("3 captures"), "{:?}", reading.notes);
    let packed: Vec<u8> = files.iter().flat_map(|file| gzip(file)).collect();
    assert_eq!(read(packed).messages.len(), 6);
    // A pcapng of one section without packets, between classic captures.
    let section = [&[0x0a, 0x0d, 0x0d, 0x0a][..], &28_u32.to_le_bytes()].concat();
    let section = [&section[..], &[0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0], &[0xff; 8]].concat();
    let section = [section, 28_u32.to_le_bytes().to_vec()].concat();
    let mixed = [capture(MICROSECONDS, 2), section, capture(NANOSECONDS, 2)].concat();
    let reading = read(mixed);
    assert_eq!((reading.messages.len(), &reading.error), (4, &None));
    assert!(reading.notes[0].contains("3 captures"), "{:?}", reading.notes);
}

#[test]
fn the_fields_captures_are_read() {
    if let Some(file) = field("a09-modified.pcap") {
        let reading = read(file);
        assert_eq!((reading.messages.len(), reading.error, reading.skipped), (60, None, 0));
    }
    if let Some(file) = field("a09-two-captures-in-one.pcap.gz") {
        let reading = read(file);
        assert_eq!((reading.messages.len(), reading.error), (120, None));
        assert!(reading.notes[0].contains("2 captures"), "{:?}", reading.notes);
    }
}
