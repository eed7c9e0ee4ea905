//! What replicas told and clients saw, and the checks on both.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use evenfall_consensus_machine::{
    AgreedChange, Config, ConsensusError, EmulationTable, Event, LeavingReason, VnodeId, VnodeState,
};
use evenfall_core::Prng;
use evenfall_sim::{NodeIndex, Run, Seen, SimTime, Violation};

use super::{Check, REGISTERS, broken, sessions};

/// Bytes of a snapshot, of which the first eight say what was executed: several datagrams at any
/// length of datagrams that a seed draws.
const SNAPSHOT_BYTES: usize = 3_000;

/// A place in the order: cycle, set, requests of the set in front. A write stands behind itself.
type Place = (u64, usize, usize);

/// An operation that a client began.
#[derive(Clone, Copy, Debug)]
struct Begun {
    at: SimTime,
    node: NodeIndex,
    life: u64,
    is_read: bool,
    /// The client that the request names.
    client: u64,
    /// Whether the read was answered at once because no write to its key was under way.
    is_leased: bool,
    /// Whether the read is of a session, which may see old values.
    is_local: bool,
    /// When the operation was answered, and its place.
    end: Option<(SimTime, Place)>,
}

/// Everything that happened in a run.
#[derive(Default)]
pub struct History {
    cycles: BTreeMap<u64, (Arc<VnodeState>, u64)>,
    /// The last cycle that a node told in this life, and the number of the life.
    told: BTreeMap<NodeIndex, (u64, u64)>,
    /// A digest of all requests up to a cycle, which stands for what they have made.
    made: BTreeMap<u64, u64>,
    begun: BTreeMap<u64, Begun>,
    expelled: u64,
    joined: u64,
    installed: u64,
    full: u64,
    /// Disks that nodes lost.
    pub lost: u64,
    /// How often a replica without its disk voted again.
    learned: u64,
    /// Super-leaves that a membership service outside took out.
    outside: u64,
    /// Checkpoints that replicas took.
    pub checkpoints: u64,
    violations: Vec<Violation<Check>>,
}

impl History {
    /// A node has a new life: it tells all cycles again.
    pub fn restart(&mut self, node: NodeIndex) {
        let told = self.told.entry(node).or_default();
        *told = (0, told.1 + 1);
    }

    /// The life of a node.
    pub fn life(&self, node: NodeIndex) -> u64 {
        self.told.get(&node).map_or(0, |told| told.1)
    }

    /// Whether an operation was answered.
    pub fn is_answered(&self, token: u64) -> bool {
        self.begun.get(&token).is_some_and(|begun| begun.end.is_some())
    }

    /// The client of an operation is gone, and an answer would reach nobody.
    pub fn leave(&mut self, token: u64) {
        if let Some(begun) = self.begun.get_mut(&token) {
            begun.life = u64::MAX;
        }
    }

    /// An operation of this client was taken.
    pub fn begin(&mut self, seen: Seen, token: u64, client: u64, is_read: bool) {
        let (at, node, life) = (seen.at, seen.node, self.life(seen.node));
        let (is_leased, is_local, end) = (false, false, None);
        let begun = Begun { at, node, life, is_read, client, is_leased, is_local, end };
        self.begun.insert(token, begun);
    }

    /// A session reads what its replica has committed.
    pub fn read_here(&mut self, seen: Seen, token: u64, client: u64) {
        self.begin(seen, token, client, true);
        if let Some(begun) = self.begun.get_mut(&token) {
            begun.is_local = true;
        }
        self.read_now(seen, token);
    }

    /// Begins a read and answers the read at once from the cycles that its replica has committed.
    pub fn read_at_once(&mut self, seen: Seen, token: u64) {
        self.begin(seen, token, seen.node.0.into(), true);
        self.read_now(seen, token);
    }

    /// Notes that a read is answered from the cycles that its replica has committed.
    pub fn read_now(&mut self, seen: Seen, token: u64) {
        let (cycle, life) = self.told.get(&seen.node).copied().unwrap_or_default();
        self.answer(seen, life, token, (cycle, usize::MAX, 0));
    }

    /// A replica answered a read at once under write leases.
    fn read_leased(&mut self, seen: Seen, token: u64) {
        if let Some(begun) = self.begun.get_mut(&token) {
            begun.is_leased = true;
        }
        self.read_now(seen, token);
    }

    /// A replica was told what the membership service outside has, after this many changes of it.
    pub fn looked(&mut self, seen: Seen, taken: Result<(), ConsensusError>, changes: u64) {
        self.outside = changes;
        if let Err(error) = taken {
            self.violations.push(broken(Check::Resumes, seen, error.to_string()));
        }
    }

    /// Applies the changes of all cycles to a table. Returns the first cycle that no replica told.
    pub fn apply(&self, table: &mut EmulationTable, config: &Config) -> u64 {
        for (cycle, (state, _)) in &self.cycles {
            state.changes.iter().for_each(|change| table.apply(*change, *cycle, config));
        }
        self.cycles.last_key_value().map_or(1, |(last, _)| last + 1)
    }

    /// Whether a super-leaf last left as planned.
    pub fn left_as_planned(&self, leaf: VnodeId) -> bool {
        let changes = self.cycles.values().rev().flat_map(|(state, _)| &state.changes);
        let reasons = changes.filter_map(|change| match change {
            AgreedChange::Retire(of, _, reason) if *of == leaf => Some(*reason),
            _ => None,
        });
        reasons.take(1).any(|reason| reason == LeavingReason::Planned)
    }

    /// A replica told something.
    pub fn take(&mut self, seen: Seen, event: Event) {
        let (state, reads, table) = match event {
            Event::Committed { state, reads, table } => (state, reads, table),
            Event::Answered(token) => return self.read_leased(seen, token),
            Event::Expelled => return self.expelled += 1,
            Event::Joined(_) => return self.joined += 1,
            Event::Installed { cycle, snapshot, .. } => {
                return self.install(seen, cycle, &snapshot);
            }
            Event::DiskFull(_) => return self.full += 1,
            Event::Learned => return self.learned += 1,
            Event::Counts
            | Event::DiskBack
            | Event::Behind(_)
            | Event::CheckpointWanted
            | Event::ExternalChangeWanted(_)
            | Event::Learns => return,
            other => {
                let broken = broken(Check::Resumes, seen, format!("{other:?}"));
                return self.violations.push(broken);
            }
        };
        let told = self.told.entry(seen.node).or_default();
        if state.cycle != told.0 + 1 {
            let what = format!("told cycle {} after {}", state.cycle, told.0);
            self.violations.push(broken(Check::Order, seen, what));
        }
        *told = (state.cycle, told.1);
        let life = told.1;
        let before = self.made.get(&(state.cycle - 1)).copied().unwrap_or_default();
        self.made.entry(state.cycle).or_insert_with(|| digest(before, &state));
        let known = self.cycles.entry(state.cycle).or_insert_with(|| (Arc::clone(&state), table));
        if known.0.sets != state.sets {
            let what = format!("cycle {}: {:?} and {:?}", state.cycle, known.0.sets, state.sets);
            self.violations.push(broken(Check::Agreement, seen, what));
        }
        if known.1 != table || known.0.changes != state.changes {
            let what = format!("cycle {}: another table of nodes", state.cycle);
            self.violations.push(broken(Check::SameTable, seen, what));
        }
        for (number, set) in state.sets.iter().enumerate() {
            // A replica answers only the clients that asked it.
            if set.node.0 != seen.node.0 {
                continue;
            }
            for (at, request) in set.requests.iter().enumerate() {
                let place = (state.cycle, number, at + 1);
                self.answer(seen, life, request.sequence, place);
            }
            for read in &reads {
                self.answer(seen, life, read.token, (state.cycle, number, read.after));
            }
        }
    }

    /// The last cycle that a node told, and what all cycles up to it have made.
    pub fn made(&self, node: NodeIndex) -> Option<(u64, u64)> {
        let cycle = self.told.get(&node)?.0;
        Some((cycle, *self.made.get(&cycle)?))
    }

    /// A replica goes on behind a snapshot.
    fn install(&mut self, seen: Seen, cycle: u64, snapshot: &[u8]) {
        self.installed += 1;
        let told = self.told.entry(seen.node).or_default();
        if cycle <= told.0 {
            let what = format!("a snapshot of cycle {cycle} after cycle {}", told.0);
            self.violations.push(broken(Check::Order, seen, what));
        }
        told.0 = cycle;
        let known = self.made.get(&cycle).map(|made| self::snapshot(*made));
        if known.is_none_or(|known| known != snapshot) {
            let what = format!("the snapshot of cycle {cycle} is of something else");
            self.violations.push(broken(Check::Agreement, seen, what));
        }
    }

    fn answer(&mut self, seen: Seen, life: u64, token: u64, place: Place) {
        let Some(begun) = self.begun.get_mut(&token) else { return };
        if begun.node == seen.node && begun.life == life && begun.end.is_none() {
            begun.end = Some((seen.at, place));
        }
    }

    /// Looks at the whole run. Operations from `last` on were made at each node at the end.
    pub fn judge(mut self, live: &[NodeIndex], last: u64, run: &mut Run<Check>) {
        run.violations.append(&mut self.violations);
        self.judge_requests(run);
        self.judge_times(run);
        self.judge_registers(run);
        self.judge_sessions(run);
        let latest = self.cycles.keys().last().copied().unwrap_or(0);
        for node in live {
            let told = self.told.get(node).map_or(0, |told| told.0);
            run.expect(Check::Resumes, told == latest, || {
                format!("{node} has committed {told} of {latest} cycles")
            });
            let open = self
                .begun
                .range(last..sessions::FIRST)
                .find(|(_, b)| b.node == *node && b.end.is_some());
            run.expect(Check::Resumes, open.is_some(), || {
                format!("the last request of {node} is not answered")
            });
        }
        let answered = |is_read: bool| {
            let begun = self.begun.values();
            begun.filter(|begun| begun.is_read == is_read && begun.end.is_some()).count() as u64
        };
        run.counts.push(("cycles", latest));
        run.counts.push(("writes answered", answered(false)));
        run.counts.push(("reads answered", answered(true)));
        let at_once = self.begun.values().filter(|begun| begun.is_leased && begun.end.is_some());
        run.counts.push(("reads under leases", at_once.count() as u64));
        let local = self.begun.values().filter(|begun| begun.is_local);
        run.counts.push(("reads of sessions", local.count() as u64));
        run.counts.push(("expelled", self.expelled));
        run.counts.push(("joined", self.joined));
        run.counts.push(("checkpoints", self.checkpoints));
        run.counts.push(("installed", self.installed));
        run.counts.push(("full disks", self.full));
        run.counts.push(("lost disks", self.lost));
        run.counts.push(("voted again", self.learned));
        let changes = self.cycles.values().flat_map(|(state, _)| &state.changes);
        let retired = |planned: bool| {
            let of = changes.clone().filter(move |change| match change {
                AgreedChange::Retire(_, _, reason) => {
                    (*reason == LeavingReason::Planned) == planned
                }
                _ => false,
            });
            of.collect::<BTreeSet<_>>().len() as u64
        };
        run.counts.push(("super-leaves left out", retired(false)));
        run.counts.push(("super-leaves retired", retired(true)));
        run.counts.push(("super-leaves ended outside", self.outside));
    }

    /// Every request was made, is there once, and stands behind the earlier ones of its client.
    fn judge_requests(&self, run: &mut Run<Check>) {
        let (mut seen, mut before) = (BTreeSet::new(), BTreeMap::new());
        let sets = self.cycles.values().flat_map(|(state, _)| &state.sets);
        for request in sets.flat_map(|set| &set.requests) {
            let token = request.sequence;
            let begun = self.begun.get(&token);
            let begun = begun.filter(|begun| !begun.is_read && begun.client == request.client);
            run.expect(Check::Nontriviality, begun.is_some(), || format!("{token} was not made"));
            let is_whole = begun.is_none() || request.body == body(token);
            run.expect(Check::Nontriviality, is_whole, || {
                format!("{token} was made with other bytes: {:?}", request.body)
            });
            let is_new = seen.insert((request.client, token));
            run.expect(Check::Nontriviality, is_new, || format!("{token} is there twice"));
            if token >= sessions::FIRST && !self.is_answered(token) {
                // A session that has left the write behind has gone on elsewhere.
                continue;
            }
            let made = (begun.map(|begun| begun.at), token);
            if let Some(earlier) = before.insert(request.client, made) {
                run.expect(Check::Fifo, earlier < made, || format!("{token} after {}", earlier.1));
            }
        }
    }

    /// Operations of one session are ordered, across reconnects. A read after a `sync` therefore
    /// sees all that was answered before the `sync`, which is judged as any other read in the
    /// order.
    fn judge_sessions(&self, run: &mut Run<Check>) {
        let mut all: Vec<_> = self.begun.range(sessions::FIRST..).collect();
        // A replica that stands still takes what a session has tried there after it has woken up.
        all.sort_by_key(|(token, begun)| (begun.at, **token));
        let mut before = BTreeMap::<u64, (Place, u64)>::new();
        for (token, begun) in all {
            let (Some((_, place)), Some(session)) = (begun.end, sessions::of(*token)) else {
                continue;
            };
            if let Some((seen, other)) = before.insert(session, (place, *token)) {
                run.expect(Check::SessionOrder, seen <= place, || {
                    format!("{token} at {place:?} comes after {other} at {seen:?}")
                });
            }
        }
    }

    /// The places of operations are a witness: what ended before another began comes first. Reads
    /// under write leases have a place among the operations of their register only.
    fn judge_times(&self, run: &mut Run<Check>) {
        let is_in_place = |begun: &Begun| !begun.is_leased && !begun.is_local;
        let in_place = || self.begun.iter().filter(move |(_, begun)| is_in_place(begun));
        let mut ends: Vec<_> = in_place().filter_map(|(t, b)| Some((b.end?, *t))).collect();
        ends.sort_unstable_by_key(|((at, _), _)| *at);
        let mut begins: Vec<_> = in_place()
            .filter_map(|(token, begun)| Some((begun.at, begun.end?.1, *token)))
            .collect();
        begins.sort_unstable();
        let (mut ended, mut most) = (ends.into_iter().peekable(), None::<(Place, u64)>);
        for (at, place, token) in begins {
            while let Some(((_, done), other)) = ended.next_if(|((end, _), _)| *end < at) {
                most = most.max(Some((done, other)));
            }
            if let Some((done, other)) = most {
                run.expect(Check::Linearizable, done <= place, || {
                    format!("{token} at {place:?} began when {other} at {done:?} was answered")
                });
            }
        }
    }
}

/// The writes of each register, each with its place in the order and its token.
type Writes = BTreeMap<u64, Vec<(Place, u64)>>;

impl History {
    fn writes(&self) -> Writes {
        let mut writes = Writes::new();
        for (cycle, (state, _)) in &self.cycles {
            for (number, set) in state.sets.iter().enumerate() {
                for (at, request) in set.requests.iter().enumerate() {
                    let (place, token) = ((*cycle, number, at + 1), request.sequence);
                    writes.entry(register(token)).or_default().push((place, token));
                }
            }
        }
        writes
    }

    /// Every register by itself: an operation sees or makes at least the version that an earlier
    /// operation saw or made, and a write makes a later one. The version of an operation is the
    /// number of writes to its register up to its place.
    fn judge_registers(&self, run: &mut Run<Check>) {
        if !self.begun.values().any(|begun| begun.is_leased) {
            return;
        }
        let writes = self.writes();
        let version = |token: u64, place: Place| {
            let of = writes.get(&register(token));
            of.map_or(0, |writes| writes.partition_point(|(write, _)| *write <= place))
        };
        let all = self.begun.iter().filter(|(_, begun)| !begun.is_local);
        let done = all.filter_map(|(token, begun)| {
            let (end, place) = begun.end?;
            Some((end, *token, version(*token, place)))
        });
        let mut ends: Vec<_> = done.collect();
        ends.sort_unstable();
        let begins = ends.iter().map(|(_, token, version)| (self.begun[token], *token, *version));
        let mut begins: Vec<_> = begins.collect();
        begins.sort_unstable_by_key(|(begun, token, _)| (begun.at, *token));
        let mut ended = ends.iter().peekable();
        let mut most = BTreeMap::<u64, (usize, u64)>::new();
        for (begun, token, version) in begins {
            while let Some((_, other, version)) = ended.next_if(|(end, ..)| *end < begun.at) {
                let most = most.entry(register(*other)).or_default();
                *most = (*most).max((*version, *other));
            }
            let (seen, other) = most.get(&register(token)).copied().unwrap_or_default();
            let least = seen + usize::from(!begun.is_read);
            run.expect(Check::Linearizable, version >= least, || {
                format!("{token} has version {version}, and {other} before it had {seen}")
            });
        }
    }
}

/// An operation of a client as a checker from elsewhere needs it: without its place in the order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The client: a session, or all who are at one node.
    pub client: u64,
    /// The register that was read or written.
    pub register: u64,
    /// Whether the operation wrote.
    pub is_write: bool,
    /// What was written or read; 0 of a register that was not written yet.
    pub value: u64,
    /// How many writes the register then had.
    pub version: u64,
    /// When the operation began.
    pub begin: SimTime,
    /// When it was answered; `None` without an answer.
    pub end: Option<SimTime>,
}

impl History {
    /// The operations of all clients that have to be linearizable, but for reads without an answer
    /// and for writes without an answer that no replica told. Each write has a value of its own. An
    /// answered write that is not in the order has the version 0, which no checker takes.
    pub fn operations(&self) -> Vec<Operation> {
        let written = self.writes();
        let of = |(token, begun): (&u64, &Begun)| {
            let writes = written.get(&register(*token)).map_or(&[][..], |writes| writes);
            let version = match (begun.is_read, begun.end) {
                _ if begun.is_local => return None,
                (true, Some((_, place))) => writes.partition_point(|(write, _)| *write <= place),
                (true, None) => return None,
                (false, end) => match writes.iter().position(|(_, write)| write == token) {
                    Some(at) => at + 1,
                    None if end.is_some() => 0,
                    None => return None,
                },
            };
            Some(Operation {
                client: begun.client,
                register: register(*token),
                is_write: !begun.is_read,
                value: version.checked_sub(1).map_or(0, |at| value(writes[at].1)),
                version: version as u64,
                begin: begun.at,
                end: begun.end.map(|(at, _)| at),
            })
        };
        self.begun.iter().filter_map(of).collect()
    }
}

/// What a write writes. No write writes a zero, which stands for no write.
fn value(token: u64) -> u64 {
    token + 1
}

/// The register that an operation reads or writes.
pub fn register(token: u64) -> u64 {
    token % REGISTERS
}

/// What a write asks for: eight bytes of value behind the number of a register, counted from one.
pub fn body(token: u64) -> Bytes {
    [&[1 + register(token) as u8][..], &token.to_le_bytes()].concat().into()
}

/// A snapshot of what the cycles have made.
pub fn snapshot(made: u64) -> Vec<u8> {
    let mut prng = Prng::new(made);
    let words = SNAPSHOT_BYTES / 8 - 1;
    let rest = (0..words).flat_map(|_| prng.next_u64().to_le_bytes());
    made.to_le_bytes().into_iter().chain(rest).collect()
}

/// A digest of the requests of a cycle and of all cycles before it.
fn digest(before: u64, state: &VnodeState) -> u64 {
    let requests = state.sets.iter().flat_map(|set| &set.requests);
    requests.fold(before.wrapping_add(state.cycle), |digest, request| {
        (digest ^ request.sequence).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
