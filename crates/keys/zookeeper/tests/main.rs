//! Replicas as processes.

mod connections;
mod processes;
