//! [`LateWindow`]: the window of a file for late records, with words about the records that it
//! refuses.

use std::fmt::{self, Display};

use bytes::Bytes;
use evenfall_store_format::ordering::{Offered, Ordering, OrderingConfig, OrderingCounts};

/// Refused records that are named one by one. Further refused records are only counted.
const NAMED_MAX: u64 = 10;

/// A window for late records.
#[derive(Debug)]
pub struct LateWindow {
    ordering: Ordering,
}

/// What a window found that a user must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LateWindowError {
    /// Records came later than the window, and were refused.
    Refused(u64),
    /// Records have a number that came before with other values. All of them are kept.
    Reused(u64),
}

impl Display for LateWindowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(records) => write!(
                f,
                "{records} came later than the window and were refused: give a longer window \
                 (--window)"
            ),
            Self::Reused(records) => write!(
                f,
                "{records} have a number that came before with other values: all of them are \
                 kept, because only equal values are copies"
            ),
        }
    }
}

impl std::error::Error for LateWindowError {}

impl LateWindow {
    /// A window of this width; `None` for no width.
    pub fn of_width(window_ns: u64) -> Option<Self> {
        let config = OrderingConfig { window_ns, ..OrderingConfig::default() };
        (window_ns > 0).then(|| Self { ordering: Ordering::new(config) })
    }

    /// Takes a record. `what` names the record. Returns a remark when the record is refused, or has
    /// a number that another record had before. Of each kind the first ten records get a remark.
    pub fn offer(
        &mut self,
        what: &dyn Display,
        sequence: u64,
        time_ns: i64,
        record: Bytes,
    ) -> Option<String> {
        match self.ordering.offer(time_ns, sequence, record) {
            Offered::TooLate { limit_ns, .. } => (self.counts().too_late <= NAMED_MAX)
                .then(|| format!("refused: {what} of {time_ns} ns, behind {limit_ns} ns")),
            Offered::HeldUnderUsedSequence => (self.counts().reused <= NAMED_MAX).then(|| {
                format!("kept: {what}, whose number {sequence} came before with other values")
            }),
            _ => None,
        }
    }

    /// The next record in order.
    pub fn poll_record(&mut self) -> Option<Bytes> {
        self.ordering.poll()
    }

    /// The next record, after the last one was offered.
    pub fn drain_record(&mut self) -> Option<Bytes> {
        self.ordering.drain()
    }

    /// The counts so far.
    pub fn counts(&self) -> OrderingCounts {
        self.ordering.counts()
    }

    /// Whether every record is where it belongs.
    ///
    /// # Errors
    /// When records were refused, or numbers were used again with other values.
    pub fn judge(&self) -> Result<(), LateWindowError> {
        let OrderingCounts { too_late, reused, .. } = self.counts();
        match (too_late, reused) {
            (0, 0) => Ok(()),
            (0, reused) => Err(LateWindowError::Reused(reused)),
            (refused, _) => Err(LateWindowError::Refused(refused)),
        }
    }
}
