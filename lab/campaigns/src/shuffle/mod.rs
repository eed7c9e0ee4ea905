//! The shuffle on a fat tree: measured runs, rivals, bounds, faults.
//!
//! | module | what it holds |
//! |---|---|
//! | [`matrix`] | the bytes from each sender to each receiver, and the least time that they take |
//! | [`workload`] | matrices to measure with |
//! | [`scene`] | [`ShuffleParams`], [`run`]: one shuffle, measured against its bound |
//! | [`unfinished`] | reasons why a shuffle does not end: failure, deadlock, time limit |
//! | [`watch`] | watches a shuffle: its end, its progress, pauses |
//! | [`rivals`] | [`ShuffleRival`]: other schemes that send the same matrix |
//! | [`plain`] | the machine of rivals and of printed variants |
//! | [`faults`] | the fault campaign of the shuffle: faults, checks and mutants |
//! | [`calls`] | the fault campaign of group communication |
//! | [`preempt`] | pre-emption schedules, and the bound that they leave |

pub mod calls;
pub mod faults;
pub mod matrix;
mod node;
pub mod plain;
pub mod preempt;
pub mod rivals;
pub mod scene;
pub mod unfinished;
pub mod watch;
pub mod workload;

pub use matrix::{Links, Matrix, MatrixError};
pub use rivals::{Ablation, ShuffleRival};
pub use scene::{Control, Done, ShuffleParams, run, timeline};
pub use unfinished::Unfinished;
pub use watch::ShuffleSample;
pub use workload::Normal;
