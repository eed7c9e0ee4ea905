//! A replica of a consensus as a process: the machine on a port, with its log on a disk.
//!
//! ```text
//!   owner ──requests and reads──> Replica: the machine, its port, its log
//!     ^                              │  ^
//!     └───────── events ─────────────┘  └── the list of a membership service, where there is one
//! ```
//!
//! [`Replica::open`] takes the directory and the sockets, and [`Replica::turn`] does what is due.
//! The owner keeps the state machine above: it applies what [`Event::Committed`] says, and gives a
//! checkpoint when the replica wants one. One thread owns the replica. Other threads wake it by
//! [`Replica::waker`].
//!
//! With a key, replicas on several hosts seal what they tell each other (`sealed`). Without a key
//! everything stays on loopback.
//!
//! [`Event::Committed`]: evenfall_consensus_machine::Event::Committed
#![forbid(unsafe_code)]

mod cluster;
mod error;
pub mod external_membership;
mod replica;
mod settings;

pub use error::ReplicaError;
pub use evenfall_consensus_machine::SecondRound;
pub use external_membership::MembershipService;
pub use replica::{Replica, config, options, random_number};
pub use settings::{RackSettings, Settings};
