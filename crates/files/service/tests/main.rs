//! Servers as processes, with clients of WebHDFS.

mod cluster;
mod processes;
mod strangers;
