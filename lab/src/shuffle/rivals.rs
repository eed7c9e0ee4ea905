//! How other schemes would send the same matrix on the same network.
//!
//! A rival is a set of rules of the [plain machine](super::plain), as the thesis adapted the scheme
//! (chapter 6). The whole GRPF is the exchange itself. GRPF without some part, or as printed, is
//! also the plain machine.

use core::fmt;
use core::str::FromStr;

use super::plain::rules::{Order, Rules, Slots, Unasked, Until, Window};

/// A scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rival {
    /// Ours.
    Grpf,
    /// Ours, with windows that follow the slowest receiver, known at once (equation 3.14).
    Global,
    /// The same, known by the all-reduce in the protocol itself.
    Reduce,
    /// Fair shares among this many messages per receiver, drawn by chance; the next is drawn when
    /// all of a message is here.
    Hadoop(u32),
    /// The same by the words of chapter 6: the next is drawn when all of a message is granted.
    HadoopGranted(u32),
    /// Every message at the rate that ends all together; nobody asks the receivers.
    Madd,
    /// Shortest remaining first, with overcommitment.
    Srpt,
    /// Longest remaining first, with overcommitment.
    Grpt,
    /// Step by step: in step k everybody sends to the rank k further, then a barrier.
    Lockstep,
    /// Some messages at a time, drawn by chance, in chunks of 40 KB; packets by chance too.
    Entropy,
}

/// Messages that a high-entropy sender works on at a time. The thesis names no number.
const ENTROPY_MESSAGES: u32 = 8;

impl Rival {
    /// The rules of the plain machine for this scheme, out of those for GRPF as printed; `None`
    /// when the exchange itself runs.
    pub fn rules(self, ablation: Ablation, printed: Rules) -> Option<Rules> {
        let asked = Rules { unasked: Unasked::Nothing, ..printed.clone() };
        let baseline = |order| Rules { order, window: Window::Constant, ..asked.clone() };
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

/// GRPF with parts of it taken away, in the order in which section 6.1 adds them. All from
/// [`Printed`](Self::Printed) on are as printed: without the slow start of section 3.4, which the
/// thesis leaves open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ablation {
    /// Nothing is missing: the exchange itself.
    #[default]
    Whole,
    /// Nothing is missing, but the plain machine runs it: the model of the exchange.
    Model,
    /// Only the slow start.
    Printed,
    /// And unscheduled packets.
    Scheduled,
    /// And chance in the priorities.
    Even,
    /// And windows in proportion: the protocol that the others are built on.
    Baseline,
    /// Printed, but the first round trip of every message goes unasked.
    PerMessage,
    /// Printed, but a sender may look ahead in its schedule by so many packets only.
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
            Self::Baseline => Rules { unasked, order, window: Window::Constant, ..printed },
            Self::PerMessage => Rules { unasked: Unasked::PerMessage, ..printed },
            Self::Redirect(packets) => Rules { redirect_packets: Some(packets), ..printed },
        }
    }
}

impl FromStr for Rival {
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

impl fmt::Display for Rival {
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
