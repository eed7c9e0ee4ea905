//! Every knob of the exchange, with its unit and the reason for its default.

use core::time::Duration;

use crate::wire::Key;

/// What a datagram costs the sender's link. Picoseconds, so that 100 Gb/s adds up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// Each byte of payload; 0 for no pacing: the driver's backpressure decides.
    pub ps_per_byte: u64,
    /// Each datagram with payload, besides.
    pub ps_per_data: u64,
    /// Each datagram without.
    pub ps_per_control: u64,
    /// How far ahead of the pace it may run, so that a driver has something to batch.
    pub burst: Duration,
}

impl Pace {
    /// The pace of a link of this rate, with headers of this many bytes around each payload.
    pub fn link(bits_per_s: u64, overhead_bytes: u64, burst: Duration) -> Self {
        let ps_per_byte = 8_000_000_000_000 / bits_per_s.max(1);
        let ps_per_data = ps_per_byte * overhead_bytes;
        Self { ps_per_byte, ps_per_data, ps_per_control: ps_per_data, burst }
    }
}

/// All settings of an [`Exchange`](crate::Exchange). Members of one operation must agree on
/// `packet_bytes` and on the key; all else is each one's own business.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Payload of a full packet. 1,432 fills an Ethernet frame of 1,500.
    pub packet_bytes: u32,
    /// Round trip between two members without queues, in full packets at the link's rate.
    pub rtt_packets: u32,
    /// Round trips' worth of packets that a receiver has granted and not yet received, at most.
    /// 2 is enough on a quiet network, 10 rides out pre-emptions (section 6.2.2).
    pub overcommit: f64,
    /// Packets granted at a time, where the window allows. More saves datagrams, fewer keep the
    /// shares of small messages exact.
    pub grant_packets: u32,
    /// Whether windows follow the slowest receiver (equation 3.14), whom an all-reduce finds.
    pub reduce: bool,
    /// See [`Pace`].
    pub pace: Pace,
    /// How long a message may make no progress before its receiver asks again. Far above the
    /// longest queue, or it adds load to a congested network.
    pub resend_after: Duration,
    /// What that interval falls to where answers come sooner: it follows the measured round trip,
    /// between this and `resend_after`, and stays above three bursts of the pace, for which a
    /// sender may rest. The same value twice keeps it fixed.
    pub resend_after_min: Duration,
    /// How long a member may be silent while something is expected of it; then the operation
    /// fails and names it.
    pub silence_max: Duration,
    /// Bytes of incoming messages of one operation, at most: what memory it may take.
    pub incoming_bytes_max: u64,
    /// Bytes of dropped messages' memory that are kept to be used again; more are freed.
    pub kept_bytes_max: usize,
    /// Bytes of datagrams kept for operations that have not begun here; more are dropped.
    pub staged_bytes_max: usize,
    /// How long they are kept.
    pub staged_for: Duration,
    /// Ended operations that are remembered, to answer for lost acknowledgements.
    pub ended_max: usize,
    /// Authenticates every datagram.
    pub key: Option<Key>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            packet_bytes: 1_432,
            rtt_packets: 16,
            overcommit: 10.0,
            grant_packets: 1,
            reduce: false,
            pace: Pace::default(),
            resend_after: Duration::from_millis(10),
            resend_after_min: Duration::from_millis(1),
            silence_max: Duration::from_secs(3),
            incoming_bytes_max: 8 << 30,
            kept_bytes_max: 64 << 20,
            staged_bytes_max: 64 << 20,
            staged_for: Duration::from_secs(5),
            ended_max: 256,
            key: None,
        }
    }
}
