//! The argument of commands that says whether super-leaves may vanish.

use evenfall_consensus_machine::SecondRound;

/// The second round of Canopus.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Rounds {
    /// Let super-leaves of Canopus vanish: a minority, when `consensus` among the super-leaves says
    /// what each cycle has, or all but one, when a membership service `outside` says who has
    /// vanished.
    #[arg(
        long,
        num_args = 0..=1,
        require_equals = true,
        default_value = "off",
        default_missing_value = "consensus",
        value_name = "HOW"
    )]
    pub second_round: SecondRound,
}
