//! What must hold when the lead changes.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use evenfall_multicast_machine::ReceiverEvent;
use evenfall_multicast_machine::wire::{self, DatagramKind};
use evenfall_sim::{NodeIndex, Packet, Run, Seen, SimTime, Violation, named_variants};

use super::FEED_UNTIL;
use super::places::{self, Places};

named_variants! {
    /// What must hold.
    pub enum Check {
        /// No message number has two contents, at any root and any receiver.
        Unique,
        /// Every receiver gets every acknowledged message, in order and once.
        Acknowledged,
        /// No frame leaves a root before the voters agree on it.
        Agreed,
        /// All copies of a frame of an epoch are the same bytes, so that no nonce seals two bodies.
        Nonce,
        /// A node that has obeyed an epoch obeys no earlier one.
        Fenced,
        /// When the faults are over, messages are acknowledged and reach every receiver again.
        Continues,
        /// After the last message, the root that leads learns that all receivers have the feed.
        Ends,
        /// A root that is started again learns that the others go on without it.
        Once,
        /// When the leader dies alone, all receivers have messages of its successor in a second.
        Prompt,
        /// The places of an author are in the feed in order and once, with the numbers that the
        /// author was told.
        Places,
        /// An author learns the numbers of all its messages, and that its line is over.
        Answered,
        /// Every message of a signed feed is verified, whichever root signed it.
        Signed,
    }
}

/// Time from the death of a leader to the first message of its successor.
const PROMPT: Duration = Duration::from_secs(1);
/// The last message that must be acknowledged may be this old at the end of the feed.
const LAST_WITHIN: Duration = Duration::from_millis(100);
/// Violations kept; the first says most.
const VIOLATIONS_MAX: usize = 20;
/// Offsets in a datagram, see [`wire`].
const KIND: usize = 3;
const CLASS: usize = 4;
const EPOCH: core::ops::Range<usize> = 12..16;
const SEQUENCE: core::ops::Range<usize> = 24..32;
const FIXED_BYTES: usize = 57;

/// One receiver.
#[derive(Debug, Default)]
struct Line {
    next: Option<u64>,
    released: u64,
    /// When the first message of a root other than the first one was released.
    succeeded: Option<SimTime>,
}

/// All checks of one run.
#[derive(Debug)]
pub struct TakeoverChecks {
    /// Whether the first leader dies on a network that never errs.
    is_alone: bool,
    content: BTreeMap<u64, Bytes>,
    acknowledged: BTreeMap<u64, SimTime>,
    /// The frame behind the last that any root called agreed.
    agreed: u64,
    copies: BTreeMap<(u32, u64), Vec<u8>>,
    obeyed: BTreeMap<NodeIndex, u32>,
    lines: BTreeMap<NodeIndex, Line>,
    died: Option<SimTime>,
    takeovers: u64,
    has_finished: bool,
    /// Roots that were started again, and whether they were told that they were replaced.
    again: BTreeMap<NodeIndex, bool>,
    /// The lines of the authors.
    pub places: Places,
    violations: Vec<Violation<Check>>,
}

fn word<const N: usize>(datagram: &[u8], at: core::ops::Range<usize>) -> [u8; N] {
    datagram.get(at).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
}

impl TakeoverChecks {
    /// Checks that have seen nothing.
    pub fn new(is_alone: bool, authors: core::ops::Range<u32>) -> Self {
        Self {
            is_alone,
            content: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            agreed: 0,
            copies: BTreeMap::new(),
            obeyed: BTreeMap::new(),
            lines: BTreeMap::new(),
            died: None,
            takeovers: 0,
            has_finished: false,
            again: BTreeMap::new(),
            places: Places::new(authors),
            violations: Vec::new(),
        }
    }

    fn fail(&mut self, check: Check, at: SimTime, node: NodeIndex, what: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(Violation::at(check, at, node, what));
        }
    }

    /// A root leads from now on.
    pub fn took_over(&mut self, epoch: u32) {
        self.takeovers += u64::from(epoch > super::EPOCH);
    }

    /// A root crashed.
    pub fn crashed(&mut self, at: SimTime, node: NodeIndex) {
        self.again.remove(&node);
        if node.0 == 0 {
            self.died.get_or_insert(at);
        }
    }

    /// A root is started again.
    pub fn started_again(&mut self, node: NodeIndex) {
        self.again.insert(node, false);
    }

    /// A root learned that the others go on without it.
    pub fn replaced(&mut self, seen: Seen) {
        self.again.insert(seen.node, true);
    }

    /// A root learned that all receivers have the feed.
    pub fn finished(&mut self) {
        self.has_finished = true;
    }

    /// A voter was away for too long.
    pub fn forgotten(&mut self, seen: Seen) {
        self.fail(Check::Continues, seen.at, seen.node, "the others have forgotten cycles".into());
    }

    /// A root told that a frame is agreed.
    pub fn agreed(&mut self, seen: Seen, sequence: u64) {
        if sequence > self.agreed {
            let what = format!("frame {sequence} is agreed after {}", self.agreed);
            self.fail(Check::Agreed, seen.at, seen.node, what);
        }
        self.agreed = self.agreed.max(sequence + 1);
    }

    /// A root that leads acknowledged a message.
    pub fn acknowledged(&mut self, seen: Seen, number: u64, message: Vec<u8>) {
        self.is_content(seen, number, message.into());
        self.acknowledged.entry(number).or_insert(seen.at);
    }

    /// The line of an author has begun.
    pub fn begun(&mut self, seen: Seen, before: u64) {
        if let Err(what) = self.places.begun(seen.node, before) {
            self.fail(Check::Places, seen.at, seen.node, what);
        }
    }

    /// An author learned the number of a message.
    pub fn answered(&mut self, seen: Seen, place: u64, number: u64) {
        match self.places.answer(seen.node, place, number) {
            Ok(message) => self.acknowledged(seen, number, message),
            Err(what) => self.fail(Check::Places, seen.at, seen.node, what),
        }
    }

    fn is_content(&mut self, seen: Seen, number: u64, message: Bytes) {
        let known = self.content.entry(number).or_insert_with(|| message.clone());
        if *known != message {
            let what = format!("message {number} is {message:?}, and was {known:?}");
            self.fail(Check::Unique, seen.at, seen.node, what);
        }
    }

    /// A receiver told something.
    pub fn receiver(&mut self, seen: Seen, event: ReceiverEvent) {
        let line = self.lines.entry(seen.node).or_default();
        match event {
            ReceiverEvent::Placed(place) => {
                line.next.get_or_insert(place.start_message);
            }
            ReceiverEvent::Released(release) => {
                let next = line.next.replace(release.first_message + u64::from(release.count));
                line.released += u64::from(release.count);
                if next != Some(release.first_message) {
                    let what = format!("message {} when {next:?} is next", release.first_message);
                    self.fail(Check::Acknowledged, seen.at, seen.node, what);
                }
                for (number, message) in (release.first_message..).zip(release.messages) {
                    let is_new = match places::read(&message) {
                        // No dead root has sent what was published after its death.
                        Some((_, _, published)) => self.died.is_some_and(|at| published > at),
                        None => message.first().is_some_and(|root| *root > 0),
                    };
                    if is_new {
                        let line = self.lines.entry(seen.node).or_default();
                        line.succeeded.get_or_insert(seen.at);
                    }
                    self.is_content(seen, number, message);
                }
            }
            ReceiverEvent::Broken(broken) => {
                self.fail(Check::Signed, seen.at, seen.node, broken.to_string());
            }
            ReceiverEvent::Lost { .. }
            | ReceiverEvent::Restarted { .. }
            | ReceiverEvent::RootLost => {
                let what = format!("{event:?}");
                self.fail(Check::Acknowledged, seen.at, seen.node, what);
            }
            _ => {}
        }
    }

    /// A datagram left a node.
    pub fn sent(&mut self, packet: &Packet, datagram: &[u8]) {
        if !datagram.starts_with(&wire::MAGIC.to_le_bytes()) || datagram.len() < wire::HEADER_BYTES
        {
            return;
        }
        let epoch = u32::from_le_bytes(word(datagram, EPOCH));
        match datagram[KIND] {
            kind if kind == DatagramKind::Data as u8 || kind == DatagramKind::Signature as u8 => {
                let sequence = u64::from_le_bytes(word(datagram, SEQUENCE));
                if sequence >= self.agreed {
                    let what = format!("frame {sequence} leaves when {} is agreed", self.agreed);
                    self.fail(Check::Agreed, packet.at, packet.from, what);
                }
                let mut bytes = datagram[..FIXED_BYTES].to_vec();
                bytes[CLASS] = 0;
                bytes.extend_from_slice(&datagram[wire::HEADER_BYTES..]);
                let known = self.copies.entry((epoch, sequence)).or_insert_with(|| bytes.clone());
                if *known != bytes {
                    let what = format!("frame {sequence} of epoch {epoch} is other bytes");
                    self.fail(Check::Nonce, packet.at, packet.from, what);
                }
            }
            kind if kind == DatagramKind::Assigned as u8 => {
                let obeyed = self.obeyed.entry(packet.from).or_default();
                let before = core::mem::replace(obeyed, epoch.max(*obeyed));
                if epoch < before {
                    let what = format!("obeys epoch {epoch} after epoch {before}");
                    self.fail(Check::Fenced, packet.at, packet.from, what);
                }
            }
            _ => {}
        }
    }

    /// Looks at the whole run.
    pub fn judge(mut self, receivers: impl Iterator<Item = NodeIndex>, run: &mut Run<Check>) {
        run.violations.append(&mut self.violations);
        let last = self.acknowledged.last_key_value().map(|(number, at)| (*number, *at));
        let is_late = last.is_none_or(|(_, at)| at + LAST_WITHIN < FEED_UNTIL);
        run.expect(Check::Continues, !is_late, || format!("acknowledged last: {last:?}"));
        run.expect(Check::Ends, self.has_finished, || "no root knows that the feed is over".into());
        for (node, was_told) in &self.again {
            run.expect(Check::Once, *was_told, || {
                format!("{node} does not know that it is replaced")
            });
        }
        run.counts.push(("roots started again", self.again.len() as u64));
        let mut released = 0;
        for node in receivers {
            let line = self.lines.remove(&node).unwrap_or_default();
            released += line.released;
            let wanted = last.map_or(0, |(number, _)| number + 1);
            let next = line.next.unwrap_or(0);
            run.expect(Check::Acknowledged, next >= wanted, || {
                format!("{node} has messages up to {next}, and {wanted} are acknowledged")
            });
            if let Some(died) = self.died.filter(|_| self.is_alone) {
                let took = line.succeeded.map(|at| at.since(died));
                run.expect(Check::Prompt, took.is_some_and(|took| took <= PROMPT), || {
                    format!("{node} had the first message of the successor after {took:?}")
                });
            }
        }
        self.places.judge(&self.content, run);
        run.counts.push(("takeovers", self.takeovers));
        let alone = self.is_alone && self.died.is_some();
        run.counts.push(("roots that died alone", alone.into()));
        run.counts.push(("messages acknowledged", self.acknowledged.len() as u64));
        run.counts.push(("messages released", released));
    }
}
