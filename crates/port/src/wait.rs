//! Waits for arrivals and deadlines: first sleep, then spin.
//!
//! A thread that sleeps until a deadline wakes late. The kernel may delay the timer by the thread's
//! timer slack (50 us by default), and the processor has to leave its idle state. The slack is
//! therefore set to its minimum, the sleep ends a stated time before the deadline, and the thread
//! watches the clock for the rest. While it spins, it still looks for arrivals.
//!
//! Falling asleep and waking up for an arrival takes tens of microseconds on a virtual machine.
//! Where answers come sooner, a wait may first look for them and yield its core between two looks.

use std::cell::Cell;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use evenfall_core::Timestamp;

use crate::Options;
use evenfall_host::clock::MonotonicClock;
use evenfall_host::{Error, Waker};

/// When to try again after a queue below the socket was full. 50 frames of 1,500 bytes take about
/// 60 us at 10 Gb/s, and the time is short enough that a deadline survives it.
const DEVICE_RETRY: Duration = Duration::from_micros(50);
/// Clock reads between two looks at the socket while spinning. A look costs about 20 clock reads,
/// and should not delay the end of the spin.
const READS_PER_LOOK: u32 = 64;

/// Other sockets that a wait can watch: the two sides of a feed and its re-request server.
pub const OTHERS_MAX: usize = 3;

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// A datagram arrived, at this port or at a watched socket.
    Readable,
    /// The kernel takes datagrams again.
    Writable,
    /// A [`Waker`] was used.
    Woken,
    /// The deadline has come.
    Deadline,
}

/// Why sending stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// All frames have been sent.
    No,
    /// The send buffer is full. The port's descriptor polls writable when the buffer has room.
    Socket,
    /// A queue below the descriptor is full. Nothing reports when it has room again.
    Device,
}

/// How the waits of one port are made, and which events end them besides its own arrivals.
pub(crate) struct Waiting {
    pub(crate) waker: Waker,
    /// Descriptors whose arrivals end the wait as well.
    others: Vec<OwnedFd>,
    /// When a deadline was last waited for to its end.
    spun_at: Timestamp,
    /// Whether the present wait may end late, and so does not spin.
    pub(crate) is_idle: bool,
}

impl Waiting {
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self { waker: eventfd()?, others: Vec::new(), spun_at: Timestamp::ZERO, is_idle: false })
    }

    pub(crate) fn watch(&mut self, others: Vec<OwnedFd>) {
        assert!(others.len() <= OTHERS_MAX, "a port watches {OTHERS_MAX} others at most");
        self.others = others;
    }

    /// Waits for arrivals at `fd`, unless a lull allows them to wait, and for all other events.
    pub(crate) fn wait(
        &mut self,
        fd: RawFd,
        options: &Options,
        blocked: Blocked,
        lull: Option<Timestamp>,
        deadline: Option<Timestamp>,
    ) -> Wake {
        let Some(lull) = lull.filter(|_| !options.moderation.is_zero()) else {
            return self.until(fd, options, blocked, true, deadline);
        };
        let longest = (MonotonicClock::now() + options.moderation).min(lull);
        let deadline = deadline.map_or(longest, |deadline| deadline.min(longest));
        self.until(fd, options, blocked, false, Some(deadline))
    }

    fn until(
        &mut self,
        fd: RawFd,
        options: &Options,
        blocked: Blocked,
        readable: bool,
        deadline: Option<Timestamp>,
    ) -> Wake {
        let wait = Wait {
            fd,
            waker: &self.waker,
            others: &self.others,
            readable,
            writable: blocked == Blocked::Socket,
            spin: self.spin(options),
            yield_for: options.yield_for,
            never_sleep: options.never_sleep,
        };
        let wake = match blocked {
            Blocked::Device => wait.retry(deadline),
            _ => wait.until(deadline),
        };
        if wake == Wake::Deadline && !self.is_idle {
            self.spun_at = MonotonicClock::now();
        }
        wake
    }

    /// How long to spin now, so that spinning keeps to its share of the time.
    pub(crate) fn spin(&self, options: &Options) -> Duration {
        if self.is_idle {
            return Duration::ZERO;
        }
        let Options { spin, spin_share, .. } = *options;
        if spin_share >= 1.0 {
            return spin;
        }
        spin.min(MonotonicClock::now().since(self.spun_at).mul_f64(spin_share.max(0.0)))
    }
}

/// A descriptor that is readable from a wake-up until it is cleared.
pub(crate) fn eventfd() -> Result<Waker, Error> {
    Waker::new().map_err(|source| Error::Os {
        what: "create an eventfd".into(),
        source,
        advice: "raise the limit of open files (ulimit -n)",
    })
}

struct Wait<'a> {
    fd: RawFd,
    waker: &'a Waker,
    others: &'a [OwnedFd],
    /// Whether arrivals end the wait.
    readable: bool,
    writable: bool,
    spin: Duration,
    yield_for: Duration,
    never_sleep: bool,
}

impl Wait<'_> {
    /// Waits for a full device, which does not report when it has room again.
    fn retry(&self, deadline: Option<Timestamp>) -> Wake {
        let retry = MonotonicClock::now() + DEVICE_RETRY;
        match self.until(Some(deadline.map_or(retry, |deadline| deadline.min(retry)))) {
            Wake::Deadline if deadline.is_none_or(|deadline| retry < deadline) => Wake::Writable,
            wake => wake,
        }
    }

    fn until(&self, deadline: Option<Timestamp>) -> Wake {
        sharpen_timers();
        if !self.yield_for.is_zero()
            && let Some(wake) = self.yield_until(deadline)
        {
            return wake;
        }
        if !self.never_sleep {
            let now = MonotonicClock::now();
            let sleep = deadline.map(|deadline| (deadline - self.spin).since(now));
            if sleep.is_none_or(|sleep| !sleep.is_zero())
                && let Some(wake) = self.look(sleep)
            {
                return wake;
            }
            // The look lasted until the deadline and found nothing, so no further look is needed.
            if sleep.is_some_and(|sleep| !sleep.is_zero())
                && deadline.is_some_and(|deadline| MonotonicClock::now() >= deadline)
            {
                return Wake::Deadline;
            }
        }
        self.spin_until(deadline)
    }

    /// Looks for arrivals for a short time. Between two looks it yields the core to other threads,
    /// and no thread has to be woken.
    fn yield_until(&self, deadline: Option<Timestamp>) -> Option<Wake> {
        let hope = MonotonicClock::now() + self.yield_for;
        let end = deadline.map_or(hope, |deadline| (deadline - self.spin).min(hope));
        loop {
            // The core is also yielded before the first look, because there was no arrival a moment
            // ago.
            std::thread::yield_now();
            if let Some(wake) = self.look(Some(Duration::ZERO)) {
                return Some(wake);
            }
            if MonotonicClock::now() >= end {
                return None;
            }
        }
    }

    fn spin_until(&self, deadline: Option<Timestamp>) -> Wake {
        loop {
            if let Some(wake) = self.look(Some(Duration::ZERO)) {
                return wake;
            }
            for _ in 0..READS_PER_LOOK {
                if deadline.is_some_and(|deadline| MonotonicClock::now() >= deadline) {
                    return Wake::Deadline;
                }
                std::hint::spin_loop();
            }
        }
    }

    /// Polls for at most this long, or for ever.
    fn look(&self, timeout: Option<Duration>) -> Option<Wake> {
        let wanted = |wanted, event| if wanted { event } else { 0 };
        let asleep = libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 };
        let mut polled = [asleep; 2 + OTHERS_MAX];
        let events = wanted(self.readable, libc::POLLIN) | wanted(self.writable, libc::POLLOUT);
        // A descriptor reports errors even where nothing is asked of it, and a stamp of a departure
        // is an error.
        let fd = if events == 0 { -1 } else { self.fd };
        polled[0] = libc::pollfd { fd, events, revents: 0 };
        polled[1].fd = self.waker.fd();
        for (slot, other) in polled[2..].iter_mut().zip(self.others) {
            slot.fd = other.as_raw_fd();
        }
        let count = (2 + self.others.len().min(OTHERS_MAX)) as libc::nfds_t;
        let timeout = timeout.map(|timeout| libc::timespec {
            tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the descriptors and the timeout are live locals, and there is no signal mask.
        let ready = unsafe { libc::ppoll(polled.as_mut_ptr(), count, timeout, ptr::null()) };
        if ready < 0 {
            // EINTR: a signal arrived. Its handler may have asked the program to end, so the owner
            // gets to look.
            return Some(Wake::Woken);
        }
        if polled[1].revents != 0 {
            self.waker.clear();
            return Some(Wake::Woken);
        }
        // Receiving clears an error that is pending on the socket (POLLERR).
        let arrived = |p: &libc::pollfd| p.revents & (libc::POLLIN | libc::POLLERR) != 0;
        if arrived(&polled[0]) || polled[2..].iter().any(arrived) {
            return Some(Wake::Readable);
        }
        (polled[0].revents & libc::POLLOUT != 0).then_some(Wake::Writable)
    }
}

/// Asks the kernel not to delay this thread's timers. Called once per thread.
fn sharpen_timers() {
    thread_local!(static SHARP: Cell<bool> = const { Cell::new(false) });
    if !SHARP.replace(true) {
        // SAFETY: this call takes integers only, and cannot fail in a way that matters.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
    }
}
