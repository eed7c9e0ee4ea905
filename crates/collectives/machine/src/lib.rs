//! The shuffle between all processes of a group. Sorts and joins spend most of their time in this
//! shuffle, and group communication is built of the same operations.
//!
//! The protocol is that of a thesis on low-latency shuffles (Li, chapters 3.1 to 3.5). A **grant**
//! is a receiver's permission to send packets of one message up to a stated offset. Receivers grant
//! more than one round trip ahead, in windows whose size is in proportion to the bytes that are
//! missing. Each sender takes the next packet from the message with the greatest remaining
//! fraction, so that all messages end together. A receiver asks again for lost packets. An
//! operation ends once and as a whole, or it fails and names a rank.
//!
//! | module | what it holds |
//! |---|---|
//! | [`Shuffle`] | the machine: running operations, early datagrams, ended operations, pace |
//! | [`group`] | broadcast, gather, all-gather, all-reduce, barrier, shuffle: as calls |
//! | [`config`] | the settings, each with its unit and its default |
//! | [`priority`] | the order of packets, computed as numbers |
//! | [`wire`] | the layout of the datagrams |
//! | `operation`, `sender`, `receiver` | one operation: its sending half, its receiving half, the ranks that are alive |
//! | `rtt` | the time after which a datagram is repeated |
//!
//! The crate `evenfall_collectives_member` runs this machine over UDP, with calls that block. The
//! following program shuffles between four local processes:
//!
//! ```text
//! use bytes::Bytes;
//! use evenfall_collectives_member as group;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let mut member = group::local(4)?; // starts this program three more times
//!     let me = member.rank();
//!     let message = |to| Bytes::from(format!("from {me} to {to}"));
//!     println!("{me} got {:?}", member.shuffle((0..4).map(message).collect())?);
//!     member.leave();
//!     Ok(())
//! }
//! ```
//!
//! The same machine driven by hand shows the contract. Each of four ranks has the smallest possible
//! driver:
//!
//! ```
//! use std::{io, net::{SocketAddr, UdpSocket}, thread, time::{Duration, Instant}};
//! use bytes::Bytes;
//! use evenfall_core::{Arrival, Destination, Machine, StampedBy, Timestamp};
//! use evenfall_collectives_machine::{Shuffle, ShuffleConfig, ShuffleEvent, ShufflePlan};
//!
//! /// Sends "hello" to every member and gives back what they sent.
//! fn rank(me: usize, socket: &UdpSocket, members: Vec<SocketAddr>) -> io::Result<Vec<Bytes>> {
//!     let (begun, mut here) = (Instant::now(), Vec::new());
//!     let now = || Timestamp::from_nanos(begun.elapsed().as_nanos() as u64);
//!     let mut shuffle = Shuffle::new(ShuffleConfig::default());
//!     let messages = members.iter().map(|to| format!("hello {to} from {me}").into()).collect();
//!     let plan = ShufflePlan::shuffle(1, me, members, messages);
//!     shuffle.start(now(), plan).expect("one per member");
//!     socket.set_read_timeout(Some(Duration::from_millis(1)))?;
//!     loop {
//!         while let Some(transmit) = shuffle.poll_transmit(now()) {
//!             let Destination::One(to) = transmit.to else { continue };
//!             socket.send_to(&[transmit.head.as_slice(), &transmit.body[..]].concat(), to)?;
//!         }
//!         while let Some(event) = shuffle.poll_event() {
//!             match event {
//!                 ShuffleEvent::Message { body, .. } => here.push(body),
//!                 ShuffleEvent::Here { .. } => {}
//!                 ShuffleEvent::Completed { .. } => return Ok(here),
//!                 ShuffleEvent::Failed { failure, .. } => return Err(io::Error::other(failure)),
//!             }
//!         }
//!         let mut buffer = [0; 2_048];
//!         if let Ok((length, from)) = socket.recv_from(&mut buffer) {
//!             let (datagram, received) = (Bytes::copy_from_slice(&buffer[..length]), now());
//!             let arrival = Arrival::new(from, datagram, received, StampedBy::User);
//!             shuffle.handle(now(), arrival).ok();
//!         }
//!         shuffle.handle_timeout(now());
//!     }
//! }
//!
//! let sockets: Vec<_> = (0..4).map(|_| UdpSocket::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
//! let members: Vec<_> = sockets.iter().map(|s| s.local_addr()).collect::<Result<_, _>>()?;
//! thread::scope(|scope| {
//!     for (me, socket) in sockets.iter().enumerate() {
//!         let members = members.clone();
//!         scope.spawn(move || assert_eq!(rank(me, socket, members).expect("completes").len(), 4));
//!     }
//! });
//! # Ok::<(), io::Error>(())
//! ```
#![forbid(unsafe_code)]

mod buffers;
pub mod chunks;
pub mod config;
pub mod error;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
pub mod group;
mod operation;
pub mod priority;
mod receiver;
mod remainder;
mod rtt;
mod sender;
mod shuffle;
pub mod wire;

pub use chunks::ChunkRule;
pub use config::{LinkPace, ShuffleConfig};
pub use error::{RankFailure, StartError};
pub use shuffle::{Outbound, Shuffle, ShuffleCounters, ShuffleEvent, ShufflePlan};
