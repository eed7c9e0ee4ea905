//! Lies of a proxy about the messages that it forwards.
//!
//! The proxy has a place in the tree, with the keys that come with it: those of the frames, and
//! those of the nodes below it. It lies to one of its two children and is honest to the other one.
//! A proxy that is honest for long may be changed by whoever breaks into its host, so each lie
//! begins in the middle of a feed.

use bytes::Bytes;
use evenfall_core::node_keys::run_key_id;
use evenfall_core::{MasterKey, NodeId, SyncTime, TrafficClass};
use evenfall_multicast_machine::forging::{forge, forge_all};
use evenfall_multicast_machine::wire::{
    Datagram, DatagramKind, HEADER_BYTES, Hop, OriginHeader, parse,
};
use evenfall_multicast_machine::{ReceiverStatus, ReleaseAfter, SharedKey};

use super::hostile::{
    AttackResult, FALSE, FALSE_SIGNATURE, MESSAGES, OTHER, Outcome, VICTIM, end_feed, framed,
    genuine_message, genuine_messages, judge, publish_messages,
};
use super::{Checked, EPOCH, RANDOM, SignedFeed, SignedFeedPlan};

/// Receivers below the proxy, and the id of the proxy.
const RECEIVERS: u32 = 2;
const PROXY: u32 = 3;
/// A number of a control datagram, and a beat of the root, above all of this run.
const NEWEST: u64 = 1 << 40;

/// What the proxy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProxyLie {
    /// Writes another message into a frame, and seals it anew.
    Change,
    /// Gives the message of an earlier frame the number of the next one.
    Swap,
    /// As `Change`, with signatures that the proxy makes.
    Signature,
    /// Flips a bit of each sealed message.
    Flip,
    /// Sends each second frame before the frame that came first.
    Reorder,
    /// Sends each frame twice.
    Repeat,
    /// Keeps all signatures back.
    Withhold,
    /// Says in a beacon that the feed is over.
    End,
}

impl ProxyLie {
    const ALL: [Self; 8] = [
        Self::Change,
        Self::Swap,
        Self::Signature,
        Self::Flip,
        Self::Reorder,
        Self::Repeat,
        Self::Withhold,
        Self::End,
    ];

    fn words(self) -> &'static str {
        match self {
            Self::Change => "a proxy that changes a message and seals the frame anew",
            Self::Swap => "a proxy that sends an earlier message under the next number",
            Self::Signature => "a proxy that changes a message and makes signatures",
            Self::Flip => "a proxy that flips a bit of each sealed message",
            Self::Reorder => "a proxy that changes the order of frames",
            Self::Repeat => "a proxy that sends each frame twice",
            Self::Withhold => "a proxy that keeps signatures back",
            Self::End => "a proxy that says that the feed is over",
        }
    }

    /// What the victim noticed of a lie that is no break.
    fn count_noticed(self, victim: &ReceiverStatus) -> (u64, &'static str) {
        match self {
            Self::Flip => (victim.refusals.forged, "frames are refused and repaired"),
            Self::Repeat => (victim.tally.duplicates, "repeated frames are dropped"),
            Self::Withhold => (victim.tally.repaired, "frames come from the root by repair"),
            _ => (0, "frames are refused, and messages come in their order"),
        }
    }
}

/// A proxy that lies about the frames for one child.
struct LyingProxy {
    lie: ProxyLie,
    /// The key of the frames, which the root gave the proxy with its place.
    key: SharedKey,
    /// A frame that leaves behind the next one.
    waiting: Option<Bytes>,
    has_begun: bool,
}

impl LyingProxy {
    /// What leaves for a child in the place of a datagram.
    fn alter_datagram(&mut self, child: usize, datagram: Bytes) -> Vec<Bytes> {
        let read = parse(&datagram).expect("a proxy sends datagrams of this wire");
        let (kind, is_live) = (read.fixed.kind, read.fixed.class == TrafficClass::Live);
        if child != VICTIM {
            return vec![datagram];
        }
        // Repair copies are left alone. The victim could ask the root for them.
        let is_message = kind == DatagramKind::Data && is_live;
        let is_first = is_message && !self.has_begun;
        self.has_begun |= is_message;
        match self.lie {
            ProxyLie::Change | ProxyLie::Signature if is_first => {
                vec![self.rewrite(&read, &framed(FALSE))]
            }
            ProxyLie::Swap if is_first => vec![self.rewrite(&read, &framed(&genuine_message(3)))],
            ProxyLie::Signature if kind == DatagramKind::Signature => {
                vec![self.rewrite(&read, &FALSE_SIGNATURE)]
            }
            ProxyLie::Withhold if kind == DatagramKind::Signature => Vec::new(),
            ProxyLie::Flip if is_message => {
                let mut bytes = datagram.to_vec();
                bytes[HEADER_BYTES] ^= 1;
                vec![bytes.into()]
            }
            ProxyLie::Repeat if is_message => vec![datagram.clone(), datagram],
            ProxyLie::Reorder if is_message => match self.waiting.take() {
                Some(first) => vec![datagram, first],
                None => {
                    self.waiting = Some(datagram);
                    Vec::new()
                }
            },
            _ => vec![datagram],
        }
    }

    /// A frame with another body, sealed as the root seals.
    fn rewrite(&self, frame: &Datagram, body: &[u8]) -> Bytes {
        forge(Some(&self.key), &frame.fixed, &frame.hop, body)
    }
}

/// The proxy tells its child, under the key of the two, that the feed ends here.
fn tell_false_end(feed: &mut SignedFeed, shared: &SharedKey, master: &MasterKey, run_id: u64) {
    let (frame, message) = feed.next();
    let numbers = [frame, NEWEST, frame, message];
    let body: Vec<u8> = numbers.iter().flat_map(|word| word.to_le_bytes()).collect();
    let fixed =
        OriginHeader { run_id, ..OriginHeader::control(DatagramKind::Beacon, 0, EPOCH, NEWEST) };
    let sent = SyncTime::from_nanos(3_000_000_000);
    let hop = Hop { from: NodeId(PROXY), level: 1, sent, ..Hop::default() };
    let (own, child) = (master.node(NodeId(PROXY)), NodeId(VICTIM as u32 + 1));
    for datagram in forge_all(shared, &own, child, &fixed, &hop, &body) {
        feed.inject(VICTIM, PROXY, datagram);
    }
}

fn play(lie: ProxyLie, checked: Checked) -> AttackResult {
    let (shared, master) = (SharedKey::new(1, [5; 32]), MasterKey::new([6; 32]));
    let mut feed = SignedFeed::of_plan(&SignedFeedPlan {
        receivers: RECEIVERS,
        key: Some(&shared),
        checked,
        master: Some(&master),
        has_proxy: true,
        ..SignedFeedPlan::default()
    });
    let run_id = u64::from_le_bytes(*RANDOM.first_chunk().expect("24 bytes"));
    publish_messages(&mut feed, 0..MESSAGES);
    if lie == ProxyLie::End {
        tell_false_end(&mut feed, &shared, &master, run_id);
    } else {
        let key = SharedKey::new(run_key_id(0), master.of_run(run_id, 0));
        let mut proxy = LyingProxy { lie, key, waiting: None, has_begun: false };
        feed.alter_forwarding(Box::new(move |child, datagram| {
            proxy.alter_datagram(child, datagram)
        }));
    }
    publish_messages(&mut feed, MESSAGES..2 * MESSAGES);
    let mut outcomes = [Outcome::default(), Outcome::default()];
    outcomes[VICTIM].take(feed.take_events(VICTIM));
    let ends_early = outcomes[VICTIM].is_finished;
    end_feed(&mut feed);
    for receiver in [VICTIM, OTHER] {
        outcomes[receiver].take(feed.take_events(receiver));
    }
    let mut result = judge(lie.words(), checked, &outcomes);
    let is_whole = outcomes[VICTIM].is_whole(&genuine_messages());
    if ends_early {
        result.got = "the victim ends early, without an error".into();
    } else if is_whole {
        let (counted, what) = lie.count_noticed(&feed.receiver(VICTIM).status());
        (result.counted, result.got) = (counted, format!("nothing: {counted} {what}"));
    } else if !result.named && result.handed_on == 0 {
        result.got = "the victim lacks messages".into();
    }
    result
}

/// All lies, on a feed without signatures and on signed feeds. All feeds have node keys.
pub fn play_proxy_lies() -> Vec<AttackResult> {
    let checked = [None, Some(ReleaseAfter::Deadline), Some(ReleaseAfter::Verified)];
    ProxyLie::ALL.into_iter().flat_map(|lie| checked.map(|checked| play(lie, checked))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_a_proxy_makes_up_is_named_with_the_proxy() {
        for lie in [ProxyLie::Change, ProxyLie::Swap, ProxyLie::Signature] {
            let open = play(lie, None);
            assert_eq!((open.handed_on, open.named), (1, false), "{open:?}");
            let at_deadline = play(lie, Some(ReleaseAfter::Deadline));
            let verified = play(lie, Some(ReleaseAfter::Verified));
            assert_eq!(verified.handed_on, 0, "{verified:?}");
            for result in [&at_deadline, &verified] {
                assert!(result.named && result.got.contains("which node 3 sent"), "{result:?}");
                assert_eq!(result.counted, 1, "{result:?}");
            }
            assert!([open, at_deadline, verified].iter().all(|result| result.other_is_whole));
        }
    }

    #[test]
    fn frames_that_a_proxy_spoils_reorders_or_repeats_do_no_harm() {
        for lie in [ProxyLie::Flip, ProxyLie::Reorder, ProxyLie::Repeat, ProxyLie::Withhold] {
            for checked in [None, Some(ReleaseAfter::Deadline), Some(ReleaseAfter::Verified)] {
                let result = play(lie, checked);
                assert!(result.got.starts_with("nothing"), "{result:?}");
                assert!(!result.named && result.other_is_whole, "{result:?}");
                let is_noticed = match lie {
                    ProxyLie::Flip | ProxyLie::Repeat => true,
                    ProxyLie::Withhold => checked.is_some(),
                    _ => false,
                };
                assert_eq!(result.counted > 0, is_noticed, "{result:?}");
            }
        }
    }

    #[test]
    fn a_proxy_may_tell_its_children_a_false_end() {
        let result = play(ProxyLie::End, Some(ReleaseAfter::Verified));
        assert_eq!((result.handed_on, result.named), (0, false), "{result:?}");
        assert!(result.got.contains("ends early") && result.other_is_whole, "{result:?}");
    }
}
