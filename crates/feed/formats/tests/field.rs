//! Inputs with which people of this trade met faults, when they are there: `../shared/field` beside
//! the repository, or the folder that `EVENFALL_FIELD` names. Siblings of these captures are built
//! in `src/capture/tests.rs`.

use evenfall_feed_formats::arbiter::CopyCounts;
use evenfall_feed_formats::capture::CopyChoice;
use evenfall_feed_formats::error::FeedFault;
use evenfall_feed_formats::file::open_as;
use evenfall_feed_formats::{FeedError, FeedMessage, Format, codec};
use std::fs::File;
use std::path::{Path, PathBuf};

fn field(file: &str) -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/field");
    let folder = std::env::var_os("EVENFALL_FIELD").map_or_else(beside, PathBuf::from);
    let path = folder.join(file);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: {file} is not there (set EVENFALL_FIELD)");
    None
}

/// A feed that was read to its end.
struct ReadFeed {
    messages: Vec<FeedMessage>,
    end: Result<(), FeedError>,
    copies: Option<CopyCounts>,
    remarks: String,
}

fn read_as(file: &str, format: Option<Format>, copies: CopyChoice) -> Option<ReadFeed> {
    let path = field(file)?;
    let opened = open_as(format, Box::new(File::open(&path).unwrap()), file);
    let mut source = opened.unwrap().source;
    let mut messages = Vec::new();
    let end = source.choose_copies(copies).and_then(|()| {
        loop {
            match source.next_message() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        }
    });
    let (copies, remarks) = (source.copies(), source.remarks().join("\n"));
    Some(ReadFeed { messages, end, copies, remarks })
}

fn read(file: &str) -> Option<ReadFeed> {
    read_as(file, None, CopyChoice::FirstWhereRecognised)
}

#[test]
fn a01_numbers_that_begin_anew_are_no_copies() {
    let Some(weekly) = read("a01-ab-reset-weekly.pcap") else { return };
    assert_eq!((weekly.messages.len(), weekly.end), (70, Ok(())));
    assert_eq!(weekly.copies.unwrap().ignored, 70);
    assert!(weekly.remarks.contains("begin anew once"), "{}", weekly.remarks);
    let Some(two) = read("a01-two-feeds-equal-numbers.pcap") else { return };
    assert_eq!((two.messages.len(), two.end, two.copies), (120, Ok(()), None));
}

#[test]
fn a02_strangers_and_late_channels_spoil_nothing() {
    for (file, messages) in [
        ("a02-ab-one-ntp-early.pcap", 500),
        ("a02-ab-one-ntp-late.pcap", 500),
        ("a02-ab-snapshot-channel-starts-late.pcap", 1_000),
        ("a02-one-side-one-ntp.pcap", 60),
    ] {
        for format in [None, Some(codec::MDP3)] {
            let Some(read) = read_as(file, format, CopyChoice::FirstWhereRecognised) else {
                return;
            };
            assert_eq!((read.messages.len(), &read.end), (messages, &Ok(())), "{file}");
            assert!(read.messages.iter().all(|message| message.format == codec::MDP3), "{file}");
            let has_stranger = read.remarks.contains("1 packet of another protocol: 10.0.0.1:123");
            assert_eq!(has_stranger, file.contains("ntp"), "{file}: {}", read.remarks);
        }
    }
    let Some(refused) = read_as("a02-one-side-one-ntp.pcap", None, CopyChoice::First) else {
        return;
    };
    assert!(matches!(refused.end, Err(FeedError { fault: FeedFault::NoTwoSides { .. }, .. })));
}

#[test]
fn a06_itch_in_moldudp64_is_itch() {
    let Some(read) = read("a06-itch-moldudp64-ab.pcap") else { return };
    assert_eq!(read.end, Ok(()));
    assert!(read.messages.iter().all(|message| message.format == codec::ITCH));
    let counts = read.copies.unwrap();
    assert_eq!((counts.ignored, counts.lost), (counts.delivered, 0));
    println!("{} messages", read.messages.len());
}

#[test]
fn a07_a_hole_is_told() {
    let Some(read) = read("a07-mdp3-gap-of-ten.pcap") else { return };
    assert_eq!((read.messages.len(), read.end), (50, Ok(())));
    let words = "10 numbers are missing in 1 gap, the first 120";
    assert!(read.remarks.contains(words), "{}", read.remarks);
}

#[test]
fn a08_what_was_wrapped_around_packets_is_taken_off() {
    for (file, messages, format) in [
        ("a08-mpls.pcap", 60, codec::MDP3),
        ("a08-erspan.pcap", 60, codec::MDP3),
        ("a08-vntag.pcap", 60, codec::MDP3),
        ("a08-soupbintcp.pcap", 56, codec::ITCH),
    ] {
        let Some(read) = read(file) else { return };
        assert_eq!((read.messages.len(), &read.end), (messages, &Ok(())), "{file}");
        assert!(read.messages.iter().all(|message| message.format == format), "{file}");
    }
    let Some(empty) = read("a08-no-packet.pcap") else { return };
    assert!(matches!(empty.end, Err(FeedError { fault: FeedFault::NothingTaken { .. }, .. })));
}
