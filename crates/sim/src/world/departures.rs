//! Sending on threads of their own.
//!
//! A program that owns its network card receives on one thread and sends on several. The thread
//! that receives hands a transmit to a sending thread and goes on. The sending thread makes the
//! copies one after the other and puts each into its own queue of the card. The card takes the
//! copies of one queue one after the other, and the queues side by side:
//!
//! ```text
//! receives   |turn|turn|        ...          cost of the turn, and of handing over
//! thread 0        |c|c|c|                    time of the processor for each copy
//! its queue         |====|====|====|         time of the card for each copy
//! thread 1             |c|c|c|
//! its queue              |====|====|====|    leave between the copies of thread 0
//! ```
//!
//! A network takes the packets of a host in the order of their departure, so that copies wait here
//! until they leave. One event of the queue brings each copy, or several that no later turn can
//! come before.

use std::collections::VecDeque;

use bytes::Bytes;
use evenfall_core::time::nanos;
use evenfall_core::{Destination, Machine, Sent, StampedBy, Token, TrafficClass};

use super::effects::EffectSink;
use super::fabric::{Pending, datagram};
use super::node::{Input, NEVER, Node};
use super::node_number;
use super::region::Region;
use super::turn::{SEND_BATCH, SEND_BATCH_BUSY};
use crate::HostIndex;
use crate::host::{Host, HostSpec};

/// A copy in a queue of the card.
struct LeavingCopy {
    at: u64,
    /// The transmit to which the copy belongs.
    transmit: u64,
    to: u32,
    class: TrafficClass,
    datagram: Bytes,
    /// What the machine wants to be told when the copy, the last of its transmit, has left.
    token: Option<Token>,
}

/// A thread that sends.
#[derive(Default)]
struct SendThread {
    /// When the thread has made its last copy.
    made: u64,
    /// When the card has sent the last copy of the thread's queue.
    sent: u64,
    /// Copies that have not left, in order.
    queue: VecDeque<LeavingCopy>,
}

/// The sending threads of a node.
pub(super) struct Departures {
    threads: Box<[SendThread]>,
    /// The longest queue of a thread, nanoseconds.
    queue_max: u64,
    transmits: u64,
    /// The time of the pending event. An event of another time is out of date.
    announced: u64,
}

impl Departures {
    /// The sending threads of a node on such a host; `None` where the host has none.
    pub(super) fn of(spec: &HostSpec) -> Option<Box<Self>> {
        let threads: Box<[_]> = (0..spec.send_threads).map(|_| SendThread::default()).collect();
        let queue_max = nanos(spec.send_queue);
        let departures = Self { threads, queue_max, transmits: 0, announced: NEVER };
        (!departures.threads.is_empty()).then(|| Box::new(departures))
    }

    /// The process has died at this time.
    pub(super) fn clear(&mut self, now: u64) {
        for thread in &mut self.threads {
            *thread = SendThread { made: now, sent: now, queue: VecDeque::new() };
        }
        self.announced = NEVER;
    }

    /// The thread whose queue is empty first.
    fn idlest_thread(&mut self) -> &mut SendThread {
        self.threads.iter_mut().min_by_key(|thread| thread.sent).expect("there is a thread")
    }

    /// The first departure, when no event that comes as early is pending.
    pub(super) fn announce(&mut self) -> Option<u64> {
        let first =
            self.threads.iter().filter_map(|thread| Some(thread.queue.front()?.at)).min()?;
        (first < self.announced).then(|| {
            self.announced = first;
            first
        })
    }

    /// Takes out the copy that leaves first, when it leaves up to the time `safe`. A copy whose
    /// departure is to be told waits until `now`.
    fn next_until(&mut self, now: u64, safe: u64) -> Option<LeavingCopy> {
        let head = |thread: &SendThread| thread.queue.front().map_or(NEVER, |copy| copy.at);
        let thread = self.threads.iter_mut().min_by_key(|thread| head(thread))?;
        thread.queue.pop_front_if(|copy| copy.at <= if copy.token.is_some() { now } else { safe })
    }
}

/// Hands transmits to the sending threads as fast as the queues take them. Returns the time at
/// which the thread that receives is done with it.
pub(super) fn hand_over<M: Machine, O: EffectSink<M>>(
    node: &mut Node<M>,
    host: &mut Host,
    index: u32,
    begun: u64,
    out: &mut O,
) -> u64 {
    let here = HostIndex(node.host);
    let mut cursor = begun;
    node.more = false;
    let batch = if node.inbox.is_empty() { SEND_BATCH } else { SEND_BATCH_BUSY };
    for _ in 0..batch {
        let mut ready = out.send_ready(here, cursor);
        let Some((machine, groups, departures)) = node.sending_parts() else { return cursor };
        let queue_max = departures.queue_max;
        let transmit_number = departures.transmits;
        let thread = departures.idlest_thread();
        ready = ready.max(thread.sent.saturating_sub(queue_max));
        if ready > cursor {
            node.send_at = ready;
            node.more = true;
            return cursor;
        }
        let Some(transmit) = machine.poll_transmit(host.clock.local(cursor)) else {
            return cursor;
        };
        cursor = host.work(cursor, host.costs.send);
        let (class, token) = (transmit.class, transmit.token);
        let one;
        let members = match transmit.to {
            Destination::One(address) => {
                one = [node_number(address)];
                &one[..]
            }
            Destination::Group(group) => Node::<M>::members(groups, group),
        };
        let bytes = datagram(transmit);
        for (place, &to) in members.iter().enumerate() {
            thread.made = host.work(thread.made.max(cursor), host.costs.copy);
            thread.sent = thread.sent.max(thread.made) + host.costs.card;
            let is_last = place + 1 == members.len();
            thread.queue.push_back(LeavingCopy {
                at: thread.sent,
                transmit: transmit_number,
                to,
                class,
                datagram: bytes.clone(),
                token: token.filter(|_| is_last),
            });
        }
        let is_empty = members.is_empty();
        departures.transmits += 1;
        if is_empty {
            // The transmit goes into the digest although no copy of it leaves.
            out.transmit(index, class, &bytes);
            let unsent = |token| Sent { token, at: None, stamped_by: StampedBy::Kernel };
            node.inbox.extend(token.map(unsent).map(Input::Sent));
        }
    }
    node.more = true;
    node.send_at = cursor;
    cursor
}

impl<M: Machine> Region<'_, M> {
    /// Copies of a node's sending threads leave.
    pub(super) fn leave<O: EffectSink<M>>(&mut self, at: u64, index: u32, out: &mut O) {
        let (node, host) = self.node(index);
        let Some(departures) = node.departures.as_deref_mut() else { return };
        if departures.announced != at {
            return;
        }
        departures.announced = NEVER;
        // A turn that is still to come cannot send anything before this time.
        let safe = at + host.costs.copy + host.costs.card;
        let (mut begun, mut told) = (None, Vec::new());
        while let Some(copy) = departures.next_until(at, safe) {
            if begun.replace(copy.transmit) != Some(copy.transmit) {
                out.transmit(index, copy.class, &copy.datagram);
            }
            out.copy(copy.at, index, copy.to, copy.class, &copy.datagram);
            let left = Some(host.clock.local(copy.at));
            let sent = |token| Sent { token, at: left, stamped_by: StampedBy::Kernel };
            told.extend(copy.token.map(sent));
        }
        if let Some(next) = departures.announce() {
            out.push(next, Pending::Leave { node: index });
        }
        for sent in told {
            self.offer(at, index, Input::Sent(sent), out);
        }
    }
}
