//! The quickest kind of port that this host can run, for a node that sends to many.
//!
//! What is quick depends on the kernel, on the rights of the process and on the build, which the
//! author of a settings file does not know for each host. A node whose settings say `auto`
//! therefore tries before it opens its port ([`choose_kind`]). The trial uses sockets of its own
//! on loopback, so that no datagram of the feed takes part. A kind that lost or changed a frame is
//! not taken. A choice never breaks a start: [`open_chosen`] opens a UDP socket where the chosen
//! kind does not open at the address of the node.

use std::fmt::Write as _;
use std::net::SocketAddr;

use evenfall_host::Error;

use crate::{Options, Port, PortKind};

/// What a node does with the datagrams of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialPart {
    /// The node forwards each datagram that arrives.
    Proxy,
    /// The node sends datagrams of its own.
    Root,
}

/// What the datagrams of a run are like, for a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrialLoad {
    /// What the node does with them.
    pub part: TrialPart,
    /// Bytes of a datagram.
    pub datagram_bytes: usize,
    /// Copies of each datagram.
    pub fanout: usize,
}

/// What a trial of one kind found.
#[derive(Clone, Debug, PartialEq)]
pub enum TrialOutcome {
    /// The kind carried frames.
    Measured {
        /// Processor time of a copy, in nanoseconds. At a proxy the time has the copy's share of
        /// the arrival.
        cpu_ns_per_copy: f64,
        /// Copies that were to arrive.
        copies: u64,
        /// Copies that did not arrive.
        lost: u64,
        /// Copies that arrived with other bytes, or twice.
        damaged: u64,
    },
    /// Why the kind was not tried.
    Untried(String),
}

/// A kind, and what its trial found.
#[derive(Clone, Debug, PartialEq)]
pub struct KindTrial {
    /// The kind.
    pub kind: PortKind,
    /// What was found.
    pub outcome: TrialOutcome,
}

/// The kind of port that a node took, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortChoice {
    /// The kind.
    pub kind: PortKind,
    /// The reason, in words for people.
    pub why: String,
}

impl TrialOutcome {
    /// The cost of a copy, if every copy arrived as it should.
    fn sound_cost(&self) -> Option<f64> {
        match *self {
            Self::Measured { cpu_ns_per_copy, copies, lost: 0, damaged: 0 } if copies > 0 => {
                Some(cpu_ns_per_copy)
            }
            _ => None,
        }
    }
}

impl std::fmt::Display for TrialOutcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Measured { cpu_ns_per_copy, copies, lost, damaged } => {
                // A kind that ended in its first round has no median.
                if cpu_ns_per_copy.is_finite() {
                    write!(f, "{cpu_ns_per_copy:.0} ns a copy, ")?;
                }
                write!(f, "{lost} of {copies} lost")?;
                if *damaged > 0 {
                    write!(f, ", {damaged} damaged")?;
                }
                Ok(())
            }
            Self::Untried(why) => f.write_str(why),
        }
    }
}

/// The quickest kind among those that carried every copy. The default kind stands in where none
/// did, since it needs no right and no feature.
pub fn choose_quickest(trials: &[KindTrial]) -> PortChoice {
    let sound = trials.iter().filter_map(|trial| Some((trial.kind, trial.outcome.sound_cost()?)));
    let quickest = sound.min_by(|(_, one), (_, other)| one.total_cmp(other));
    let (kind, reason) = match quickest {
        Some((kind, _)) => (kind, "the quickest that carried every frame"),
        None => (PortKind::default(), "no kind carried every frame in the trial"),
    };
    PortChoice { kind, why: list_reasons(reason, trials) }
}

/// The reason of a choice, and behind it what was found of each kind.
fn list_reasons(reason: &str, trials: &[KindTrial]) -> String {
    let mut why = reason.to_owned();
    for KindTrial { kind, outcome } in trials {
        let _ = write!(why, "; {}: {outcome}", kind.settings_name());
    }
    why
}

/// The kinds that this process can open, and why it cannot open the others.
pub fn list_kinds() -> (Vec<PortKind>, Vec<KindTrial>) {
    let (mut can, mut cannot) = (Vec::new(), Vec::new());
    for (_, kind) in PortKind::NAMED {
        match kind.lacks() {
            None => can.push(*kind),
            Some(lacks) => {
                let outcome = TrialOutcome::Untried(format!("needs {lacks}"));
                cannot.push(KindTrial { kind: *kind, outcome });
            }
        }
    }
    (can, cannot)
}

/// Chooses the kind for a node that sends to many. Tries the kinds that this process can open, for
/// at most a second, and tries nothing where there is a single one.
pub fn choose_kind(options: &Options, load: TrialLoad) -> PortChoice {
    let (can, mut trials) = list_kinds();
    if let [only] = can[..] {
        let why = list_reasons("the only kind that can run here", &trials);
        return PortChoice { kind: only, why };
    }
    trials.splice(..0, try_kinds(&can, options, load));
    choose_quickest(&trials)
}

#[cfg(feature = "trial")]
fn try_kinds(kinds: &[PortKind], options: &Options, load: TrialLoad) -> Vec<KindTrial> {
    match load.part {
        TrialPart::Proxy => crate::trial::try_at_start(kinds, options, load),
        TrialPart::Root => crate::trial::root::try_at_start(kinds, options, load),
    }
}

/// Without the feature there is one kind, which needs no trial.
#[cfg(not(feature = "trial"))]
fn try_kinds(_: &[PortKind], _: &Options, _: TrialLoad) -> Vec<KindTrial> {
    Vec::new()
}

/// Opens a port of the chosen kind. Where only the chosen kind does not open at this address, opens
/// a port of the default kind, and the choice says so.
///
/// # Errors
/// As [`open`](crate::open), for the default kind.
pub fn open_chosen(
    address: SocketAddr,
    options: Options,
    choice: PortChoice,
) -> Result<(Box<dyn Port>, PortChoice), Error> {
    let asked = Options { kind: choice.kind, ..options.clone() };
    let refused = match crate::open(address, asked) {
        Ok(port) => return Ok((port, choice)),
        Err(error) if choice.kind == PortKind::default() => return Err(error),
        Err(error) => error,
    };
    let kind = PortKind::default();
    let port = crate::open(address, Options { kind, ..options })?;
    let name = choice.kind.settings_name();
    let why =
        format!("{name} was chosen and did not open: {refused}; chosen because: {}", choice.why);
    Ok((port, PortChoice { kind, why }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(kind: PortKind, cpu_ns_per_copy: f64, lost: u64, damaged: u64) -> KindTrial {
        let outcome = TrialOutcome::Measured { cpu_ns_per_copy, copies: 100, lost, damaged };
        KindTrial { kind, outcome }
    }

    #[test]
    fn the_quickest_kind_that_carried_every_frame_unharmed_is_taken() {
        let quick = [measured(PortKind::Udp, 900.0, 0, 0), measured(PortKind::Tc, 400.0, 0, 0)];
        let choice = choose_quickest(&quick);
        assert_eq!(choice.kind, PortKind::Tc);
        assert_eq!(
            choice.why,
            "the quickest that carried every frame; udp: 900 ns a copy, 0 of 100 lost; tc: 400 ns \
             a copy, 0 of 100 lost"
        );
        for (lost, damaged) in [(1, 0), (0, 1)] {
            let harmed = [
                measured(PortKind::Udp, 900.0, 0, 0),
                measured(PortKind::Tc, 400.0, lost, damaged),
            ];
            assert_eq!(
                choose_quickest(&harmed).kind,
                PortKind::Udp,
                "{lost} lost, {damaged} damaged"
            );
        }
        let slow = [measured(PortKind::Udp, 300.0, 0, 0), measured(PortKind::Tc, 400.0, 0, 0)];
        assert_eq!(choose_quickest(&slow).kind, PortKind::Udp);
    }

    #[test]
    fn a_kind_that_could_not_be_tried_is_named_with_its_reason_and_udp_stands_in() {
        let outcome = TrialOutcome::Untried("needs the capability CAP_BPF".into());
        let untried = KindTrial { kind: PortKind::Tc, outcome };
        let harmed = measured(PortKind::Udp, 900.0, 3, 0);
        let choice = choose_quickest(&[harmed, untried]);
        assert_eq!(choice.kind, PortKind::Udp);
        assert!(choice.why.starts_with("no kind carried every frame"), "{}", choice.why);
        assert!(choice.why.contains("3 of 100 lost"), "{}", choice.why);
        assert!(choice.why.ends_with("tc: needs the capability CAP_BPF"), "{}", choice.why);
        let nothing =
            TrialOutcome::Measured { cpu_ns_per_copy: 0.0, copies: 0, lost: 0, damaged: 0 };
        let none = [KindTrial { kind: PortKind::Tc, outcome: nothing }];
        assert_eq!(choose_quickest(&none).kind, PortKind::Udp, "a kind that carried nothing");
    }

    #[test]
    fn a_kind_that_does_not_open_at_the_address_is_replaced_by_udp() {
        let choice = PortChoice { kind: PortKind::Tc, why: "planted".into() };
        // Without rights or the feature the kind is missing; with both it forwards IPv4 alone.
        let (port, taken) =
            open_chosen("[::1]:0".parse().unwrap(), Options::default(), choice.clone()).unwrap();
        assert!(port.local_addr().is_ipv6());
        assert_eq!(taken.kind, PortKind::Udp);
        assert!(taken.why.starts_with("tc was chosen and did not open: "), "{}", taken.why);
        assert!(taken.why.ends_with("planted"), "{}", taken.why);
        // An address that no kind may have is refused as without a choice.
        let open = open_chosen("192.0.2.1:0".parse().unwrap(), Options::default(), choice);
        assert!(matches!(open, Err(Error::Unkeyed { .. })));
    }
}
