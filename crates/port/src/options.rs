//! The options of a port.

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::{Inject, PortKind};

/// The options of a port. A port notes the options that it was asked for and does not support.
#[derive(Clone, Debug)]
pub struct Options {
    /// The kind of port that [`open`](crate::open) opens.
    pub kind: PortKind,
    /// Whether every datagram is authenticated with a shared key. Without a key the driver binds
    /// and sends to loopback only.
    pub keyed: bool,
    /// Bytes of kernel memory for waiting arrivals. The kernel doubles the number for its own
    /// overhead, and caps it at `net.core.rmem_max` unless the process may exceed that.
    pub receive_buffer_bytes: usize,
    /// Bytes of kernel memory for departing datagrams.
    pub send_buffer_bytes: usize,
    /// Frames of each class that wait in this process when the kernel takes no more. A frame is one
    /// transmit with all its copies. When a class is full, its newest frame is dropped.
    pub queue_frames_max: usize,
    /// Bytes of the frames of each class that wait in this process. A class that has reached the
    /// limit takes no frame, so that the last frame may exceed the limit.
    pub queue_bytes_max: usize,
    /// Bytes that may wait in the kernel when frames of the class
    /// [`Repair`](evenfall_core::TrafficClass) leave. While more wait, repairs stay in this
    /// process, for a millisecond at most, and let the feed pass. `None` lets repairs leave at
    /// once.
    pub repair_backlog_bytes_max: Option<usize>,
    /// Whether several datagrams to one destination are sent as one segmented buffer
    /// (`UDP_SEGMENT`). The port falls back to single datagrams where the kernel or the card
    /// refuses.
    pub segmentation: bool,
    /// Whether several datagrams of one sender are taken as one buffer (`UDP_GRO`).
    pub coalescing: bool,
    /// Largest datagram that is received. Longer datagrams are counted and dropped. The option
    /// matters only without coalescing, whose buffers hold 64 KiB.
    pub datagram_bytes_max: usize,
    /// Datagrams, or coalesced buffers, that one system call takes. Each has its own buffer.
    pub receive_batch: usize,
    /// Bytes of pooled memory that arrivals in machines may pin. Beyond this limit each arrival is
    /// copied into memory of exactly its size.
    pub pinned_bytes_max: usize,
    /// Whether the kernel stamps arrivals and departures. Without this option the process stamps
    /// them. The kernel stamps an arrival when the datagram enters the socket. If a machine asks
    /// about a departure, the kernel stamps the departure when the datagram goes to the network
    /// card. Stamps of arrivals cost about 5 % of a receive. A stamp of a departure costs a system
    /// call.
    pub kernel_timestamps: bool,
    /// The IPv4 address of the interface for multicast groups. The port joins a bound group on this
    /// interface, and sends to groups over it. By default the routing table chooses. Without a key
    /// it must be a loopback address. An IPv6 group names its interface by its scope id.
    pub multicast_interface: Option<Ipv4Addr>,
    /// How long the kernel polls the card before it sleeps (`SO_BUSY_POLL`). The option needs
    /// CAP_NET_ADMIN.
    pub busy_poll: Option<Duration>,
    /// Differentiated-services code point per class (control, live, repair, bulk), 0 to 63.
    pub dscp: Option<[u8; 4]>,
    /// Whether [`wait`](crate::Port::wait) never sleeps. Such a driver takes a core for itself.
    pub never_sleep: bool,
    /// How long before a deadline [`wait`](crate::Port::wait) stops sleeping and watches the clock.
    /// On a virtual machine (`examples/lateness.rs`), without spinning, half of the waits end more
    /// than 32 us late and 1 % more than 62 us late. With 50 us of spinning the figures are .09 us
    /// and 18 us.
    pub spin: Duration,
    /// The greatest share of the time that is spent spinning; one for no limit. Where more
    /// processes than cores run, spinning takes the time of a neighbour. Where all processes are
    /// quiet, spinning wakes the core before the deadline comes.
    pub spin_share: f64,
    /// How long arrivals may wait unread while the machines have no use for them
    /// ([`poll_lull`](evenfall_core::Machine::poll_lull)), so that one wake-up serves many
    /// arrivals. Zero switches this off. Moderation needs `kernel_timestamps`, which tell when the
    /// arrivals came.
    pub moderation: Duration,
    /// How long [`wait`](crate::Port::wait) looks for arrivals before it sleeps. Between two looks
    /// it yields its core (`sched_yield`). Zero is best where answers take long.
    pub yield_for: Duration,
    /// Delays of arriving datagrams, for experiments. When off, injection costs one branch per
    /// batch.
    pub inject: Option<Inject>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kind: PortKind::Udp,
            keyed: false,
            // Memory for 100 ms of a feed of 35,000 messages a second, at 1 KiB of kernel memory
            // each.
            receive_buffer_bytes: 4 << 20,
            send_buffer_bytes: 1 << 20,
            // The frames of 16 full segmented buffers. At 200 bytes of head each, a class takes 200
            // KiB.
            queue_frames_max: 1024,
            // As many of the longest datagrams as a loop pulls in one turn.
            queue_bytes_max: 16 << 20,
            repair_backlog_bytes_max: None,
            segmentation: true,
            coalescing: true,
            // The largest IPv4 datagram, so that every authenticated datagram fits a buffer. A
            // batch of 16 takes 1 MiB, as with coalescing.
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

    /// What these options ask for and no [port in memory](crate::memory) has. All fields are named
    /// here, so that a new option is either carried out or noted.
    pub(crate) fn lacks_in_memory(&self) -> Vec<String> {
        let Self {
            kernel_timestamps,
            multicast_interface,
            busy_poll,
            dscp,
            inject,
            // Memory has no segments and no kernel that joins datagrams; both are defaults, and
            // what arrives is the same without them.
            segmentation: _,
            coalescing: _,
            // Nothing waits between a sender's queue and the receiver's.
            send_buffer_bytes: _,
            repair_backlog_bytes_max: _,
            // A datagram arrives in memory of exactly its size, which is shared and never pooled.
            datagram_bytes_max: _,
            receive_batch: _,
            pinned_bytes_max: _,
            // What a port in memory carries out.
            kind: _,
            keyed: _,
            receive_buffer_bytes: _,
            queue_frames_max: _,
            queue_bytes_max: _,
            never_sleep: _,
            spin: _,
            spin_share: _,
            moderation: _,
            yield_for: _,
        } = self;
        let asked = [
            ("kernel_timestamps", *kernel_timestamps, "the sender's thread stamps arrivals"),
            ("multicast_interface", multicast_interface.is_some(), "there are no interfaces"),
            ("busy_poll", busy_poll.is_some(), "there is no card to poll"),
            ("dscp", dscp.is_some(), "no network reads code points"),
            ("inject", inject.is_some(), "nothing holds arrivals back"),
        ];
        let asked = asked.into_iter().filter(|(_, is_asked, _)| *is_asked);
        asked
            .map(|(name, _, why)| format!("{name} has no effect on a port in memory: {why}"))
            .collect()
    }
}
