//! Writers' leases: one writer appends to a file at a time.
//!
//! A writer that dies must not keep a file for ever, so another writer takes the file over. A
//! writer that only slept wakes up later, and knows nothing of the other writer. Time alone cannot
//! keep the first writer out, because its appends may already be on their way. Every grant and
//! every end of a lease therefore has a *generation*, which is one higher than the generation
//! before. The primary takes an append under the generation that it knows, and no other append.
//!
//! ```text
//!  writer A ── grant ──> nameserver       generation 1: A holds the lease
//!     │ appends (1) ───> primary          and tells the nameserver that A lives
//!     │ sleeps longer than the soft limit
//!  writer B ── grant ──> nameserver       ends the epoch; generation 2: nobody holds the lease
//!           ── grant ──> nameserver       generation 3: B holds the lease
//!     └ appends (1) ───> primary          refuses: B holds the lease, since when, until when
//! ```
//!
//! The limits are those of HDFS. A writer keeps the lease within the *soft* limit after its last
//! append. Later another writer may take the lease over. After the *hard* limit the lease ends
//! although nobody asks. A lease ends by a new epoch of the file, which cuts all copies to one
//! length. No append of the old generation is acknowledged after that: all members have promised to
//! take no append of the old epoch, and the primary of the new epoch knows the new generation from
//! its assignment.
//!
//! Grants and ends are in the nameserver's log, with the file. Renewals are not: a nameserver that
//! starts again takes all leases for renewed. A lease also ends when another dataserver becomes the
//! primary, because the writer's request has ended at the old one.

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use evenfall_core::Timestamp;
use serde::{Deserialize, Serialize};

use crate::config::WRITER_BYTES_MAX;
use crate::dataserver::Dataserver;
use crate::nameserver::{Effect, Nameserver};
use crate::namespace::rights::WRITE;
use crate::namespace::{Caller, Namespace, NamespaceCall, NamespaceChange};
use crate::wire::FilesControl;
use crate::{FilesRefusal, InodeId};

/// Who holds the lease of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseHolder {
    /// The name of the writer. A writer that asks again under the same name gets the next
    /// generation at once, so that it goes on after the death of a dataserver.
    pub writer: String,
    /// Milliseconds since 1970 of the grant.
    pub since_ms: u64,
    /// Milliseconds since 1970 until which no other writer takes the lease over. Later renewals
    /// move this time.
    pub until_ms: u64,
}

impl fmt::Display for LeaseHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { writer, since_ms, until_ms } = self;
        let (since, until) = (utc_text(*since_ms), utc_text(*until_ms));
        write!(f, "{writer} holds the lease since {since}, and until {until} at least")
    }
}

/// The last second that `utc_text` can write, which ends the year 9999.
const LAST_SECOND: u64 = 253_402_300_799;

/// A time of the wall clock as people read it, such as `2026-12-02T07:15:00Z`.
fn utc_text(at_ms: u64) -> String {
    // The time may come from a datagram, and a later second would be a panic.
    let since_1970 = Duration::from_secs((at_ms / 1_000).min(LAST_SECOND));
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since_1970).to_string()
}

/// The lease of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriterLease {
    /// Number of grants and ends so far.
    pub generation: u64,
    /// Who holds the lease now.
    pub holder: Option<LeaseHolder>,
}

impl WriterLease {
    /// Whether no writer ever had a lease of the file.
    pub(crate) fn is_new(&self) -> bool {
        self.generation == 0
    }

    /// The lease after its end.
    pub(crate) fn after_end(&self) -> Self {
        Self { generation: self.generation + 1, holder: None }
    }

    /// Refuses an append under a lease that has ended. A server's own append has no lease, and is
    /// refused while a writer holds one.
    pub(crate) fn check_append(&self, under: Option<u64>) -> Result<(), FilesRefusal> {
        match (under, &self.holder) {
            (None, None) => Ok(()),
            (None, Some(holder)) => Err(FilesRefusal::LeaseHeld(holder.to_string())),
            // The assignment with this generation is still on its way.
            (Some(under), _) if under > self.generation => Err(FilesRefusal::Again),
            (Some(under), Some(_)) if under == self.generation => Ok(()),
            (Some(under), Some(holder)) => {
                Err(FilesRefusal::LeaseLost(format!("the lease {under} has ended: {holder}")))
            }
            (Some(under), None) => Err(FilesRefusal::LeaseLost(format!(
                "the lease {under} has ended, and nobody holds a lease of the file now"
            ))),
        }
    }
}

/// A lease that a writer holds, as reports show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLease {
    /// The file.
    pub file: InodeId,
    /// The generation.
    pub generation: u64,
    /// Who holds the lease.
    pub holder: LeaseHolder,
    /// Whether the lease ends now: all copies get one length, and then another writer gets it.
    pub is_ending: bool,
}

/// The part of a lease that only the memory of the nameserver has.
#[derive(Debug, Default)]
pub(crate) struct LeaseClock {
    /// When the writer last appended. After a start of the nameserver, this is the time of the
    /// first look at the lease.
    renewed: Option<Timestamp>,
    /// Milliseconds since 1970 of the end of the soft limit, as the last renewal has moved it.
    until_ms: u64,
    is_ending: bool,
}

/// The clocks of all leases that the log knows.
pub(crate) fn clocks_of(namespace: &Namespace) -> BTreeMap<InodeId, LeaseClock> {
    let is_held =
        |id: &&InodeId| namespace.file(**id).is_some_and(|file| file.lease.holder.is_some());
    namespace.inodes().keys().filter(is_held).map(|id| (*id, LeaseClock::default())).collect()
}

fn whole_millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}

impl Nameserver {
    /// Grants the lease of a file to a writer, who needs the right to write the file. Returns the
    /// generation, which counts when [`Event::Done`](crate::nameserver::Event::Done) has followed.
    ///
    /// # Errors
    /// [`FilesRefusal::LeaseHeld`] while another writer holds the lease,
    /// [`FilesRefusal::Recovering`] while the lease of another writer ends, and the reasons for
    /// which no change is taken.
    pub fn grant_lease(
        &mut self,
        now: Timestamp,
        at_ms: u64,
        token: u64,
        caller: &Caller,
        id: InodeId,
        writer: &str,
    ) -> Result<u64, FilesRefusal> {
        self.check_changes()?;
        if writer.is_empty()
            || writer.len() > WRITER_BYTES_MAX
            || writer.contains(|letter: char| letter.is_control())
        {
            let what = format!(
                "the name of a writer has 1 to {WRITER_BYTES_MAX} bytes and no control characters"
            );
            return Err(FilesRefusal::Invalid(what));
        }
        if self.namespace.file(id).is_none() {
            return Err(FilesRefusal::NotFound(format!("file {}", id.0)));
        }
        self.namespace.check_access(caller, id, WRITE)?;
        self.check_lease_peer(id)?;
        self.check_lease(now, id, Some(writer))?;
        self.at_ms = at_ms;
        let until_ms = at_ms.saturating_add(whole_millis(self.config.lease_soft));
        let Some(file) = self.namespace.file(id) else { return Err(FilesRefusal::Unknown) };
        let (generation, epoch) = (file.lease.generation + 1, file.group.epoch);
        let holder = LeaseHolder { writer: writer.to_owned(), since_ms: at_ms, until_ms };
        let lease = WriterLease { generation, holder: Some(holder) };
        let effects = [Effect::Done(token), Effect::Publish(id, epoch)];
        self.record(NamespaceChange::Lease { id, lease }, effects);
        let clock = LeaseClock { renewed: Some(now), until_ms, is_ending: false };
        self.leases.insert(id, clock);
        Ok(generation)
    }

    /// Refuses a file whose primary checks no leases. A dataserver of an earlier build would take
    /// appends of a writer that has lost its lease.
    ///
    /// # Errors
    /// [`FilesRefusal::OldServer`].
    pub fn check_lease_peer(&self, id: InodeId) -> Result<(), FilesRefusal> {
        let primary = self.namespace.file(id).and_then(|file| file.group.members.first());
        let server = primary.and_then(|disk| self.servers.get(disk));
        match server.filter(|server| !server.checks_leases) {
            Some(server) => {
                Err(FilesRefusal::OldServer(format!("{} {}", server.name, server.place.http)))
            }
            None => Ok(()),
        }
    }

    /// Refuses a call that would make or replace a file which has a writer. As in HDFS, a call that
    /// overwrites a file is not refused.
    ///
    /// # Errors
    /// [`FilesRefusal::LeaseHeld`], or [`FilesRefusal::Recovering`] when a lease ends because of
    /// this call.
    pub fn check_writers(
        &mut self,
        now: Timestamp,
        caller: &Caller,
        call: &NamespaceCall,
    ) -> Result<(), FilesRefusal> {
        let paths: Vec<&String> = match call {
            NamespaceCall::Create { path, overwrite: false, .. } => vec![path],
            NamespaceCall::Replace { path, sources, .. } => {
                std::iter::once(path).chain(sources).collect()
            }
            _ => return Ok(()),
        };
        for path in paths {
            let found = self.namespace.find_as(caller, path).map(|(id, _)| id);
            // The call itself says what is wrong with a path.
            if let Ok(id) = found {
                self.check_lease(now, id, None)?;
            }
        }
        Ok(())
    }

    /// Refuses the lease of a file that another writer has. A lease whose soft limit is over begins
    /// to end.
    fn check_lease(
        &mut self,
        now: Timestamp,
        id: InodeId,
        writer: Option<&str>,
    ) -> Result<(), FilesRefusal> {
        let lease = self.namespace.file(id).map(|file| &file.lease);
        let Some(holder) = lease.and_then(|lease| lease.holder.clone()) else { return Ok(()) };
        let path = self.namespace.path(id);
        let clock = self.leases.entry(id).or_default();
        let renewed = *clock.renewed.get_or_insert(now);
        let holder = LeaseHolder { until_ms: holder.until_ms.max(clock.until_ms), ..holder };
        if !clock.is_ending {
            if writer == Some(holder.writer.as_str()) {
                return Ok(());
            }
            if now < renewed + self.config.lease_soft {
                return Err(FilesRefusal::LeaseHeld(format!("{path}: {holder}")));
            }
            self.end_lease(id);
        }
        Err(FilesRefusal::Recovering(format!(
            "{path}: lease recovery is in progress: the lease of {} ends, and all copies get one \
             length. Try again later.",
            holder.writer
        )))
    }

    /// Begins a new epoch of a file, with which its lease ends.
    fn end_lease(&mut self, id: InodeId) {
        self.leases.entry(id).or_default().is_ending = true;
        self.works.entry(id).or_default().is_troubled = true;
        self.dirty.insert(id);
    }

    /// Ends leases whose hard limit is over, and forgets the clocks of leases that have ended.
    pub(crate) fn end_old_leases(&mut self, now: Timestamp) {
        let namespace = &self.namespace;
        self.leases
            .retain(|id, _| namespace.file(*id).is_some_and(|file| file.lease.holder.is_some()));
        let (hard, mut old) = (self.config.lease_hard, Vec::new());
        for (id, clock) in &mut self.leases {
            let renewed = *clock.renewed.get_or_insert(now);
            if !clock.is_ending && now >= renewed + hard {
                old.push(*id);
            }
        }
        for id in old {
            self.end_lease(id);
        }
    }

    /// Adds the end of a lease to the record of a new epoch, if the lease ends or the primary has
    /// moved. A crash leaves both changes or none.
    pub(crate) fn with_lease_end(
        &mut self,
        id: InodeId,
        has_moved: bool,
        record: NamespaceChange,
    ) -> NamespaceChange {
        let Some(lease) = self.namespace.file(id).map(|file| &file.lease) else { return record };
        let is_ending = self.leases.get(&id).is_some_and(|clock| clock.is_ending);
        if lease.holder.is_none() || !(is_ending || has_moved) {
            return record;
        }
        let lease = lease.after_end();
        self.leases.remove(&id);
        NamespaceChange::together(vec![record, NamespaceChange::Lease { id, lease }])
    }

    /// Renews a lease, because the primary says that the holder lives. A lease that already ends is
    /// not renewed.
    pub(crate) fn lease_renewed(&mut self, now: Timestamp, id: InodeId, generation: u64) {
        let Some(lease) = self.namespace.file(id).map(|file| &file.lease) else { return };
        if lease.generation != generation || lease.holder.is_none() {
            return;
        }
        let until_ms = self.at_ms.saturating_add(whole_millis(self.config.lease_soft));
        let clock = self.leases.entry(id).or_default();
        if !clock.is_ending {
            (clock.renewed, clock.until_ms) = (Some(now), until_ms);
        }
    }

    /// The record that ends the lease of this generation, if a writer still holds it.
    pub(crate) fn closed_lease(
        &self,
        id: InodeId,
        generation: Option<u64>,
    ) -> Option<NamespaceChange> {
        let lease = &self.namespace.file(id)?.lease;
        let is_held = lease.holder.is_some() && generation == Some(lease.generation);
        is_held.then(|| NamespaceChange::Lease { id, lease: lease.after_end() })
    }

    /// The leases that writers hold, by file.
    pub fn held_leases(&self) -> Vec<HeldLease> {
        let held = |(file, clock): (&InodeId, &LeaseClock)| {
            let WriterLease { generation, holder } = self.namespace.file(*file)?.lease.clone();
            let holder = holder?;
            let until_ms = holder.until_ms.max(clock.until_ms);
            let (file, is_ending) = (*file, clock.is_ending);
            Some(HeldLease {
                file,
                generation,
                holder: LeaseHolder { until_ms, ..holder },
                is_ending,
            })
        };
        self.leases.iter().filter_map(held).collect()
    }
}

impl Dataserver {
    /// Flushes a file, and gives back the lease of this generation, which ends when the nameserver
    /// writes the length down. A lease of a later generation stays.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn flush_and_release(
        &mut self,
        token: u64,
        file: InodeId,
        generation: u64,
    ) -> Result<(), FilesRefusal> {
        if let Some(copy) = self.copies.get_mut(&file) {
            // A writer that lost its lease may close after the next writer has closed.
            copy.closing = copy.closing.max(Some(generation));
        }
        self.flush(token, file)
    }

    /// Renews the lease of a file at the nameserver, unless the last renewal was a moment ago. A
    /// lost renewal is not repeated, because the next one follows.
    pub(crate) fn renew_lease(&mut self, now: Timestamp, file: InodeId) {
        let Some(copy) = self.copies.get_mut(&file) else { return };
        if copy.lease.holder.is_none() || now < copy.renew_at {
            return;
        }
        copy.renew_at = now + self.config.renew;
        let (epoch, generation) = (copy.epoch, copy.lease.generation);
        self.tell(FilesControl::Renew { file, epoch, generation });
    }
}

#[cfg(test)]
mod tests;
