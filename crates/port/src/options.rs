//! What can be chosen about a port.

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::Inject;

/// What a port is made of.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A UDP socket of the kernel.
    #[default]
    Udp,
}

impl Kind {
    /// All kinds with their names in settings.
    pub const NAMED: &[(&str, Self)] = &[("udp", Self::Udp)];

    /// Whether ports of this kind carry out forwarding installs; a port that does not ignores them.
    pub fn forwards(self) -> bool {
        match self {
            Self::Udp => false,
        }
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMED.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }
}

/// How a port works. A port notes what it was asked for and does not have.
#[derive(Clone, Debug)]
pub struct Options {
    /// What [`open`](crate::open) opens.
    pub kind: Kind,
    /// Whether every datagram is authenticated with a shared key. Without one the driver binds and
    /// sends to loopback only.
    pub keyed: bool,
    /// Bytes asked of the kernel for waiting arrivals. The kernel doubles it for its own overhead
    /// and caps it at `net.core.rmem_max` unless the process may force it.
    pub receive_buffer_bytes: usize,
    /// Bytes asked of the kernel for departing datagrams.
    pub send_buffer_bytes: usize,
    /// Frames of each class that wait in this process when the kernel takes no more. A frame is one
    /// transmit, whatever its fan-out. The newest is dropped when its class is full.
    pub queue_frames_max: usize,
    /// Send several datagrams to one destination as one segmented buffer (`UDP_SEGMENT`). Falls
    /// back by itself where the kernel or the card refuses.
    pub segmentation: bool,
    /// Take several datagrams of one sender as one buffer (`UDP_GRO`).
    pub coalescing: bool,
    /// Largest datagram that is received; longer ones are counted and dropped. Only used without
    /// coalescing, whose buffers hold 64 KiB.
    pub datagram_bytes_max: usize,
    /// Datagrams, or coalesced buffers, taken by one system call. Each has its own buffer.
    pub receive_batch: usize,
    /// Most bytes of pooled memory that arrivals still held by machines may pin. Beyond it each
    /// arrival is copied into memory of exactly its size.
    pub pinned_bytes_max: usize,
    /// Arrivals are stamped by the kernel when they enter the socket, not by this process when it
    /// reads them. Costs about 5 % of a receive.
    pub kernel_timestamps: bool,
    /// The IPv4 address of the interface on which a multicast group that is bound to is joined,
    /// and over which datagrams to groups leave; the routing table's choice by default. Without a
    /// key it must be a loopback address. An IPv6 group names its interface by its scope id.
    pub multicast_interface: Option<Ipv4Addr>,
    /// The kernel polls the card this long before it sleeps (`SO_BUSY_POLL`). Needs CAP_NET_ADMIN.
    pub busy_poll: Option<Duration>,
    /// Differentiated-services code point per class (control, live, repair, bulk), 0 to 63.
    pub dscp: Option<[u8; 4]>,
    /// [`wait`](crate::Port::wait) never sleeps. One core per driver.
    pub never_sleep: bool,
    /// How long before a deadline [`wait`](crate::Port::wait) stops sleeping and watches the
    /// clock. Measured on a virtual machine (`examples/lateness.rs`): without it half of the waits
    /// end more than 32 us late and 1 % more than 62 us; with 50 us, .09 us and 18 us.
    pub spin: Duration,
    /// The greatest share of the time that is spent spinning: one for no limit. Where more
    /// processes than cores run, spinning takes the time of a neighbour; where all are quiet it
    /// wakes the core before the deadline comes.
    pub spin_share: f64,
    /// How long arrivals may wait unread while the machines have no use for them
    /// ([`poll_lull`](evenfall_core::Machine::poll_lull)): one wake-up for many. Zero for none. To
    /// be used with `kernel_timestamps`, by which it is known when they came.
    pub moderation: Duration,
    /// How long [`wait`](crate::Port::wait) looks for arrivals before it sleeps, and lets
    /// others have its core between two looks (`sched_yield`). Zero where answers take long.
    pub yield_for: Duration,
    /// Hold arriving datagrams back, for experiments. Costs one branch per batch when off.
    pub inject: Option<Inject>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kind: Kind::Udp,
            keyed: false,
            // 100 ms of a 35,000 msg/s feed at 1 KiB of kernel memory each.
            receive_buffer_bytes: 4 << 20,
            send_buffer_bytes: 1 << 20,
            // 15 full segmented buffers; at 200 bytes of head each, 200 KiB per class.
            queue_frames_max: 1024,
            segmentation: true,
            coalescing: true,
            // All that IPv4 carries: whoever may send a datagram finds a buffer that holds it. A
            // batch of 16 takes 1 MiB, as it does with coalescing.
            datagram_bytes_max: crate::DATAGRAM_BYTES_MAX,
            receive_batch: 16,
            pinned_bytes_max: 32 << 20,
            kernel_timestamps: false,
            multicast_interface: None,
            busy_poll: None,
            dscp: None,
            never_sleep: false,
            spin: Duration::ZERO,
            spin_share: 1.0,
            moderation: Duration::ZERO,
            yield_for: Duration::ZERO,
            inject: None,
        }
    }
}

impl Options {
    /// These options with a key.
    pub fn keyed(mut self) -> Self {
        self.keyed = true;
        self
    }

    /// Whether the socket must be re-marked when the class changes.
    pub(crate) fn marks_differ(&self) -> bool {
        self.dscp.is_some_and(|marks| marks.iter().any(|mark| *mark != marks[0]))
    }
}
