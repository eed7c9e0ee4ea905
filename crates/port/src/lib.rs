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
//! | [`Port`], [`PortKind`], [`open`] | the trait of all ports, and all that knows their kinds |
//! | [`udp`] | [`UdpDriver`](udp::UdpDriver): queues, batched send and receive |
//! | [`memory`] | [`Switch`](memory::Switch): ports of one process, without sockets |
//! | [`run`] | [`Loop`](run::Loop): machines on a port, by the rule of the contract |
//! | `sealed` | `Sealed`: seals the datagrams of another port under a key (feature `sealed`) |
//! | `tc` | a UDP socket beside which the kernel forwards, by `evenfall-port-ebpf` (feature `ebpf`) |
//! | [`choice`] | the quickest kind that this host can run |
//! | `trial` | what a hop costs by each kind, between sockets of its own (feature `trial`) |
//!
//! Without a key nothing is bound, and nothing is sent, beyond loopback: see [`Options::keyed`].
//!
//! # Another kind of port
//!
//! Two source files and a row of a page carry a kind whose ports have no options of their own:
//!
//! 1. This file: a row of `kinds!` and an arm of [`open`]. The compiler asks for the answers of
//!    [`PortKind`]. Settings (`io.port`), their errors and both conformance suites go over
//!    [`PortKind::NAMED`]. The row of `port` in `docs/configuration.md` names the kinds for people.
//! 2. The module: a type that implements [`Port`], whose page says what each call promises.
//!    `src/memory.rs` is a whole port to copy, with the parts that all ports share: `Groups` keeps
//!    the groups of machines and gives the refusals of [`Port::send`], `Answers` bounds the
//!    answers, `Waiting` sleeps, then spins, on any descriptor that polls readable while arrivals
//!    wait. `src/memory.rs` never waits for room to send; a kind whose send queue fills waits with
//!    the other variants of `Blocked` (`src/wait.rs`).
//!    - Bound each queue by [`Options::queue_frames_max`] and [`Options::queue_bytes_max`], and
//!      send the classes in their order.
//!    - Answer every token once, with the best time stamp that there is.
//!    - Answer `Installed::Ignored` to installs that the port cannot carry out, and let
//!      [`PortKind::forwards`] say so. Offer arrivals to [`Forwarder`](evenfall_core::Forwarder)
//!      for the others, or translate the table. Hand in every arrival, and mark each arrival that
//!      was forwarded.
//!    - Note ([`Port::notes`]) each of the [`Options`] that is asked for and not carried out.
//!      `Options::lacks_in_memory` names all fields, so that the compiler points at a new option.
//!
//! Unsafe code is allowed in this crate, each block under a `SAFETY:` comment.
//!
//! A kind **with dependencies of its own** has a feature of that name in `Cargo.toml`, which
//! `apps/cli/Cargo.toml` hands on (`afxdp = ["evenfall-port/afxdp"]`). The module and its arm in
//! [`open`] are behind the feature; the row of `kinds!` is not, so that settings mean the same in
//! every build. [`PortKind::lacks`] names the feature where it is missing, and `open` refuses by
//! it:
//!
//! ```text
//!     // In `PortKind::lacks`:
//!     Self::AfXdp if !cfg!(feature = "afxdp") => Some("the feature afxdp"),
//!     // In `open`:
//!     #[cfg(feature = "afxdp")]
//!     PortKind::AfXdp => Ok(Box::new(afxdp::AfXdpPort::bind(address, options)?)),
//!     #[cfg(not(feature = "afxdp"))]
//!     PortKind::AfXdp => Err(lacking(options.kind, "the feature afxdp")),
//! ```
//!
//! A kind that forwards enables the feature `trial`, so that `io.port = "auto"` tries the kind too.
//!
//! In `apps/cli/Cargo.toml` the feature joins `full`, which has everything that the lean program
//! leaves out, with a comment for people.
//!
//! A kind **with options of its own**, an interface or a queue for instance, adds a field with its
//! default to [`Options`], and names the field in `Options::lacks_in_memory` below. A field with
//! the same default goes to `Io` in `crates/runtime/src/settings/common.rs`, with the copy from one
//! to the other in `Io::options` there, which refuses the key beside every other `io.port`, so that
//! no other kind has to note that it does not carry the option out. The option also has a row for
//! its key in `docs/configuration.md` under `[io]` (key, type and unit, default, meaning). A key
//! without a default has a line in the list `ABSENT` of `apps/cli/src/settings/example.rs`: the
//! table, the key with an example, and what happens without the key. Tests in `apps/cli` compare
//! the three.
//!
//! **The conformance suites**, `tests/conformance` here and `lab/campaigns/tests/conformance`, run
//! without a change over every kind that this process can open, and skip a kind by name with the
//! words of [`PortKind::lacks`]. The suites open several ports of the kind at once, which reach
//! each other: on loopback, and each in a host of its own (`evenfall_host::lab`) where the tests
//! run as root, since nothing leaves loopback within one network namespace. The suites open every
//! port with the default [`Options`] and the kind, so a port finds its interface and queue by its
//! address where the options name none. A kind whose ports cannot all share 127.0.0.1, because each
//! takes a queue or an interface for itself, gives each its own address in
//! [`PortKind::test_address`]. [`open`] refuses by `lacks` too, so `lacks` names what every host
//! needs, and never what only these test addresses need. The longest datagram of the suites is
//! [`PortKind::datagram_bytes_max`], so a kind whose frames have a page says so there, and `Groups`
//! refuses longer datagrams by it.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "evenfall-port drives Linux only: it needs sendmmsg, UDP_SEGMENT, ppoll and eventfd"
);

mod answers;
pub mod choice;
pub mod cpu_meter;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod groups;
pub mod memory;
mod options;
mod port;
pub mod run;
#[cfg(feature = "sealed")]
pub mod sealed;
mod sys;
#[cfg(feature = "ebpf")]
mod tc;
#[cfg(feature = "trial")]
pub mod trial;
pub mod udp;
mod wait;

pub use options::Options;
pub use port::{Answer, Counters, DATAGRAM_BYTES_MAX, Port, Refusal};
pub use udp::inject::Inject;
pub use udp::streams::StreamField;
pub use wait::{OTHERS_MAX, Wake};

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use evenfall_host::Error;

macro_rules! kinds {
    ($($(#[$about:meta])* $kind:ident: $name:literal,)*) => {
        /// The kind of a port.
        #[non_exhaustive]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum PortKind {
            $($(#[$about])* $kind,)*
        }

        impl PortKind {
            /// All kinds with their names in settings.
            pub const NAMED: &[(&str, Self)] = &[$(($name, Self::$kind)),*];
        }
    };
}

kinds! {
    /// A UDP socket of the kernel.
    #[default]
    Udp: "udp",
    /// A UDP socket, beside which the kernel forwards streams (feature `ebpf`).
    Tc: "tc",
}

impl PortKind {
    /// Whether ports of this kind carry out forwarding installs; a port that does not ignores them.
    pub fn forwards(self) -> bool {
        match self {
            Self::Udp => false,
            Self::Tc => true,
        }
    }

    /// The feature, the privilege or the device that a port of this kind needs and this process has
    /// not, in words for people.
    pub fn lacks(self) -> Option<&'static str> {
        match self {
            Self::Udp => None,
            #[cfg(feature = "ebpf")]
            Self::Tc => evenfall_port_ebpf::lacks(),
            #[cfg(not(feature = "ebpf"))]
            Self::Tc => Some("the feature ebpf"),
        }
    }

    /// Bytes of the longest datagram that ports of this kind send and receive, at most
    /// [`DATAGRAM_BYTES_MAX`].
    pub fn datagram_bytes_max(self) -> usize {
        match self {
            Self::Udp | Self::Tc => DATAGRAM_BYTES_MAX,
        }
    }

    /// The address at which a test opens the port of this number, counted from 0. Ports at these
    /// addresses reach each other. The addresses are on loopback, so that no key is needed.
    pub fn test_address(self, number: usize) -> SocketAddr {
        match (self, number) {
            (Self::Udp | Self::Tc, _) => (Ipv4Addr::LOCALHOST, 0).into(),
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

    /// The name of this kind in settings.
    pub fn settings_name(self) -> &'static str {
        Self::NAMED.iter().find(|(_, known)| *known == self).map_or("", |(name, _)| name)
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMED.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }
}

/// Opens the port that these options ask for.
///
/// # Errors
/// [`Error::Unkeyed`] beyond loopback without a key, what [`PortKind::lacks`] names, else what the
/// kernel refused.
pub fn open(address: SocketAddr, options: Options) -> Result<Box<dyn Port>, Error> {
    if let Some(lacks) = options.kind.lacks() {
        return Err(lacking(options.kind, lacks));
    }
    match options.kind {
        PortKind::Udp => Ok(Box::new(udp::UdpDriver::bind(address, options)?)),
        #[cfg(feature = "ebpf")]
        PortKind::Tc => Ok(Box::new(tc::open(address, options)?)),
        #[cfg(not(feature = "ebpf"))]
        PortKind::Tc => Err(lacking(options.kind, "the feature ebpf")),
    }
}

/// Opens a UDP port for each of `count` streams, all at this address, so that each stream can have
/// a thread. The kernel hands a datagram to the port of its stream. A datagram that comes to
/// another port, because the kernel joined it with others, is handed on within the process. A
/// datagram of another protocol comes to the first port.
///
/// Where the kernel refuses, there is a single port for all streams, whose notes say why.
///
/// # Errors
/// When the address cannot be bound, or leaves loopback without a key.
pub fn open_streams(
    address: SocketAddr,
    options: Options,
    field: StreamField,
    count: usize,
) -> Result<Vec<Box<dyn Port>>, Error> {
    let first = udp::UdpDriver::bind(address, options)?;
    let ports = udp::streams::share_port(first, field, count);
    Ok(ports.into_iter().map(|port| Box::new(port) as Box<dyn Port>).collect())
}

/// Opens a UDP port for the machines of `count` streams, whose datagrams leave and arrive on a
/// thread for each stream. The number of a machine is that of its stream. Dropping the port ends
/// the threads. Where the kernel refuses, the port has a single socket and no thread, and its notes
/// say why.
///
/// # Errors
/// When the address cannot be bound, or leaves loopback without a key, and when the process may not
/// open more files or start more threads.
pub fn open_senders(
    address: SocketAddr,
    options: Options,
    field: StreamField,
    count: usize,
) -> Result<Box<dyn Port>, Error> {
    udp::senders::start_senders(udp::UdpDriver::bind(address, options)?, field, count)
}

/// Locks what threads of a port share. Each such value is whole after every statement, so a panic
/// in another thread has not broken it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lacking(kind: PortKind, what: &str) -> Error {
    let name = kind.settings_name();
    let what = format!("open a port of kind {name}, which lacks {what}");
    Error::Os { what, source: io::ErrorKind::Unsupported.into(), advice: "choose another io.port" }
}
