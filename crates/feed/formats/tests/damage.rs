//! Feeds that are cut, foreign or broken: every error names its place, nothing before it is lost.

use evenfall_feed_formats::{FeedError, FeedFault, MessageSource, framed, itch, open};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::{Cursor, Write};

fn messages() -> Vec<Vec<u8>> {
    let stock = itch::Stock::new("EVEN").unwrap();
    let price = itch::Price4(1_000_000);
    let side = itch::Code(b'B');
    let order = itch::AddOrder { stock_locate: 3, stock, price, side, ..Default::default() };
    vec![
        itch::SystemEvent { event_code: itch::Code(b'O'), ..Default::default() }.encode().into(),
        itch::StockDirectory { stock_locate: 3, stock, ..Default::default() }.encode().into(),
        order.encode().into(),
        itch::OrderDelete { stock_locate: 3, ..Default::default() }.encode().into(),
    ]
}

fn itch_file() -> Vec<u8> {
    let mut file = Vec::new();
    messages().iter().for_each(|message| framed::write_frame(&mut file, message));
    file
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// All messages, and the error that stopped the feed, if one did.
fn read(bytes: Vec<u8>) -> (Vec<Vec<u8>>, Option<FeedError>) {
    let mut source = match open(Box::new(Cursor::new(bytes)), "f") {
        Ok(source) => source,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut out = Vec::new();
    loop {
        match source.next_message() {
            Ok(Some(message)) => {
                assert_eq!(message.index, out.len() as u64);
                out.push(message.bytes.to_vec());
            }
            Ok(None) => {
                assert_eq!(source.next_message(), Ok(None));
                return (out, None);
            }
            Err(error) => {
                assert_eq!(error.index, out.len() as u64, "{error}");
                assert_eq!(source.next_message(), Err(error.clone()), "an error stays");
                return (out, Some(error));
            }
        }
    }
}

#[test]
fn an_itch_file_cut_anywhere_names_the_frame_and_gives_what_is_before() {
    let file = itch_file();
    let all = messages();
    for end in 0..file.len() {
        let (mut whole, mut start) = (0, 0);
        while start + 2 + all[whole].len() <= end {
            start += 2 + all[whole].len();
            whole += 1;
        }
        let (read, error) = read(file[..end].to_vec());
        assert_eq!(read, all[..whole], "cut at {end}");
        match error {
            None => assert_eq!(start, end, "only a cut between frames can go unseen"),
            Some(error) if end == 0 => assert_eq!(error.fault, FeedFault::Empty),
            Some(error) if end < 3 => {
                assert!(matches!(error.fault, FeedFault::Unrecognised { .. }))
            }
            Some(error) => {
                assert_eq!(error.offset, start as u64);
                assert!(matches!(error.fault, FeedFault::Truncated { .. }), "{error}");
            }
        }
    }
}

#[test]
fn a_gzip_cut_anywhere_is_an_error() {
    let file = gzip(&itch_file());
    assert_eq!(read(file.clone()), (messages(), None));
    for end in 0..file.len() {
        let (read, error) = read(file[..end].to_vec());
        assert!(error.is_some(), "cut at {end} of {}", file.len());
        assert_eq!(read, messages()[..read.len()]);
    }
    let mut broken = file;
    let crc = broken.len() - 8;
    broken[crc] ^= 1;
    assert!(read(broken).1.is_some(), "a wrong checksum is an error");
}

#[test]
fn an_unknown_type_in_a_well_framed_file_is_named_with_its_place() {
    let mut file = itch_file();
    let place = file.len() as u64 + 2;
    framed::write_frame(&mut file, b"z-unknown");
    let (read, error) = read(file);
    let error = error.unwrap();
    assert_eq!((read.len(), error.index, error.offset), (4, 4, place));
    let text = format!("f: byte {place}, message 4: unknown ITCH 5.0 message type 'z' (0x7a)");
    assert!(error.to_string().starts_with(&text), "{error}");
}

#[test]
fn a_wrong_length_is_named() {
    let mut file = itch_file();
    framed::write_frame(&mut file, b"D-short");
    let error = read(file).1.unwrap();
    assert!(
        error.to_string().contains("'D' (OrderDelete) has 19 bytes, and this message has 7"),
        "{error}"
    );
}

#[test]
fn foreign_files_are_refused_by_their_first_bytes() {
    let elf = b"\x7fELF\x02\x01\x01\0".to_vec();
    let error = read(elf).1.unwrap();
    let expected = "f: byte 0, message 0: unknown format, it starts with 7f 45 4c 46";
    assert!(error.to_string().starts_with(expected), "{error}");
    assert_eq!(read(vec![]).1.unwrap().fault, FeedFault::Empty);
    assert_eq!(read(gzip(&gzip(&itch_file()))), (messages(), None));
    let thrice = read(gzip(&gzip(&gzip(&itch_file())))).1.unwrap();
    assert!(thrice.to_string().contains("packed more than twice"), "{thrice}");
    assert!(read(gzip(b"")).1.is_some());
    // A LOBSTER order book file is CSV too.
    assert!(read(b"5859400,200,5853300,18\n".to_vec()).1.is_some());
}

const LOBSTER: &str = "34200.004241176,1,16113575,18,5853300,1\n\
                       34200.1,1,16120456,18,5859100,-1\r\n\
                       34200.201743336,3,16120456,18,5859100,-1\n";

#[test]
fn a_lobster_file_is_lines_without_their_ends() {
    let mut source = open(Box::new(Cursor::new(LOBSTER)), "l").unwrap();
    let times: Vec<(u64, Vec<u8>)> = core::iter::from_fn(|| source.next_message().unwrap())
        .map(|message| (message.time_ns, message.bytes.to_vec()))
        .collect();
    assert_eq!(times[0], (34_200_004_241_176, b"34200.004241176,1,16113575,18,5853300,1".into()));
    assert_eq!(times[1], (34_200_100_000_000, b"34200.1,1,16120456,18,5859100,-1".into()));
    assert_eq!(times.len(), 3);
}

#[test]
fn a_lobster_file_cut_anywhere_is_seen() {
    // A cut behind the last field loses nothing but the line's end.
    let borders: Vec<usize> = LOBSTER.match_indices('\n').map(|(at, _)| at + 1).collect();
    let ends = LOBSTER.match_indices(['\r', '\n']).map(|(at, _)| at);
    let borders: Vec<usize> = borders.into_iter().chain(ends).collect();
    let lines: Vec<&str> = LOBSTER.lines().collect();
    for end in 1..LOBSTER.len() {
        let whole = LOBSTER[..end].lines().map(|line| line.trim_end_matches('\r'));
        let whole = whole.filter(|line| lines.contains(line)).count();
        let (read, error) = read(LOBSTER.as_bytes()[..end].to_vec());
        assert_eq!(read.len(), whole, "cut at {end}");
        assert_eq!(error.is_none(), borders.contains(&end), "cut at {end}");
    }
}

#[test]
fn a_bad_lobster_line_is_shown() {
    for bad in ["34200.1,1,2,3,4\n", "x.1,1,2,3,4,5\n", "34200.1,1,2,,4,5\n", "\n"] {
        let error = read(format!("{LOBSTER}{bad}").into_bytes()).1.unwrap();
        assert_eq!((error.index, error.offset), (3, LOBSTER.len() as u64));
        assert!(error.to_string().contains("malformed LOBSTER line"), "{error}");
    }
    let error = read(format!("{LOBSTER}{}", "1".repeat(400)).into_bytes()).1.unwrap();
    assert!(matches!(error.fault, FeedFault::TooLarge { .. }), "{error}");
}

/// A zip of these entries, deflated or stored; `large` in ZIP64, as archives beyond 4 GiB and those
/// written into a pipe are.
fn zip(entries: &[(&str, &str)], deflate: bool, large: bool) -> Vec<u8> {
    let method =
        if deflate { zip::CompressionMethod::Deflated } else { zip::CompressionMethod::Stored };
    let options = zip::write::SimpleFileOptions::default();
    let options = options.compression_method(method).large_file(large);
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, text) in entries {
        writer.start_file(*name, options).unwrap();
        writer.write_all(text.as_bytes()).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// Another entry first, as LOBSTER's archives have.
const ENTRIES: [(&str, &str); 2] =
    [("AAPL_orderbook_1.csv", "1,2,3,4\n"), ("AAPL_2012-06-21_message_1.csv", LOBSTER)];

#[test]
fn the_message_file_of_a_zip_is_read_in_place() {
    for (deflate, large) in [(false, false), (true, false), (false, true), (true, true)] {
        let (lines, error) = read(zip(&ENTRIES, deflate, large));
        assert_eq!((lines.len(), error), (3, None));
    }
}

#[test]
fn the_days_of_a_zip_are_one_feed_in_their_order() {
    let file = zip(
        &[
            ("AAPL_2012-06-22_message_1.csv", "34200.5,1,9,18,5853300,1\n"),
            ("AAPL_2012-06-21_message_1.csv", LOBSTER),
        ],
        true,
        false,
    );
    let mut source = open(Box::new(Cursor::new(file)), "days").unwrap();
    assert_eq!(source.date().unwrap().to_string(), "2012-06-21");
    let all: Vec<_> = core::iter::from_fn(|| source.next_message().unwrap()).collect();
    assert_eq!(all.iter().map(|message| message.index).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(all[3].time_ns, (86_400 + 34_200) * 1_000_000_000 + 500_000_000);
    for other in ["MSFT_2012-06-22_message_1.csv", "AAPL_message_2.csv"] {
        let error = read(zip(&[ENTRIES[1], (other, LOBSTER)], true, false)).1.unwrap();
        assert!(error.to_string().contains("not days of one symbol"), "{error}");
    }
}

#[test]
fn a_zip_that_is_cut_or_damaged_is_an_error() {
    for (deflate, large) in [(false, false), (true, true)] {
        let file = zip(&ENTRIES, deflate, large);
        let directory = file.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
        for end in 0..file.len() {
            assert!(read(file[..end].to_vec()).1.is_some(), "cut at {end}");
        }
        let mut damaged = file.clone();
        damaged[directory - 6] ^= 1;
        assert!(read(damaged).1.is_some());
    }
    let error = read(zip(&ENTRIES[..1], true, false)).1.unwrap();
    assert!(error.to_string().contains("this is LOBSTER order book CSV"), "{error}");
}

#[test]
fn a_message_of_an_unknown_type_is_passed_on_and_counted() {
    let mut file = itch_file();
    framed::write_frame(&mut file, b"z\0\x03\0\0\0\0\0\0\0\x07 of a later version");
    messages().iter().for_each(|message| framed::write_frame(&mut file, message));
    let mut source = open(Box::new(Cursor::new(file)), "f").unwrap();
    let all: Vec<_> = core::iter::from_fn(|| source.next_message().unwrap()).collect();
    assert_eq!((all.len(), source.skipped().unknown_types), (9, 1));
    assert_eq!((all[4].shard_key, all[4].time_ns), (3, 7));
    assert_eq!(source.skipped().to_string(), "1 messages of unknown types, passed on unread");
}

#[test]
fn a_format_that_the_user_names_is_read_or_refused() {
    let file = || Box::new(Cursor::new(itch_file()));
    let read = |format| evenfall_feed_formats::file::open_as(Some(format), file(), "f");
    assert!(read(evenfall_feed_formats::codec::ITCH).is_ok());
    assert!(read(evenfall_feed_formats::codec::MDP3).is_err(), "only captures hold it");
}

#[test]
fn a_failing_reader_gives_its_messages_first() {
    struct FailsAfter(Cursor<Vec<u8>>);
    impl std::io::Read for FailsAfter {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            match self.0.read(out)? {
                0 => Err(std::io::Error::other("the disk is gone")),
                read => Ok(read),
            }
        }
    }
    impl std::io::Seek for FailsAfter {
        fn seek(&mut self, to: std::io::SeekFrom) -> std::io::Result<u64> {
            self.0.seek(to)
        }
    }
    for file in [itch_file(), LOBSTER.as_bytes().to_vec()] {
        let expected = read(file.clone()).0.len() as u64;
        let mut source = open(Box::new(FailsAfter(Cursor::new(file))), "f").unwrap();
        let mut count = 0;
        let error = loop {
            match source.next_message() {
                Ok(Some(_)) => count += 1,
                Ok(None) => panic!("the failure was swallowed"),
                Err(error) => break error,
            }
        };
        assert_eq!((count, error.index), (expected, expected));
        assert!(error.to_string().contains("the disk is gone"), "{error}");
    }
}
