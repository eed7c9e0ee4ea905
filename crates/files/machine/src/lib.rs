//! Replicated files, as two machines: the names of a [`Nameserver`] and the copies of a
//! [`Dataserver`].
//!
//! Backtests and recoveries read files of gigabytes. No file may be lost with one machine, so every
//! file has several copies, and all copies must have the same bytes. Agreeing on every append by
//! consensus costs a majority's round trip and three logs. Files need less: one nameserver decides
//! which dataservers have a file, and the copies follow their primary.
//!
//! The shape is that of section 3.3 of the Mayflower thesis. A file is a row of chunks. Appends go
//! to the primary copy, which gives them an order and relays them. An append is acknowledged when
//! **all** members have the append on their disks, so any member that is left has all acknowledged
//! appends. Readers see only the bytes that all members have, so bytes that were once read are
//! never taken back. The change of members by epochs is that of a primary-backup system with a
//! configuration master, as in PacificA (Lin et al., 2008).
//!
//! | module | what it holds |
//! |---|---|
//! | [`nameserver`] | [`Nameserver`]: calls of clients, beats, the log |
//! | `groups` | epochs and joiners, as the nameserver sees them |
//! | `last_copy_recovery` | files whose members have all lost their disks |
//! | [`leases`] | one writer of a file at a time |
//! | `placing` | racks, free room, disks that leave, balance |
//! | `valid_length` | [`ValidLength`]: how many bytes are right in a copy whose disk is not a member |
//! | [`log_replication`], [`log_replica`] | copies of the nameserver's log on dataservers, and rebuilding it |
//! | [`namespace`] | directories, files and the rules of paths |
//! | [`dataserver`] | [`Dataserver`]: its copies, beats, writes |
//! | `epochs` | promises and assignments, as a dataserver sees them |
//! | `relaying` | appends from the primary to its followers |
//! | `copy` | one copy: chunks, lengths, cuts |
//! | `primary` | followers of a primary and its window |
//! | `sender_checks` | whose word a server takes |
//! | `outbox` | datagrams that wait to be sent |
//! | [`chunk`] | the bytes on a disk |
//! | [`wire`] | datagrams, drawn |
//! | [`config`] | every limit |
//!
//! **Failures.** A dataserver that is silent is left out under a new epoch, and another dataserver
//! copies the file. A dataserver that restarts goes on with the bytes on its disk. Torn appends at
//! the end of a chunk were never acknowledged, and are cut off. A dataserver whose disk takes no
//! bytes is left out while another member lives. A nameserver that restarts reads its log. A
//! nameserver that lost its disk is rebuilt from the copies of its log on dataservers
//! ([`log_replication`]). While the nameserver is down, reads and appends of known files go on, and
//! no failure is repaired.
//!
//! **What can be lost.** A file with one member left still takes appends, and the bytes that only
//! this member has are lost with its disk. When all members lose their disks, the file goes on from
//! the former member or joiner with most right bytes. The nameserver waits for silent former
//! members for [`NameConfig::heir_wait`] at most. The bytes of a joiner that falls silent are lost.
//! [`nameserver::Event::Lost`] names the lost bytes that the nameserver knows of: bytes in front of
//! the last flush, and bytes that a remaining copy knows to be committed. A file without any copy
//! keeps its name, and takes no appends.
//!
//! **Deliberately absent.** Writing in the middle of a file and single appends longer than a
//! datagram are missing. This is no general file system. Rights are enforced
//! ([`namespace::rights`]), and a user is who the request says, as in HDFS without Kerberos.
#![forbid(unsafe_code)]

pub mod chunk;
pub mod config;
mod copy;
pub mod dataserver;
mod epochs;
mod error;
mod groups;
mod last_copy_recovery;
pub mod leases;
pub mod log_replica;
pub mod log_replication;
pub mod nameserver;
pub mod namespace;
mod outbox;
mod placing;
mod primary;
mod relaying;
mod sender_checks;
mod valid_length;
pub mod wire;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use config::{DataConfig, NameConfig};
pub use copy::CopyView;
pub use dataserver::Dataserver;
pub use error::{FilesError, FilesRefusal};
pub use leases::{HeldLease, LeaseHolder, WriterLease};
pub use nameserver::Nameserver;
pub use valid_length::ValidLength;

/// The number of a file or a directory. Numbers are never given twice.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct InodeId(pub u64);

/// The name of a disk, which its dataserver draws at random when the disk is empty.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct DiskId(pub u64);

/// Sixteen hexadecimal digits, as reports, headers and errors name a disk.
impl fmt::Display for DiskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
