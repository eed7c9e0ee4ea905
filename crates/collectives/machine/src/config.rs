//! The settings of the shuffle, each with its unit and the reason for its default.

use core::time::Duration;

use crate::chunks::ChunkRule;

/// What a datagram costs the sender's link. Costs are picoseconds, because a byte takes 80 ps at
/// 100 Gb/s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkPace {
    /// Cost of each byte of payload. With 0 there is no pace, and the driver's backpressure
    /// decides.
    pub ps_per_byte: u64,
    /// Cost of each datagram with payload, in addition to the cost of its bytes.
    pub ps_per_data: u64,
    /// Cost of each datagram without payload.
    pub ps_per_control: u64,
    /// How far ahead of the pace the sender may run, so that a driver has datagrams to batch.
    pub burst: Duration,
}

impl LinkPace {
    /// The pace of a link of this rate, with headers of this many bytes around each payload.
    pub fn link(bits_per_s: u64, overhead_bytes: u64, burst: Duration) -> Self {
        let ps_per_byte = 8_000_000_000_000 / bits_per_s.max(1);
        let ps_per_data = ps_per_byte * overhead_bytes;
        Self { ps_per_byte, ps_per_data, ps_per_control: ps_per_data, burst }
    }
}

/// All settings of a [`Shuffle`](crate::Shuffle). The members of one operation must agree on
/// `packet_bytes` and `chunks`. Each member chooses the other settings for itself.
#[derive(Clone, Debug, PartialEq)]
pub struct ShuffleConfig {
    /// Payload of a full packet in bytes. A payload of 1,432 fills an Ethernet frame of 1,500.
    pub packet_bytes: u32,
    /// Round trip between two members without queues, in full packets at the link's rate.
    pub rtt_packets: u32,
    /// Packets that a receiver may have granted and not yet received, in round trips. A value of 2
    /// is enough on a quiet network, and 10 outlasts pre-emptions (section 6.2.2 of the thesis).
    pub overcommit: f64,
    /// Packets granted at a time, where the window allows. Larger grants save datagrams. Smaller
    /// grants keep the shares of small messages exact.
    pub grant_packets: u32,
    /// Cuts messages into chunks with random targets, in place of the shuffle's own schedule. All
    /// members must choose alike.
    pub chunks: Option<ChunkRule>,
    /// Whether windows follow the slowest receiver (equation 3.14). An all-reduce finds that
    /// receiver.
    pub reduce: bool,
    /// The pace of this member's link.
    pub pace: LinkPace,
    /// How long a message may make no progress before its receiver asks again. The time is far
    /// above the longest queue, because repeats would add load to a congested network.
    pub resend_after: Duration,
    /// The shortest interval between repeats. The interval follows the measured round trip, and
    /// stays between this value and `resend_after`. The interval also stays above three bursts of
    /// the pace, because a sender may rest that long. Two equal values fix the interval.
    pub resend_after_min: Duration,
    /// How long a member may be silent while others wait for it. After this time the operation
    /// fails and names the member.
    pub silence_max: Duration,
    /// Bytes of incoming messages that one operation may take at most.
    pub incoming_bytes_max: u64,
    /// Bytes of memory that are kept from dropped messages for new messages. Memory beyond this
    /// limit is freed.
    pub kept_bytes_max: usize,
    /// Bytes of datagrams that are kept for operations that have not begun here. Datagrams beyond
    /// this limit are dropped.
    pub staged_bytes_max: usize,
    /// How long datagrams are kept for an operation that has not begun here.
    pub staged_for: Duration,
    /// Ended operations that the machine remembers, so that it can repeat a lost acknowledgement.
    pub ended_max: usize,
}

impl Default for ShuffleConfig {
    fn default() -> Self {
        Self {
            packet_bytes: 1_432,
            rtt_packets: 16,
            overcommit: 10.0,
            grant_packets: 1,
            chunks: None,
            reduce: false,
            pace: LinkPace::default(),
            resend_after: Duration::from_millis(10),
            resend_after_min: Duration::from_millis(1),
            silence_max: Duration::from_secs(3),
            incoming_bytes_max: 8 << 30,
            kept_bytes_max: 64 << 20,
            staged_bytes_max: 64 << 20,
            staged_for: Duration::from_secs(5),
            ended_max: 256,
        }
    }
}
