//! How often a message is sent twice: one type, one default and one limit for the overlay, the
//! planner, the simulator and every command.

use core::fmt;
use core::str::FromStr;

/// Extra copies of each message that a node below the first layer gets, each by way of another
/// proxy (H in the papers).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct Hedging(pub u8);

impl Hedging {
    /// No extra copies.
    pub const NONE: Self = Self(0);
    /// One extra copy, which removes most of the slow tail. The papers recommend two extra copies
    /// where each process has its own machine. Each further copy costs the proxies as many sends as
    /// the tree itself, and processes that share two cores have no room for those sends.
    pub const DEFAULT: Self = Self(1);
    /// Sixteen extra copies, eight times as many as any paper uses. The limit keeps a mistyped
    /// number from multiplying the traffic of a network.
    pub const MAX: Self = Self(16);

    /// The number of extra copies.
    pub fn copies(self) -> usize {
        self.0.into()
    }

    /// Whether the number is at most [`Self::MAX`]. A number from a file may be larger.
    pub fn is_allowed(self) -> bool {
        self <= Self::MAX
    }
}

impl Default for Hedging {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Display for Hedging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Hedging {
    type Err = HedgingError;

    fn from_str(text: &str) -> Result<Self, HedgingError> {
        let hedging = text.parse().ok().map(Self).filter(|hedging| hedging.is_allowed());
        hedging.ok_or(HedgingError)
    }
}

/// A text that is no number of copies up to [`Hedging::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be 0 to {}", Hedging::MAX)]
pub struct HedgingError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_copies_beyond_the_limit_is_refused_with_the_limit() {
        assert_eq!("16".parse(), Ok(Hedging::MAX));
        for text in ["17", "-1", "two", "999"] {
            let error = text.parse::<Hedging>().unwrap_err();
            assert_eq!(error.to_string(), "must be 0 to 16");
        }
    }
}
