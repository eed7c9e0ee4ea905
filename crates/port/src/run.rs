//! The loop that drives machines by the rule of the contract ([`evenfall_core::machine`]).
//!
//! One thread owns some machines and one port, and calls [`Loop::turn`] as long as it likes. A turn
//! takes one batch of arrivals and the timeouts that are due, sends the machines' transmits, and
//! then waits, unless there is more to do. After a rest ([`Machine::poll_lull`]) the due timeouts
//! go first. Arrivals then wait until other processes on this core have handled their timeouts.
//!
//! After every single input the machine's events and installs are drained before the next input.
//! The writes of a durable machine go to its disk ([`Loop::with_writes`]). Transmits are pulled
//! only while the port has room. The port's answers are handed in after the transmits, and the next
//! turn follows without a wait.
//!
//! Several machines share a socket through a *dispatch* function, which reads the number of the
//! machine at a fixed place in the datagram. The function runs before any authentication. Its
//! answer is therefore only a hint, and is checked against the number of machines.

use std::time::Duration;

use evenfall_core::{Arrival, ClockReading, Machine, Timestamp, TrafficClass};

use crate::cpu_meter::{CpuMeter, SpanMeter};
use crate::{Answer, Port, Refusal, Wake};
use evenfall_host::Error;
use evenfall_host::clock::{ClockWatch, MonotonicClock};
use evenfall_host::writes::Writes;

/// Returns the number of the machine for a datagram; `None` when it cannot tell, which counts as
/// malformed.
pub type Dispatch = fn(&[u8]) -> Option<usize>;

/// Transmits that are pulled in one turn before arrivals get their turn: four full segmented sends
/// per destination.
const TRANSMITS_PER_TURN: usize = 256;
/// Transmits that are pulled before they are handed to the kernel: one full segmented send.
const TRANSMITS_PER_FLUSH: usize = 64;
/// Arrivals that are handled between two looks at the clock. With eight, a timeout is at most about
/// ten microseconds late during a burst.
const ARRIVALS_PER_CLOCK: usize = 8;
/// How late a timeout after a rest may be and still go before the arrivals. A longer delay means
/// that this process was stopped or starved. Datagrams in its socket may then already answer the
/// timeout.
const PROMPT: Duration = Duration::from_millis(1);
/// The longest wait, so that a clock reading or a caller's flag is seen after this time at the
/// latest.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// A timeout of the sidecar that is due less than this long before the machines' next deadline
/// waits until after the deadline, because a thread that sleeps until the timeout may wake up this
/// late.
const SIDECAR_EARLY: Duration = Duration::from_micros(200);

/// Counters of a loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopCounters {
    /// Turns.
    pub turns: u64,
    /// Arrivals that no machine understood.
    pub malformed: u64,
    /// Arrivals without a machine: the dispatch function named none, or a number beyond the last.
    pub undispatched: u64,
    /// Timeouts handed in.
    pub timeouts: u64,
    /// The longest delay of a timeout.
    pub timeout_late_ns_max: u64,
}

/// The number by which the port knows the sidecar.
const SIDECAR: usize = usize::MAX;

/// The sidecar: a machine of another protocol that shares the port: it keeps the synchronised
/// clock, and its events are readings of that clock.
pub struct Sidecar {
    /// First bytes of its datagrams, by which they are told from those of the other machines.
    pub magic: [u8; 2],
    /// The machine.
    pub machine: Box<dyn Machine<Event = ClockReading> + Send>,
    /// The processor time that the loop takes for the machine. The loop measures this time.
    pub meter: CpuMeter,
}

/// Drives machines of one kind on one [`Port`].
pub struct Loop {
    dispatch: Dispatch,
    arrivals: Vec<Arrival>,
    answers: Vec<Answer>,
    counters: LoopCounters,
    clock: Option<ClockWatch>,
    sidecar: Option<Sidecar>,
    /// Measures what the sidecar costs.
    meter: Option<SpanMeter>,
    /// The last reading of the sidecar, until the reading is taken.
    reading: Option<ClockReading>,
    /// The disks of durable machines, by the number of the machine.
    writes: Vec<(usize, Writes)>,
    /// The machine that is asked for transmits first. The machine that is first changes with every
    /// turn.
    first: usize,
    /// Whether the last wait was a rest that ended at its time.
    is_rested: bool,
    /// Whether the last turn took all arrivals, so that this turn need not ask the kernel again.
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
            clock: None,
            sidecar: None,
            meter: None,
            reading: None,
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

    /// Drives this machine too. Its readings wait for [`reading`](Self::reading).
    pub fn set_sidecar(&mut self, sidecar: Sidecar) {
        self.meter = Some(SpanMeter::new(sidecar.meter.clone()));
        self.sidecar = Some(sidecar);
    }

    /// The last reading of the sidecar, when it was not taken before.
    pub fn reading(&mut self) -> Option<ClockReading> {
        self.reading.take()
    }

    /// Hands the sidecar one input, and takes its readings. Returns what the input returned.
    fn input_sidecar<T>(
        &mut self,
        input: impl FnOnce(&mut dyn Machine<Event = ClockReading>) -> T,
    ) -> Option<T> {
        let machine = self.sidecar.as_mut()?.machine.as_mut();
        self.meter.iter_mut().for_each(SpanMeter::count);
        let output = input(machine);
        while let Some(reading) = machine.poll_event() {
            self.reading = Some(reading);
        }
        Some(output)
    }

    /// Carries out the writes of the machine with this number. A finished write ends the wait of
    /// the port.
    pub fn with_writes(mut self, owner: usize, writes: Writes) -> Self {
        self.writes.push((owner, writes));
        self
    }

    /// The counters of the loop.
    pub fn counters(&self) -> &LoopCounters {
        &self.counters
    }

    /// One turn: arrivals, timeouts, clock and transmits, then a wait until there is work, and at
    /// most until `until`.
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
        self.meter.iter_mut().for_each(SpanMeter::resume);
        let wake = self.turn_once(machines, port, until, events);
        self.meter.iter_mut().for_each(SpanMeter::pause);
        wake
    }

    fn turn_once<M: Machine>(
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
        // A machine's first input is a clock reading, as in the simulator, so arrivals come later.
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
            // If this turn has looked for arrivals, the next turn need not look, because no wait
            // lies between them. The turn after the next turn looks again, however many answers
            // come.
            self.is_drained = !drained && !more;
            return Ok(Wake::Writable);
        }
        now = MonotonicClock::now();
        let due = machines.iter().filter_map(Machine::poll_timeout).min();
        let deadline = [due, until].into_iter().flatten().fold(now + WAIT_MAX, Timestamp::min);
        let mut lulls = machines.iter().map(Machine::poll_lull);
        let lull = lulls.try_fold(Timestamp::MAX, |first, lull| Some(first.min(lull?)));
        self.meter.iter_mut().for_each(SpanMeter::next_span);
        // The clock's machine stamps when it sends, so that its timeouts need not be met exactly.
        let sidecar = self.due_sidecar().filter(|at| *at + SIDECAR_EARLY < deadline);
        let wake = match sidecar {
            Some(at) => port.wait_idly(lull, Some(at)),
            None => port.wait(lull, Some(deadline)),
        };
        self.is_rested = lull.is_some() && wake == Wake::Deadline;
        // A wait that looks for arrivals ends at its deadline only when there are none.
        self.is_drained = lull.is_none() && wake == Wake::Deadline;
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
        self.meter.iter_mut().for_each(SpanMeter::count_other);
        let output = input(machine, now);
        drain(owner, now, machine, port, events)?;
        Ok(output)
    }

    /// Takes one batch of arrivals. Returns whether there were any.
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
            if self.is_for_sidecar(&arrival) {
                if let Some(Err(_)) = self.input_sidecar(|m| m.handle(now, arrival)) {
                    self.counters.malformed += 1;
                }
                continue;
            }
            let owner = (self.dispatch)(&arrival.datagram);
            let Some((owner, machine)) =
                owner.and_then(|owner| Some((owner, machines.get_mut(owner)?)))
            else {
                self.counters.undispatched += 1;
                continue;
            };
            self.meter.iter_mut().for_each(SpanMeter::count_other);
            if machine.handle(now, arrival).is_err() {
                self.counters.malformed += 1;
            }
            drain(owner, now, machine, port, events)?;
        }
        self.arrivals = arrivals;
        self.is_drained = count > 0 && port.is_drained();
        Ok(count > 0)
    }

    fn is_for_sidecar(&self, arrival: &Arrival) -> bool {
        let sidecar = self.sidecar.as_ref();
        sidecar.is_some_and(|sidecar| arrival.datagram.starts_with(&sidecar.magic))
    }

    fn take_timeouts<M: Machine>(
        &mut self,
        now: Timestamp,
        machines: &mut [M],
        port: &mut dyn Port,
        events: &mut impl FnMut(&M, Timestamp, M::Event),
    ) -> Result<(), Error> {
        for (owner, machine) in machines.iter_mut().enumerate() {
            // Each look hands in at most one timeout, because a machine that is always due must not
            // keep arrivals waiting.
            if let Some(due) = machine.poll_timeout()
                && due <= now
            {
                let late = now.signed_since(due).unsigned_abs();
                self.counters.timeout_late_ns_max = self.counters.timeout_late_ns_max.max(late);
                self.counters.timeouts += 1;
                self.meter.iter_mut().for_each(SpanMeter::count_other);
                machine.handle_timeout(now);
                drain(owner, now, machine, port, events)?;
            }
        }
        if self.due_sidecar().is_some_and(|due| due <= now) {
            self.input_sidecar(|machine| machine.handle_timeout(now));
        }
        Ok(())
    }

    fn due_sidecar(&self) -> Option<Timestamp> {
        self.sidecar.as_ref().and_then(|sidecar| sidecar.machine.poll_timeout())
    }

    /// Hands in the answers about transmits and installs. Returns whether there were any.
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
            if let (SIDECAR, Answer::Sent(_, sent)) = (owner, &answer) {
                let (now, sent) = (MonotonicClock::now(), *sent);
                self.input_sidecar(|machine| machine.handle_sent(now, sent));
                continue;
            }
            let Some(machine) = machines.get_mut(owner) else { continue };
            self.meter.iter_mut().for_each(SpanMeter::count_other);
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

    /// Answers the writes of the machines that are done, and takes their next writes.
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

    /// Hands in the timeouts that have ended a rest, before any arrival.
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
            // Receivers on one host are due at the same time. All of them release first, then all
            // read.
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
        for (owner, machine) in machines.iter_mut().enumerate() {
            let now = MonotonicClock::now();
            machine.handle_clock(now, reading);
            drain(owner, now, machine, port, events)?;
        }
        // The port stamps in the name of the machines, which may not follow a step.
        let clock = machines.first().and_then(M::clock);
        port.adopt_clock(clock.map_or(reading, |clock| clock.reading()));
        Ok(())
    }

    /// Pulls transmits and sends them. Returns whether a machine may have more although the port
    /// has room.
    fn transmit<M: Machine>(&mut self, machines: &mut [M], port: &mut dyn Port) -> bool {
        let mut pulled = 0;
        let count = machines.len();
        // The machine that is asked first changes, so that a busy machine cannot starve the others.
        self.first = (self.first + 1) % count.max(1);
        for turn in 0..count {
            let owner = (self.first + turn) % count;
            while port.has_room(TrafficClass::Live) {
                if pulled == TRANSMITS_PER_TURN {
                    port.flush();
                    return true;
                }
                let now = MonotonicClock::now();
                let transmit = match port.has_room(TrafficClass::Bulk) {
                    true => machines[owner].poll_transmit(now),
                    // Repairs that the kernel does not take yet must not delay the feed.
                    false => machines[owner].poll_urgent(now),
                };
                let Some(transmit) = transmit else { break };
                // The port counts the refusal, and the machine's repair makes up for it.
                let _: Result<(), Refusal> = port.send(owner, transmit);
                self.meter.iter_mut().for_each(SpanMeter::count_other);
                pulled += 1;
                if pulled % TRANSMITS_PER_FLUSH == 0 {
                    port.flush();
                }
            }
        }
        // Probes are stamped when they are pulled, so that they go when nothing else waits.
        while let Some(sidecar) =
            self.sidecar.as_mut().filter(|_| port.has_room(TrafficClass::Control))
        {
            let Some(transmit) = sidecar.machine.poll_transmit(MonotonicClock::now()) else {
                break;
            };
            self.meter.iter_mut().for_each(SpanMeter::count);
            let _: Result<(), Refusal> = port.send(SIDECAR, transmit);
            port.flush();
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
