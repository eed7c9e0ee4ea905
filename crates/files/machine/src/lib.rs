//! Replicated files, as two machines: the names of a [`Nameserver`] and the copies of a
//! [`Dataserver`].
//!
//! Backtests and recoveries read files of gigabytes. A machine that fails must take no file with
//! it, so every file has several copies, and all copies must have the same bytes. Agreeing on every
//! append by consensus costs a majority's round trip and three logs. Files need less: one
//! nameserver says who has a file, and the copies only follow their primary.
//!
//! The shape is that of section 3.3 of the Mayflower thesis. A file is a row of chunks. Appends go
//! to the primary copy, which gives them an order and relays them. An append is acknowledged when
//! **all** members have it on their disks, so any member that is left has everything that was
//! acknowledged. Readers see what all members have and no more, so what was once read is never
//! taken back. The change of members by epochs is that of a primary-backup system with a
//! configuration master, as in PacificA (Lin et al., 2008).
//!
//! | module | what it holds |
//! |---|---|
//! | [`nameserver`] | [`Nameserver`]: calls of clients, beats, the log |
//! | `groups` | epochs, joiners and lost disks, as the nameserver sees them |
//! | [`space`] | directories, files and the rules of paths |
//! | [`dataserver`] | [`Dataserver`]: promises, epochs, beats |
//! | `relaying` | appends from the primary to its followers |
//! | `copy` | one copy: chunks, lengths, cuts |
//! | `lead` | followers of a primary and its window |
//! | [`chunk`] | the bytes on a disk |
//! | [`wire`] | datagrams, drawn |
//! | [`config`] | every limit |
//!
//! **Failures.** A dataserver that is silent is left out under a new epoch, and another one copies
//! the file. A dataserver that restarts goes on with what its disk has: torn appends at the end
//! were never acknowledged and are cut off. A disk that takes no bytes is left out while another
//! member lives. A nameserver that restarts has its log. While the nameserver is down, reads and
//! appends of known files go on, and no failure is repaired.
//!
//! **What can be lost.** A file that is down to one member takes appends still, and what only its
//! disk has is lost with the disk. When all members lose their disks, the file goes on from a
//! joiner that has caught up, else from the former member that had most when it was left out, else
//! from a joiner that has not. The nameserver does not ask them all, so a joiner may have had more.
//! A joiner that was silent meanwhile is no joiner any more, and its bytes are lost.
//! [`nameserver::Event::Lost`] tells of the bytes that the nameserver knew of: those in front of
//! the last flush, and those that a remaining copy knows to be committed. A file of which no copy
//! is left keeps its name, and takes no appends.
//!
//! **Deliberately absent.** Writing in the middle of a file; appends longer than a datagram as one;
//! enforced rights. This is no general file system.
//!
//! **Not there yet.** A nameserver that lost its disk is not rebuilt from the dataservers. There
//! are no racks, no leases of writers, no balancing and no decommissioning.
#![forbid(unsafe_code)]

pub mod chunk;
pub mod config;
mod copy;
pub mod dataserver;
mod error;
mod groups;
mod lead;
pub mod nameserver;
mod relaying;
pub mod space;
pub mod wire;

use serde::{Deserialize, Serialize};

pub use config::{DataConfig, NameConfig};
pub use copy::View;
pub use dataserver::Dataserver;
pub use error::{FilesError, Refusal};
pub use nameserver::Nameserver;

/// The number of a file or a directory. Numbers are never given twice.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct FileId(pub u64);

/// The name of a disk, which its dataserver draws at random when the disk is empty.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct DiskId(pub u64);
