//! The merge carries out what the cores have recorded in a window, in the order of one core.

use std::sync::MutexGuard;
use std::{mem, vec};

use bytes::Bytes;
use evenfall_core::{Machine, Prng};

use super::{Area, Effect, Order, Record, Said, Turn};
use crate::network::{Divisible, Packet, Verdict};
use crate::observer::Observer;
use crate::world::WorldTally;
use crate::world::fabric::{Borders, Pending};
use crate::{NodeIndex, SimTime};

/// What the main thread alone changes.
pub(super) struct Main<'a, E, O> {
    pub(super) now: &'a mut SimTime,
    pub(super) tally: &'a mut WorldTally,
    pub(super) borders: &'a Borders,
    pub(super) prng: &'a mut Prng,
    pub(super) observer: &'a mut O,
    pub(super) area_of: &'a [u16],
    /// The number of the next thing that is put in a queue.
    pub(super) number: u64,
    /// Whether the observer follows packets.
    pub(super) follows: bool,
    /// Records of the last window, by region.
    pub(super) records: Vec<Record<E>>,
    /// What the observer has not been told yet, in order.
    pub(super) untold: Vec<Untold>,
}

/// Something that the observer is to be told.
pub(super) enum Untold {
    /// The next thing that was said in this region.
    Said(u16),
    /// A copy was sent.
    Sent(Packet, Bytes, Verdict),
}

impl<E, O> Main<'_, E, O> {
    /// Carries out the records of all regions, except for what only the observer hears.
    pub(super) fn merge<M: Machine<Event = E>, N: Divisible>(
        &mut self,
        areas: &mut [MutexGuard<'_, Area<'_, M, N>>],
        end: u64,
    ) {
        let mut records = mem::take(&mut self.records);
        for (record, area) in records.iter_mut().zip(areas.iter_mut()) {
            mem::swap(record, &mut area.record);
        }
        let mut replays: Vec<_> = records.iter_mut().map(Replay::of).collect();
        let mut heads: Vec<u64> = replays.iter().map(Replay::head).collect();
        let mut soon = 0;
        loop {
            let (mut next, mut at) = (0, u64::MAX);
            for (region, &head) in heads.iter().enumerate() {
                let is_first = || replays[region].rank() < replays[next].rank();
                if head < at || (head == at && at != u64::MAX && is_first()) {
                    (next, at) = (region, head);
                }
            }
            if at == u64::MAX {
                break;
            }
            *self.now = (*self.now).max(SimTime(at));
            self.carry_out::<M, N>(next, &mut replays[next], &mut soon, end, areas);
            heads[next] = replays[next].head();
        }
        drop(replays);
        self.records = records;
    }

    /// Carries out one turn.
    fn carry_out<M: Machine<Event = E>, N: Divisible>(
        &mut self,
        region: usize,
        replay: &mut Replay<'_>,
        soon: &mut u64,
        end: u64,
        areas: &mut [MutexGuard<'_, Area<'_, M, N>>],
    ) {
        let Some(turn) = replay.turns.next() else { return };
        let mut sending = None;
        while replay.place < turn.end {
            replay.place += 1;
            let Some(effect) = replay.effects.next() else { return };
            match effect {
                Effect::Note(at, node) => self.tally.note(at, node),
                Effect::Transmit(from, class, datagram) => {
                    self.tally.note_bytes(&datagram);
                    sending = Some((from, class, datagram));
                }
                Effect::Copy { at, to, fate } => {
                    let (from, class, datagram) = sending.as_ref().expect("copies are of one");
                    // Drawn here and not by the cores, so that draws come in the order of a run on
                    // one core.
                    let verdict = fate.drawn(self.prng);
                    if self.follows {
                        let packet = self.borders.packet(at, (*from, to), *class, datagram.len());
                        self.untold.push(Untold::Sent(packet, datagram.clone(), verdict));
                    }
                    match verdict {
                        Verdict::Deliver(at) => {
                            // Another region may already have worked past an arrival within this
                            // window.
                            assert!(at.0 >= end, "the lookahead is longer than a path");
                            let datagram = datagram.clone();
                            let packet = Pending::Packet { from: *from, to, datagram };
                            areas[self.region_of(to)].put(at.0, self.number, packet);
                            self.number += 1;
                        }
                        Verdict::Lose(loss) => self.tally.lose(loss),
                        other => panic!("a path does not answer {other:?}"),
                    }
                }
                Effect::Push(at, pending) => {
                    areas[region].put(at, self.number, pending);
                    self.number += 1;
                }
                Effect::Soon => {
                    replay.numbers.push(*soon);
                    *soon += 1;
                }
                Effect::Said => self.untold.push(Untold::Said(region as u16)),
            }
        }
    }

    /// The region of a node.
    pub(super) fn region_of(&self, node: u32) -> usize {
        usize::from(self.area_of[node as usize])
    }

    /// Tells the observer what happened in the last window.
    pub(super) fn tell<M: Machine<Event = E>, N: Divisible>(&mut self)
    where
        O: Observer<M, N>,
    {
        let mut said: Vec<_> =
            self.records.iter_mut().map(|record| record.said.drain(..)).collect();
        for untold in self.untold.drain(..) {
            let region = match untold {
                Untold::Said(region) => region,
                Untold::Sent(packet, datagram, verdict) => {
                    self.observer.sent(&packet, &datagram, verdict);
                    continue;
                }
            };
            match said[usize::from(region)].next().expect("a region keeps what it says") {
                Said::Event(seen, event) => self.observer.event(seen, event),
                Said::Received(seen, from, datagram) => {
                    self.observer.received(seen, NodeIndex(from), &datagram);
                }
                Said::Lost { at, from, to, loss } => {
                    self.observer.lost(SimTime(at), NodeIndex(from), NodeIndex(to), loss);
                }
            }
        }
    }
}

/// The record of a region, while it is carried out.
struct Replay<'a> {
    turns: vec::Drain<'a, Turn>,
    effects: vec::Drain<'a, Effect>,
    /// Effects that were carried out.
    place: u32,
    /// For each thing that the region put in the queue during the window, its place among those of
    /// all regions.
    numbers: Vec<u64>,
}

impl<'a> Replay<'a> {
    fn of<E>(record: &'a mut Record<E>) -> Self {
        record.soon_count = 0;
        let (turns, effects) = (record.turns.drain(..), record.effects.drain(..));
        Self { turns, effects, place: 0, numbers: Vec::new() }
    }

    /// The time of the next turn.
    fn head(&self) -> u64 {
        self.turns.as_slice().first().map_or(u64::MAX, |turn| turn.at)
    }

    /// The place of the next turn among those of the same time. A turn that was put in the queue
    /// during the window comes after the turn that put it there, so that its number is known.
    fn rank(&self) -> (u8, u64) {
        match self.turns.as_slice().first().map(|turn| turn.order) {
            Some(Order::Job(number)) => (0, number),
            Some(Order::Soon(own)) => (1, self.numbers[own as usize]),
            Some(Order::Timer(node)) => (2, u64::from(node)),
            None => (3, 0),
        }
    }
}
