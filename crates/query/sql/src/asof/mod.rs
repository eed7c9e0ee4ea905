//! Joins of time: each row of one table beside the row of another that was valid at its moment.
//!
//! DataFusion 55 parses `a ASOF JOIN b MATCH_CONDITION (...) ON ...` and refuses to plan it. Here
//! the syntax tree becomes a left join whose condition carries a mark ([`syntax`](crate::syntax)),
//! [`PlanTimeJoins`] makes a node of it, and [`TimeJoinExec`](exec::TimeJoinExec) runs it. A left
//! join by a window of time (`LEFT JOIN b ON b.ts BETWEEN a.ts - x AND a.ts + y`) becomes the same
//! node with another rule.

pub(crate) mod condition;
mod exec;
mod merge;
mod nearest;
mod node;
pub(crate) mod planner;
#[cfg(test)]
mod tests;
mod window;

pub(crate) use node::{PlanTimeJoins, PushFiltersBelowTimeJoins};
