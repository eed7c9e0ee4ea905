//! Chooses the machine for each place in a multicast tree.
//!
//! Two cloud machines of one type differ by half in delay, and one straggler sets the deadline for
//! every receiver. Therefore the pool is measured, and the places of the tree go to the machines
//! that serve them best. All functions here depend only on measured delays and a seed.
//!
//! - [`accuracy`]: how wrong a planned length may be;
//! - [`assessed`]: a tree with its lengths, its bound and their errors, as commands tell it;
//! - [`builder`]: TreeBuilder's algorithm, from one measurement to the next;
//! - [`curve`]: the distribution of an edge's delay;
//! - [`delays`]: measured delays, from probes and from files;
//! - [`explorer`]: min-max on few pairs, with the choice of the pairs to measure next;
//! - [`lemondrop`]: the tree that LemonDrop chooses, for comparison;
//! - [`minmax`]: the tree whose slowest leaf is fastest, and a bound on its distance from the best
//!   possible tree;
//! - [`paths`]: percentiles of whole paths, computed from the percentiles of their edges;
//! - [`planner`]: every way to choose a tree behind one method;
//! - [`qap`]: quadratic assignment, the problem that LemonDrop solves;
//! - [`shapes`]: the depth and fan-out that suit a pool, and the tree below a host that stays;
//! - [`strategy`]: the score of a candidate;
//! - [`tree`]: the shape of a tree, and the host on each place.
//!
//! ```
//! use evenfall_placement_planner::builder::{
//!     BuildPlan, BuilderStep, Racing, RootRule, TreeBuilder,
//! };
//! use evenfall_placement_planner::delays::DelayMatrix;
//! use evenfall_placement_planner::minmax::{self, MinMax};
//! use evenfall_placement_planner::strategy::{Pick, Strategy};
//! use evenfall_placement_planner::tree::TreeShape;
//!
//! let names = ["a", "b", "c", "d", "e"].map(String::from).to_vec();
//! let delays = DelayMatrix::from_fn(names, |from, to| 50.0 + (3 * from + 5 * to) as f64 % 7.0);
//! let (pool, shape) = ([0, 1, 2, 3, 4], TreeShape { depth: 1, fanout: 2 });
//!
//! // All is known: the tree with the best worst leaf, and how far from the best it may be.
//! let best = minmax::plan(&delays, &pool, &MinMax::new(shape), None)?;
//! assert_eq!(best.gap(), Some(0.0));
//!
//! // Nothing is known: the builder says what it wants to know, and is told.
//! let plan = BuildPlan {
//!     shape,
//!     candidates: 3,
//!     strategy: Strategy::weighted(),
//!     pick: Pick::Best,
//!     root: RootRule::Host(0),
//!     racing: Racing::OFF,
//! };
//! let mut builder = TreeBuilder::new(plan, &pool, 1)?;
//! let tree = loop {
//!     match builder.step() {
//!         BuilderStep::Measure(wanted) => {
//!             let probe = |to: usize| *delays.edge(wanted.parent, to).expect("another host");
//!             let results = wanted.candidates.iter().map(|&to| (to, Ok(probe(to))));
//!             let results: Vec<_> = results.collect();
//!             builder.answer(&results);
//!         }
//!         BuilderStep::Done(tree) => break tree,
//!         BuilderStep::Failed(error) => return Err(error.into()),
//!     }
//! };
//! assert_eq!(tree.hosts()[0], 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod accuracy;
pub mod assessed;
pub mod builder;
pub mod curve;
pub mod delays;
pub mod explorer;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
pub mod lemondrop;
pub mod minmax;
pub mod paths;
pub mod planner;
pub mod qap;
pub mod shapes;
pub mod strategy;
pub mod tree;
