//! Rules by which a port sends datagrams on without asking the machine.
//!
//! A proxy sends every frame of its stream on to the same group, and changes only a few bytes of
//! the head. A kernel program, a network card or a polling thread does this sooner than a process
//! that must first be woken. The machine therefore installs a [`Forward`], which is a plain value:
//!
//! ```text
//!  arrival ── source? ── matches? ── route? ── code? ── window: first copy? ── group takes it?
//!                │           │          │        │            │                     │
//!                no          no         no       no     seen, or behind             no
//!                └───────────┴──────────┴────────┴────────────┴─────────────────────┘
//!                     handed in unmarked: the machine decides, as without any install
//!
//!  all yes: the copies leave with the patched head, and the arrival is handed in as well,
//!           marked `is_forwarded`
//! ```
//!
//! The machine gets every arrival in both cases. The mark travels with the datagram, so the machine
//! never has to guess which table was in force when the datagram arrived. The machine itself sends
//! on every datagram that has no mark.
//!
//! Every rule is a fixed offset and a few bytes, so that the verifier for kernel programs accepts
//! the loops over these rules. [`Forwarder`] carries the rules out in plain code. Ports in user
//! space and the simulator use it, and tests compare a port in the kernel with it.

mod code;

pub use code::HopCode;

use std::collections::BTreeMap;
use std::sync::Arc;

use std::net::SocketAddr;

use crate::machine::{Arrival, Destination, GroupId, HEAD_BYTES_MAX, Head, TrafficClass, Transmit};
use crate::{Clock, ClockReading, Installed, Timestamp};

/// Matches, routes, sources or patches that one list of a [`Forward`] may hold. A node of an
/// overlay has a handful of sources and at most two views at a time, so sixteen leaves room.
pub const ENTRIES_MAX: usize = 16;
/// Bytes that a [`DatagramField`] may hold. A stream, an epoch and a run id side by side fit in 16
/// bytes.
pub const FIELD_BYTES_MAX: usize = 16;
/// Numbers that a [`Window`] may remember: 0.65 seconds of a stream of 100,000 frames a second. The
/// window takes 8 KiB, a bit for each number.
pub const WINDOW_FRAMES_MAX: u32 = 65_536;
/// Tables that one port may hold. Each stream has a table, and one core serves no more than 64
/// streams.
pub const TABLES_MAX: usize = 64;

/// The name of a [`Forward`] that a machine installed in its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ForwardId(pub u32);

/// A few bytes at a fixed place in a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramField {
    at: u16,
    len: u8,
    bytes: [u8; FIELD_BYTES_MAX],
}

impl DatagramField {
    /// A field with these bytes at this offset.
    ///
    /// # Panics
    /// When there are more than [`FIELD_BYTES_MAX`] bytes: the caller's format is broken.
    pub fn new(at: u16, bytes: &[u8]) -> Self {
        let mut field = Self { at, len: bytes.len() as u8, bytes: [0; FIELD_BYTES_MAX] };
        field.bytes[..bytes.len()].copy_from_slice(bytes);
        field
    }

    /// Offset of the first byte.
    pub fn at(&self) -> u16 {
        self.at
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    fn end(&self) -> usize {
        usize::from(self.at) + usize::from(self.len)
    }
}

/// A condition on a datagram: what stands at a fixed place.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// The datagram has these bytes.
    Bytes(DatagramField),
    /// The datagram has a little-endian number of four bytes between two bounds, which are
    /// included.
    Within {
        /// Where the number stands.
        at: u16,
        /// The smallest number.
        first: u32,
        /// The largest number.
        last: u32,
    },
}

impl Match {
    fn fits(&self, datagram: &[u8]) -> bool {
        match *self {
            Self::Bytes(field) => {
                datagram.get(usize::from(field.at)..field.end()) == Some(field.bytes())
            }
            Self::Within { at, first, last } => datagram
                .get(usize::from(at)..usize::from(at) + 4)
                .and_then(|bytes| bytes.try_into().ok().map(u32::from_le_bytes))
                .is_some_and(|number| (first..=last).contains(&number)),
        }
    }
}

/// Where the number of a frame stands, and how many numbers are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Offset of the number: eight bytes, little-endian.
    pub at: u16,
    /// How far behind the newest number a first copy may still be sent on.
    pub frames: u32,
}

/// A group, and the conditions under which a datagram goes to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Conditions that a datagram must fulfil besides the matches of the whole table.
    pub matches: Vec<Match>,
    /// An installed group of the same machine.
    pub to: GroupId,
}

/// A change in the head of a datagram that the port sends on.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patch {
    /// These bytes replace the bytes at their place.
    Bytes(DatagramField),
    /// The synchronised time of sending is written at this offset: eight bytes of nanoseconds,
    /// little-endian.
    SyncTime(u16),
}

impl Patch {
    fn end(&self) -> usize {
        match self {
            Self::Bytes(field) => field.end(),
            Self::SyncTime(at) => usize::from(*at) + 8,
        }
    }
}

/// Which datagrams a port sends on, to which groups, and with which head. The drawing at the head
/// of the module shows the order of the questions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// The class in which the copies leave.
    pub class: TrafficClass,
    /// Only datagrams from these addresses are sent on.
    pub sources: Vec<SocketAddr>,
    /// Conditions that every datagram must fulfil.
    pub matches: Vec<Match>,
    /// The fan-out table. The first route whose conditions the datagram fulfils is taken.
    pub routes: Vec<Route>,
    /// The window that lets each number pass at most once.
    pub window: Window,
    /// Length of the head; a shorter datagram is not sent on.
    pub head_bytes: u8,
    /// Changes between the head that arrived and the head that leaves.
    pub patches: Vec<Patch>,
    /// The code of the hop. A datagram with a wrong code is left to the machine. The code of a
    /// copy is written after all patches. `None` when the datagrams have no code.
    pub code: Option<HopCode>,
}

impl Forward {
    /// Whether the value keeps the limits of this module and all patches lie inside the head.
    pub fn is_sound(&self) -> bool {
        let Self { sources, matches, routes, window, head_bytes, patches, code, .. } = self;
        let head = usize::from(*head_bytes);
        let lists = [sources.len(), matches.len(), routes.len(), patches.len()];
        lists.iter().all(|len| *len <= ENTRIES_MAX)
            && routes.iter().all(|route| route.matches.len() <= ENTRIES_MAX)
            && head <= HEAD_BYTES_MAX
            && usize::from(window.at) + 8 <= head
            && (1..=WINDOW_FRAMES_MAX).contains(&window.frames)
            && patches.iter().all(|patch| patch.end() <= head)
            && code.as_ref().is_none_or(|code| code.is_sound(head))
    }

    /// The group for this datagram and the number that the datagram carries.
    fn route(&self, arrival: &Arrival) -> Option<(GroupId, u64)> {
        let datagram = &arrival.datagram[..];
        let fits = |matches: &[Match]| matches.iter().all(|part| part.fits(datagram));
        if !self.sources.contains(&arrival.from) || !fits(&self.matches) {
            return None;
        }
        let (head, body) = datagram.split_at_checked(usize::from(self.head_bytes))?;
        let at = usize::from(self.window.at);
        let number = datagram.get(at..at + 8)?.try_into().map(u64::from_le_bytes).ok()?;
        let route = self.routes.iter().find(|route| fits(&route.matches))?;
        // The code costs most, so it is the last question.
        if self.code.as_ref().is_some_and(|code| !code.fits(head, body)) {
            return None;
        }
        Some((route.to, number))
    }

    /// The head of the copies that leave now.
    fn head(&self, datagram: &[u8], clock: &Clock, now: Timestamp) -> Head {
        let mut head = [0; HEAD_BYTES_MAX];
        let head = &mut head[..usize::from(self.head_bytes)];
        let (arrived, body) = datagram.split_at(head.len());
        head.copy_from_slice(arrived);
        for patch in &self.patches {
            match patch {
                Patch::Bytes(field) => {
                    head[usize::from(field.at)..field.end()].copy_from_slice(field.bytes());
                }
                Patch::SyncTime(at) => {
                    let sent = clock.stamp(now).nanos().to_le_bytes();
                    head[usize::from(*at)..usize::from(*at) + 8].copy_from_slice(&sent);
                }
            }
        }
        if let Some(code) = &self.code {
            code.write(head, body);
        }
        Head::new(head)
    }
}

/// The counters of one [`Forward`] since its last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardCounters {
    /// Datagrams sent on. Each went to all members of its group.
    pub forwarded: u64,
    /// Datagrams whose number had already been sent on.
    pub duplicates: u64,
    /// Datagrams whose number lies further behind the newest number than the window reaches.
    pub behind: u64,
    /// Datagrams for which the driver had no room, or whose group was not installed.
    pub refused: u64,
}

impl core::ops::AddAssign for ForwardCounters {
    fn add_assign(&mut self, more: Self) {
        self.forwarded += more.forwarded;
        self.duplicates += more.duplicates;
        self.behind += more.behind;
        self.refused += more.refused;
    }
}

/// The numbers that were sent on: a ring of bits that ends at the newest number.
struct Numbers {
    bits: Vec<u64>,
    frames: u64,
    /// The newest number plus one; zero before the first number.
    next: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Number {
    First,
    Seen,
    Behind,
}

impl Numbers {
    fn new(frames: u32) -> Self {
        let bits = vec![0; (frames as usize).div_ceil(64)];
        Self { bits, frames: u64::from(frames), next: 0 }
    }

    fn slot(&self, number: u64) -> (usize, u64) {
        let bit = number % self.frames;
        ((bit / 64) as usize, 1 << (bit % 64))
    }

    fn look(&self, number: u64) -> Number {
        if number >= self.next {
            // The largest number has no successor, so the ring could not hold it.
            return if number == u64::MAX { Number::Behind } else { Number::First };
        }
        if self.next - number > self.frames {
            return Number::Behind;
        }
        let (word, bit) = self.slot(number);
        if self.bits[word] & bit == 0 { Number::First } else { Number::Seen }
    }

    fn mark(&mut self, number: u64) {
        if number >= self.next {
            if number - self.next >= self.frames {
                self.bits.fill(0);
            } else {
                for skipped in self.next..number {
                    let (word, bit) = self.slot(skipped);
                    self.bits[word] &= !bit;
                }
            }
            self.next = number + 1;
        }
        let (word, bit) = self.slot(number);
        self.bits[word] |= bit;
    }
}

struct Table {
    rules: Arc<Forward>,
    numbers: Numbers,
}

/// Carries out the rules that the machines of one port installed. A number tells the machines
/// apart.
#[derive(Default)]
pub struct Forwarder {
    tables: BTreeMap<(usize, ForwardId), Table>,
    /// Counters that no machine has been told yet. The counters outlive their table.
    counters: BTreeMap<(usize, ForwardId), ForwardCounters>,
    clock: Clock,
}

impl Forwarder {
    /// Adopts or forgets a table. A new table replaces the old table between two datagrams. The new
    /// table keeps the remembered numbers when its window is the same.
    pub fn install(
        &mut self,
        owner: usize,
        id: ForwardId,
        rules: Option<&Arc<Forward>>,
    ) -> Installed {
        let name = (owner, id);
        let old = self.tables.remove(&name);
        let Some(rules) = rules else { return Installed::Taken };
        let known = self.counters.contains_key(&name);
        let full =
            self.tables.len() >= TABLES_MAX || (!known && self.counters.len() >= 2 * TABLES_MAX);
        if !rules.is_sound() || full {
            return Installed::Ignored;
        }
        let kept = old.filter(|old| old.rules.window == rules.window).map(|old| old.numbers);
        let numbers = kept.unwrap_or_else(|| Numbers::new(rules.window.frames));
        self.tables.insert(name, Table { rules: Arc::clone(rules), numbers });
        self.counters.entry(name).or_default();
        Installed::Taken
    }

    /// Whether no table is installed. The caller then need not offer its arrivals.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// From now on the forwarder writes times of sending by this reading of the clock.
    pub fn adopt_clock(&mut self, reading: ClockReading) {
        self.clock.set(reading);
    }

    /// Decides about an arrival, and marks it when `send` has taken its copies. `send` is called
    /// with the number of the machine and answers whether it took the transmit.
    pub fn offer(
        &mut self,
        now: Timestamp,
        arrival: &mut Arrival,
        send: impl FnOnce(usize, Transmit) -> bool,
    ) {
        let routed = self.tables.iter_mut().find_map(|(name, table)| {
            table.rules.route(arrival).map(|(to, number)| (*name, table, to, number))
        });
        let Some((name, table, to, number)) = routed else { return };
        let counters = self.counters.entry(name).or_default();
        match table.numbers.look(number) {
            Number::Seen => counters.duplicates += 1,
            Number::Behind => counters.behind += 1,
            Number::First => {
                let rules = &table.rules;
                let head = rules.head(&arrival.datagram, &self.clock, now);
                let body = arrival.datagram.slice(usize::from(rules.head_bytes)..);
                let to = Destination::Group(to);
                if send(name.0, Transmit::new(rules.class, to, head, body)) {
                    counters.forwarded += 1;
                    table.numbers.mark(number);
                    arrival.is_forwarded = true;
                } else {
                    counters.refused += 1;
                }
            }
        }
    }

    /// Hands out the counters that have grown, and sets them back to zero.
    pub fn take_counters(&mut self, mut told: impl FnMut(usize, ForwardId, ForwardCounters)) {
        let tables = &self.tables;
        self.counters.retain(|name, counters| {
            let grown = core::mem::take(counters);
            if grown != ForwardCounters::default() {
                told(name.0, name.1, grown);
            }
            tables.contains_key(name)
        });
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::machine::StampedBy;
    use crate::{ClockError, MacKey, Prng};

    const ID: ForwardId = ForwardId(1);

    fn source() -> SocketAddr {
        ([127, 0, 0, 1], 9).into()
    }

    /// `[kind, view; 4, number; 8, sent; 8]`, then the body.
    fn rules(frames: u32) -> Arc<Forward> {
        let route = |first, last, group| Route {
            matches: vec![Match::Within { at: 1, first, last }],
            to: GroupId(group),
        };
        Arc::new(Forward {
            class: TrafficClass::Live,
            sources: vec![source()],
            matches: vec![Match::Bytes(DatagramField::new(0, &[7]))],
            routes: vec![route(1, 1, 11), route(2, 4, 12)],
            window: Window { at: 5, frames },
            head_bytes: 21,
            patches: vec![Patch::Bytes(DatagramField::new(0, &[99])), Patch::SyncTime(13)],
            code: None,
        })
    }

    const KEY: [u8; 16] = [3; 16];

    /// The same rules with a code at the end of a longer head. It covers the other 21 bytes and
    /// the last two of the body.
    fn keyed() -> Arc<Forward> {
        let code = Some(HopCode::new(&KEY, 21, 2, 21));
        Arc::new(Forward { head_bytes: 29, code, ..(*rules(64)).clone() })
    }

    fn keyed_arrival(number: u64) -> Arrival {
        let plain = arrival(1, number);
        let code = MacKey::new(0, &KEY).mac(&[&plain.datagram[..21], b"dy"]).to_le_bytes();
        let datagram = [&plain.datagram[..21], &code, b"body"].concat();
        Arrival { datagram: datagram.into(), ..plain }
    }

    #[test]
    fn a_keyed_table_sends_on_what_has_the_right_code_and_writes_its_own() {
        let mut forwarder = Forwarder::default();
        assert_eq!(forwarder.install(0, ID, Some(&keyed())), Installed::Taken);
        let sent = offer(&mut forwarder, keyed_arrival(5)).unwrap();
        let (head, code) = sent.head.as_slice().split_at(21);
        assert_eq!((head[0], &head[5..13]), (99, &5_u64.to_le_bytes()[..]));
        let right = MacKey::new(0, &KEY).mac(&[head, b"dy"]);
        assert_eq!(code, right.to_le_bytes(), "over the head that leaves");
        let covered = (0..29).chain(31..33);
        for at in covered.filter(|at| !(5..13).contains(at)) {
            let mut flipped = keyed_arrival(6).datagram.to_vec();
            flipped[at] ^= 1;
            let flipped = Arrival { datagram: flipped.into(), ..keyed_arrival(6) };
            assert!(offer(&mut forwarder, flipped).is_none(), "byte {at}");
        }
        let short = keyed_arrival(6).datagram.slice(..30);
        assert!(offer(&mut forwarder, Arrival { datagram: short, ..keyed_arrival(6) }).is_none());
        assert!(offer(&mut forwarder, keyed_arrival(6)).is_some(), "a forgery marks no number");
        let told = ForwardCounters { forwarded: 2, ..ForwardCounters::default() };
        assert_eq!(counters(&mut forwarder), [told]);
    }

    fn arrival(view: u32, number: u64) -> Arrival {
        let (view, number) = (view.to_le_bytes(), number.to_le_bytes());
        let datagram = [&[7][..], &view, &number, &[0; 8], b"body"].concat();
        Arrival::new(source(), datagram.into(), Timestamp::ZERO, StampedBy::User)
    }

    fn offer(forwarder: &mut Forwarder, mut arrival: Arrival) -> Option<Transmit> {
        let mut sent = None;
        let now = Timestamp::from_nanos(1_000);
        forwarder.offer(now, &mut arrival, |_, transmit| sent.replace(transmit).is_none());
        assert_eq!(arrival.is_forwarded, sent.is_some());
        sent
    }

    fn counters(forwarder: &mut Forwarder) -> Vec<ForwardCounters> {
        let mut all = Vec::new();
        forwarder.take_counters(|_, _, counters| all.push(counters));
        all
    }

    #[test]
    fn the_first_copy_of_a_number_leaves_with_a_patched_head() {
        let mut forwarder = Forwarder::default();
        assert_eq!(forwarder.install(0, ID, Some(&rules(64))), Installed::Taken);
        forwarder.adopt_clock(ClockReading { offset_ns: 500, error: ClockError::SameClock });
        for (view, group) in [(1_u32, 11), (2, 12), (4, 12)] {
            let sent = offer(&mut forwarder, arrival(view, u64::from(view))).unwrap();
            assert_eq!(sent.to, Destination::Group(GroupId(group)));
            let number = u64::from(view).to_le_bytes();
            let sent_at = 1_500_u64.to_le_bytes();
            let head = [&[99][..], &view.to_le_bytes(), &number, &sent_at].concat();
            assert_eq!((sent.head.as_slice(), &sent.body[..]), (&head[..], &b"body"[..]));
            assert!(offer(&mut forwarder, arrival(view, u64::from(view))).is_none(), "once");
        }
        let told = ForwardCounters { forwarded: 3, duplicates: 3, ..ForwardCounters::default() };
        assert_eq!(counters(&mut forwarder), [told]);
        assert_eq!(counters(&mut forwarder), [], "counters are told once");
    }

    #[test]
    fn what_does_not_match_is_left_to_the_machine() {
        let mut forwarder = Forwarder::default();
        forwarder.install(0, ID, Some(&rules(64)));
        let other_kind = Bytes::from([&[8, 1][..], &[0; 19]].concat());
        let foreign = ([127, 0, 0, 1], 10).into();
        for unmatched in [
            arrival(5, 0),
            Arrival { from: foreign, ..arrival(1, 0) },
            Arrival { datagram: other_kind, ..arrival(1, 0) },
            Arrival { datagram: arrival(1, 0).datagram.slice(..20), ..arrival(1, 0) },
            Arrival { datagram: Bytes::new(), ..arrival(1, 0) },
        ] {
            assert!(offer(&mut forwarder, unmatched).is_none());
        }
        assert_eq!(counters(&mut forwarder), []);
    }

    #[test]
    fn a_number_that_nobody_took_may_be_sent_on_later() {
        let mut forwarder = Forwarder::default();
        forwarder.install(0, ID, Some(&rules(64)));
        let mut refused = arrival(1, 5);
        forwarder.offer(Timestamp::ZERO, &mut refused, |_, _| false);
        assert!(!refused.is_forwarded);
        assert!(offer(&mut forwarder, arrival(1, 5)).is_some());
        let told = ForwardCounters { forwarded: 1, refused: 1, ..ForwardCounters::default() };
        assert_eq!(counters(&mut forwarder), [told]);
    }

    #[test]
    fn a_replaced_table_keeps_its_numbers_and_a_forgotten_one_does_not() {
        let mut forwarder = Forwarder::default();
        forwarder.install(0, ID, Some(&rules(64)));
        assert!(offer(&mut forwarder, arrival(1, 5)).is_some());
        let other = Forward { patches: Vec::new(), ..(*rules(64)).clone() };
        forwarder.install(0, ID, Some(&Arc::new(other)));
        assert!(offer(&mut forwarder, arrival(1, 5)).is_none(), "a number is sent on once");
        forwarder.install(0, ID, None);
        assert!(offer(&mut forwarder, arrival(1, 6)).is_none(), "nothing is installed");
        forwarder.install(0, ID, Some(&rules(64)));
        assert!(offer(&mut forwarder, arrival(1, 5)).is_some(), "numbers begin again");
        let told = ForwardCounters { forwarded: 2, duplicates: 1, ..ForwardCounters::default() };
        assert_eq!(counters(&mut forwarder), [told], "also of what was forgotten");
    }

    #[test]
    fn unsound_or_too_many_tables_are_ignored_and_forget_the_old_one() {
        let unsound = [
            Forward { head_bytes: 20, ..(*rules(64)).clone() },
            Forward { head_bytes: 129, ..(*rules(64)).clone() },
            Forward { head_bytes: 28, ..(*keyed()).clone() },
            Forward { code: Some(HopCode::new(&KEY, 22, 2, 21)), ..(*keyed()).clone() },
            Forward { sources: vec![source(); ENTRIES_MAX + 1], ..(*rules(64)).clone() },
            (*rules(0)).clone(),
            (*rules(WINDOW_FRAMES_MAX + 1)).clone(),
        ];
        for unsound in unsound {
            let mut forwarder = Forwarder::default();
            forwarder.install(0, ID, Some(&rules(64)));
            assert_eq!(forwarder.install(0, ID, Some(&Arc::new(unsound))), Installed::Ignored);
            assert!(forwarder.is_empty());
        }
        let mut forwarder = Forwarder::default();
        for owner in 0..TABLES_MAX {
            assert_eq!(forwarder.install(owner, ID, Some(&rules(64))), Installed::Taken);
        }
        assert_eq!(forwarder.install(TABLES_MAX, ID, Some(&rules(64))), Installed::Ignored);
    }

    #[test]
    fn the_window_equals_a_set_on_random_numbers() {
        for frames in [1, 7, 64, 100] {
            let mut numbers = Numbers::new(frames);
            let (mut seen, mut next) = (std::collections::BTreeSet::new(), 0_u64);
            let mut prng = Prng::new(u64::from(frames));
            for _ in 0..5_000 {
                let number = (next + prng.below(9)).saturating_sub(prng.below(150));
                let expected = if number + u64::from(frames) < next {
                    Number::Behind
                } else if seen.contains(&number) {
                    Number::Seen
                } else {
                    Number::First
                };
                assert!(numbers.look(number) == expected, "{number} of {next}, {frames} frames");
                if expected == Number::First {
                    numbers.mark(number);
                    seen.insert(number);
                    next = next.max(number + 1);
                }
            }
        }
        assert!(Numbers::new(64).look(u64::MAX) == Number::Behind);
    }
}
