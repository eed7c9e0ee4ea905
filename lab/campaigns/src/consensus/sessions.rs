//! The campaign with sessions as ZooKeeper's clients have them: one operation at a time, writes and
//! `sync` in the order, and reads at once from what the session's replica has.
//!
//! A session opens at a replica by a write, and again at every other replica and after each start
//! of its replica. A session that gets no answer leaves its operation behind, and opens again.

use core::ops::RangeInclusive;
use std::collections::BTreeMap;
use std::time::Duration;

use evenfall_core::Prng;
use evenfall_sim::campaign::Outline;
use evenfall_sim::{NodeIndex, Plan, SimTime};

use super::history::History;
use super::{CLIENTS_UNTIL, Check, Mutant};

/// The knob that the seeds of this campaign have.
pub const KNOB: (&str, RangeInclusive<u64>) = ("sessions", 1..=1);

/// The first token of an operation of a session.
pub const FIRST: u64 = 1 << 32;
/// Sessions of a run, and operations that each tries.
const COUNT: u64 = 3;
const TRIES: u64 = 40;
/// Tries between two moves of a session.
const STAYS: u64 = 8;
/// Time without an answer after which a session goes elsewhere.
const PATIENCE: Duration = Duration::from_millis(100);

/// What a session does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// Writes.
    Write,
    /// Waits for what was answered before.
    Sync,
    /// Reads what its replica has.
    Read,
}

#[derive(Clone, Copy, Debug, Default)]
struct Session {
    /// The replica and its life at which the session is open.
    at: Option<(NodeIndex, u64)>,
    /// The operation that has no answer yet, and when it began.
    under_way: Option<(u64, SimTime)>,
}

/// The sessions of a run.
pub struct Sessions {
    all: BTreeMap<u64, Session>,
    /// Whether sessions read at a replica where they are not open.
    pub is_wrong: bool,
}

/// The session of a token.
pub fn of(token: u64) -> Option<u64> {
    token.checked_sub(FIRST).map(|at| at / TRIES)
}

/// The client that the requests of a session name: beyond the numbers of all nodes.
pub fn client(token: u64) -> u64 {
    FIRST + of(token).unwrap_or_default()
}

/// When and where sessions try something: time, node, token.
pub fn tries(plan: &Plan, nodes: u32) -> Vec<(SimTime, NodeIndex, u64)> {
    let mut tries = Vec::new();
    if !plan.has_knob(KNOB.0) {
        return tries;
    }
    let mut prng = Prng::new(plan.seed).fork(0x7365);
    for session in 0..COUNT {
        let mut times: Vec<u64> = (0..TRIES).map(|_| prng.below(CLIENTS_UNTIL.nanos())).collect();
        times.sort_unstable();
        let mut node = NodeIndex(0);
        for (number, at) in (0..).zip(times) {
            if number % STAYS == 0 {
                node = NodeIndex(prng.below(nodes.into()) as u32);
            }
            tries.push((SimTime::from_nanos(at), node, FIRST + session * TRIES + number));
        }
    }
    tries
}

/// The outline of the campaign, out of that of `consensus`.
pub fn outline(hosts: &Outline<Mutant, Check>) -> Outline<Mutant, Check> {
    Outline {
        name: "sessions",
        about: "Canopus with clients whose reads are answered by their own replicas",
        once_failed: &[],
        mutants: &[
            (Mutant::ReadsUnopened, Check::SessionOrder, 0..100),
            (Mutant::ReadsAtOnce, Check::Linearizable, 0..20),
            (Mutant::SnapsEarly, Check::Agreement, 0..100),
        ],
        ..*hosts
    }
}

impl Sessions {
    /// Sessions that are not open yet.
    pub fn new(is_wrong: bool) -> Self {
        Self { all: BTreeMap::new(), is_wrong }
    }

    /// What the session of a token does at a node in this life; `None` while it waits.
    pub fn next(
        &mut self,
        seed: u64,
        token: u64,
        (at, node, life): (SimTime, NodeIndex, u64),
        history: &mut History,
    ) -> Option<Does> {
        let session = self.all.entry(of(token)?).or_default();
        if let Some((before, begun)) = session.under_way {
            let is_answered = history.is_answered(before);
            if !is_answered && at < begun + PATIENCE {
                return None;
            }
            session.under_way = None;
            if !is_answered {
                history.leave(before);
                session.at = None;
            }
        }
        let is_open = session.at == Some((node, life));
        session.at = Some((node, life));
        let does = match Prng::new(seed).fork(token).below(4) {
            0 | 1 => Does::Read,
            2 => Does::Sync,
            _ => Does::Write,
        };
        let does = if is_open || self.is_wrong { does } else { Does::Write };
        if does != Does::Read {
            session.under_way = Some((token, at));
        }
        Some(does)
    }
}
