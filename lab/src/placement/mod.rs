//! Placement studied: which trees the planners choose from what they measured, and what those
//! trees are worth on messages that nobody has seen.
//!
//! | module | what it holds |
//! |---|---|
//! | [`model`] | pools of machines, fitted to public measurements |
//! | [`tables`] | the thesis' tables, the comparison by shape, probing against all-to-all |

pub mod model;
pub mod tables;
