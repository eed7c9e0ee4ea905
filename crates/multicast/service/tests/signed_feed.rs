//! A root that signs its feed, and subscribers that check it, over loopback.

use std::thread;
use std::time::Duration;

use crate::common::settings;
use evenfall_multicast_machine::{BreakCause, ReleaseAfter};
use evenfall_multicast_service::settings::{Settings, public_text};
use evenfall_multicast_service::signing::SigningKey;
use evenfall_multicast_service::{EmbeddedRoot, FeedUpdate, RoleError, SubscribeError, Subscriber};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

const MESSAGES: u32 = 2_000;

/// Writes a secret signing key. Returns the public half.
fn write_key(path: &Path, secret: [u8; 32]) -> String {
    use std::io::Write as _;
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path).unwrap();
    let digits: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    file.write_all(digits.as_bytes()).unwrap();
    public_text(&SigningKey::new(&secret).public_key())
}

/// Publishes to the only receiver. Returns its messages and how it ended.
fn play(root: Settings, receiver: Settings) -> (Vec<u32>, Option<SubscribeError>) {
    let subscriber = Subscriber::with(receiver, "receiver-1").unwrap();
    let desk = thread::spawn(move || {
        let (mut numbers, mut error) = (Vec::new(), None);
        for update in subscriber {
            match update {
                Ok(FeedUpdate::Message(message)) => {
                    numbers.push(u32::from_le_bytes(message.bytes[..4].try_into().unwrap()));
                }
                Ok(update) => panic!("{update:?}"),
                Err(ended) => error = Some(ended),
            }
        }
        (numbers, error)
    });
    let publisher = EmbeddedRoot::start(root, "root").unwrap();
    for number in 0..MESSAGES {
        // A root whose only receiver has ended may have ended too.
        if publisher.publish(number.to_le_bytes().to_vec(), 0).is_err() {
            break;
        }
    }
    let _ = publisher.finish();
    desk.join().unwrap()
}

fn broken(error: Option<SubscribeError>) -> BreakCause {
    match error {
        Some(SubscribeError::Role(RoleError::Broken(broken))) => broken.cause,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_signed_feed_reaches_subscribers_that_check_it_whenever_they_release() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("signing.key");
    let public = write_key(&file, [1; 32]);
    for release in [ReleaseAfter::Deadline, ReleaseAfter::Verified] {
        let mut root = settings(1, 1);
        root.trust.signers = vec![public.clone()];
        root.trust.release = release;
        let receiver = root.clone();
        root.trust.signing_key_file = Some(file.clone());
        let (numbers, error) = play(root, receiver);
        assert!(error.is_none(), "{release:?}: {error:?}");
        assert!(numbers.iter().copied().eq(0..MESSAGES), "{release:?}: {} came", numbers.len());
    }
}

#[test]
fn a_feed_of_another_root_ends_by_name_before_a_message_is_released_as_verified() {
    let dir = tempfile::tempdir().unwrap();
    let (own, other) = (dir.path().join("own.key"), dir.path().join("other.key"));
    let (public, stranger) = (write_key(&own, [1; 32]), write_key(&other, [2; 32]));
    let mut root = settings(1, 1);
    root.course.finish_timeout = Duration::from_secs(2);
    let mut receiver = root.clone();
    receiver.trust.signers = vec![public];
    receiver.trust.release = ReleaseAfter::Verified;
    root.trust.signing_key_file = Some(other);
    root.trust.signers = vec![stranger];
    let (numbers, error) = play(root, receiver);
    assert_eq!((numbers, broken(error)), (Vec::new(), BreakCause::WrongSignature));
}

#[test]
fn a_feed_without_signatures_ends_by_name_where_a_subscriber_wants_them() {
    let dir = tempfile::tempdir().unwrap();
    let public = write_key(&dir.path().join("signing.key"), [1; 32]);
    let mut root = settings(1, 1);
    root.course.finish_timeout = Duration::from_secs(2);
    // A signature may be late by the sum of the two.
    root.multicast.membership.root_timeout = Duration::from_millis(1_500);
    root.multicast.repair.gap_timeout = Duration::from_millis(200);
    let mut receiver = root.clone();
    receiver.trust.signers = vec![public];
    let (_, error) = play(root, receiver);
    assert_eq!(broken(error), BreakCause::Unsigned);
}

#[test]
fn a_root_that_receivers_would_refuse_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let (own, other) = (dir.path().join("own.key"), dir.path().join("other.key"));
    let public = write_key(&own, [1; 32]);
    write_key(&other, [2; 32]);
    let mut root = settings(1, 1);
    root.trust.signers = vec![public];
    let said =
        |root: &Settings| EmbeddedRoot::start(root.clone(), "root").err().unwrap().to_string();
    assert!(said(&root).contains("this root has no key to sign with"), "{}", said(&root));
    root.trust.signing_key_file = Some(other);
    assert!(said(&root).contains("is not in trust.signers"), "{}", said(&root));
    root.run.key_file = Some(own.clone());
    root.trust.signing_key_file = Some(own);
    assert!(said(&root).contains("is the shared key"), "{}", said(&root));
}
