//! evenfall in your program: market data that reaches every receiver at the same instant.
//!
//! This crate is for a program that takes part in a run of evenfall. A trading system subscribes
//! to a feed. A matching engine or a simulator publishes a feed. A research program reads
//! recordings, and reads and writes records of a store. A cluster job exchanges data among its
//! processes. Each of the five is a face of this crate, and each face is a feature that brings no
//! crate of the other faces.
//!
//! People who only want to run evenfall do not need this crate. They need the program `evenfall`
//! (`cargo install --path apps/cli`).
//!
//! # Features
//!
//! | feature | face | at most crates |
//! |---|---|---|
//! | `subscriber` (default) | [`Subscriber`]: the messages of a feed, each at its deadline | 40 |
//! | `publisher` | [`EmbeddedRoot`]: the root of a run, which sends what the program publishes; [`Publisher`]: a publisher that outlives the root | 47 |
//! | `store` | [`Store`]: records on a disk; [`Client`](store::Client): records of a store on a port | 41 |
//! | `recording` | [`Recordings`](recording::Recordings): recordings of feeds, listed, read and followed | 43 |
//! | `collectives` | [`GroupMember`]: shuffle, broadcast and reduction in a group of processes | 33 |
//! | `sort` | [`SortMember`]: the records of all processes of a group in order | 36 |
//!
//! The last column counts the crates that a build with this feature alone compiles, with this
//! crate, with build scripts' dependencies and with procedural macros. A test of this crate counts
//! them by `cargo tree` and fails above these numbers.
//!
//! Two more features add to `subscriber` and `publisher`. The feature `settings` reads the node of
//! the program from a settings file of `evenfall` (15 crates). The feature `http` serves the pages
//! `/metrics`, `/healthz` and `/status` (18 crates).
//!
//! # Subscribe
//!
//! A subscriber is a receiver of the run in a thread of your program. The root knows the receiver
//! by its id, and a root without a key knows the receiver's address too.
//!
#![cfg_attr(feature = "subscriber", doc = "```no_run")]
#![cfg_attr(not(feature = "subscriber"), doc = "```ignore")]
//! use evenfall::subscriber::{FeedUpdate, Subscriber, Subscription};
//! use evenfall::{NodeId, SharedKey};
//!
//! let (root, own) = ("10.0.0.1:9000".parse()?, "10.0.0.7:9000".parse()?);
//! let mut subscription = Subscription::new(root, own, NodeId(7));
//! subscription.key = Some(SharedKey::from_hex(1, &std::fs::read_to_string("shared.key")?)?);
//! for update in Subscriber::of(&subscription)?.only(&["AAPL", "MSFT"]) {
//!     match update? {
//!         // In order, each at its deadline. The clock was read at the hand-over.
//!         FeedUpdate::Message(m) => {
//!             println!("{} {:?} {} bytes", m.number, m.released, m.bytes.len())
//!         }
//!         // What cannot be repaired is reported in its place.
//!         FeedUpdate::Lost { stream, messages, .. } => {
//!             eprintln!("tree {stream}: {messages:?} lost")
//!         }
//!         _ => {}
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Subscriber::batches`](subscriber::Subscriber::batches) gives all messages that wait at once,
//! with one wake-up a release in place of one a message.
//! [`Subscriber::queue_limits`](subscriber::Subscriber::queue_limits) sets how much may wait.
//!
//! # Publish
//!
//! An embedded root is the root of the run in a thread of your program. The latency of a message
//! counts from the call of `publish`.
//!
#![cfg_attr(feature = "publisher", doc = "```no_run")]
#![cfg_attr(not(feature = "publisher"), doc = "```ignore")]
//! use evenfall::NodeId;
//! use evenfall::embedded_root::{EmbeddedRoot, EmbeddedRootSettings};
//!
//! let mut settings = EmbeddedRootSettings::new("127.0.0.1:9000".parse()?, NodeId(0));
//! settings.receivers = vec![(NodeId(7), "127.0.0.1:9007".parse()?)];
//! let root = EmbeddedRoot::of(&settings)?;
//! for trade in 0_u64..1_000 {
//!     // Messages of one key keep their order.
//!     root.publish(trade.to_le_bytes().to_vec(), (trade % 7) as u32)?;
//! }
//! println!("{} messages sent", root.finish()?.messages);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Store and read records
//!
//! A store keeps files of records in the order of their times. A program opens a store in its own
//! process, or talks to `evenfall store serve` by a [`Client`](store::Client).
//!
#![cfg_attr(feature = "store", doc = "```")]
#![cfg_attr(not(feature = "store"), doc = "```ignore")]
//! use evenfall::store::{FieldType, StoreAckLevel, RecordSource, Schema, Store, StoreConfig};
//!
//! let directory = std::env::temp_dir().join(format!("evenfall-{}", std::process::id()));
//! let store = Store::open(StoreConfig::new(&directory))?.store;
//! let schema = Schema::of(&[("time", FieldType::Time), ("price", FieldType::I64)]);
//! let trades = store.create("trades", &schema)?;
//! for (time_ns, price) in [(1_000_i64, 101_i64), (2_000, 102), (3_000, 103)] {
//!     let record = [time_ns.to_le_bytes(), price.to_le_bytes()].concat();
//!     store.append(&trades, &record, StoreAckLevel::Local)?;
//! }
//! let numbers = store.find(&trades, 1_500, 3_000)?;
//! assert_eq!((numbers.clone(), store.numbers("trades", numbers)?.len()), (1..3, 32));
//! store.close()?;
//! # std::fs::remove_dir_all(&directory)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A subscription begins with any record of a server's file. The server pushes the records from
//! there on, and goes on with new records as they are appended.
//!
#![cfg_attr(feature = "store", doc = "```no_run")]
#![cfg_attr(not(feature = "store"), doc = "```ignore")]
//! use evenfall::store::Client;
//! use std::time::{Duration, Instant};
//!
//! let mut client = Client::connect("127.0.0.1:7410".parse()?)?;
//! let file = client.open("trades")?;
//! let trades = client.subscribe_to(&file, 0)?;
//! loop {
//!     let until = Instant::now() + Duration::from_secs(1);
//!     if let Some(pushed) = client.next_batch(trades, until)? {
//!         println!("{} bytes from record {} on", pushed.records.len(), pushed.first);
//!     }
//! }
//! # #[allow(unreachable_code, reason = "the loop ends with an error")]
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A server with users takes clients on other machines (feature `sealed`): `ConnectOptions` with
//! the key of `read_user_key` in `Client::connect_with`.
//!
//! # Read and follow a recording
//!
//! A recorder (`evenfall run recorder --serve 127.0.0.1:7410`) answers readers while it records. A
//! snapshot has the messages that were there when it was opened. A follower gives each message
//! once. While there is no new message, `wait_new` waits, and the recorder ends the wait when a
//! message comes.
//!
#![cfg_attr(feature = "recording", doc = "```no_run")]
#![cfg_attr(not(feature = "recording"), doc = "```ignore")]
//! use evenfall::recording::{RecordingFollower, Recordings};
//!
//! let recordings = Recordings::open("tcp://127.0.0.1:7410")?;
//! let mut follower = RecordingFollower::new(&recordings.recording("feed")?)?;
//! loop {
//!     follower.read_new::<evenfall::store::StoreError>(&mut |row| {
//!         println!("{} {:?} {:?}", row.recorded.number, row.event.symbol, row.event.price);
//!         Ok(())
//!     })?;
//!     follower.wait_new(std::time::Instant::now() + std::time::Duration::from_secs(1))?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Exchange data in a group
//!
//! All members of a group make the same calls in the same order. [`collectives::local`] starts the
//! other members as processes of this machine, for tests and examples.
//!
#![cfg_attr(feature = "collectives", doc = "```no_run")]
#![cfg_attr(not(feature = "collectives"), doc = "```ignore")]
//! use evenfall::Bytes;
//!
//! let mut member = evenfall::collectives::local(4)?;
//! let me = member.rank();
//! let messages = (0..4).map(|to| Bytes::from(format!("from {me} to {to}"))).collect();
//! println!("{me} got {:?}", member.shuffle(messages)?);
//! member.leave();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Sort in a group
//!
//! Each member gives its records, and ends with the records that follow those of the member before
//! it. Records are 10 bytes of key and 90 bytes of value.
//!
#![cfg_attr(feature = "sort", doc = "```no_run")]
#![cfg_attr(not(feature = "sort"), doc = "```ignore")]
//! use evenfall::sort::{SortConfig, SortMember, local, read_share, write_part};
//!
//! let member = local(4)?;
//! let (me, file) = (member.rank(), std::path::Path::new("records.bin"));
//! let mut sorter = SortMember::new(member, SortConfig::weighted(1));
//! let sorted = sorter.sort_records(read_share(file, me, 4)?)?.output.records;
//! write_part("sorted".as_ref(), me, &sorted)?;
//! sorter.into_member().leave();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Errors and notes
//!
//! An error says what went wrong, where, and what to do. `Error::source` gives a cause that those
//! words do not have yet. The threads of a face state events by the macros of the crate `tracing`,
//! and print nothing.
#![forbid(unsafe_code)]

pub use bytes::Bytes;
#[cfg(any(feature = "subscriber", feature = "publisher"))]
pub use evenfall_core::{Format, MasterKey, NodeId, NodeKey, SharedKey, SyncTime};

#[cfg(feature = "collectives")]
pub mod collectives;
#[cfg(feature = "publisher")]
pub mod embedded_root;
#[cfg(feature = "publisher")]
pub mod publisher;
#[cfg(feature = "recording")]
pub mod recording;
#[cfg(feature = "sort")]
pub mod sort;
#[cfg(feature = "store")]
pub mod store;
#[cfg(feature = "subscriber")]
pub mod subscriber;

#[cfg(feature = "collectives")]
pub use collectives::GroupMember;
#[cfg(feature = "publisher")]
pub use embedded_root::EmbeddedRoot;
#[cfg(feature = "publisher")]
pub use publisher::Publisher;
#[cfg(feature = "sort")]
pub use sort::SortMember;
#[cfg(feature = "store")]
pub use store::Store;
#[cfg(feature = "subscriber")]
pub use subscriber::Subscriber;
