//! The campaign in which a membership service outside says who has vanished. Every seed has two or
//! three super-leaves. Up to four times one of them vanishes or leaves.

use core::ops::RangeInclusive;

use evenfall_sim::Plan;
use evenfall_sim::campaign::Outline;

use super::{Check, Mutant};

/// The knob that the seeds of this campaign have.
pub const KNOB: (&str, RangeInclusive<u64>) = ("outside", 1..=1);

/// Whether a plan is of this campaign.
pub fn is_of(plan: &Plan) -> bool {
    plan.knobs.iter().any(|(name, _)| *name == KNOB.0)
}

/// The outline of the campaign, out of that of `order`.
pub fn outline(order: &Outline<Mutant, Check>) -> Outline<Mutant, Check> {
    Outline {
        name: "racks",
        about: "Canopus while super-leaves vanish and a service outside says which have",
        seeds: order.seeds,
        once_failed: &[1208, 1404, 4992],
        kinds: order.kinds,
        // No seed has write leases, which the first count is about.
        counts_min: &order.counts_min[1..],
        mutants: &[
            (Mutant::SendsEarly, Check::Agreement, 400),
            (Mutant::CompactsPromises, Check::Resumes, 100),
            (Mutant::VotesWithoutPast, Check::Agreement, 1_000),
            (Mutant::BelievesBallots, Check::Agreement, 400),
            (Mutant::NeverReturns, Check::Resumes, 100),
            (Mutant::TakesEveryChange, Check::Agreement, 400),
        ],
    }
}
