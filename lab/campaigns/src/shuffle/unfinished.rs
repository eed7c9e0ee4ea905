//! Reasons why a simulated shuffle did not end, and the search for nodes that wait for each other
//! in a circle.
//!
//! A sender that may look ahead in its schedule by a few packets only (figure 6.15) sends nothing
//! while the first packets of its schedule have no grant. A receiver that has spent all its grants
//! on such senders grants nothing more, because no grant is taken back. So a sender can wait for a
//! receiver that waits for another sender, and so on in a circle that never breaks.

use core::fmt;

use evenfall_sim::SimTime;

/// Why a shuffle did not end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unfinished {
    /// A machine gave the shuffle up.
    Failed {
        /// Seed of the run.
        seed: u64,
        /// The machine's reason.
        failure: String,
    },
    /// Every node waits for another node.
    Deadlock {
        /// Seed of the run.
        seed: u64,
        /// When the last packet was sent.
        since: SimTime,
        /// Messages that had not arrived.
        left: usize,
        /// The nodes that wait in a circle.
        circle: Vec<Link>,
    },
    /// Packets still move, but the shuffle takes too long.
    Late {
        /// Seed of the run.
        seed: u64,
        /// Messages that had not arrived.
        left: usize,
        /// When the run was given up.
        limit: SimTime,
    },
}

/// A sender and a receiver of a circle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// A node without a grant of `receiver`, whose message is the first in the node's schedule.
    pub sender: usize,
    /// A node that has no more grants to give.
    pub receiver: usize,
    /// Grants of `receiver` that the next sender of the circle holds and may not use.
    pub held: u32,
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed { seed, failure } => write!(f, "seed {seed}: {failure}"),
            Self::Deadlock { seed, since, left, circle } => {
                let us = since.nanos() as f64 / 1e3;
                write!(
                    f,
                    "seed {seed}: deadlock since {us:.1} us, {left} messages had not arrived"
                )?;
                for (at, link) in circle.iter().enumerate() {
                    let next = circle[(at + 1) % circle.len()].sender;
                    let Link { sender, receiver, held } = link;
                    write!(f, "; node {sender} waits for a grant of node {receiver}, ")?;
                    write!(f, "{held} of whose grants node {next} holds")?;
                }
                Ok(())
            }
            Self::Late { seed, left, limit } => {
                write!(f, "seed {seed}: {left} messages had not arrived at {limit:?}")
            }
        }
    }
}

impl std::error::Error for Unfinished {}

impl From<Unfinished> for String {
    fn from(why: Unfinished) -> Self {
        why.to_string()
    }
}

/// The circle in which senders and receivers wait for each other, if there is one.
///
/// `waits_for(sender)` is the receiver without whose grant a sender sends nothing.
/// `held(receiver, sender)` counts the grants of a receiver that a sender has not used. The way
/// from a receiver leads to the sender that holds most of the receiver's grants.
pub fn find_circle(
    nodes: usize,
    waits_for: impl Fn(usize) -> Option<usize>,
    held: impl Fn(usize, usize) -> u32,
) -> Option<Vec<Link>> {
    let mut sender = (0..nodes).find(|&sender| waits_for(sender).is_some())?;
    let mut way: Vec<Link> = Vec::new();
    loop {
        if let Some(first) = way.iter().position(|link| link.sender == sender) {
            return Some(way.split_off(first));
        }
        let receiver = waits_for(sender)?;
        let holders = (0..nodes).map(|holder| (held(receiver, holder), holder));
        let (most, holder) = holders.filter(|&(packets, _)| packets > 0).max()?;
        way.push(Link { sender, receiver, held: most });
        sender = holder;
    }
}
