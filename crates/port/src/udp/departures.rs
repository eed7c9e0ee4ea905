//! When datagrams left, by the kernel's stamps.
//!
//! A program knows when it called to send and when the call returned. The datagram left between
//! these two times. The kernel stamps a datagram when the kernel hands the datagram to the network
//! card. A message asks for its stamp by a control message, and the kernel numbers the messages
//! that ask. The numbers come back with the stamps over the error queue of the socket.
//!
//! After a refused send it is unknown which numbers the kernel has used. The numbers then begin
//! again at zero. A stamp from before the call of its message belongs to an earlier message with
//! the same number, and is not used.

use std::collections::VecDeque;
use std::mem;
use std::os::fd::RawFd;
use std::time::Duration;

use evenfall_core::{Sent, StampedBy, Timestamp, Token};
use evenfall_host::clock::{HostStamps, MonotonicClock};

use super::inbox::ancillary;
use super::plan::Departed;
use super::socket::Socket;
use crate::Counters;
use crate::answers::Answers;
use crate::sys::{CONTROL_BYTES, Control, checked};

/// Departures that may wait for their stamps. The clock sends some hundred probes a second, and
/// each waits for less than a millisecond. Beyond the limit the oldest gets the stamp of this
/// process.
const WAITING_MAX: usize = 64;
/// How long a departure waits for its stamp. The departure then gets the stamp of this process. If
/// a queue of the host holds packets for longer, their stamps are useless.
const STAMP_WAIT: Duration = Duration::from_millis(20);

/// A departure that waits for its stamp.
struct Waiting {
    number: u32,
    owner: usize,
    token: Token,
    /// When the call that sent the datagram began.
    began: Timestamp,
    /// When the call that sent the datagram returned.
    returned: Timestamp,
}

#[derive(Default)]
pub(super) struct Departures {
    stamps: HostStamps,
    /// The number that the kernel gives to the next message that asks.
    next: u32,
    waiting: VecDeque<Waiting>,
    is_miscounted: bool,
}

impl Departures {
    /// Prepares for a call that sends messages that ask. Returns the present time.
    pub(super) fn begin(&mut self, socket: &Socket) -> Timestamp {
        if mem::take(&mut self.is_miscounted) && socket.stamps_departures {
            socket.renumber_departures();
            self.next = 0;
        }
        MonotonicClock::now()
    }

    /// Notes that a send was refused, and that the kernel's numbers are not known any more.
    pub(super) fn miscount(&mut self) {
        self.is_miscounted = true;
    }

    /// Notes that a message left, in a call that began at `began`. The answer waits for the
    /// kernel's stamp if the message asked for a stamp.
    pub(super) fn left(
        &mut self,
        began: Timestamp,
        departed: Departed,
        answers: &mut Answers,
        counters: &mut Counters,
    ) {
        let Departed { owner, token, at, is_stamped } = departed;
        let Some(returned) = at.filter(|_| is_stamped) else {
            return answers.left(owner, token, at, counters);
        };
        if self.waiting.len() == WAITING_MAX {
            self.give_up_oldest(answers, counters);
        }
        let number = self.next;
        self.next = number.wrapping_add(1);
        self.waiting.push_back(Waiting { number, owner, token, began, returned });
    }

    fn give_up_oldest(&mut self, answers: &mut Answers, counters: &mut Counters) {
        if let Some(Waiting { owner, token, returned, .. }) = self.waiting.pop_front() {
            answers.left(owner, token, Some(returned), counters);
        }
    }

    /// Answers departures whose stamps do not come, by the stamps of this process.
    pub(super) fn give_up(&mut self, answers: &mut Answers, counters: &mut Counters) {
        while let Some(oldest) = self.waiting.front()
            && MonotonicClock::now().since(oldest.returned) >= STAMP_WAIT
        {
            self.give_up_oldest(answers, counters);
        }
    }

    /// Whether departures wait for their stamps.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes the stamps that have come back, until no departure waits any more.
    pub(super) fn take(&mut self, fd: RawFd, answers: &mut Answers, counters: &mut Counters) {
        for _ in 0..WAITING_MAX {
            if self.waiting.is_empty() {
                return;
            }
            let Some((number, host_ns)) = returned(fd) else { return };
            let Some((number, host_ns)) = number.zip(host_ns) else { continue };
            let place = self.waiting.iter().position(|waiting| waiting.number == number);
            let Some(waiting) = place.and_then(|place| self.waiting.remove(place)) else {
                continue;
            };
            let Waiting { owner, token, began, returned, .. } = waiting;
            // A departure that is stamped too late makes the delay too short, and a delay must
            // never be too short. Therefore the earliest time is taken.
            let is_fresh = self.stamps.look();
            let stamp = Some(self.stamps.earliest(host_ns)).filter(|at| is_fresh && *at >= began);
            match stamp {
                Some(at) => {
                    let sent = Sent { token, at: Some(at), stamped_by: StampedBy::Kernel };
                    answers.sent(owner, sent, counters);
                }
                None => answers.left(owner, token, Some(returned), counters),
            }
        }
    }
}

/// Takes stamps for which no departure waits any more, so that these stamps end no wait.
pub(super) fn discard(fd: RawFd) {
    for _ in 0..WAITING_MAX {
        if returned(fd).is_none() {
            return;
        }
    }
}

/// The next departure that came back: its number, and its stamp by the host's clock.
fn returned(fd: RawFd) -> Option<(Option<u32>, Option<u64>)> {
    let mut control = Control::EMPTY;
    // SAFETY: a message header is plain integers and pointers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = CONTROL_BYTES;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the header points at control bytes that outlive the call, and at nothing else.
    checked(unsafe { libc::recvmsg(fd, &raw mut header, flags) } as libc::c_int).ok()?;
    let found = ancillary(&header);
    Some((found.departure, found.host_ns))
}
