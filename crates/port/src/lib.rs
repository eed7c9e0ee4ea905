//! Ports, which move the packets of evenfall's machines, and the loop that drives machines on a
//! port.
//!
//! A protocol is a [`Machine`](evenfall_core::Machine). A machine never sends: it names the
//! datagrams to send, and a [`Port`] sends them. The first kind of port is a UDP socket, used in
//! the cheapest way that Linux offers without a privileged data path:
//!
//! - **fan-out**: one `sendmmsg` for all copies of a datagram, whose `iovec`s all point at the one
//!   head and the one body ([`udp`]). When several datagrams wait for the same destination, one
//!   segmented send (`UDP_SEGMENT`) per destination carries up to 64 of them;
//! - **receive**: `recvmmsg` with coalescing (`UDP_GRO`). Each datagram is a slice of a shared
//!   buffer;
//! - **waiting**: sleep, then spin, so that a deadline is met to the microsecond;
//! - **the drive loop** that obeys the contract: [`run::Loop`].
//!
//! | module | what it holds |
//! |---|---|
//! | [`Port`], [`Kind`], [`open`] | the trait of all ports, and all that knows their kinds |
//! | [`udp`] | [`UdpDriver`](udp::UdpDriver): queues, batched send and receive |
//! | [`memory`] | [`Switch`](memory::Switch): ports of one process, without sockets |
//! | [`run`] | [`Loop`](run::Loop): machines on a port, by the rule of the contract |
//!
//! Without a key nothing is bound, and nothing is sent, beyond loopback: see [`Options::keyed`].
//!
//! # Another kind of port
//!
//! Four files, and two more for a kind that has options of its own:
//!
//! 1. `Cargo.toml`: a feature and its dependencies. `apps/cli/Cargo.toml` hands the feature on.
//! 2. `src/lib.rs`: the module behind the feature, and the kind in [`Kind`] and [`open`]. The
//!    compiler asks for the rest.
//! 3. The module itself: a [`Port`]. `src/memory.rs` is a whole port in a file, with every call
//!    that follows. `groups::Groups` refuses what every port refuses, `answers::Answers` keeps the
//!    answers, and `wait::Waiting` sleeps, then spins, where there is a descriptor to poll.
//!    - Bound each queue by [`Options::queue_frames_max`], and send the classes in their order.
//!    - Answer every token once, with the best time stamp that there is.
//!    - Ignore the installs that the port cannot carry out. Offer arrivals to
//!      [`Forwarder`](evenfall_core::Forwarder) for those that it can, or translate the table.
//!    - Hand in every arrival, also a forwarded one, and mark the forwarded one.
//!    - Note what [`Options`] asks and the port lacks.
//! 4. Options that only this kind has are fields of its variant of [`Kind`]: keys of `Io` in
//!    `crates/runtime/src/settings/common.rs`, which `Io::kind` puts into the variant, and rows in
//!    `docs/configuration.md`.
//!
//! Settings, the errors about them and both conformance suites (here and in `lab/`) go over
//! [`Kind::NAMED`], so a new kind changes nothing there. Both suites open every kind on loopback,
//! and skip a kind by its name where [`Kind::lacks`] says what is missing.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "evenfall-port drives Linux only: it needs sendmmsg, UDP_SEGMENT, ppoll and eventfd"
);

mod answers;
#[doc(hidden)]
pub mod fuzzing;
mod groups;
pub mod memory;
mod options;
mod port;
pub mod run;
mod sys;
pub mod udp;
mod wait;

pub use options::Options;
pub use port::{Answer, Counters, DATAGRAM_BYTES_MAX, Port, Refusal};
pub use udp::inject::Inject;
pub use wait::{OTHERS_MAX, Wake};

use std::net::SocketAddr;

use evenfall_host::Error;

/// The kind of a port.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A UDP socket of the kernel.
    #[default]
    Udp,
}

impl Kind {
    /// All kinds with their names in settings.
    pub const NAMED: &[(&str, Self)] = &[("udp", Self::Udp)];

    /// Whether ports of this kind carry out forwarding installs; a port that does not ignores them.
    pub fn forwards(self) -> bool {
        match self {
            Self::Udp => false,
        }
    }

    /// The privilege or the device that a port of this kind needs and this process has not, in
    /// words for people.
    pub fn lacks(self) -> Option<&'static str> {
        match self {
            Self::Udp => None,
        }
    }

    /// The kinds that this process can open. `skip` hears the name of every other kind, and what
    /// the kind lacks.
    pub fn available(skip: impl Fn(&str, &str)) -> impl Iterator<Item = Self> {
        Self::NAMED.iter().filter_map(move |(name, kind)| match kind.lacks() {
            None => Some(*kind),
            Some(lacks) => {
                skip(name, lacks);
                None
            }
        })
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMED.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }
}

/// Opens the port that these options ask for.
///
/// # Errors
/// [`Error::Unkeyed`] beyond loopback without a key, else what the kernel refused.
pub fn open(address: SocketAddr, options: Options) -> Result<Box<dyn Port>, Error> {
    match options.kind {
        Kind::Udp => Ok(Box::new(udp::UdpDriver::bind(address, options)?)),
    }
}
