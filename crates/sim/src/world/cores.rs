//! One run on several cores, with the results of one core.
//!
//! No packet arrives earlier than some time `L`, the lookahead, after the turn in which it was
//! sent: the processor's cost of sending and the least delay of the network. So in a window of
//! length `L` no host can influence another one, and the cores work on different hosts at the same
//! time. This is conservative synchronisation in windows, after Chandy and Misra (1979) and Nicol
//! (1993).
//!
//! ```text
//! main     | tell the observer, own regions, then help | merge the records | tell ...
//! others   | regions, one by one                       |      (wait)       |
//!          <----------------- window ----------------->
//! ```
//!
//! The result must be that of one core to the last bit. On one core, the order of events decides
//! which packet gets which random number, which of two packets of equal times is first in a queue,
//! and the digest. So a core changes only nodes, hosts, senders and the queue of the region that it
//! works on. Every other effect is recorded, and the main thread carries the records out in the
//! order of one core: by time, then by the order in which events were put in a queue, then timers
//! by node. Which core has worked on which region changes nothing. What only the observer hears is
//! told while the cores work on the next window.
//!
//! A fault, a token of the owner and a wake-up of the network concern the whole world. A window
//! ends before such an event, and one core goes on until the event has happened. While packets are
//! lost, doubled or delayed by chance before their path is known, the run goes on with one core.

mod merge;
mod region_queue;

use std::sync::{Mutex, PoisonError};
use std::thread;

use bytes::Bytes;
use evenfall_core::time::nanos;
use evenfall_core::{Machine, TrafficClass};

use super::effects::EffectSink;
use super::fabric::{Borders, Fabric, Pending};
use super::node::Node;
use super::prefetch::Prefetch;
use super::region::Region;
use super::{World, WorldTally};
use crate::host::Host;
use crate::network::{Divisible, Fate, Loss};
use crate::observer::{Observer, Seen};
use crate::queue::Queue;
use crate::timers::Timers;
use crate::{HostIndex, SimTime};
use merge::Main;
use region_queue::{Closing, RegionQueue, lock};

/// Jobs whose nodes are read from memory together: about as many as the memory delivers at a time.
const WARM_MAX: usize = 32;
/// Regions for each core: enough that a core that is held up leaves work to the others.
const REGIONS_A_CORE: usize = 6;
/// Below this lookahead a window holds too little work for the two times that cores meet in it.
const LOOKAHEAD_MIN: u64 = 500;

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
            if let Some(lookahead) = self.lookahead() {
                self.windows(cores, lookahead, until, observer);
            }
            // The next thing concerns the whole world. Before it and after it, cores may be able to
            // work side by side, so that one core goes no further.
            let worldwide = self.worldwide;
            while self.worldwide == worldwide {
                if !self.step(until, observer) {
                    self.now = self.now.max(until);
                    return;
                }
            }
        }
    }

    /// The time from a turn to the arrival of the first packet that it can send; `None` when cores
    /// cannot work side by side.
    fn lookahead(&mut self) -> Option<u64> {
        if self.fabric.packet_faults.is_some() {
            return None;
        }
        self.fabric.network.divide()?;
        let sending = self.hosts.iter().map(Host::least_sending).min()?;
        // What a port forwards by itself leaves without any cost of the processor.
        let forwards = self.nodes.iter().any(|node| node.forwarder.is_some());
        let lookahead = nanos(self.fabric.network.least()) + if forwards { 0 } else { sending };
        (lookahead >= LOOKAHEAD_MIN).then_some(lookahead)
    }

    /// Runs window after window, up to the first event that concerns the whole world.
    fn windows<O: Observer<M, N>>(
        &mut self,
        cores: usize,
        lookahead: u64,
        until: SimTime,
        observer: &mut O,
    ) {
        let Self { now, nodes, hosts, timers, fabric, prefetch, .. } = self;
        let Fabric { network, queue, tally, borders, prng, .. } = fabric;
        let waiting = queue.drain();
        // Nothing at this time or later happens here.
        let mut limit = until.0.saturating_add(1);
        for (at, pending) in &waiting {
            match *pending {
                Pending::Invoke { node, .. } => nodes[node as usize].called = true,
                _ if pending.node().is_none() => limit = limit.min(*at),
                _ => {}
            }
        }
        let (map, senders) = network.divide().expect("the lookahead has asked");
        let (follows, common) = (observer.follows_packets(), Common { map, borders });
        let whole = Whole { nodes, hosts, senders, prefetch: *prefetch };
        let (mut areas, area_of) = areas(whole, timers, cores, follows);
        areas.iter_mut().for_each(|area| area.queue.begin_at(now.0));
        let records = areas.iter().map(|_| Record::new(follows)).collect();
        let (number, untold) = (waiting.len() as u64, Vec::new());
        let area_of = &area_of;
        let mut main =
            Main { now, tally, borders, prng, observer, area_of, number, follows, records, untold };
        let mut worldwide = Vec::new();
        for (number, (at, pending)) in (0..).zip(waiting) {
            match pending.node() {
                Some(node) => areas[main.region_of(node)].put(at, number, pending),
                None => worldwide.push((at, number, pending)),
            }
        }
        let is_called = |area: &Area<'_, M, N>| area.nodes.iter().any(|node| node.called);
        let gate = RegionQueue::new(areas.iter().map(is_called).collect());
        let areas: Vec<_> = areas.into_iter().map(Mutex::new).collect();
        thread::scope(|scope| {
            let _closing = Closing(&gate);
            for _ in 1..cores {
                scope.spawn(|| gate.help(&areas, &common));
            }
            main.windows(&areas, &common, &gate, lookahead, limit);
        });
        let mut waiting = worldwide;
        for area in areas {
            let mut area = area.into_inner().unwrap_or_else(PoisonError::into_inner);
            let first = area.first.0;
            area.timers.drain().for_each(|(at, node)| timers.arm(first + node, at));
            let queued = area.queue.drain().into_iter();
            waiting.extend(queued.map(|(at, (number, pending))| (at, number, pending)));
            waiting.append(&mut area.incoming);
            tally.add(&area.tally);
        }
        waiting.sort_unstable_by_key(|&(at, number, _)| (at, number));
        queue.begin_at(now.0);
        waiting.into_iter().for_each(|(at, _, pending)| queue.push(at, pending));
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
    prefetch: Prefetch<M>,
    /// The pending events of the nodes. The number orders events of equal times.
    queue: Queue<(u64, Pending)>,
    /// What the last window has put in the queue, in order.
    incoming: Vec<(u64, u64, Pending)>,
    /// The end of the window: nothing at this time or later happens in it.
    end: u64,
    /// Nothing happens before this time.
    next: u64,
    /// What is due in the window.
    jobs: Vec<(u64, u64, Pending)>,
    record: Record<M::Event>,
    tally: WorldTally,
}

/// What a core did with a region in a window.
struct Record<E> {
    turns: Vec<Turn>,
    effects: Vec<Effect>,
    /// What only the observer hears.
    said: Vec<Said<E>>,
    /// The events that came up in the window for a node of the region itself, the next event last.
    soon: Vec<(u64, u32, Pending)>,
    soon_count: u32,
    /// Whether the observer follows packets.
    follows: bool,
}

impl<E> Record<E> {
    fn new(follows: bool) -> Self {
        let (turns, effects, said, soon) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { turns, effects, said, soon, soon_count: 0, follows }
    }

    #[inline]
    fn say(&mut self, said: Said<E>) {
        self.said.push(said);
        self.effects.push(Effect::Said);
    }
}

/// Something that happened at a time, and where its effects end.
#[derive(Clone, Copy)]
struct Turn {
    at: u64,
    order: Order,
    end: u32,
}

/// The order of events of equal times.
#[derive(Clone, Copy)]
enum Order {
    /// A thing of this number, which waited in the queue when the window began.
    Job(u64),
    /// The thing that its region put in the queue during the window, counted from zero.
    Soon(u32),
    /// The timer of this node.
    Timer(u32),
}

/// What a turn did beyond its own node and host. A run makes several effects for each packet, so
/// that an effect is small.
enum Effect {
    Note(u64, u32),
    Transmit(u32, TrafficClass, Bytes),
    Copy {
        at: u64,
        to: u32,
        fate: Fate,
    },
    Push(u64, Pending),
    /// Something was put in the queue that came up in the same window.
    Soon,
    /// The next of [`Record::said`].
    Said,
}

/// What only the observer hears.
enum Said<E> {
    Event(Seen, E),
    Received(Seen, u32, Bytes),
    Lost { at: u64, from: u32, to: u32, loss: Loss },
}

type Call<'a, M> = &'a mut dyn FnMut(Seen, u64, &mut M);

impl<M: Machine, N: Divisible> Area<'_, M, N> {
    /// Something is to happen in a later window.
    #[inline]
    fn put(&mut self, at: u64, number: u64, pending: Pending) {
        self.next = self.next.min(at);
        self.incoming.push((at, number, pending));
    }

    /// Works through a window.
    fn work(&mut self, common: &Common<'_, N>, call: Option<Call<'_, M>>) {
        let Self { nodes, hosts, senders, timers, first, prefetch, queue, record, tally, .. } =
            self;
        for (at, number, pending) in self.incoming.drain(..) {
            queue.push(at, (number, pending));
        }
        let (end, first_host) = (self.end, first.1);
        while let Some((at, (number, pending))) = queue.pop_until(end - 1) {
            self.jobs.push((at, number, pending));
        }
        let mut region = Region { nodes, hosts, timers, first: *first, prefetch: *prefetch };
        let mut out = Recorder { record, tally, senders, common, end, first_host, call };
        let mut jobs = self.jobs.drain(..);
        let mut unread = jobs.len();
        loop {
            let job = jobs.as_slice().first().map_or(u64::MAX, |job| job.0);
            if unread > 0 && jobs.len() == unread {
                let few = jobs.as_slice().iter().take(WARM_MAX);
                region.warm_for(few.map(|job| &job.2), |host| out.send_ready(host, 0));
                unread = unread.saturating_sub(WARM_MAX);
            }
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
                let Some((at, node)) = region.pop_timer(end - 1, &out) else { break };
                region.fire(at, node, &mut out);
                (at, Order::Timer(node))
            } else {
                break;
            };
            let end = out.record.effects.len() as u32;
            out.record.turns.push(Turn { at, order, end });
        }
        self.next = queue.earliest().min(region.timers.first()).max(end);
    }
}

impl<E, O> Main<'_, E, O> {
    /// Runs window after window, up to a time.
    fn windows<M: Machine<Event = E>, N: Divisible>(
        &mut self,
        areas: &[Mutex<Area<'_, M, N>>],
        common: &Common<'_, N>,
        gate: &RegionQueue,
        lookahead: u64,
        limit: u64,
    ) where
        O: Observer<M, N>,
    {
        let mut windows = 0;
        loop {
            let mut guards: Vec<_> = areas.iter().map(lock).collect();
            let start = guards.iter().map(|area| area.next).min().unwrap_or(u64::MAX);
            if start >= limit {
                drop(guards);
                return self.tell::<M, N>();
            }
            let end = start.saturating_add(lookahead).min(limit);
            guards.iter_mut().for_each(|area| area.end = end);
            drop(guards);
            gate.open();
            self.tell::<M, N>();
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
                return;
            }
            let mut guards: Vec<_> = areas.iter().map(lock).collect();
            self.merge(&mut guards, end);
        }
    }
}

/// Effects are recorded.
struct Recorder<'a, 'b, 'c, M: Machine, N: Divisible> {
    record: &'a mut Record<M::Event>,
    tally: &'a mut WorldTally,
    senders: &'a mut [N::Sender],
    common: &'a Common<'b, N>,
    end: u64,
    first_host: u32,
    call: Option<Call<'c, M>>,
}

impl<M: Machine, N: Divisible> EffectSink<M> for Recorder<'_, '_, '_, M, N> {
    #[inline]
    fn tally(&mut self) -> &mut WorldTally {
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
    fn transmit(&mut self, from: u32, class: TrafficClass, datagram: &Bytes) {
        self.record.effects.push(Effect::Transmit(from, class, datagram.clone()));
    }

    #[inline]
    fn copy(&mut self, at: u64, from: u32, to: u32, class: TrafficClass, datagram: &Bytes) {
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
        self.record.say(Said::Event(seen, event));
    }

    #[inline]
    fn received(&mut self, seen: Seen, from: u32, datagram: &Bytes) {
        if self.record.follows {
            self.record.say(Said::Received(seen, from, datagram.clone()));
        }
    }

    fn lost(&mut self, at: u64, from: u32, to: u32, loss: Loss) {
        self.record.say(Said::Lost { at, from, to, loss });
    }

    fn invoke(&mut self, seen: Seen, token: u64, machine: &mut M) {
        let call = self.call.as_mut().expect("regions with calls are the main thread's");
        call(seen, token, machine);
    }
}

/// A world that is to be cut.
struct Whole<'a, M, S> {
    nodes: &'a mut [Node<M>],
    hosts: &'a mut [Host],
    senders: &'a mut [S],
    prefetch: Prefetch<M>,
}

/// Cuts the world into regions; and the region of each node.
///
/// A cut is where no host has nodes on both sides. Hosts whose machines the owner calls are in
/// regions of their own.
fn areas<'a, M: Machine, N: Divisible>(
    whole: Whole<'a, M, N::Sender>,
    timers: &mut Timers,
    cores: usize,
    follows: bool,
) -> (Vec<Area<'a, M, N>>, Vec<u16>) {
    let Whole { mut nodes, mut hosts, mut senders, prefetch } = whole;
    let cuts = cuts(nodes, hosts, cores * REGIONS_A_CORE);
    let (mut areas, mut area_of) = (Vec::new(), Vec::with_capacity(nodes.len()));
    let mut first = (0, 0);
    for (node, host) in cuts {
        let own_nodes = nodes.split_off_mut(..(node - first.0) as usize).expect("a cut ascends");
        let own_hosts = hosts.split_off_mut(..(host - first.1) as usize).expect("a cut ascends");
        let own_senders = senders.split_off_mut(..(host - first.1) as usize);
        let mut own_timers = Timers::default();
        own_nodes.iter().for_each(|_| own_timers.add_node());
        area_of.resize(node as usize, areas.len() as u16);
        areas.push(Area {
            nodes: own_nodes,
            hosts: own_hosts,
            senders: own_senders.expect("a cut ascends"),
            timers: own_timers,
            first,
            prefetch,
            queue: Queue::new(),
            incoming: Vec::new(),
            end: 0,
            next: u64::MAX,
            jobs: Vec::new(),
            record: Record::new(follows),
            tally: WorldTally::default(),
        });
        first = (node, host);
    }
    for (at, node) in timers.drain() {
        let area: &mut Area<'_, M, N> = &mut areas[area_of[node as usize] as usize];
        area.timers.arm(node - area.first.0, at);
        area.next = area.next.min(at);
    }
    (areas, area_of)
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
