//! One run on several cores, with the results of one core.
//!
//! No packet arrives earlier than some time `L`, the lookahead, after the turn in which it was
//! sent: the processor's cost of sending and the least delay of the network. So in a window of
//! length `L` no host can influence another one, and the cores work on different hosts at the same
//! time. This is conservative synchronisation in windows, after Chandy and Misra (1979) and Nicol
//! (1993).
//!
//! ```text
//! main     | take what is due | own regions, then help | merge the records | take ...
//! others   |      (wait)      | regions, one by one    |      (wait)       |
//!                              <------ window ------->
//! ```
//!
//! The result must be that of one core to the last bit, where the order of events decides which
//! packet gets which random number, which of two packets of equal times is first in a queue, and
//! what the digest is. So a core changes only nodes, hosts and senders of the region that it works
//! on. Every other effect is recorded, and the main thread carries the records out in the order of
//! one core: by time, then by what was put in the queue first, then timers by node. Which core has
//! worked on which region changes nothing.
//!
//! What concerns the whole world (a fault, a token of the owner, a wake-up of the network) ends the
//! window before it and is done by the main thread. While packets are lost, doubled or delayed by
//! chance before their path is known, the run goes on with one core.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{hint, thread, vec};

use bytes::Bytes;
use evenfall_core::time::nanos;
use evenfall_core::{Class, Machine, Prng};

use super::fabric::{Borders, Fabric, Pending};
use super::node::Node;
use super::outlet::Outlet;
use super::region::Region;
use super::{Tally, World};
use crate::host::Host;
use crate::network::{Divisible, Fate, Loss, Verdict};
use crate::observer::{Observer, Seen};
use crate::queue::Queue;
use crate::timers::Timers;
use crate::{HostIndex, NodeIndex, SimTime};

/// Regions for each core: enough that a core that is held up leaves work to the others.
const REGIONS_A_CORE: usize = 6;
/// Below this lookahead a window holds too little work for the two times that cores meet in it.
const LOOKAHEAD_MIN: u64 = 500;
/// Looks at a flag before a waiting thread lets other threads of the machine run.
const SPINS: u32 = 200;

impl<M: Machine + Send, N: Divisible> World<M, N>
where
    M::Event: Send,
{
    /// The same as [`run_until`](Self::run_until) on several cores at once, with the same results.
    /// See [`Observer::invoke`] for the one thing that an observer can see of it.
    pub fn run_until_on<O: Observer<M, N>>(
        &mut self,
        cores: usize,
        until: SimTime,
        observer: &mut O,
    ) {
        if cores <= 1 {
            return self.run_until(until, observer);
        }
        loop {
            let Some(lookahead) = self.lookahead() else {
                // An action may end what keeps the cores from working side by side.
                let actions = self.actions;
                while self.actions == actions {
                    if !self.step(until, observer) {
                        self.now = self.now.max(until);
                        return;
                    }
                }
                continue;
            };
            let Some((at, pending)) = self.windows(cores, lookahead, until, observer) else {
                self.now = self.now.max(until);
                return;
            };
            self.now = self.now.max(SimTime(at));
            self.dispatch(at, pending, observer);
        }
    }

    /// The time from a turn to the arrival of the first packet that it can send; `None` when cores
    /// cannot work side by side.
    fn lookahead(&mut self) -> Option<u64> {
        if self.fabric.trouble.is_some() {
            return None;
        }
        self.fabric.network.divide()?;
        let sending = self.hosts.iter().map(|host| host.costs.send + host.costs.copy).min()?;
        // What a port forwards by itself leaves without any cost of the processor.
        let forwards = self.nodes.iter().any(|node| node.forwarder.is_some());
        let lookahead = nanos(self.fabric.network.least()) + if forwards { 0 } else { sending };
        (lookahead >= LOOKAHEAD_MIN).then_some(lookahead)
    }

    /// Runs window after window, up to the next thing that concerns the whole world.
    fn windows<O: Observer<M, N>>(
        &mut self,
        cores: usize,
        lookahead: u64,
        until: SimTime,
        observer: &mut O,
    ) -> Option<(u64, Pending)> {
        let Self { now, nodes, hosts, timers, fabric, .. } = self;
        let Fabric { network, queue, tally, borders, prng, .. } = fabric;
        let (map, senders) = network.divide().expect("the lookahead has asked");
        let (records, common) = (observer.follows_arrivals(), Common { map, borders });
        let (areas, area_of) = areas((nodes, hosts, senders), timers, cores, records);
        let called = areas.iter().map(|area| lock(area).nodes.iter().any(|node| node.called));
        let gate = Gate::new(called.collect());
        let stopped = thread::scope(|scope| {
            let _closing = Closing(&gate);
            for _ in 1..cores {
                scope.spawn(|| gate.help(&areas, &common));
            }
            let mut main = Main { now, queue, tally, borders, prng, area_of: &area_of, observer };
            main.windows(&areas, &common, &gate, lookahead, until.0)
        });
        for area in areas {
            let mut area = area.into_inner().unwrap_or_else(PoisonError::into_inner);
            let first = area.first.0;
            area.timers.drain().for_each(|(at, node)| timers.arm(first + node, at));
            tally.add(&area.tally);
        }
        stopped
    }
}

/// What all cores read.
struct Common<'a, N: Divisible> {
    map: &'a N::Map,
    borders: &'a Borders,
}

/// A region with what one core needs to work on it.
struct Area<'a, M: Machine, N: Divisible> {
    nodes: &'a mut [Node<M>],
    hosts: &'a mut [Host],
    senders: &'a mut [N::Sender],
    timers: Timers,
    first: (u32, u32),
    /// What was due when the window began, with its place in the order of all regions.
    jobs: Vec<(u64, u32, Pending)>,
    /// No timer fires at or after this time, and no wake-up that is not among the jobs.
    end: u64,
    record: Record<M::Event>,
    tally: Tally,
}

/// What a core did in a window.
struct Record<E> {
    turns: Vec<Turn>,
    effects: Vec<Effect<E>>,
    /// What came up in the window for a node of the region itself, the next one last.
    soon: Vec<(u64, u32, Pending)>,
    soon_count: u32,
    arrivals: bool,
}

/// Something that happened at a time, and where its effects end.
#[derive(Clone, Copy)]
struct Turn {
    at: u64,
    order: Order,
    end: u32,
}

/// What is first among things of equal times.
#[derive(Clone, Copy)]
enum Order {
    /// It waited in the queue when the window began, with this number.
    Job(u32),
    /// It was put in the queue during the window, as this one of its region.
    Soon(u32),
    /// It was the timer of this node.
    Timer(u32),
}

/// What a turn did beyond its own node and host.
enum Effect<E> {
    Note(u64, u32),
    Transmit(u32, Class, Bytes),
    Copy {
        at: u64,
        to: u32,
        fate: Fate,
    },
    Push(u64, Pending),
    /// Something was put in the queue that came up in the same window.
    Soon,
    Event(Seen, E),
    Received(Seen, u32, Bytes),
    Lost {
        at: u64,
        from: u32,
        to: u32,
        loss: Loss,
    },
}

type Call<'a, M> = &'a mut dyn FnMut(Seen, u64, &mut M);

impl<M: Machine, N: Divisible> Area<'_, M, N> {
    /// Works through a window.
    fn work(&mut self, common: &Common<'_, N>, call: Option<Call<'_, M>>) {
        let Self { nodes, hosts, senders, timers, first, jobs, end, record, tally, .. } = self;
        let mut region = Region { nodes, hosts, timers, first: *first };
        region.warm(jobs.iter().filter_map(|(.., pending)| pending.node()));
        let (end, first_host) = (*end, first.1);
        let mut out = Recorder { record, tally, senders, common, end, first_host, call };
        let mut jobs = jobs.drain(..).peekable();
        loop {
            let job = jobs.peek().map_or(u64::MAX, |job| job.0);
            let soon = out.record.soon.last().map_or(u64::MAX, |soon| soon.0);
            let timer = region.timers.first();
            let (at, order) = if job <= soon.min(timer) {
                let Some((at, number, pending)) = jobs.next() else { break };
                region.take(at, pending, &mut out);
                (at, Order::Job(number))
            } else if soon <= timer {
                let Some((at, number, pending)) = out.record.soon.pop() else { break };
                region.take(at, pending, &mut out);
                (at, Order::Soon(number))
            } else if timer < end {
                let Some((at, node)) = region.timers.pop() else { break };
                region.fire(at, first.0 + node, &mut out);
                (at, Order::Timer(first.0 + node))
            } else {
                break;
            };
            let end = out.record.effects.len() as u32;
            out.record.turns.push(Turn { at, order, end });
        }
    }
}

/// Effects are recorded.
struct Recorder<'a, 'b, 'c, M: Machine, N: Divisible> {
    record: &'a mut Record<M::Event>,
    tally: &'a mut Tally,
    senders: &'a mut [N::Sender],
    common: &'a Common<'b, N>,
    end: u64,
    first_host: u32,
    call: Option<Call<'c, M>>,
}

impl<M: Machine, N: Divisible> Outlet<M> for Recorder<'_, '_, '_, M, N> {
    #[inline]
    fn tally(&mut self) -> &mut Tally {
        self.tally
    }

    #[inline]
    fn host_of(&self, node: u32) -> u32 {
        self.common.borders.host_of[node as usize]
    }

    #[inline]
    fn note(&mut self, at: u64, node: u32) {
        self.record.effects.push(Effect::Note(at, node));
    }

    #[inline]
    fn push(&mut self, at: u64, pending: Pending) {
        let Record { effects, soon, soon_count, .. } = &mut *self.record;
        if at >= self.end {
            return effects.push(Effect::Push(at, pending));
        }
        effects.push(Effect::Soon);
        let place = soon.partition_point(|&(time, ..)| time > at);
        soon.insert(place, (at, *soon_count, pending));
        *soon_count += 1;
    }

    #[inline]
    fn send_ready(&self, host: HostIndex, now: u64) -> u64 {
        let sender = &self.senders[(host.0 - self.first_host) as usize];
        N::ready(self.common.map, sender, SimTime(now)).0
    }

    #[inline]
    fn transmit(&mut self, from: u32, class: Class, datagram: &Bytes) {
        self.record.effects.push(Effect::Transmit(from, class, datagram.clone()));
    }

    #[inline]
    fn copy(&mut self, at: u64, from: u32, to: u32, class: Class, datagram: &Bytes) {
        self.tally.sent += 1;
        let borders = self.common.borders;
        let fate = match borders.refuse(from, to) {
            Some(loss) => Fate::Lost(loss),
            None => {
                let packet = borders.packet(at, (from, to), class, datagram.len());
                let sender = &mut self.senders[(packet.from_host.0 - self.first_host) as usize];
                N::fate(self.common.map, sender, &packet)
            }
        };
        self.record.effects.push(Effect::Copy { at, to, fate });
    }

    #[inline]
    fn event(&mut self, seen: Seen, event: M::Event) {
        self.record.effects.push(Effect::Event(seen, event));
    }

    #[inline]
    fn received(&mut self, seen: Seen, from: u32, datagram: &Bytes) {
        if self.record.arrivals {
            self.record.effects.push(Effect::Received(seen, from, datagram.clone()));
        }
    }

    fn lost(&mut self, at: u64, from: u32, to: u32, loss: Loss) {
        self.record.effects.push(Effect::Lost { at, from, to, loss });
    }

    fn invoke(&mut self, seen: Seen, token: u64, machine: &mut M) {
        let call = self.call.as_mut().expect("regions with calls are the main thread's");
        call(seen, token, machine);
    }
}

type Parts<'a, M, S> = (&'a mut [Node<M>], &'a mut [Host], &'a mut [S]);

/// Cuts the world into regions; and the region of each node.
///
/// A cut is where no host has nodes on both sides. Hosts whose machines the owner calls are in
/// regions of their own.
fn areas<'a, M: Machine, N: Divisible>(
    (mut nodes, mut hosts, mut senders): Parts<'a, M, N::Sender>,
    timers: &mut Timers,
    cores: usize,
    arrivals: bool,
) -> (Vec<Mutex<Area<'a, M, N>>>, Vec<u16>) {
    let cuts = cuts(nodes, hosts, cores * REGIONS_A_CORE);
    let (mut areas, mut area_of) = (Vec::new(), Vec::with_capacity(nodes.len()));
    let mut first = (0, 0);
    for (node, host) in cuts {
        let (own_nodes, other_nodes) = nodes.split_at_mut((node - first.0) as usize);
        let (own_hosts, other_hosts) = hosts.split_at_mut((host - first.1) as usize);
        let (own_senders, other_senders) = senders.split_at_mut((host - first.1) as usize);
        let mut own_timers = Timers::default();
        own_nodes.iter().for_each(|_| own_timers.add_node());
        area_of.resize(node as usize, areas.len() as u16);
        areas.push(Area {
            nodes: own_nodes,
            hosts: own_hosts,
            senders: own_senders,
            timers: own_timers,
            first,
            jobs: Vec::new(),
            end: 0,
            record: Record {
                turns: Vec::new(),
                effects: Vec::new(),
                soon: Vec::new(),
                soon_count: 0,
                arrivals,
            },
            tally: Tally::default(),
        });
        (nodes, hosts, senders, first) = (other_nodes, other_hosts, other_senders, (node, host));
    }
    for (at, node) in timers.drain() {
        let area: &mut Area<'_, M, N> = &mut areas[area_of[node as usize] as usize];
        area.timers.arm(node - area.first.0, at);
    }
    (areas.into_iter().map(Mutex::new).collect(), area_of)
}

/// Where regions end: the number of the next node and of the next host.
fn cuts<M>(nodes: &[Node<M>], hosts: &[Host], regions: usize) -> Vec<(u32, u32)> {
    let is_called = |node: &Node<M>| hosts[node.host as usize].nodes.len() == 1 && node.called;
    // The least host of the nodes from each one on.
    let mut later = vec![u32::MAX; nodes.len() + 1];
    for (index, node) in nodes.iter().enumerate().rev() {
        later[index] = later[index + 1].min(node.host);
    }
    let size = nodes.len().div_ceil(regions).max(1);
    let (mut cuts, mut hosts_before, mut begun) = (Vec::new(), 0, 0);
    for (index, pair) in nodes.windows(2).enumerate() {
        hosts_before = hosts_before.max(pair[0].host + 1);
        let is_wanted = index + 1 - begun >= size || is_called(&pair[0]) != is_called(&pair[1]);
        if is_wanted && hosts_before <= later[index + 1] && cuts.len() < usize::from(u16::MAX) {
            begun = index + 1;
            cuts.push((begun as u32, hosts_before));
        }
    }
    cuts.push((nodes.len() as u32, hosts.len() as u32));
    cuts
}

/// Hands regions out to threads, window after window.
struct Gate {
    /// The window and, in the low bits, how many of its regions are taken.
    ticket: AtomicU64,
    /// Regions that were worked on, in all windows.
    done: AtomicU64,
    regions: u64,
    /// Regions in which the owner calls machines: those are the main thread's.
    called: Vec<bool>,
    closed: AtomicBool,
}

/// Bits of the ticket that count regions. Threads that ask in vain count too.
const TAKEN_BITS: u32 = 24;

impl Gate {
    fn new(called: Vec<bool>) -> Self {
        let regions = called.len() as u64;
        let (ticket, done) = (AtomicU64::new(regions), AtomicU64::new(0));
        Self { ticket, done, regions, called, closed: AtomicBool::new(false) }
    }

    /// Opens the next window; all of its regions can be taken.
    fn open(&self) {
        let window = (self.ticket.load(Ordering::Relaxed) >> TAKEN_BITS) + 1;
        self.ticket.store(window << TAKEN_BITS, Ordering::Release);
    }

    /// The next region of the window; `None` when all are taken.
    fn take(&self) -> Option<usize> {
        let taken = |ticket: u64| ticket & ((1 << TAKEN_BITS) - 1);
        if taken(self.ticket.load(Ordering::Relaxed)) >= self.regions {
            return None;
        }
        let region = taken(self.ticket.fetch_add(1, Ordering::AcqRel));
        (region < self.regions).then_some(region as usize)
    }

    /// Takes regions until none is left.
    fn work<M: Machine, N: Divisible>(
        &self,
        areas: &[Mutex<Area<'_, M, N>>],
        common: &Common<'_, N>,
    ) {
        while let Some(region) = self.take() {
            if !self.called[region] {
                lock(&areas[region]).work(common, None);
            }
            self.done.fetch_add(1, Ordering::Release);
        }
    }

    /// What a thread does that is not the main one.
    fn help<M: Machine, N: Divisible>(
        &self,
        areas: &[Mutex<Area<'_, M, N>>],
        common: &Common<'_, N>,
    ) {
        let _closing = Closing(self);
        loop {
            let ticket = self.ticket.load(Ordering::Acquire);
            self.work(areas, common);
            wait(|| {
                self.ticket.load(Ordering::Acquire) >> TAKEN_BITS != ticket >> TAKEN_BITS
                    || self.closed.load(Ordering::Acquire)
            });
            if self.closed.load(Ordering::Acquire) {
                return;
            }
        }
    }

    /// Waits until every region was worked on in so many windows; false when a thread has failed.
    fn wait_for(&self, windows: u64) -> bool {
        let is_done = || self.done.load(Ordering::Acquire) == windows * self.regions;
        wait(|| is_done() || self.closed.load(Ordering::Acquire));
        is_done()
    }
}

/// Lets all threads go, also when its own thread panics.
struct Closing<'a>(&'a Gate);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
    }
}

fn wait(mut is_over: impl FnMut() -> bool) {
    let mut spins = 0;
    while !is_over() {
        spins += 1;
        if spins < SPINS { hint::spin_loop() } else { thread::yield_now() }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the main thread alone changes.
struct Main<'a, O> {
    now: &'a mut SimTime,
    queue: &'a mut Queue<Pending>,
    tally: &'a mut Tally,
    borders: &'a Borders,
    prng: &'a mut Prng,
    area_of: &'a [u16],
    observer: &'a mut O,
}

impl<O> Main<'_, O> {
    fn windows<M: Machine, N: Divisible>(
        &mut self,
        areas: &[Mutex<Area<'_, M, N>>],
        common: &Common<'_, N>,
        gate: &Gate,
        lookahead: u64,
        until: u64,
    ) -> Option<(u64, Pending)>
    where
        O: Observer<M, N>,
    {
        let mut windows = 0;
        loop {
            let mut guards: Vec<_> = areas.iter().map(lock).collect();
            let timer = guards.iter().map(|area| area.timers.first()).min().unwrap_or(u64::MAX);
            let first = self.queue.pop_until(timer.min(until));
            let start = first.as_ref().map_or(timer, |first| first.0);
            if start > until {
                return None;
            }
            let end = start.saturating_add(lookahead).min(until.saturating_add(1));
            let (end, stopped) = self.hand_out(first, end, &mut guards, &gate.called);
            guards.iter_mut().for_each(|area| area.end = end);
            drop(guards);
            gate.open();
            for (area, _) in areas.iter().zip(&gate.called).filter(|(_, called)| **called) {
                let mut call = |seen: Seen, token, machine: &mut M| {
                    self.observer.invoke(seen, token, machine);
                };
                lock(area).work(common, Some(&mut call));
            }
            gate.work(areas, common);
            windows += 1;
            if !gate.wait_for(windows) {
                // The scope of the threads passes the panic on.
                return None;
            }
            let mut guards: Vec<_> = areas.iter().map(lock).collect();
            self.merge(&mut guards, end);
            if stopped.is_some() {
                return stopped;
            }
        }
    }

    /// Gives regions what is due before `end`. When something is due that concerns the whole world,
    /// the window ends there.
    fn hand_out<M: Machine, N: Divisible>(
        &mut self,
        first: Option<(u64, Pending)>,
        end: u64,
        areas: &mut [MutexGuard<'_, Area<'_, M, N>>],
        called: &[bool],
    ) -> (u64, Option<(u64, Pending)>) {
        let (mut next, mut number) = (first, 0);
        while let Some((at, pending)) = next.take().or_else(|| self.queue.pop_until(end - 1)) {
            let Some(node) = pending.node() else { return (at, Some((at, pending))) };
            let region = usize::from(self.area_of[node as usize]);
            if matches!(pending, Pending::Invoke { .. }) && !called[region] {
                // The first call of a node: the next regions know of it.
                return (at, Some((at, pending)));
            }
            areas[region].jobs.push((at, number, pending));
            number += 1;
        }
        (end, None)
    }

    /// Carries out what the cores have recorded, in the order of one core.
    fn merge<M: Machine, N: Divisible>(
        &mut self,
        areas: &mut [MutexGuard<'_, Area<'_, M, N>>],
        end: u64,
    ) where
        O: Observer<M, N>,
    {
        let mut replays: Vec<_> = areas.iter_mut().map(|area| Replay::of(area)).collect();
        let mut heads: Vec<u64> = replays.iter().map(Replay::head).collect();
        let mut pushed = 0;
        loop {
            let (mut next, mut at) = (0, u64::MAX);
            for (region, &head) in heads.iter().enumerate() {
                let is_first = || replays[region].rank() < replays[next].rank();
                if head < at || (head == at && at != u64::MAX && is_first()) {
                    (next, at) = (region, head);
                }
            }
            if at == u64::MAX {
                return;
            }
            *self.now = (*self.now).max(SimTime(at));
            self.carry_out::<M, N>(&mut replays[next], &mut pushed, end);
            heads[next] = replays[next].head();
        }
    }

    fn carry_out<M: Machine, N: Divisible>(
        &mut self,
        replay: &mut Replay<'_, M::Event>,
        pushed: &mut u32,
        end: u64,
    ) where
        O: Observer<M, N>,
    {
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
                    let verdict = fate.drawn(self.prng);
                    let packet = self.borders.packet(at, (*from, to), *class, datagram.len());
                    self.observer.sent(&packet, datagram, verdict);
                    match verdict {
                        Verdict::Deliver(at) => {
                            assert!(at.0 >= end, "the lookahead is longer than a path");
                            let datagram = datagram.clone();
                            self.queue.push(at.0, Pending::Packet { from: *from, to, datagram });
                        }
                        Verdict::Lose(loss) => self.tally.lose(loss),
                        other => panic!("a path does not answer {other:?}"),
                    }
                }
                Effect::Push(at, pending) => self.queue.push(at, pending),
                Effect::Soon => {
                    replay.numbers.push(*pushed);
                    *pushed += 1;
                }
                Effect::Event(seen, event) => self.observer.event(seen, event),
                Effect::Received(seen, from, datagram) => {
                    self.observer.received(seen, NodeIndex(from), &datagram);
                }
                Effect::Lost { at, from, to, loss } => {
                    self.observer.lost(SimTime(at), NodeIndex(from), NodeIndex(to), loss);
                }
            }
        }
    }
}

/// The record of a region, while it is carried out.
struct Replay<'a, E> {
    turns: vec::Drain<'a, Turn>,
    effects: vec::Drain<'a, Effect<E>>,
    /// Effects that were carried out.
    place: u32,
    /// Which were put in the queue before which, for what came up in the window, over all regions.
    numbers: Vec<u32>,
}

impl<'a, E> Replay<'a, E> {
    fn of<M: Machine<Event = E>, N: Divisible>(area: &'a mut Area<'_, M, N>) -> Self {
        let record = &mut area.record;
        record.soon_count = 0;
        let (turns, effects) = (record.turns.drain(..), record.effects.drain(..));
        Self { turns, effects, place: 0, numbers: Vec::new() }
    }

    /// The time of the next turn.
    fn head(&self) -> u64 {
        self.turns.as_slice().first().map_or(u64::MAX, |turn| turn.at)
    }

    /// The place of the next turn among those of the same time. What came up in the window is here
    /// after that which put it in the queue, so it has its number.
    fn rank(&self) -> (u8, u32) {
        match self.turns.as_slice().first().map(|turn| turn.order) {
            Some(Order::Job(number)) => (0, number),
            Some(Order::Soon(own)) => (1, self.numbers[own as usize]),
            Some(Order::Timer(node)) => (2, node),
            None => (3, 0),
        }
    }
}
