//! The zone in which instants are written: a name of the zone database, or an offset from UTC.

use arrow::array::timezone::Tz;
use chrono::{DateTime, Offset as _, TimeZone as _};

/// Offsets of a day and more are mistakes: a number of minutes or seconds.
const HOURS_MAX: f64 = 24.0;

/// Names of UTC. Those need no zone database.
const UTC_NAMES: [&str; 5] = ["UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z"];

/// A zone.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PrintedZone {
    /// Seconds east of UTC.
    Fixed(i32),
    Named(Tz),
}

impl PrintedZone {
    pub(crate) const UTC: Self = Self::Fixed(0);

    /// The zone that a client names, with PostgreSQL's meanings: a number is hours east of UTC, and
    /// an offset behind letters, or with minutes, counts to the west (POSIX).
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if UTC_NAMES.iter().any(|name| name.eq_ignore_ascii_case(text)) {
            return Some(Self::UTC);
        }
        if let Ok(hours) = text.parse::<f64>() {
            let is_taken = hours.abs() < HOURS_MAX;
            return is_taken.then(|| Self::Fixed((hours * 3_600.0).round() as i32));
        }
        let offset = text.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
        if offset.starts_with(['+', '-']) {
            return posix_offset_s(offset).map(|west_s| Self::Fixed(-west_s));
        }
        text.parse().ok().map(Self::Named)
    }

    /// The offset from UTC at an instant, in seconds to the east.
    pub(crate) fn offset_s(self, us: i64) -> i32 {
        match self {
            Self::Fixed(offset_s) => offset_s,
            // The calendar of the zone database ends some hundred thousand years from now.
            Self::Named(zone) => DateTime::from_timestamp_micros(us).map_or(0, |at| {
                zone.offset_from_utc_datetime(&at.naive_utc()).fix().local_minus_utc()
            }),
        }
    }
}

/// Seconds of `+5`, `-05:30` or `+05:30:15`.
fn posix_offset_s(text: &str) -> Option<i32> {
    let (sign, text) = text.split_at_checked(1)?;
    let mut seconds = 0;
    let mut unit = 3_600;
    for part in text.split(':') {
        let is_number = (1..=2).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
        let number: i32 = part.parse().ok().filter(|_| is_number && unit > 0)?;
        let most = if unit == 3_600 { 23 } else { 59 };
        seconds += (number <= most).then_some(number * unit)?;
        unit /= 60;
    }
    Some(if sign == "-" { -seconds } else { seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_have_names_and_offsets_with_the_signs_of_postgresql() {
        let at = |text: &str, us| PrintedZone::parse(text).map(|zone| zone.offset_s(us));
        let (winter, summer) = (1_795_185_000_000_000, 1_784_550_000_000_000);
        assert_eq!(at("America/New_York", winter), Some(-5 * 3_600));
        assert_eq!(at("America/New_York", summer), Some(-4 * 3_600));
        assert_eq!(at("Asia/Kolkata", winter), Some(19_800));
        for utc in ["UTC", "utc", "Etc/UTC", "GMT", "0"] {
            assert_eq!(at(utc, winter), Some(0), "{utc}");
        }
        assert_eq!(
            (at("2", 0), at("-7", 0), at("5.5", 0)),
            (Some(7_200), Some(-25_200), Some(19_800))
        );
        assert_eq!((at("GMT+2", 0), at("-05:30", 0)), (Some(-7_200), Some(19_800)));
        for wrong in
            ["", "Nowhere", "America/Atlantis", "+", "GMT+2:", "GMT+2:60", "NaN", "1e9", "+1:2:3:4"]
        {
            assert_eq!(at(wrong, 0), None, "{wrong}");
        }
    }
}
