//! Times as people write them: on the command line, and in programs.
//!
//! A time names an instant (with `Z` or an offset, or in nanoseconds), or what the venue's wall
//! clock shows: a date and a time, a date alone, or a time of day.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use evenfall_feed_formats::Date;
use evenfall_feed_formats::codec::{DAY_NS, TimeOrigin};
use evenfall_store_format::retention::TIMES_OF_DAY_END_NS;

/// The allowed forms of a time.
const FORMS: &str = "2026-11-21, 2026-11-21 09:30 (by the venue's clock), 2026-11-21T09:30:00Z, \
                     2026-11-21T09:30:00-05:00, 09:30, 09:30:00.5, or a number with its unit: \
                     1577716200s, ms, us or ns";
/// Nanoseconds of a second.
const NANOS: i64 = 1_000_000_000;
/// Digits of a number without a unit that may be seconds, milliseconds or microseconds since 1970.
const AMBIGUOUS_DIGITS: std::ops::RangeInclusive<usize> = 10..=16;

/// A time as a person wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeArg {
    /// Nanoseconds since 1970, or since midnight in a file of times of day.
    Instant(i64),
    /// A day, and nanoseconds of the venue's clock on that day.
    Civil(Date, u64),
    /// All of a day, by the venue's clock.
    Day(Date),
    /// Nanoseconds of the venue's clock, on the only day of the messages.
    OfDay(u64),
}

/// Whether a time is the first or the last of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeEnd {
    /// The first time of the range.
    First,
    /// The last time of the range.
    Last,
}

/// A text that is no time. The error says which forms are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeArgError(String);

impl fmt::Display for TimeArgError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TimeArgError {}

impl FromStr for TimeArg {
    type Err = TimeArgError;

    fn from_str(text: &str) -> Result<Self, TimeArgError> {
        time_arg(text).map_err(TimeArgError)
    }
}

/// Whether a time counts from midnight and not from 1970.
pub fn is_of_day(ns: i64) -> bool {
    (0..TIMES_OF_DAY_END_NS).contains(&ns)
}

/// Why two times are no range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeRangeError {
    /// A time does not fit 64 bits of nanoseconds.
    Beyond,
    /// A time of day, where the messages are of several days.
    SeveralDays,
    /// The first time is later than the last.
    Empty,
}

impl fmt::Display for TimeRangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Beyond => "a time is beyond 64 bits of nanoseconds",
            Self::SeveralDays => {
                "a time of day, and there are several days: give the date too, such as \
                 \"2012-06-21 09:30\""
            }
            Self::Empty => "the first time is later than the last: no time is between them",
        })
    }
}

impl std::error::Error for TimeRangeError {}

/// The times of people as a range, both ends included. `span` has the first and the last time of
/// the messages, which tells the day of a time of day. A missing time is open.
///
/// # Errors
/// [`TimeRangeError`].
pub fn resolve_range(
    first: Option<TimeArg>,
    last: Option<TimeArg>,
    clock: TimeOrigin,
    span: Option<(i64, i64)>,
) -> Result<RangeInclusive<i64>, TimeRangeError> {
    let lacks_day = [first, last].into_iter().flatten().any(TimeArg::lacks_day);
    let span = span.filter(|(first, _)| lacks_day && !is_of_day(*first));
    let only_day = match span {
        None => None,
        Some((first, last)) => {
            let date = clock.date_of(first);
            let date = date.filter(|_| clock.date_of(last) == date);
            Some(date.ok_or(TimeRangeError::SeveralDays)?)
        }
    };
    let resolve = |time: Option<TimeArg>, end, open| match time {
        Some(time) => time.resolve(clock, only_day, end).ok_or(TimeRangeError::Beyond),
        None => Ok(open),
    };
    let from = resolve(first, RangeEnd::First, i64::MIN)?;
    let to = resolve(last, RangeEnd::Last, i64::MAX)?;
    if from <= to { Ok(from..=to) } else { Err(TimeRangeError::Empty) }
}

impl TimeArg {
    /// What the venue's wall clock shows, as nanoseconds since 1970 of that clock. `None` for years
    /// that no calendar has.
    pub fn of_wall_ns(wall_ns: i64) -> Option<Self> {
        let day_ns = wall_ns.rem_euclid(DAY_NS as i64);
        Some(Self::Civil(TimeOrigin::Epoch.date_of(wall_ns)?, day_ns.unsigned_abs()))
    }

    /// Whether the time is on a day that the messages must tell.
    pub fn lacks_day(self) -> bool {
        matches!(self, Self::OfDay(_))
    }

    /// Whether the venue's clock says which instant it is.
    pub fn needs_clock(self) -> bool {
        !matches!(self, Self::Instant(_))
    }

    /// The instant, by the venue's clock. `only_day` is the only day of the messages; without it a
    /// time of day stays a number of nanoseconds since midnight.
    pub fn resolve(self, clock: TimeOrigin, only_day: Option<Date>, end: RangeEnd) -> Option<i64> {
        match (self, only_day) {
            (Self::Instant(ns), _) => Some(ns),
            (Self::Civil(date, day_ns), _) => clock.of_day_ns(date, day_ns),
            (Self::Day(date), _) if end == RangeEnd::First => clock.of_day_ns(date, 0),
            (Self::Day(date), _) => Some(clock.of_day_ns(date.tomorrow().ok()?, 0)? - 1),
            (Self::OfDay(day_ns), Some(date)) => clock.of_day_ns(date, day_ns),
            (Self::OfDay(day_ns), None) => i64::try_from(day_ns).ok(),
        }
    }
}

/// Reads a time.
fn time_arg(text: &str) -> Result<TimeArg, String> {
    let text = text.trim();
    let wrong = || format!("{text} is no time: {FORMS}");
    if let Some(number) = number(text) {
        return number.map(TimeArg::Instant);
    }
    if let Some(day_ns) = time_of_day(text) {
        return Ok(TimeArg::OfDay(day_ns));
    }
    let (date, rest) = text.split_at_checked(10).ok_or_else(wrong)?;
    let date: Date = date.parse().map_err(|_| wrong())?;
    if rest.is_empty() {
        return Ok(TimeArg::Day(date));
    }
    let rest = rest.strip_prefix(['T', 't', ' ', '_']).ok_or_else(wrong)?;
    let (clock, offset) = split_offset(rest);
    let day_ns = time_of_day(clock).ok_or_else(wrong)?;
    let Some(offset) = offset else { return Ok(TimeArg::Civil(date, day_ns)) };
    let offset_ns = offset_seconds(offset).ok_or_else(wrong)? * NANOS;
    let utc = TimeOrigin::Epoch.of_day_ns(date, day_ns).and_then(|ns| ns.checked_sub(offset_ns));
    utc.map(TimeArg::Instant).ok_or_else(wrong)
}

/// A number, with or without a unit. `None` when the text is no number.
fn number(text: &str) -> Option<Result<i64, String>> {
    let units = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", NANOS)];
    let unit = units.into_iter().find(|(unit, _)| text.ends_with(unit));
    let digits = unit.map_or(text, |(unit, _)| text[..text.len() - unit.len()].trim_end());
    let value: i64 = digits.parse().ok()?;
    let Some((_, scale)) = unit else {
        let count = digits.bytes().filter(u8::is_ascii_digit).count();
        return Some(match AMBIGUOUS_DIGITS.contains(&count) {
            true => Err(format!(
                "{text} may be seconds, milliseconds, microseconds or nanoseconds: write {text}s, \
                 {text}ms, {text}us or {text}ns"
            )),
            false => Ok(value),
        });
    };
    Some(value.checked_mul(scale).ok_or_else(|| format!("{text} is beyond 64 bits of nanoseconds")))
}

/// Divides a time of day from the offset behind it.
fn split_offset(text: &str) -> (&str, Option<&str>) {
    match text.find(['Z', 'z', '+', '-']) {
        Some(at) => (text[..at].trim_end(), Some(&text[at..])),
        None => (text, None),
    }
}

/// Seconds east of UTC: `Z`, `+01`, `-05:00` or `+0530`.
fn offset_seconds(text: &str) -> Option<i64> {
    if text.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let sign = if text.starts_with('-') { -1 } else { 1 };
    let digits: String = text[1..].chars().filter(|c| *c != ':').collect();
    let is_plain = digits.bytes().all(|digit| digit.is_ascii_digit());
    let part = |at: std::ops::Range<usize>, max: i64| {
        digits.get(at)?.parse::<i64>().ok().filter(|value| *value <= max)
    };
    let minutes = match digits.len() {
        2 if is_plain => 0,
        4 if is_plain => part(2..4, 59)?,
        _ => return None,
    };
    Some(sign * (part(0..2, 23)? * 3_600 + minutes * 60))
}

fn time_of_day(text: &str) -> Option<u64> {
    let (clock, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let mut parts: Vec<&str> = clock.split(':').collect();
    // A fraction belongs to the seconds.
    if parts.len() == 2 && clock == text {
        parts.push("0");
    }
    let mut seconds = 0u64;
    for (part, max) in parts.iter().zip([99, 59, 59]) {
        let is_plain = part.bytes().all(|digit| digit.is_ascii_digit());
        let value: u64 = part.parse().ok().filter(|value| is_plain && *value <= max)?;
        seconds = seconds * 60 + value;
    }
    let digits = !fraction.is_empty() && fraction.len() <= 9;
    if parts.len() != 3 || !digits || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let ns: u64 = format!("{fraction:0<9}").parse().ok()?;
    Some(seconds * NANOS as u64 + ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW_YORK: TimeOrigin = TimeOrigin::Midnight { zone: "America/New_York" };

    fn at(text: &str, clock: TimeOrigin, end: RangeEnd) -> i64 {
        let time: TimeArg = text.parse().unwrap_or_else(|why| panic!("{why}"));
        time.resolve(clock, None, end).expect("an instant")
    }

    #[test]
    fn a_time_without_a_zone_is_what_the_venues_clock_shows() {
        // 30 December 2019, 14:30 in UTC, is 09:30 in New York.
        let open = 1_577_716_200 * NANOS;
        for text in [
            "2019-12-30 09:30:00",
            "2019-12-30T09:30",
            "2019-12-30T09:30:00.0",
            "2019-12-30T14:30:00Z",
            "2019-12-30 14:30Z",
            "2019-12-30T09:30:00-05:00",
            "2019-12-30T15:30:00+01",
            "2019-12-30T20:00:00+0530",
            "1577716200s",
            "1577716200000 ms",
            "1577716200000000us",
            "1577716200000000000",
        ] {
            assert_eq!(at(text, NEW_YORK, RangeEnd::First), open, "{text}");
        }
        assert_eq!(at("2019-12-30 14:30", TimeOrigin::Epoch, RangeEnd::First), open);
        let day = Some("2019-12-30".parse().expect("a date"));
        let of_day = time_arg("09:30").expect("a time");
        assert_eq!(of_day.resolve(NEW_YORK, day, RangeEnd::First), Some(open));
        assert_eq!(of_day.resolve(NEW_YORK, None, RangeEnd::First), Some(34_200 * NANOS));
    }

    #[test]
    fn a_date_is_a_day() {
        let (first, last) = (
            at("2019-12-30", NEW_YORK, RangeEnd::First),
            at("2019-12-30", NEW_YORK, RangeEnd::Last),
        );
        assert_eq!(first, (1_577_716_200 - 34_200) * NANOS);
        assert_eq!(last - first, 86_400 * NANOS - 1);
    }

    #[test]
    fn a_number_whose_unit_is_a_guess_is_asked_about() {
        for text in ["1577716200", "1577716200000", "1577716200000000", "34200000000000"] {
            let said = time_arg(text).expect_err("ambiguous");
            assert!(said.contains(&format!("{text}ms")), "{said}");
        }
        assert_eq!(time_arg("-5"), Ok(TimeArg::Instant(-5)));
        assert_eq!(time_arg("34200000000000ns"), Ok(TimeArg::Instant(34_200 * NANOS)));
    }

    #[test]
    fn what_is_no_time_is_answered_with_the_forms() {
        for wrong in [
            "",
            "09:60",
            "09:60:00",
            "09:30.5",
            "9:30:00.",
            "9:3:0.1234567890",
            "noon",
            "2019-12-30X09:30",
            "2019-13-30",
            "2019-12-30T09:30+5",
            "2019-12-30T09:30 EST",
        ] {
            let said = time_arg(wrong).map_or_else(|why| why, |time| format!("{time:?}"));
            assert!(said.contains("09:30:00.5"), "{wrong}: {said}");
        }
    }
}
