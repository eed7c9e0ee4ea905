//! The lead of a root among those that vote. A root without standbys leads from start to end.
//!
//! ```text
//!   meets the other roots
//!     |
//!     v        the voters chose this root
//!   waits ---------------------------------> leads: forms the tree, sends the feed, ends it
//!     ^  |                                     |                                         |
//!     |  | the feed is over                    | the voters chose another root           |
//!     |  v                                     |                                         v
//!     | end                                    |                                        end
//!     +----------------------------------------+
//! ```
//!
//! A root that waits compares each message on which the voters agree with the next message of its
//! own feed. So the root goes on with the right message when it leads, and a root that has another
//! file ends before it leads.

use std::time::Duration;

use evenfall_core::{SyncTime, Timestamp};
use evenfall_host::clock::MonotonicClock;
use evenfall_host::interrupt;
use evenfall_multicast_machine::Draft;

use super::{RoleError, Run, SAY_AWAITED_EVERY, STOP_PATIENCE};
use crate::runinfo::RunInfo;
use crate::runlog::RunLogRecord;
use evenfall_multicast_sessions::{ReplicatedRoot, ReplicatedRootEvent};

/// How long the voters have to agree that the feed is over. They need milliseconds while a majority
/// of them lives.
const OVER_PATIENCE: Duration = Duration::from_secs(1);

/// Time between two looks for a majority after which this process must have been paused. The looks
/// are 200 ms apart. What came during the pause is read before the next look.
const PAUSED: Duration = Duration::from_secs(1);

/// The decisions of the voters.
#[derive(Debug, Default)]
pub(super) struct VoterDecisions {
    /// When the first message of the feed is due.
    pub(super) begun: Option<SyncTime>,
    /// Whether another root has led since this root last waited.
    pub(super) is_lost: bool,
    /// Whether every receiver has the whole feed, or the feed was ended by a signal.
    is_over: bool,
    /// Events and memberships in the description of the run that this root wrote last.
    written: (usize, usize),
    /// When this root last asked itself whether it hears a majority.
    checked: Timestamp,
}

impl Run<'_> {
    /// Whether this root sends the feed.
    pub(super) fn leads(&self) -> bool {
        self.roots.iter().all(ReplicatedRoot::leads)
    }

    /// Waits and leads until the run is over. Returns why the run is over.
    pub(super) fn play(&mut self) -> Result<&'static str, RoleError> {
        if self.is_voter() && !self.meet()? {
            return Ok("asked to stop before all roots were there: nothing was sent");
        }
        loop {
            if let Some(why) = self.wait()? {
                return Ok(why);
            }
            let ended = self.play_once();
            if !self.decisions.is_lost {
                return ended;
            }
        }
    }

    fn is_voter(&self) -> bool {
        self.roots.iter().any(ReplicatedRoot::is_voter)
    }

    /// Waits until all roots are there, then begins the log. A root that was started again during a
    /// run leaves the files of the run as they are. `false` when a signal came.
    fn meet(&mut self) -> Result<bool, RoleError> {
        let mut say_at = MonotonicClock::now() + SAY_AWAITED_EVERY;
        while !self.roots.iter().all(ReplicatedRoot::is_ready) {
            if !self.turn(Some(say_at))? {
                return Ok(false);
            }
            if MonotonicClock::now() >= say_at {
                say_at = MonotonicClock::now() + SAY_AWAITED_EVERY;
                let missing = self.roots.iter().flat_map(ReplicatedRoot::missing);
                let missing: Vec<String> = missing.map(|root| self.ledger.name(root)).collect();
                let name = &self.process.base.name;
                tracing::info!("{name}: waiting for the roots {}", missing.join(", "));
            }
        }
        self.process.begin_log(self.settings, self.node)?;
        let reading = self.process.base.clock().reading();
        let at_ns = self.process.base.sync_now().nanos();
        self.process.note(RunLogRecord::Clock { at_ns, reading });
        Ok(true)
    }

    /// Ends a root that hears no majority, which can neither lead nor learn who leads.
    pub(super) fn check_majority(&mut self) -> Result<(), RoleError> {
        let now = MonotonicClock::now();
        let was_paused = now.since(self.decisions.checked) > PAUSED;
        self.decisions.checked = now;
        let silence = self.settings.multicast.membership.root_timeout;
        let heard = self.roots.iter().map(|candidate| candidate.heard_majority(now)).min();
        let is_cut_off = heard.is_some_and(|heard| now.since(heard) > silence);
        let has_met = self.roots.iter().all(ReplicatedRoot::is_ready);
        match is_cut_off && has_met && !was_paused && !self.decisions.is_over {
            true => Err(RoleError::NoMajority(silence)),
            false => Ok(()),
        }
    }

    /// Waits until this root leads. Returns why the run is over, if that comes first.
    fn wait(&mut self) -> Result<Option<&'static str>, RoleError> {
        self.decisions.is_lost = false;
        let mut stop_at = None;
        while !self.leads() {
            if self.decisions.is_over {
                self.drain()?;
                return Ok(Some("the stream ended"));
            }
            let now = MonotonicClock::now();
            // The root that leads may have the same signal, and needs this vote to end the feed.
            if interrupt::raised() && *stop_at.get_or_insert(now + STOP_PATIENCE) <= now {
                return Ok(Some("asked to stop"));
            }
            self.turn(stop_at)?;
        }
        Ok(None)
    }

    /// Forms the tree, sends the feed and ends it. Returns early when another root leads.
    fn play_once(&mut self) -> Result<&'static str, RoleError> {
        let sent = match self.form() {
            Ok(true) => self.send_feed(),
            Ok(false) if self.decisions.is_lost => return Ok("another root leads"),
            // No receiver has joined that could finish.
            Ok(false) => {
                self.close()?;
                return Ok("asked to stop before the tree stood: nothing was sent");
            }
            Err(error) => Err(error),
        };
        let patience = self.settings.course.finish_timeout;
        match sent {
            Ok(_) if self.decisions.is_lost => Ok("another root leads"),
            Ok(true) => self.finish(patience).map(|()| "the stream ended"),
            // A signal asked for the end, so the root waits less for receivers that are gone.
            Ok(false) => self.finish(patience.min(STOP_PATIENCE)).map(|()| "asked to stop"),
            Err(error) => {
                // The messages that were sent shall arrive first.
                self.finish(patience).ok();
                Err(error)
            }
        }
    }

    /// Asks the voters to agree that the feed is over, so that no other root goes on with it.
    pub(super) fn close(&mut self) -> Result<(), RoleError> {
        if self.decisions.is_lost {
            return Ok(());
        }
        for tree in 0..self.roots.len() {
            self.on_candidate(tree, |candidate, now| candidate.finish(now))?;
        }
        self.drain_events()?;
        let give_up = MonotonicClock::now() + OVER_PATIENCE;
        while !self.decisions.is_over && !self.decisions.is_lost && MonotonicClock::now() < give_up
        {
            self.turn(Some(give_up))?;
        }
        Ok(())
    }

    /// Handles the events of the roots.
    pub(super) fn drain_events(&mut self) -> Result<(), RoleError> {
        while let Some((now, tree, event)) = self.pending_events.pop_front() {
            match event {
                ReplicatedRootEvent::Root(event) => {
                    self.ledger.on(self.roots[tree].root(), now, event)
                }
                ReplicatedRootEvent::Begun(at) => self.decisions.begun = Some(at),
                ReplicatedRootEvent::Kept(draft) if self.has_authors() => self.keep(&draft),
                ReplicatedRootEvent::Kept(draft) => self.read_along(&draft)?,
                ReplicatedRootEvent::Leads { epoch, next_message } => {
                    self.take_lead(epoch, next_message);
                }
                ReplicatedRootEvent::Deposed { epoch } => {
                    let name = &self.process.base.name;
                    tracing::warn!("{name}: another root leads now, in epoch {epoch}");
                    self.turn_over();
                    self.decisions.is_lost = true;
                }
                ReplicatedRootEvent::Over => self.decisions.is_over = true,
                ReplicatedRootEvent::Published { number, format, message } => {
                    self.take_letter(now, number, format, message);
                }
                ReplicatedRootEvent::Session(change) => self.note_line(now, &change),
                ReplicatedRootEvent::Forgotten => return Err(RoleError::Forgotten),
                ReplicatedRootEvent::Replaced => return Err(RoleError::Replaced),
            }
        }
        Ok(())
    }

    fn take_lead(&mut self, epoch: u32, next_message: u64) {
        self.turn_over();
        if self.decisions.begun.is_none() {
            return;
        }
        // The root that led before may have been on another host, and has then left no notes here.
        if let Ok(info) = RunInfo::read(&self.settings.run.dir) {
            self.started_unix_s = info.started_unix_s;
            self.ledger.adopt(info);
        }
        let name = &self.process.base.name;
        let text = format!("{name} leads from message {next_message} on, in epoch {epoch}");
        tracing::warn!("{text}");
        self.ledger.event(MonotonicClock::now(), "lead", Some(self.ledger.id), text);
    }

    /// Compares the messages of a frame with the next messages of the own feed.
    fn read_along(&mut self, draft: &Draft) -> Result<(), RoleError> {
        let start = self.decisions.begun.unwrap_or_default();
        for (place, message) in draft.messages().enumerate() {
            if self.ledger.queue(0).get(place).is_none()
                && let Ok(Some((own, due))) = self.intake.skip()
            {
                self.ledger.queue(0).push(own, start + due);
            }
            let own = self.ledger.queue(0).get(place);
            if own.is_none_or(|own| own.message.bytes != message) {
                return Err(RoleError::OtherFeed(draft.first_message() + place as u64));
            }
        }
        Ok(())
    }

    /// Writes the description of the run when it has changed, so that a root that is killed leaves
    /// it to the next one.
    pub(super) fn keep_info(&mut self) -> Result<(), RoleError> {
        let noted = (self.ledger.events.len(), self.ledger.memberships.len());
        if self.is_voter()
            && self.leads()
            && self.ledger.formed()
            && noted != self.decisions.written
        {
            self.decisions.written = noted;
            self.write_info()?;
        }
        Ok(())
    }
}
