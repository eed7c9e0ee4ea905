//! EPaxos: no leader, and an order by dependencies (Moraru, Andersen and Kaminsky, SOSP 2013).
//!
//! The replica that made a batch asks all others which earlier batches interfere with it. When a
//! fast quorum answers alike, the batch is committed with these dependencies after one round trip;
//! otherwise the union of the answers is accepted by a majority first. A replica executes a batch
//! behind everything that the batch depends on; batches that depend on each other are executed by
//! their sequence numbers.
//!
//! As in the public code of its authors: a batch is one instance, which interferes with another one
//! when they have a key in common that one of them writes; a dependency names the last instance of
//! a replica and stands for all earlier ones too; and all replicas are asked, not only a quorum. A
//! chain of instances that each depend on a later one has no end while batches with a common key
//! keep coming, and nothing in it can be executed. As in the paper, old commands are therefore
//! completed before new commands start: while batches of a replica with keys are under way, the
//! replica holds its further batches with keys. Explicit prepare, by which other replicas finish
//! the instances of a failed replica, is missing.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use evenfall_consensus_machine::Requests;
use evenfall_core::Malformed;

use super::wire::{Batch, WireField as _, messages};
use super::{Config, Rival, RivalContext};

/// The instance of a batch: the replica that made the batch, and the batch's number at that
/// replica.
type Id = (u32, u64);
/// The dependencies of an instance: for each replica, the last of its instances that comes first.
type Dependencies = Vec<u64>;

messages! {
    enum Message {
        /// A batch, and the place of the batch as far as the sender knows the place.
        PreAccept { batch: Batch, sequence: u64, dependencies: Vec<u64> },
        /// The place of the receiver's batch, as far as the sender knows the place.
        PreAccepted { number: u64, sequence: u64, dependencies: Vec<u64> },
        /// The place of the sender's batch, which a majority has to have before the batch is
        /// committed.
        Accept { number: u64, sequence: u64, dependencies: Vec<u64> },
        Accepted { number: u64 },
        Commit { number: u64, sequence: u64, dependencies: Vec<u64> },
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    PreAccepted,
    Accepted,
    Committed,
}

#[derive(Debug)]
struct Instance {
    batch: Batch,
    sequence: u64,
    dependencies: Dependencies,
    stage: Stage,
    /// Number of answers so far, and whether all of them were alike. Only the replica of the batch
    /// counts answers.
    answers: u32,
    are_alike: bool,
}

/// The last instances that write or read a key.
#[derive(Clone, Debug, Default)]
struct Key {
    /// For each replica, its last instance that writes the key, and its last instance that reads
    /// the key.
    written: Dependencies,
    read: Dependencies,
    /// The largest sequence numbers of the instances that write the key, and of those that read it.
    written_sequence: u64,
    read_sequence: u64,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Epaxos {
    count: u32,
    has_keys: bool,
    instances: BTreeMap<Id, Instance>,
    keys: BTreeMap<u8, Key>,
    /// For each replica: instances up to this one are executed and forgotten.
    executed: Vec<u64>,
    /// Instances behind a gap that are executed.
    ahead: BTreeSet<Id>,
    /// Committed instances that wait for the commit of another one.
    waiting: BTreeMap<Id, Vec<Id>>,
    /// Number of batches of this replica with keys that are under way, and the batches that wait
    /// until those are executed.
    under_way: usize,
    held: Vec<Batch>,
    /// Instances that are known to depend on an instance that was not committed.
    blocked: BTreeMap<Id, Id>,
}

fn join(mine: &mut Dependencies, others: &[u64]) {
    for (mine, other) in mine.iter_mut().zip(others) {
        *mine = (*mine).max(*other);
    }
}

impl Epaxos {
    /// A replica of this configuration.
    pub fn new(config: &Config) -> Self {
        let count = config.addresses.len() as u32;
        Self {
            count,
            has_keys: config.has_keys,
            instances: BTreeMap::new(),
            keys: BTreeMap::new(),
            executed: vec![0; count as usize],
            ahead: BTreeSet::new(),
            waiting: BTreeMap::new(),
            under_way: 0,
            held: Vec::new(),
            blocked: BTreeMap::new(),
        }
    }

    /// The keys of some requests, without key 0, which interferes with no other key.
    fn keys(&self, requests: &Requests) -> BTreeSet<u8> {
        let requests = requests.iter().take(if self.has_keys { usize::MAX } else { 0 });
        let keys = requests.filter_map(|request| request.body.first().copied());
        keys.filter(|key| *key != 0).collect()
    }

    /// Whether a batch has a request that may interfere with other requests.
    fn names_keys(&self, batch: &Batch) -> bool {
        !self.keys(&batch.writes).is_empty() || !self.keys(&batch.reads).is_empty()
    }

    /// Number of answers of other replicas after which a batch is committed at once. With the
    /// replica that asks, these replicas are a fast quorum of the optimised protocol.
    fn fast_answers(&self) -> u32 {
        super::fast_quorum(self.count).max(self.majority_answers() + 1) - 1
    }

    /// Number of answers of other replicas that make a majority together with this replica.
    fn majority_answers(&self) -> u32 {
        self.count / 2
    }

    /// Asks all others for the place of an own batch.
    fn ask(&mut self, out: &mut RivalContext, batch: Batch) {
        let number = batch.number;
        let placed = self.place(batch.clone(), 1, Vec::new());
        let (sequence, dependencies) = (placed.sequence, placed.dependencies.clone());
        let asked = Message::PreAccept { batch, sequence, dependencies: dependencies.clone() };
        out.broadcast(&asked);
        if self.count == 1 {
            self.commit(out, number, sequence, dependencies);
        }
    }

    /// Gives a batch its place behind all interfering batches that this replica knows, and behind
    /// the given dependencies. Later batches come behind this batch.
    fn place(&mut self, batch: Batch, sequence: u64, mut dependencies: Dependencies) -> &Instance {
        let (id, mut sequence) = ((batch.origin, batch.number), sequence);
        let (written, read) = (self.keys(&batch.writes), self.keys(&batch.reads));
        let none = Key { written: vec![0; self.count as usize], ..Key::default() };
        let none = Key { read: none.written.clone(), ..none };
        dependencies.resize(self.count as usize, 0);
        for key in written.union(&read) {
            let last = self.keys.entry(*key).or_insert_with(|| none.clone());
            join(&mut dependencies, &last.written);
            sequence = sequence.max(last.written_sequence + 1);
            if written.contains(key) {
                join(&mut dependencies, &last.read);
                sequence = sequence.max(last.read_sequence + 1);
            }
        }
        // A batch does not come behind itself.
        let own = &mut dependencies[batch.origin as usize];
        *own = (*own).min(batch.number - 1);
        for key in written.union(&read) {
            let Some(last) = self.keys.get_mut(key) else { continue };
            let (of, largest) = match written.contains(key) {
                true => (&mut last.written, &mut last.written_sequence),
                false => (&mut last.read, &mut last.read_sequence),
            };
            of[id.0 as usize] = of[id.0 as usize].max(id.1);
            *largest = (*largest).max(sequence);
        }
        let instance = Instance {
            batch,
            sequence,
            dependencies,
            stage: Stage::PreAccepted,
            answers: 0,
            are_alike: true,
        };
        self.instances.entry(id).or_insert(instance)
    }

    /// Sets the place of an instance.
    fn settle(&mut self, id: Id, stage: Stage, sequence: u64, dependencies: Dependencies) {
        let Some(instance) = self.instances.get(&id) else { return };
        let keys = [&instance.batch.writes, &instance.batch.reads].map(|of| self.keys(of));
        if instance.stage < stage && dependencies.len() == self.count as usize {
            for key in keys.iter().flatten() {
                if let Some(last) = self.keys.get_mut(key) {
                    last.written_sequence = last.written_sequence.max(sequence);
                }
            }
            let Some(instance) = self.instances.get_mut(&id) else { return };
            (instance.sequence, instance.dependencies) = (sequence, dependencies);
            (instance.stage, instance.answers) = (stage, 0);
        }
    }

    /// Takes an answer to a batch of this replica, with the place that another replica gives the
    /// batch.
    fn take_place(&mut self, out: &mut RivalContext, number: u64, sequence: u64, others: &[u64]) {
        let (fast, majority) = (self.fast_answers(), self.majority_answers());
        let Some(instance) = self.instances.get_mut(&(out.me, number)) else { return };
        if instance.stage != Stage::PreAccepted {
            return;
        }
        instance.answers += 1;
        let is_alike = instance.sequence == sequence && instance.dependencies == others;
        // The first answer may know of more than this replica did, if all others know the same.
        instance.are_alike &= is_alike || instance.answers == 1;
        instance.sequence = instance.sequence.max(sequence);
        join(&mut instance.dependencies, others);
        let (sequence, dependencies) = (instance.sequence, instance.dependencies.clone());
        if instance.are_alike && instance.answers >= fast {
            self.commit(out, number, sequence, dependencies);
        } else if !instance.are_alike && instance.answers >= majority {
            self.settle((out.me, number), Stage::Accepted, sequence, dependencies.clone());
            out.broadcast(&Message::Accept { number, sequence, dependencies });
        }
    }

    /// Commits an own batch.
    fn commit(&mut self, out: &mut RivalContext, number: u64, sequence: u64, place: Dependencies) {
        out.broadcast(&Message::Commit { number, sequence, dependencies: place.clone() });
        let id = (out.me, number);
        self.settle(id, Stage::Committed, sequence, place);
        self.execute_from(out, id);
    }

    /// Executes the instances that waited for the commit of an instance.
    fn execute_from(&mut self, out: &mut RivalContext, id: Id) {
        let mut roots = self.waiting.remove(&id).unwrap_or_default();
        roots.push(id);
        for root in roots {
            if self.is_executed(root) {
                continue;
            }
            let (components, missing) = self.components(root);
            for mut component in components {
                component.sort_unstable_by_key(|id| (self.instances[id].sequence, *id));
                component.into_iter().for_each(|id| self.execute(out, id));
            }
            if let Some(missing) = missing {
                self.waiting.entry(missing).or_default().push(root);
            }
        }
    }

    fn is_executed(&self, id: Id) -> bool {
        id.1 <= self.executed[id.0 as usize] || self.ahead.contains(&id)
    }

    fn execute(&mut self, out: &mut RivalContext, id: Id) {
        if let Some(Instance { batch, .. }) = self.instances.remove(&id) {
            self.under_way -= usize::from(id.0 == out.me && self.names_keys(&batch));
            out.execute(batch);
        }
        self.blocked.remove(&id);
        self.ahead.insert(id);
        let last = &mut self.executed[id.0 as usize];
        while self.ahead.remove(&(id.0, *last + 1)) {
            *last += 1;
        }
    }

    /// The instance that has to be committed first, as far as earlier looks at the dependencies
    /// have shown.
    fn missing(&self, id: Id) -> Option<Id> {
        let is_missing = |id: &Id| {
            let stage = self.instances.get(id).map(|instance| instance.stage);
            stage != Some(Stage::Committed) && !self.is_executed(*id)
        };
        is_missing(&id).then_some(id).or_else(|| self.blocked.get(&id).copied().filter(is_missing))
    }

    /// The strongly connected components of the dependencies of an instance, each behind all that
    /// it depends on (Tarjan, 1972), and the first instance on the way that is not committed. The
    /// search has no recursion, because a chain of dependencies may have any length.
    ///
    /// A dependency names all instances of a replica up to one, so that instances of a replica are
    /// met in their order, the root alone excepted. For each replica, `upto` has the last instance
    /// that was met. The search therefore looks at each instance once, and not once for each
    /// instance that depends on it.
    fn components(&mut self, root: Id) -> (Vec<Vec<Id>>, Option<Id>) {
        let (mut components, mut stack) = (Vec::new(), Vec::<Id>::new());
        // The number of each instance that was met, and the least number that it leads back to.
        let mut met: BTreeMap<Id, (usize, usize)> = BTreeMap::new();
        let (mut upto, mut path) = (self.executed.clone(), Vec::<Id>::new());
        // All instances of a replica up to here are executed or in a component.
        let mut done_upto = self.executed.clone();
        let mut done: BTreeSet<Id> = BTreeSet::new();
        let mut next = Some(root);
        loop {
            if let Some(id) = next.take() {
                if let Some(missing) = self.missing(id) {
                    self.blocked.extend(path.iter().map(|behind| (*behind, missing)));
                    return (components, Some(missing));
                }
                met.insert(id, (met.len(), met.len()));
                stack.push(id);
                path.push(id);
            }
            let Some(id) = path.last().copied() else { return (components, None) };
            let dependencies = &self.instances[&id].dependencies;
            next = (0..).zip(dependencies).find_map(|(replica, last)| {
                let upto = &mut upto[replica as usize];
                let mut unmet = (*upto + 1..=*last).map(|number| (replica, number));
                let unmet = unmet.find(|id| !self.ahead.contains(id) && !met.contains_key(id));
                *upto = unmet.map_or((*upto).max(*last), |(_, number)| number);
                unmet
            });
            if next.is_some() {
                continue;
            }
            // Of the instances of a replica that are under way, the oldest instance has the least
            // number.
            let (number, mut low) = met[&id];
            for (replica, last) in (0..).zip(dependencies) {
                let from = &mut done_upto[replica as usize];
                let is_over = |id: Id| self.ahead.contains(&id) || done.contains(&id);
                while *from < *last && is_over((replica, *from + 1)) {
                    *from += 1;
                }
                let oldest = (*from < *last).then(|| met[&(replica, *from + 1)].0);
                let is_root = root.0 == replica && root.1 <= *last && !done.contains(&root);
                low = low.min(oldest.unwrap_or(low)).min(if is_root { 0 } else { low });
            }
            path.pop();
            met.insert(id, (number, low));
            if let Some(parent) = path.last() {
                met.entry(*parent).and_modify(|(_, least)| *least = (*least).min(low));
            }
            if number == low {
                let first = stack.iter().rposition(|other| *other == id).unwrap_or(0);
                let component = stack.split_off(first);
                done.extend(&component);
                components.push(component);
            }
        }
    }
}

impl Rival for Epaxos {
    fn propose(&mut self, out: &mut RivalContext, batch: Batch) {
        let names_keys = self.names_keys(&batch);
        if names_keys && self.under_way > 0 {
            return self.held.push(batch);
        }
        self.under_way += usize::from(names_keys);
        self.ask(out, batch);
    }

    fn turn(&mut self, out: &mut RivalContext) {
        if self.under_way == 0 {
            let held = core::mem::take(&mut self.held);
            self.under_way = held.len();
            held.into_iter().for_each(|batch| self.ask(out, batch));
        }
    }

    fn hear(
        &mut self,
        out: &mut RivalContext,
        from: u32,
        message: &Bytes,
    ) -> Result<(), Malformed> {
        match Message::whole(message)? {
            Message::PreAccept { batch, sequence, dependencies } => {
                if batch.origin != from || batch.number == 0 {
                    return Err(Malformed { what: "a batch of another replica", offset: 0 });
                }
                let number = batch.number;
                let placed = self.place(batch, sequence, dependencies);
                let (sequence, dependencies) = (placed.sequence, placed.dependencies.clone());
                out.send(from, &Message::PreAccepted { number, sequence, dependencies });
            }
            Message::PreAccepted { number, sequence, dependencies } => {
                self.take_place(out, number, sequence, &dependencies);
            }
            Message::Accept { number, sequence, dependencies } => {
                self.settle((from, number), Stage::Accepted, sequence, dependencies);
                out.send(from, &Message::Accepted { number });
            }
            Message::Accepted { number } => {
                let majority = self.majority_answers();
                let Some(instance) = self.instances.get_mut(&(out.me, number)) else {
                    return Ok(());
                };
                instance.answers += 1;
                if instance.stage == Stage::Accepted && instance.answers >= majority {
                    let (sequence, place) = (instance.sequence, instance.dependencies.clone());
                    self.commit(out, number, sequence, place);
                }
            }
            Message::Commit { number, sequence, dependencies } => {
                self.settle((from, number), Stage::Committed, sequence, dependencies);
                self.execute_from(out, (from, number));
            }
        }
        Ok(())
    }
}
