//! Servers as processes, with clients of WebHDFS.

mod cluster;
mod faults;
mod freshness;
#[cfg(feature = "objects")]
mod objects;
mod operating;
mod paths;
mod processes;
mod rights;
mod strangers;
