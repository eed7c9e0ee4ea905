//! Measures the processor time that the sidecar a role costs.
//!
//! A thread that drives a role and the sidecar it does work for both of them. Most of the
//! work is in the kernel: falling asleep, waking up, sending, receiving. No clock of the system
//! tells the work for the role from the work for the sidecar. The meter therefore looks at
//! *spans*, each from one wait to the next. In some spans the sidecar had inputs and the
//! role had none, so that all of the processor time was the machine's. These spans tell what an
//! input of the machine costs, and all inputs of the machine count at that price. The price is high
//! where an input comes while the role is at work anyway, because the thread then wakes up for
//! both. On a thread that never works for the sidecar alone, the processor time of a span is
//! divided by the numbers of inputs.
//!
//! A reading of the thread's processor time is a system call, so only some spans are measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenfall_host::clock::thread_cpu;

/// One span in this many is measured. The measurement of a span takes up to four system calls of
/// about 200 ns. A coded pair of probes takes two spans, so the number is odd. With an even number,
/// only the first or only the second spans of pairs might be measured.
const SPANS_PER_MEASURE: u32 = 7;
/// Number of measured spans after which the weight of an old span has fallen to about a third. At
/// 500 spans a second, this takes about two seconds.
const SPANS_REMEMBERED: f64 = 128.0;
/// The price comes from the spans of the sidecar alone as soon as these spans have this many
/// inputs.
const INPUTS_MIN: f64 = 16.0;

/// The processor time that the sidecar has taken so far. Clones share the time.
#[derive(Clone, Debug, Default)]
pub struct CpuMeter(Arc<AtomicU64>);

impl CpuMeter {
    /// The processor time so far.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn add(&self, ns: f64) {
        self.0.fetch_add(ns as u64, Ordering::Relaxed);
    }
}

/// Measures [`CpuMeter`]. See the module documentation.
#[derive(Debug)]
pub(crate) struct SpanMeter {
    spent: CpuMeter,
    /// Inputs and transmits of the sidecar in this span.
    sidecar: u32,
    /// Inputs and transmits of all other machines in this span.
    others: u32,
    spans: u32,
    /// Processor time of this span so far, if the span is measured.
    measured: Option<Duration>,
    /// The thread's processor time when the present turn of a measured span began.
    since: Duration,
    /// The price by spans of the sidecar alone.
    alone: Price,
    /// The price by spans with inputs of other machines too.
    shared: Price,
}

/// Processor time and inputs of measured spans, of which older spans count less.
#[derive(Clone, Copy, Debug, Default)]
struct Price {
    busy_ns: f64,
    inputs: f64,
}

impl Price {
    fn learn(&mut self, busy_ns: f64, inputs: u32) {
        let old = 1.0 - 1.0 / SPANS_REMEMBERED;
        self.busy_ns = self.busy_ns * old + busy_ns;
        self.inputs = self.inputs * old + f64::from(inputs);
    }

    fn of(self, inputs: u32) -> f64 {
        f64::from(inputs) * self.busy_ns / self.inputs.max(1.0)
    }
}

impl SpanMeter {
    pub(crate) fn new(spent: CpuMeter) -> Self {
        Self {
            spent,
            sidecar: 0,
            others: 0,
            spans: 0,
            measured: None,
            since: Duration::ZERO,
            alone: Price::default(),
            shared: Price::default(),
        }
    }

    /// Counts an input or a transmit of the sidecar.
    pub(crate) fn count(&mut self) {
        self.sidecar += 1;
    }

    /// Counts an input or a transmit of another machine.
    pub(crate) fn count_other(&mut self) {
        self.others += 1;
    }

    /// A turn begins. The time between two turns belongs to the loop's owner, and does not count.
    pub(crate) fn resume(&mut self) {
        if self.measured.is_some() {
            self.since = thread_cpu();
        }
    }

    /// A turn ends.
    pub(crate) fn pause(&mut self) {
        if let Some(measured) = &mut self.measured {
            *measured += thread_cpu().saturating_sub(self.since);
        }
    }

    /// A wait begins, and with it the next span.
    pub(crate) fn next_span(&mut self) {
        self.pause();
        if let Some(measured) = self.measured.take().filter(|_| self.sidecar > 0) {
            let part = f64::from(self.sidecar) / f64::from(self.sidecar + self.others);
            let price = if self.others == 0 { &mut self.alone } else { &mut self.shared };
            price.learn(part * measured.as_nanos() as f64, self.sidecar);
        }
        let is_known = self.alone.inputs >= INPUTS_MIN;
        let price = if is_known { self.alone } else { self.shared };
        self.spent.add(price.of(self.sidecar));
        (self.sidecar, self.others) = (0, 0);
        self.spans = self.spans.wrapping_add(1);
        if self.spans.is_multiple_of(SPANS_PER_MEASURE) {
            self.measured = Some(Duration::ZERO);
            self.since = thread_cpu();
        }
    }
}
