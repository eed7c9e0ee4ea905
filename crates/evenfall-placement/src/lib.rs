//! Which machine takes which place in a multicast tree.
//!
//! Two cloud machines of one type differ by half in delay, and one straggler sets the deadline for
//! every receiver. So the pool is measured, and the places of the tree are given to the machines
//! that serve them best. Everything here is a plain function of measured delays and a seed.
//!
//! - [`builder`]: TreeBuilder's algorithm, from one measurement to the next;
//! - [`curve`]: the distribution of an edge's delay;
//! - [`delays`]: what was measured, from probes and from files;
//! - [`lemondrop`]: the tree that LemonDrop chooses, for comparison;
//! - [`minmax`]: the tree with the best worst leaf, and how far from the best possible it is;
//! - [`paths`]: percentiles of whole paths out of those of their edges;
//! - [`qap`]: quadratic assignment, which LemonDrop is made of;
//! - [`strategy`]: how bad a candidate is;
//! - [`survey`]: measuring the pool by jobs between agents;
//! - [`tree`]: the shape of a tree and who stands where in it.

#![forbid(unsafe_code)]

pub mod builder;
pub mod curve;
pub mod delays;
pub mod fuzzing;
pub mod lemondrop;
pub mod minmax;
pub mod paths;
pub mod qap;
pub mod strategy;
pub mod survey;
pub mod tree;
