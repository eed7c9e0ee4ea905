//! A program that publishes and a program that subscribes, over loopback.

use std::thread;

use crate::common::{receivers, settings};
use evenfall_multicast_service::{EmbeddedRoot, EmbeddedRootError, Subscriber, Update};

fn message(n: u32) -> Vec<u8> {
    // Messages have different lengths, and some are empty.
    n.to_le_bytes().repeat(n as usize % 40)
}

#[test]
fn a_subscriber_gets_what_a_publisher_publishes() {
    const COUNT: u32 = 20_000;
    let settings = settings(2, 2);
    let others = receivers(&settings, &["receiver-1"]);
    let subscriber = Subscriber::with(settings.clone(), "receiver-1").unwrap();
    let desk = thread::spawn(move || {
        let mut got = [Vec::new(), Vec::new()];
        for update in subscriber {
            match update.unwrap() {
                Update::Message(m) => got[m.stream as usize].push(m.bytes),
                update => panic!("{update:?}"),
            }
        }
        got
    });
    let publisher = EmbeddedRoot::start(settings, "root").unwrap();
    let mut sent = [Vec::new(), Vec::new()];
    for n in 0..COUNT {
        let key = n % 5;
        publisher.publish(message(n), key).unwrap();
        let tree = evenfall_feed_formats::sharding::shard_of(key, 2);
        sent[tree as usize].push(message(n));
    }
    let summary = publisher.finish().unwrap();
    assert_eq!(summary.messages, u64::from(COUNT));
    assert!(sent.iter().all(|tree| !tree.is_empty()));
    assert!(desk.join().unwrap() == sent, "contents differ");
    for other in others {
        assert_eq!(other.join().unwrap().content_hash, summary.content_hash);
    }
}

#[test]
fn a_publisher_that_gets_ahead_is_told_and_loses_nothing() {
    let settings = settings(1, 1);
    let publisher = EmbeddedRoot::start(settings.clone(), "root").unwrap();
    // No receiver has joined, so no message leaves. The queue must say that it is full.
    let mut queued = 0_u32;
    let refused = loop {
        match publisher.try_publish(message(queued), 0) {
            Ok(()) => queued += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, EmbeddedRootError::Full), "{refused}");
    let receivers = receivers(&settings, &[]);
    publisher.publish(message(queued), 0).unwrap();
    let too_long = publisher.publish(vec![0; 70_000], 0);
    assert!(matches!(too_long, Err(EmbeddedRootError::TooLong { bytes: 70_000 })));
    assert_eq!(publisher.finish().unwrap().messages, u64::from(queued) + 1);
    for receiver in receivers {
        assert_eq!(receiver.join().unwrap().messages, u64::from(queued) + 1);
    }
}

/// Files that this process has open.
fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn subscribers_that_are_gone_leave_nothing_behind_for_signals_to_reach() {
    evenfall_host::interrupt::install().unwrap();
    let settings = settings(1, 1);
    let visit = || {
        // There is no root, so the receiver keeps asking to join until it is dropped.
        let mut subscriber = Subscriber::with(settings.clone(), "receiver-1").unwrap();
        assert!(!subscriber.wait(std::time::Duration::from_millis(1)), "it runs");
    };
    visit();
    let before = open_files();
    for _ in 0..100 {
        visit();
    }
    // Other tests of this program also open files.
    assert!(open_files() < before + 50, "{before} files, then {}", open_files());
}

#[test]
fn a_publisher_that_cannot_start_says_why() {
    let settings = settings(1, 1);
    let start = |settings, name| EmbeddedRoot::start(settings, name).err().unwrap();
    assert!(matches!(start(settings.clone(), "receiver-1"), EmbeddedRootError::NotARoot(_)));
    assert!(start(settings.clone(), "nobody").to_string().contains("receiver-1"));
    let taken = EmbeddedRoot::start(settings.clone(), "root").unwrap();
    let error = start(settings, "root").to_string();
    assert!(error.contains("another process has the port"), "{error}");
    // No receiver has joined, and the publisher ends without waiting for one.
    drop(taken);
}
