use std::sync::Arc;

use bytes::Bytes;
use evenfall_core::{Format, SyncTime};

use super::*;
use crate::subscriber::ReleasedMessage;

const SHORT: Duration = Duration::from_millis(1);

/// Updates with the numbers of this range, of ten bytes each.
fn release(numbers: core::ops::Range<u64>) -> Vec<FeedUpdate> {
    let message = |number| ReleasedMessage {
        stream: 0,
        number,
        deadline: None,
        released: SyncTime::ZERO,
        format: Format::OPAQUE,
        bytes: Bytes::from_static(b"ten bytes!"),
    };
    numbers.map(|number| FeedUpdate::Message(message(number))).collect()
}

fn numbers(updates: &[FeedUpdate]) -> Vec<u64> {
    let number = |update: &FeedUpdate| match update {
        FeedUpdate::Message(message) => message.number,
        update => panic!("{update:?}"),
    };
    updates.iter().map(number).collect()
}

fn limits(messages: usize, bytes: usize) -> UpdateQueue {
    UpdateQueue::new(QueueLimits { messages, bytes })
}

#[test]
fn a_batch_has_all_that_waits_up_to_what_the_program_wants() {
    let queue = UpdateQueue::new(QueueLimits::default());
    queue.push(&mut release(0..3)).unwrap();
    queue.push(&mut release(3..7)).unwrap();
    let batch = queue.take_batch(5, Some(SHORT)).unwrap();
    assert_eq!(numbers(&batch.updates), [0, 1, 2, 3, 4]);
    assert_eq!(numbers(&[queue.take().unwrap()]), [5]);
    // A program that wants no update gets one, so that its loop goes on.
    assert_eq!(numbers(&queue.take_batch(0, None).unwrap().updates), [6]);
    assert_eq!(queue.lock().bytes, 0);
}

#[test]
fn an_empty_batch_says_that_the_time_is_over_and_none_that_the_stream_is() {
    let queue = UpdateQueue::new(QueueLimits::default());
    assert!(!queue.wait(SHORT));
    assert!(queue.take_batch(9, Some(SHORT)).unwrap().updates.is_empty());
    queue.push(&mut release(0..1)).unwrap();
    queue.close();
    assert!(queue.wait(SHORT));
    assert_eq!(numbers(&queue.take_batch(9, None).unwrap().updates), [0]);
    assert!(queue.wait(SHORT), "the answer is there at once");
    assert!(queue.take_batch(9, None).is_none() && queue.take().is_none());
}

#[test]
fn a_release_that_passes_a_limit_is_refused_whole() {
    for queue in [limits(5, 1_000), limits(1_000, 50)] {
        queue.push(&mut release(0..3)).unwrap();
        let waiting = queue.push(&mut release(3..6)).unwrap_err();
        assert_eq!(waiting, QueueLimits { messages: 3, bytes: 30 });
        // What waited before is still handed over, and the limit is reached exactly.
        queue.push(&mut release(3..5)).unwrap();
        let batch = queue.take_batch(9, None).unwrap();
        assert_eq!(numbers(&batch.updates), [0, 1, 2, 3, 4]);
    }
}

#[test]
fn an_empty_queue_takes_a_release_that_is_larger_than_its_limits() {
    let queue = limits(1, 1);
    queue.push(&mut release(0..100)).unwrap();
    assert!(queue.push(&mut release(100..101)).is_err());
    assert_eq!(queue.take_batch(1_000, None).unwrap().updates.len(), 100);
}

#[test]
fn a_sleeping_program_is_woken_by_a_release_and_by_the_end() {
    let queue = Arc::new(UpdateQueue::new(QueueLimits::default()));
    let program = std::thread::spawn({
        let queue = Arc::clone(&queue);
        move || {
            let mut sizes = Vec::new();
            while let Some(batch) = queue.take_batch(1_000, None) {
                sizes.push(batch.updates.len());
            }
            sizes
        }
    });
    for release_number in 0..3 {
        // Waits until the program sleeps, so that each release is a batch of its own.
        while !queue.lock().is_asleep {
            std::thread::yield_now();
        }
        let first = release_number * 40;
        queue.push(&mut release(first..first + 40)).unwrap();
    }
    queue.close();
    assert_eq!(program.join().unwrap(), [40, 40, 40], "a wake-up a release, not a message");
}

#[test]
fn a_program_that_waits_elsewhere_is_called_once_for_all_that_it_has_not_taken() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let (queue, calls) = (UpdateQueue::new(QueueLimits::default()), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&calls);
    let count = move || calls.load(Ordering::Relaxed);
    queue.push(&mut release(0..1)).unwrap();
    queue.call_when_filled(Arc::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    }));
    assert_eq!(count(), 1, "an update waits already");
    queue.push(&mut release(1..3)).unwrap();
    assert_eq!(count(), 1, "the program was called and has not taken yet");
    queue.take_batch(9, Some(SHORT)).unwrap();
    queue.push(&mut release(3..4)).unwrap();
    assert_eq!(count(), 2);
    queue.close();
    assert_eq!(count(), 3, "the end is told even while an update waits");
}
