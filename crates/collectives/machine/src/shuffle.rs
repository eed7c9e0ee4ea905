//! The machine: its operations, the datagrams that arrive before or after their operation, and the
//! pace.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use evenfall_core::{
    Arrival, ClockReading, Destination, Machine, Malformed, Timestamp, TrafficClass, Transmit,
};

use crate::buffers::Buffers;
use crate::config::ShuffleConfig;
use crate::error::{RankFailure, StartError};
use crate::operation::{Happened, Operation};
use crate::rtt::RoundTrip;
use crate::wire::{ABORT_DISAGREES, ShuffleHeader, ShuffleKind};

/// Answers for ended operations that may wait to be sent. Further answers are dropped, and the
/// members that need them ask again.
const ANSWERS_MAX: usize = 4_096;
/// Ranges of operation numbers that a machine remembers. Each sort or query takes one range, so
/// members that ask about the last 64 of them get an answer.
const RANGES_MAX: usize = 64;

/// A range of operation numbers, of which each may begin here or not.
#[derive(Clone, Debug)]
struct Reserved {
    numbers: Range<u64>,
    /// Whether operations of the range may still begin here.
    is_open: bool,
    /// Why no further operation of the range begins here.
    failure: Option<RankFailure>,
}

/// An operation as one member sees it.
#[derive(Clone, Debug)]
pub struct ShufflePlan {
    /// Number of the operation: new for each operation, and the same for all members.
    pub operation: u64,
    /// The own rank.
    pub rank: usize,
    /// Addresses of all ranks.
    pub members: Vec<SocketAddr>,
    /// For an operation of some ranks of a group: their ascending numbers in the group, by their
    /// place in `members`. Datagrams and failures then name ranks by these numbers; everything
    /// else in the plan and in events counts places. Empty when the members are the whole group.
    pub among: Arc<[u16]>,
    /// The message for each rank.
    pub sends: Vec<Outbound>,
    /// For each rank, whether a message from it is expected.
    pub expects: Vec<bool>,
}

/// The message for one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outbound {
    /// No message.
    Nothing,
    /// These bytes, which may be empty.
    Now(Bytes),
    /// A message that [`Shuffle::send`] brings later.
    Later,
}

impl ShufflePlan {
    /// A plan in which each rank sends a message to each rank.
    pub fn shuffle(
        operation: u64,
        rank: usize,
        members: Vec<SocketAddr>,
        messages: Vec<Bytes>,
    ) -> Self {
        let expects = vec![true; members.len()];
        let sends = messages.into_iter().map(Outbound::Now).collect();
        Self { operation, rank, members, among: Arc::default(), sends, expects }
    }

    fn check(&self) -> Result<(), StartError> {
        let members = self.members.len();
        if members == 0 || members > usize::from(u16::MAX) {
            return Err(StartError::Members { members });
        }
        if self.rank >= members {
            return Err(StartError::Rank { rank: self.rank, members });
        }
        let among = &self.among;
        if !among.is_empty() && (among.len() != members || !among.is_sorted_by(|a, b| a < b)) {
            return Err(StartError::Among { rank: self.rank });
        }
        if self.sends.len() != members || self.expects.len() != members {
            let messages = self.sends.len().min(self.expects.len());
            return Err(StartError::Messages { messages, members });
        }
        for (to, send) in self.sends.iter().enumerate() {
            if let Outbound::Now(body) = send
                && body.len() as u64 > u64::from(u32::MAX)
            {
                return Err(StartError::TooLong { to, bytes: body.len() });
            }
        }
        Ok(())
    }
}

/// An event of the shuffle for its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShuffleEvent {
    /// A message has arrived in full. Messages come in any order, each exactly once.
    Message {
        /// Operation of the message.
        operation: u64,
        /// Rank that sent the message, as its place among the members of the operation.
        from: u16,
        /// Bytes of the message.
        body: Bytes,
    },
    /// All expected messages have arrived. Messages that this rank sent may still be under way, and
    /// the operation may still fail.
    Here {
        /// Operation whose messages are here.
        operation: u64,
    },
    /// All expected messages have arrived, and all sent messages were received.
    Completed {
        /// Operation that has completed.
        operation: u64,
    },
    /// The operation has failed, and no more events of it follow.
    Failed {
        /// Operation that has failed.
        operation: u64,
        /// Cause of the failure, with the rank to blame.
        failure: RankFailure,
    },
}

/// Counts of what a machine did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShuffleCounters {
    /// Packets with payload sent, repeats included.
    pub data_sent: u64,
    /// Packets with payload that were sent again.
    pub data_again: u64,
    /// Datagrams without payload sent.
    pub control_sent: u64,
    /// Packets received a second time.
    pub duplicates: u64,
    /// Datagrams of unknown or ended operations, and datagrams from addresses of no member.
    pub foreign: u64,
    /// Datagrams for operations that had not begun, dropped because they were too many or too old.
    pub staged_dropped: u64,
    /// Answers that were dropped because too many answers waited.
    pub answers_dropped: u64,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    operation: u64,
    me: u16,
    agreement: u32,
    failure: Option<RankFailure>,
}

/// What an ABORT says about a failure: whether two ranks disagree, and the rank to blame.
fn abort_words(failure: RankFailure) -> (u32, u32) {
    let offset = if failure.is_disagreement() { ABORT_DISAGREES } else { 0 };
    (offset, u32::from(failure.rank()))
}

/// One rank that takes part in operations. The documentation of the crate shows how to drive it.
#[derive(Debug)]
pub struct Shuffle {
    config: ShuffleConfig,
    operations: BTreeMap<u64, Operation>,
    ended: VecDeque<Ended>,
    staged: VecDeque<(Timestamp, u64, Arrival)>,
    staged_bytes: usize,
    answers: VecDeque<(SocketAddr, ShuffleHeader)>,
    events: VecDeque<ShuffleEvent>,
    counters: ShuffleCounters,
    /// Time at which the link is free again, in picoseconds.
    free_ps: u128,
    /// Time at which the machine wants to be pulled again, when data waits for the pace alone.
    paced_until: Option<Timestamp>,
    /// The own rank in operations that have not begun here, if the rank is the same in all
    /// operations.
    rank: Option<u16>,
    /// Number of the operation that began last.
    latest: Option<u64>,
    reserved: VecDeque<Reserved>,
    /// Round trips measured in operations that have ended.
    rtt: RoundTrip,
    buffers: Buffers,
}

impl Shuffle {
    /// A machine without operations.
    pub fn new(config: ShuffleConfig) -> Self {
        Self {
            operations: BTreeMap::new(),
            ended: VecDeque::new(),
            staged: VecDeque::new(),
            staged_bytes: 0,
            answers: VecDeque::new(),
            events: VecDeque::new(),
            counters: ShuffleCounters::default(),
            free_ps: 0,
            paced_until: None,
            rank: None,
            latest: None,
            reserved: VecDeque::new(),
            rtt: RoundTrip::default(),
            buffers: Buffers::new(config.kept_bytes_max),
            config,
        }
    }

    /// This machine has the same rank in all operations, and operations begin in the order of their
    /// numbers. When a member asks about an operation that this machine has not begun, the machine
    /// can then answer that this rank is alive.
    pub fn set_rank(&mut self, rank: u16) {
        self.rank = Some(rank);
    }

    /// Operations of these numbers may begin here in any order, or never. A member that asks about
    /// one of them is told that this rank is alive.
    pub fn reserve(&mut self, numbers: Range<u64>) {
        self.latest = self.latest.max(numbers.end.checked_sub(1));
        self.reserved.push_back(Reserved { numbers, is_open: true, failure: None });
        while self.reserved.len() > RANGES_MAX {
            self.reserved.pop_front();
        }
    }

    /// No further operation of a reserved range begins here. With a failure, running operations of
    /// the range fail, and a member that asks about any other operation of the range is told of the
    /// failure.
    pub fn release(&mut self, first: u64, failure: Option<RankFailure>) {
        let Some(range) = self.reserved.iter_mut().find(|range| range.numbers.start == first)
        else {
            return;
        };
        (range.is_open, range.failure) = (false, failure);
        let numbers = range.numbers.clone();
        let early = self.staged.iter().filter(|staged| numbers.contains(&staged.1));
        let askers: Vec<_> = early.map(|(_, _, arrival)| arrival.clone()).collect();
        let Some(failure) = failure else { return };
        let running: Vec<u64> = self.operations.range(numbers).map(|(&number, _)| number).collect();
        running.into_iter().for_each(|number| self.give_up(number, failure));
        for arrival in askers {
            if let Ok(header) = ShuffleHeader::decode(&arrival.datagram) {
                self.answer_for_abandoned(&header, arrival.from);
            }
        }
    }

    /// Tells a member that an operation of a failed range does not begin here any more.
    fn answer_for_abandoned(&mut self, header: &ShuffleHeader, from: SocketAddr) -> bool {
        let number = header.operation;
        let failed = |range: &&Reserved| range.numbers.contains(&number) && range.failure.is_some();
        let failure = self.reserved.iter().rev().find(failed).and_then(|range| range.failure);
        let (Some(failure), Some(rank)) = (failure, self.rank) else { return false };
        if header.kind != ShuffleKind::Abort {
            let (kind, class) = (ShuffleKind::Abort, TrafficClass::Control);
            let (offset, extra) = abort_words(failure);
            let answer =
                ShuffleHeader { kind, class, from: rank, offset, length: 0, extra, ..*header };
            self.answer(from, answer);
        }
        true
    }

    /// Begins an operation. Members may begin at different times. Datagrams that arrived early are
    /// handled now.
    ///
    /// # Errors
    /// [`StartError`]. No operation has begun then.
    pub fn start(&mut self, now: Timestamp, plan: ShufflePlan) -> Result<(), StartError> {
        self.start_as(now, plan, 0)
    }

    /// Begins an operation that all members describe by the same number, `about`. A member that
    /// states another number disagrees, and the operation fails and names that member.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn start_as(
        &mut self,
        now: Timestamp,
        plan: ShufflePlan,
        about: u32,
    ) -> Result<(), StartError> {
        plan.check()?;
        let number = plan.operation;
        let known = self.ended.iter().any(|ended| ended.operation == number);
        if known || self.operations.contains_key(&number) {
            return Err(StartError::Known { operation: number });
        }
        let me = plan.rank;
        self.latest = self.latest.max(Some(number));
        let (rank, lasting) = ((number, me as u16), (self.rtt, self.buffers.clone()));
        let members = (plan.members, plan.among);
        let mut operation = Operation::new(&self.config, now, rank, members, lasting);
        operation.agreement ^= about;
        for (to, send) in plan.sends.into_iter().enumerate() {
            if send == Outbound::Nothing {
                continue;
            }
            if to == me {
                if let Outbound::Now(body) = send {
                    let from = me as u16;
                    self.events.push_back(ShuffleEvent::Message { operation: number, from, body });
                }
                continue;
            }
            operation.sender.messages[to].wanted = true;
            operation.sender.open += 1;
            if let Outbound::Now(body) = send {
                operation.sender.offer(to as u16, body);
            }
        }
        for (from, _) in plan.expects.iter().enumerate().filter(|&(f, &e)| e && f != me) {
            operation.receiver.messages[from].expected = true;
            operation.receiver.open += 1;
        }
        operation.begin(&self.config);
        self.operations.insert(number, operation);
        self.settle(number);
        // Members that began earlier may have sent packets of this operation already.
        self.unstage(now, number);
        Ok(())
    }

    /// Hands in a message that the plan of its operation lists as [`Outbound::Later`]. A message
    /// for an operation that has failed is dropped.
    ///
    /// # Errors
    /// [`RankFailure::Unlisted`] when the plan has no message for this rank, or the message was
    /// handed in before. The caller must then end the operation with [`Self::give_up`].
    pub fn send(&mut self, operation: u64, to: usize, body: Bytes) -> Result<(), RankFailure> {
        let unlisted = |rank| Err(RankFailure::Unlisted { rank, to: to as u16 });
        let Some(running) = self.operations.get_mut(&operation) else {
            // An operation that has completed has sent all messages of its plan.
            return match self.completed(operation) {
                Some(ended) => unlisted(ended.me),
                None => Ok(()),
            };
        };
        let waits = |message: &crate::sender::Outgoing| message.open() && message.body.is_none();
        if !running.sender.messages.get(to).is_some_and(waits) {
            let unlisted = RankFailure::Unlisted { rank: running.me, to: to as u16 };
            return Err(unlisted.renamed(|place| running.name(place)));
        }
        running.offer(&self.config, to as u16, body);
        Ok(())
    }

    fn completed(&mut self, operation: u64) -> Option<&mut Ended> {
        self.ended.iter_mut().find(|e| e.operation == operation && e.failure.is_none())
    }

    /// Fails an operation for a reason that only the owner of its messages can see, and tells all
    /// members. An operation that has completed at this rank fails too, and a member that asks
    /// about the operation later is told of the failure.
    pub fn give_up(&mut self, operation: u64, failure: RankFailure) {
        if let Some(ended) = self.completed(operation) {
            ended.failure = Some(failure);
            self.events.push_back(ShuffleEvent::Failed { operation, failure });
        }
        self.fail(operation, failure);
    }

    /// Sets the bytes that the slowest receiver misses, for windows by equation 3.14. The caller
    /// knows them from a better source than the built-in all-reduce: a switch, or the oracle of a
    /// simulator.
    pub fn set_slowest(&mut self, operation: u64, bytes: u64) {
        if let Some(running) = self.operations.get_mut(&operation) {
            running.set_slowest(bytes);
        }
    }

    /// Bytes that an operation still misses, counted over the messages whose length is known.
    pub fn missing_bytes(&self, operation: u64) -> u64 {
        self.operations.get(&operation).map_or(0, |running| running.receiver.missing_bytes)
    }

    /// Progress of an operation: messages with at least one byte here, complete messages, and bytes
    /// of all messages. `None` when the operation has ended or not begun.
    pub fn progress(&self, operation: u64) -> Option<(usize, usize, u64)> {
        Some(self.operations.get(&operation)?.receiver.progress())
    }

    /// Number of operations that run.
    pub fn running(&self) -> usize {
        self.operations.len()
    }

    /// Counts so far.
    pub fn counters(&self) -> ShuffleCounters {
        let mut counters = self.counters;
        counters.duplicates += self.operations.values().map(|o| o.receiver.duplicates).sum::<u64>();
        counters.data_again += self.operations.values().map(|o| o.sender.sent_again).sum::<u64>();
        counters
    }

    /// Tells a member that asks about an operation which has not begun here that this rank is
    /// alive. A message that is announced for the first time is no question.
    fn answer_for_later(&mut self, header: &ShuffleHeader, from: SocketAddr, datagram: &Bytes) {
        let again = || self.staged.iter().any(|(_, _, staged)| staged.datagram == datagram);
        if let Some(rank) = self.rank
            && datagram.len() == crate::wire::HEADER_BYTES
            && self.may_begin(header.operation)
            && (header.kind == ShuffleKind::Resend || header.kind == ShuffleKind::Data && again())
        {
            let (kind, class) = (ShuffleKind::Wait, TrafficClass::Control);
            let answer = ShuffleHeader {
                kind,
                class,
                from: rank,
                offset: 0,
                length: 0,
                extra: 0,
                ..*header
            };
            self.answer(from, answer);
        }
    }

    /// Whether an operation that is not known here may still begin here.
    fn may_begin(&self, number: u64) -> bool {
        let holds = |range: &Reserved| range.is_open && range.numbers.contains(&number);
        self.latest.is_none_or(|latest| number > latest) || self.reserved.iter().any(holds)
    }

    /// A datagram of a running operation came from an address that is not its rank's. A rank with
    /// another list of addresses sends such datagrams, and cannot know why nobody answers: the
    /// answer states our agreement, from an address that its list may have. Anybody may send
    /// them, so that nothing else happens here.
    fn take_foreign(&mut self, header: &ShuffleHeader, from: SocketAddr) {
        let Some(running) = self.operations.get_mut(&header.operation) else { return };
        let (me, agreement) = (running.name(running.me), running.agreement);
        if let Some(place) = running.place(header.from) {
            running.note_elsewhere(place, from);
        }
        // A WAIT is never answered, so that two ranks do not answer each other without end.
        let asks = matches!(header.kind, ShuffleKind::Data | ShuffleKind::Resend);
        if asks && header.agreement != agreement {
            let (kind, class) = (ShuffleKind::Wait, TrafficClass::Control);
            let (offset, length, extra) = (0, 0, 0);
            let answer = ShuffleHeader {
                kind,
                class,
                from: me,
                offset,
                length,
                extra,
                agreement,
                ..*header
            };
            self.answer(from, answer);
        }
    }

    fn stage(&mut self, now: Timestamp, operation: u64, arrival: Arrival) {
        self.staged_bytes += arrival.datagram.len();
        self.staged.push_back((now, operation, arrival));
        while self.staged_bytes > self.config.staged_bytes_max {
            self.drop_staged();
        }
    }

    fn drop_staged(&mut self) {
        if let Some((_, _, arrival)) = self.staged.pop_front() {
            self.staged_bytes -= arrival.datagram.len();
            self.counters.staged_dropped += 1;
        }
    }

    fn unstage(&mut self, now: Timestamp, number: u64) {
        let (mine, others): (VecDeque<_>, VecDeque<_>) =
            core::mem::take(&mut self.staged).into_iter().partition(|staged| staged.1 == number);
        self.staged = others;
        for (_, _, arrival) in mine {
            self.staged_bytes -= arrival.datagram.len();
            // The datagram was decoded when it was staged, so an error now is only counted.
            if self.handle(now, arrival).is_err() {
                self.counters.foreign += 1;
            }
        }
    }

    fn answer(&mut self, to: SocketAddr, header: ShuffleHeader) {
        if self.answers.len() < ANSWERS_MAX {
            self.answers.push_back((to, header));
        } else {
            self.counters.answers_dropped += 1;
        }
    }

    /// Answers data of an ended operation. Either our acknowledgement was lost, or the sender does
    /// not know yet that the operation has ended.
    fn answer_for_ended(&mut self, header: &ShuffleHeader, from: SocketAddr) -> bool {
        let number = header.operation;
        let Some(ended) = self.ended.iter().rev().find(|ended| ended.operation == number) else {
            return false;
        };
        let kind = match ended.failure {
            _ if header.kind == ShuffleKind::Abort => return true,
            Some(_) => ShuffleKind::Abort,
            None if header.kind == ShuffleKind::Data => ShuffleKind::Ack,
            None => return true,
        };
        let (offset, extra) = ended.failure.map_or((0, 0), abort_words);
        let answer = ShuffleHeader {
            kind,
            class: TrafficClass::Control,
            from: ended.me,
            operation: number,
            offset,
            length: 0,
            extra,
            agreement: ended.agreement,
        };
        self.answer(from, answer);
        true
    }

    /// Ends the operation if it is complete.
    fn settle(&mut self, number: u64) {
        if let Some(running) = self.operations.get_mut(&number)
            && running.receiver.open == 0
            && !running.told_here
        {
            running.told_here = true;
            self.events.push_back(ShuffleEvent::Here { operation: number });
        }
        if self.operations.get(&number).is_some_and(Operation::is_done) {
            self.end(number, None);
            self.events.push_back(ShuffleEvent::Completed { operation: number });
        }
    }

    fn fail(&mut self, number: u64, failure: RankFailure) {
        let Some(running) = self.operations.get(&number) else { return };
        let (members, me) = (running.members.clone(), running.name(running.me));
        let (place, agreement) = (running.me, running.agreement);
        for (rank, &address) in members.iter().enumerate() {
            if rank != usize::from(place) {
                let (kind, class) = (ShuffleKind::Abort, TrafficClass::Control);
                let (offset, extra) = abort_words(failure);
                let (operation, from) = (number, me);
                let header = ShuffleHeader {
                    kind,
                    class,
                    from,
                    operation,
                    offset,
                    length: 0,
                    extra,
                    agreement,
                };
                self.answer(address, header);
            }
        }
        self.end(number, Some(failure));
        self.events.push_back(ShuffleEvent::Failed { operation: number, failure });
    }

    fn end(&mut self, number: u64, failure: Option<RankFailure>) {
        let Some(running) = self.operations.remove(&number) else { return };
        self.counters.duplicates += running.receiver.duplicates;
        self.counters.data_again += running.sender.sent_again;
        // Control datagrams that wait are still sent. Most of them are last acknowledgements.
        let mut running = running;
        self.rtt = running.rtt;
        while let Some((to, header, _)) = running.next_control() {
            if header.kind != ShuffleKind::Reduce {
                let header = ShuffleHeader { from: running.name(header.from), ..header };
                self.answer(running.members[usize::from(to)], header);
            }
        }
        let (me, agreement) = (running.name(running.me), running.agreement);
        self.ended.push_back(Ended { operation: number, me, agreement, failure });
        while self.ended.len() > self.config.ended_max {
            self.ended.pop_front();
        }
    }

    fn spend(&mut self, now: Timestamp, ps: u64) {
        let now_ps = u128::from(now.nanos()) * 1_000;
        self.free_ps = self.free_ps.max(now_ps.saturating_sub(self.burst_ps())) + u128::from(ps);
    }

    fn burst_ps(&self) -> u128 {
        self.config.pace.burst.as_nanos() * 1_000
    }

    /// When the pace allows the next data.
    fn free_at(&self) -> Timestamp {
        Timestamp::from_nanos(self.free_ps.div_ceil(1_000) as u64)
    }

    fn transmit(&self, to: SocketAddr, header: &ShuffleHeader, body: Bytes) -> Transmit {
        Transmit::new(header.class, Destination::One(to), header.encode(), body)
    }

    fn next_control(&mut self) -> Option<(SocketAddr, ShuffleHeader, Bytes)> {
        if let Some((to, header)) = self.answers.pop_front() {
            return Some((to, header, Bytes::new()));
        }
        self.operations.values_mut().find_map(|running| {
            let (to, header, payload) = running.next_control()?;
            let header = ShuffleHeader { from: running.name(header.from), ..header };
            Some((running.members[usize::from(to)], header, payload))
        })
    }
}

impl Machine for Shuffle {
    type Event = ShuffleEvent;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        let mut header = ShuffleHeader::decode(&arrival.datagram)?;
        let number = header.operation;
        let Some(running) = self.operations.get_mut(&number) else {
            if !self.answer_for_ended(&header, arrival.from)
                && !self.answer_for_abandoned(&header, arrival.from)
            {
                self.answer_for_later(&header, arrival.from, &arrival.datagram);
                self.stage(now, number, arrival);
            }
            return Ok(());
        };
        let place = running.place(header.from).filter(|&place| {
            running.members.get(usize::from(place)) == Some(&arrival.from) && place != running.me
        });
        let Some(place) = place else {
            self.counters.foreign += 1;
            self.take_foreign(&header, arrival.from);
            return Ok(());
        };
        header.from = place;
        match running.handle(&self.config, now, &header, &arrival.datagram)? {
            Some(Happened::Failed(failure)) => {
                let failure = failure.renamed(|place| running.name(place));
                self.fail(number, failure);
            }
            happened => {
                if let Some(Happened::Message(from, body)) = happened {
                    self.events.push_back(ShuffleEvent::Message { operation: number, from, body });
                }
                self.settle(number);
            }
        }
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        // The driver pulls after every input. A time in the past would make it call again at once,
        // although it may have no room.
        self.paced_until = self.paced_until.filter(|&at| at > now);
        while self.staged.front().is_some_and(|s| now.since(s.0) >= self.config.staged_for) {
            self.drop_staged();
        }
        let due: Vec<u64> = self
            .operations
            .values()
            .filter(|running| running.next_check <= now)
            .map(|running| running.number)
            .collect();
        for number in due {
            let Some(running) = self.operations.get_mut(&number) else { continue };
            if let Some(failure) = running.check(&self.config, now) {
                let failure = failure.renamed(|place| running.name(place));
                self.fail(number, failure);
            }
        }
    }

    fn handle_clock(&mut self, _: Timestamp, _: ClockReading) {}

    fn poll_event(&mut self) -> Option<ShuffleEvent> {
        self.events.pop_front()
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        if let Some((to, header, payload)) = self.next_control() {
            self.counters.control_sent += 1;
            self.spend(now, self.config.pace.ps_per_control);
            return Some(self.transmit(to, &header, payload));
        }
        self.paced_until = None;
        let free_at = self.free_at();
        if free_at > now {
            let waits = self.operations.values().any(|running| running.sender.is_ready());
            // After half a burst the driver has datagrams to batch. The other half is left for a
            // driver that is late.
            self.paced_until = waits.then_some(free_at + self.config.pace.burst / 2);
            return None;
        }
        let config = &self.config;
        let (to, header, payload) = self.operations.values_mut().find_map(|running| {
            let (to, header, payload) = running.next_data(config, now)?;
            let header = ShuffleHeader { from: running.name(header.from), ..header };
            Some((running.members[usize::from(to)], header, payload))
        })?;
        self.counters.data_sent += 1;
        let pace = self.config.pace;
        self.spend(now, pace.ps_per_data + pace.ps_per_byte * payload.len() as u64);
        Some(self.transmit(to, &header, payload))
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        let checks = self.operations.values().map(|running| running.next_check);
        let stale = self.staged.front().map(|staged| staged.0 + self.config.staged_for);
        checks.chain(self.paced_until).chain(stale).min()
    }
}
