//! Joins of time: each row of one table beside the row of another that was valid at its moment.
//!
//! DataFusion 55 parses `a ASOF JOIN b MATCH_CONDITION (...) ON ...` and refuses to plan it. Here
//! the syntax tree becomes a left join whose condition carries a mark ([`syntax`](crate::syntax)),
//! [`PlanAsOfJoins`] makes a node of it, and [`AsOfJoinExec`](exec::AsOfJoinExec) runs it.

pub(crate) mod condition;
mod exec;
mod merge;
mod nearest;
mod node;
pub(crate) mod planner;
#[cfg(test)]
mod tests;

pub(crate) use node::{PlanAsOfJoins, PushFiltersBelowAsOf};
