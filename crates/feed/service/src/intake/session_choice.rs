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
//! | of another session | it is kept, and played once that session is followed |
//!
//! Another session is followed once the present session is silent for [`SILENCE`]. A packet from
//! the IP address of the present source is then enough, and so are [`RIVAL_PACKETS`] of any.

use core::time::Duration;
use std::net::{IpAddr, SocketAddr};

use evenfall_core::{Arrival, Timestamp};
use evenfall_feed_formats::mold::SessionId;

/// Silence after which a source or a session may change. A session sends a heartbeat every second,
/// so five heartbeats were lost.
pub(super) const SILENCE: Duration = Duration::from_secs(5);
/// Packets of another session after which the feed follows that session, unless they come from the
/// address of the followed session. A single stray packet does not change the session.
const RIVAL_PACKETS: usize = 3;
/// Other sessions whose packets are kept. A group has a test system and a standby, and rarely more.
const RIVALS_MAX: usize = 4;
/// Packets that are kept of each other session: some seconds of a quiet start. Further packets are
/// a hole in that session, and can be requested.
const RIVAL_KEPT_MAX: usize = 1_024;

/// The source of one side.
#[derive(Clone, Debug)]
pub(super) struct SideSource {
    /// Allowed source addresses. An empty list allows any address.
    allowed: Vec<IpAddr>,
    from: Option<SocketAddr>,
    heard: Timestamp,
}

impl SideSource {
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

    /// Whether the source has this IP address. A sender that starts again has another port.
    pub(super) fn is_at(&self, ip: IpAddr) -> bool {
        self.from.is_some_and(|from| from.ip() == ip)
    }

    /// Whether the settings list the addresses of the side.
    pub(super) fn is_listed(&self) -> bool {
        !self.allowed.is_empty()
    }

    /// Makes the sender of an accepted packet the source. Returns `None` when it was the source
    /// before, else the former source.
    pub(super) fn take(&mut self, from: SocketAddr, now: Timestamp) -> Option<Option<SocketAddr>> {
        self.heard = now;
        let before = self.from.replace(from);
        (before != Some(from)).then_some(before)
    }
}

/// A kept packet: the index of its socket, and the packet.
pub(super) type KeptPacket = (usize, Arrival);

/// Another session, which the feed may follow later.
#[derive(Debug)]
struct RivalSession {
    session: SessionId,
    packets: Vec<KeptPacket>,
}

/// The sessions that are heard beside the followed session.
#[derive(Debug, Default)]
pub(super) struct RivalSessions(Vec<RivalSession>);

impl RivalSessions {
    /// Called for each packet of the followed session. Returns how many packets were kept in vain.
    pub(super) fn clear(&mut self) -> u64 {
        self.0.drain(..).map(|rival| rival.packets.len() as u64).sum()
    }

    /// Keeps a packet of another session. Returns whether there was room for it.
    pub(super) fn keep(&mut self, session: SessionId, place: usize, arrival: &Arrival) -> bool {
        let known = self.0.iter().position(|rival| rival.session == session);
        let at = known.unwrap_or(self.0.len());
        if at >= RIVALS_MAX {
            return false;
        }
        if known.is_none() {
            self.0.push(RivalSession { session, packets: Vec::new() });
        }
        let packets = &mut self.0[at].packets;
        let has_room = packets.len() < RIVAL_KEPT_MAX;
        if has_room {
            packets.push((place, arrival.clone()));
        }
        has_room
    }

    /// Whether the packets of this session are enough to follow it, after this silence of the
    /// followed session.
    pub(super) fn is_proven(&self, session: SessionId, silent: Duration, is_known: bool) -> bool {
        let kept = self.0.iter().find(|rival| rival.session == session);
        let packets = kept.map_or(0, |rival| rival.packets.len());
        silent >= SILENCE && (is_known || packets >= RIVAL_PACKETS)
    }

    /// Whether this is the first kept packet of the session.
    pub(super) fn is_first(&self, session: SessionId) -> bool {
        self.0.iter().any(|rival| rival.session == session && rival.packets.len() == 1)
    }

    /// Takes the kept packets of a session, in their order.
    pub(super) fn take(&mut self, session: SessionId) -> Vec<KeptPacket> {
        let rivals = core::mem::take(&mut self.0);
        let found = rivals.into_iter().find(|rival| rival.session == session);
        found.map_or_else(Vec::new, |rival| rival.packets)
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
        let mut source = SideSource::new(&[]);
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
        let mut source = SideSource::new(&list);
        assert!(!source.admits(address("10.0.0.9:7"), at(1)));
        source.take(address("10.0.0.1:7"), at(1));
        assert!(source.admits(address("[::ffff:10.0.0.2]:8"), at(1)));
        assert!(!source.admits(address("10.0.0.9:7"), at(100)), "however silent");
    }

    fn packet(of: SocketAddr) -> Arrival {
        Arrival::new(of, bytes::Bytes::new(), at(1), evenfall_core::StampedBy::User)
    }

    #[test]
    fn another_session_is_followed_after_silence_from_its_first_kept_packet() {
        let (standby, stray) = (SessionId(*b"   standby"), SessionId(*b"     stray"));
        let from = packet(address("10.0.0.9:7"));
        let mut rivals = RivalSessions::default();
        assert!((0..9).all(|_| rivals.keep(standby, 0, &from)));
        assert!(!rivals.is_proven(standby, Duration::from_secs(4), true));
        assert_eq!(rivals.clear(), 9);
        assert!(rivals.keep(standby, 0, &from) && rivals.keep(stray, 0, &from));
        assert!(rivals.is_first(standby));
        assert!(rivals.keep(standby, 1, &from) && !rivals.is_proven(standby, SILENCE, false));
        assert!(rivals.is_proven(stray, SILENCE, true), "the address that was followed");
        assert!(rivals.keep(standby, 0, &from) && rivals.is_proven(standby, SILENCE, false));
        let places: Vec<usize> = rivals.take(standby).into_iter().map(|(place, _)| place).collect();
        assert_eq!(places, [0, 1, 0]);
    }

    #[test]
    fn what_is_kept_of_other_sessions_is_bounded() {
        let (mut rivals, from) = (RivalSessions::default(), packet(address("10.0.0.9:7")));
        let session = |n: u8| SessionId([n; 10]);
        let kept = (0..20).filter(|n| rivals.keep(session(*n), 0, &from)).count();
        assert_eq!(kept, RIVALS_MAX);
        let more = (0..2 * RIVAL_KEPT_MAX).filter(|_| rivals.keep(session(0), 0, &from)).count();
        assert_eq!(more, RIVAL_KEPT_MAX - 1);
    }
}
