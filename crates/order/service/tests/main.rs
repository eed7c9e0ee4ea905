//! Replicas as processes.

mod processes;
