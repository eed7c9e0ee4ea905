//! Rivals under faults: the histories of Raft, Multi-Paxos, EPaxos, Zab and Nezha pass the checks
//! of Canopus.
//!
//! A seed draws a rival, the number of replicas, the time between two batches, the length of
//! datagrams, and the faults. Replicas do not crash, because rivals keep no log on a disk. They are
//! paused, slowed and cut off, and packets are lost, doubled and overtaken. Clients write and read
//! four registers at all replicas. EPaxos orders only requests that have a register in common. With
//! EPaxos, each register therefore has a history of its own, and the order of one client's requests
//! is not judged. Reads of Zab are not judged, because they may be old.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use evenfall_consensus_machine::{ClientRequest, Requests};
use evenfall_sim::campaign::Outline;
use evenfall_sim::{
    Bounds, Campaign, FaultKind, HostSpec, NodeIndex, Observer, Plan, Run, Seen, Strict,
    Transcript, Victims, Wire, World,
};

use super::wire::Batch;
use super::{Config, Protocol, RivalEvent, RivalReplica};
use crate::consensus::history::{self, History};
use crate::consensus::ordered::executed;
use crate::consensus::{
    Check, DELAY, END, Kind, LAST_AT, Mutant, OPERATIONS, Operation, REGISTERS, operations,
};

type Subject = Strict<RivalReplica>;

/// The clients of all replicas, and the histories of what clients and replicas report.
struct Owner {
    protocol: Protocol,
    mutant: Option<Mutant>,
    operations: Vec<Operation>,
    /// A history for each register with EPaxos. With another rival, one history for all registers,
    /// under the number 0.
    histories: BTreeMap<u8, History>,
    /// Number of entries of each history that a node has executed.
    executed: BTreeMap<(NodeIndex, u8), u64>,
}

/// The register of an operation, by the first byte of its request.
fn register(token: u64) -> u8 {
    1 + history::register(token) as u8
}

/// The requests of a register.
fn of(requests: &Requests, register: u8) -> Requests {
    let all: Vec<ClientRequest> =
        requests.iter().filter(|request| request.body.first() == Some(&register)).collect();
    all.iter().collect()
}

impl Owner {
    /// The history that judges an operation.
    fn history(&mut self, token: u64) -> &mut History {
        let of = if self.protocol.is_total() { 0 } else { register(token) };
        self.histories.entry(of).or_default()
    }

    /// Notes that a read is answered from the entries that its node has executed.
    fn read(&mut self, seen: Seen, token: u64) {
        self.history(token).read_now(seen, token);
    }

    /// Takes a batch into the histories of its registers.
    fn take(&mut self, seen: Seen, batch: &Batch) {
        if self.protocol.is_total() {
            return self.append(seen, 0, batch);
        }
        let all = batch.writes.iter().chain(&batch.reads);
        let registers: BTreeSet<u8> =
            all.filter_map(|request| request.body.first().copied()).collect();
        for register in registers {
            let writes = of(&batch.writes, register);
            let reads = of(&batch.reads, register);
            if !writes.is_empty() {
                self.append(seen, register, &Batch { writes, reads, ..batch.clone() });
            } else if batch.origin == seen.node.0 {
                // Reads alone have no order among themselves.
                reads.iter().for_each(|read| self.read(seen, read.sequence));
            }
        }
    }

    /// Adds a batch to a history, as the next entry that this node has executed. For the checks,
    /// the entry is a cycle in which one node has requests.
    fn append(&mut self, seen: Seen, history: u8, batch: &Batch) {
        let count = self.executed.entry((seen.node, history)).or_default();
        *count += 1;
        let mut requests = batch.writes.clone();
        if self.mutant == Some(Mutant::ReversesSets) && seen.node.0 == 0 {
            let mut all: Vec<ClientRequest> = requests.iter().collect();
            all.reverse();
            requests = all.iter().collect();
        }
        let event = executed(Batch { writes: requests, ..batch.clone() }, *count);
        let history = self.histories.entry(history).or_default();
        if self.mutant == Some(Mutant::RepeatsCycles) {
            history.take(seen, event.clone());
        }
        history.take(seen, event);
    }
}

impl Observer<Subject, Wire> for Owner {
    fn event(&mut self, seen: Seen, told: RivalEvent) {
        match told {
            RivalEvent::Executed(batch) => self.take(seen, &batch),
            RivalEvent::Read(tokens) => tokens.into_iter().for_each(|token| self.read(seen, token)),
        }
    }

    fn invoke(&mut self, seen: Seen, token: u64, subject: &mut Subject) {
        let is_write = self.operations[token as usize].kind == Kind::Write;
        if !is_write && self.mutant == Some(Mutant::ReadsAtOnce) {
            return self.history(token).read_at_once(seen, token);
        }
        let client = u64::from(seen.node.0);
        let request = ClientRequest { client, sequence: token, body: history::body(token) };
        let is_in = subject.input(seen.local, |replica| {
            let is_in = match is_write {
                true => replica.write(seen.local, request),
                false => replica.read(seen.local, request),
            };
            replica.settle(seen.local);
            is_in
        });
        if is_in && (is_write || self.protocol != Protocol::Zab) {
            self.history(token).begin(seen, token, client, !is_write);
        }
    }
}

/// The campaign.
pub struct Rivals;

impl Rivals {
    fn bounds(&self) -> Bounds {
        Bounds {
            knobs: vec![
                ("protocol", 0..=Protocol::RIVALS.len() as u64 - 1),
                ("failures", 1..=3),
                ("batch", 0..=3_000),
                ("datagram", 100..=1_400),
            ],
            kinds: self.outline().kinds.to_vec(),
            ..Bounds::default()
        }
    }
}

impl Campaign for Rivals {
    type Check = Check;
    type Mutant = Mutant;
    type Scene = Plan;

    fn outline(&self) -> Outline<Mutant, Check> {
        Outline {
            name: "rivals",
            about: "Raft, Multi-Paxos, EPaxos, Zab and Nezha: faults that leave replicas alive",
            seeds: 500,
            once_failed: &[],
            kinds: &[
                FaultKind::Loss,
                FaultKind::Duplicate,
                FaultKind::Reorder,
                FaultKind::Pause,
                FaultKind::Partition,
                FaultKind::OneWay,
                FaultKind::Slow,
                FaultKind::ClockStep,
                FaultKind::ClockDrift,
            ],
            counts_min: &[("cycles", 1_000), ("writes answered", 1_000), ("reads answered", 1_000)],
            mutants: &[
                (Mutant::RepeatsCycles, Check::Order, 0..10),
                (Mutant::ReversesSets, Check::Agreement, 0..20),
                (Mutant::ReadsAtOnce, Check::Linearizable, 0..20),
            ],
        }
    }

    fn scene(&self, seed: u64) -> Plan {
        let bounds = self.bounds();
        let plan = Plan::new(seed, &bounds);
        let count = 1 + 2 * plan.knob("failures") as u32;
        plan.aimed(&bounds, &Victims::returning(0..count))
    }

    fn run(&self, plan: &Plan, mutant: Option<Mutant>, story: bool) -> Run<Check> {
        let protocol = Protocol::RIVALS[plan.knob("protocol") as usize];
        let count = 1 + 2 * plan.knob("failures") as u32;
        let nodes = (0..count).map(NodeIndex);
        let config = Config {
            addresses: nodes.clone().map(NodeIndex::address).collect(),
            leader: plan.seed as u32 % count,
            batch_every: Duration::from_micros(plan.knob("batch")),
            batch_bytes: 200,
            datagram_bytes: plan.knob("datagram") as usize,
            has_keys: true,
            retry: Duration::from_millis(10),
            suspect_after: Duration::from_millis(60),
            seed: 0,
        };
        let mut all = operations(plan.seed, count);
        for node in nodes.clone() {
            // A last write to each register at each node.
            let last = Operation { at: LAST_AT, node, kind: Kind::Write };
            all.extend([last; REGISTERS as usize]);
        }
        let mut world = World::new(Wire::new(DELAY), plan.seed);
        for node in nodes.clone() {
            let config = Config { seed: plan.seed ^ u64::from(node.0) << 40, ..config.clone() };
            let replica = RivalReplica::new(protocol, config, node.0).expect("a rival");
            world.add(Strict::new(replica), HostSpec::ideal());
        }
        for (token, operation) in all.iter().enumerate() {
            world.invoke_at(operation.at, operation.node, token as u64);
        }
        plan.schedule(&mut world);
        let (histories, executed) = (BTreeMap::new(), BTreeMap::new());
        let owner = Owner { protocol, mutant, operations: all, histories, executed };
        let mut watch = Transcript::told(owner, story);
        world.run_until(END, &mut watch);
        let live: Vec<NodeIndex> = nodes.collect();
        let mut run = Run { digest: world.digest(), story: watch.text, ..Run::default() };
        for history in watch.inner.histories.into_values() {
            history.judge(&live, OPERATIONS, &mut run);
        }
        if !protocol.is_total() {
            // EPaxos may execute requests that a client sends without a wait in any order.
            run.violations.retain(|violation| violation.check != Check::Fifo);
        }
        run
    }
}
