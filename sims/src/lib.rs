//! Scenarios and checkers.
#![forbid(unsafe_code)]
