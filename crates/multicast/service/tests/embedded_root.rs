//! A program that publishes and a program that subscribes, over loopback.

use std::thread;

use crate::common::{receivers, settings};
use evenfall_multicast_service::{
    EmbeddedRoot, EmbeddedRootError, FeedUpdate, QueueLimits, SubscribeError, Subscriber,
};

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
                FeedUpdate::Message(m) => got[m.stream as usize].push(m.bytes),
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
fn batches_have_the_whole_feed_in_order() {
    const COUNT: u64 = 5_000;
    let settings = settings(1, 1);
    let limits = QueueLimits { messages: 100_000, bytes: 1 << 20 };
    let mut subscriber = Subscriber::with(settings.clone(), "receiver-1").unwrap();
    subscriber = subscriber.queue_limits(limits);
    let desk = thread::spawn(move || {
        let mut batches = 0_u64;
        let mut numbers = Vec::new();
        for batch in subscriber.batches(1_000) {
            let batch = batch.unwrap();
            assert!((1..=1_000).contains(&batch.updates.len()));
            batches += 1;
            numbers.extend(batch.updates.iter().map(|update| match update {
                FeedUpdate::Message(message) => message.number,
                update => panic!("{update:?}"),
            }));
        }
        assert!(subscriber.next_batch(1, std::time::Duration::MAX).is_none(), "the end is kept");
        (batches, numbers)
    });
    let publisher = EmbeddedRoot::start(settings, "root").unwrap();
    (0..COUNT).for_each(|_| publisher.publish(vec![7; 10], 0).unwrap());
    publisher.finish().unwrap();
    let (batches, numbers) = desk.join().unwrap();
    assert!(numbers.iter().copied().eq(0..COUNT), "in order and whole");
    // The root packs what waits into one frame, so a wake-up brings many messages.
    assert!(batches < COUNT / 2, "{batches} batches");
}

#[test]
fn a_program_beyond_its_limits_is_cut_off_by_name() {
    let settings = settings(1, 2);
    let others = receivers(&settings, &["receiver-1"]);
    let limits = QueueLimits { messages: 10, bytes: usize::MAX };
    let mut slow = Subscriber::with(settings.clone(), "receiver-1").unwrap().queue_limits(limits);
    // The receiver joins, and this program takes nothing while the feed goes on.
    assert!(!slow.wait(std::time::Duration::from_millis(1)));
    let publisher = EmbeddedRoot::start(settings, "root").unwrap();
    (0..1_000).for_each(|_| publisher.publish(vec![7; 10], 0).unwrap());
    assert_eq!(publisher.finish().unwrap().messages, 1_000);
    for other in others {
        assert_eq!(other.join().unwrap().messages, 1_000);
    }
    let errors: Vec<SubscribeError> = slow.filter_map(Result::err).collect();
    assert!(matches!(errors[..], [SubscribeError::TooSlow { waiting: 1.., .. }]), "{errors:?}");
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
