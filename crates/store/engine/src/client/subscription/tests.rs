use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use evenfall_store_format::Schema;

use super::*;
use crate::client::next_number;
use crate::protocol::VERSION;

fn queue() -> PushQueue {
    PushQueue { credit: 32, ..PushQueue::new(8, 5) }
}

#[test]
fn a_server_that_skips_repeats_cuts_or_exceeds_is_found_out() {
    let said = |first, bytes: &[u8]| {
        let received = queue().receive(StoreReply::Pushed { first, bytes });
        received.map_or_else(|error| error.to_string(), |_| String::new())
    };
    assert_eq!(said(5, &[0; 32]), "");
    for (first, bytes, words) in [
        (6, 8, "in the place of record 5"),
        (4, 16, "in the place of record 5"),
        (5, 0, "in the place of record 5"),
        (5, 12, "in the place of record 5"),
        (5, 40, "more was pushed than was granted"),
    ] {
        let found = said(first, &vec![0; bytes]);
        assert!(found.contains(words), "{first} and {bytes} bytes: {found}");
    }
    let mut last = PushQueue::new(8, u64::MAX);
    let found = last.receive(StoreReply::Pushed { first: u64::MAX, bytes: &[0; 8] }).unwrap_err();
    assert!(found.to_string().contains("more records than numbers"), "{found}");
}

#[test]
fn pushed_records_wait_for_the_caller_until_the_credit_is_used() {
    let mut queue = queue();
    for first in 5..9 {
        assert!(!queue.receive(StoreReply::Pushed { first, bytes: &[0; 8] }).unwrap());
    }
    assert!(queue.receive(StoreReply::Pushed { first: 9, bytes: &[0; 8] }).is_err());
    let ended = |next| StoreReply::Ended { why: SubscriptionEnd::NoCredit, next, kept: 0 };
    assert!(queue.receive(ended(8)).is_err(), "a pushed record is not next");
    assert!(queue.receive(ended(9)).unwrap());
    assert_eq!(queue.batches.len(), 4);
    assert!(queue.ended.is_some());
}

#[test]
fn a_reply_behind_the_end_of_a_subscription_is_an_error() {
    let ended = || StoreReply::Ended { why: SubscriptionEnd::NoCredit, next: 5, kept: 0 };
    let failed = || StoreReply::Failed { is_retryable: false, what: "" };
    for (end, behind) in [
        (ended(), StoreReply::Pushed { first: 5, bytes: &[0; 8] }),
        (ended(), ended()),
        (ended(), failed()),
        (failed(), ended()),
        (failed(), failed()),
    ] {
        let mut queue = queue();
        assert!(queue.receive(end).unwrap());
        let words = format!("{behind:?}");
        assert!(queue.receive(behind).is_err(), "{words}");
    }
}

#[test]
fn a_request_gets_no_number_of_a_subscription_under_way() {
    let under_way = BTreeMap::from([(0, ()), (1, ()), (7, ())]);
    let next = [5, 6, 7, u32::MAX - 1, u32::MAX].map(|last| next_number(last, &under_way));
    assert_eq!(next, [6, 8, 8, u32::MAX, 2]);
}

/// A client with a subscription to a file from record 0 on, to which the server has sent these
/// replies. Records have 8 bytes.
fn subscribed(replies: &[StoreReply<'_>]) -> (Client, FileSubscription, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (mut client, mut server) = std::thread::scope(|scope| {
        let accepted = scope.spawn(|| {
            let mut server = listener.accept().unwrap().0;
            let mut hello = Vec::new();
            let reply = StoreReply::Hello { version: VERSION, requests_max: 1_024 };
            reply.encode(1, 1 << 20, &mut hello);
            server.write_all(&hello).unwrap();
            server
        });
        (Client::connect(address).unwrap(), accepted.join().unwrap())
    });
    let file =
        RemoteFile { number: 0, numbers: 0..0, schema: Schema::opaque(8), is_published: false };
    let subscription = client.subscribe_to(&file, 0).unwrap();
    let mut bytes = Vec::new();
    replies.iter().for_each(|reply| reply.encode(subscription.request, 0, &mut bytes));
    server.write_all(&bytes).unwrap();
    (client, subscription, server)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

#[test]
fn a_grant_that_fails_loses_neither_a_batch_nor_the_named_end() {
    // The first batch is granted again as soon as it is taken.
    let (granted, rest) = ([7; WINDOW_BYTES as usize / 2], [7; 800]);
    let second = granted.len() as u64 / 8;
    let end = second + 100;
    for is_reset in [false, true] {
        let (mut client, subscription, server) = subscribed(&[
            StoreReply::Pushed { first: 0, bytes: &granted },
            StoreReply::Pushed { first: second, bytes: &rest },
            StoreReply::Ended { why: SubscriptionEnd::ServerStopping, next: end, kept: 0 },
        ]);
        // From now on every write fails.
        match is_reset {
            // The server has not read the request, so the system resets the connection.
            true => drop(server),
            false => client.writer.as_socket().shutdown(Shutdown::Write).unwrap(),
        }
        for (first, len) in [(0, granted.len()), (second, rest.len())] {
            let batch = client.next_batch(subscription, soon()).unwrap().expect("pushed records");
            assert_eq!((batch.first, batch.records.len()), (first, len));
        }
        match client.next_batch(subscription, soon()).unwrap_err() {
            StoreError::SubscriptionEnded { why, next, .. } => {
                assert_eq!((why, next), (SubscriptionEnd::ServerStopping, end));
            }
            error => panic!("{error}"),
        }
        assert!(client.flush().is_err(), "a grant that failed is not forgotten");
    }
}

#[test]
fn the_end_of_a_subscription_states_the_first_record_that_was_not_taken() {
    for why in [SubscriptionEnd::Asked, SubscriptionEnd::NoCredit, SubscriptionEnd::FileDeleted] {
        let (mut client, subscription, _server) = subscribed(&[
            StoreReply::Pushed { first: 0, bytes: &[0; 80] },
            StoreReply::Pushed { first: 10, bytes: &[0; 80] },
            StoreReply::Ended { why, next: 20, kept: 0 },
        ]);
        assert_eq!(client.next_batch(subscription, soon()).unwrap().unwrap().first, 0);
        let untaken = match client.end_subscription(subscription) {
            Ok(next) => next,
            Err(StoreError::SubscriptionEnded { why: told, next, .. }) if told == why => next,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(untaken, 10, "{why:?}");
        for late in [
            client.next_batch(subscription, soon()).map(drop),
            client.end_subscription(subscription).map(drop),
        ] {
            let words = late.unwrap_err().to_string();
            assert_eq!(words, "the subscription has ended before: subscribe again");
        }
    }
}
