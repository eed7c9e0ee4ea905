//! A feed is played as MoldUDP64 with losses, through a root, to receivers.

use std::thread;
use std::time::Duration;

use crate::common::{free_addresses, receivers, settings};
use evenfall_feed_service::player::{Played, Player, PlayerStage};
use evenfall_feed_service::{Feed, Synthetic};
use evenfall_multicast_service::Settings;
use evenfall_multicast_service::roles::root::{self, RootSummary};

fn stage(settings: &Settings, drop: f64) -> PlayerStage {
    PlayerStage {
        a: settings.feed.mold.unwrap(),
        b: settings.feed.mold_b,
        interface: settings.feed.mold_interface,
        serve: settings.feed.mold_request,
        drop,
        seed: 7,
        linger: Duration::from_millis(700),
        keyed: false,
    }
}

fn feed(messages: u64) -> Feed {
    let synthetic = Synthetic { messages, ..Synthetic::default() };
    Feed { synthetic, rate: Some(8_000.0), ..Feed::default() }
}

/// Plays to a root with two receivers. Returns both summaries, after comparing the contents.
fn run(settings: &Settings, stage: PlayerStage, messages: u64) -> (Played, RootSummary) {
    let receivers = receivers(settings, &[]);
    let mut player = Player::open(&feed(messages), stage).unwrap();
    let player = thread::spawn(move || player.run().unwrap());
    let root = root::run(settings, settings.root().unwrap()).unwrap();
    for receiver in receivers {
        let summary = receiver.join().unwrap();
        assert_eq!(summary.content_hash, root.content_hash, "{}", summary.name);
        assert_eq!(summary.messages, root.messages);
    }
    (player.join().unwrap(), root)
}

#[test]
fn playing_beyond_loopback_without_a_key_is_refused() {
    let mut settings = settings(1, 1);
    settings.feed.mold = Some("10.0.0.1:5000".parse().unwrap());
    let refused = Player::open(&feed(10), stage(&settings, 0.0)).map(drop).unwrap_err();
    assert!(refused.to_string().contains("10.0.0.1:5000 is beyond loopback"), "{refused}");
    let keyed = PlayerStage { keyed: true, ..stage(&settings, 0.0) };
    assert!(Player::open(&feed(10), keyed).is_ok());
}

#[test]
fn a_message_that_fits_no_packet_is_counted() {
    let mut settings = settings(1, 1);
    let [a] = free_addresses();
    settings.feed.mold = Some(a);
    let dir = std::env::temp_dir().join(format!("evenfall-large-{}", std::process::id()));
    let long = [&b"z\0\x01\0\0\0\0\0\0\0\x07"[..], &[0; 1_400]].concat();
    let mut file = Vec::new();
    let first = evenfall_feed_formats::itch::SystemEvent::default().encode();
    for message in [&first[..], &long, &first] {
        evenfall_feed_formats::framed::write_frame(&mut file, message);
    }
    std::fs::write(&dir, file).unwrap();
    let feed = Feed { file: Some(dir.clone()), ..Feed::default() };
    let stage = PlayerStage { linger: Duration::ZERO, ..stage(&settings, 0.0) };
    let mut player = Player::open(&feed, stage).unwrap();
    let played = player.run().unwrap();
    std::fs::remove_file(dir).unwrap();
    assert_eq!((played.messages, played.too_large), (2, 1));
    assert!(player.remarks()[0].contains("1 messages of unknown types"), "{:?}", player.remarks());
}

#[test]
fn two_sides_that_lose_packets_and_a_server_lose_no_message() {
    let mut settings = settings(2, 1);
    let [a, b, server] = free_addresses();
    settings.feed.mold = Some(a);
    settings.feed.mold_b = Some(b);
    settings.feed.mold_request = Some(server);
    settings.feed.mold_from = Some(1);
    // However slow the machine is, no gap shall be given up here.
    settings.feed.mold_gap_timeout = Duration::from_secs(60);
    let (played, root) = run(&settings, stage(&settings, 0.05), 20_000);
    let feed = root.feed.unwrap();
    assert_eq!((root.messages, root.content_hash), (20_000, played.content_hash));
    assert_eq!((feed.delivered, feed.lost, feed.malformed), (20_000, 0, 0));
    assert!(played.dropped_a > 0 && played.dropped_b > 0 && feed.first_b > 0, "{feed:?}");
    assert!(feed.copies_ignored > 10_000, "side B was there: {feed:?}");
}

/// A stranger may send any datagram to the side's address. No datagram may end, move or hold the
/// feed.
#[test]
fn a_stranger_neither_ends_nor_moves_a_live_feed() {
    use evenfall_feed_formats::mold::{SessionId, end_of_session, heartbeat};
    let mut settings = settings(1, 1);
    let [a, server] = free_addresses();
    settings.feed.mold = Some(a);
    // The player may begin before the root listens.
    settings.feed.mold_request = Some(server);
    settings.feed.mold_from = Some(1);
    settings.feed.mold_gap_timeout = Duration::from_secs(60);
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let stranger = thread::spawn(move || {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let ours = SessionId(*b"  evenfall");
        let yesterday = SessionId(*b"  20191230");
        while stopped.recv_timeout(Duration::from_millis(5)).is_err() {
            for packet in [
                end_of_session(yesterday, 1_000),
                end_of_session(ours, 1 << 60),
                end_of_session(ours, 1),
                heartbeat(ours, 1 << 60),
            ] {
                // No socket is bound there before the root listens.
                socket.send_to(&packet, a).ok();
            }
        }
    });
    let (played, root) = run(&settings, stage(&settings, 0.0), 5_000);
    stop.send(()).unwrap();
    stranger.join().unwrap();
    let feed = root.feed.unwrap();
    assert_eq!((root.messages, root.content_hash), (5_000, played.content_hash));
    assert_eq!((feed.delivered, feed.lost, feed.malformed), (5_000, 0, 0));
    assert!(feed.foreign + feed.far + feed.other_sessions > 0, "{feed:?}");
}

#[test]
fn a_group_feeds_several_trees_by_symbol() {
    let mut settings = settings(2, 3);
    let [port] = free_addresses();
    let group = (std::net::Ipv4Addr::new(239, 192, 77, 2), port.port()).into();
    let [server] = free_addresses();
    settings.feed.mold = Some(group);
    settings.feed.mold_interface = Some(std::net::Ipv4Addr::LOCALHOST);
    settings.feed.mold_request = Some(server);
    settings.feed.mold_from = Some(1);
    settings.feed.mold_gap_timeout = Duration::from_secs(60);
    let (played, root) = run(&settings, stage(&settings, 0.0), 5_000);
    assert_eq!(played.messages, 5_000);
    assert!(root.trees.iter().all(|tree| tree.messages > 0), "{:?}", root.trees);
    // The messages that a root of three trees sends when it reads the same generated feed from a
    // file.
    let mut source = evenfall_feed_service::input::open(&feed(5_000)).unwrap();
    let mut hash = evenfall_feed_formats::sharding::ContentHash::new(3);
    while let Some(message) = source.next_message().unwrap() {
        for tree in evenfall_feed_formats::sharding::trees_of(message.shard_key, 3) {
            hash.update(tree as usize, &message.bytes);
        }
    }
    // Each of the day's first events goes to every tree, at its place among the tree's messages.
    assert!(hash.messages() > 5_000);
    assert_eq!(root.messages, hash.messages());
    assert_eq!(root.content_hash, hash.finish_hex());
}

#[test]
fn what_nobody_has_any_more_is_reported_and_passed_over() {
    let mut settings = settings(1, 1);
    let [a] = free_addresses();
    settings.feed.mold = Some(a);
    settings.feed.mold_from = Some(1);
    settings.feed.mold_gap_timeout = Duration::from_millis(20);
    let (played, root) = run(&settings, stage(&settings, 0.05), 5_000);
    let feed = root.feed.unwrap();
    assert!(feed.lost > 0 && feed.gaps > 0 && feed.requests == 0, "{feed:?}");
    assert_eq!(feed.delivered + feed.lost, played.messages);
    assert_eq!(root.messages, feed.delivered);
}
