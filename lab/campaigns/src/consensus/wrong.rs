//! The mutants of replicas that alter what one replica hears, tells and writes.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use evenfall_consensus_machine::wire::{self, ReplicaMessage, Status};
use evenfall_consensus_machine::{Canopus, ClientRequest, Event, journal};
use evenfall_core::durable::{Change, Write, WriteId};
use evenfall_core::{Arrival, NodeId, StorageError, Timestamp, Transmit};
use evenfall_sim::{Alteration, Asked};

use super::{Mutant, vanish};

/// A mutant on one node of a world.
pub struct WrongReplica {
    pub(super) mutant: Mutant,
    pub(super) node: u32,
}

impl Alteration<Canopus> for WrongReplica {
    fn arrival(&mut self, machine: &Canopus, _: Timestamp, arrival: Arrival) -> Option<Arrival> {
        let digest = arrival.datagram.get(8..16)?.try_into().map(u64::from_le_bytes).ok()?;
        let (from, message) = ReplicaMessage::decode(&arrival.datagram, digest).ok()?;
        let changed = match (self.mutant, message) {
            (Mutant::BelievesAnything, ReplicaMessage::Status(mut status)) => {
                exaggerate(&mut status, machine.node());
                ReplicaMessage::Status(status)
            }
            (Mutant::BelievesBallots, ReplicaMessage::Ballot(mut ballot)) => {
                ballot.groups.iter_mut().for_each(|(.., report)| report.next += 10);
                ReplicaMessage::Ballot(ballot)
            }
            (Mutant::NeverReturns, ReplicaMessage::Join(..))
                if !vanish::is_one_leaf(machine.node(), from) =>
            {
                return None;
            }
            _ => return Some(arrival),
        };
        let datagram = Bytes::from(changed.encode(from, digest));
        Some(Arrival { datagram, ..arrival })
    }

    fn sends(&mut self, transmit: &mut Transmit) -> bool {
        let kind = transmit.head.as_slice().get(3);
        self.mutant != Mutant::StaysAway || kind != Some(&wire::kind::JOIN)
    }

    fn event(&mut self, event: Event, out: &mut VecDeque<Event>) {
        let event = match event {
            Event::Installed { cycle, snapshot, unknown }
                if self.mutant == Mutant::CutsSnapshots =>
            {
                Event::Installed { cycle, snapshot: snapshot.slice(..8), unknown }
            }
            other => other,
        };
        let Event::Committed { state, reads, table } = event else { return out.push_back(event) };
        let (mut changed, mut table) = (state.as_ref().clone(), table);
        // Some mutants change one node only, because agreement is broken by a difference.
        match self.mutant {
            Mutant::SortsByName if self.node == 0 => changed.sets.sort_by_key(|set| set.node),
            Mutant::KeepsTheDead if self.node == 0 && !changed.changes.is_empty() => table ^= 1,
            Mutant::ReversesSets => {
                for set in &mut changed.sets {
                    let mut requests: Vec<ClientRequest> = set.requests.iter().collect();
                    requests.reverse();
                    set.requests = requests.iter().collect();
                }
            }
            Mutant::ChangesBytes => {
                for set in &mut changed.sets {
                    let body = |request: ClientRequest| {
                        let body = Bytes::from(vec![0; request.body.len()]);
                        ClientRequest { body, ..request }
                    };
                    set.requests =
                        set.requests.iter().map(body).collect::<Vec<_>>().iter().collect();
                }
            }
            Mutant::InventsRequests => {
                let body = Bytes::from_static(&[0; 9]);
                let request = ClientRequest { client: u64::MAX, sequence: changed.cycle, body };
                for set in changed.sets.iter_mut().take(1) {
                    let mut requests: Vec<ClientRequest> = set.requests.iter().collect();
                    requests.push(request.clone());
                    set.requests = requests.iter().collect();
                }
            }
            _ => {}
        }
        let event = Event::Committed { state: changed.into(), reads, table };
        if self.mutant == Mutant::RepeatsCycles {
            out.push_back(event.clone());
        }
        out.push_back(event);
    }

    fn write(&mut self, write: Write) -> Asked {
        match self.mutant {
            Mutant::SendsEarly => Asked::Early(write),
            Mutant::CompactsPromises => Asked::Write(without_groups(write)),
            _ => Asked::Write(write),
        }
    }

    fn written(
        &mut self,
        id: WriteId,
        done: Result<(), StorageError>,
    ) -> (WriteId, Result<(), StorageError>) {
        let done = done.map_err(|error| match (self.mutant, error) {
            (Mutant::StopsWhenFull, StorageError::Full { name }) => {
                StorageError::Failed { name, what: "full".to_owned() }
            }
            (_, error) => error,
        });
        (id, done)
    }
}

/// Makes a status claim ten entries more of the owner's group than its sender has on its disk.
pub(crate) fn exaggerate(status: &mut Status, owner: NodeId) {
    for (of, _, report) in &mut status.groups {
        report.next += if *of == owner { 10 } else { 0 };
    }
}

/// A new log with the checkpoint and the disks of the write, and without its other records.
fn without_groups(write: Write) -> Write {
    let Change::Replace(bytes) = &write.change else { return write };
    let (records, _) = journal::read(bytes).expect("a log that a replica wrote");
    let mut kept = journal::ReplicaJournal::new(journal::LOG, Duration::ZERO);
    kept.replace(records[..2].iter().map(journal::body), []);
    let change = kept.poll().expect("a checkpoint").change;
    Write { change, ..write }
}
