//! The settings that make a [`Plain`](super::Plain) machine follow a scheme.

use evenfall_collectives_machine::LinkPace;

/// The order in which a sender sends and a receiver grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Greatest remaining processing fraction first.
    Grpf {
        /// Whether the fraction is taken at a random place within the packet (section 6.1.5).
        randomise: bool,
    },
    /// Shortest remaining first, as general transports do.
    Srpt,
    /// Longest remaining first.
    Grpt,
    /// Least recently served first: fair shares, whatever the lengths.
    Fair,
    /// Random order.
    Chance,
}

/// Limit of the packets of one message that may be granted and not yet received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskWindow {
    /// In proportion to the missing bytes of the message (equation 3.8).
    ProRata,
    /// The packets of one round trip.
    Constant,
}

/// Packets that a sender sends before it has a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unasked {
    /// Only announcements.
    Nothing,
    /// The packets of one round trip from the beginning of the sender's schedule, which are in
    /// proportion to the lengths of the messages.
    ProRata,
    /// The packets of one round trip of every message.
    PerMessage,
    /// All packets, without any grants.
    All,
}

/// Messages that a receiver fetches at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// Number of messages.
    pub messages: u32,
    /// When a slot is free for the next message.
    pub until: Until,
}

/// The event that frees a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The whole message has arrived, as for the fetchers of Hadoop.
    Received,
    /// The whole message is granted, as chapter 6 states the rule. A message that fits into the
    /// window is then granted at once, and so is the next one, so that slots limit nothing.
    Granted,
}

/// All settings of a [`Plain`](super::Plain) machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// Payload of a full packet.
    pub packet_bytes: u32,
    /// Round trip without queues, in full packets at the link's rate.
    pub rtt_packets: u32,
    /// What a datagram costs the sender's link.
    pub pace: LinkPace,
    /// See [`Order`].
    pub order: Order,
    /// See [`AskWindow`].
    pub window: AskWindow,
    /// See [`Unasked`].
    pub unasked: Unasked,
    /// Limit of the packets that a receiver has granted and not yet received; infinite for no
    /// limit.
    pub outstanding_max: f64,
    /// Whether `outstanding_max` starts at one round trip and grows by one with each received
    /// packet. Section 3.4 of the thesis names this slow start and leaves it open.
    pub slow_start: bool,
    /// Messages that a receiver grants to at a time, drawn at random; `None` for all.
    pub slots: Option<Slots>,
    /// Messages that a sender works on at a time, without grants; `None` for all.
    pub outgoing_max: Option<u32>,
    /// Largest distance, in the sender's schedule, of a granted packet from the first unsent
    /// packet; `None` for no limit (figure 6.15).
    pub redirect_packets: Option<u32>,
}

impl Rules {
    /// GRPF as the thesis prints it, with an overcommitment of 10.
    pub fn printed(packet_bytes: u32, rtt_packets: u32, pace: LinkPace) -> Self {
        Self {
            packet_bytes,
            rtt_packets,
            pace,
            order: Order::Grpf { randomise: true },
            window: AskWindow::ProRata,
            unasked: Unasked::ProRata,
            outstanding_max: 10.0 * f64::from(rtt_packets),
            slow_start: false,
            slots: None,
            outgoing_max: None,
            redirect_packets: None,
        }
    }
}
