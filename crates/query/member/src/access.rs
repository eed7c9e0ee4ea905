//! Which standing workers are asked, from where, and under which key.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use evenfall_collectives_member::{
    GroupError, GroupSocket, GroupSocketOptions, SEALED_MEMBERS_MAX, unlimited_settings,
};
use evenfall_core::SharedKey;
use evenfall_host::random;
use evenfall_query_burst::desk::TimedQuestion;
use evenfall_query_burst::standing::wire::count_askable;
use evenfall_query_burst::standing::worker::SILENCES;
use evenfall_query_burst::standing::{MissingWorker, StandingConfig};

use crate::standing::DeskClient;

/// How long a worker may be silent by default. It is above the time that a worker of a busy host
/// waits for a core, and a question waits that long for each failure.
pub const WORKER_SILENCE: Duration = Duration::from_millis(250);
/// Silences after which a question has no answer: each of several workers may cost one.
const SILENCES_MAX: u32 = 10;

/// Why standing workers cannot be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The list of workers is empty.
    #[error("the list of workers has no address")]
    NoWorkers,
    /// There are more workers than can share a key.
    #[error("{workers} workers with a key: at most {}", SEALED_MEMBERS_MAX - 1)]
    TooMany {
        /// Number of workers.
        workers: usize,
    },
    /// The addresses of all workers do not fit into the datagram of a question.
    #[error(
        "{workers} workers: a question names all of them in one datagram, which has room for the \
         first {fit}"
    )]
    TooLong {
        /// Number of workers.
        workers: usize,
        /// How many of them fit, counted from the first.
        fit: usize,
    },
    /// The silence is shorter or longer than the silences that workers take.
    #[error(
        "a silence of {silence:?}: must be between {:?} and {:?}",
        SILENCES[0],
        SILENCES[1],
        silence = .0
    )]
    Silence(Duration),
    /// Workers are on other hosts, and there is no key.
    #[error("workers on other hosts: give the shared key by --key-file")]
    NoKey,
    /// Workers are on other hosts, and they are to be asked from this address of loopback.
    #[error("workers on other hosts: --own {0} is no address that they reach")]
    OwnIsLoopback(SocketAddr),
    /// The socket cannot be bound, or fails.
    #[error(transparent)]
    Group(GroupError),
    /// The system gives no random number.
    #[error("read a random number: {0}")]
    Random(std::io::Error),
}

/// Why a text is no list of addresses. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressListError {
    /// A line is no address.
    #[error("line {line}: {text:?} is no address such as 10.0.0.1:7000")]
    NoAddress {
        /// Number of the line.
        line: usize,
        /// The line.
        text: String,
    },
    /// Two lines have the same address. Two processes cannot have it.
    #[error(
        "lines {} and {}: both are {address}; each process has its own",
        .lines[0],
        .lines[1]
    )]
    Repeated {
        /// The address.
        address: SocketAddr,
        /// Numbers of both lines.
        lines: [usize; 2],
    },
}

/// The addresses of a list, one a line. Empty lines are left out.
///
/// # Errors
/// The first line that is no address, or repeats one.
pub fn parse_addresses(text: &str) -> Result<Vec<SocketAddr>, AddressListError> {
    let (mut addresses, mut seen) = (Vec::new(), BTreeMap::new());
    for (line, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
        let wrong = || AddressListError::NoAddress { line, text: text.to_owned() };
        let address: SocketAddr = text.trim().parse().map_err(|_| wrong())?;
        if let Some(first) = seen.insert(address, line) {
            return Err(AddressListError::Repeated { address, lines: [first, line] });
        }
        addresses.push(address);
    }
    Ok(addresses)
}

/// Standing workers, and how they are reached.
#[derive(Clone, Debug)]
pub struct WorkerAccess {
    /// Their addresses.
    pub workers: Vec<SocketAddr>,
    /// The address of this host from which they are asked.
    pub own: SocketAddr,
    /// The key that seals every datagram. Workers on other hosts need one.
    pub key: Option<SharedKey>,
    /// How long a worker may be silent before the others answer without it.
    pub silence: Duration,
    /// The fewest workers of an answer; `None` for more than half of them.
    pub workers_min: Option<usize>,
}

impl WorkerAccess {
    /// The fewest workers of an answer.
    pub fn workers_min(&self) -> usize {
        self.workers_min.unwrap_or(self.workers.len() / 2 + 1)
    }

    /// Binds a socket to ask from. The workers hear nothing of it before the first question.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn connect(&self) -> Result<DeskClient, AccessError> {
        let first = *self.workers.first().ok_or(AccessError::NoWorkers)?;
        let workers = self.workers.len();
        if self.key.is_some() && workers >= SEALED_MEMBERS_MAX {
            return Err(AccessError::TooMany { workers });
        }
        let fit = count_askable(&self.workers, TimedQuestion::BYTES);
        if fit < workers {
            return Err(AccessError::TooLong { workers, fit });
        }
        if !(SILENCES[0]..=SILENCES[1]).contains(&self.silence) {
            return Err(AccessError::Silence(self.silence));
        }
        let is_afar = self.workers.iter().any(|worker| !worker.ip().is_loopback());
        if is_afar && self.key.is_none() {
            return Err(AccessError::NoKey);
        }
        if is_afar && self.own.ip().is_loopback() {
            return Err(AccessError::OwnIsLoopback(self.own));
        }
        let failed = |error| AccessError::Group(GroupError::Io(error));
        let options = GroupSocketOptions { key: self.key.clone(), ..GroupSocketOptions::default() };
        let mut group = unlimited_settings(options.packet_bytes(self.own, first).map_err(failed)?);
        group.shuffle.silence_max = self.silence;
        let (workers_min, answer_within) = (self.workers_min(), self.silence * SILENCES_MAX);
        let config = StandingConfig { group, workers_min, answer_within };
        let socket = GroupSocket::bind(self.own, options).map_err(failed)?;
        let number = random::number().map_err(AccessError::Random)? as u32;
        Ok(DeskClient::new(socket, self.workers.clone(), config, number))
    }

    /// Why a question has no answer, with the name of each missing worker.
    pub fn say_unanswered(&self, here: usize, missing: &[MissingWorker]) -> String {
        let (all, workers_min) = (self.workers.len(), self.workers_min());
        let mut text = format!("{here} of {all} workers answer, and {workers_min} are needed");
        for MissingWorker { address, why, .. } in missing {
            text += &format!("\n  {address}: {why}");
        }
        text
    }
}
