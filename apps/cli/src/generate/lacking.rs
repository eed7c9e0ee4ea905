//! `evenfall generate` in a build without it.

use crate::Outcome;
pub use crate::missing::Args;

/// Says how to get the command.
pub fn main(_: &Args) -> Outcome {
    crate::missing::main("evenfall generate", "generate")
}
