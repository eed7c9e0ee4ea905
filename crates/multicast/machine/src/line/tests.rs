//! Authors and receptions without a network between them.

use core::time::Duration;
use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_core::{Arrival, Destination, Format, Machine, SharedKey, StampedBy, Timestamp};
use evenfall_core::{Malformed, Transmit};

use super::author::{Refusal, WINDOW_BYTES};
use super::reception::Standing;
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
struct Desk {
    place: u16,
    reception: Reception,
    lines: Lines,
    standing: Standing,
    /// Marks that the voters have not agreed on, and their messages.
    proposed: Vec<(Mark, Bytes)>,
    next: u64,
}

impl Desk {
    fn new(place: u16, epoch: u32, leads: bool, key: Option<&SharedKey>) -> Self {
        let mut reception = Reception::new(key.cloned(), 70 + u64::from(place));
        reception.open(true);
        let standing = Standing { epoch, run_id: RUN, leads };
        let (lines, proposed) = Default::default();
        Self { place, reception, lines, standing, proposed, next: 40 }
    }

    fn handle(
        &mut self,
        from: SocketAddr,
        datagram: &Bytes,
    ) -> Result<Option<(u64, u64)>, Malformed> {
        let Self { reception, lines, standing, proposed, next, .. } = self;
        reception.handle((from, datagram), *standing, lines, &mut |author, place, (_, bytes)| {
            proposed.push((Mark { author, place, count: 1 }, bytes));
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
            self.reception.agreed(mark.author);
        }
    }
}

/// Carries letters and answers until both sides are quiet.
fn talk(author: &mut Author, desks: &mut [Desk], ms: u64) -> Vec<AuthorEvent> {
    author.handle_timeout(at_ms(ms));
    let mut is_quiet = false;
    while !core::mem::replace(&mut is_quiet, true) {
        while let Some(letter) = author.poll_transmit(at_ms(ms)) {
            let desk = desks.iter_mut().find(|d| letter.to == Destination::One(address(d.place)));
            if let Some(desk) = desk {
                let end = desk.handle(address(99), &datagram(&letter)).expect("a letter");
                if let Some((author, places)) = end {
                    assert!(desk.lines.close(author, places));
                    desk.reception.agreed(author);
                }
            }
            is_quiet = false;
        }
        for desk in desks.iter_mut() {
            while let Some(answer) = desk.reception.poll_transmit(desk.standing, &desk.lines) {
                assert_eq!(answer.to, Destination::One(address(99)));
                let (from, bytes) = (address(desk.place), datagram(&answer));
                let arrival = Arrival::new(from, bytes, at_ms(ms), StampedBy::User);
                author.handle(at_ms(ms), arrival).expect("an answer");
                is_quiet = false;
            }
        }
    }
    core::iter::from_fn(|| author.poll_event()).collect()
}

fn author(key: Option<&SharedKey>) -> Author {
    let roots: Vec<_> = (0..3).map(address).collect();
    Author::new(Timestamp::ZERO, &roots, 7, key.cloned())
}

fn publish(author: &mut Author, ms: u64, count: u64) {
    for _ in 0..count {
        author.publish(at_ms(ms), Format::OPAQUE, Bytes::from_static(b"trade")).expect("room");
    }
}

fn numbers(events: &[AuthorEvent]) -> Vec<(u64, u64)> {
    let number = |event: &AuthorEvent| match *event {
        AuthorEvent::Numbered { place, number } => Some((place, number)),
        _ => None,
    };
    events.iter().filter_map(number).collect()
}

#[test]
fn an_answer_comes_when_the_voters_have_agreed_and_with_the_first_number() {
    let key = SharedKey::new(1, [7; 32]);
    let mut author = author(Some(&key));
    let mut desks = [Desk::new(0, 5, false, Some(&key)), Desk::new(1, 5, true, Some(&key))];
    assert_eq!(talk(&mut author, &mut desks, 0), [AuthorEvent::Leads(5)]);
    publish(&mut author, 1, 3);
    assert_eq!(talk(&mut author, &mut desks, 1), [], "not agreed yet");
    desks[1].agree(2);
    assert_eq!(numbers(&talk(&mut author, &mut desks, 2)), [(0, 40), (1, 41)]);
    // The author sends the third message again, and the root does not take it again.
    assert_eq!(talk(&mut author, &mut desks, 40), []);
    assert_eq!(desks[1].proposed.len(), 1);
    desks[1].agree(1);
    author.finish(at_ms(50));
    let events = talk(&mut author, &mut desks, 50);
    assert_eq!(numbers(&events), [(2, 42)]);
    assert_eq!(events.last(), Some(&AuthorEvent::Over));
    assert_eq!(author.poll_timeout(), None);
    assert_eq!(author.publish(at_ms(101), Format::OPAQUE, Bytes::new()), Err(Refusal::Finished));
}

#[test]
fn a_successor_takes_what_was_not_agreed_and_repeats_the_answers_of_what_was() {
    let mut author = author(None);
    let mut desks = [Desk::new(0, 5, true, None), Desk::new(1, 5, false, None)];
    talk(&mut author, &mut desks, 0);
    publish(&mut author, 1, 3);
    talk(&mut author, &mut desks, 1);
    // The voters agree on the first message, and the root dies before it answers.
    desks[0].agree(1);
    let lines = desks[0].lines.clone();
    let mut successor = [Desk { lines, next: 41, ..Desk::new(1, 6, true, None) }];
    let events = talk(&mut author, &mut successor, 30);
    assert_eq!(events, [AuthorEvent::Numbered { place: 0, number: 40 }, AuthorEvent::Leads(6)]);
    let places: Vec<u64> = successor[0].proposed.iter().map(|(mark, _)| mark.place).collect();
    assert_eq!(places, [1, 2]);
    successor[0].agree(2);
    assert_eq!(numbers(&talk(&mut author, &mut successor, 31)), [(1, 41), (2, 42)]);
}

#[test]
fn a_deposed_root_forgets_what_was_not_agreed_and_an_author_does_not_return_to_it() {
    let mut author = author(None);
    let mut desks = [Desk::new(0, 5, true, None), Desk::new(1, 6, true, None)];
    assert!(talk(&mut author, &mut desks, 0).contains(&AuthorEvent::Leads(6)));
    publish(&mut author, 1, 2);
    talk(&mut author, &mut desks, 1);
    assert_eq!((desks[0].proposed.len(), desks[1].proposed.len()), (0, 2));
    desks[1].reception.turn_over();
    desks[1].proposed.clear();
    desks[1].next = 40;
    talk(&mut author, &mut desks, 40);
    assert_eq!(desks[1].proposed.len(), 2, "sent again");
}

#[test]
fn a_recorded_letter_diverts_no_answer_and_another_run_takes_no_letter() {
    let mut author = author(None);
    let mut desks = [Desk::new(0, 5, true, None)];
    talk(&mut author, &mut desks, 0);
    publish(&mut author, 1, 1);
    let letter = datagram(&author.poll_transmit(at_ms(1)).expect("a letter"));
    assert_eq!(desks[0].handle(address(99), &letter), Ok(None));
    assert_eq!(desks[0].handle(address(66), &letter), Ok(None), "the same letter from elsewhere");
    assert_eq!(desks[0].proposed.len(), 1);
    desks[0].agree(1);
    let answer = desks[0].reception.poll_transmit(desks[0].standing, &desks[0].lines);
    assert_eq!(answer.map(|answer| answer.to), Some(Destination::One(address(99))));
    let mut later = Desk::new(0, 8, true, None);
    later.standing.run_id = RUN + 1;
    assert_eq!(later.handle(address(99), &letter), Ok(None));
    assert!(later.proposed.is_empty());
}

#[test]
fn an_author_takes_as_much_as_may_wait_and_roots_as_many_authors_as_they_know() {
    let mut many = author(None);
    publish(&mut many, 1, WINDOW as u64);
    let one_more = many.publish(at_ms(1), Format::OPAQUE, Bytes::new());
    assert_eq!(one_more, Err(Refusal::Full));
    let mut large = author(None);
    let half = Bytes::from(vec![0; 64_000]);
    let taken =
        (0..9).take_while(|_| large.publish(at_ms(1), Format::OPAQUE, half.clone()).is_ok());
    assert_eq!(taken.count(), WINDOW_BYTES / 64_000);
    let mut desks = [Desk::new(0, 5, true, None)];
    for life in 0..LINES_MAX as u64 {
        desks[0].lines.take(&[Mark { author: 1_000 + life, place: 0, count: 1 }], 0);
    }
    let mut last = author(None);
    talk(&mut last, &mut desks, 0);
    publish(&mut last, 1, 1);
    let events = talk(&mut last, &mut desks, 1);
    assert_eq!(events, [AuthorEvent::Refused]);
    assert!(desks[0].proposed.is_empty());
    assert!(last.poll_timeout().is_some_and(|at| at <= at_ms(1) + Duration::from_millis(80)));
}

fn mark(author: u64, place: u64, count: u16) -> Mark {
    Mark { author, place, count }
}

#[test]
fn a_place_is_taken_once_and_none_is_passed_over() {
    let mut lines = Lines::default();
    assert!(lines.fits(&[mark(7, 0, 2), mark(0, 0, 1), mark(7, 2, 1)]));
    assert!(!lines.fits(&[mark(7, 0, 2), mark(7, 3, 1)]), "place 2 is passed over");
    lines.take(&[mark(7, 0, 2), mark(0, 0, 1), mark(7, 2, 1)], 40);
    assert!(!lines.fits(&[mark(7, 2, 1)]), "again");
    assert!(lines.fits(&[mark(7, 3, 1), mark(8, 0, 1)]));
    let stretch = |place, number, count| Stretch { place, number, count };
    assert_eq!(lines.stretches(7, 0, 9), [stretch(0, 40, 2), stretch(2, 43, 1)]);
    assert_eq!(lines.stretches(7, 1, 1), [stretch(1, 41, 1)]);
    assert_eq!(lines.stretches(7, 3, 9), []);
    assert_eq!(lines.stretches(9, 0, 9), []);
}

#[test]
fn a_line_ends_once_and_behind_its_last_place() {
    let mut lines = Lines::default();
    lines.take(&[mark(7, 0, 2)], 0);
    assert!(!lines.close(7, 1) && !lines.close(7, 3));
    assert!(lines.close(7, 2));
    assert!(!lines.close(7, 2) && !lines.fits(&[mark(7, 2, 1)]));
    assert!(lines.close(8, 0), "an author without a message");
    assert_eq!(lines.over(), 2);
}

#[test]
fn the_numbers_of_a_window_are_kept_and_authors_are_limited() {
    let mut lines = Lines::default();
    for place in 0..WINDOW as u64 + 5 {
        lines.take(&[mark(7, place, 1)], place * 2);
    }
    assert_eq!(lines.stretches(7, 0, 1), [Stretch { place: 5, number: 10, count: 1 }]);
    for author in 0..LINES_MAX as u64 - 1 {
        lines.take(&[mark(100 + author, 0, 1)], 0);
    }
    assert!(!lines.fits(&[mark(9_999, 0, 1)]) && !lines.close(9_999, 0));
    assert!(lines.fits(&[mark(100, 1, 1)]));
}
