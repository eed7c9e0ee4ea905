//! The probe, byte by byte. The same drawing with prose is in `docs/wire/survey.md`.
//!
//! ```text
//!  0        2         3        4        5       6          8
//!  | "EP"   | version | flags  | key id | zero  | from     |
//!  8                                 16              20             24
//!  | run                             | job          | sequence      |
//! 24                                 32                             40
//!  | origin: leader's send time, ns  | sent: sender's send time, ns  |
//! 40              44                 48                             56
//!  | origin error | sent error, ns   | message authentication code   |
//! 56  padding, zero
//! ```
//!
//! The errors are those of the two clocks: `0xffff_ffff` for unknown, `0xffff_fffe` for one common
//! clock.

use core::time::Duration;

use evenfall_core::{ClockError, MacKey, Malformed, Reader, SyncTime};

/// First bytes of a probe.
pub const MAGIC: [u8; 2] = *b"EP";
/// Version of this layout.
pub const VERSION: u8 = 1;
/// Bytes in front of the padding.
pub const HEADER_BYTES: usize = 56;
/// Place of the authentication code, which covers all bytes before it.
const MAC_OFFSET: usize = 48;
/// Flag of a probe that warms the path up and does not count.
const WARM_UP: u8 = 1;
/// The clock error on the wire when no bound is known.
const UNKNOWN: u32 = u32::MAX;
/// The clock error on the wire when both ends read one clock.
const SAME_CLOCK: u32 = u32::MAX - 1;

/// One probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayProbe {
    /// Whether the probe warms the path up and does not count.
    pub warm_up: bool,
    /// Place of the sender of this copy.
    pub from: u16,
    /// Run of the surveyor.
    pub run: u64,
    /// Job of the run.
    pub job: u32,
    /// Counts up from 0 at the origin, per receiver.
    pub sequence: u32,
    /// Time at which the origin sent the probe.
    pub origin: SyncTime,
    /// Time at which the sender of this copy sent it.
    pub sent: SyncTime,
    /// Error of the origin's clock.
    pub origin_error: ClockError,
    /// Error of the sender's clock.
    pub sent_error: ClockError,
}

/// A clock error as four bytes. An error above four seconds is written as unknown.
pub(super) fn error_to_wire(error: ClockError) -> u32 {
    match error {
        ClockError::SameClock => SAME_CLOCK,
        ClockError::Unknown | ClockError::Disproved => UNKNOWN,
        ClockError::Within(bound) => {
            u32::try_from(bound.as_nanos()).ok().filter(|ns| *ns < SAME_CLOCK).unwrap_or(UNKNOWN)
        }
    }
}

pub(super) fn error_from_wire(word: u32) -> ClockError {
    match word {
        SAME_CLOCK => ClockError::SameClock,
        UNKNOWN => ClockError::Unknown,
        ns => ClockError::Within(Duration::from_nanos(ns.into())),
    }
}

impl DelayProbe {
    /// The header of a copy.
    pub fn encode(&self, key: Option<&MacKey>) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&MAGIC);
        put(&[VERSION, u8::from(self.warm_up) * WARM_UP, MacKey::id_of(key), 0]);
        put(&self.from.to_le_bytes());
        put(&self.run.to_le_bytes());
        put(&self.job.to_le_bytes());
        put(&self.sequence.to_le_bytes());
        put(&self.origin.nanos().to_le_bytes());
        put(&self.sent.nanos().to_le_bytes());
        put(&error_to_wire(self.origin_error).to_le_bytes());
        put(&error_to_wire(self.sent_error).to_le_bytes());
        let mac = MacKey::mac_of(key, &[&out[..MAC_OFFSET]]);
        out[MAC_OFFSET..].copy_from_slice(&mac.to_le_bytes());
        out
    }

    /// Reads a probe and ignores its padding.
    ///
    /// # Errors
    /// What is wrong: too short, another version, another key, forged.
    pub fn decode(datagram: &[u8], key: Option<&MacKey>) -> Result<Self, Malformed> {
        let mut r = Reader::new(datagram);
        if r.take(2)? != MAGIC {
            return Err(Malformed { what: "not a probe", offset: 0 });
        }
        if r.u8()? != VERSION {
            return Err(Malformed { what: "a probe of another version", offset: 2 });
        }
        let flags = r.u8()?;
        if flags & !WARM_UP != 0 {
            return Err(Malformed { what: "unknown flag of a probe", offset: 3 });
        }
        if r.u8()? != MacKey::id_of(key) {
            return Err(Malformed { what: "sealed under another key, or none", offset: 4 });
        }
        r.u8()?;
        let probe = Self {
            warm_up: flags == WARM_UP,
            from: r.u16()?,
            run: r.u64()?,
            job: r.u32()?,
            sequence: r.u32()?,
            origin: SyncTime::from_nanos(r.u64()?),
            sent: SyncTime::from_nanos(r.u64()?),
            origin_error: error_from_wire(r.u32()?),
            sent_error: error_from_wire(r.u32()?),
        };
        if r.u64()? != MacKey::mac_of(key, &[&datagram[..MAC_OFFSET]]) {
            return Err(Malformed { what: "message authentication failed", offset: MAC_OFFSET });
        }
        Ok(probe)
    }
}
