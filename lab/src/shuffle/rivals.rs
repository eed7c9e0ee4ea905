//! How others would send the same matrix, on the same machine and the same network.
//!
//! What makes a scheme is its settings: the order of packets and grants, windows, what is sent
//! unasked. So the rivals are the exchange itself, differently set, as the thesis adapted them
//! (chapter 6): what they lack is their scheme's, not their implementation's.

use core::fmt;
use core::str::FromStr;

use evenfall_exchange_machine::{Config, Policy, Unscheduled, Window};

/// A scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rival {
    /// Ours.
    Grpf,
    /// Ours, with windows that follow the slowest receiver, known at once (equation 3.14).
    Global,
    /// The same, known by the all-reduce in the protocol itself.
    Reduce,
    /// Fair shares among this many messages per receiver, drawn by chance.
    Hadoop(u32),
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
    /// The settings of the scheme, on top of those of the network.
    pub fn configure(self, config: &mut Config) {
        let baseline = |config: &mut Config, policy| {
            config.policy = policy;
            config.window = Window::Constant;
            config.unscheduled = Unscheduled::None;
            config.randomise = false;
            // They lose more with it than without.
            config.slow_start = false;
        };
        match self {
            Self::Grpf | Self::Global => {}
            Self::Reduce => config.reduce = true,
            Self::Srpt => baseline(config, Policy::Srpt),
            Self::Grpt => baseline(config, Policy::Grpt),
            Self::Hadoop(messages) => {
                baseline(config, Policy::FairShare);
                config.incoming_max = Some(messages);
                config.overcommit = f64::from(u32::MAX);
            }
            Self::Madd => {
                config.unscheduled = Unscheduled::All;
                config.overcommit = 0.0;
            }
            Self::Lockstep => {
                config.unscheduled = Unscheduled::None;
                config.overcommit = 0.0;
            }
            Self::Entropy => {
                config.policy = Policy::Random;
                config.unscheduled = Unscheduled::None;
                config.overcommit = 0.0;
                config.outgoing_max = Some(ENTROPY_MESSAGES);
            }
        }
    }
}

/// The scheme with parts of it taken away, in the order in which section 6.1 adds them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ablation {
    /// Nothing is missing.
    #[default]
    Whole,
    /// Without unscheduled packets.
    Scheduled,
    /// And without chance in the priorities.
    Even,
    /// And with a constant window per message: the protocol that the others are built on.
    Baseline,
    /// Whole, but the first round trip of every message goes unasked.
    PerMessage,
    /// Whole, but a sender may look ahead in its schedule by so many packets only.
    Redirect(u32),
}

impl Ablation {
    /// Takes it away from these settings.
    pub fn configure(self, config: &mut Config) {
        match self {
            Self::Whole => {}
            Self::Scheduled => config.unscheduled = Unscheduled::None,
            Self::Even => {
                Self::Scheduled.configure(config);
                config.randomise = false;
            }
            Self::Baseline => {
                Self::Even.configure(config);
                config.window = Window::Constant;
                // As for the rivals above.
                config.slow_start = false;
            }
            Self::PerMessage => config.unscheduled = Unscheduled::PerMessage,
            Self::Redirect(packets) => config.redirect_packets = Some(packets),
        }
    }
}

impl FromStr for Rival {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(number) = text.strip_prefix("hadoop-") {
            let messages = number.parse().ok().filter(|&n| n > 0);
            return messages.map(Self::Hadoop).ok_or(format!("{text}: hadoop-C needs a C above 0"));
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
                    "{text}: take grpf, global, reduce, hadoop-C, madd, srpt, grpt, lockstep or \
                     entropy"
                ));
            }
        })
    }
}

impl fmt::Display for Rival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hadoop(messages) => write!(f, "hadoop-{messages}"),
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
