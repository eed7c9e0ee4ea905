//! [`Membership`]: the part of one store node in a directory of names that several nodes share.
//!
//! The engine knows this trait alone. The cluster in etcd implements the trait and is compiled
//! with the feature `etcd` only, so that a build without the feature has no trace of etcd.

use std::collections::BTreeSet;
use std::time::Duration;

use evenfall_store_format::{FileId, Schema};

use super::{Claimed, Entry, NamesError};

/// What a store node may read and write in a shared directory of names, as long as its lease holds.
///
/// All methods fail with [`NamesError::Unavailable`] or [`NamesError::Failed`] when the directory
/// does not answer or refuses. Methods that write also fail with [`NamesError::LeaseLost`].
pub trait Membership: Send + Sync {
    /// The number of this node.
    fn node(&self) -> u32;

    /// The token of this life.
    fn token(&self) -> u32;

    /// The lease's number in the directory of names.
    fn lease_id(&self) -> i64;

    /// How long the lease lasts from each renewal on.
    fn lease_ttl(&self) -> Duration;

    /// Whether the lease is held now, by the clock of this machine alone.
    ///
    /// # Errors
    /// [`NamesError::LeaseLost`].
    fn check_lease(&self) -> Result<(), NamesError>;

    /// Whether the lease is held now, as the directory of names has it.
    ///
    /// # Errors
    /// [`NamesError::LeaseLost`].
    fn confirm(&self) -> Result<(), NamesError>;

    /// Gives the lease back at once: nothing may be acknowledged afterwards.
    fn leave(&self);

    /// Every name of every node, in order.
    ///
    /// # Errors
    /// See [`Membership`].
    fn list(&self) -> Result<Vec<(String, Entry)>, NamesError>;

    /// The entry of this name, whoever its primary is.
    ///
    /// # Errors
    /// See [`Membership`].
    fn find(&self, name: &str) -> Result<Option<Entry>, NamesError>;

    /// Whose file this is, when another node is its primary; `None` for our file and for no file.
    ///
    /// # Errors
    /// See [`Membership`].
    fn whose(&self, name: &str) -> Result<Option<NamesError>, NamesError>;

    /// Says where the objects are; the first node that says so decides.
    ///
    /// # Errors
    /// When they are elsewhere.
    fn set_objects(&self, place: &str) -> Result<(), NamesError>;

    /// Says to readers and other writers where this node serves.
    ///
    /// # Errors
    /// See [`Membership`].
    fn serve_at(&self, address: Option<String>) -> Result<(), NamesError>;

    /// Gives out no file number up to this one any more.
    ///
    /// # Errors
    /// See [`Membership`].
    fn reserve(&self, file: FileId) -> Result<(), NamesError>;

    /// Gives new names numbers, slots and this life's token; says which are new.
    ///
    /// # Errors
    /// [`NamesError::NotPrimary`], and then none of the batch behind it is created.
    fn create(&self, files: &[(String, Schema)]) -> Result<Vec<(Entry, bool)>, NamesError>;

    /// Claims our files that an earlier life had, and, if told so, those whose primary has no lease
    /// any more. Files that this life has claimed and that are not `open` come once more: something
    /// has failed in between.
    ///
    /// # Errors
    /// See [`Membership`]. What was claimed stays claimed.
    fn claim(
        &self,
        take_over: bool,
        is_new: bool,
        open: &BTreeSet<FileId>,
    ) -> Result<Vec<Claimed>, NamesError>;

    /// Whether there are files without a primary that [`claim`](Self::claim) gives to a new life of
    /// this node alone.
    ///
    /// # Errors
    /// See [`Membership`].
    fn is_new_life_due(&self) -> Result<bool, NamesError>;

    /// Changes entries of ours; names that are not there stay so.
    ///
    /// # Errors
    /// [`NamesError::Fenced`].
    fn change(&self, names: &[&str], change: &dyn Fn(&mut Entry)) -> Result<(), NamesError>;

    /// Forgets a name of ours.
    ///
    /// # Errors
    /// [`NamesError::Fenced`].
    fn remove(&self, name: &str) -> Result<(), NamesError>;

    /// Writes entries from a catalogue where there are none: the directory of names was lost.
    ///
    /// # Errors
    /// See [`Membership`].
    fn restore(&self, files: &[(String, Entry)]) -> Result<(), NamesError>;
}
