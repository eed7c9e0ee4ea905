//! Why clients are refused. Each reason has a counter, and the first, the tenth, the hundredth
//! refusal of a reason, and so on, is a line in the log.
//!
//! A client that is refused tries again, often for ever, and all that its user sees is a lost
//! connection. The line and the counter tell the operator which clients, and why.

use std::net::SocketAddr;

use evenfall_core::Malformed;

/// Why a client, or a request of a client, is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientRefusal {
    /// There are as many connections as may be: this many.
    #[error("there are {0} connections, as many as maxClientCnxns or maxCnxns")]
    Connections(usize),
    /// A message has more bytes than a message may have.
    #[error("a message of {bytes} bytes, and at most {bytes_max} are allowed (jute.maxbuffer)")]
    TooLong {
        /// Bytes of the message.
        bytes: usize,
        /// Most bytes of a message.
        bytes_max: usize,
    },
    /// The first message cannot be read.
    #[error("the first message cannot be read ({0})")]
    Hello(Malformed),
    /// A request of this operation cannot be read.
    #[error("a request of operation {0} cannot be read ({1})")]
    Request(i32, Malformed),
    /// There is no operation of this number.
    #[error("there is no operation {0}")]
    Operation(i32),
    /// The client has seen a revision that this replica does not know.
    #[error(
        "it has seen zxid 0x{seen:x}, and the last zxid here is 0x{known:x}: it was a client of \
         other replicas, or the directories of these are gone"
    )]
    Ahead {
        /// The revision that the client has seen.
        seen: i64,
        /// The revision of this replica.
        known: u64,
    },
    /// The session has ended, or never was, or has another password.
    #[error("there is no session 0x{0:x} any more")]
    Session(u64),
    /// The proof of who the client is proves nothing.
    #[error("its proof of who it is is not taken (addAuth)")]
    Proof,
    /// The client has as many watches as it may have.
    #[error("it has as many watches as it may have")]
    Watches,
    /// All clients together hold as many bytes as they may, and this one holds many.
    #[error("all clients together take as much memory as they may, and this one {0} bytes")]
    Memory(usize),
    /// The client does not take what it was sent: bytes that wait for it.
    #[error("it does not take {0} bytes of answers")]
    Stalled(usize),
    /// The request is longer than what the replicas can agree on at once: its bytes.
    #[error("a request of {0} bytes, more than the replicas agree on at once")]
    Call(usize),
}

/// The name of each reason in `mntr`, in the order of [`ClientRefusal`].
pub const NAMES: [&str; 12] = [
    "connections",
    "too_long",
    "hello",
    "request",
    "operation",
    "ahead",
    "session",
    "proof",
    "watches",
    "memory",
    "stalled",
    "too_long_to_agree",
];

impl ClientRefusal {
    /// The place of the reason among [`NAMES`].
    fn place(&self) -> usize {
        match self {
            Self::Connections(_) => 0,
            Self::TooLong { .. } => 1,
            Self::Hello(_) => 2,
            Self::Request(..) => 3,
            Self::Operation(_) => 4,
            Self::Ahead { .. } => 5,
            Self::Session(_) => 6,
            Self::Proof => 7,
            Self::Watches => 8,
            Self::Memory(_) => 9,
            Self::Stalled(_) => 10,
            Self::Call(_) => 11,
        }
    }
}

/// How many refusals there were of each reason.
#[derive(Debug, Default)]
pub struct RefusalCounts([u64; NAMES.len()]);

impl RefusalCounts {
    /// Counts a refusal of the client at this address, and says so when the number is a power of
    /// ten.
    pub fn note(&mut self, peer: SocketAddr, refusal: &ClientRefusal) {
        let count = &mut self.0[refusal.place()];
        *count += 1;
        if is_power_of_ten(*count) {
            let times = if *count == 1 { String::new() } else { format!(" ({count} times)") };
            tracing::warn!("the client at {peer} is refused: {refusal}{times}");
        }
    }

    /// The names of all reasons, each with its count.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.into_iter().zip(self.0)
    }
}

fn is_power_of_ten(count: u64) -> bool {
    count > 0 && 10_u64.pow(count.ilog10()) == count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_comes_at_powers_of_ten_and_a_reason_counts_under_its_own_name() {
        let said: Vec<u64> = (0..=1_000).filter(|count| is_power_of_ten(*count)).collect();
        assert_eq!(said, [1, 10, 100, 1_000]);
        let mut counts = RefusalCounts::default();
        let peer = SocketAddr::from(([127, 0, 0, 1], 9));
        let refusals = [
            ClientRefusal::TooLong { bytes: 2, bytes_max: 1 },
            ClientRefusal::Session(7),
            ClientRefusal::Session(8),
        ];
        refusals.iter().for_each(|refusal| counts.note(peer, refusal));
        let counted: Vec<_> = counts.all().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("too_long", 1), ("session", 2)]);
    }
}
