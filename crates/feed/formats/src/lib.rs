//! Market data input: files, captures and live datagrams become messages in order.
//!
//! The multicast carries bytes and never parses them. The multicast needs only three facts of a
//! message: its place, its own time, and the messages with which it must stay in order. This crate
//! finds these facts once, at the root, for every format that it reads, and hands the bytes on as
//! one shared slice ([`FeedMessage`]). The rest of the crate is for code that reads messages: a
//! symbol filter, a receiver's books, the tests.
//!
//! All functions depend only on their input: the crate uses no socket, file, clock or thread.
//! Readers take any `std::io::Read`, and memory does not grow with the file. Decoding is total: any
//! bytes give a value or an error. The error names the byte, the message, the fault and the remedy,
//! and every message before it has been given.
//!
//! | module | what it holds |
//! |---|---|
//! | [`source`] | [`FeedMessage`], [`MessageSource`]: messages in order, wherever they come from |
//! | `file` | `open`: a file of any format, told by its content (feature `files`) |
//! | `dates` | the days that times of day belong to (feature `files`) |
//! | [`codec`] | the formats: tag, name, how to recognise and how to read each |
//! | [`itch`] | NASDAQ TotalView-ITCH 5.0, all 23 types, read in place and written |
//! | [`framed`] | ITCH files: messages behind 2-byte lengths |
//! | [`books`] | order books out of messages: trades, and the best bid and ask |
//! | [`columns`] | what a message says, in the columns of its codec |
//! | [`event`] | what a message of an equity feed says |
//! | [`pcap`] | the packets of pcap and pcapng files |
//! | [`capture`] | the messages of a capture: channels, envelopes, sides, first copies |
//! | [`lobster`] | LOBSTER message CSV, plain or in its zip |
//! | [`synthetic`] | a seeded feed with books that add up and the bursts of a real open |
//! | [`mold`] | MoldUDP64: packets, requests, [`mold::Tracker`] for a live session |
//! | [`plain`] | the plain datagrams of a gateway, a message each |
//! | [`soup`] | SoupBinTCP: packets and connections |
//! | [`arbiter`] | first copy wins, gaps reported, order kept, over redundant feeds |
//! | [`pace`] | when each message of a replay is due |
//! | [`sharding`] | which tree carries a message, and [`sharding::ContentHash`] over all |
//! | [`error`] | [`FeedError`] |
//!
//! A program that takes messages from elsewhere leaves the feature `files` out, and with it the
//! crates for compression, archives and time zones.
//!
//! ```
//! use evenfall_feed_formats::pace::{PaceMode, Pace};
//! use evenfall_feed_formats::sharding::{ContentHash, shard_of};
//! use evenfall_feed_formats::synthetic::{Config, Generator};
//! use evenfall_feed_formats::{MessageSource, itch};
//!
//! // A feed of 2,000 messages, over two trees, four times as fast as it happened.
//! let config = Config { symbols: 20, messages: 2_000, ..Config::default() };
//! let mut source = Generator::new(config).unwrap();
//! let silence = core::time::Duration::MAX;
//! let mut pace = Pace::new(PaceMode::OwnTimes { speed: 4.0, silence }).unwrap();
//! let mut hash = ContentHash::new(2);
//! let mut symbols = itch::Symbols::new();
//! while let Some(message) = source.next_message().unwrap() {
//!     let tree = shard_of(message.shard_key, 2);
//!     let _due_since_start = pace.due(&message);
//!     hash.update(tree as usize, &message.bytes);
//!     symbols.observe(&itch::View::decode(&message.bytes).unwrap());
//! }
//! assert_eq!((hash.messages(), symbols.len()), (2_000, 20));
//! ```
#![forbid(unsafe_code)]

pub mod arbiter;
pub mod books;
pub mod capture;
pub mod codec;
pub mod columns;
#[cfg(feature = "files")]
pub mod dates;
pub mod error;
pub mod event;
#[cfg(feature = "files")]
pub mod file;
#[cfg(feature = "files")]
mod foreign;
pub mod framed;
#[cfg(all(feature = "files", any(fuzzing, test)))]
pub mod fuzzing;
#[cfg(feature = "files")]
mod gzip;
mod input;
pub mod itch;
pub mod lobster;
pub mod mold;
pub mod pace;
pub mod pcap;
pub mod plain;
pub mod sharding;
pub mod soup;
pub mod source;
pub mod synthetic;
#[cfg(feature = "files")]
mod zip;

pub use codec::Format;
#[cfg(feature = "files")]
pub use dates::Date;
pub use error::{FeedError, FeedFault, UnknownFormat};
#[cfg(feature = "files")]
pub use file::open;
pub use source::{FeedMessage, MessageSource};
