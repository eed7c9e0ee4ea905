//! Attacks of a subscriber that holds the shared key, on another receiver of the same feed.
//!
//! The attacker makes datagrams that the shared key authenticates, and sends them from the address
//! of the victim's parent. On a network that does not check source addresses, any host can do so;
//! a proxy that lies needs no false address.

use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{Format, NodeId, SyncTime, TrafficClass};
use evenfall_multicast_machine::forging::forge;
use evenfall_multicast_machine::wire::{DatagramKind, Hop, OriginHeader};
use evenfall_multicast_machine::{ReceiverEvent, ReleaseAfter, SharedKey};
use serde::Serialize;

use super::{Checked, EPOCH, SignedFeed};

/// The receiver that is attacked, and the one that is not.
pub(super) const VICTIM: usize = 0;
pub(super) const OTHER: usize = 1;
/// Messages before and after the attack.
pub(super) const MESSAGES: u64 = 40;
/// What the attacker wants the victim to believe.
pub(super) const FALSE: &[u8] = b"a trade that never was";
/// Time between two messages.
const EVERY: Duration = Duration::from_micros(700);
/// Time for signatures that do not come, and for the end of the stream.
const PATIENCE: Duration = Duration::from_secs(8);
/// Turns in which [`PATIENCE`] passes, so that beacons come in between.
const STEPS: u32 = 1_000;
/// The body of a signature of one frame, which no root has made.
pub(super) const FALSE_SIGNATURE: [u8; 116] = {
    let mut body = [9; 116];
    (body[0], body[1], body[2], body[3]) = (1, 0, 0, 0);
    body
};

/// One kind of attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    /// A false message under the number of the next frame, before the root's own frame comes.
    Data,
    /// False messages behind the last frame of the feed.
    Tail,
    /// A frame of the feed under another number.
    Replay,
    /// A false message, and a signature that the attacker makes.
    Signature,
    /// An order that takes the victim out of the tree.
    Order,
}

/// An attack and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AttackResult {
    /// What the attacker sent.
    pub attack: &'static str,
    /// How the receivers check the feed: `none`, `deadline` or `verified`.
    pub checked: &'static str,
    /// What the attacker got.
    pub got: String,
    /// False messages that the victim handed on.
    pub handed_on: u64,
    /// Breaks that the victim counted, or what else it noticed of a lie: refused, repeated or
    /// repaired frames.
    pub counted: u64,
    /// Whether the victim noticed and named the attack.
    pub named: bool,
    /// Whether the other receiver released the whole feed and nothing else.
    pub other_is_whole: bool,
}

fn words(kind: Attack) -> &'static str {
    match kind {
        Attack::Data => "a false message under the number of the next frame",
        Attack::Tail => "a false message behind the end of the feed",
        Attack::Replay => "a frame of the feed again, under the next number",
        Attack::Signature => "a false message with a signature of the attacker",
        Attack::Order => "an order of the root that takes the victim out",
    }
}

/// The datagram of an attack in place of frame `number`.
pub(super) fn forged_datagram(
    key: &SharedKey,
    kind: DatagramKind,
    number: u64,
    message: u64,
    body: &[u8],
) -> Bytes {
    let is_frame = kind.is_frame();
    let now = SyncTime::from_nanos(3_000_000_000);
    let fixed = OriginHeader {
        class: if is_frame { TrafficClass::Live } else { TrafficClass::Control },
        count: u16::from(kind == DatagramKind::Data),
        run_id: u64::from_le_bytes([7; 8]),
        first_message: message,
        origin: if is_frame { now } else { SyncTime::ZERO },
        deadline: (kind == DatagramKind::Data).then_some(now),
        format: Format::OPAQUE,
        ..OriginHeader::control(kind, 0, EPOCH, number)
    };
    let hop = Hop { from: NodeId(0), sent: now, ..Hop::default() };
    forge(Some(key), &fixed, &hop, body)
}

/// The body of a frame of one message.
pub(super) fn framed(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u16).to_le_bytes()[..], message].concat()
}

/// The messages that a receiver handed on, and the break that ended it.
#[derive(Default)]
pub(super) struct Outcome {
    /// With their numbers.
    pub(super) messages: Vec<(u64, Bytes)>,
    pub(super) broken: Option<String>,
    is_evicted: bool,
    pub(super) is_finished: bool,
}

impl Outcome {
    pub(super) fn take(&mut self, events: Vec<ReceiverEvent>) {
        for event in events {
            match event {
                ReceiverEvent::Released(release) => {
                    self.messages.extend((release.first_message..).zip(release.messages));
                }
                ReceiverEvent::Broken(broken) => self.broken = Some(broken.to_string()),
                ReceiverEvent::Evicted(_) => self.is_evicted = true,
                ReceiverEvent::Finished => self.is_finished = true,
                _ => {}
            }
        }
    }

    /// Whether the receiver released the whole feed and nothing else.
    pub(super) fn is_whole(&self, genuine: &[Bytes]) -> bool {
        self.is_finished && self.messages.iter().map(|(_, message)| message).eq(genuine)
    }
}

/// The message of this number.
pub(super) fn genuine_message(number: u64) -> Bytes {
    format!("trade {number}").into()
}

/// The root publishes messages with these numbers.
pub(super) fn publish_messages(feed: &mut SignedFeed, numbers: core::ops::Range<u64>) {
    for number in numbers {
        feed.publish(&genuine_message(number));
        feed.pass(EVERY);
    }
}

/// The feed ends, and all have time for what is still missing.
pub(super) fn end_feed(feed: &mut SignedFeed) {
    feed.finish();
    (0..STEPS).for_each(|_| feed.pass(PATIENCE / STEPS));
}

fn play(kind: Attack, checked: Checked) -> AttackResult {
    let key = SharedKey::new(1, [5; 32]);
    let mut feed = SignedFeed::new(2, Some(&key), checked);
    let mut outcomes = [Outcome::default(), Outcome::default()];
    publish_messages(&mut feed, 0..MESSAGES);
    let attack = |feed: &mut SignedFeed| {
        let (frame, first) = feed.next();
        let mut send = |kind, number, first, body: &[u8]| {
            feed.inject(VICTIM, 0, forged_datagram(&key, kind, number, first, body));
        };
        match kind {
            Attack::Data | Attack::Tail => send(DatagramKind::Data, frame, first, &framed(FALSE)),
            Attack::Replay => send(DatagramKind::Data, frame, first, &framed(&genuine_message(3))),
            Attack::Signature => {
                send(DatagramKind::Data, frame, first, &framed(FALSE));
                send(DatagramKind::Signature, frame + 1, first + 1, &FALSE_SIGNATURE);
            }
            Attack::Order => {
                let body = [1u32.to_le_bytes().to_vec(), vec![1]].concat();
                send(DatagramKind::Evict, 1 << 40, 0, &body);
            }
        }
    };
    if kind != Attack::Tail {
        attack(&mut feed);
    }
    publish_messages(&mut feed, MESSAGES..2 * MESSAGES);
    if kind == Attack::Tail {
        attack(&mut feed);
    }
    end_feed(&mut feed);
    for receiver in [VICTIM, OTHER] {
        outcomes[receiver].take(feed.take_events(receiver));
    }
    judge(words(kind), checked, &outcomes)
}

/// All messages of a feed.
pub(super) fn genuine_messages() -> Vec<Bytes> {
    (0..2 * MESSAGES).map(genuine_message).collect()
}

/// What the attacker got.
pub(super) fn judge(
    attack: &'static str,
    checked: Checked,
    outcomes: &[Outcome; 2],
) -> AttackResult {
    let (genuine, [victim, other]) = (genuine_messages(), outcomes);
    let is_false =
        |(number, message): &&(u64, Bytes)| genuine.get(*number as usize) != Some(message);
    let handed_on = victim.messages.iter().filter(is_false).count() as u64;
    let got = match (&victim.broken, handed_on, victim.is_evicted) {
        (Some(broken), 0, _) => format!("nothing: the victim ends by name: {broken}"),
        (Some(broken), n, _) => format!("{n} messages released, then the victim ends: {broken}"),
        (None, _, true) => "the victim loses its place in the tree".into(),
        (None, 0, false) => "nothing".into(),
        (None, n, false) => format!("{n} messages released as the root's, unnoticed"),
    };
    AttackResult {
        attack,
        checked: match checked {
            None => "none",
            Some(ReleaseAfter::Deadline) => "deadline",
            Some(ReleaseAfter::Verified) => "verified",
        },
        got,
        handed_on,
        counted: u64::from(victim.broken.is_some()),
        named: victim.broken.is_some(),
        other_is_whole: other.is_whole(&genuine),
    }
}

/// All attacks, on a feed without signatures and on signed feeds.
pub fn play_attacks() -> Vec<AttackResult> {
    let kinds = [Attack::Data, Attack::Replay, Attack::Tail, Attack::Signature, Attack::Order];
    let checked = [None, Some(ReleaseAfter::Deadline), Some(ReleaseAfter::Verified)];
    kinds.into_iter().flat_map(|kind| checked.map(|checked| play(kind, checked))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscriber_that_forges_data_is_believed_without_signatures_and_named_with_them() {
        for kind in [Attack::Data, Attack::Replay, Attack::Signature] {
            let open = play(kind, None);
            assert!(open.handed_on > 0 && !open.named, "{open:?}");
            assert!(open.other_is_whole);
            let at_deadline = play(kind, Some(ReleaseAfter::Deadline));
            assert!(at_deadline.named && at_deadline.other_is_whole, "{at_deadline:?}");
            let verified = play(kind, Some(ReleaseAfter::Verified));
            assert!(verified.named && verified.other_is_whole, "{verified:?}");
            assert_eq!(verified.handed_on, 0, "{verified:?}");
        }
    }

    #[test]
    fn a_message_behind_the_end_of_the_feed_is_never_released_as_verified() {
        let verified = play(Attack::Tail, Some(ReleaseAfter::Verified));
        assert_eq!((verified.handed_on, verified.named), (0, true), "{verified:?}");
        assert!(play(Attack::Tail, Some(ReleaseAfter::Deadline)).named);
        assert!(play(Attack::Tail, None).handed_on > 0);
    }

    #[test]
    fn the_table_of_attacks_is_that_of_the_results() {
        let wanted = [
            ("data", [(1, false), (1, true), (0, true)]),
            ("replay", [(1, false), (1, true), (0, true)]),
            ("tail", [(1, false), (1, true), (0, true)]),
            ("signature", [(1, false), (0, true), (0, true)]),
            ("order", [(0, false), (0, false), (0, false)]),
        ];
        let results = play_attacks();
        for ((name, wanted), found) in wanted.iter().zip(results.chunks(3)) {
            let outcome = found.iter().map(|result| (result.handed_on, result.named));
            assert!(outcome.eq(wanted.iter().copied()), "{name}: {found:?}");
            assert!(found.iter().all(|result| result.other_is_whole), "{name}: {found:?}");
        }
    }

    #[test]
    fn orders_are_not_signed() {
        let order = play(Attack::Order, Some(ReleaseAfter::Verified));
        assert!(!order.named && order.got.contains("loses its place"), "{order:?}");
        assert_eq!(order.handed_on, 0);
    }
}
