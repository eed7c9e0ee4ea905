//! The project's real inputs, when they are there: `../shared/data` beside the repository, or
//! the folder that `EVENFALL_DATA` names.

use evenfall_feed_formats::arbiter::{self, Arbiter, ArbiterLimits, FeedSide};
use evenfall_feed_formats::books::levels::{LevelBooks, MarketMessage, MarketRow};
use evenfall_feed_formats::columns::ColumnBuffers;
use evenfall_feed_formats::event::Event;
use evenfall_feed_formats::itch::{Stock, Symbols, View};
use evenfall_feed_formats::pcap::PcapReader;
use evenfall_feed_formats::sharding::ContentHash;
use evenfall_feed_formats::{FeedMessage, MessageSource, codec, framed, open};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

fn data(file: &str) -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/data");
    let folder = std::env::var_os("EVENFALL_DATA").map_or_else(beside, PathBuf::from);
    let path = folder.join(file);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: no data (set EVENFALL_DATA)");
    None
}

fn messages(path: &Path) -> Vec<FeedMessage> {
    let file = Box::new(File::open(path).unwrap());
    let mut source = open(file, &path.display().to_string()).unwrap();
    let all = core::iter::from_fn(|| source.next_message().unwrap()).collect();
    assert_eq!(source.skipped().total(), 0);
    all
}

#[test]
fn itch_files_decode_and_come_back_byte_for_byte() {
    let files = [
        ("itch/nasdaq_20191230_aapl.itch50", 49_947, 1),
        ("itch/nasdaq_20191230_open_multi_symbol.itch50", 1_000, 322),
    ];
    for (file, expected, locates) in files {
        let Some(path) = data(file) else { return };
        let messages = messages(&path);
        assert_eq!(messages.len(), expected);
        let (mut again, mut message_again) = (Vec::new(), Vec::new());
        let mut symbols = Symbols::new();
        let mut keys = std::collections::BTreeSet::new();
        for message in &messages {
            let view = View::decode(&message.bytes).unwrap();
            symbols.observe(&view);
            keys.insert(message.shard_key);
            message_again.clear();
            view.to_owned().encode_into(&mut message_again);
            framed::write_frame(&mut again, &message_again);
        }
        assert_eq!(again, std::fs::read(&path).unwrap());
        assert_eq!(keys.len(), locates);
        // In 2 ms of an open half of the securities show nothing but deletes.
        println!("{} of {locates} symbols learned", symbols.len());
        assert!(symbols.len() <= locates && symbols.len() * 2 >= locates);
    }
}

#[test]
fn gzip_of_a_file_is_the_same_feed() {
    let Some(path) = data("itch/nasdaq_20191230_aapl.itch50") else { return };
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, &std::fs::read(&path).unwrap()).unwrap();
    let packed = gzip.finish().unwrap();
    let mut source = open(Box::new(std::io::Cursor::new(packed)), "packed").unwrap();
    let (mut ours, mut plain) = (ContentHash::new(1), ContentHash::new(1));
    while let Some(message) = source.next_message().unwrap() {
        ours.update(0, &message.bytes);
    }
    messages(&path).iter().for_each(|message| plain.update(0, &message.bytes));
    assert_eq!(ours.finish_hex(), plain.finish_hex());
}

#[test]
fn cme_sides_a_and_b_make_one_feed_without_a_gap() {
    let Some(path) = data("pcap/Cme.Mdp3.Sbe.v6.1.pcap") else { return };
    let mut sides = BTreeMap::new();
    for message in messages(&path) {
        assert_eq!(message.format, codec::MDP3);
        *sides.entry(message.shard_key).or_insert(0) += 1;
    }
    assert_eq!(sides.into_values().collect::<Vec<_>>(), [5_000, 5_000]);

    let mut source = PcapReader::new(File::open(&path).unwrap(), "cme");
    let mut arbiter = Arbiter::new(None, ArbiterLimits::default());
    let mut next = 5_615;
    let mut datagrams = 0;
    while let Some(datagram) = source.next_datagram().unwrap() {
        datagrams += 1;
        let side = if datagram.destination.port() == 14_340 { FeedSide::A } else { FeedSide::B };
        // MDP 3.0's packet header: sequence as a little-endian 32-bit number, then send time.
        let sequence = u32::from_le_bytes(*datagram.payload.first_chunk().unwrap());
        arbiter.offer(side, sequence.into(), datagram.payload).unwrap();
        while let Some(event) = arbiter.poll() {
            let arbiter::ArbiterEvent::Message { sequence, .. } = event else {
                panic!("{event:?}")
            };
            assert_eq!(sequence, next);
            next += 1;
        }
    }
    let counts = arbiter.counts();
    assert_eq!((datagrams, counts.delivered, counts.ignored), (10_000, 5_000, 5_000));
    println!("first copy: A {}, B {}", counts.first_a, counts.first_b);
}

#[test]
fn cme_side_a_with_losses_is_filled_from_side_b() {
    let Some(path) = data("pcap/Cme.Mdp3.Sbe.v6.1.pcap") else { return };
    let mut source = PcapReader::new(File::open(&path).unwrap(), "cme");
    let mut arbiter = Arbiter::new(Some(5_615), ArbiterLimits::default());
    let mut last = 5_614;
    while let Some(datagram) = source.next_datagram().unwrap() {
        let sequence = u64::from(u32::from_le_bytes(*datagram.payload.first_chunk().unwrap()));
        let side = if datagram.destination.port() == 14_340 { FeedSide::A } else { FeedSide::B };
        // A loses every third, B every fifth that A does not.
        let lost = match side {
            FeedSide::A => sequence.is_multiple_of(3),
            _ => sequence.is_multiple_of(5) && !sequence.is_multiple_of(3),
        };
        if !lost {
            arbiter.offer(side, sequence, datagram.payload).unwrap();
        }
        while let Some(event) = arbiter.poll() {
            if let arbiter::ArbiterEvent::Message { sequence, .. } = event {
                assert_eq!(sequence, last + 1);
                last = sequence;
            }
        }
    }
    assert_eq!((arbiter.counts().delivered, arbiter.counts().lost), (5_000, 0));
}

#[test]
fn miax_datagrams_are_all_there() {
    let Some(path) = data("pcap/Miax.Tom.Mach.v1.9.Example.pcap") else { return };
    let messages = messages(&path);
    assert_eq!(messages.len(), 20_560);
    assert!(messages.windows(2).all(|pair| pair[0].time_ns <= pair[1].time_ns));
    assert!(messages.iter().all(|message| message.shard_key == messages[0].shard_key));
    // 51 of them have the length and the letter of an ITCH message.
    let alike = |message: &&FeedMessage| View::decode(&message.bytes).is_ok();
    assert_eq!(messages.iter().filter(alike).count(), 51);
    let mut events = evenfall_feed_formats::event::Events::new();
    for message in &messages {
        assert_eq!(message.format, codec::MACH);
        let event = events.read(message.format, &message.bytes);
        assert!(event.kind.is_some_and(|kind| kind.len() > 1), "{event:?}");
        assert_eq!(event, Event { kind: event.kind, ..Event::default() });
    }
    let bytes = messages.iter().map(|message| &message.bytes[..]);
    assert_eq!(codec::of_untagged(bytes), codec::MACH);
}

#[test]
fn lobster_is_read_from_its_zip() {
    let Some(path) = data("lobster/LOBSTER_SampleFile_AAPL_2012-06-21_1.zip") else { return };
    let source = open(Box::new(File::open(&path).unwrap()), "a zip").unwrap();
    assert_eq!(source.only_symbol(), Stock::new("AAPL"), "the name of the entry");
    let messages = messages(&path);
    assert_eq!(messages.len(), 118_497);
    assert_eq!(messages[0].bytes, "34200.004241176,1,16113575,18,5853300,1");
    assert_eq!(messages[0].time_ns, 34_200_004_241_176);
    let crosses =
        messages.iter().filter(|message| message.bytes.split(|b| *b == b',').nth(1) == Some(b"6"));
    let mut events = evenfall_feed_formats::event::Events::new();
    for cross in crosses {
        assert_eq!(events.read(cross.format, &cross.bytes).kind, Some("6"));
    }
}

#[test]
fn real_files_cut_at_many_places_never_end_quietly() {
    let files = [
        "itch/nasdaq_20191230_open_multi_symbol.itch50",
        "pcap/Miax.Tom.Mach.v1.9.Example.pcap",
        "lobster/LOBSTER_SampleFile_AAPL_2012-06-21_1.zip",
    ];
    for file in files {
        let Some(path) = data(file) else { return };
        let whole = std::fs::read(path).unwrap();
        // Odd steps from the end, so that the cuts fall anywhere in a record.
        for cut in (1..20).map(|step| step * step * 37 + 1) {
            let part = whole[..whole.len() - cut].to_vec();
            let Ok(mut source) = open(Box::new(std::io::Cursor::new(part)), file) else { continue };
            let (mut count, mut framed_bytes) = (0, 0);
            let last = loop {
                match source.next_message() {
                    Ok(Some(message)) => {
                        count += 1;
                        framed_bytes += 2 + message.bytes.len();
                    }
                    other => break other,
                }
            };
            match last {
                // Between two frames a cut cannot be told from an excerpt.
                Ok(_) => assert_eq!(framed_bytes, whole.len() - cut, "{file} less {cut}"),
                Err(error) => assert_eq!(error.index, count),
            }
        }
    }
}

#[test]
fn entries_of_cme_are_rows_trades_and_quotes_that_never_cross() {
    let Some(path) = data("pcap/Cme.Mdp3.Sbe.v6.1.pcap") else { return };
    let codec = codec::of(codec::MDP3).unwrap();
    let market = codec.market_codec().unwrap();
    let mut source = PcapReader::new(File::open(&path).unwrap(), "cme");
    let (mut symbols, mut buffers) = (Symbols::new(), ColumnBuffers::new(codec.columns()));
    let (mut books, mut made) = (LevelBooks::default(), Vec::new());
    while let Some(datagram) = source.next_datagram().unwrap() {
        if datagram.destination.port() == 14_340 {
            codec.put_rows(&datagram.payload, &mut symbols, &mut buffers);
            let message = MarketMessage { bytes: &datagram.payload, recorded_ns: 0 };
            books.take_message(market, message, (), &mut |(), row| made.push(row));
        }
    }
    books.end_nanosecond(&mut |(), row| made.push(row));
    assert_eq!(buffers.rows(), 19_115);
    let trades = made.iter().filter_map(|row| match row {
        MarketRow::Trade(trade) => Some(trade.stated),
        MarketRow::Quote(_) => None,
    });
    let trades: Vec<_> = trades.collect();
    let size: u64 = trades.iter().map(|trade| trade.size).sum();
    assert_eq!((trades.len(), size), (355, 1_085));
    // 342.25 cents a bushel.
    assert_eq!((trades[1].security, trades[1].price), (363_272, Some(342_250_000_000)));
    let quotes = made.iter().filter_map(|row| match row {
        MarketRow::Quote(quote) => Some((quote.bid, quote.ask)),
        MarketRow::Trade(_) => None,
    });
    let quotes: Vec<_> = quotes.collect();
    assert_eq!(quotes.len(), 2_179);
    let both = quotes.iter().filter_map(|(bid, ask)| Some((bid.as_ref()?, ask.as_ref()?)));
    for (bid, ask) in both {
        assert!(bid.price < ask.price, "{bid:?} {ask:?}");
    }
}

#[test]
fn sides_of_miax_are_rows_and_quotes_that_never_cross() {
    let Some(path) = data("pcap/Miax.Tom.Mach.v1.9.Example.pcap") else { return };
    let codec = codec::of(codec::MACH).unwrap();
    let market = codec.market_codec().unwrap();
    let (mut symbols, mut buffers) = (Symbols::new(), ColumnBuffers::new(codec.columns()));
    let (mut books, mut made) = (LevelBooks::default(), Vec::new());
    for message in messages(&path) {
        codec.put_rows(&message.bytes, &mut symbols, &mut buffers);
        let recorded_ns = i64::try_from(message.time_ns).unwrap();
        let message = MarketMessage { bytes: &message.bytes, recorded_ns };
        books.take_message(market, message, (), &mut |(), row| made.push(row));
    }
    books.end_nanosecond(&mut |(), row| made.push(row));
    let trades = made.iter().filter(|row| matches!(row, MarketRow::Trade(_))).count();
    assert_eq!((buffers.rows(), trades, made.len() - trades), (50_952, 15, 49_053));
    for row in &made {
        if let MarketRow::Quote(quote) = row
            && let (Some(bid), Some(ask)) = (quote.bid, quote.ask)
        {
            assert!(bid.price < ask.price, "{quote:?}");
        }
    }
}
