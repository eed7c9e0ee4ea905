//! How the copies of a group leave: one by one, or by the kernel from one datagram.

use std::sync::atomic::{AtomicU64, Ordering};

/// A gate of a group that [`ForwardingBackend`](super::ForwardingBackend) opens while the kernel
/// can copy a datagram to all members. One thread uses a gate; the atomic words let groups move
/// between threads.
#[derive(Default)]
pub(crate) struct CopyGate {
    /// The mark, the place of the lead among the members, and the bytes of the longest datagram:
    /// 32, 16 and 16 bits. Zero while the gate is shut.
    way: AtomicU64,
    /// Marked datagrams that left. A buffer of several datagrams counts once.
    sent: AtomicU64,
}

/// How one datagram becomes the copies of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MarkedWay {
    /// The mark that the datagram must have.
    pub(crate) mark: u32,
    /// The place of the member to whose address the datagram goes.
    pub(crate) lead: usize,
}

impl CopyGate {
    /// Opens the gate for datagrams of at most this length, which the kernel copies from now on.
    #[cfg_attr(not(feature = "ebpf"), allow(dead_code, reason = "only a kernel's program copies"))]
    pub(crate) fn open_gate(&self, way: MarkedWay, datagram_bytes_max: usize) {
        let longest = u64::from(u16::try_from(datagram_bytes_max).unwrap_or(u16::MAX));
        let word = u64::from(way.mark) << 32 | (way.lead as u64 & 0xffff) << 16 | longest;
        self.way.store(word, Ordering::Relaxed);
    }

    /// Shuts the gate, so that copies leave one by one.
    #[cfg_attr(not(feature = "ebpf"), allow(dead_code, reason = "only a kernel's program copies"))]
    pub(crate) fn shut_gate(&self) {
        self.way.store(0, Ordering::Relaxed);
    }

    /// How the kernel copies a datagram of this length, or segments of it; `None` when copies leave
    /// one by one.
    pub(crate) fn way_for(&self, datagram_bytes: usize) -> Option<MarkedWay> {
        if !cfg!(feature = "ebpf") {
            return None;
        }
        let word = self.way.load(Ordering::Relaxed);
        let fits = datagram_bytes <= usize::from(word as u16);
        let way = MarkedWay { mark: (word >> 32) as u32, lead: usize::from((word >> 16) as u16) };
        (word != 0 && fits).then_some(way)
    }

    pub(crate) fn count_sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// Marked datagrams that left.
    #[cfg_attr(not(feature = "ebpf"), allow(dead_code, reason = "only a kernel's program copies"))]
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}
