//! The settings that make a [`Plain`](super::Plain) machine follow a scheme.

use evenfall_exchange_machine::Pace;

/// In which order a sender sends and a receiver grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Greatest remaining processing fraction first. With `randomise`, the fraction is taken at a
    /// random place within the packet (section 6.1.5).
    Grpf {
        /// See above.
        randomise: bool,
    },
    /// Shortest remaining first, as general transports do.
    Srpt,
    /// Longest remaining first.
    Grpt,
    /// Least recently served first: fair shares, whatever the lengths.
    Fair,
    /// Any.
    Chance,
}

/// How many packets of one message may be granted and not yet here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// In proportion to what is missing of the message (equation 3.8).
    ProRata,
    /// One round trip's worth.
    Constant,
}

/// What a sender sends before anybody has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unasked {
    /// Nothing but announcements.
    Nothing,
    /// The first round trip's worth of its own schedule, hence in proportion to the lengths.
    ProRata,
    /// The first round trip's worth of every message.
    PerMessage,
    /// Everything: no receiver has a say.
    All,
}

/// Messages that a receiver fetches at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// How many.
    pub messages: u32,
    /// When a slot is free for the next message.
    pub until: Until,
}

/// What ends the use of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// All of the message is here, as for the fetchers of Hadoop.
    Received,
    /// All of the message is granted: the words of chapter 6. A message no longer than the window
    /// is granted in one instant then, and the next one with it, so that slots limit nothing.
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
    pub pace: Pace,
    /// See [`Order`].
    pub order: Order,
    /// See [`Window`].
    pub window: Window,
    /// See [`Unasked`].
    pub unasked: Unasked,
    /// Packets that a receiver has granted and not yet received, at most; infinite for any number.
    pub outstanding_max: f64,
    /// Whether that limit starts at one round trip and grows by one with each packet received. The
    /// thesis names it in section 3.4 and leaves it open.
    pub slow_start: bool,
    /// Messages that a receiver grants to at a time, drawn by chance; `None` for all.
    pub slots: Option<Slots>,
    /// Messages that a sender works on at a time, without grants; `None` for all.
    pub outgoing_max: Option<u32>,
    /// How many packets a granted packet may be ahead of the first unsent one, in the sender's
    /// schedule; `None` for any number (figure 6.15).
    pub redirect_packets: Option<u32>,
}

impl Rules {
    /// GRPF as the thesis prints it, with an overcommitment of 10.
    pub fn printed(packet_bytes: u32, rtt_packets: u32, pace: Pace) -> Self {
        Self {
            packet_bytes,
            rtt_packets,
            pace,
            order: Order::Grpf { randomise: true },
            window: Window::ProRata,
            unasked: Unasked::ProRata,
            outstanding_max: 10.0 * f64::from(rtt_packets),
            slow_start: false,
            slots: None,
            outgoing_max: None,
            redirect_packets: None,
        }
    }
}
