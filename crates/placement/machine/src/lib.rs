//! The machines that measure a pool of hosts: agents send probes, in jobs that a surveyor orders.
//!
//! ```text
//!   Surveyor --Task, Go, Poll, Release--> leader --the same--> members --the same--> ...
//!            <--Status, Part------------         <----------           <----------
//!                                leader ==probes==> members         (datagrams, class live)
//! ```
//!
//! One host cannot ask hundreds of hosts in turn, and a job whose surveyor is gone must not keep a
//! host busy. Every job therefore has a *leader*, and goes down a tree of hosts layer by layer. A
//! host first asks the hosts below it. The host reports that it is ready when the hosts below it
//! are ready or their time is over. Results go up the same way. A host polls the hosts to which it
//! gave orders, and the poll is the heartbeat in both directions. An agent drops its job when it is
//! not polled for the length of its lease. A host that does not answer is reported as failed with
//! the reason, and the job continues without it. Limits of time grow with the length of the job and
//! with the number of layers below.
//!
//! There are four kinds of job: parent to children, multicast over a tree, multicast in both ways,
//! and all to all ([`MeasurementKind`]). A probe carries the time of its sending by the
//! synchronised clock and the error bound of that clock, so every delay has an error bound
//! ([`DelayRecord`]). A delay below zero by more than its bound proves that a clock is wrong. A
//! clock that steps beyond its bounds during a job is reported by its own host. A clock error
//! within the bound cannot be told from distance in one way alone. Where hosts have clocks of their
//! own, a plan therefore measures pairs in both ways and takes the differences of the clocks out of
//! the delays.
//!
//! The kinds of job are those of TreeBuilder (thesis, sections 3.2 and 4.2). Job numbers, leases,
//! error bounds and the naming of failures are ours.
//!
//! | module | what it holds |
//! |---|---|
//! | [`agent`] | [`Agent`]: the machine on every host |
//! | [`surveyor`] | [`Surveyor`]: orders jobs; [`Program`]: the purpose of a survey |
//! | [`plan`] | [`TreeSurvey`]: the program that ends with a tree and its evaluation |
//! | [`job`] | [`JobSpec`], [`MeasurementKind`], the layers of a job and its limits of time |
//! | [`branch`] | one subordinate of a job |
//! | [`prober`] | sends probes at a pace, and receives them |
//! | [`record`] | [`DelayRecord`]: delays of one ordered pair |
//! | [`wire`] | control messages, byte by byte |
//! | [`probe`] | the probe, byte by byte |

pub mod agent;
mod branch;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
pub mod job;
pub mod plan;
pub mod probe;
mod prober;
pub mod record;
pub mod surveyor;
#[cfg(test)]
mod tests;
pub mod wire;

pub use agent::{Agent, AgentConfig, AgentEvent, AgentStatus, Idle};
pub use evenfall_core::MacKey;
pub use job::{JobSpec, MeasurementKind, ProbePace, Timing};
pub use plan::{Extent, PlanSurveyError, SurveyLine, SurveyPlan, TreeEvaluation, TreeSurvey};
pub use record::DelayRecord;
pub use surveyor::{
    JobOutcome, PairDelays, Program, SurveyStep, Surveyor, SurveyorConfig, SurveyorEvent,
};
pub use wire::HostFailure;
