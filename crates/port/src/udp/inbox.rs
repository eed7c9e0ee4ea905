//! Batched receive into pooled memory.
//!
//! A receive buffer must be as large as the largest datagram, or 64 KiB where the kernel coalesces
//! several. Most arrivals are far smaller. A buffer that is handed out for a 100-byte message would
//! pin 64 KiB for as long as a machine holds the message. Three rules avoid this:
//!
//! - a buffer that is at least [`HANDOVER_BYTES`] full is handed out as it is, with every datagram
//!   a slice of it. The buffer returns to the pool when the last slice is dropped;
//! - a smaller arrival is copied, right after the previous one, into a *chunk* that many arrivals
//!   share ([`FrameMemory`]), without an allocation per arrival;
//! - when the buffers and chunks in use reach the stated budget, each arrival is copied into memory
//!   of exactly its size, and pins nothing else.

use std::collections::VecDeque;
use std::mem;
use std::os::fd::RawFd;

use bytes::{Bytes, BytesMut};
use evenfall_core::{Arrival, FrameMemory, StampedBy, Timestamp};

use crate::sys::{CONTROL_BYTES, Control, RawAddress, checked};
use crate::{Counters, Options};
use evenfall_host::clock::{HostStamps, MonotonicClock};

/// The largest coalesced buffer that the kernel delivers.
const COALESCED_BYTES_MAX: usize = 65_536;
/// Bytes of a chunk. The size serves hundreds of small arrivals, and one held arrival pins little.
const CHUNK_BYTES: usize = 65_536;
/// A buffer with fewer bytes is copied. Measured with `examples/receive.rs` in ns per datagram,
/// copied against handed over: single datagrams of 256 bytes 533 and 627, of 878 bytes 629 and 700.
/// Handing over wins only when one buffer holds many datagrams.
const HANDOVER_BYTES: usize = 16_384;

/// The kernel's facts about a datagram besides its bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct Ancillary {
    segment_bytes: usize,
    /// The stamp of the arrival or of the departure, by the host's clock.
    pub(super) host_ns: Option<u64>,
    /// The number of a departure that came back with its stamp.
    pub(super) departure: Option<u32>,
    /// The mark of the packet, where the kernel tells marks.
    mark: Option<u32>,
}

pub(super) struct Inbox {
    /// Each has `buffer_bytes` bytes.
    buffers: Vec<BytesMut>,
    buffer_bytes: usize,
    names: Vec<RawAddress>,
    controls: Vec<Control>,
    iovecs: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
    /// The rest of each buffer that was handed out, oldest first. The buffer is free again when its
    /// last datagram is dropped.
    lent: VecDeque<BytesMut>,
    lent_max: usize,
    chunks: FrameMemory,
    /// Turns the kernel's stamps into local times, where the kernel stamps.
    stamps: Option<HostStamps>,
    /// Whether the last batch was not full.
    is_drained: bool,
    /// The mark of a packet that was sent on beside the socket.
    pub(super) mark: Option<u32>,
}

// SAFETY: the raw pointers in `iovecs` and `messages` lead to memory that the inbox owns and that
// does not move with it. Only `&mut self` uses them.
unsafe impl Send for Inbox {}

impl Inbox {
    pub(super) fn new(options: &Options, coalescing: bool) -> Self {
        let bytes = if coalescing { COALESCED_BYTES_MAX } else { options.datagram_bytes_max };
        let batch = options.receive_batch.max(1);
        // Half of the budget is for buffers in use, and half for chunks.
        let half = options.pinned_bytes_max / 2;
        Self {
            buffers: (0..batch).map(|_| BytesMut::zeroed(bytes)).collect(),
            buffer_bytes: bytes,
            names: vec![RawAddress::zeroed(); batch],
            controls: vec![Control::EMPTY; batch],
            iovecs: Vec::with_capacity(batch),
            messages: Vec::with_capacity(batch),
            lent: VecDeque::new(),
            lent_max: half / bytes,
            chunks: FrameMemory::new(CHUNK_BYTES, 1 + half / CHUNK_BYTES),
            stamps: options.kernel_timestamps.then(HostStamps::default),
            is_drained: false,
            mark: None,
        }
    }

    pub(super) fn is_drained(&self) -> bool {
        self.is_drained
    }

    /// Takes at most one batch of arrivals. Returns the number of buffers that the kernel filled.
    pub(super) fn receive(
        &mut self,
        fd: RawFd,
        out: &mut Vec<Arrival>,
        counters: &mut Counters,
    ) -> usize {
        self.prepare();
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: each message points at a name, an iovec over a buffer and control bytes that this
        // inbox owns and that nothing else touches during the call; no timeout is given.
        let result = unsafe {
            libc::recvmmsg(
                fd,
                self.messages.as_mut_ptr(),
                self.messages.len() as libc::c_uint,
                flags,
                std::ptr::null_mut(),
            )
        };
        let filled = match checked(result) {
            Ok(filled) => filled as usize,
            Err(error) => {
                if error.raw_os_error() == Some(libc::ECONNREFUSED) {
                    counters.connection_refused += 1;
                }
                self.is_drained = error.kind() == std::io::ErrorKind::WouldBlock;
                return 0;
            }
        };
        self.is_drained = filled < self.messages.len();
        counters.receive_calls += 1;
        let now = MonotonicClock::now();
        let stamps = self.stamps.as_mut().and_then(|stamps| stamps.look().then_some(*stamps));
        for at in 0..filled {
            self.deliver(at, now, stamps, out, counters);
        }
        filled
    }

    fn prepare(&mut self) {
        self.iovecs.clear();
        self.messages.clear();
        for buffer in &mut self.buffers {
            let iov_base = buffer.as_mut_ptr().cast();
            self.iovecs.push(libc::iovec { iov_base, iov_len: buffer.len() });
        }
        for at in 0..self.buffers.len() {
            // SAFETY: message headers are plain integers and pointers, for which zero is a value.
            let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
            let header = &mut message.msg_hdr;
            header.msg_name = (&raw mut self.names[at]).cast();
            header.msg_namelen = size_of::<RawAddress>() as libc::socklen_t;
            header.msg_iov = &raw mut self.iovecs[at];
            header.msg_iovlen = 1;
            header.msg_control = (&raw mut self.controls[at]).cast();
            header.msg_controllen = CONTROL_BYTES;
            self.messages.push(message);
        }
    }

    fn deliver(
        &mut self,
        at: usize,
        now: Timestamp,
        stamps: Option<HostStamps>,
        out: &mut Vec<Arrival>,
        counters: &mut Counters,
    ) {
        let message = self.messages[at];
        let len = message.msg_len as usize;
        let Some(from) = self.names[at].to_std() else { return };
        if message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
            counters.truncated += 1;
            return;
        }
        let ancillary = ancillary(&message.msg_hdr);
        let (received, stamped_by) = match ancillary.host_ns.zip(stamps) {
            Some((ns, stamps)) => (stamps.latest(ns).min(now), StampedBy::Kernel),
            None => (now, StampedBy::User),
        };
        let segment = match ancillary.segment_bytes {
            0 => len.max(1),
            bytes => bytes,
        };
        let is_forwarded = self.mark.is_some() && ancillary.mark == self.mark;
        let whole = self.take(at, len, segment, counters);
        counters.received_bytes += len as u64;
        let mut start = 0;
        loop {
            let end = (start + segment).min(len);
            let datagram = match &whole {
                Some(whole) => whole.slice(start..end),
                None => Bytes::copy_from_slice(&self.buffers[at][start..end]),
            };
            counters.received += 1;
            out.push(Arrival { from, datagram, received, stamped_by, is_forwarded });
            start = end;
            if start >= len {
                break;
            }
        }
    }

    /// The bytes of a filled buffer as one shared piece; `None` when the budget is used up.
    fn take(
        &mut self,
        at: usize,
        len: usize,
        segment: usize,
        counters: &mut Counters,
    ) -> Option<Bytes> {
        if len >= HANDOVER_BYTES
            && let Some(fresh) = self.fresh_buffer()
        {
            let mut rest = mem::replace(&mut self.buffers[at], fresh);
            let filled = rest.split_to(len).freeze();
            // An empty rest takes the whole buffer back.
            rest.clear();
            self.lent.push_back(rest);
            return Some(filled);
        }
        let copied = self.chunks.try_copy(&self.buffers[at][..len]);
        if copied.is_none() {
            counters.copied_out += len.div_ceil(segment) as u64;
        }
        copied
    }

    /// A buffer to put in the place of one that is handed out; `None` when the budget is used up.
    fn fresh_buffer(&mut self) -> Option<BytesMut> {
        let bytes = self.buffer_bytes;
        if let Some(oldest) = self.lent.front_mut()
            && oldest.try_reclaim(bytes)
            && let Some(mut free) = self.lent.pop_front()
        {
            // SAFETY: the whole memory of the buffer was zeroed when it was made, and `try_reclaim`
            // made room for `bytes` bytes.
            unsafe { free.set_len(bytes) };
            return Some(free);
        }
        if self.lent.len() < self.lent_max {
            return Some(BytesMut::zeroed(bytes));
        }
        // The list rotates, so that an old arrival does not hide the free buffers behind it.
        self.lent.rotate_left(usize::from(!self.lent.is_empty()));
        None
    }
}

/// Reads the control messages of a received datagram, or of a departure that came back.
pub(super) fn ancillary(header: &libc::msghdr) -> Ancillary {
    let mut found = Ancillary::default();
    // SAFETY: the kernel wrote `msg_controllen` bytes of well-formed control messages into the
    // buffer that the header points at; the macros stay inside it.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while !message.is_null() {
            let data = libc::CMSG_DATA(message);
            match ((*message).cmsg_level, (*message).cmsg_type) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    let bytes = data.cast::<libc::c_int>().read_unaligned();
                    found.segment_bytes = usize::try_from(bytes).unwrap_or(0);
                }
                // The first of three stamps is the kernel's, or zero without a stamp of the kernel.
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS | libc::SCM_TIMESTAMPING) => {
                    let time = data.cast::<libc::timespec>().read_unaligned();
                    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
                    let ns = seconds * 1_000_000_000 + time.tv_nsec as u64;
                    found.host_ns = (ns > 0).then_some(ns);
                }
                (libc::SOL_SOCKET, libc::SO_MARK) => {
                    found.mark = Some(data.cast::<u32>().read_unaligned());
                }
                (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR) => {
                    let error = data.cast::<libc::sock_extended_err>().read_unaligned();
                    if error.ee_origin == libc::SO_EE_ORIGIN_TIMESTAMPING {
                        found.departure = Some(error.ee_data);
                    }
                }
                _ => {}
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    found
}
