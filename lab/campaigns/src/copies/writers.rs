//! Writers of the campaign: they take leases, sleep, and append under the lease that they remember.
//!
//! A writer never hears that its lease is over. Between two of its operations, another writer may
//! have taken the file over, or the hard limit may have passed.

use std::collections::BTreeMap;

use evenfall_core::Prng;
use evenfall_files_machine::InodeId;
use evenfall_files_machine::namespace::Caller;
use evenfall_sim::Seen;

use super::node::CopiesNode;
use super::{Mutant, OPERATIONS, Owner, Subject};

/// Writers of each file.
const WRITERS: u64 = 3;

/// Whether the writers of a run take leases.
pub fn is_leased(seed: u64) -> bool {
    Prng::new(seed).fork(0x6c65_6173).chance(0.5)
}

/// A writer of a file.
type Writer = (InodeId, u64);

/// What the writers of a run remember.
#[derive(Debug, Default)]
pub struct Writers {
    /// Grants without an answer, by the token of the call.
    asked: BTreeMap<u64, (Writer, u64)>,
    /// The generation of the last lease of each writer.
    known: BTreeMap<Writer, u64>,
    /// Leases that were granted.
    pub granted: u64,
}

impl Writers {
    /// Whether a call asked for a lease.
    pub fn knows(&self, token: u64) -> bool {
        self.asked.contains_key(&token)
    }

    /// The nameserver has granted the lease of a call.
    pub fn lease_granted(&mut self, token: u64) {
        if let Some((writer, generation)) = self.asked.remove(&token) {
            // Answers may come in another order than the grants.
            let known = self.known.entry(writer).or_default();
            *known = generation.max(*known);
            self.granted += 1;
        }
    }
}

/// The leases of an append.
#[derive(Clone, Copy, Debug)]
pub struct AppendLease {
    /// The lease of which the writer knows.
    pub believed: Option<u64>,
    /// The lease that the dataserver is told.
    pub claimed: Option<u64>,
}

impl Owner {
    /// A writer asks the nameserver for the lease of a file.
    pub(super) fn ask_for_lease(
        &mut self,
        seen: Seen,
        token: u64,
        pick: u64,
        subject: &mut Subject,
    ) {
        let Some(file) = self.history.pick(pick) else { return };
        let writer = (pick >> 32) % WRITERS;
        let asked = subject.input(seen.local, |node| {
            let CopiesNode::Name(server) = node else { return None };
            let (at_ms, caller) = (seen.at.nanos() / 1_000_000, Caller::superuser("ann"));
            let name = format!("writer-{writer}");
            server.grant_lease(seen.local, at_ms, token, &caller, file, &name).ok()
        });
        if let Some(generation) = asked {
            self.writers.asked.insert(token, ((file, writer), generation));
        }
    }

    /// A writer gives its lease back, and appends under it no more.
    pub(super) fn close(&mut self, seen: Seen, token: u64, pick: u64, subject: &mut Subject) {
        let Some(file) = self.history.pick(pick) else { return };
        let writer = (file, (pick >> 32) % WRITERS);
        let Some(generation) = self.writers.known.get(&writer).copied() else { return };
        let length = subject.input(seen.local, |node| {
            let CopiesNode::Data(server, ..) = node else { return None };
            let committed = server.view(file)?.committed;
            // Only the primary of the file takes the call.
            server.flush_and_release(token, file, generation).ok().map(|()| committed)
        });
        if let Some(length) = length {
            self.writers.known.remove(&writer);
            self.history.flush_begin(token, file, length);
        }
    }

    /// The lease under which an append is made. An append without a lease is taken while nobody
    /// holds one.
    pub(super) fn lease_of(&self, token: u64, file: InodeId, subject: &Subject) -> AppendLease {
        // The last appends find out whether every file takes appends again, so no lease is left.
        let believed = match is_leased(self.plan.seed) && token < OPERATIONS {
            true => self.writers.known.get(&(file, token % (WRITERS + 1))).copied(),
            false => None,
        };
        let present = || {
            let CopiesNode::Data(server, ..) = subject.machine() else { return None };
            let lease = server.view(file)?.lease;
            lease.holder.map(|_| lease.generation)
        };
        let claimed = match self.mutant {
            Some(Mutant::OldWriterAppends) if believed.is_some() => present(),
            _ => believed,
        };
        AppendLease { believed, claimed }
    }
}
