//! Reads and writes times: nanoseconds, dates, and times of day for feeds whose time counts from
//! midnight.

use std::time::{Duration, UNIX_EPOCH};

use evenfall_store_format::retention::TIMES_OF_DAY_END_NS;

/// The allowed forms of a time.
const FORMS: &str = "nanoseconds, 2026-11-21T09:30:00Z, 09:30, 09:30:00 or 09:30:00.5";
/// Nanoseconds of a second.
const NANOS: i64 = 1_000_000_000;

/// Nanoseconds since 1970, or since midnight for a time of day.
pub fn time_ns(text: &str) -> Result<i64, String> {
    if let Ok(ns) = text.parse() {
        return Ok(ns);
    }
    if let Ok(time) = humantime::parse_rfc3339_weak(text) {
        let since = time.duration_since(UNIX_EPOCH).map_err(|error| error.to_string())?;
        return i64::try_from(since.as_nanos()).map_err(|error| error.to_string());
    }
    time_of_day(text).ok_or_else(|| format!("{text} is no time: {FORMS}"))
}

fn time_of_day(text: &str) -> Option<i64> {
    let (clock, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let mut parts: Vec<&str> = clock.split(':').collect();
    // A fraction belongs to the seconds.
    if parts.len() == 2 && clock == text {
        parts.push("0");
    }
    let mut seconds = 0i64;
    for (part, max) in parts.iter().zip([99, 59, 59]) {
        let value: i64 = part.parse().ok().filter(|value| (0..=max).contains(value))?;
        seconds = seconds * 60 + value;
    }
    let digits = !fraction.is_empty() && fraction.len() <= 9;
    if parts.len() != 3 || !digits || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let ns: i64 = format!("{fraction:0<9}").parse().ok()?;
    Some(seconds * NANOS + ns)
}

/// Whether a time counts from midnight and not from 1970.
pub fn is_of_day(ns: i64) -> bool {
    (0..TIMES_OF_DAY_END_NS).contains(&ns)
}

/// A time to the second, in a form that [`time_ns`] reads.
pub fn words(ns: i64) -> String {
    let seconds = ns.div_euclid(NANOS);
    if is_of_day(ns) {
        return format!("{:02}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60);
    }
    match u64::try_from(seconds) {
        Ok(since) => {
            humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(since)).to_string()
        }
        Err(_) => format!("{ns} ns"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_nanoseconds_dates_or_times_of_day() {
        assert_eq!(time_ns("-5"), Ok(-5));
        assert_eq!(time_ns("1970-01-01T00:00:01Z"), Ok(1_000_000_000));
        assert_eq!(time_ns("09:30:00.5"), Ok(34_200_500_000_000));
        assert_eq!(time_ns("16:00"), Ok(57_600_000_000_000));
        for wrong in ["", "09:60", "09:60:00", "09:30.5", "9:30:00.", "9:3:0.1234567890", "noon"] {
            let said = time_ns(wrong).map_or_else(|why| why, |ns| ns.to_string());
            assert!(said.contains("09:30:00.5"), "{wrong}: {said}");
        }
    }

    #[test]
    fn a_time_is_said_as_it_is_written() {
        for text in ["00:00:00", "09:39:37", "99:59:59", "2026-11-21T09:30:00Z"] {
            assert_eq!(time_ns(text).map(words), Ok(text.to_owned()));
        }
        assert_eq!(words(34_777_900_000_000), "09:39:37", "to the second");
        assert_eq!(words(-1), "-1 ns");
    }
}
