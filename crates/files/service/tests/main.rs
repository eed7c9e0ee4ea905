//! Servers as processes, with clients of WebHDFS.

mod cluster;
mod operating;
mod processes;
mod strangers;
