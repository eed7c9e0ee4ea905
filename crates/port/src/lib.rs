//! What moves the packets of evenfall's machines: UDP sockets, and the loop that drives machines.
//!
//! A protocol is a [`Machine`](evenfall_core::Machine): it never sends, it names what is to be
//! sent. This crate turns that into system calls, in the cheapest way that Linux has without a
//! privileged data path:
//!
//! - **fan-out**: one `sendmmsg` for all copies of a datagram, whose `iovec`s all point at the one
//!   head and the one body ([`udp`]); when several datagrams wait for the same destination, one
//!   segmented send (`UDP_SEGMENT`) per destination carries up to 64 of them;
//! - **receive**: `recvmmsg` with coalescing (`UDP_GRO`), each datagram a slice of a shared buffer;
//! - **waiting**: sleep, then spin, so that a deadline is met to the microsecond;
//! - **the drive loop** that obeys the contract: [`run::Loop`].
//!
//! | module | what it holds |
//! |---|---|
//! | [`udp`] | [`UdpDriver`](udp::UdpDriver): queues, batched send and receive, waiting |
//! | [`run`] | [`Loop`](run::Loop): machines on a driver, by the rule of the contract |
//!
//! Without a key nothing is bound, and nothing is sent, beyond loopback: see
//! [`Options::keyed`](udp::Options::keyed).

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

/// Opens the port that these options ask for.
///
/// # Errors
/// [`Error::Unkeyed`] beyond loopback without a key, else what the kernel refused.
pub fn open(address: SocketAddr, options: Options) -> Result<Box<dyn Port>, Error> {
    Ok(Box::new(udp::UdpDriver::bind(address, options)?))
}
