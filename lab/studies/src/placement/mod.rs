//! Placement studies: which trees the planners choose from measurements, and how good those trees
//! are for messages that no planner has seen.
//!
//! | module | what it holds |
//! |---|---|
//! | [`archived`] | the trees of TreeBuilder's public run, and ours on the same pairs |
//! | [`model`] | pools of machines, fitted to public measurements |
//! | [`tables`] | the tables of the thesis, planners by shape, probing against all-to-all measurement |

pub mod archived;
pub mod model;
pub mod tables;
