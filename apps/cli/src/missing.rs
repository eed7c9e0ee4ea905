//! The answer of a build to a command that it lacks.

#![allow(dead_code, reason = "a build with all features lacks no command")]

use crate::Outcome;

/// Arguments, which are ignored.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _arguments: Vec<std::ffi::OsString>,
}

/// Says how to get the command.
pub fn main(what: &str, feature: &str) -> Outcome {
    Err(words(what, feature).into())
}

/// The missing command, and how to get it.
pub fn words(what: &str, feature: &str) -> String {
    format!(
        "this build lacks {what}; install it with `cargo install --path apps/cli --features full`, \
         or with the feature {feature} alone"
    )
}
