//! The store over what a cluster gives it: object stores and directories of names that are real
//! servers, killed and started again.
//!
//! | module | what it shows |
//! |---|---|
//! | [`suite`] | one test body for a store over any objects and names |
//! | [`objects`] | that body over a directory, `s3s-fs` and MinIO; servers killed, buckets lost |
//! | [`ages`] | retention by age, under a wall clock that steps |
//! | [`absent`] | buckets that do not answer, and disks that run low |
//! | [`clusters`] | that body over shared names; leases lost, nodes replaced, names killed |
//! | [`columns`] | chunks as Parquet files: switched, cut short, damaged, deleted |
//! | [`nodes`] | a node serves reads of other nodes' files to its own clients |
//! | [`readers`] | any node reads any file, and old records cost their primary nothing |
//! | [`tables`] | recordings and files as tables, the same over every kind of source |
//! | [`servers`] | starts the servers |
#![forbid(unsafe_code)]

mod absent;
mod ages;
mod clusters;
mod columns;
mod nodes;
mod objects;
mod readers;
mod servers;
mod suite;
mod tables;
