//! Authors and receptions without a network between them.

use core::time::Duration;
use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_core::{Arrival, Destination, Format, Machine, SharedKey, StampedBy, Timestamp};
use evenfall_core::{Malformed, MasterKey, NodeId, Transmit};

use super::ingress::LeadStanding;
use super::session::{ProduceRefusal, WINDOW_BYTES};
use super::*;

const RUN: u64 = 9;

fn address(place: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 9_000 + place))
}

fn at_ms(ms: u64) -> Timestamp {
    Timestamp::from_nanos(ms * 1_000_000)
}

fn datagram(transmit: &Transmit) -> Bytes {
    [transmit.head.as_slice(), &transmit.body].concat().into()
}

/// A root with its lines. All roots of a test number messages from 40 on.
struct TestRoot {
    place: u16,
    ingress: ProducerIngress,
    permitted: ProducerList,
    lines: ProducerTable,
    standing: LeadStanding,
    /// Marks that the voters have not agreed on, and their messages.
    proposed: Vec<(ProducerMark, Bytes)>,
    next: u64,
}

impl TestRoot {
    fn new(place: u16, epoch: u32, leads: bool, key: Option<&SharedKey>) -> Self {
        let mut ingress = ProducerIngress::new(key.cloned(), 70 + u64::from(place));
        ingress.open(true);
        let standing = LeadStanding { epoch, run_id: RUN, leads };
        let (lines, permitted, proposed) = Default::default();
        Self { place, ingress, permitted, lines, standing, proposed, next: 40 }
    }

    /// Takes letters of the author of these tests from this address alone.
    fn permit(&mut self, address: SocketAddr) {
        self.permitted.named.insert(3, address);
        self.permitted.only_named = true;
        self.ingress.permitted = self.permitted.clone();
    }

    fn handle(
        &mut self,
        from: SocketAddr,
        datagram: &Bytes,
    ) -> Result<Option<SessionChange>, Malformed> {
        let Self { ingress, lines, standing, proposed, next, .. } = self;
        ingress.handle((from, datagram), *standing, lines, &mut |author, place, (_, bytes)| {
            proposed.push((ProducerMark { author, place, count: 1 }, bytes));
            *next += 1;
            Some(*next - 1)
        })
    }

    /// The voters agree on the first of the proposed messages.
    fn agree(&mut self, count: usize) {
        let first = self.next - self.proposed.len() as u64;
        for (number, (mark, _)) in (first..).zip(self.proposed.drain(..count)) {
            assert!(self.lines.fits(&[mark]));
            self.lines.take(&[mark], number);
            self.ingress.agreed(mark.author);
        }
    }
}

/// Carries letters and answers until both sides are quiet.
fn talk(author: &mut ProducerSession, roots: &mut [TestRoot], ms: u64) -> Vec<ProducerEvent> {
    author.handle_timeout(at_ms(ms));
    let mut is_quiet = false;
    while !core::mem::replace(&mut is_quiet, true) {
        while let Some(letter) = author.poll_transmit(at_ms(ms)) {
            let root = roots.iter_mut().find(|d| letter.to == Destination::One(address(d.place)));
            if let Some(root) = root {
                let change = root.handle(address(99), &datagram(&letter)).expect("a letter");
                // Of two equal changes that wait, the voters grant the first.
                if let Some(change) = change.filter(|change| root.lines.grant(change)) {
                    root.ingress.agreed(change.author());
                }
            }
            is_quiet = false;
        }
        for root in roots.iter_mut() {
            while let Some(answer) = root.ingress.poll_transmit(root.standing, &root.lines) {
                assert_eq!(answer.to, Destination::One(address(99)));
                let (from, bytes) = (address(root.place), datagram(&answer));
                let arrival = Arrival::new(from, bytes, at_ms(ms), StampedBy::User);
                author.handle(at_ms(ms), arrival).expect("an answer");
                is_quiet = false;
            }
        }
    }
    core::iter::from_fn(|| author.poll_event()).collect()
}

fn author(key: Option<&SharedKey>) -> ProducerSession {
    let addresses: Vec<_> = (0..3).map(address).collect();
    ProducerSession::new(Timestamp::ZERO, &addresses, 7, key.cloned()).named(3)
}

fn publish(author: &mut ProducerSession, ms: u64, count: u64) {
    for _ in 0..count {
        author.publish(at_ms(ms), Format::OPAQUE, Bytes::from_static(b"trade")).expect("room");
    }
}

fn numbers(events: &[ProducerEvent]) -> Vec<(u64, u64)> {
    let number = |event: &ProducerEvent| match *event {
        ProducerEvent::Numbered { place, number } => Some((place, number)),
        _ => None,
    };
    events.iter().filter_map(number).collect()
}

#[test]
fn an_answer_comes_when_the_voters_have_agreed_and_with_the_first_number() {
    let key = SharedKey::new(1, [7; 32]);
    let mut author = author(Some(&key));
    let mut roots = [TestRoot::new(0, 5, false, Some(&key)), TestRoot::new(1, 5, true, Some(&key))];
    let events = talk(&mut author, &mut roots, 0);
    assert_eq!(events, [ProducerEvent::Waiting, ProducerEvent::Leads(5), ProducerEvent::Begun(0)]);
    publish(&mut author, 1, 3);
    assert_eq!(talk(&mut author, &mut roots, 1), [], "not agreed yet");
    roots[1].agree(2);
    assert_eq!(numbers(&talk(&mut author, &mut roots, 2)), [(0, 40), (1, 41)]);
    // The author sends the third message again, and the root does not take it again.
    assert_eq!(talk(&mut author, &mut roots, 40), []);
    assert_eq!(roots[1].proposed.len(), 1);
    roots[1].agree(1);
    author.finish(at_ms(50));
    let events = talk(&mut author, &mut roots, 50);
    assert_eq!(numbers(&events), [(2, 42)]);
    assert_eq!(events.last(), Some(&ProducerEvent::Over));
    assert_eq!(author.poll_timeout(), None);
    assert_eq!(
        author.publish(at_ms(101), Format::OPAQUE, Bytes::new()),
        Err(ProduceRefusal::Finished)
    );
}

#[test]
fn a_successor_takes_what_was_not_agreed_and_repeats_the_answers_of_what_was() {
    let mut author = author(None);
    let mut roots = [TestRoot::new(0, 5, true, None), TestRoot::new(1, 5, false, None)];
    talk(&mut author, &mut roots, 0);
    publish(&mut author, 1, 3);
    talk(&mut author, &mut roots, 1);
    // The voters agree on the first message, and the root dies before it answers.
    roots[0].agree(1);
    let lines = roots[0].lines.clone();
    let mut successor = [TestRoot { lines, next: 41, ..TestRoot::new(1, 6, true, None) }];
    let events = talk(&mut author, &mut successor, 30);
    assert_eq!(events, [ProducerEvent::Numbered { place: 0, number: 40 }, ProducerEvent::Leads(6)]);
    let places: Vec<u64> = successor[0].proposed.iter().map(|(mark, _)| mark.place).collect();
    assert_eq!(places, [1, 2]);
    successor[0].agree(2);
    assert_eq!(numbers(&talk(&mut author, &mut successor, 31)), [(1, 41), (2, 42)]);
}

#[test]
fn a_deposed_root_forgets_what_was_not_agreed_and_an_author_does_not_return_to_it() {
    let mut author = author(None);
    let mut roots = [TestRoot::new(0, 5, true, None), TestRoot::new(1, 6, true, None)];
    assert!(talk(&mut author, &mut roots, 0).contains(&ProducerEvent::Leads(6)));
    publish(&mut author, 1, 2);
    talk(&mut author, &mut roots, 1);
    assert_eq!((roots[0].proposed.len(), roots[1].proposed.len()), (0, 2));
    roots[1].ingress.turn_over();
    roots[1].proposed.clear();
    roots[1].next = 40;
    talk(&mut author, &mut roots, 40);
    assert_eq!(roots[1].proposed.len(), 2, "sent again");
}

/// A letter as anybody can write it: no message, and no place. A run of 0 asks which run it is.
fn forged(run: u64, number: u8) -> Bytes {
    let mut bytes = b"EL\x02\x01\0\0\0\0".to_vec();
    // The envelope: name, author, life, run and number of the letter.
    for word in [3, 12_345, 0, run, number.into()] {
        bytes.extend(u64::to_le_bytes(word));
    }
    // The letter: two places, no end, no message.
    for word in [0, 0] {
        bytes.extend(u64::to_le_bytes(word));
    }
    bytes.extend([0; 3]);
    assert_eq!(bytes.len(), 67);
    bytes.into()
}

#[test]
fn a_stranger_learns_no_run_and_takes_no_name_over() {
    let mut author = author(None);
    let mut roots = [TestRoot::new(0, 5, true, None)];
    roots[0].permit(address(99));
    assert!(talk(&mut author, &mut roots, 0).contains(&ProducerEvent::Leads(5)));
    let stranger = address(66);
    for letter in [forged(0, 1), forged(RUN, 2)] {
        assert!(roots[0].handle(stranger, &letter).is_err());
        let answer = roots[0].ingress.poll_transmit(roots[0].standing, &roots[0].lines);
        assert!(answer.is_none(), "a stranger gets no answer");
    }
    // A stranger with an address of its own in the settings writes for its own name alone.
    roots[0].permitted.named.insert(4, stranger);
    roots[0].permit(address(99));
    assert!(roots[0].handle(stranger, &forged(RUN, 3)).is_err());
    publish(&mut author, 1, 2);
    talk(&mut author, &mut roots, 1);
    assert_eq!(roots[0].proposed.len(), 2, "the true author goes on");
    publish(&mut author, 2, 1);
    let letter = datagram(&author.poll_transmit(at_ms(2)).expect("a letter"));
    assert!(roots[0].handle(stranger, &letter).is_err(), "the author's own letter from elsewhere");
}

#[test]
fn a_root_with_node_keys_reads_a_letter_under_the_key_of_the_node_that_it_names_alone() {
    let master = MasterKey::new([6; 32]);
    // The name 3 is that of node 2.
    let key = |node| letter_key(&master.node(NodeId(node)));
    let mut author = author(Some(&key(2)));
    let mut root = TestRoot::new(0, 5, true, Some(&SharedKey::new(1, [7; 32])));
    root.ingress = ProducerIngress::new(None, 70).with_node_keys(master.clone());
    root.ingress.open(true);
    root.permit(SocketAddr::from(([0, 0, 0, 0], 0)));
    let mut roots = [root];
    assert!(talk(&mut author, &mut roots, 0).contains(&ProducerEvent::Leads(5)));
    publish(&mut author, 1, 1);
    talk(&mut author, &mut roots, 1);
    assert_eq!(roots[0].proposed.len(), 1);
    let envelope = |name| {
        let (kind, number) = (wire::ProducerDirection::ToRoot, 1);
        wire::ProducerEnvelope { kind, name, author: 9, life: 0, run_id: RUN, number }
    };
    let ask = || {
        let messages = Vec::new();
        wire::ProduceRequest { have: 0, place: 0, is_end: false, messages }.encode()
    };
    let mut written = |name, key: Option<&SharedKey>| {
        let (head, body) = envelope(name).seal(key, ask());
        let letter = Bytes::from([head.as_slice(), &body].concat());
        roots[0].handle(address(98), &letter)
    };
    assert!(written(3, Some(&SharedKey::new(1, [7; 32]))).is_err(), "the shared key");
    assert!(written(3, Some(&key(4))).is_err(), "the key of another node");
    assert!(written(0, Some(&key(0))).is_err(), "no name");
    assert!(written(3, None).is_err() && written(u64::MAX, None).is_err());
    assert!(written(5, Some(&key(4))).is_err(), "a node that is no author");
    let begun = SessionChange::Begin { author: 9, name: 3 };
    assert_eq!(written(3, Some(&key(2))), Ok(Some(begun)), "the author of this name");
}

#[test]
fn an_author_without_a_port_of_its_own_writes_from_every_port_of_its_address() {
    let mut author = author(None);
    let mut roots = [TestRoot::new(0, 5, true, None)];
    roots[0].permit(SocketAddr::from(([127, 0, 0, 1], 0)));
    assert!(talk(&mut author, &mut roots, 0).contains(&ProducerEvent::Leads(5)));
    assert!(roots[0].handle(SocketAddr::from(([127, 0, 0, 2], 9_099)), &forged(RUN, 1)).is_err());
}

#[test]
fn a_recorded_letter_diverts_no_answer_and_another_run_takes_no_letter() {
    let mut author = author(None);
    let mut roots = [TestRoot::new(0, 5, true, None)];
    talk(&mut author, &mut roots, 0);
    publish(&mut author, 1, 1);
    let letter = datagram(&author.poll_transmit(at_ms(1)).expect("a letter"));
    assert_eq!(roots[0].handle(address(99), &letter), Ok(None));
    assert_eq!(roots[0].handle(address(66), &letter), Ok(None), "the same letter from elsewhere");
    assert_eq!(roots[0].proposed.len(), 1);
    roots[0].agree(1);
    let answer = roots[0].ingress.poll_transmit(roots[0].standing, &roots[0].lines);
    assert_eq!(answer.map(|answer| answer.to), Some(Destination::One(address(99))));
    let mut later = TestRoot::new(0, 8, true, None);
    later.standing.run_id = RUN + 1;
    assert_eq!(later.handle(address(99), &letter), Ok(None));
    assert!(later.proposed.is_empty());
}

#[test]
fn an_author_takes_as_much_as_may_wait_and_roots_as_many_authors_as_they_know() {
    let mut many = author(None);
    publish(&mut many, 1, WINDOW as u64);
    let one_more = many.publish(at_ms(1), Format::OPAQUE, Bytes::new());
    assert_eq!(one_more, Err(ProduceRefusal::Full));
    let mut large = author(None);
    let half = Bytes::from(vec![0; 64_000]);
    let taken =
        (0..9).take_while(|_| large.publish(at_ms(1), Format::OPAQUE, half.clone()).is_ok());
    assert_eq!(taken.count(), WINDOW_BYTES / 64_000);
    let mut roots = [TestRoot::new(0, 5, true, None)];
    for author in 1_000..1_000 + LINES_MAX as u64 {
        assert!(roots[0].lines.grant(&SessionChange::Begin { author, name: 0 }));
    }
    let mut last = author(None);
    publish(&mut last, 0, 1);
    assert!(talk(&mut last, &mut roots, 0).contains(&ProducerEvent::Refused));
    assert!(roots[0].proposed.is_empty());
    assert!(last.poll_timeout().is_some_and(|at| at <= at_ms(0) + Duration::from_millis(80)));
}

#[test]
fn nothing_is_taken_of_a_process_once_another_one_asks_for_its_name() {
    let mut first = author(None);
    let mut roots = [TestRoot::new(0, 5, true, None)];
    talk(&mut first, &mut roots, 0);
    publish(&mut first, 1, 2);
    let late = datagram(&first.poll_transmit(at_ms(1)).expect("a letter"));
    let mut second = ProducerSession::new(at_ms(1), &[address(0)], 8, None).named(3);
    second.handle_timeout(at_ms(1));
    // The second process learns the run, and asks for its line.
    let ask = datagram(&second.poll_transmit(at_ms(1)).expect("a letter"));
    assert_eq!(roots[0].handle(address(98), &ask), Ok(None));
    while let Some(answer) = roots[0].ingress.poll_transmit(roots[0].standing, &roots[0].lines) {
        let arrival = Arrival::new(address(0), datagram(&answer), at_ms(1), StampedBy::User);
        second.handle(at_ms(1), arrival).ok();
    }
    let ask = datagram(&second.poll_transmit(at_ms(1)).expect("a letter"));
    let begin = SessionChange::Begin { author: 8, name: 3 };
    assert_eq!(roots[0].handle(address(98), &ask), Ok(Some(begin)));
    // A letter of the first process was on its way, and the voters have not agreed yet.
    assert_eq!(roots[0].handle(address(99), &late), Ok(None));
    assert!(roots[0].proposed.is_empty());
    roots[0].ingress.turn_over();
    assert_eq!(roots[0].handle(address(99), &late), Ok(None));
    assert_eq!(roots[0].proposed.len(), 2, "the lead has changed, and nobody asks for the name");
}

fn mark(author: u64, place: u64, count: u16) -> ProducerMark {
    ProducerMark { author, place, count }
}

/// ProducerTable of these authors that have begun under no name.
fn begun(authors: impl IntoIterator<Item = u64>) -> ProducerTable {
    let mut lines = ProducerTable::default();
    authors.into_iter().for_each(|author| {
        assert!(lines.grant(&SessionChange::Begin { author, name: 0 }));
    });
    lines
}

#[test]
fn a_place_is_taken_once_and_none_is_passed_over() {
    let mut lines = begun([7, 8]);
    assert!(!lines.fits(&[mark(9, 0, 1)]), "its line has not begun");
    assert!(lines.fits(&[mark(7, 0, 2), mark(0, 0, 1), mark(7, 2, 1)]));
    assert!(!lines.fits(&[mark(7, 0, 2), mark(7, 3, 1)]), "place 2 is passed over");
    lines.take(&[mark(7, 0, 2), mark(0, 0, 1), mark(7, 2, 1)], 40);
    assert!(!lines.fits(&[mark(7, 2, 1)]), "again");
    assert!(lines.fits(&[mark(7, 3, 1), mark(8, 0, 1)]));
    let stretch = |place, number, count| NumberedRange { place, number, count };
    assert_eq!(lines.stretches(7, 0, 9), [stretch(0, 40, 2), stretch(2, 43, 1)]);
    assert_eq!(lines.stretches(7, 1, 1), [stretch(1, 41, 1)]);
    assert_eq!(lines.stretches(7, 3, 9), []);
    assert_eq!(lines.stretches(9, 0, 9), []);
}

#[test]
fn a_line_ends_once_and_behind_its_last_place() {
    let mut lines = begun([7, 8]);
    lines.take(&[mark(7, 0, 2)], 0);
    let end = |author, places| SessionChange::End { author, places };
    assert!(!lines.grant(&end(7, 1)) && !lines.grant(&end(7, 3)) && !lines.grant(&end(9, 0)));
    assert!(lines.grant(&end(7, 2)));
    assert!(!lines.grant(&end(7, 2)) && !lines.fits(&[mark(7, 2, 1)]));
    assert!(lines.grant(&end(8, 0)), "an author without a message");
    assert_eq!(lines.finished(), 2);
}

#[test]
fn a_process_that_is_started_again_goes_on_behind_the_process_before_it() {
    let mut lines = begun([5]);
    let begin = |author| SessionChange::Begin { author, name: 3 };
    assert!(lines.grant(&begin(7)) && !lines.grant(&begin(7)), "once");
    lines.take(&[mark(7, 0, 4)], 40);
    assert!(lines.grant(&begin(8)));
    assert_eq!((lines.base(8), lines.next(8)), (4, 0));
    assert!(!lines.fits(&[mark(7, 4, 1)]), "a late message of the process before");
    assert!(lines.fits(&[mark(8, 0, 1), mark(5, 0, 1)]));
    lines.take(&[mark(8, 0, 2)], 44);
    assert!(!lines.has_finished(3));
    assert!(lines.grant(&SessionChange::End { author: 8, places: 2 }) && lines.has_finished(3));
    assert!(lines.grant(&begin(9)));
    assert_eq!(lines.base(9), 6);
    assert!(lines.has_finished(3), "the name has finished, whoever comes later");
}

#[test]
fn an_author_learns_what_its_name_has_published_and_that_another_process_took_the_name() {
    let mut first = author(None);
    let mut roots = [TestRoot::new(0, 5, true, None)];
    talk(&mut first, &mut roots, 0);
    publish(&mut first, 1, 3);
    talk(&mut first, &mut roots, 1);
    // Two of three messages are agreed when the process is started again.
    roots[0].agree(2);
    assert_eq!(numbers(&talk(&mut first, &mut roots, 1)).len(), 2);
    let addresses: Vec<_> = (0..3).map(address).collect();
    let mut second = ProducerSession::new(at_ms(2), &addresses, 8, None).named(3);
    let events = talk(&mut second, &mut roots, 2);
    assert!(events.contains(&ProducerEvent::Begun(2)), "{events:?}");
    assert!(!roots[0].lines.fits(&[mark(7, 2, 1)]), "the third message is not taken any more");
    let events = talk(&mut first, &mut roots, 40);
    assert!(events.contains(&ProducerEvent::Replaced), "{events:?}");
    assert_eq!(first.poll_timeout(), None);
}

#[test]
fn the_numbers_of_a_window_are_kept_and_authors_are_limited() {
    let mut lines = begun(core::iter::once(7).chain(100..99 + LINES_MAX as u64));
    for place in 0..WINDOW as u64 + 5 {
        lines.take(&[mark(7, place, 1)], place * 2);
    }
    assert_eq!(lines.stretches(7, 0, 1), [NumberedRange { place: 5, number: 10, count: 1 }]);
    assert!(!lines.grant(&SessionChange::Begin { author: 9_999, name: 0 }));
    assert!(lines.fits(&[mark(100, 0, 1)]));
}
