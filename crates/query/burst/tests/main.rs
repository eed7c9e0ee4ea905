//! Bursts over a network in memory, beside plain programs, and the numbers of the source.

mod balance;
mod figure;
mod net;
mod queries;
mod sorts;
mod standing;
