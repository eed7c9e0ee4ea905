//! Canopus under faults: agreement, order, nontriviality, equal tables, linearizable histories.
//!
//! A seed draws a tree (one super-leaf, two, three, or four below two vnodes), the pipeline, the
//! redundancy, the length of datagrams and of histories, whether disks get full, and the faults.
//! Every second seed has write leases. Others have consensus in the second round and lose a whole
//! super-leaf, or take one out as planned (`vanish`). In the campaign `racks` every seed has a
//! service outside that says who has vanished. A third of the restarts lose the disk. Clients write
//! and read four registers at all nodes. Owners give checkpoints. Checks look at what every replica
//! told its owner, and at nothing else.

pub mod history;
mod membership;
pub mod memory;
pub mod ordered;
mod racks;
pub mod rivals;
mod sessions;
mod vanish;
pub mod wide;
mod wrong;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use evenfall_consensus_machine::{
    Canopus, ClientRequest, Config, EmulationTable, Event, LeafMember, LeafOnlyTree, LeaseKey,
    SecondRound, SuperLeaf, VnodeId, journal,
};
use evenfall_core::{Disk as _, NodeId, Prng, Timestamp};
use evenfall_sim::campaign::Outline;
use evenfall_sim::{
    Altered, Bounds, Campaign, DiskFaults, Fault, FaultKind, HostSpec, NodeIndex, Observer, Plan,
    Run, Seen, SimDisk, SimTime, SimWrites, Transcript, Victims, Violation, Wire, World,
    named_variants,
};
use history::History;
use membership::Membership;
use sessions::{Does, Sessions};
use wrong::WrongReplica;
pub(crate) use wrong::exaggerate;

/// Delay of a packet. A cycle of height 3 takes about six of these delays.
const DELAY: Duration = Duration::from_micros(300);
/// Longest time of a write: about the time of a cycle.
const WRITE: Duration = Duration::from_millis(2);
/// Registers that clients write and read.
const REGISTERS: u64 = 4;
/// Requests and reads of a run.
const OPERATIONS: u64 = 300;
/// When clients end: after the last fault, so that some operations meet a healed system.
const CLIENTS_UNTIL: SimTime = SimTime::from_millis(1_400);
/// When one last request is made at every node: all suspicions are over, all nodes are back.
const LAST_AT: SimTime = SimTime::from_millis(2_000);
/// When a run is judged.
const END: SimTime = SimTime::from_millis(2_600);
/// Time between two checkpoints of a node.
const CHECKPOINT_EVERY: Duration = Duration::from_millis(130);

named_variants! {
    /// What must hold.
    pub enum Check {
        /// All replicas have the same requests in the same order in a cycle.
        Agreement,
        /// A replica tells cycles one after the other, each once in a life.
        Order,
        /// What is committed was submitted, and is committed once.
        Nontriviality,
        /// Requests that one client sends to one node keep their order.
        Fifo,
        /// All replicas have the same table of nodes in a cycle.
        SameTable,
        /// Reads and writes that did not overlap in time are ordered as they happened.
        Linearizable,
        /// A session sees nothing older than what it saw or wrote before.
        SessionOrder,
        /// When the faults are over, every node takes part and commits the same cycles.
        Resumes,
    }
    /// What may be wrong.
    pub enum Mutant {
        /// Sends proposals and promises before they are on the disk.
        SendsEarly,
        /// Takes any report for the report of a disk that has ten entries more.
        BelievesAnything,
        /// Executes the sets of a cycle in the order of node names on one node.
        SortsByName,
        /// Tells a cycle twice.
        RepeatsCycles,
        /// Executes a request that nobody made.
        InventsRequests,
        /// Executes requests with other bytes.
        ChangesBytes,
        /// Hands out the first bytes of a snapshot alone.
        CutsSnapshots,
        /// Executes the requests of a set backwards.
        ReversesSets,
        /// Forgets membership changes on one node.
        KeepsTheDead,
        /// Answers reads at once, out of what is committed here.
        ReadsAtOnce,
        /// Never asks to come back.
        StaysAway,
        /// Gives snapshots without the last cycle that they name.
        SnapsEarly,
        /// Takes a full disk for a broken one, and stops.
        StopsWhenFull,
        /// Compacts the log without what was decided in groups.
        CompactsPromises,
        /// Reads under the lease of a key that nobody writes.
        ReadsUnderLeases,
        /// Writes under the lease of another key.
        LeasesAnotherKey,
        /// Believes on one node that its peers vouch for it far longer than they do.
        OutlivesVouches,
        /// Votes after the loss of a disk as if it were still the earlier disk.
        VotesWithoutPast,
        /// Takes a ballot for one that has ten entries more.
        BelievesBallots,
        /// Never lets a super-leaf back in.
        NeverReturns,
        /// The service outside takes every change, whatever it has by then.
        TakesEveryChange,
        /// Lets a session read at a replica where it was not opened.
        ReadsUnopened,
    }
}

/// Whether a node crashes and does not come back.
fn is_down_for_good(plan: &Plan, node: NodeIndex) -> bool {
    let of = |fault: &Fault| match fault {
        Fault::Crash(of) => (*of == node).then_some(true),
        Fault::Restart(of) => (*of == node).then_some(false),
        _ => None,
    };
    plan.faults.iter().filter_map(|(_, fault)| of(fault)).next_back() == Some(true)
}

/// A log with the number of the disk alone.
fn disk_record(log: &Bytes) -> Bytes {
    let (records, _) = journal::read(log).expect("a log that a replica wrote");
    let is_disk =
        |record: &&journal::ReplicaRecord| matches!(record, journal::ReplicaRecord::Disk(_));
    evenfall_core::journal::log_of(records.iter().rev().find(is_disk).map(journal::body))
}

type Subject = Altered<Canopus, WrongReplica>;

/// An operation of a client.
#[derive(Clone, Copy, Debug)]
struct Operation {
    at: SimTime,
    node: NodeIndex,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    Read,
    /// The owner of the node gives a checkpoint.
    Checkpoint,
    /// The super-leaf of this number leaves as planned.
    Retire(usize),
    /// The owner of the node reads the membership service outside, and asks it for a change.
    Look,
}

/// Trees by the knob `tree`: how many super-leaves there are below each of how many vnodes.
fn tree(knob: u64) -> LeafOnlyTree {
    let paths: Vec<Vec<u8>> = match knob {
        0 => vec![vec![]],
        1 => vec![vec![1], vec![2]],
        2 => vec![vec![1], vec![2], vec![3]],
        _ => vec![vec![1, 1], vec![1, 2], vec![2, 1], vec![2, 2]],
    };
    let mut node = 0..;
    let leaf = |path: Vec<u8>| {
        let members = node.by_ref().take(3);
        let members = members
            .map(|node| LeafMember { node: NodeId(node), address: NodeIndex(node).address() });
        SuperLeaf { path, members: members.collect() }
    };
    LeafOnlyTree::new(paths.into_iter().map(leaf).collect()).expect("a tree of ours")
}

fn config(plan: &Plan) -> Config {
    Config {
        pipeline: plan.knob("pipeline"),
        redundancy: plan.knob("redundancy") as usize,
        datagram_bytes: plan.knob("datagram") as usize,
        history: plan.knob("history"),
        log_bytes: 4 << 10,
        full_retry: Duration::from_millis(30),
        lease_cycles: lease_cycles(plan),
        cycle_every: Duration::from_millis(2),
        heartbeat: Duration::from_millis(10),
        fetch_every: Duration::from_millis(10),
        suspect_after: Duration::from_millis(60),
        second_round: vanish::second_round(plan),
        vanish_after: Duration::from_millis(120),
        ..Config::default()
    }
}

/// Every second seed has write leases, of 1 to 12 cycles.
fn lease_cycles(plan: &Plan) -> u64 {
    let mut prng = Prng::new(plan.seed).fork(0x6c65);
    if prng.chance(0.5) && !racks::is_of(plan) { 1 + prng.below(12) } else { 0 }
}

/// The owner of all replicas, their disks and their clients.
struct Owner {
    plan: Plan,
    tree: LeafOnlyTree,
    mutant: Option<Mutant>,
    disks: Vec<SimDisk>,
    lives: BTreeMap<NodeIndex, u64>,
    /// The nodes that lost their disks and do not vote yet.
    learning: BTreeSet<NodeIndex>,
    /// The super-leaves whose nodes last started before it was agreed that the super-leaf leaves.
    early: BTreeSet<VnodeId>,
    membership: Membership,
    sessions: Sessions,
    operations: Vec<Operation>,
    history: History,
}

impl Owner {
    fn subject(&self, node: NodeIndex) -> Subject {
        let log = self.disks[node.0 as usize].read(journal::LOG, 0, usize::MAX);
        let log = log.expect("the disks of this campaign read well");
        let life = self.lives.get(&node).copied().unwrap_or(0);
        let seed = Prng::new(self.plan.seed).fork(u64::from(node.0) << 32 | life).next_u64();
        let mut config = config(&self.plan);
        if self.mutant == Some(Mutant::OutlivesVouches) && node.0 == 0 {
            config.suspect_after *= 20;
        }
        let replica = Canopus::new(config, self.tree.clone(), NodeId(node.0), seed, &log);
        let wrong = self.mutant.map(|mutant| WrongReplica { mutant, node: node.0 });
        Altered::new(replica.expect("a log that a replica wrote"), wrong)
    }

    /// The key of a register. An operation in 31 names all keys, and a write then asks for the
    /// lease of all keys.
    fn lease_key(&self, token: u64, is_read: bool) -> LeaseKey {
        match self.mutant {
            Some(Mutant::ReadsUnderLeases) if is_read => LeaseKey(REGISTERS),
            Some(Mutant::LeasesAnotherKey) if !is_read => LeaseKey(REGISTERS),
            _ if token.is_multiple_of(31) => LeaseKey::ALL,
            _ => LeaseKey(history::register(token)),
        }
    }

    /// Takes a node's disk away, in a third of all restarts. No other member of the super-leaf may
    /// be without its disk or down for good, because a majority has to remember.
    fn lose_disk(&mut self, node: NodeIndex) {
        let life = self.lives.get(&node).copied().unwrap_or(0);
        let mut prng =
            Prng::new(self.plan.seed).fork(0x6c6f << 40 | u64::from(node.0) << 20 | life);
        let is_gone = |node| self.learning.contains(&node) || is_down_for_good(&self.plan, node);
        let leaf = self.tree.super_leaf_of(NodeId(node.0)).expect("a node of the tree");
        let mut members = leaf.members.iter().map(|member| NodeIndex(member.node.0));
        let is_lost = prng.chance(1.0 / 3.0) && !members.any(is_gone);
        let takes_all = vanish::takes_disk(&self.plan, node, life) && self.others_remember(node);
        if !is_lost && !takes_all {
            return;
        }
        let disk = &self.disks[node.0 as usize];
        let log = disk.read(journal::LOG, 0, usize::MAX).expect("the disks read well");
        let kept = match self.mutant {
            Some(Mutant::VotesWithoutPast) => disk_record(&log),
            _ => Bytes::new(),
        };
        // The other disk has room, and the present one may be full.
        let faults = disk.faults();
        disk.set_faults(DiskFaults::default());
        disk.replace(journal::LOG, &kept).expect("the disk works");
        disk.sync(journal::LOG).expect("the disk works");
        disk.set_faults(faults);
        self.learning.insert(node);
        self.history.lost += 1;
    }

    /// The super-leaves that the next cycle needs, that have all cycles, because the last one has
    /// needed them, and that do not leave. With a service outside, all but one may have vanished,
    /// and the last one has the only disks that count.
    fn needed(&self) -> Vec<VnodeId> {
        let mut table = EmulationTable::new(&self.tree);
        let next = self.history.apply(&mut table, &config(&self.plan));
        let leaves = self.tree.leaves().map(|(leaf, _)| leaf);
        let is_needed = |leaf: &VnodeId| {
            let incarnation = table.leaf_incarnation(*leaf, next);
            let mut around = [next.saturating_sub(1), u64::MAX].into_iter();
            let stays = around.all(|cycle| table.leaf_incarnation(*leaf, cycle) == incarnation);
            let may_end = |incarnation| self.membership.may_end(*leaf, incarnation);
            stays && incarnation.is_some_and(|incarnation| !may_end(incarnation))
        };
        leaves.filter(is_needed).collect()
    }

    /// Whether the next cycle needs another super-leaf than that of a node, and the nodes of the
    /// other one have their disks.
    fn others_remember(&self, node: NodeIndex) -> bool {
        let table = EmulationTable::new(&self.tree);
        let home = |node: NodeIndex| table.home(NodeId(node.0));
        let learns = |leaf| self.learning.iter().any(|node| home(*node) == Some(leaf));
        self.needed().into_iter().any(|leaf| Some(leaf) != home(node) && !learns(leaf))
    }

    /// Whether a majority lives of some super-leaf that the next cycle needs. Without one, and
    /// with a service outside, nobody may go on.
    fn may_resume(&self, live: &[NodeIndex]) -> bool {
        let table = EmulationTable::new(&self.tree);
        let lives = |leaf: &VnodeId| {
            let of = |node: &&NodeIndex| table.home(NodeId(node.0)) == Some(*leaf);
            live.iter().filter(of).count() > 1
        };
        let is_external = vanish::second_round(&self.plan) == SecondRound::External;
        !is_external || self.needed().iter().any(lives)
    }

    /// Notes whether the super-leaf of a node that starts again still takes part.
    fn note_start(&mut self, node: NodeIndex) {
        let mut table = EmulationTable::new(&self.tree);
        let Some(leaf) = table.home(NodeId(node.0)) else { return };
        self.history.apply(&mut table, &config(&self.plan));
        match table.leaf_incarnation(leaf, u64::MAX) {
            Some(_) => self.early.insert(leaf),
            None => self.early.remove(&leaf),
        };
    }

    /// Whether a node waits for another start. A super-leaf that left as planned comes back when
    /// its nodes start, and these had started before it left.
    fn awaits_start(&self, node: NodeIndex) -> bool {
        let mut table = EmulationTable::new(&self.tree);
        let Some(leaf) = table.home(NodeId(node.0)) else { return false };
        if !self.early.contains(&leaf) || !self.history.left_as_planned(leaf) {
            return false;
        }
        self.history.apply(&mut table, &config(&self.plan));
        table.leaf_incarnation(leaf, u64::MAX).is_none()
    }

    /// Hands a request of a client to a replica.
    fn ask(&mut self, seen: Seen, token: u64, client: u64, is_read: bool, subject: &mut Subject) {
        let key = self.lease_key(token, is_read);
        let taken = subject.input(seen.local, |replica| match is_read {
            true => replica.read_of(seen.local, token, key),
            false => {
                let body = history::body(token);
                replica.submit_to(seen.local, ClientRequest { client, sequence: token, body }, key)
            }
        });
        if taken.is_ok() {
            self.history.begin(seen, token, client, is_read);
        }
    }

    /// What a session does next.
    fn of_session(&mut self, seen: Seen, token: u64, subject: &mut Subject) {
        let place = (seen.at, seen.node, self.history.life(seen.node));
        let does = self.sessions.next(self.plan.seed, token, place, &mut self.history);
        let client = sessions::client(token);
        match does {
            Some(Does::Read) => self.history.read_here(seen, token, client),
            Some(does) => self.ask(seen, token, client, does == Does::Sync, subject),
            None => {}
        }
    }

    /// Gives a replica what its cycles have made.
    fn checkpoint(&mut self, seen: Seen, subject: &mut Subject) {
        let Some((cycle, mut made)) = self.history.made(seen.node) else { return };
        if self.mutant == Some(Mutant::SnapsEarly) {
            made ^= cycle;
        }
        let snapshot = history::snapshot(made);
        let taken = subject.input(seen.local, |replica| {
            replica.committed() == cycle && replica.checkpoint(&snapshot)
        });
        self.history.checkpoints += u64::from(taken);
    }
}

impl Observer<Subject, Wire> for Owner {
    fn event(&mut self, seen: Seen, event: Event) {
        let is_on = vanish::second_round(&self.plan).is_on();
        let votes = if is_on { Event::Counts } else { Event::Learned };
        if event == votes {
            self.learning.remove(&seen.node);
        }
        self.history.take(seen, event);
    }

    fn invoke(&mut self, seen: Seen, token: u64, subject: &mut Subject) {
        if token >= sessions::FIRST {
            return self.of_session(seen, token, subject);
        }
        let operation = self.operations[token as usize];
        let is_read = operation.kind == Kind::Read;
        if is_read && self.mutant == Some(Mutant::ReadsAtOnce) {
            return self.history.read_at_once(seen, token);
        }
        match operation.kind {
            Kind::Checkpoint => return self.checkpoint(seen, subject),
            Kind::Look => {
                let taken =
                    subject.input(seen.local, |replica| self.membership.look(seen, replica));
                return self.history.looked(seen, taken, self.membership.changes);
            }
            Kind::Retire(leaf) => {
                let (leaf, _) = self.tree.leaves().nth(leaf).expect("a super-leaf of the tree");
                // A replica whose disk is full refuses the plan, and nothing more happens.
                let _ = subject.input(seen.local, |replica| replica.retire(seen.local, leaf));
                return;
            }
            Kind::Read | Kind::Write => {}
        }
        self.ask(seen, token, u64::from(seen.node.0), is_read, subject);
    }

    fn revive(&mut self, node: NodeIndex, _: Timestamp) -> Option<Subject> {
        *self.lives.entry(node).or_default() += 1;
        self.lose_disk(node);
        self.note_start(node);
        self.history.restart(node);
        Some(self.subject(node))
    }
}

/// The campaign `consensus`.
pub static CONSENSUS: CanopusCampaign = CanopusCampaign(Of::Hosts);
/// The campaign `racks`: every seed has a membership service outside.
pub static RACKS: CanopusCampaign = CanopusCampaign(Of::Racks);
/// The campaign `sessions`: clients as ZooKeeper's are there, too.
pub static SESSIONS: CanopusCampaign = CanopusCampaign(Of::Sessions);

/// A campaign of Canopus.
pub struct CanopusCampaign(Of);

#[derive(Clone, Copy, Debug)]
enum Of {
    Hosts,
    Racks,
    Sessions,
}

impl CanopusCampaign {
    /// What the clients of a seed saw, for a checker from elsewhere.
    pub fn operations(&self, seed: u64, mutant: Option<Mutant>) -> Vec<history::Operation> {
        play(&self.scene(seed), mutant, false).owner.history.operations()
    }

    fn bounds(&self) -> Bounds {
        let mut knobs = vec![
            ("tree", 0..=3),
            ("pipeline", 1..=4),
            ("redundancy", 1..=2),
            ("datagram", 200..=1_400),
            ("history", 8..=80),
            ("full", 0..=1),
        ];
        match self.0 {
            Of::Hosts => {}
            Of::Racks => {
                knobs[0].1 = 1..=2;
                knobs.push(racks::KNOB);
            }
            Of::Sessions => knobs.push(sessions::KNOB),
        }
        Bounds {
            knobs,
            kinds: self.outline().kinds.to_vec(),
            disk_max: DiskFaults { slow_by: Duration::from_millis(20), ..DiskFaults::default() },
            ..Bounds::default()
        }
    }
}

impl Campaign for CanopusCampaign {
    type Check = Check;
    type Mutant = Mutant;
    type Scene = Plan;

    fn outline(&self) -> Outline<Mutant, Check> {
        let hosts = Outline {
            name: "consensus",
            about: "Canopus in trees of height 1 to 3 under faults of hosts, slow and full disks",
            // A seed takes .2 to .4 CPU seconds: the three campaigns with these seeds take longest.
            seeds: 400,
            once_failed: &[
                979, 1079, 1765, 2194, 2388, 3614, 5832, 6794, 23841, 25264, 35524, 45086, 91693,
            ],
            kinds: &[
                FaultKind::Loss,
                FaultKind::Duplicate,
                FaultKind::Reorder,
                FaultKind::Crash,
                FaultKind::Restart,
                FaultKind::Pause,
                FaultKind::Partition,
                FaultKind::OneWay,
                FaultKind::Slow,
                FaultKind::ClockStep,
                FaultKind::ClockDrift,
                FaultKind::Disk,
            ],
            counts_min: &[
                ("reads under leases", 1_000),
                ("cycles", 1_000),
                ("writes answered", 1_000),
                ("reads answered", 1_000),
                ("expelled", 10),
                ("joined", 10),
                ("checkpoints", 1_000),
                ("installed", 10),
                ("full disks", 10),
                ("lost disks", 10),
                ("super-leaves left out", 20),
                ("super-leaves retired", 20),
                ("super-leaves ended outside", 20),
            ],
            mutants: &[
                (Mutant::SendsEarly, Check::Agreement, 130..400),
                (Mutant::BelievesAnything, Check::Agreement, 0..400),
                (Mutant::SortsByName, Check::Agreement, 0..10),
                (Mutant::RepeatsCycles, Check::Order, 0..10),
                (Mutant::InventsRequests, Check::Nontriviality, 0..10),
                (Mutant::ChangesBytes, Check::Nontriviality, 0..10),
                (Mutant::CutsSnapshots, Check::Agreement, 0..400),
                (Mutant::ReversesSets, Check::Fifo, 0..20),
                (Mutant::KeepsTheDead, Check::SameTable, 0..100),
                (Mutant::ReadsAtOnce, Check::Linearizable, 0..20),
                (Mutant::StaysAway, Check::Resumes, 0..100),
                (Mutant::SnapsEarly, Check::Agreement, 0..100),
                (Mutant::StopsWhenFull, Check::Resumes, 0..100),
                (Mutant::CompactsPromises, Check::Resumes, 0..20),
                (Mutant::ReadsUnderLeases, Check::Linearizable, 0..40),
                (Mutant::LeasesAnotherKey, Check::Linearizable, 0..40),
                (Mutant::OutlivesVouches, Check::Linearizable, 30..1_000),
                (Mutant::VotesWithoutPast, Check::Agreement, 100..1_000),
                (Mutant::BelievesBallots, Check::Agreement, 160..1_000),
                (Mutant::NeverReturns, Check::Resumes, 0..1_000),
                (Mutant::TakesEveryChange, Check::Agreement, 640..1_000),
            ],
        };
        match self.0 {
            Of::Hosts => hosts,
            Of::Racks => racks::outline(&hosts),
            Of::Sessions => sessions::outline(&hosts),
        }
    }

    fn scene(&self, seed: u64) -> Plan {
        let mut bounds = self.bounds();
        let plan = Plan::new(seed, &bounds);
        // A disk that is full takes no byte more.
        bounds.disk_max.bytes_max = (plan.knob("full") == 1).then_some(0);
        let count = tree(plan.knob("tree")).members().count() as u32;
        let mut victims = Victims::returning(0..count - 1);
        victims.expendable.push(NodeIndex(count - 1));
        vanish::aimed(plan.aimed(&bounds, &victims))
    }

    fn run(&self, plan: &Plan, mutant: Option<Mutant>, story: bool) -> Run<Check> {
        let Played { owner, live, digest, story } = play(plan, mutant, story);
        let mut run = Run { digest, story, ..Run::default() };
        let may_resume = owner.may_resume(&live);
        let mut live = if may_resume { live } else { Vec::new() };
        let up = live.len();
        live.retain(|node| !owner.awaits_start(*node));
        run.counts.push(("nodes started too early", (up - live.len()) as u64));
        owner.history.judge(&live, OPERATIONS, &mut run);
        run.counts.push(("last super-leaves lost", u64::from(!may_resume)));
        run
    }
}

/// A run that is over and was not judged.
struct Played {
    owner: Owner,
    /// The nodes that are up.
    live: Vec<NodeIndex>,
    digest: u64,
    story: String,
}

fn play(plan: &Plan, mutant: Option<Mutant>, story: bool) -> Played {
    let tree = tree(plan.knob("tree"));
    let count = tree.members().count() as u32;
    let nodes = (0..count).map(NodeIndex);
    let disk =
        |node: NodeIndex| SimDisk::new(plan.seed ^ u64::from(node.0) << 40, DiskFaults::default());
    let mut owner = Owner {
        plan: plan.clone(),
        tree,
        mutant,
        disks: nodes.clone().map(disk).collect(),
        lives: BTreeMap::new(),
        learning: BTreeSet::new(),
        early: BTreeSet::new(),
        membership: Membership::new(plan, mutant == Some(Mutant::TakesEveryChange)),
        sessions: Sessions::new(mutant == Some(Mutant::ReadsUnopened)),
        operations: operations(plan.seed, count),
        history: History::default(),
    };
    let mut world = World::new(Wire::new(DELAY), plan.seed);
    for node in nodes.clone() {
        let (subject, disk) = (owner.subject(node), owner.disks[node.0 as usize].clone());
        world.add(subject, HostSpec::ideal());
        world.attach(node, SimWrites::new(disk, plan.seed ^ u64::from(node.0), WRITE));
    }
    for node in nodes.clone() {
        owner.operations.push(Operation { at: LAST_AT, node, kind: Kind::Write });
    }
    for (number, node) in (0..).zip(nodes.clone().cycle()) {
        // Nodes take turns, so that they have checkpoints of different cycles.
        let at = SimTime::ZERO + CHECKPOINT_EVERY * number / count;
        if at >= END {
            break;
        }
        owner.operations.push(Operation { at, node, kind: Kind::Checkpoint });
    }
    owner.operations.extend(vanish::retirement(plan));
    owner.operations.extend(vanish::checkpoints(plan));
    owner.operations.extend(membership::looks(plan, count));
    owner.operations.extend(racks::nudges(plan, count));
    for (token, operation) in owner.operations.iter().enumerate() {
        world.invoke_at(operation.at, operation.node, token as u64);
    }
    for (at, node, token) in sessions::tries(plan, count) {
        world.invoke_at(at, node, token);
    }
    plan.schedule(&mut world);
    let mut watch = Transcript::told(owner, story);
    world.run_until(END, &mut watch);
    let live: Vec<NodeIndex> = nodes.filter(|node| world.is_up(*node)).collect();
    Played { owner: watch.inner, live, digest: world.digest(), story: watch.text }
}

fn operations(seed: u64, nodes: u32) -> Vec<Operation> {
    let mut prng = Prng::new(seed).fork(0x6f70);
    let mut times: Vec<u64> = (0..OPERATIONS).map(|_| prng.below(CLIENTS_UNTIL.nanos())).collect();
    times.sort_unstable();
    let mut operation = |at| Operation {
        at: SimTime::from_nanos(at),
        node: NodeIndex(prng.below(nodes.into()) as u32),
        kind: if prng.chance(0.4) { Kind::Read } else { Kind::Write },
    };
    times.into_iter().map(&mut operation).collect()
}

/// A violation of what a node told.
fn broken(check: Check, seen: Seen, what: String) -> Violation<Check> {
    Violation::at(check, seen.at, seen.node, what)
}
