//! The program as people run it: real processes, real sockets, short feeds.
//!
//! | module | what it shows |
//! |---|---|
//! | [`clusters`] | store nodes over etcd: stopped past a lease, killed, replaced |
//! | [`demos`] | every mode, key, trees, lab: nothing lost, equal contents, all figures there |
//! | [`experiments`] | experiment files: runs, resumption, the report in a browser |
//! | [`faults`] | processes killed and paused, Ctrl-C |
//! | [`feeds`] | real data files; files that are cut or foreign |
//! | [`files`] | replicated files, and the places on this machine that take their bytes |
//! | [`gateways`] | participants without the key: a tap, a client that is not ours, readers that never read |
//! | [`hosts`] | one settings file, a process per host; metrics, orders, attacks, a late receiver |
//! | [`operations`] | the page of operations names every metric |
//! | [`pages`] | the commands of README and `docs/`, as they are written |
//! | [`plans`] | trees chosen out of files of delays |
//! | [`recorders`] | a recorder among the hosts: a stopped receiver, a late one, its own death |
//! | [`roles`] | one settings file with every role: its check, and the pages of each process |
//! | [`served`] | a store on a port: killed in the middle of appends |
//! | [`standbys`] | a root that is started again, a standby with another feed |
//! | [`stores`] | a feed recorded, proven equal, read back; after kill -9; from objects alone |
//! | [`shuffles`] | shuffles between processes: losses, a dead rank, mistakes, Ctrl-C, a lab |
//! | [`sorts`] | sorts and queries over processes: results, files, a dead rank, mistakes |
//! | [`strangers`] | hostile HTTP and gRPC clients, and notes without a reader |
//! | [`surveys`] | live plans over agents; stragglers, dead agents, Ctrl-C, a lab |
//! | [`tables`] | tables of other programs, and stores whose files were damaged |
//! | [`trading`] | participants that are processes trade on a feed, in every mode |
//! | [`watches`] | the live page, `top` and `stat` of a run that goes on |
//! | [`words`] | the errors for users' mistakes |
#![forbid(unsafe_code)]

mod clusters;
mod common;
mod demos;
mod experiments;
mod faults;
mod feeds;
#[cfg(feature = "files")]
mod files;
mod gateways;
mod generated;
mod hosts;
mod operations;
mod pages;
mod plans;
mod questions;
mod racks;
mod recorders;
mod replicas;
mod roles;
mod served;
#[path = "../../../../crates/store/server/tests/store/servers.rs"]
#[expect(dead_code, reason = "the tests of the store start S3 servers too")]
mod servers;
mod shuffles;
mod sorts;
mod standbys;
mod stores;
mod strangers;
mod surveys;
mod tables;
mod trading;
mod users;
mod watches;
mod words;
mod zookeepers;
