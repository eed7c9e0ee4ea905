//! The keys of a run, which rotate while the feed runs.
//!
//! ```text
//!           announced            in use               announced
//!   key n     |--------------------|- - - - - - - - - - - |
//!   key n+1   |- - - - - - - - - - |======================|- - -
//!             ^ places are sent    ^ LEAD later, the root ^ key n is not valid any more
//!               again, with both     seals under n+1
//! ```
//!
//! A key stays valid for as long as a node may wait for a frame under it. Two keys are valid at a
//! time: the key in use, and the key that comes next or was in use before. A node without a place
//! gets no key, so a node that was shut out opens no frame once the next key is in use. The header
//! of a frame names its key, so a successor of the root goes on with the key of the last frame on
//! which the voters agreed.

use super::*;
use crate::seal::RunKey;
use evenfall_core::node_keys::run_key_id;

/// Time between the announcement of a key and its use: twenty retries of a place.
const LEAD: Duration = Duration::from_secs(1);

/// The state of the rotation.
pub(super) struct KeyRotation {
    master: MasterKey,
    /// Number of the key in use, from 0.
    generation: u32,
    /// The run whose keys the seal holds.
    run_id: u64,
    /// How long a key is in use; zero for as long as nobody orders another key.
    lifetime: Duration,
    /// When the next key is announced; `None` when only an order announces it.
    announce_at: Option<Timestamp>,
    /// Until when no key is announced, since a node may still wait for a frame under the key that
    /// the announcement drops.
    kept_until: Timestamp,
    /// When the announced key comes into use; `None` when no key is announced.
    turn_at: Option<Timestamp>,
    /// Whether another key was ordered while one was announced, or while this root did not lead.
    is_ordered: bool,
}

impl KeyRotation {
    /// Begins the lifetime of the key in use. For the length of `patience` a node may still wait
    /// for a frame under the key before it.
    fn begin_lifetime(&mut self, now: Timestamp, patience: Duration) {
        self.kept_until = now + patience;
        self.announce_at = (!self.lifetime.is_zero()).then_some(now + self.lifetime);
    }

    fn key(&self, generation: u32) -> RunKey {
        (run_key_id(generation), self.master.of_run(self.run_id, generation))
    }
}

impl Root {
    /// Speaks to each node under the key of that node and the roots. Frames are sealed under keys
    /// of the run. Each of these keys is in use for the lifetime; with a lifetime of zero, until
    /// the owner orders another key. The call must come before the first frame.
    pub fn with_node_keys(mut self, master: MasterKey, lifetime: Duration) -> Self {
        self.out.seal.with_ends(EndKeys::Root(master.clone()));
        let announce_at = (!lifetime.is_zero()).then_some(self.report_at + lifetime);
        self.rotation = Some(Box::new(KeyRotation {
            master,
            generation: 0,
            run_id: self.run.id,
            lifetime,
            announce_at,
            kept_until: Timestamp::ZERO,
            turn_at: None,
            is_ordered: false,
        }));
        self.hold_run_keys(self.run.id);
        self
    }

    /// Announces another key of the run, which comes into use when the nodes had time to get it.
    pub fn renew_keys(&mut self, now: Timestamp) {
        let is_waiting = self.is_waiting();
        let Some(rotation) = &mut self.rotation else { return };
        if is_waiting || rotation.turn_at.is_some() {
            rotation.is_ordered = true;
            return;
        }
        // The first announcement drops no key.
        if rotation.generation > 0 && now < rotation.kept_until {
            rotation.announce_at = Some(rotation.kept_until);
            return;
        }
        if self
            .voted
            .as_ref()
            .is_some_and(|voted| voted.waits_under_another(self.out.seal.key_id()))
        {
            // The announcement drops the key before the key in use, under which a frame still waits
            // for the voters.
            rotation.announce_at = Some(now + LEAD / 20);
            return;
        }
        rotation.turn_at = Some(now + LEAD);
        rotation.announce_at = None;
        rotation.is_ordered = false;
        let keys = [rotation.key(rotation.generation), rotation.key(rotation.generation + 1)];
        self.out.seal.take_run_keys(&keys);
        self.members.renew_places(now);
    }

    /// Takes a node out and lets it in no more. Without a place it gets no key, and the next key
    /// comes into use.
    pub fn shut_out(&mut self, now: Timestamp, id: NodeId) {
        self.admission.shut_out(id);
        self.members.remove(now, id, DepartureReason::Left, &self.config);
        self.act(now);
        self.renew_keys(now);
    }

    /// When the keys of the run change next.
    pub(super) fn rotation_due(&self) -> Option<Timestamp> {
        let rotation = self.rotation.as_ref()?;
        rotation.turn_at.or(rotation.announce_at)
    }

    /// Announces the next key, or brings the announced key into use.
    pub(super) fn turn_run_keys(&mut self, now: Timestamp) {
        let Some(rotation) = &mut self.rotation else { return };
        if rotation.turn_at.is_some_and(|at| at <= now) {
            rotation.generation += 1;
            rotation.turn_at = None;
            rotation.begin_lifetime(now, self.config.frame_patience());
            let (id, is_ordered) = (run_key_id(rotation.generation), rotation.is_ordered);
            self.out.seal.turn_to(id);
            self.status.key_turns += 1;
            if is_ordered {
                self.renew_keys(now);
            }
        } else if rotation.announce_at.is_some_and(|at| at <= now) {
            self.renew_keys(now);
        }
    }

    /// Begins to lead the run, or to wait. A key that was announced and did not come into use is
    /// announced anew by a root that leads.
    pub(super) fn stand_with_keys(&mut self, now: Timestamp) {
        let Some(rotation) = &mut self.rotation else { return };
        rotation.is_ordered |= rotation.turn_at.take().is_some();
        rotation.begin_lifetime(now, self.config.frame_patience());
        let is_ordered = rotation.is_ordered;
        self.hold_run_keys(self.run.id);
        if is_ordered && !self.is_waiting() {
            self.renew_keys(now);
        }
    }

    /// Holds the keys of this run: the key in use and the key before it.
    pub(super) fn hold_run_keys(&mut self, run_id: u64) {
        let Some(rotation) = &mut self.rotation else { return };
        rotation.run_id = run_id;
        let before = rotation.generation.checked_sub(1);
        let keys = [Some(rotation.generation), before].into_iter().flatten();
        let keys: Vec<_> = keys.map(|generation| rotation.key(generation)).collect();
        self.out.seal.take_run_keys(&keys);
    }

    /// Holds the key of a frame before the frame is sealed. A frame of another root may be of
    /// another run than this root was in, or under a later key.
    pub(super) fn follow_run_keys(&mut self, fixed: &OriginHeader) {
        let Some(rotation) = &mut self.rotation else { return };
        if rotation.run_id == fixed.run_id && self.out.seal.has_key(fixed.key_id) {
            return;
        }
        // The ids of keys repeat behind the last id, and no root is ahead by so many keys.
        let ahead =
            (0..=u32::from(u8::MAX)).find(|n| run_key_id(rotation.generation + n) == fixed.key_id);
        let Some(ahead) = ahead else { return };
        rotation.generation += ahead;
        self.hold_run_keys(fixed.run_id);
    }
}
