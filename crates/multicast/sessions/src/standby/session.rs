//! The session of the roots that vote. A session has one life of each root.
//!
//! A root keeps its votes in memory. A root that was started again has forgotten them, so it might
//! vote a second time and for something else. Therefore the roots first tell each other a random
//! number, the **life** of their process, and begin to vote when all of them know the same lives.
//! The lives make the number of the session, which is in every vote. A root that is started again
//! while the session lasts learns that it was replaced, and takes no part.
//!
//! ```text
//!  root A             root B             root C
//!    |---HELLO a-------->|                  |        A knows a
//!    |<--HELLO ab--------|---HELLO ab------>|
//!    |<--HELLO abc---------------------------|        A and C know a, b, c
//!    |---HELLO abc------>|   ...             |        all know a, b, c, and that all know them
//! ```
//!
//! ```text
//!  HELLO
//!  0       2         3      4        5       6          7
//!  | magic | version | kind | key id | place | standing | a life u64 for each root | code u64 |
//!                                              0 in no session
//!                                              1 in the session of these lives
//!                                              2 in a session without the root that this answers
//!
//!  VOTE
//!  0       2         3      4        5       6        8             16           24
//!  | magic | version | kind | key id | place | to u16 | session u64 | number u64 | a datagram of
//!                                                                                | the order
//!                                            the place of the root that it is for, plus one;
//!                                            0 for all roots
//! ```
//!
//! With a key, a HELLO has a keyed code (SipHash-2-4), and the datagram inside a VOTE is sealed
//! (ChaCha20-Poly1305) with the bytes in front of it as associated data. Each root seals under a
//! key of its own in each session, with the number as the nonce. A recorded vote of another session
//! opens in none. A recorded vote of the same session opens, but its number was there before. The
//! vote is then dropped and counted: it must not pass for a sign of life of a root that is dead.
//! For the same reason a vote serves only the root that it is for.
//!
//! A recorded greeting stops no root. A root believes that it was replaced when a greeting says so
//! (standing 2) and names the life of this very process, which no earlier greeting can name.

use core::time::Duration;
use std::collections::VecDeque;
use std::net::SocketAddr;

use bytes::{BufMut, Bytes, BytesMut};
use evenfall_core::{
    Arrival, Cipher, Destination, Head, MacKey, Malformed, NodeId, Reader, SharedKey, Timestamp,
    TrafficClass, Transmit,
};

use evenfall_core::cipher::TAG_BYTES;

/// "EV" in ASCII.
pub const MAGIC: [u8; 2] = *b"EV";
/// Version of this layout. Another version is refused.
const VERSION: u8 = 2;
const HELLO: u8 = 1;
const VOTE: u8 = 2;
/// The standing of a root in its greeting: in no session yet.
const WAITING: u8 = 0;
/// In the session of the lives that the greeting names.
const IN_SESSION: u8 = 1;
/// In a session without the root that the greeting answers. In the place of that root, the greeting
/// names the life that the root has just stated.
const REPLACED: u8 = 2;
/// Numbers of a root's votes that are remembered. The network hardly reorders datagrams of one
/// sender, and a proposal of 2 MiB leaves in 1,500 datagrams of which a few may overtake others.
const VOTE_WINDOW: u64 = 1_024;
/// Bytes of a vote in front of the datagram of the order.
pub const VOTE_HEAD_BYTES: usize = 24;
/// Bytes that a session adds to a datagram of the order.
pub const VOTE_OVERHEAD: usize = VOTE_HEAD_BYTES + TAG_BYTES;
/// Bytes of the keyed code of a HELLO.
const CODE_BYTES: usize = 8;
/// Time between two greetings of a root that is in no session. Roots start within seconds of each
/// other.
const HELLO_EVERY: Duration = Duration::from_millis(50);
/// Limit of the greetings that wait to be sent: a few for each of five roots. Beyond the limit the
/// oldest greeting is dropped, because a later greeting contains all that an earlier greeting says.
const OUT_MAX: usize = 64;

/// Another root of the run.
#[derive(Clone, Debug)]
struct Peer {
    node: NodeId,
    address: SocketAddr,
    /// The lives that the root last named.
    lives: Vec<u64>,
    heard: Timestamp,
}

/// The numbers of the newest votes of one root, so that each vote counts once.
#[derive(Clone)]
struct VoteWindow {
    newest: u64,
    /// A bit for each of the newest numbers, at its place modulo [`VOTE_WINDOW`].
    seen: [u64; (VOTE_WINDOW / 64) as usize],
}

impl VoteWindow {
    fn new() -> Self {
        Self { newest: 0, seen: [0; (VOTE_WINDOW / 64) as usize] }
    }

    /// Notes the number of an authentic vote. Returns whether the vote is new. A vote that is
    /// further back than the window is taken for a repeat.
    fn note(&mut self, number: u64) -> bool {
        if number <= self.newest.saturating_sub(VOTE_WINDOW) {
            return false;
        }
        if number > self.newest {
            // The bits of the numbers that enter the window are those of numbers that leave it.
            let first = (self.newest + 1).max(number.saturating_sub(VOTE_WINDOW - 1));
            for entering in first..=number {
                let (word, bit) = Self::bit_of(entering);
                self.seen[word] &= !bit;
            }
            self.newest = number;
        }
        let (word, bit) = Self::bit_of(number);
        let is_new = self.seen[word] & bit == 0;
        self.seen[word] |= bit;
        is_new
    }

    fn bit_of(number: u64) -> (usize, u64) {
        ((number % VOTE_WINDOW / 64) as usize, 1 << (number % 64))
    }
}

/// A session in which all roots are.
struct Open {
    number: u64,
    /// Votes sent so far.
    sent: u64,
    /// The ciphers of the roots, by place; none without a key.
    ciphers: Vec<Cipher>,
    /// The votes that came, by the place of their root.
    heard: Vec<VoteWindow>,
}

/// See the module documentation.
pub struct VoterSession {
    place: usize,
    /// All roots, this one among them.
    peers: Vec<Peer>,
    /// The life of each root as far as this root knows; zero for an unknown life.
    lives: Vec<u64>,
    key: Option<SharedKey>,
    code: Option<MacKey>,
    open: Option<Open>,
    is_replaced: bool,
    /// Votes that came again and were dropped.
    repeated: u64,
    hello_at: Timestamp,
    out: VecDeque<Transmit>,
}

fn code_key(key: &SharedKey) -> MacKey {
    let (id, bytes) = key.derive("evenfall standby v1 greetings");
    MacKey::new(id, &bytes)
}

impl VoterSession {
    /// A root that is in no session yet. `life` is a random number that no other life of a root
    /// has. `None` when the roots do not have this one.
    pub fn new(
        me: NodeId,
        roots: &[(NodeId, SocketAddr)],
        life: u64,
        key: Option<&SharedKey>,
    ) -> Option<Self> {
        let place = roots.iter().position(|(node, _)| *node == me)?;
        let peer = |(node, address): &(NodeId, SocketAddr)| Peer {
            node: *node,
            address: *address,
            lives: Vec::new(),
            heard: Timestamp::ZERO,
        };
        let mut lives = vec![0; roots.len()];
        // Zero stands for an unknown life.
        lives[place] = life.max(1);
        Some(Self {
            place,
            peers: roots.iter().map(peer).collect(),
            lives,
            key: key.cloned(),
            code: key.map(code_key),
            open: None,
            is_replaced: false,
            repeated: 0,
            hello_at: Timestamp::ZERO,
            out: VecDeque::new(),
        })
    }

    /// Whether a datagram is of this protocol.
    pub fn is_of(datagram: &[u8]) -> bool {
        datagram.starts_with(&MAGIC)
    }

    /// Whether this root may vote.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Whether the others go on without this root, because it was started again.
    pub fn is_replaced(&self) -> bool {
        self.is_replaced
    }

    /// Votes that came again and were dropped. Without a key no vote is authentic, so none counts
    /// as repeated.
    pub fn repeated_votes(&self) -> u64 {
        self.repeated
    }

    /// The roots of which nothing was heard yet.
    pub fn missing(&self) -> impl Iterator<Item = NodeId> {
        let all = self.peers.iter().zip(&self.lives);
        all.filter(|(_, life)| **life == 0).map(|(peer, _)| peer.node)
    }

    /// The time since which this root hears no majority of the roots, where this root counts as
    /// heard.
    pub fn heard_majority(&self, now: Timestamp) -> Timestamp {
        let mut heard: Vec<Timestamp> = self.peers.iter().map(|peer| peer.heard).collect();
        heard[self.place] = now;
        heard.sort();
        // A majority of the roots was heard at this time or later.
        heard[heard.len() - (heard.len() / 2 + 1)]
    }

    /// Takes a datagram. Returns the datagram of the order inside it, if it is a vote.
    ///
    /// # Errors
    /// [`Malformed`] when the datagram is of no other root of this run and session.
    pub fn handle(
        &mut self,
        now: Timestamp,
        arrival: &Arrival,
    ) -> Result<Option<Bytes>, Malformed> {
        let mut r = Reader::new(&arrival.datagram);
        if r.array::<2>()? != MAGIC || r.u8()? != VERSION {
            return Err(r.malformed("no vote of this version"));
        }
        let (kind, key_id, place) = (r.u8()?, r.u8()?, usize::from(r.u8()?));
        if key_id != MacKey::id_of(self.code.as_ref()) {
            return Err(r.malformed("under another key, or none"));
        }
        let known = self.peers.get(place).filter(|peer| peer.address == arrival.from);
        if known.is_none() || place == self.place {
            return Err(r.malformed("from no other root"));
        }
        match kind {
            HELLO => self.greeted(now, place, &arrival.datagram).map(|()| None),
            VOTE => self.unseal(now, place, &arrival.datagram),
            _ => Err(r.malformed("no such kind")),
        }
    }

    fn greeted(&mut self, now: Timestamp, from: usize, datagram: &[u8]) -> Result<(), Malformed> {
        let split = datagram.len().saturating_sub(CODE_BYTES);
        let (said, code) = datagram.split_at(split);
        let mut r = Reader::new(said);
        r.take(6)?;
        let standing = r.u8()?;
        if standing > REPLACED {
            return Err(r.malformed("no such standing"));
        }
        let lives = (0..self.peers.len()).map(|_| r.u64()).collect::<Result<Vec<_>, _>>()?;
        r.finish()?;
        if MacKey::mac_of(self.code.as_ref(), &[said]).to_le_bytes() != code {
            return Err(r.malformed("message authentication failed"));
        }
        let (own, theirs) = (self.lives[self.place], lives[from]);
        if self.open.is_some() {
            if standing == WAITING {
                // A root that knows less than this one, or that was started again.
                match theirs == self.lives[from] {
                    true => self.greet(from),
                    false => self.turn_away(from, theirs),
                }
            }
            return Ok(());
        }
        if standing != WAITING && lives[self.place] != own {
            // Recorded in an earlier session, or sent before this life had said anything.
            return Err(r.malformed("a greeting that does not know this life of the root"));
        }
        if standing == REPLACED {
            self.is_replaced = true;
            return Ok(());
        }
        self.peers[from].heard = now;
        if standing == IN_SESSION {
            // All roots, this one too, have named these lives before.
            self.enter(now, lives);
            return Ok(());
        }
        let is_new = core::mem::replace(&mut self.lives[from], theirs) != theirs;
        self.peers[from].lives = lives;
        if is_new {
            self.greet_all(now);
        }
        let mut others = self.peers.iter().enumerate().filter(|(place, _)| *place != self.place);
        if self.lives.iter().all(|life| *life != 0)
            && others.all(|(_, peer)| peer.lives == self.lives)
        {
            self.enter(now, self.lives.clone());
        }
        Ok(())
    }

    /// Begins to vote.
    fn enter(&mut self, now: Timestamp, lives: Vec<u64>) {
        let bytes: Vec<u8> = lives.iter().flat_map(|life| life.to_le_bytes()).collect();
        let hash = blake3::hash(&bytes);
        let number = u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("32 bytes"));
        let cipher = |place: usize, key: &SharedKey| {
            let material = [&key.secret()[..], &bytes, &[place as u8]].concat();
            Cipher::new(&blake3::derive_key("evenfall standby v1 votes", &material))
        };
        let places = 0..self.peers.len();
        let ciphers = self.key.iter().flat_map(|key| places.clone().map(|at| cipher(at, key)));
        let ciphers = ciphers.collect();
        self.lives = lives;
        let heard = vec![VoteWindow::new(); self.peers.len()];
        self.open = Some(Open { number, sent: 0, ciphers, heard });
        self.peers.iter_mut().for_each(|peer| peer.heard = now);
        self.greet_all(now);
    }

    fn greet_all(&mut self, now: Timestamp) {
        self.hello_at = now + HELLO_EVERY;
        let place = self.place;
        (0..self.peers.len()).filter(|to| *to != place).for_each(|to| self.greet(to));
    }

    fn greet(&mut self, to: usize) {
        let standing = if self.open.is_some() { IN_SESSION } else { WAITING };
        let lives = self.lives.clone();
        self.queue_greeting(to, standing, &lives);
    }

    /// Tells a root that was started again, under this life, that the others go on without it.
    fn turn_away(&mut self, to: usize, life: u64) {
        let mut lives = self.lives.clone();
        lives[to] = life;
        self.queue_greeting(to, REPLACED, &lives);
    }

    fn queue_greeting(&mut self, to: usize, standing: u8, lives: &[u64]) {
        let mut hello = self.start(HELLO);
        hello.put_u8(standing);
        lives.iter().for_each(|life| hello.put_u64_le(*life));
        let code = MacKey::mac_of(self.code.as_ref(), &[&hello]);
        hello.put_u64_le(code);
        if self.out.len() >= OUT_MAX {
            self.out.pop_front();
        }
        let to = Destination::One(self.peers[to].address);
        self.out.push_back(Transmit::new(
            TrafficClass::Control,
            to,
            Head::new(&hello),
            Bytes::new(),
        ));
    }

    fn start(&self, kind: u8) -> BytesMut {
        let mut out = BytesMut::with_capacity(64);
        out.put_slice(&MAGIC);
        out.put_slice(&[VERSION, kind, MacKey::id_of(self.code.as_ref()), self.place as u8]);
        out
    }

    /// A datagram of the order as a vote of this session. `None` while there is no session.
    pub fn seal(&mut self, order: &Transmit) -> Option<Transmit> {
        let mut head = self.start(VOTE);
        let is_at = |peer: &Peer| order.to == Destination::One(peer.address);
        let to = self.peers.iter().position(is_at).map_or(0, |place| place as u16 + 1);
        let open = self.open.as_mut()?;
        open.sent += 1;
        head.put_u16_le(to);
        head.put_u64_le(open.number);
        head.put_u64_le(open.sent);
        let Some(cipher) = open.ciphers.get(self.place) else {
            head.put_slice(order.head.as_slice());
            return Some(Transmit { head: Head::new(&head), ..order.clone() });
        };
        let mut body = BytesMut::with_capacity(order.len() + TAG_BYTES);
        body.put_slice(order.head.as_slice());
        body.put_slice(&order.body);
        let tag = cipher.seal(open.sent, &head, &mut body);
        body.put_slice(&tag);
        Some(Transmit { head: Head::new(&head), body: body.freeze(), ..order.clone() })
    }

    /// The datagram of the order in a vote; `None` for a vote that came before.
    fn unseal(
        &mut self,
        now: Timestamp,
        from: usize,
        datagram: &Bytes,
    ) -> Result<Option<Bytes>, Malformed> {
        let mut r = Reader::new(datagram);
        r.take(6)?;
        let to = r.u16()?;
        if to != 0 && usize::from(to) != self.place + 1 {
            return Err(r.malformed("a vote for another root"));
        }
        let (session, number) = (r.u64()?, r.u64()?);
        let open = self.open.as_mut().filter(|open| open.number == session);
        let Some(open) = open else { return Err(r.malformed("a vote of another session")) };
        let (head, body) = (&datagram[..VOTE_HEAD_BYTES], datagram.slice(VOTE_HEAD_BYTES..));
        let order = match open.ciphers.get(from) {
            None => body,
            Some(cipher) => {
                let forged = r.malformed("a vote that does not open under the shared key");
                let order = cipher.open(number, head, &body).ok_or(forged)?;
                if !open.heard[from].note(number) {
                    self.repeated += 1;
                    return Ok(None);
                }
                order
            }
        };
        self.peers[from].heard = now;
        Ok(Some(order))
    }

    /// The next greeting.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.out.pop_front()
    }

    /// When the next greeting is due.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        (self.open.is_none() && !self.is_replaced).then_some(self.hello_at)
    }

    /// Greets the other roots again, if that is due.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        if self.poll_timeout().is_some_and(|at| at <= now) {
            self.greet_all(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenfall_core::StampedBy;

    const ROOTS: [NodeId; 3] = [NodeId(4), NodeId(5), NodeId(6)];

    fn address(place: usize) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 9_000 + place as u16))
    }

    fn root(place: usize, life: u64, key: Option<&SharedKey>) -> VoterSession {
        let all: Vec<_> = ROOTS.iter().enumerate().map(|(at, node)| (*node, address(at))).collect();
        VoterSession::new(ROOTS[place], &all, life, key).expect("one of them")
    }

    fn at_ms(ms: u64) -> Timestamp {
        Timestamp::from_nanos(ms * 1_000_000)
    }

    fn datagram(transmit: &Transmit) -> Bytes {
        [transmit.head.as_slice(), &transmit.body].concat().into()
    }

    fn arrival(from: usize, transmit: &Transmit) -> Arrival {
        Arrival::new(address(from), datagram(transmit), Timestamp::ZERO, StampedBy::User)
    }

    /// Carries greetings among these roots for a while. The others are away.
    fn talk(roots: &mut [VoterSession], present: &[usize], from_ms: u64) {
        for ms in from_ms..from_ms + 200 {
            for &from in present {
                roots[from].handle_timeout(at_ms(ms));
                while let Some(greeting) = roots[from].poll_transmit() {
                    let to =
                        present.iter().find(|to| greeting.to == Destination::One(address(**to)));
                    if let Some(&to) = to {
                        let taken = roots[to].handle(at_ms(ms), &arrival(from, &greeting));
                        assert_eq!(taken, Ok(None));
                    }
                }
            }
        }
    }

    fn three(key: Option<&SharedKey>) -> Vec<VoterSession> {
        (0..3).map(|place| root(place, 10 + place as u64, key)).collect()
    }

    fn vote(root: &mut VoterSession, text: &'static [u8]) -> Option<Transmit> {
        vote_for(1, root, text)
    }

    fn vote_for(place: usize, root: &mut VoterSession, text: &'static [u8]) -> Option<Transmit> {
        let to = Destination::One(address(place));
        let (head, body) = text.split_at(2);
        root.seal(&Transmit::new(TrafficClass::Live, to, Head::new(head), Bytes::from_static(body)))
    }

    #[test]
    fn roots_vote_when_all_of_them_are_there() {
        let mut roots = three(None);
        talk(&mut roots, &[0, 1], 0);
        assert!(roots.iter().all(|root| !root.is_open()));
        assert_eq!(roots[0].missing().collect::<Vec<_>>(), [ROOTS[2]]);
        assert!(vote(&mut roots[0], b"order").is_none());
        talk(&mut roots, &[0, 1, 2], 1_000);
        assert!(roots.iter().all(VoterSession::is_open));
        let sent = vote(&mut roots[0], b"order").expect("a session");
        let taken = roots[1].handle(at_ms(2_000), &arrival(0, &sent));
        assert_eq!(taken, Ok(Some(Bytes::from_static(b"order"))));
    }

    #[test]
    fn a_root_that_was_started_again_is_told_so_and_its_votes_count_for_nobody() {
        let mut roots = three(None);
        talk(&mut roots, &[0, 1, 2], 0);
        roots[0] = root(0, 99, None);
        talk(&mut roots, &[0, 1, 2], 1_000);
        assert!(roots[0].is_replaced() && !roots[0].is_open());
        assert!(!roots[1].is_replaced() && roots[1].is_open());
    }

    #[test]
    fn a_root_that_is_started_again_before_the_session_takes_part() {
        let mut roots = three(None);
        talk(&mut roots, &[0, 1], 0);
        roots[0] = root(0, 99, None);
        talk(&mut roots, &[0, 1, 2], 1_000);
        assert!(roots.iter().all(|root| root.is_open() && !root.is_replaced()));
    }

    #[test]
    fn votes_are_sealed_for_one_session_and_one_sender() {
        let key = SharedKey::new(1, [7; 32]);
        let mut roots = three(Some(&key));
        talk(&mut roots, &[0, 1, 2], 0);
        let sent = vote(&mut roots[0], b"secret order").expect("a session");
        let bytes = datagram(&sent);
        assert!(!bytes.windows(6).any(|window| window == b"secret"), "sealed");
        let again = vote(&mut roots[0], b"secret order").expect("a session");
        assert_ne!(again.body, sent.body, "another nonce");
        let now = at_ms(500);
        assert!(roots[1].handle(now, &arrival(0, &sent)).is_ok_and(|order| order.is_some()));
        assert!(roots[1].handle(now, &arrival(2, &sent)).is_err(), "from another address");
        for place in [5, 8, 16, VOTE_HEAD_BYTES, bytes.len() - 1] {
            let mut changed = bytes.to_vec();
            changed[place] ^= 1;
            let changed = Arrival { datagram: changed.into(), ..arrival(0, &sent) };
            assert!(roots[1].handle(now, &changed).is_err(), "byte {place}");
        }
        let mut later: Vec<VoterSession> = (0..3).map(|at| root(at, 50, Some(&key))).collect();
        talk(&mut later, &[0, 1, 2], 0);
        assert!(later[1].handle(now, &arrival(0, &sent)).is_err(), "a vote of another session");
        let mut strangers = three(None);
        talk(&mut strangers, &[0, 1, 2], 0);
        assert!(strangers[1].handle(now, &arrival(0, &sent)).is_err(), "no key");
    }

    #[test]
    fn a_recorded_vote_counts_once_and_is_no_sign_of_life() {
        let key = SharedKey::new(1, [7; 32]);
        let mut roots = three(Some(&key));
        talk(&mut roots, &[0, 1, 2], 0);
        let sent: Vec<_> =
            (0..3).map(|_| vote_for(0, &mut roots[2], b"order").expect("a session")).collect();
        // The network may change the order of votes.
        for place in [1, 0, 2] {
            let taken = roots[0].handle(at_ms(1_000), &arrival(2, &sent[place]));
            assert!(taken.is_ok_and(|order| order.is_some()), "vote {place}");
        }
        for again in &sent {
            assert_eq!(roots[0].handle(at_ms(8_000), &arrival(2, again)), Ok(None));
            assert!(roots[1].handle(at_ms(8_000), &arrival(2, again)).is_err(), "for another");
        }
        assert_eq!((roots[0].repeated_votes(), roots[1].repeated_votes()), (3, 0));
        assert_eq!(roots[0].heard_majority(at_ms(9_000)), at_ms(1_000), "root 2 may be dead");
    }

    #[test]
    fn a_window_of_votes_takes_each_number_once_whatever_the_order() {
        let mut window = VoteWindow::new();
        assert!((1..=3).all(|number| window.note(number)));
        assert!(!window.note(2));
        assert!(window.note(3 + VOTE_WINDOW) && !window.note(3), "further back than the window");
        assert!(window.note(4) && !window.note(4), "the oldest number of the window");
        assert!(window.note(u64::MAX) && !window.note(u64::MAX) && window.note(u64::MAX - 1));
        assert!(!window.note(5));
    }

    #[test]
    fn a_greeting_of_an_earlier_session_stops_no_root() {
        let key = SharedKey::new(1, [7; 32]);
        let mut yesterday = three(Some(&key));
        talk(&mut yesterday, &[0, 1, 2], 0);
        let mut today: Vec<_> = (0..3).map(|at| root(at, 50, Some(&key))).collect();
        // What the roots of yesterday say in their session, and to a root that was started again.
        let mut again = root(0, 99, Some(&key));
        again.handle_timeout(at_ms(1_000));
        let hello = again.poll_transmit().expect("a greeting");
        yesterday[1].handle(at_ms(1_000), &arrival(0, &hello)).expect("a greeting");
        let turned_away = yesterday[1].poll_transmit().expect("an answer");
        yesterday[1].greet(0);
        let in_session = yesterday[1].poll_transmit().expect("a greeting");
        for recorded in [&turned_away, &in_session] {
            assert!(today[0].handle(at_ms(0), &arrival(1, recorded)).is_err());
        }
        assert!(!today[0].is_replaced());
        talk(&mut today, &[0, 1, 2], 0);
        assert!(today.iter().all(|root| root.is_open() && !root.is_replaced()));
        assert_eq!(again.handle(at_ms(1_000), &arrival(1, &turned_away)), Ok(None));
        assert!(again.is_replaced(), "the answer names its life");
    }

    #[test]
    fn a_forged_or_broken_greeting_is_refused() {
        let key = SharedKey::new(1, [7; 32]);
        let mut roots = three(Some(&key));
        roots[0].handle_timeout(at_ms(1));
        let hello = roots[0].poll_transmit().expect("a greeting");
        let bytes = datagram(&hello);
        for length in 0..bytes.len() {
            let cut = Arrival { datagram: bytes.slice(..length), ..arrival(0, &hello) };
            assert!(roots[1].handle(at_ms(1), &cut).is_err(), "{length} bytes");
        }
        let mut changed = bytes.to_vec();
        changed[8] ^= 1;
        let changed = Arrival { datagram: changed.into(), ..arrival(0, &hello) };
        assert!(roots[1].handle(at_ms(1), &changed).is_err());
    }

    #[test]
    fn silence_is_counted_from_the_last_moment_with_a_majority() {
        let mut roots = three(None);
        talk(&mut roots, &[0, 1, 2], 0);
        let opened = roots[0].heard_majority(at_ms(9_000));
        assert!(opened < at_ms(300));
        let sent = vote_for(0, &mut roots[2], b"order").expect("a session");
        roots[0].handle(at_ms(5_000), &arrival(2, &sent)).expect("a vote");
        assert_eq!(roots[0].heard_majority(at_ms(9_000)), at_ms(5_000), "two of three");
    }
}
