//! How far apart frames leave the root.

use std::time::Duration;

use evenfall_core::{Format, Machine, NodeId, Timestamp};
use evenfall_multicast_machine::{Config, Root, RootEvent, RootRun};

fn messages_of_frames(root: &mut Root) -> Vec<u16> {
    let events = core::iter::from_fn(|| root.poll_event());
    events
        .filter_map(|event| match event {
            RootEvent::Framed(frame) => Some(frame.count),
            _ => None,
        })
        .collect()
}

#[test]
fn a_message_after_a_pause_leaves_at_once_and_those_close_behind_it_share_a_frame() {
    let apart = Duration::from_micros(200);
    let mut config = Config::default();
    config.framing.coalesce = apart;
    let start = Timestamp::from_nanos(1_000_000_000);
    let mut root = Root::new(config, NodeId(1), 0, RootRun::new(1, [7; 24]), None, start);
    let publish = |root: &mut Root, at: Duration| {
        root.publish(start + at, Format::OPAQUE, b"message").unwrap();
        root.flush(start + at);
        messages_of_frames(root)
    };
    assert_eq!(publish(&mut root, Duration::ZERO), [1]);
    assert_eq!(publish(&mut root, Duration::from_micros(50)), []);
    assert_eq!(publish(&mut root, Duration::from_micros(150)), []);
    assert!(root.poll_timeout() <= Some(start + apart));
    root.handle_timeout(start + apart);
    assert_eq!(messages_of_frames(&mut root), [2]);
    assert_eq!(publish(&mut root, Duration::from_millis(10)), [1]);
}

#[test]
fn a_message_of_another_format_begins_a_frame_of_its_own() {
    let now = Timestamp::from_nanos(1_000_000_000);
    let mut root = Root::new(Config::default(), NodeId(1), 0, RootRun::new(1, [7; 24]), None, now);
    for format in [1, 1, 2, 1].map(Format) {
        root.publish(now, format, b"message").unwrap();
    }
    root.finish(now);
    assert_eq!(messages_of_frames(&mut root), [2, 1, 1]);
}
