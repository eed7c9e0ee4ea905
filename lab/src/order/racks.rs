//! The campaign in which a membership service outside says who has vanished. In every seed two or
//! three super-leaves have the service, and up to four times one of them vanishes.

use core::ops::RangeInclusive;

use evenfall_sim::Plan;
use evenfall_sim::campaign::Outline;

use super::{Check, KINDS, Mutant};

/// The knob that the seeds of this campaign have.
pub const KNOB: (&str, RangeInclusive<u64>) = ("outside", 1..=1);

/// Whether a plan is of this campaign.
pub fn is_of(plan: &Plan) -> bool {
    plan.knobs.iter().any(|(name, _)| *name == KNOB.0)
}

/// The outline of the campaign.
pub fn outline() -> Outline<Mutant, Check> {
    Outline {
        name: "racks",
        about: "Canopus while super-leaves vanish and a service outside says which have",
        seeds: 1_000,
        once_failed: &[],
        kinds: KINDS,
        counts_min: &[
            ("cycles", 1_000),
            ("writes answered", 1_000),
            ("reads answered", 1_000),
            ("expelled", 10),
            ("joined", 10),
            ("checkpoints", 1_000),
            ("installed", 10),
            ("full disks", 10),
            ("lost disks", 10),
            ("super-leaves left out", 20),
            ("super-leaves retired", 20),
            ("super-leaves ended outside", 20),
        ],
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
