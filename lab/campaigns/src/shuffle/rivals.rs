//! Other schemes that send the same matrix on the same network.
//!
//! A rival is a set of rules of the [plain machine](super::plain), as chapter 6 of the thesis
//! adapts the scheme. The shuffle itself runs the complete GRPF. The plain machine also runs GRPF
//! as printed, and GRPF without some of its parts.

use core::fmt;
use core::str::FromStr;

use super::plain::rules::{AskWindow, Order, Rules, Slots, Unasked, Until};

/// A scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShuffleRival {
    /// The shuffle of the product.
    Grpf,
    /// The shuffle, with windows that follow the slowest receiver (equation 3.14). All ranks know
    /// the slowest receiver at once.
    Global,
    /// As `Global`, but the all-reduce of the protocol finds the slowest receiver.
    Reduce,
    /// Fair shares among this many random messages per receiver. The next message is drawn when a
    /// message has arrived.
    Hadoop(u32),
    /// As `Hadoop`, but the next message is drawn when a message is granted, as chapter 6 states.
    HadoopGranted(u32),
    /// Each message at a rate by which all messages end together, without grants.
    Madd,
    /// Shortest remaining first, with overcommitment.
    Srpt,
    /// Longest remaining first, with overcommitment.
    Grpt,
    /// In step k each rank sends to the rank k further on. A barrier follows each step.
    Lockstep,
    /// Some random messages at a time, in chunks of 40 KB, with packets in random order.
    Entropy,
}

/// Messages that a high-entropy sender works on at a time. The thesis names no number.
const ENTROPY_MESSAGES: u32 = 8;

impl ShuffleRival {
    /// The rules of the plain machine for this scheme, derived from the rules of GRPF as printed;
    /// `None` when the shuffle itself runs.
    pub fn rules(self, ablation: Ablation, printed: Rules) -> Option<Rules> {
        let asked = Rules { unasked: Unasked::Nothing, ..printed.clone() };
        let baseline = |order| Rules { order, window: AskWindow::Constant, ..asked.clone() };
        let fair = |messages, until| Rules {
            slots: Some(Slots { messages, until }),
            outstanding_max: f64::INFINITY,
            ..baseline(Order::Fair)
        };
        Some(match self {
            Self::Grpf if ablation == Ablation::Whole => return None,
            Self::Global | Self::Reduce => return None,
            Self::Grpf => ablation.rules(printed),
            Self::Srpt => baseline(Order::Srpt),
            Self::Grpt => baseline(Order::Grpt),
            Self::Hadoop(messages) => fair(messages, Until::Received),
            Self::HadoopGranted(messages) => fair(messages, Until::Granted),
            Self::Madd => Rules { unasked: Unasked::All, ..printed },
            Self::Lockstep => Rules { outstanding_max: 0.0, ..asked },
            Self::Entropy => Rules {
                order: Order::Chance,
                outstanding_max: 0.0,
                outgoing_max: Some(ENTROPY_MESSAGES),
                ..asked
            },
        })
    }
}

/// GRPF without some of its parts, in the order in which section 6.1 adds them. All variants from
/// [`Printed`](Self::Printed) on lack the slow start of section 3.4, which the thesis leaves open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ablation {
    /// All parts, run by the shuffle itself.
    #[default]
    Whole,
    /// All parts, run by the plain machine as a model of the shuffle.
    Model,
    /// Without the slow start.
    Printed,
    /// Also without unscheduled packets.
    Scheduled,
    /// Also without randomised priorities.
    Even,
    /// Also without windows in proportion. This is the protocol to which section 6.1 adds the
    /// parts.
    Baseline,
    /// As `Printed`, but the packets of one round trip of every message are sent unasked.
    PerMessage,
    /// As `Printed`, but a sender may look ahead in its schedule by at most this many packets.
    Redirect(u32),
}

impl Ablation {
    fn rules(self, printed: Rules) -> Rules {
        let (unasked, order) = (Unasked::Nothing, Order::Grpf { randomise: false });
        match self {
            Self::Whole | Self::Model => Rules { slow_start: true, ..printed },
            Self::Printed => printed,
            Self::Scheduled => Rules { unasked, ..printed },
            Self::Even => Rules { unasked, order, ..printed },
            Self::Baseline => Rules { unasked, order, window: AskWindow::Constant, ..printed },
            Self::PerMessage => Rules { unasked: Unasked::PerMessage, ..printed },
            Self::Redirect(packets) => Rules { redirect_packets: Some(packets), ..printed },
        }
    }
}

impl FromStr for ShuffleRival {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(number) = text.strip_prefix("hadoop-") {
            let (number, scheme): (&str, fn(u32) -> Self) = match number.strip_suffix("-granted") {
                Some(number) => (number, Self::HadoopGranted),
                None => (number, Self::Hadoop),
            };
            let messages = number.parse().ok().filter(|&n| n > 0);
            return messages.map(scheme).ok_or(format!("{text}: hadoop-C needs a C above 0"));
        }
        Ok(match text {
            "grpf" => Self::Grpf,
            "global" => Self::Global,
            "reduce" => Self::Reduce,
            "madd" => Self::Madd,
            "srpt" => Self::Srpt,
            "grpt" => Self::Grpt,
            "lockstep" => Self::Lockstep,
            "entropy" => Self::Entropy,
            _ => {
                return Err(format!(
                    "{text}: take grpf, global, reduce, hadoop-C, hadoop-C-granted, madd, srpt, \
                     grpt, lockstep or entropy"
                ));
            }
        })
    }
}

impl fmt::Display for ShuffleRival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hadoop(messages) => write!(f, "hadoop-{messages}"),
            Self::HadoopGranted(messages) => write!(f, "hadoop-{messages}-granted"),
            Self::Grpf => f.write_str("grpf"),
            Self::Global => f.write_str("global"),
            Self::Reduce => f.write_str("reduce"),
            Self::Madd => f.write_str("madd"),
            Self::Srpt => f.write_str("srpt"),
            Self::Grpt => f.write_str("grpt"),
            Self::Lockstep => f.write_str("lockstep"),
            Self::Entropy => f.write_str("entropy"),
        }
    }
}
