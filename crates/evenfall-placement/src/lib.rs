//! Which machine takes which place in a multicast tree.
//!
//! Two cloud machines of one type differ by half in delay, and one straggler sets the deadline for
//! every receiver. So the pool is measured, and the places of the tree are given to the machines
//! that serve them best. Everything here is a plain function of measured delays and a seed.
//!
//! - [`survey`]: measuring the pool by jobs between agents;
//! - [`tree`]: the shape of a tree and who stands where in it.

#![forbid(unsafe_code)]

pub mod survey;
pub mod tree;
