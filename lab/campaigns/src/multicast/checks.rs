//! The checks that must hold in every run, whatever goes wrong.
//!
//! The checks see only the events that machines give to their owners, and the messages that the
//! owner gave to the root. The checks know no internals and share no code with the machines.
//!
//! A receiver is judged life by life. A crash ends a life, and a restart begins another with a
//! machine that knows nothing of the first. Within a life, the frames of one run of the root must
//! come as one unbroken sequence of `Released` and `Lost`.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use evenfall_multicast_machine::replace::ReplacementStep;
use evenfall_multicast_machine::{
    DepartureReason, Framed, ReceiverEvent, Release, Replacement, Tally,
};
use evenfall_sim::{NodeIndex, Seen, SimTime, Violation, named_variants};

use super::cast::message;

named_variants! {
    /// The checkers, by name.
    pub enum Check {
        /// No receiver releases a frame twice.
        Twice,
        /// Frames are released in order.
        Order,
        /// No frame is released before its deadline, by the receiver's own clock and by true time.
        /// Where the clocks of hosts step by seconds and more, true time alone counts.
        Early,
        /// Every frame is released, or reported lost by a range that covers exactly what was
        /// missing.
        Accounted,
        /// What is released is what was published.
        Content,
        /// Deadlines never decrease.
        Monotone,
        /// Rings, queues, held frames and control datagrams stay within their configuration.
        Bounded,
        /// Nothing is lost that could be repaired.
        Repaired,
        /// After the last fault everybody gets everything again, in time, on the tree.
        Healed,
        /// What the root counts at the end is what happened.
        Counted,
        /// A dead root is noticed by everybody.
        RootLost,
        /// A slow receiver delays nobody else.
        Siblings,
        /// A slow proxy is replaced, and nobody misses a frame over it.
        Switched,
        /// The root's stamps are right though the clock of any host steps.
        Stamped,
        /// A message is held as long as the root planned, also when the clock of a host steps. Two
        /// seconds after a step the root plans as before the step.
        Held,
        /// A late joiner of a recorded run gets all that it asked for, and reaches the live feed.
        CaughtUp,
        /// No receiver takes a frame of the root for another's, and at the end every message of a
        /// signed feed is verified.
        Signed,
    }
}

/// One run of the root.
#[derive(Debug, Default)]
struct Epoch {
    /// Frames and when they were made.
    framed: Vec<(SimTime, Framed)>,
    /// Feed numbers of its messages.
    published: Vec<u64>,
}

impl Epoch {
    fn first_message(&self, frame: u64) -> u64 {
        match self.framed.get(frame as usize) {
            Some((_, framed)) => framed.first_message,
            None => self.framed.last().map_or(0, |(_, f)| f.first_message + u64::from(f.count)),
        }
    }
}

/// One life of a receiver.
#[derive(Debug)]
struct Life {
    epoch: u32,
    /// The receiver has said which run of the root it is in.
    is_told: bool,
    /// The frame that must come next; `None` before it has a place.
    next: Option<u64>,
    /// Messages released and reported lost, of this run of the root.
    released: u64,
    lost: u64,
    finished: bool,
    root_lost: bool,
    end: Option<End>,
    /// How far the clock of the host was ahead before the first release. Until the feed vouches for
    /// a clock, a receiver has nothing to compare the clock with.
    ahead: Duration,
    has_released: bool,
}

/// Why nothing more is expected of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Crashed,
    Left,
    TooSlow,
}

/// What the checks expect of a run.
#[derive(Clone, Copy, Debug)]
pub struct Expectations {
    /// Seed of the feed's content.
    pub seed: u64,
    /// From this time on every fault is over and healed.
    pub calm: SimTime,
    /// How long a frame made after that may take to any live receiver.
    pub delay_max: Duration,
    /// Whether buffers are as large as the feed needs: otherwise frames may be lost at any time.
    pub roomy: bool,
    /// Whether faults are so mild that nothing may be lost at all.
    pub lossless: bool,
    /// A receiver that is far too slow, on a network that never errs.
    pub slow: Option<NodeIndex>,
    /// A proxy that turns slow on a network that never errs, and is to be replaced.
    pub replaced: Option<Replaced>,
    /// By how much the clocks of root and receiver may differ.
    pub clocks_differ_max: Duration,
    /// Clocks of hosts that step by seconds and more.
    pub steps: Option<Steps>,
}

/// Clocks of hosts that step by seconds and more, while the run's own time may not.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    /// What right clocks show when the run starts, in nanoseconds.
    pub epoch_ns: u64,
    /// The first step.
    pub first: SimTime,
    /// The last step.
    pub last: SimTime,
    /// Whether the network never errs, so that no frame waits for repair.
    pub calm: bool,
    /// Receivers that were there from the start have lower numbers.
    pub joiners: NodeIndex,
}

/// How far a stamp of the root may be from true time: its own offset, noise, and a reading's drift
/// are below 100 us.
const STAMP_MAX: Duration = Duration::from_millis(1);
/// The hold is back to normal this long after a step.
const RECOVERY: Duration = Duration::from_secs(2);
/// What a release may take beyond the hold: hops of 50 us, with processors and clocks.
const BEYOND_HOLD: Duration = Duration::from_millis(3);

/// A proxy that is to be replaced.
#[derive(Clone, Copy, Debug)]
pub struct Replaced {
    /// The proxy.
    pub straggler: NodeIndex,
    /// The first receiver below the proxy, and the node after the last receiver.
    pub below: (NodeIndex, NodeIndex),
    /// What a copy takes by way of it.
    pub straggling: Duration,
}

/// How long after a switch frames that the straggler had may still come.
const SWITCH_SETTLES: Duration = Duration::from_millis(20);

/// What a copy may take on a network of 50 us a hop whose clocks are 50 us wrong.
const UNDISTURBED: Duration = Duration::from_millis(1);

/// Violations kept; the first says most.
const VIOLATIONS_MAX: usize = 20;

/// All checkers of one run.
#[derive(Debug)]
pub struct Checks {
    expect: Expectations,
    epochs: BTreeMap<u32, Epoch>,
    lives: BTreeMap<NodeIndex, Life>,
    /// The last run of the root that was started.
    epoch: u32,
    /// When the straggler was let go.
    switched: Option<SimTime>,
    /// Violations so far.
    pub violations: Vec<Violation<Check>>,
    /// Checks that have failed, and at which nodes.
    failed: BTreeSet<(Check, NodeIndex)>,
    scratch: Vec<u8>,
    /// Frames released, to show that a campaign did something.
    pub released: u64,
    /// Frames reported lost.
    pub lost: u64,
    /// Late joiners that had all they asked for and reached the live feed.
    pub caught_up: u64,
    /// The longest hold before the first step of a clock.
    hold_before: Duration,
}

/// Bytes of message `number` of a fault run: from none to a hundred, so that frames differ.
pub fn size_of(number: u64) -> usize {
    (number.wrapping_mul(37) % 101) as usize
}

impl Checks {
    /// Checkers that have seen nothing yet.
    pub fn new(expect: Expectations) -> Self {
        Self {
            expect,
            epochs: BTreeMap::new(),
            lives: BTreeMap::new(),
            epoch: 1,
            switched: None,
            violations: Vec::new(),
            failed: BTreeSet::new(),
            scratch: Vec::new(),
            released: 0,
            lost: 0,
            caught_up: 0,
            hold_before: Duration::ZERO,
        }
    }

    /// Notes a violation: the first of its kind at a node.
    pub fn fail(&mut self, check: Check, at: SimTime, node: NodeIndex, what: String) {
        if self.violations.len() < VIOLATIONS_MAX && self.failed.insert((check, node)) {
            self.violations.push(Violation::at(check, at, node, what));
        }
    }

    /// The root took message `feed` of the feed.
    pub fn published(&mut self, epoch: u32, feed: u64) {
        self.epochs.entry(epoch).or_default().published.push(feed);
    }

    /// The root made a frame.
    pub fn framed(&mut self, seen: Seen, epoch: u32, framed: Framed) {
        let log = self.epochs.entry(epoch).or_default();
        let numbered = framed.sequence == log.framed.len() as u64
            && framed.first_message == log.first_message(framed.sequence);
        let last = log.framed.iter().rev().find_map(|(_, f)| f.deadline);
        let lower = framed.deadline.zip(last).is_some_and(|(deadline, last)| deadline < last);
        log.framed.push((seen.at, framed));
        if !numbered {
            let what = format!("frame {} is numbered wrongly: {framed:?}", framed.sequence);
            self.fail(Check::Accounted, seen.at, seen.node, what);
        }
        self.judge_stamps(seen, &framed);
        if lower {
            let what = format!("frame {}: {:?} after {last:?}", framed.sequence, framed.deadline);
            self.fail(Check::Monotone, seen.at, seen.node, what);
        }
    }

    fn judge_stamps(&mut self, seen: Seen, framed: &Framed) {
        let Some(steps) = self.expect.steps else { return };
        let wrong = framed.origin.nanos().abs_diff(steps.epoch_ns + seen.at.nanos());
        if u128::from(wrong) > STAMP_MAX.as_nanos() {
            let what = format!("frame {} is stamped {wrong} ns wrongly", framed.sequence);
            self.fail(Check::Stamped, seen.at, seen.node, what);
        }
        let Some(deadline) = framed.deadline.filter(|_| steps.calm) else { return };
        let hold = deadline.since(framed.origin);
        if seen.at < steps.first {
            self.hold_before = self.hold_before.max(hold);
        } else if seen.at > steps.last + RECOVERY && hold > self.hold_before * 2 + STAMP_MAX {
            let what = format!("a hold of {hold:?} after one of {:?}", self.hold_before);
            self.fail(Check::Held, seen.at, seen.node, what);
        }
    }

    /// A release neither early nor longer held than the root planned.
    fn judge_time(&mut self, seen: Seen, release: &Release, made: SimTime) {
        let Some(deadline) = release.deadline else { return };
        let (sequence, hold) = (release.sequence, deadline.since(release.origin));
        let took = seen.at.since(made);
        // A clock that is right again excuses nothing.
        let still = Duration::from_nanos(seen.own.nanos().saturating_sub(seen.at.nanos()));
        let ahead = self.lives.get(&seen.node).map_or(Duration::ZERO, |life| life.ahead.min(still));
        let truly = took + self.expect.clocks_differ_max + ahead < hold;
        if truly && (deadline > seen.sync.min(seen.own) || self.expect.steps.is_some()) {
            let what = format!("frame {sequence} after {took:?} of {hold:?}");
            self.fail(Check::Early, seen.at, seen.node, what);
        }
        let Some(steps) = self.expect.steps.filter(|steps| steps.calm) else { return };
        let is_old = seen.node < steps.joiners && !release.repaired;
        if is_old && took > hold + BEYOND_HOLD {
            let what = format!("frame {sequence} after {took:?} for a hold of {hold:?}");
            self.fail(Check::Held, seen.at, seen.node, what);
        }
    }

    /// The root took a step of a replacement.
    pub fn replacement(&mut self, seen: Seen, replacement: &Replacement) {
        let Some(Replaced { straggler, .. }) = self.expect.replaced else { return };
        if replacement.old.0 != straggler.0 {
            let what = format!("the wrong one is to be replaced: {replacement:?}");
            self.fail(Check::Switched, seen.at, seen.node, what);
        } else if replacement.step == ReplacementStep::Made {
            self.switched.get_or_insert(seen.at);
        }
    }

    /// Below the straggler, a copy by way of a quicker proxy may overtake, and a node may ask for
    /// the copies in between. No copy takes longer than by way of the straggler. All others notice
    /// nothing.
    fn judge_switch(&mut self, seen: Seen, release: &Release, replaced: &Replaced) {
        let delay = release.arrived.since(release.origin);
        let below = (replaced.below.0..replaced.below.1).contains(&seen.node);
        let settled = self.switched.is_some_and(|at| seen.at >= at + SWITCH_SETTLES);
        let most = if below && !settled { replaced.straggling } else { UNDISTURBED };
        if delay > most || release.repaired && (!below || settled) {
            let sequence = release.sequence;
            let what = format!("frame {sequence} took {delay:?}, repaired {}", release.repaired);
            self.fail(Check::Switched, seen.at, seen.node, what);
        }
    }

    /// The root was started again.
    pub fn root_started(&mut self, epoch: u32) {
        self.epoch = epoch;
    }

    /// A receiver was started.
    pub fn born(&mut self, node: NodeIndex) {
        let life = Life {
            epoch: self.epoch,
            is_told: false,
            next: None,
            released: 0,
            lost: 0,
            finished: false,
            root_lost: false,
            end: None,
            ahead: Duration::ZERO,
            has_released: false,
        };
        self.lives.insert(node, life);
    }

    /// A receiver crashed.
    pub fn died(&mut self, node: NodeIndex) {
        self.end(node, End::Crashed);
    }

    /// A receiver says good-bye.
    pub fn left(&mut self, node: NodeIndex) {
        self.end(node, End::Left);
    }

    fn end(&mut self, node: NodeIndex, end: End) {
        if let Some(life) = self.lives.get_mut(&node) {
            life.end.get_or_insert(end);
        }
    }

    /// Receivers of which everything is expected.
    pub fn alive(&self) -> Vec<NodeIndex> {
        self.lives.iter().filter(|(_, life)| life.end.is_none()).map(|(node, _)| *node).collect()
    }

    /// A receiver told its owner something.
    pub fn receiver(&mut self, seen: Seen, event: &ReceiverEvent) {
        let Some(life) = self.lives.get_mut(&seen.node) else { return };
        if !life.has_released && self.expect.steps.is_none() {
            let ahead = seen.sync.nanos().saturating_sub(seen.at.nanos());
            life.ahead = life.ahead.max(Duration::from_nanos(ahead));
            life.has_released = matches!(event, ReceiverEvent::Released(_));
        }
        match event {
            ReceiverEvent::Placed(place) if life.next.is_none() => {
                // A life begins with the root that gives it its first place. A node that was told
                // of a new run is in that run, also when the root of the run has crashed since.
                if !life.is_told {
                    life.epoch = self.epoch;
                }
                life.next = Some(place.start);
                // A place begins at the next frame of its run at the latest. A node that was not
                // told of a run may hear late of a place in an earlier one.
                let is_it = |(epoch, _): &(&u32, _)| !life.is_told || **epoch == life.epoch;
                let runs = self.epochs.iter().filter(is_it);
                let made = runs.map(|(_, epoch)| epoch.framed.len()).max().unwrap_or(0);
                if place.start > made as u64 {
                    let what = format!("a place from frame {} on, of {made} made", place.start);
                    self.fail(Check::Accounted, seen.at, seen.node, what);
                }
            }
            ReceiverEvent::Replaying { first, .. } => life.next = Some(*first),
            ReceiverEvent::CaughtUp => self.caught_up += 1,
            ReceiverEvent::Placed(_)
            | ReceiverEvent::NotReplayed
            | ReceiverEvent::FallingBehind { .. } => {}
            ReceiverEvent::Released(release) => self.release(seen, release),
            ReceiverEvent::Lost { first, frames, first_message, messages } => {
                self.lose(seen, (*first, *frames), (*first_message, *messages));
            }
            ReceiverEvent::Restarted { epoch } => {
                (life.epoch, life.is_told) = (*epoch, true);
                (life.next, life.released, life.lost, life.finished) = (None, 0, 0, false);
            }
            ReceiverEvent::Finished => life.finished = true,
            ReceiverEvent::Evicted(DepartureReason::TooSlow) => {
                self.end(seen.node, End::TooSlow);
            }
            ReceiverEvent::RootLost => life.root_lost = true,
            ReceiverEvent::Broken(broken) => {
                self.fail(Check::Signed, seen.at, seen.node, broken.to_string());
            }
            _ => {}
        }
    }

    fn release(&mut self, seen: Seen, release: &Release) {
        self.released += 1;
        let sequence = release.sequence;
        let life = self.lives.get_mut(&seen.node).expect("the caller found it");
        if life.epoch != release.epoch && life.released == 0 && life.lost == 0 {
            life.epoch = release.epoch;
        }
        let wanted = life.next;
        life.next = Some(sequence + 1);
        life.released += u64::from(release.count);
        let (check, what) = match wanted {
            _ if life.epoch != release.epoch => (Check::Content, "is of another epoch"),
            Some(next) if sequence < next && sequence + 1 == next => (Check::Twice, "again"),
            Some(next) if sequence < next => (Check::Order, "after later ones"),
            Some(next) if sequence > next => (Check::Accounted, "with a hole before it"),
            None => (Check::Accounted, "without a place"),
            _ => return self.judge(seen, release),
        };
        self.fail(
            check,
            seen.at,
            seen.node,
            format!("frame {sequence} {what}, {wanted:?} is next"),
        );
    }

    /// Time and content of a frame that comes in its turn.
    fn judge(&mut self, seen: Seen, release: &Release) {
        let sequence = release.sequence;
        let epoch = self.epochs.entry(release.epoch).or_default();
        let Some(&(made, framed)) = epoch.framed.get(sequence as usize) else {
            let what = format!("frame {sequence} was never made");
            return self.fail(Check::Content, seen.at, seen.node, what);
        };
        self.judge_time(seen, release, made);
        let epoch = self.epochs.entry(release.epoch).or_default();
        let header = (framed.first_message, framed.count, framed.origin, framed.deadline);
        let got = (release.first_message, release.count, release.origin, release.deadline);
        let mut same = header == got;
        let mut number = release.first_message;
        for bytes in release.messages.clone() {
            let feed = epoch.published.get(number as usize).copied().unwrap_or(u64::MAX);
            message(self.expect.seed, feed, size_of(feed), &mut self.scratch);
            same &= bytes == self.scratch;
            number += 1;
        }
        same &= number == release.first_message + u64::from(release.count);
        if !same {
            let what = format!("frame {sequence} is {release:?}, was {framed:?}");
            self.fail(Check::Content, seen.at, seen.node, what);
        }
        if self.expect.slow.is_some_and(|slow| slow != seen.node) {
            let delay = release.arrived.since(release.origin);
            if release.repaired || delay > UNDISTURBED {
                let what =
                    format!("frame {sequence} took {delay:?}, repaired {}", release.repaired);
                self.fail(Check::Siblings, seen.at, seen.node, what);
            }
        }
        if let Some(replaced) = self.expect.replaced {
            self.judge_switch(seen, release, &replaced);
        }
        let took = seen.at.since(made);
        let counts = self.expect.roomy && self.lives[&seen.node].end.is_none();
        if made >= self.expect.calm && took > self.expect.delay_max && counts {
            let what = format!("frame {sequence} took {took:?} in calm times");
            self.fail(Check::Healed, seen.at, seen.node, what);
        }
    }

    fn lose(
        &mut self,
        seen: Seen,
        (first, frames): (u64, u64),
        (first_message, messages): (Option<u64>, Option<u64>),
    ) {
        self.lost += frames;
        let life = self.lives.get_mut(&seen.node).expect("the caller found it");
        let wanted = life.next;
        let end = first + frames;
        life.next = Some(end);
        let epoch = self.epochs.entry(life.epoch).or_default();
        let known = end <= epoch.framed.len() as u64;
        let range = epoch.first_message(first)..epoch.first_message(end);
        life.lost += range.end.saturating_sub(range.start);
        let truly = range.end.saturating_sub(range.start);
        let exact =
            first_message.is_none_or(|m| m == range.start) && messages.is_none_or(|n| n == truly);
        let stays = life.end.is_none();
        let roomy = self.expect.roomy;
        let recent = epoch.framed.get(end as usize - 1).is_some_and(|f| f.0 >= self.expect.calm);
        let mut fail = |check, what: &str| {
            let what = format!("lost frames {first}..{end} {what}");
            self.fail(check, seen.at, seen.node, what);
        };
        if wanted != Some(first) || frames == 0 {
            fail(Check::Accounted, &format!("when {wanted:?} is next"));
        } else if !known {
            fail(Check::Accounted, "which were never made");
        } else if !exact {
            let said = format!("said {first_message:?} and {messages:?}, were {range:?}");
            fail(Check::Accounted, &said);
        }
        if recent && stays && roomy {
            fail(Check::Healed, "of calm times");
        }
        if self.expect.lossless && stays {
            self.fail(
                Check::Repaired,
                seen.at,
                seen.node,
                format!("lost frames {first}..{end} although nothing was down"),
            );
        }
    }

    /// The root says that all are finished.
    pub fn finished(&mut self, seen: Seen, epoch: u32, tally: &Tally) {
        let alive: Vec<_> = self.lives.iter().filter(|(_, life)| life.end.is_none()).collect();
        let unfinished = alive.iter().find(|(_, life)| !life.finished).map(|(node, _)| **node);
        let sum = |field: fn(&Life) -> u64| -> u64 { alive.iter().map(|(_, l)| field(l)).sum() };
        let (released, lost) = (sum(|l| l.released), sum(|l| l.lost));
        let ended = self.lives.values().any(|l| matches!(l.end, Some(End::Left | End::TooSlow)));
        let strange = self.lives.values().any(|life| life.epoch != epoch);
        if let Some(node) = unfinished {
            self.fail(Check::Counted, seen.at, node, "the root says that all are finished".into());
        } else if !ended && !strange && (tally.released, tally.lost) != (released, lost) {
            let what = format!("{released} messages released and {lost} lost, counted {tally:?}");
            self.fail(Check::Counted, seen.at, seen.node, what);
        }
    }

    /// The run is over. `epoch` is the last one of the root, `None` when it is dead.
    pub fn over(&mut self, at: SimTime, epoch: Option<u32>) {
        if let Some(replaced) = self.expect.replaced.filter(|_| self.switched.is_none()) {
            self.fail(Check::Switched, at, replaced.straggler, "was not replaced".into());
        }
        for node in self.alive() {
            let life = &self.lives[&node];
            let Some(epoch) = epoch else {
                // A root that was never heard is waited for.
                if !life.root_lost && life.next.is_some() {
                    self.fail(Check::RootLost, at, node, "the root's death went unnoticed".into());
                }
                continue;
            };
            let made = self.epochs.get(&epoch).map_or(0, |e| e.framed.len() as u64);
            if life.epoch != epoch || life.next != Some(made) || !life.finished {
                let what = format!("at the end of {made} frames of epoch {epoch}: {life:?}");
                self.fail(Check::Healed, at, node, what);
            }
        }
    }
}
