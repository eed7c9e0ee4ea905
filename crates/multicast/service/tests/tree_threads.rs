//! Receivers of several trees with a thread and a socket for each tree.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;

use crate::common::settings;
use evenfall_core::{SharedKey, SyncTime};
use evenfall_feed_service::{Feed, Synthetic};
use evenfall_multicast_machine::Release;
use evenfall_multicast_service::roles::receiver::{ReceiverSummary, Sink, run};
use evenfall_multicast_service::roles::root::{self, RootSummary};
use evenfall_multicast_service::settings::RoleName;
use evenfall_multicast_service::{RoleError, Settings};
use evenfall_runtime::settings::TreeThreading;

/// Notes the threads that release the messages of each tree.
#[derive(Default)]
struct ThreadSink {
    by_tree: BTreeMap<u32, BTreeSet<String>>,
    messages: u64,
    stop_after: Option<u64>,
}

impl Sink for ThreadSink {
    fn released(&mut self, release: &Release, _: SyncTime) {
        let name = thread::current().name().unwrap_or_default().to_owned();
        self.by_tree.entry(release.stream).or_default().insert(name);
        self.messages += u64::from(release.count);
    }

    fn lost(&mut self, stream: u32, first: Option<u64>, messages: Option<u64>) {
        panic!("tree {stream}: {messages:?} messages lost from {first:?}");
    }

    fn wants_to_stop(&self) -> bool {
        self.stop_after.is_some_and(|messages| self.messages >= messages)
    }
}

fn threaded(messages: u64) -> Settings {
    let mut settings = settings(2, 2);
    settings.io.threads = TreeThreading::Tree;
    let synthetic = Synthetic { messages, ..Synthetic::default() };
    settings.feed = Feed { synthetic, rate: Some(8_000.0), ..Feed::default() };
    settings
}

/// Runs the root and its receivers. Returns what each has seen.
fn play(
    settings: &Settings,
    threads_of_root: TreeThreading,
) -> (RootSummary, Vec<(ReceiverSummary, ThreadSink)>) {
    let nodes = settings.nodes.iter().filter(|node| node.role == RoleName::Receiver);
    let receivers: Vec<_> = nodes
        .map(|node| {
            let (settings, node) = (settings.clone(), node.clone());
            let role = thread::Builder::new().name("role".into());
            let run = move || {
                let mut sink = ThreadSink::default();
                (run(&settings, &node, &mut sink).unwrap(), sink)
            };
            role.spawn(run).unwrap()
        })
        .collect();
    let mut settings = settings.clone();
    settings.io.threads = threads_of_root;
    let root = root::run(&settings, settings.root().unwrap()).unwrap();
    (root, receivers.into_iter().map(|receiver| receiver.join().unwrap()).collect())
}

fn check(root: &RootSummary, (summary, sink): &(ReceiverSummary, ThreadSink)) {
    assert_eq!(summary.content_hash, root.content_hash, "{}", summary.name);
    assert_eq!((summary.messages, sink.messages), (root.messages, root.messages));
    assert!(summary.trees.iter().all(|tree| tree.tally.lost == 0 && tree.tally.released > 0));
    assert_eq!(summary.threads.iter().map(|thread| thread.tree).collect::<Vec<_>>(), [0, 1]);
    let names = |name: &str| BTreeSet::from([name.to_owned()]);
    let expected = BTreeMap::from([(0, names("role")), (1, names("evenfall-tree-1"))]);
    assert_eq!(sink.by_tree, expected, "each tree releases on its own thread");
}

#[test]
fn the_copies_of_each_tree_come_from_and_to_the_socket_of_its_thread() {
    let (root, receivers) = play(&threaded(5_000), TreeThreading::Tree);
    assert_eq!((root.malformed, root.trees.len()), (0, 2));
    assert!(root.copies > 0, "the threads of the root count what they send");
    for receiver in &receivers {
        check(&root, receiver);
        assert_eq!(receiver.0.malformed, 0);
        for thread in &receiver.0.threads {
            assert!(thread.received > 0 && thread.strayed == 0 && thread.cpu_us > 0, "{thread:?}");
        }
    }
}

#[test]
fn sealed_frames_of_both_trees_in_one_buffer_come_to_their_threads() {
    let mut settings = threaded(5_000);
    settings.run.key = Some(SharedKey::new(1, [7; 32]));
    // One socket of the root sends both trees, also in one segmented buffer. A frame may then
    // overtake the place that the root gave, and is refused and repaired.
    let (root, receivers) = play(&settings, TreeThreading::One);
    receivers.iter().for_each(|receiver| check(&root, receiver));
}

#[test]
fn a_receiver_that_stops_ends_all_its_threads() {
    let mut settings = threaded(10_000);
    settings.course.finish_timeout = std::time::Duration::from_secs(2);
    settings.nodes.pop();
    let node = settings.nodes[1].clone();
    let receiver = thread::spawn({
        let settings = settings.clone();
        move || {
            let mut sink = ThreadSink { stop_after: Some(200), ..ThreadSink::default() };
            let summary = run(&settings, &node, &mut sink).unwrap();
            // The threads of the trees are joined before `run` returns the counters of both.
            (summary, sink.messages)
        }
    });
    let root = thread::spawn(move || root::run(&settings, settings.root().unwrap()));
    let (summary, messages) = receiver.join().unwrap();
    assert_eq!(summary.ended, "asked to stop");
    assert!(messages >= 200 && messages == summary.messages, "{messages}");
    // The root goes on without receivers until its feed has ended.
    match root.join().unwrap() {
        Ok(_) | Err(RoleError::Unfinished { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}
