//! `evenfall run files` and `evenfall files`: replicated files.

#[cfg(feature = "files")]
mod commands;
#[cfg(feature = "files")]
mod download_target;
#[cfg(feature = "files")]
mod local;

use std::net::SocketAddr;

#[cfg(feature = "files")]
pub use commands::{FilesArgs, files};
#[cfg(feature = "files")]
pub use local::run;

#[cfg(not(feature = "files"))]
use crate::Outcome;

/// Arguments of `evenfall run files`.
#[derive(clap::Args, Debug)]
pub struct ServersArgs {
    /// Port of the nameserver, or its loopback address and port. WebHDFS's clients and
    /// `evenfall files` connect there. Each dataserver listens on the next port. Servers talk to
    /// each other by UDP on the same ports.
    #[arg(long, value_name = "PORT", default_value = "9870", value_parser = crate::local::first)]
    pub(crate) webhdfs: SocketAddr,
}

#[cfg(not(feature = "files"))]
pub use crate::missing::Args as FilesArgs;

/// Says how to get the command.
#[cfg(not(feature = "files"))]
pub fn files(_: &FilesArgs) -> Outcome {
    crate::missing::main("evenfall files", "files")
}

/// Says how to get the role.
#[cfg(not(feature = "files"))]
pub fn run(_: &crate::local::LocalArgs, _: &ServersArgs) -> Outcome {
    crate::missing::main("the role files", "files")
}
