//! The exchange on a fat tree: measured runs, rivals, bounds, faults.
//!
//! | module | what it holds |
//! |---|---|
//! | [`scene`] | [`Params`], [`run`]: one shuffle, measured against its bound |
//! | [`rivals`] | [`Rival`]: how others would send the same matrix |
//! | [`faults`] | loss, crashes and what must hold; mutants that must be caught |
//! | [`calls`] | the same for group communication |
//! | [`study`] | the figures of chapter 6 of the thesis, run by run |
//! | [`plot`] | those figures as drawings |
//! | [`preempt`] | pre-emption schedules, and the bound that they leave |

pub mod calls;
pub mod faults;
pub mod plot;
pub mod preempt;
pub mod rivals;
pub mod scene;
pub mod study;

pub use rivals::{Ablation, Rival};
pub use scene::{Control, Done, Params, Sample, run, timeline};
