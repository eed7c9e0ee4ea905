//! The campaign in which a membership service outside says who has vanished. Every seed has two or
//! three super-leaves. Up to four times one of them vanishes or leaves.

use core::ops::RangeInclusive;
use core::time::Duration;

use evenfall_sim::campaign::Outline;
use evenfall_sim::{NodeIndex, Plan};

use super::{Check, END, Kind, LAST_AT, Mutant, Operation};

/// The knob that the seeds of this campaign have.
pub const KNOB: (&str, RangeInclusive<u64>) = ("outside", 1..=1);

/// Whether a plan is of this campaign.
pub fn is_of(plan: &Plan) -> bool {
    plan.has_knob(KNOB.0)
}

/// Time between two writes at the end of a seed.
const NUDGE_EVERY: Duration = Duration::from_millis(5);

/// Time from the last of these writes to the end of a seed.
const SETTLE: Duration = Duration::from_millis(200);

/// Writes at the end of a seed, at all nodes in turn. A super-leaf that comes back after the loss
/// of a disk waits for some cycles of the others, and the service keeps these going.
pub fn nudges(plan: &Plan, nodes: u32) -> Vec<Operation> {
    if !is_of(plan) {
        return Vec::new();
    }
    let times = (1..).map(|number| LAST_AT + NUDGE_EVERY * number);
    let nodes = (0..nodes).map(NodeIndex).cycle();
    let writes = times.zip(nodes).map(|(at, node)| Operation { at, node, kind: Kind::Write });
    writes.take_while(|write| write.at + SETTLE < END).collect()
}

/// The outline of the campaign, out of that of `consensus`.
pub fn outline(hosts: &Outline<Mutant, Check>) -> Outline<Mutant, Check> {
    Outline {
        name: "racks",
        about: "Canopus while super-leaves vanish and a service outside says which have",
        // Half of the seeds reach every count: 31 super-leaves retire, where 20 are demanded.
        seeds: hosts.seeds / 2,
        once_failed: &[1208, 1404, 4394, 4992],
        kinds: hosts.kinds,
        // No seed has write leases, which the first count is about.
        counts_min: &hosts.counts_min[1..],
        mutants: &[
            (Mutant::SendsEarly, Check::Agreement, 110..400),
            (Mutant::CompactsPromises, Check::Resumes, 0..100),
            (Mutant::VotesWithoutPast, Check::Agreement, 30..1_000),
            (Mutant::BelievesBallots, Check::Agreement, 0..400),
            (Mutant::NeverReturns, Check::Resumes, 0..100),
            (Mutant::TakesEveryChange, Check::Agreement, 0..400),
        ],
    }
}
