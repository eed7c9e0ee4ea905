//! Flash bursts: hundreds of ranks sort and query together for a millisecond.
//!
//! A desk asks about the last five seconds and wants the answer before the next tick. One machine
//! has the data of one venue, and one core reads some hundred thousand records in a millisecond.
//! Many machines can answer together, if they lose no time in agreeing who does what. The thesis
//! *Efficient Shuffle for Flash Burst Computing* (Li, chapter 2) shows how: MilliSort sorts .84
//! million records on 120 servers in a millisecond, and MilliQuery runs queries on the same steps.
//!
//! | module | what it holds |
//! |---|---|
//! | [`burst`] | the machine that runs one rank's part of a burst; the door to other cores |
//! | [`sort`] | MilliSort |
//! | [`placement`] | which rank adds up the rows of a key: hash or range |
//! | [`query`], [`rows`] | MilliQuery: three queries, and rows for them |
//! | [`standing`] | a group whose workers wait for the next question, and answer without the dead |
//! | [`desk`] | what a desk asks of the last seconds: `reprice` and `nbbo` |
//! | [`partition`] | the recursive partition: how all ranks learn the splitters |
//! | [`pivots`] | pivots, their weights, splitters, and their bytes |
//!
//! Two ranks in one thread sort three records each. A driver carries the datagrams; here a loop
//! does:
//!
//! ```
//! use std::sync::Arc;
//! use evenfall_collectives_machine::group::{GroupSettings, ProcessGroup};
//! use evenfall_core::{Arrival, Destination, Machine, StampedBy, Timestamp};
//! use evenfall_query_burst::burst::{Burst, BurstEvent};
//! use evenfall_query_burst::partition::PartitionConfig;
//! use evenfall_query_burst::pivots::Weighted;
//! use evenfall_query_burst::sort::{MilliSort, SortConfig, SortRecords};
//!
//! let members: Vec<std::net::SocketAddr> = vec!["10.0.0.1:1".parse()?, "10.0.0.2:1".parse()?];
//! let rule = Arc::new(Weighted);
//! let partition = PartitionConfig { levels: 1, pivots_per_rank: 1, rule };
//! let config = SortConfig { value_bytes: 1, partition };
//! let now = Timestamp::ZERO;
//! let mut ranks = Vec::new();
//! for (rank, letters) in ["fbd", "aec"].into_iter().enumerate() {
//!     let keys: Vec<u8> = letters.bytes().flat_map(|letter| [letter; 10]).collect();
//!     let records = SortRecords { keys: keys.into(), values: letters.into() };
//!     let group = ProcessGroup::new(rank, members.clone(), GroupSettings::default())?;
//!     let mut burst = Burst::new(group);
//!     burst.start(now, MilliSort::new(config.clone(), rank as u16, 2, records));
//!     ranks.push(burst);
//! }
//! let mut sorted = Vec::new();
//! while sorted.len() < 2 {
//!     for me in 0..2 {
//!         ranks[me].run_work(now);
//!         while let Some(transmit) = ranks[me].poll_transmit(now) {
//!             let Destination::One(to) = transmit.to else { continue };
//!             let datagram = [transmit.head.as_slice(), &transmit.body].concat().into();
//!             let arrival = Arrival::new(members[me], datagram, now, StampedBy::User);
//!             ranks[members.iter().position(|&m| m == to).unwrap()].handle(now, arrival)?;
//!         }
//!         while let Some(event) = ranks[me].poll_event() {
//!             if let BurstEvent::Result { output, .. } = event {
//!                 sorted.push((me, output.records.values));
//!             }
//!         }
//!     }
//! }
//! sorted.sort();
//! let values: Vec<u8> = sorted.into_iter().flat_map(|(_, values)| values).collect();
//! assert_eq!(values, b"abcdef");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod burst;
pub mod desk;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
pub mod partition;
pub mod pivots;
pub mod placement;
pub mod query;
pub mod rows;
pub mod sort;
pub mod standing;
