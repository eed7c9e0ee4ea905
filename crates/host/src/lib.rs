//! The host under an evenfall process: its clocks, cores, signals, processes and memory, and a lab
//! of network namespaces. Linux only.
//!
//! | module | what it holds |
//! |---|---|
//! | [`allocations`] | the allocations of a thread, counted |
//! | [`clock`] | [`MonotonicClock`](clock::MonotonicClock), [`SyncSource`](clock::SyncSource) |
//! | [`check`] | what of the host delays a feed, and what mends it |
//! | [`interrupt`] | SIGINT and SIGTERM as a flag and a wake-up |
//! | [`pin`] | cores and scheduling of a thread |
//! | [`ports`] | free ports for servers that are told theirs |
//! | [`process`] | children that do not outlive their parent |
//! | [`procstat`] | processor time and memory of a process |
//! | [`rights`] | the capabilities of a process |
//! | [`random`] | random bytes of the kernel |
//! | [`lab`] | hosts as network namespaces on this machine |
//! | [`lock`] | a lock that keeps a second process out of a directory or a file |
//! | [`losses`] | packets that a card or the cloud lost, by the counters of its driver |
//! | [`quota`] | the processor time that control groups allow |
//! | [`memory`] | freed memory that the allocator keeps |
//! | [`whole_file`] | files that a person names, read whole with a limit |
//! | [`writes`] | a thread that writes and syncs for machines |
//! | [`waker`] | ends the wait of another thread |

#[cfg(not(target_os = "linux"))]
compile_error!("evenfall-host knows Linux only: clocks, namespaces, eventfd");

pub mod allocations;
pub mod check;
pub mod clock;
pub mod disk_room;
mod error;
mod ethtool;
pub mod interrupt;
pub mod lab;
pub mod lock;
pub mod losses;
pub mod memory;
pub mod pin;
pub mod ports;
pub mod process;
pub mod procstat;
pub mod quota;
pub mod random;
pub mod rights;
mod sys;
pub mod waker;
pub mod whole_file;
pub mod writes;

pub use error::Error;
pub use sys::checked;
pub use waker::Waker;
