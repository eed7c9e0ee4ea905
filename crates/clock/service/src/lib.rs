//! The clock of a run as a part of a process: a machine beside a role, over the port of the role.
//!
//! Every node measures the clocks of some other nodes by probes. One node is the reference, and the
//! other nodes know its time up to two bounds (see `evenfall_clock_machine`). The laboratory drives
//! the machine over sockets. The roles of the multicast do not start it yet.
//!
//! ```text
//!            +-------------- one process, one port ---------------+
//!  feed  --> | role: root, proxy, receiver, recorder              |
//!            |   ^ readings of the run's clock, 50 a second       |
//!  probes -->| Mesh (Timekeeper)  <-- the host's source of UTC    |
//!            +----------------------------------------------------+
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`settings`] | whether and how nodes keep one time |
//! | [`mesh`] | [`Mesh`]: the machine beside a role; [`Standing`]: what it last knew |
//! | [`laboratory`] | nodes with planted clocks on this machine, where the truth is known |
//! | [`plant`] | [`Plant`]: a local clock that is wrong on purpose, for laboratories |

#![forbid(unsafe_code)]

pub mod laboratory;
pub mod mesh;
pub mod plant;
pub mod settings;

pub use mesh::{Mesh, Standing, View};
pub use plant::Plant;
pub use settings::ClockSettings;
