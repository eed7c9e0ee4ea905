//! The loop that drives machines by the rule of the contract ([`evenfall_core::machine`]).
//!
//! One thread owns some machines and one port, and calls [`Loop::turn`] until it has enough.
//! A turn takes one batch of arrivals and the timeouts that are due, sends what the machines want
//! sent, and then waits, unless there is more to do. After a rest ([`Machine::poll_lull`]) what is
//! due goes first, and arrivals wait until others on this core have done what was due for them.
//!
//! After every single input the machine's events and installs are drained before the next input;
//! what a machine that is durable wants written goes to its disk ([`Loop::with_writes`]), and
//! transmits are pulled only while the port has room. What the port answers about transmits and
//! installs is handed in after the transmits, and the next turn follows without a wait.
//!
//! Several machines share a socket through a *dispatch* function, which reads the number of the
//! machine at a fixed place in the datagram. It runs before any authentication: its answer is a
//! hint, checked against the number of machines.

use std::time::Duration;

use evenfall_core::{Arrival, Class, ClockReading, Machine, Malformed, Timestamp};

use crate::{Answer, Port, Refusal, Wake};
use evenfall_host::Error;
use evenfall_host::clock::{ClockWatch, MonotonicClock};
use evenfall_host::writes::Writes;

/// Which machine a datagram is for; `None` when it cannot say, which counts as malformed.
pub type Dispatch = fn(&[u8]) -> Option<usize>;

/// Transmits pulled in one turn before arrivals get their turn: four full segmented sends per
/// destination.
const TRANSMITS_PER_TURN: usize = 256;
/// Transmits pulled before they are handed to the kernel: one full segmented send.
const TRANSMITS_PER_FLUSH: usize = 64;
/// Arrivals handled between two looks at the clock, so that a timeout is never later than about
/// ten microseconds behind a burst.
const ARRIVALS_PER_CLOCK: usize = 8;
/// How late a timeout after a rest may be and still go before the arrivals. Beyond, this process
/// was stopped or starved, and what lies in its socket may have answered what is due.
const PROMPT: Duration = Duration::from_millis(1);
/// The longest wait, so that a clock reading or a caller's flag is never unseen for longer.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// What a loop did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopCounters {
    /// Turns.
    pub turns: u64,
    /// Arrivals that no machine understood.
    pub malformed: u64,
    /// Arrivals for a machine that does not exist, or for none.
    pub undispatched: u64,
    /// Timeouts handed in.
    pub timeouts: u64,
    /// The longest that a timeout was handed in after its time.
    pub timeout_late_ns_max: u64,
}

/// Drives machines of one kind on one [`Port`].
pub struct Loop {
    dispatch: Dispatch,
    arrivals: Vec<Arrival>,
    answers: Vec<Answer>,
    counters: LoopCounters,
    last_malformed: Option<Malformed>,
    clock: Option<ClockWatch>,
    /// The disks of machines that are durable, by the number of the machine.
    writes: Vec<(usize, Writes)>,
    /// The machine that is asked for transmits first, in turn.
    first: usize,
    /// The last wait was a rest, and ended with its time.
    is_rested: bool,
    /// The last turn took all that was there: this one need not ask the kernel again.
    is_drained: bool,
}

impl Default for Loop {
    fn default() -> Self {
        Self::new()
    }
}

impl Loop {
    /// A loop for one machine.
    pub fn new() -> Self {
        Self::dispatching(|_| Some(0))
    }

    /// A loop for several machines on one socket.
    pub fn dispatching(dispatch: Dispatch) -> Self {
        Self {
            dispatch,
            arrivals: Vec::new(),
            answers: Vec::new(),
            counters: LoopCounters::default(),
            last_malformed: None,
            clock: None,
            writes: Vec::new(),
            first: 0,
            is_rested: false,
            is_drained: false,
        }
    }

    /// Hands every fresh reading of this clock to the machines.
    pub fn with_clock(mut self, clock: ClockWatch) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Carries out what the machine of this number wants written. A write that is done ends the
    /// wait of the port.
    pub fn with_writes(mut self, owner: usize, writes: Writes) -> Self {
        self.writes.push((owner, writes));
        self
    }

    /// What the loop did so far.
    pub fn counters(&self) -> &LoopCounters {
        &self.counters
    }

    /// What was wrong with the last malformed arrival, for a log line.
    pub fn last_malformed(&self) -> Option<Malformed> {
        self.last_malformed
    }

    /// One turn: arrivals, timeouts, clock, transmits; then a wait until there is something to do,
    /// `until` at the latest.
    ///
    /// # Errors
    /// When a machine installs a group beyond loopback and there is no key.
    pub fn turn<M: Machine>(
        &mut self,
        machines: &mut [M],
        port: &mut dyn Port,
        until: Option<Timestamp>,
        events: &mut impl FnMut(&M, Timestamp, M::Event),
    ) -> Result<Wake, Error> {
        self.counters.turns += 1;
        if self.counters.turns == 1 {
            for (_, writes) in &self.writes {
                writes.wake(port.waker());
            }
            // A new machine may have installs and events before its first input.
            let now = MonotonicClock::now();
            for (owner, machine) in machines.iter_mut().enumerate() {
                drain(owner, now, machine, port, events)?;
            }
        }
        // Before arrivals: a machine's first input is a clock reading, here as in the simulator.
        self.take_clock(machines, port, events)?;
        if std::mem::take(&mut self.is_rested) {
            self.take_prompt_timeouts(machines, port, events)?;
        }
        let drained = std::mem::take(&mut self.is_drained);
        let readable = !drained && self.take_arrivals(machines, port, events)?;
        let mut now = MonotonicClock::now();
        self.take_timeouts(now, machines, port, events)?;
        self.take_written(machines, port, events)?;
        let more = self.transmit(machines, port);
        let answered = self.take_answers(machines, port, events)?;
        if readable {
            return Ok(Wake::Readable);
        }
        if more || answered {
            return Ok(Wake::Writable);
        }
        now = MonotonicClock::now();
        let due = machines.iter().filter_map(Machine::poll_timeout).min();
        let deadline = [due, until].into_iter().flatten().min().unwrap_or(Timestamp::MAX);
        let deadline = deadline.min(now + WAIT_MAX);
        let mut lulls = machines.iter().map(Machine::poll_lull);
        let lull = lulls.try_fold(Timestamp::MAX, |first, lull| Some(first.min(lull?)));
        let wake = port.wait(lull, Some(deadline));
        self.is_rested = lull.is_some() && wake == Wake::Deadline;
        Ok(wake)
    }

    /// Hands in one input from outside the network, such as a publication, by the same rule.
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    pub fn input<M: Machine, T>(
        &mut self,
        owner: usize,
        machine: &mut M,
        port: &mut dyn Port,
        input: impl FnOnce(&mut M, Timestamp) -> T,
        events: &mut impl FnMut(&M, Timestamp, M::Event),
    ) -> Result<T, Error> {
        let now = MonotonicClock::now();
        let output = input(machine, now);
        drain(owner, now, machine, port, events)?;
        Ok(output)
    }

    /// Takes one batch. Whether there was anything.
    fn take_arrivals<M: Machine>(
        &mut self,
        machines: &mut [M],
        port: &mut dyn Port,
        events: &mut impl FnMut(&M, Timestamp, M::Event),
    ) -> Result<bool, Error> {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        let count = port.receive(&mut arrivals);
        let mut now = MonotonicClock::now();
        for (number, arrival) in arrivals.drain(..).enumerate() {
            if number % ARRIVALS_PER_CLOCK == ARRIVALS_PER_CLOCK - 1 {
                now = MonotonicClock::now();
                self.take_timeouts(now, machines, port, events)?;
            }
            let owner = (self.dispatch)(&arrival.datagram);
            let Some((owner, machine)) =
                owner.and_then(|owner| Some((owner, machines.get_mut(owner)?)))
            else {
                self.counters.undispatched += 1;
                continue;
            };
            if let Err(malformed) = machine.handle(now, arrival) {
                self.counters.malformed += 1;
                self.last_malformed = Some(malformed);
            }
            drain(owner, now, machine, port, events)?;
        }
        self.arrivals = arrivals;
        self.is_drained = count > 0 && port.is_drained();
        Ok(count > 0)
    }

    fn take_timeouts<M: Machine>(
        &mut self,
        now: Timestamp,
        machines: &mut [M],
        port: &mut dyn Port,
        events: &mut impl FnMut(&M, Timestamp, M::Event),
    ) -> Result<(), Error> {
        for (owner, machine) in machines.iter_mut().enumerate() {
            // Once per look: a machine that is always due must not keep arrivals waiting.
            if let Some(due) = machine.poll_timeout()
                && due <= now
            {
                let late = now.signed_since(due).unsigned_abs();
                self.counters.timeout_late_ns_max = self.counters.timeout_late_ns_max.max(late);
                self.counters.timeouts += 1;
                machine.handle_timeout(now);
                drain(owner, now, machine, port, events)?;
            }
        }
        Ok(())
    }

    /// Hands in what became of transmits and installs. Whether there was anything.
    fn take_answers<M: Machine>(
        &mut self,
        machines: &mut [M],
        port: &mut dyn Port,
        events: &mut impl FnMut(&M, Timestamp, M::Event),
    ) -> Result<bool, Error> {
        let mut answers = std::mem::take(&mut self.answers);
        port.answers(&mut answers);
        let answered = !answers.is_empty();
        for answer in answers.drain(..) {
            let (Answer::Sent(owner, _) | Answer::Counters(owner, ..)) = answer;
            let Some(machine) = machines.get_mut(owner) else { continue };
            let now = MonotonicClock::now();
            match answer {
                Answer::Sent(_, sent) => machine.handle_sent(now, sent),
                Answer::Counters(_, of, counters) => machine.handle_counters(now, of, counters),
            }
            drain(owner, now, machine, port, events)?;
        }
        self.answers = answers;
        Ok(answered)
    }

    /// Tells machines which of their writes are done, and takes what they want written.
    fn take_written<M: Machine>(
        &mut self,
        machines: &mut [M],
        port: &mut dyn Port,
        events: &mut impl FnMut(&M, Timestamp, M::Event),
    ) -> Result<(), Error> {
        for (owner, writes) in &mut self.writes {
            let Some(machine) = machines.get_mut(*owner) else { continue };
            while let Some((id, done)) = writes.answer() {
                let now = MonotonicClock::now();
                let Some(durable) = machine.durable() else { continue };
                durable.handle_written(now, id, done);
                drain(*owner, now, machine, port, events)?;
            }
            if let Some(durable) = machine.durable() {
                writes.ask(durable);
            }
        }
        Ok(())
    }

    /// What a rest ended for, before anything else.
    fn take_prompt_timeouts<M: Machine>(
        &mut self,
        machines: &mut [M],
        port: &mut dyn Port,
        events: &mut impl FnMut(&M, Timestamp, M::Event),
    ) -> Result<(), Error> {
        let now = MonotonicClock::now();
        let due = machines.iter().filter_map(Machine::poll_timeout).min();
        if due.is_some_and(|due| due <= now && now.since(due) < PROMPT) {
            self.take_timeouts(now, machines, port, events)?;
            // Receivers on one host are due at the same time: first all release, then all read.
            std::thread::yield_now();
        }
        Ok(())
    }

    fn take_clock<M: Machine>(
        &mut self,
        machines: &mut [M],
        port: &mut dyn Port,
        events: &mut impl FnMut(&M, Timestamp, M::Event),
    ) -> Result<(), Error> {
        match self.clock.as_mut().and_then(ClockWatch::fresh) {
            Some(reading) => self.adopt_clock(reading, machines, port, events),
            None => Ok(()),
        }
    }

    /// Hands a reading of the synchronised clock to every machine.
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    pub fn adopt_clock<M: Machine>(
        &mut self,
        reading: ClockReading,
        machines: &mut [M],
        port: &mut dyn Port,
        events: &mut impl FnMut(&M, Timestamp, M::Event),
    ) -> Result<(), Error> {
        port.adopt_clock(reading);
        for (owner, machine) in machines.iter_mut().enumerate() {
            let now = MonotonicClock::now();
            machine.handle_clock(now, reading);
            drain(owner, now, machine, port, events)?;
        }
        Ok(())
    }

    /// Pulls and sends. Whether a machine may have more although the port has room.
    fn transmit<M: Machine>(&mut self, machines: &mut [M], port: &mut dyn Port) -> bool {
        let mut pulled = 0;
        let count = machines.len();
        // The machine to be asked first changes, so that a busy one cannot starve the others.
        self.first = (self.first + 1) % count.max(1);
        for turn in 0..count {
            let owner = (self.first + turn) % count;
            while port.has_room(Class::Live) {
                if pulled == TRANSMITS_PER_TURN {
                    port.flush();
                    return true;
                }
                let now = MonotonicClock::now();
                let transmit = match port.has_room(Class::Bulk) {
                    true => machines[owner].poll_transmit(now),
                    // Repairs that the kernel does not take yet must not hold up the feed.
                    false => machines[owner].poll_urgent(now),
                };
                let Some(transmit) = transmit else { break };
                // A refusal is in the port's counters, and the machine's repair is the remedy.
                let _: Result<(), Refusal> = port.send(owner, transmit);
                pulled += 1;
                if pulled % TRANSMITS_PER_FLUSH == 0 {
                    port.flush();
                }
            }
        }
        port.flush();
        false
    }
}

/// Steps 3 and 4 of the contract.
fn drain<M: Machine>(
    owner: usize,
    now: Timestamp,
    machine: &mut M,
    port: &mut dyn Port,
    events: &mut impl FnMut(&M, Timestamp, M::Event),
) -> Result<(), Error> {
    while let Some(event) = machine.poll_event() {
        events(machine, now, event);
    }
    while let Some(install) = machine.poll_install() {
        port.install(owner, &install)?;
    }
    Ok(())
}
