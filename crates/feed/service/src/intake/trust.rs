//! The rules for sources and sessions of a live feed. A socket that has joined a group gets packets
//! of every sender to the group: a test system, a venue's standby, a forger. A side therefore
//! accepts one source, and the feed follows one session. The source changes only after the present
//! source has been silent, and so does the session.
//!
//! | heard | then |
//! |---|---|
//! | a packet of the side's source | it is taken |
//! | of another address | it is counted; once the source is silent for [`SILENCE`], it is taken |
//! | of an address that `feed.mold_sources` does not list, if that lists any | it is counted |
//! | of another session | after [`SILENCE`] and [`RIVAL_PACKETS`], that session is followed |

use core::time::Duration;
use std::net::{IpAddr, SocketAddr};

use evenfall_core::Timestamp;
use evenfall_feed_formats::mold::SessionId;

/// Silence after which a source or a session may change. A session sends a heartbeat every second,
/// so five heartbeats were lost.
pub(super) const SILENCE: Duration = Duration::from_secs(5);
/// Packets of another session in a row after which the feed follows that session. A single stray
/// packet does not change the session.
const RIVAL_PACKETS: u32 = 3;

/// The source of one side.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// Allowed source addresses. An empty list allows any address.
    allowed: Vec<IpAddr>,
    from: Option<SocketAddr>,
    heard: Timestamp,
}

impl Source {
    pub(super) fn new(allowed: &[IpAddr]) -> Self {
        Self { allowed: allowed.to_vec(), from: None, heard: Timestamp::ZERO }
    }

    /// Whether a packet from this address is accepted.
    pub(super) fn admits(&self, from: SocketAddr, now: Timestamp) -> bool {
        // All listed addresses are accepted at any time.
        let is_listed = self.allowed.contains(&from.ip().to_canonical());
        let is_silent = || now >= self.heard + SILENCE;
        match self.from {
            _ if !self.allowed.is_empty() => is_listed,
            Some(source) => source == from || is_silent(),
            None => true,
        }
    }

    /// Makes the sender of an accepted packet the source. Returns `None` when it was the source
    /// before, else the former source.
    pub(super) fn take(&mut self, from: SocketAddr, now: Timestamp) -> Option<Option<SocketAddr>> {
        self.heard = now;
        let before = self.from.replace(from);
        (before != Some(from)).then_some(before)
    }
}

/// Another session, which the feed may follow later.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rival {
    session: Option<SessionId>,
    packets: u32,
}

impl Rival {
    /// Called for each packet of the followed session.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Called for each packet of another session. Returns whether the feed follows that session
    /// from now on.
    pub(super) fn hear(&mut self, session: SessionId, silent: Duration) -> bool {
        let packets = if self.session == Some(session) { self.packets } else { 0 };
        *self = Self { session: Some(session), packets: packets.saturating_add(1) };
        self.packets >= RIVAL_PACKETS && silent >= SILENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Timestamp {
        Timestamp::from_nanos(s * 1_000_000_000)
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_side_stays_with_its_first_source_until_that_is_silent() {
        let (one, two) = (address("10.0.0.1:7"), address("10.0.0.2:7"));
        let mut source = Source::new(&[]);
        assert!(source.admits(two, at(9)), "nothing of it was taken yet");
        assert_eq!(source.take(one, at(10)), Some(None));
        assert!(!source.admits(two, at(11)));
        assert_eq!(source.take(one, at(14)), None);
        assert!(!source.admits(two, at(18)), "silent for four seconds");
        assert!(source.admits(two, at(19)));
        assert_eq!(source.take(two, at(19)), Some(Some(one)));
        assert!(!source.admits(one, at(20)));
    }

    #[test]
    fn listed_sources_are_taken_together_and_no_others() {
        let list: Vec<IpAddr> = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap()).into();
        let mut source = Source::new(&list);
        assert!(!source.admits(address("10.0.0.9:7"), at(1)));
        source.take(address("10.0.0.1:7"), at(1));
        assert!(source.admits(address("[::ffff:10.0.0.2]:8"), at(1)));
        assert!(!source.admits(address("10.0.0.9:7"), at(100)), "however silent");
    }

    #[test]
    fn another_session_is_followed_after_silence_and_several_packets() {
        let (standby, stray) = (SessionId(*b"   standby"), SessionId(*b"     stray"));
        let mut rival = Rival::default();
        assert!(!(0..9).any(|_| rival.hear(standby, Duration::from_secs(4))));
        rival.clear();
        assert!(!rival.hear(standby, SILENCE));
        assert!(!rival.hear(stray, SILENCE));
        assert!(!rival.hear(standby, SILENCE) && !rival.hear(standby, SILENCE));
        assert!(rival.hear(standby, SILENCE));
    }
}
