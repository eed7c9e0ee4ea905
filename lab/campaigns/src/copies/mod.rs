//! A nameserver and dataservers under faults: appends, reads and names.
//!
//! A seed draws the number of dataservers and of copies, the length of chunks, whether disks get
//! full or lose everything, and the faults. Clients make, move and delete files at the nameserver,
//! append at the primaries, and read at any dataserver. In half of the runs, writers take leases,
//! sleep, and append under leases that they have lost. Checks look at what clients were told and at
//! the disks.

mod history;
mod node;
mod operations;
mod writers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{Arrival, Disk as _, Prng, Timestamp, Write};
use evenfall_files_machine::config::BLOCK_BYTES;
use evenfall_files_machine::log_replication::{self, FoundLog};
use evenfall_files_machine::namespace::{Caller, NamespaceCall};
use evenfall_files_machine::wire::{DataserverBeat, FilesControl, FilesMessage};
use evenfall_files_machine::{
    DataConfig, DiskId, FilesRefusal, InodeId, NameConfig, dataserver, nameserver,
};
use evenfall_sim::campaign::Outline;
use evenfall_sim::{
    Alteration, Altered, Asked, Bounds, Campaign, DiskFaults, Fault, FaultKind, HostSpec,
    NodeIndex, Observer, Plan, Run, Seen, SimDisk, SimTime, SimWrites, Transcript, Victims, Wire,
    World, named_variants,
};
use history::CopiesHistory;
use node::{CopiesEvent, CopiesNode};
use operations::{CopiesOperation, Kind, operations};
use writers::Writers;

/// Time that a packet takes from one node to another.
const DELAY: Duration = Duration::from_micros(300);
/// Longest time that a write takes.
const WRITE: Duration = Duration::from_millis(2);
/// Operations of the clients in a run. Clients guess the primary of a file, so many operations
/// reach a dataserver that refuses them.
const OPERATIONS: u64 = 500;
/// When clients end: after the last fault, so that some operations meet a healed system.
const CLIENTS_UNTIL: SimTime = SimTime::from_millis(1_600);
/// When every dataserver is asked for one last append to every file, several times.
const LAST_AT: [SimTime; 4] = [
    SimTime::from_millis(2_400),
    SimTime::from_millis(2_500),
    SimTime::from_millis(2_600),
    SimTime::from_millis(2_700),
];
/// When the nameserver learns the lengths of files.
const FLUSH_AT: SimTime = SimTime::from_millis(900);
/// When copies begin to move for balance.
const BALANCE_AT: SimTime = SimTime::from_millis(1_000);
/// When copies move for balance no more, so that all are in their places at the end.
const BALANCED_AT: SimTime = SimTime::from_millis(2_750);
/// Bytes that move for balance in a second: a file every 20 ms.
const BALANCE_BYTES_S: u64 = 1_000_000;
/// When an operator rebuilds a nameserver that asks for a rebuild: after the last fault.
const OPERATOR_AT: SimTime = SimTime::from_millis(1_150);
/// When a run is judged.
const END: SimTime = SimTime::from_millis(3_200);
/// The nameserver's node. Dataservers have the nodes behind it.
const NAMES: NodeIndex = NodeIndex(0);

named_variants! {
    /// What must hold.
    pub enum Check {
        /// A file keeps each acknowledged append as long as a disk has the append.
        Kept,
        /// A file has each append whole and at most once, and no other bytes.
        Whole,
        /// An append that was acknowledged before another append began stands in front of that one.
        Order,
        /// A reader sees a prefix of what any later reader sees.
        Prefix,
        /// When a writer was told that the nameserver has noted a length, every later reader that
        /// asks the nameserver hears of that length or more.
        Fresh,
        /// Acknowledged changes of names hold, and no name changes without a call of a client.
        Names,
        /// When the faults are over, every file takes appends and has all its copies, all equal.
        Heals,
        /// When the faults are over, no copy is on a disk that all copies shall leave, and the
        /// copies of a file are in several racks where there are several.
        Places,
        /// No append of an earlier lease stands behind an append of a later lease.
        Leases,
    }
    /// What may be wrong.
    pub enum Mutant {
        /// A dataserver takes its writes for done before the disk has done them.
        AcksEarly,
        /// The nameserver answers before the change is in its log and in the copies of its log.
        ForgetsNames,
        /// A follower takes appends of every epoch.
        TakesOldEpochs,
        /// The nameserver hears that every copy is empty.
        CutsTooMuch,
        /// A client is told that an append is there although the append was refused.
        AcksRefused,
        /// Readers see all bytes on a disk, and not only the bytes that all members have.
        ReadsAhead,
        /// A follower writes other bytes than the primary sent.
        ChangesBytes,
        /// A client is told at once that an append is there, and the next append is made first.
        HoldsBack,
        /// No dataserver is asked to copy a file.
        StopsRepair,
        /// The nameserver hears of no racks.
        IgnoresRacks,
        /// A client is told that the copies leave a disk, and the nameserver never hears of it.
        ForgetsLeaving,
        /// A file that has lost all its members goes on from the first disk that answers.
        TakesFirstHeir,
        /// The nameserver is rebuilt from the oldest copy of its log.
        RebuildsFromOldest,
        /// The nameserver hears of half of each length, and writers are told that it noted all.
        ForgetsLengths,
        /// A dataserver takes appends of a writer that has lost its lease.
        OldWriterAppends,
    }
}

/// A mutant on one node of a world.
pub struct WrongServer(Mutant);

impl Alteration<CopiesNode> for WrongServer {
    fn arrival(&mut self, node: &CopiesNode, _: Timestamp, arrival: Arrival) -> Option<Arrival> {
        let Ok((cluster, message)) = FilesMessage::decode(&arrival.datagram) else {
            return Some(arrival);
        };
        let changed = match (self.0, node, message) {
            (
                Mutant::TakesOldEpochs,
                CopiesNode::Data(server, ..),
                FilesMessage::Relay { file, offset, committed, bytes, .. },
            ) => {
                let epoch = server.epoch(file)?;
                FilesMessage::Relay { file, epoch, offset, committed, bytes }
            }
            (
                Mutant::ChangesBytes,
                CopiesNode::Data(..),
                FilesMessage::Relay { file, epoch, offset, committed, bytes },
            ) => {
                let bytes = bytes.iter().map(|byte| byte ^ 1).collect();
                FilesMessage::Relay { file, epoch, offset, committed, bytes }
            }
            (
                Mutant::CutsTooMuch,
                CopiesNode::Name(_),
                FilesMessage::Control(FilesControl::Sealed { file, epoch, held, disk, .. }),
            ) => {
                let (length, committed) = (0, 0);
                let sealed = FilesControl::Sealed { file, epoch, held, disk, length, committed };
                FilesMessage::Control(sealed)
            }
            (
                Mutant::ForgetsLengths,
                CopiesNode::Name(_),
                FilesMessage::Control(FilesControl::Length { file, epoch, length, closes }),
            ) => {
                let length = length / 2;
                FilesMessage::Control(FilesControl::Length { file, epoch, length, closes })
            }
            (
                Mutant::ForgetsLengths,
                CopiesNode::Data(..),
                FilesMessage::Control(FilesControl::Noted { file, .. }),
                // A dataserver that believes all lengths to be noted never repeats one.
            ) => FilesMessage::Control(FilesControl::Noted { file, length: u64::MAX }),
            (
                Mutant::IgnoresRacks,
                CopiesNode::Name(_),
                FilesMessage::Control(FilesControl::Beat(beat)),
            ) => {
                let beat = DataserverBeat { rack: String::new(), ..beat };
                FilesMessage::Control(FilesControl::Beat(beat))
            }
            (
                Mutant::StopsRepair,
                CopiesNode::Data(server, ..),
                FilesMessage::Control(FilesControl::Assign(assignment)),
            ) => {
                let mut joiners = assignment.joiners.iter();
                let is_joiner = joiners.any(|(place, _)| place.disk == server.disk());
                return (!is_joiner).then_some(arrival);
            }
            _ => return Some(arrival),
        };
        let (head, body) = changed.encode(cluster);
        let datagram = Bytes::from([&head[..], &body].concat());
        Some(Arrival { datagram, ..arrival })
    }

    fn event(&mut self, event: CopiesEvent, out: &mut VecDeque<CopiesEvent>) {
        out.push_back(match (self.0, event) {
            (Mutant::AcksRefused, CopiesEvent::Data(dataserver::Event::Refused { token, .. })) => {
                CopiesEvent::Data(dataserver::Event::Appended { token, end: 0 })
            }
            (_, event) => event,
        });
    }

    fn write(&mut self, write: Write) -> Asked {
        // The log of the nameserver and the copies of this log have names with this beginning.
        let is_names = write.log.starts_with(nameserver::LOG);
        match self.0 {
            Mutant::AcksEarly if !is_names => Asked::Early(write),
            Mutant::ForgetsNames if is_names => Asked::Early(write),
            _ => Asked::Write(write),
        }
    }
}

type Subject = Altered<CopiesNode, WrongServer>;

/// An append that a mutant holds back: at which node, to which file, its token and its bytes.
type Held = (NodeIndex, InodeId, u64, Bytes);

/// The owner of all servers, their disks and their clients.
struct Owner {
    held: Option<Held>,
    plan: Plan,
    mutant: Option<Mutant>,
    disks: Vec<SimDisk>,
    lives: BTreeMap<NodeIndex, u64>,
    operations: Vec<CopiesOperation>,
    history: CopiesHistory,
    writers: Writers,
    /// Chooses the restarts in which a dataserver has lost its disk.
    wipes: Prng,
    /// Chooses the restarts in which the nameserver has lost its disk.
    rebuilds: Prng,
    /// Whether an operator restarts the nameserver, because the nameserver asks for a rebuild.
    is_asked: bool,
    /// The time of the last fault.
    fault: SimTime,
    /// The dataservers that are gone for good.
    gone: BTreeSet<NodeIndex>,
}

fn name_config(mutant: Option<Mutant>) -> NameConfig {
    NameConfig {
        dead_after: Duration::from_millis(80),
        tick: Duration::from_millis(10),
        log_bytes: 8 << 10,
        heir_wait: match mutant {
            Some(Mutant::TakesFirstHeir) => Duration::ZERO,
            // Longer than all faults together, so that each disk that comes back can answer.
            _ => Duration::from_millis(900),
        },
        full_retry: Duration::from_millis(30),
        room_bytes_min: 0,
        keepers: 3,
        // Writers sleep longer than both limits.
        lease_soft: Duration::from_millis(60),
        lease_hard: Duration::from_millis(300),
    }
}

/// Whether the cluster has a key, so that a word counts from any address.
fn is_sealed(seed: u64) -> bool {
    Prng::new(seed).fork(0x7365_616c).chance(0.5)
}

/// The rack of a dataserver, and the bytes that its disk has left: for some disks few, so that
/// their used share is high.
fn place_of(seed: u64, node: NodeIndex) -> (String, u64) {
    let mut prng = Prng::new(seed).fork(0x7261_636b);
    let rack = u64::from(node.0) % (1 + prng.below(3));
    let free = if prng.fork(u64::from(node.0)).chance(0.5) { 30_000 } else { 300_000 };
    (format!("rack-{rack}"), free)
}

fn data_config(plan: &Plan) -> DataConfig {
    DataConfig {
        chunk_bytes: plan.knob("chunk"),
        beat: Duration::from_millis(15),
        resend: Duration::from_millis(8),
        log_bytes: 4 << 10,
        full_retry: Duration::from_millis(30),
        renew: Duration::from_millis(15),
    }
}

impl Owner {
    fn subject(&self, node: NodeIndex) -> Subject {
        let disk = self.disks[node.0 as usize].clone();
        let life = self.lives.get(&node).copied().unwrap_or(0);
        let seed = Prng::new(self.plan.seed).fork(u64::from(node.0) << 32 | life).next_u64();
        let mut machine = match node == NAMES {
            true => CopiesNode::name(name_config(self.mutant), seed, &disk),
            false => CopiesNode::data(data_config(&self.plan), NAMES.address(), node, seed, disk),
        };
        if is_sealed(self.plan.seed) {
            match &mut machine {
                CopiesNode::Name(server) => server.trust_senders(),
                CopiesNode::Data(server, _) => server.trust_senders(),
            }
        }
        if let CopiesNode::Data(server, _) = &mut machine {
            let (rack, free) = place_of(self.plan.seed, node);
            server.set_labels(&format!("data-{}", node.0), &rack);
            server.set_free(free);
        }
        Altered::new(machine, self.mutant.map(WrongServer))
    }

    fn at_names(
        &mut self,
        seen: Seen,
        token: u64,
        operation: &CopiesOperation,
        subject: &mut Subject,
    ) {
        if let CopiesNode::Name(server) = subject.machine() {
            self.history.expect_noted(seen, server.namespace());
        }
        let replication = self.plan.knob("copies") as u16;
        let file = self.history.pick(operation.pick);
        let path = |file: InodeId, node: &CopiesNode| match node {
            CopiesNode::Name(server) => {
                server.namespace().file(file).map(|_| server.namespace().path(file))
            }
            CopiesNode::Data(..) => None,
        };
        let there = file.and_then(|file| Some((file, path(file, subject.machine())?)));
        let (call, file, to) = match (&operation.kind, there) {
            (Kind::Create(_), _) if self.history.is_full() => return,
            (Kind::Create(name), _) => {
                let (path, mode) = (name.clone(), 0o644);
                (
                    NamespaceCall::Create {
                        path,
                        mode,
                        replication,
                        overwrite: false,
                        writer: None,
                        block_bytes: BLOCK_BYTES,
                    },
                    None,
                    Some(name),
                )
            }
            (Kind::Rename(name), Some((file, from))) => {
                let (to, overwrite) = (name.clone(), false);
                (
                    NamespaceCall::Rename { from, to, overwrite, is_exact: false },
                    Some(file),
                    Some(name),
                )
            }
            (Kind::Delete, Some((file, path))) => {
                (NamespaceCall::Delete { path, recursive: false }, Some(file), None)
            }
            _ => return,
        };
        let to = to.cloned();
        let made = subject.input(seen.local, |node| {
            let CopiesNode::Name(server) = node else { return None };
            server
                .call(
                    seen.local,
                    seen.at.nanos() / 1_000_000,
                    token,
                    &Caller::superuser("ann"),
                    &call,
                )
                .ok()?;
            match (file, &to) {
                (Some(file), _) => Some(file),
                (None, Some(path)) => server.namespace().find(path).ok().map(|(id, _)| id),
                (None, None) => None,
            }
        });
        if let Some(file) = made {
            self.history.names_begin(file, token, to);
        }
    }

    /// All copies shall leave one of the disks, if enough disks stay when one more is gone.
    fn leave(&mut self, seen: Seen, token: u64, pick: u64, subject: &mut Subject) {
        let (copies, mutant) = (self.plan.knob("copies") as usize, self.mutant);
        let left = subject.input(seen.local, |node| {
            let CopiesNode::Name(server) = node else { return None };
            let is_in = |disk: &&DiskId| {
                server.is_live(seen.local, **disk) && !server.namespace().is_leaving(**disk)
            };
            let disks: Vec<DiskId> = server.servers().keys().filter(is_in).copied().collect();
            if disks.len() < copies + 2 {
                return None;
            }
            let disk = disks[pick as usize % disks.len()];
            if mutant != Some(Mutant::ForgetsLeaving) {
                server.leave(token, disk, true).ok()?;
            }
            Some(disk)
        });
        if let Some(disk) = left {
            self.history.leave_begin(token, disk);
            if mutant == Some(Mutant::ForgetsLeaving) {
                self.history.names_end(token);
            }
        }
    }

    /// The dataservers that live or come back.
    fn returning(&self) -> Vec<NodeIndex> {
        let is_gone = |node: NodeIndex| {
            let turn = |is_gone, (at, fault): &(SimTime, Fault)| match fault {
                Fault::Crash(of) if *of == node => is_gone || *at <= self.fault,
                Fault::Restart(of) if *of == node => false,
                _ => is_gone,
            };
            self.plan.faults.iter().fold(false, turn)
        };
        let nodes = (1..self.disks.len()).map(|node| NodeIndex(node as u32));
        nodes.filter(|node| !is_gone(*node)).collect()
    }

    /// A dataserver as it would start from its disk now.
    fn data(&self, node: NodeIndex) -> CopiesNode {
        let (config, disk) = (data_config(&self.plan), &self.disks[node.0 as usize]);
        CopiesNode::data(config, NAMES.address(), node, 1, disk.clone())
    }

    /// Whether all keepers of the nameserver's log have lost their disks since the last change,
    /// whether or not the nameserver knows it. The disk of the nameserver then has changes that no
    /// other disk has.
    fn has_only_log(&self, found: &[FoundLog]) -> bool {
        let node = CopiesNode::name(name_config(None), 1, &self.disks[NAMES.0 as usize]);
        let CopiesNode::Name(server) = &node else { return false };
        let namespace = server.namespace();
        let mut keepers = namespace.keepers().iter().filter(|disk| !namespace.is_gone(**disk));
        !keepers.any(|disk| found.iter().any(|one| one.disk == *disk))
    }

    /// The nameserver loses its disk, and is rebuilt out of the copies of its log. The nameserver
    /// keeps its disk when a dataserver is gone for good, because `evenfall files rebuild` asks all
    /// dataservers, and when no other disk has its last changes.
    fn rebuild(&mut self) {
        let returning = self.returning();
        if returning.len() + 1 < self.disks.len() {
            return;
        }
        let found = returning.into_iter().filter_map(|node| {
            let CopiesNode::Data(server, disk) = self.data(node) else { return None };
            let (generation, log) = server.log_replica_position();
            let log = log.map(|log| disk.read(&log, 0, usize::MAX).expect("disks read well"));
            Some(FoundLog { disk: server.disk(), generation, log: log.unwrap_or_default() })
        });
        let mut found: Vec<FoundLog> = found.collect();
        if self.has_only_log(&found) {
            return;
        }
        let is_whole = |best: &log_replication::RebuiltLog| best.missing.is_empty() && best.is_kept;
        let Some(newest) = log_replication::rebuilt(&found).filter(is_whole) else { return };
        let mut log = newest.log;
        while self.mutant == Some(Mutant::RebuildsFromOldest)
            && let Some(best) = log_replication::rebuilt(&found)
        {
            log = best.log;
            let newest = found.iter_mut().filter(|one| one.disk == best.disk);
            newest.for_each(|one| one.log.clear());
        }
        let disk = &self.disks[NAMES.0 as usize];
        let faults = disk.faults();
        disk.set_faults(DiskFaults::default());
        disk.remove(nameserver::LOG).expect("the disk works");
        disk.write(nameserver::LOG, 0, &log).expect("the disk works");
        disk.sync_all().expect("the disk works");
        disk.set_faults(faults);
        self.history.rebuilt += 1;
    }

    /// Excuses the appends that are on no disk of a server that lives or comes back. Called when a
    /// disk has lost everything, and when a server is gone for good.
    fn excuse(&mut self) {
        let servers: Vec<CopiesNode> =
            self.returning().into_iter().map(|node| self.data(node)).collect();
        self.history.excuse(&servers);
    }

    fn read(&mut self, seen: Seen, file: InodeId, subject: &Subject) {
        let CopiesNode::Data(server, disk) = subject.machine() else { return };
        let Some(view) = server.view(file) else { return };
        let end = match self.mutant {
            Some(Mutant::ReadsAhead) => u64::MAX,
            _ => view.committed,
        };
        let bytes = node::content(disk, file, &view.chunks, end);
        let is_whole = end == u64::MAX || bytes.len() as u64 == end;
        self.history.read(seen, file, bytes, is_whole, view.is_member);
    }
}

impl Observer<Subject, Wire> for Owner {
    fn event(&mut self, seen: Seen, event: CopiesEvent) {
        match event {
            CopiesEvent::Name(nameserver::Event::Done { token }) if self.writers.knows(token) => {
                self.writers.lease_granted(token);
            }
            CopiesEvent::Name(nameserver::Event::Done { token }) => self.history.names_end(token),
            CopiesEvent::Name(nameserver::Event::Lost { file, range }) => {
                self.history.lost(seen, file, range);
            }
            CopiesEvent::Data(dataserver::Event::Appended { token, .. }) => {
                self.history.append_end(seen, token);
            }
            CopiesEvent::Data(dataserver::Event::Flushed { token }) => {
                self.history.flush_end(token)
            }
            CopiesEvent::Data(dataserver::Event::Failed(_)) => self.history.failed += 1,
            _ => {}
        }
    }

    fn invoke(&mut self, seen: Seen, token: u64, subject: &mut Subject) {
        let operation = self.operations[token as usize].clone();
        match operation.kind {
            Kind::Leave => return self.leave(seen, token, operation.pick, subject),
            Kind::Lease => return self.ask_for_lease(seen, token, operation.pick, subject),
            Kind::Close => return self.close(seen, token, operation.pick, subject),
            Kind::Balance(is_on) => {
                return subject.input(seen.local, |node| {
                    if let CopiesNode::Name(server) = node {
                        server.balance(is_on.then_some(BALANCE_BYTES_S));
                    }
                });
            }
            _ if seen.node == NAMES => return self.at_names(seen, token, &operation, subject),
            _ => {}
        }
        let Some(file) = self.history.pick(operation.pick) else { return };
        let length = match operation.kind {
            Kind::Append(length) => length,
            Kind::Flush => {
                let length = subject.input(seen.local, |node| {
                    let CopiesNode::Data(server, ..) = node else { return None };
                    let committed = server.view(file)?.committed;
                    // Only the primary of the file takes the call.
                    server.flush(token, file).ok().map(|()| committed)
                });
                if let Some(length) = length {
                    self.history.flush_begin(token, file, length);
                }
                return;
            }
            _ => return self.read(seen, file, subject),
        };
        let (bytes, lease) = (history::block(token, length), self.lease_of(token, file, subject));
        if self.mutant == Some(Mutant::HoldsBack) && self.held.is_none() {
            self.held = Some((seen.node, file, token, bytes));
            self.history.append_begin(seen, file, token, length, lease.believed);
            return self.history.append_end(seen, token);
        }
        let is_same = |held: &mut Held| (held.0, held.1) == (seen.node, file);
        let held = &mut self.held;
        let taken = subject.input(seen.local, |node| {
            let CopiesNode::Data(server, ..) = node else { return Ok(()) };
            server.append(seen.local, token, file, None, lease.claimed, bytes)?;
            if let Some((_, _, token, bytes)) = held.take_if(is_same) {
                server.append(seen.local, token, file, None, lease.claimed, bytes)?;
            }
            Ok::<(), FilesRefusal>(())
        });
        match taken {
            Ok(()) => self.history.append_begin(seen, file, token, length, lease.believed),
            Err(FilesRefusal::LeaseLost(_)) => self.history.slept += 1,
            Err(_) => {}
        }
    }

    fn fault(&mut self, at: SimTime, fault: &Fault) {
        self.fault = at;
        if let Fault::Crash(node) = *fault
            && node != NAMES
            && !self.returning().contains(&node)
            && self.gone.insert(node)
        {
            self.excuse();
        }
    }

    fn revive(&mut self, node: NodeIndex, _: Timestamp) -> Option<Subject> {
        *self.lives.entry(node).or_default() += 1;
        if node == NAMES && (self.is_asked || self.rebuilds.chance(0.8)) {
            self.rebuild();
        }
        if node != NAMES && self.plan.knob("wipe") == 1 && self.wipes.chance(0.8) {
            let disk = &self.disks[node.0 as usize];
            disk.set_faults(DiskFaults::default());
            for (name, _) in disk.list().unwrap_or_default() {
                let _ = disk.remove(&name);
            }
            let _ = disk.sync_all();
            self.history.wiped += 1;
            self.excuse();
        }
        Some(self.subject(node))
    }
}

/// The campaign.
pub struct CopiesCampaign;

impl CopiesCampaign {
    fn bounds(&self) -> Bounds {
        Bounds {
            knobs: vec![
                ("servers", 3..=5),
                ("copies", 2..=3),
                ("chunk", 500..=20_000),
                ("full", 0..=1),
                ("wipe", 0..=1),
            ],
            kinds: self.outline().kinds.to_vec(),
            disk_max: DiskFaults {
                write_fails: 0.05,
                sync_fails: 0.05,
                slow_by: Duration::from_millis(20),
                ..DiskFaults::default()
            },
            ..Bounds::default()
        }
    }
}

impl Campaign for CopiesCampaign {
    type Check = Check;
    type Mutant = Mutant;
    type Scene = Plan;

    fn outline(&self) -> Outline<Mutant, Check> {
        Outline {
            name: "files",
            about: "replicated files: appends, names and copies under faults of hosts and disks",
            seeds: 1_000,
            // The only member lost its disk with an append that nobody else had yet. A copy that
            // went on was to be cut in front of bytes that it knew to be committed. A joiner was
            // dropped and asked again in one epoch. All members lost their disks while a joiner was
            // half done, or while a former member was down for good. A copy that had restarted was
            // to be cut several chunks before its end. Of two silent former members the one with
            // less became the heir. A nameserver that had restarted began no stream to its keepers.
            // A whole file forgot a silent former member, and then lost its other disks. The same
            // happened with a former member that had been told to drop its copy and was down. A
            // file was assigned an epoch that its nameserver's log lost with a disk. Changes were
            // acknowledged while the last keeper of the log had an empty disk. A late beat of a
            // disk that its dataserver had before replaced the present disk. A nameserver was
            // rebuilt twice before the datagrams of its first life had arrived (two seeds). The
            // nameserver and the only keeper of its log both lost their disks. Two dataservers
            // with empty disks answered for their former disks, without end. A disk was told to
            // give up its copies, and the nameserver ended before it answered. A joiner took the
            // committed length of an earlier primary for that of the next one.
            once_failed: &[
                810, 1235, 2862, 4800, 6028, 52_942, 12_740, 12_389, 16_513, 34_602, 34_901,
                113_334, 181_779, 159_435, 171_771, 219_809, 282_716, 284_605, 298_385,
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
                FaultKind::Disk,
            ],
            counts_min: &[
                ("appends", 10_000),
                ("reads", 10_000),
                ("noted", 4_000),
                ("names", 1_000),
                ("epochs", 1_000),
                ("wiped", 50),
                ("lost", 1),
                ("failed", 100),
                ("leaves", 50),
                ("balanced", 100),
                ("rebuilt", 50),
                ("leases", 1_000),
                ("slept", 100),
            ],
            mutants: &[
                (Mutant::AcksEarly, Check::Kept, 20..100),
                (Mutant::ForgetsNames, Check::Names, 30..1_000),
                (Mutant::TakesOldEpochs, Check::Heals, 30..400),
                (Mutant::CutsTooMuch, Check::Kept, 0..20),
                (Mutant::AcksRefused, Check::Kept, 0..100),
                (Mutant::ReadsAhead, Check::Prefix, 0..100),
                (Mutant::ChangesBytes, Check::Whole, 0..20),
                (Mutant::HoldsBack, Check::Order, 0..100),
                (Mutant::StopsRepair, Check::Heals, 0..20),
                (Mutant::IgnoresRacks, Check::Places, 0..20),
                (Mutant::ForgetsLeaving, Check::Places, 0..20),
                (Mutant::TakesFirstHeir, Check::Kept, 2_600..4_000),
                (Mutant::RebuildsFromOldest, Check::Names, 0..400),
                (Mutant::ForgetsLengths, Check::Fresh, 0..20),
                (Mutant::OldWriterAppends, Check::Leases, 0..100),
            ],
        }
    }

    fn scene(&self, seed: u64) -> Plan {
        let mut bounds = self.bounds();
        let mut plan = Plan::new(seed, &bounds);
        // A disk that is full takes no byte more.
        bounds.disk_max.bytes_max = (plan.knob("full") == 1).then_some(0);
        let (servers, copies) = (plan.knob("servers") as u32, plan.knob("copies") as u32);
        let mut victims = Victims::returning(0..servers + 1);
        // A server may go for good when the others can have all copies.
        if servers > copies {
            victims = Victims::returning(0..servers);
            victims.expendable.push(NodeIndex(servers));
        } else {
            plan.kinds.retain(|kind| *kind != FaultKind::Crash);
        }
        plan.aimed(&bounds, &victims)
    }

    fn run(&self, plan: &Plan, mutant: Option<Mutant>, story: bool) -> Run<Check> {
        let nodes = 0..plan.knob("servers") as u32 + 1;
        let disk =
            |node: u32| SimDisk::new(plan.seed ^ u64::from(node) << 40, DiskFaults::default());
        let owner = Owner {
            held: None,
            plan: plan.clone(),
            mutant,
            disks: nodes.clone().map(disk).collect(),
            lives: BTreeMap::new(),
            operations: operations(plan.seed, nodes.end),
            history: CopiesHistory::default(),
            writers: Writers::default(),
            wipes: Prng::new(plan.seed).fork(0x7769_7065),
            rebuilds: Prng::new(plan.seed).fork(0x7265_6275),
            is_asked: false,
            fault: SimTime::ZERO,
            gone: BTreeSet::new(),
        };
        let mut world = World::new(Wire::new(DELAY), plan.seed);
        for node in nodes.clone().map(NodeIndex) {
            let (subject, disk) = (owner.subject(node), owner.disks[node.0 as usize].clone());
            world.add(subject, HostSpec::ideal());
            world.attach(node, SimWrites::new(disk, plan.seed ^ u64::from(node.0), WRITE));
        }
        for (token, operation) in owner.operations.iter().enumerate() {
            world.invoke_at(operation.at, operation.node, token as u64);
        }
        plan.schedule(&mut world);
        let mut watch = Transcript::told(owner, story);
        world.run_until(OPERATOR_AT, &mut watch);
        operate(&mut world, &mut watch);
        world.run_until(END, &mut watch);
        let mut run = Run { digest: world.digest(), story: watch.text, ..Run::default() };
        let owner = watch.inner;
        let nodes: Vec<NodeIndex> = nodes.map(NodeIndex).collect();
        let live = nodes.iter().filter(|node| world.is_up(**node));
        let live: Vec<&CopiesNode> = live.map(|node| world.machine(*node).machine()).collect();
        run.counts.push(("leases", owner.writers.granted));
        owner.history.judge(&live, &mut run);
        run
    }
}

/// An operator rebuilds a nameserver that asks for a rebuild. A nameserver that was rebuilt twice
/// within the time that a datagram takes may ask: the streams of its first life arrive while its
/// second life, of which no dataserver has heard, has the same number.
fn operate(world: &mut World<Subject, Wire>, watch: &mut Transcript<Owner>) {
    let is_old = match world.machine(NAMES).machine() {
        CopiesNode::Name(server) => server.is_old(),
        CopiesNode::Data(..) => false,
    };
    if is_old && watch.inner.history.rebuilt > 0 {
        watch.inner.is_asked = true;
        world.inject(&Fault::Restart(NAMES), watch);
    }
}
