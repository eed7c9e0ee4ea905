//! The clock of a run as a part of a process: a machine beside a role, over the port of the role.
//!
//! Every node measures the clocks of some other nodes by probes. One node is the reference, and the
//! other nodes know its time up to two bounds (see `evenfall_clock_machine`).
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
//! | [`settings`] | what probes may cost, and the clocks that a laboratory plants |
//! | [`mesh`] | [`ClockMesh`]: the machine beside a role; [`Standing`]: what it last knew |
//! | [`plant`] | [`Plant`]: a local clock that is wrong on purpose, for laboratories |

#![forbid(unsafe_code)]

pub mod mesh;
pub mod plant;
pub mod settings;

pub use mesh::{ClockMesh, MeshMember, MeshView, Standing};
pub use plant::{Plant, Planting};
pub use settings::ClockSettings;
