//! Programs and live feeds that publish to a root by letter, over loopback.

use std::thread;
use std::time::Duration;

use evenfall_core::{EndKeys, MasterKey, NodeId, SharedKey};
use evenfall_feed_service::player::{Player, PlayerStage};
use evenfall_feed_service::{Feed, Synthetic};
use evenfall_multicast_service::roles::{author, root};
use evenfall_multicast_service::settings::{MulticastNode, PublisherSettings, RoleName};
use evenfall_multicast_service::{Publisher, PublisherError, Settings};
use evenfall_multicast_sessions::letter_key;
use evenfall_multicast_sessions::producer::wire::{
    ProduceRequest, ProducerDirection, ProducerEnvelope,
};

use crate::common::{free_addresses, receivers, settings};

/// Adds a node of this role.
fn add(settings: &mut Settings, name: &str, id: u32, role: RoleName) {
    let [address] = free_addresses();
    let node = settings.nodes[0].clone();
    settings.nodes.push(MulticastNode { name: name.into(), id: NodeId(id), role, address, ..node });
}

#[test]
fn a_program_learns_the_number_of_each_message_and_another_start_goes_on_behind_it() {
    let mut settings = settings(2, 1);
    add(&mut settings, "desk", 9, RoleName::Author);
    // Two processes of the author overlap, so that the settings leave the port open.
    settings.nodes.last_mut().unwrap().address.set_port(0);
    let receivers = receivers(&settings, &[]);
    let of_root = settings.clone();
    let root = thread::spawn(move || root::run(&of_root, of_root.root().unwrap()).unwrap());
    let roots = [settings.nodes[0].address];
    let authorship = PublisherSettings::new(&roots, "127.0.0.1:0".parse().unwrap(), NodeId(9));
    let first = Publisher::of(&authorship).unwrap();
    assert_eq!(first.before().unwrap(), 0);
    for number in 0..20 {
        assert_eq!(first.publish(format!("order {number}")).unwrap(), number);
    }
    // More messages than may wait for their numbers at one time.
    let pending: Vec<_> = (0..3_000).map(|n: u32| first.send(n.to_le_bytes().to_vec())).collect();
    for (number, pending) in (20..).zip(pending) {
        assert_eq!(pending.unwrap().number().unwrap(), number);
    }
    let too_long = first.publish(vec![0; 70_000]);
    assert!(matches!(too_long, Err(PublisherError::TooLong { bytes: 70_000 })));
    let second = Publisher::of(&authorship).unwrap();
    assert_eq!(second.before().unwrap(), 3_020);
    assert_eq!(second.publish("behind them").unwrap(), 3_020);
    let refused = first.finish().map(drop).expect_err("its line is over");
    assert!(refused.to_string().contains("under the name of this author"), "{refused}");
    let summary = second.finish().unwrap();
    assert_eq!((summary.before, summary.messages, summary.unanswered), (3_020, 1, 0));
    let root = root.join().unwrap();
    assert_eq!(root.messages, 3_021);
    for receiver in receivers {
        assert_eq!(receiver.join().unwrap().content_hash, root.content_hash);
    }
}

/// A letter without a message: 67 bytes, as anybody can write them.
fn forged(name: u64, run: u64, number: u64) -> Vec<u8> {
    let mut letter = b"EL\x02\x01\0\0\0\0".to_vec();
    let words = [name, 12_345, 0, run, number, 0, 0];
    words.iter().for_each(|word| letter.extend(u64::to_le_bytes(*word)));
    letter.extend([0; 3]);
    letter
}

#[test]
fn a_stranger_gets_no_answer_and_ends_no_author() {
    let mut settings = settings(1, 1);
    add(&mut settings, "desk", 9, RoleName::Author);
    let author = settings.node("desk").unwrap().clone();
    let receivers = receivers(&settings, &[]);
    let (of_root, of_author) = (settings.clone(), settings.clone());
    let root = thread::spawn(move || root::run(&of_root, of_root.root().unwrap()).unwrap());
    let author = Publisher::start(of_author, &author.name).unwrap();
    assert_eq!(author.publish("before the stranger").unwrap(), 0);
    let stranger = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    stranger.send_to(&forged(10, 0, 1), settings.nodes[0].address).unwrap();
    let answered = stranger.recv_from(&mut [0; 2_000]);
    assert!(answered.is_err(), "a stranger is told the run: {answered:?}");
    // Without an answer the stranger can only guess the run.
    stranger.send_to(&forged(10, 7, 2), settings.nodes[0].address).unwrap();
    assert_eq!(author.publish("behind the stranger").unwrap(), 1);
    author.finish().unwrap();
    let root = root.join().unwrap();
    assert_eq!((root.messages, root.malformed), (2, 2));
    for receiver in receivers {
        assert_eq!(receiver.join().unwrap().content_hash, root.content_hash);
    }
}

/// A letter without a message in the name of an author, under this key.
fn sealed(name: u64, key: &SharedKey) -> Vec<u8> {
    let (kind, number) = (ProducerDirection::ToRoot, 1);
    let envelope = ProducerEnvelope { kind, name, author: 12_345, life: 0, run_id: 0, number };
    let ask = ProduceRequest { have: 0, place: 0, is_end: false, messages: Vec::new() };
    let (head, body) = envelope.seal(Some(key), ask.encode());
    [head.as_slice(), &body].concat()
}

#[test]
fn an_author_with_a_node_key_publishes_and_no_other_node_writes_in_its_name() {
    let mut settings = settings(1, 1);
    settings.run.key = Some(SharedKey::new(1, [5; 32]));
    for (name, id, role) in [
        ("standby-1", 7, RoleName::Standby),
        ("standby-2", 8, RoleName::Standby),
        ("desk", 9, RoleName::Author),
    ] {
        add(&mut settings, name, id, role);
    }
    let master = MasterKey::new([6; 32]);
    let with = |keys: EndKeys| {
        let mut settings = settings.clone();
        settings.run.node_keys = Some(keys);
        settings
    };
    let of_node = |id| with(EndKeys::Node(master.node(NodeId(id))));
    let receivers = receivers(&of_node(1), &[]);
    let run_root = |name: &'static str| {
        let settings = with(EndKeys::Root(master.clone()));
        thread::spawn(move || root::run(&settings, settings.node(name).unwrap()).unwrap())
    };
    let roots = ["root", "standby-1", "standby-2"].map(run_root);
    let author = Publisher::start(of_node(9), "desk").unwrap();
    assert_eq!(author.publish("before the participant").unwrap(), 0);
    let participant = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    participant.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let keys = [SharedKey::new(1, [5; 32]), letter_key(&master.node(NodeId(1)))];
    for key in keys {
        participant.send_to(&sealed(10, &key), settings.nodes[0].address).unwrap();
        let answered = participant.recv_from(&mut [0; 2_000]);
        assert!(answered.is_err(), "another node writes as the author: {answered:?}");
    }
    // A node writes in its own name, and is no author of the settings.
    let own = letter_key(&master.node(NodeId(1)));
    participant.send_to(&sealed(2, &own), settings.nodes[0].address).unwrap();
    assert!(participant.recv_from(&mut [0; 2_000]).is_err());
    assert_eq!(author.publish("behind the participant").unwrap(), 1);
    author.finish().unwrap();
    let roots = roots.map(|root| root.join().unwrap());
    assert_eq!((roots[0].messages, roots[0].malformed), (2, 3));
    for receiver in receivers {
        assert_eq!(receiver.join().unwrap().content_hash, roots[0].content_hash);
    }
}

#[test]
fn a_live_feed_has_standbys_when_an_author_takes_it_in() {
    const MESSAGES: u64 = 4_000;
    let mut settings = settings(1, 1);
    let [live, again] = free_addresses();
    (settings.feed.mold, settings.feed.mold_request) = (Some(live), Some(again));
    settings.feed.mold_from = Some(1);
    add(&mut settings, "standby-1", 7, RoleName::Standby);
    add(&mut settings, "standby-2", 8, RoleName::Standby);
    add(&mut settings, "desk", 9, RoleName::Author);
    let receivers = receivers(&settings, &[]);
    let roots = settings.publishing().into_iter().cloned().collect::<Vec<_>>();
    let run_root = |node: MulticastNode| {
        let settings = settings.clone();
        thread::spawn(move || root::run(&settings, &node).unwrap())
    };
    let roots: Vec<_> = roots.into_iter().map(run_root).collect();
    let of_author = settings.clone();
    let author =
        thread::spawn(move || author::run(&of_author, of_author.node("desk").unwrap()).unwrap());
    let synthetic = Synthetic { messages: MESSAGES, ..Synthetic::default() };
    let feed = Feed { synthetic, rate: Some(4_000.0), ..Feed::default() };
    let stage = PlayerStage {
        a: live,
        b: None,
        interface: None,
        serve: Some(again),
        drop: 0.02,
        seed: 7,
        linger: Duration::from_millis(700),
        keyed: false,
    };
    let played = Player::open(&feed, stage).unwrap().run().unwrap();
    assert_eq!(played.messages, MESSAGES);
    let author = author.join().unwrap();
    assert_eq!((author.messages, author.unanswered), (MESSAGES, 0));
    let hashes: Vec<String> = roots.into_iter().map(|r| r.join().unwrap().content_hash).collect();
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
    for receiver in receivers {
        assert_eq!(receiver.join().unwrap().content_hash, hashes[0]);
    }
}

#[test]
fn settings_that_authors_cannot_have_are_refused_by_name() {
    let refused = |sets: &[&str], more: &str| {
        let text = format!(
            "[[node]]\nname = \"r\"\nid = 0\nrole = \"root\"\naddress = \"127.0.0.1:9000\"\n\
             [[node]]\nname = \"a\"\nid = 1\nrole = \"author\"\naddress = \"127.0.0.1:0\"\n{more}"
        );
        let sets: Vec<String> = sets.iter().map(ToString::to_string).collect();
        Settings::parse(&text, "e.toml", std::iter::empty(), &sets).map(drop)
    };
    assert!(refused(&[], "").is_ok());
    let said = refused(&["run.trees=2"], "").expect_err("letters name no tree").to_string();
    assert!(said.contains("a run with standbys or authors has one tree"), "{said}");
    let more = "[[node]]\nname = \"s\"\nid = 2\nrole = \"standby\"\naddress = \"127.0.0.1:9001\"\n";
    let said = refused(&[], more).expect_err("one standby").to_string();
    assert!(said.contains("there must be 2 or 4"), "{said}");
}
