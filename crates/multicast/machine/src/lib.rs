//! Fair overlay multicast for a network that has no multicast.
//!
//! A root sends every message through a tree of proxies to all receivers, and every receiver hands
//! the message on at the same deadline. Sending N copies one after the other would make the last
//! copy late. The tree spreads the sends over many machines. Hedging cuts the tail of the latency:
//! a node takes the first of several copies. Hold and release makes the delivery fair. The
//! algorithm is Jasper's (Haseeb et al., 2024). We add what a venue needs besides: repair,
//! membership, bounded memory, keys, and a rule that sets deadlines for a stated share of messages
//! on time.
//!
//! The crate has four machines and no IO. [`evenfall_core::machine`] says how to drive a machine.
//!
//! | module | what it holds |
//! |---|---|
//! | [`root`] | [`Root`]: frames, deadlines, the book of members |
//! | [`relay`] | [`Relay`], the proxy: forwards first copies, keeps a ring, merges reports |
//! | [`receiver`] | [`Receiver`]: holds, releases in order, asks for what is missing |
//! | [`recorder`] | [`Recorder`], a receiver whose owner keeps everything: repairs for late nodes |
//! | [`tree`] | which node sends to which; the rule for depth D and fan-out F; hedging |
//! | [`replace`] | names stragglers, and puts a spare in their place |
//! | [`admission`] | which nodes may join: the challenge, and the list of named nodes |
//! | [`config`] | every limit, with unit and reason |
//! | [`wire`], [`control`] | the datagrams, byte by byte |
//! | [`seal`] | the shared key |
//! | `ends` | node keys: control datagrams under a key of their two ends |
//! | [`signing`] | who wrote a frame: the root signs, receivers check |
//!
//! ```
//! use evenfall_core::{Arrival, Machine, NodeId, StampedBy, Timestamp};
//! use evenfall_multicast_machine::{Config, Identity, Receiver, ReceiverEvent, Root, RootRun};
//! # use evenfall_core::{ClockReading, Destination, Format, Transmit};
//!
//! let at: [std::net::SocketAddr; 2] = ["127.0.0.1:1".parse()?, "127.0.0.1:2".parse()?];
//! let mut now = Timestamp::from_nanos(1_000_000_000);
//! let mut root = Root::new(Config::default(), NodeId(0), 0, RootRun::new(1, [7; 24]), None, now);
//! let who = Identity { id: NodeId(1), stream: 0, root: at[0], standbys: vec![], incarnation: 1 };
//! let mut receiver = Receiver::new(Config::default(), who, None, now);
//!
//! // A network with two hosts and no delay: what one sends, the other gets.
//! let carry = |t: Transmit, from, now| {
//!     let datagram = [t.head.as_slice(), &t.body].concat().into();
//!     Arrival::new(from, datagram, now, StampedBy::User)
//! };
//! let mut released = Vec::new();
//! for step in 0..2_000 {
//!     now += core::time::Duration::from_millis(1);
//!     if step == 1_000 {
//!         root.publish(now, Format::OPAQUE, b"a trade")?;
//!         root.flush(now);
//!     }
//!     root.handle_timeout(now);
//!     receiver.handle_timeout(now);
//!     while let Some(t) = root.poll_transmit(now) {
//!         receiver.handle(now, carry(t, at[0], now)).ok();
//!     }
//!     while let Some(t) = receiver.poll_transmit(now) {
//!         root.handle(now, carry(t, at[1], now)).ok();
//!     }
//!     while let Some(event) = receiver.poll_event() {
//!         if let ReceiverEvent::Released(release) = event {
//!             let deadline = release.deadline.expect("this mode holds");
//!             assert!(deadline.nanos() <= now.nanos(), "never before its deadline");
//!             released.extend(release.messages);
//!         }
//!     }
//! }
//! assert_eq!(released, ["a trade"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod admission;
mod clock_soundness;
pub mod config;
pub mod control;
mod draft;
mod ends;
#[doc(hidden)]
pub mod forging;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
pub mod hold;
mod members;
mod merge;
mod offload;
mod outbox;
mod pace;
mod parts;
pub mod receiver;
pub mod recorder;
pub mod relay;
pub mod replace;
mod ring;
pub mod root;
pub mod seal;
pub mod signing;
pub mod tree;
mod uplink;
mod window;
pub mod wire;

pub use admission::{Guest, GuestList, RootRun};
pub use config::{Config, Mode, Shape};
pub use control::{Begin, DepartureReason, MemberFigures, Role, Tally, TreePosition};
pub use draft::{Draft, ProducerMark};
pub use members::View;
pub use receiver::{Receiver, ReceiverEvent, ReceiverStatus, Release, Resume};
pub use recorder::{Archived, Recorder, RecorderStatus, Wanted};
pub use relay::{Relay, RelayEvent, RelayStatus};
pub use replace::{Replacement, Replacements};
pub use ring::Stored;
pub use root::{
    DurationCounts, FairnessSums, Framed, LiveFairness, MemberState, MemberStatus, PublishError,
    Root, RootEvent, RootStatus,
};
pub use seal::SharedKey;
pub use signing::{
    BreakCause, ChainBreak, FrameSigner, ReleaseAfter, SignatureVerifier, TrustCounts,
};
pub use uplink::{Identity, Refusals};
