//! [`ClusterMembership`]: the part of one store node in a directory of names that several nodes
//! share.
//!
//! The engine knows this trait alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use evenfall_store_format::{FileId, Schema};

use super::cluster::ClusterNode;
use super::{Claimed, Entry, NamesError};

/// What a store node may read and write in a shared directory of names, as long as its lease holds.
///
/// All methods fail with [`NamesError::Unavailable`] or [`NamesError::Failed`] when the directory
/// does not answer or refuses. Methods that write also fail with [`NamesError::LeaseLost`].
pub trait ClusterMembership: Send + Sync {
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

    /// Gives the lease back at once. Nothing may be acknowledged afterwards.
    fn leave(&self);

    /// Every name of every node, in order.
    ///
    /// # Errors
    /// See [`ClusterMembership`].
    fn list(&self) -> Result<Vec<(String, Entry)>, NamesError>;

    /// The entry of this name, whoever its primary is.
    ///
    /// # Errors
    /// See [`ClusterMembership`].
    fn find(&self, name: &str) -> Result<Option<Entry>, NamesError>;

    /// The nodes that hold a lease.
    ///
    /// # Errors
    /// See [`ClusterMembership`].
    fn nodes(&self) -> Result<BTreeMap<u32, ClusterNode>, NamesError>;

    /// The error that names the primary, when another node is the primary of the file; `None` for a
    /// file of this node and for a missing file.
    ///
    /// # Errors
    /// See [`ClusterMembership`].
    fn whose(&self, name: &str) -> Result<Option<NamesError>, NamesError>;

    /// Notes where the objects are. The place that the first node notes holds for all nodes.
    ///
    /// # Errors
    /// When another place is noted already. See also [`ClusterMembership`].
    fn set_objects(&self, place: &str) -> Result<(), NamesError>;

    /// Publishes the address at which this node serves, for readers and other nodes.
    ///
    /// # Errors
    /// See [`ClusterMembership`].
    fn serve_at(&self, address: Option<String>) -> Result<(), NamesError>;

    /// Never again gives out a file number up to this number.
    ///
    /// # Errors
    /// See [`ClusterMembership`].
    fn reserve(&self, file: FileId) -> Result<(), NamesError>;

    /// Gives new names numbers, slots and this life's token. The flag of an entry says whether its
    /// name is new.
    ///
    /// # Errors
    /// [`NamesError::NotPrimary`] for a name of another node. No name of the same batch is then
    /// created.
    fn create(&self, files: &[(String, Schema)]) -> Result<Vec<(Entry, bool)>, NamesError>;

    /// Claims the files that an earlier life of this node had. If the settings say so, it also
    /// claims files whose primary has no lease any more. Files that this life has claimed and that
    /// are not `open` are returned once more, because an earlier claim of them failed half-way.
    ///
    /// # Errors
    /// See [`ClusterMembership`]. Files that were claimed before the error stay claimed.
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
    /// See [`ClusterMembership`].
    fn is_new_life_due(&self) -> Result<bool, NamesError>;

    /// Changes entries of this node's files. Missing names stay missing.
    ///
    /// # Errors
    /// [`NamesError::Fenced`].
    fn change(&self, names: &[&str], change: &dyn Fn(&mut Entry)) -> Result<(), NamesError>;

    /// Forgets the name of a file of this node.
    ///
    /// # Errors
    /// [`NamesError::Fenced`].
    fn remove(&self, name: &str) -> Result<(), NamesError>;

    /// Writes entries from the catalogue of the objects, after the directory of names was lost.
    /// Existing entries stay.
    ///
    /// # Errors
    /// See [`ClusterMembership`].
    fn restore(&self, files: &[(String, Entry)]) -> Result<(), NamesError>;
}
