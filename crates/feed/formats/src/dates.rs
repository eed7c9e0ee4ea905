//! The dates of times of day: dates in names of files, and the venue's time zone.

pub use jiff::civil::Date;

use crate::codec::{DAY_NS, TimeOrigin};

impl TimeOrigin {
    /// A message's own time as nanoseconds since 1970. A time of day counts from midnight of
    /// `date`. Whole days in `time_ns` are added to `date`.
    ///
    /// `None` when a time of day has no date, or the result does not fit 64 bits.
    pub fn epoch_ns(self, date: Option<Date>, time_ns: u64) -> Option<i64> {
        let Self::Midnight { zone } = self else { return i64::try_from(time_ns).ok() };
        let days = i32::try_from(time_ns / DAY_NS).ok()?;
        let date = date?.checked_add(jiff::Span::new().try_days(days).ok()?).ok()?;
        of_day(zone, date, time_ns % DAY_NS)
    }

    /// A time of day in the venue's zone as nanoseconds since 1970.
    pub fn of_day_ns(self, date: Date, day_ns: u64) -> Option<i64> {
        of_day(self.zone(), date, day_ns)
    }

    /// The time zone of the venue.
    fn zone(self) -> &'static str {
        match self {
            Self::Midnight { zone } => zone,
            Self::Epoch => "UTC",
        }
    }

    /// What the venue's wall clock shows at an instant, as nanoseconds since 1970 of that clock.
    pub fn wall_ns(self, epoch_ns: i64) -> Option<i64> {
        let at = jiff::Timestamp::from_nanosecond(epoch_ns.into()).ok()?;
        let offset = at.in_tz(self.zone()).ok()?.offset();
        epoch_ns.checked_add(i64::from(offset.seconds()) * 1_000_000_000)
    }

    /// The date, in the venue's zone, of nanoseconds since 1970.
    pub fn date_of(self, epoch_ns: i64) -> Option<Date> {
        let at = jiff::Timestamp::from_nanosecond(epoch_ns.into()).ok()?;
        Some(at.in_tz(self.zone()).ok()?.date())
    }
}

fn of_day(zone: &str, date: Date, day_ns: u64) -> Option<i64> {
    let midnight = date.in_tz(zone).ok()?.timestamp().as_nanosecond();
    i64::try_from(midnight + i128::from(day_ns)).ok()
}

/// The date in a file's name: `2019-12-30`, `20191230`, Nasdaq's `12302019` and `S123019-v50`, or
/// `30122019`. `None` when the name has no date, or two different dates.
///
/// Eight digits with the year last are a day in the American or in the European order. Where both
/// orders give a date, only a name of Nasdaq's is read, in the American order.
///
/// ```
/// use evenfall_feed_formats::dates::date_in_name;
/// assert_eq!(date_in_name("01302019.NASDAQ_ITCH50.gz").unwrap().to_string(), "2019-01-30");
/// assert_eq!(date_in_name("S050624-v50.txt").unwrap().to_string(), "2024-05-06");
/// assert_eq!(date_in_name("05062019.pcap"), None);
/// ```
pub fn date_in_name(name: &str) -> Option<Date> {
    let mut found = None;
    let joined = |text: &str| {
        let (year, rest) = text.split_at_checked(4)?;
        let (month, rest) = rest.strip_prefix('-')?.split_at_checked(2)?;
        digits_date(&[year, month, rest.strip_prefix('-')?].concat(), false)
    };
    let upper = name.to_ascii_uppercase();
    let is_american = upper.contains("ITCH") || upper.contains("NASDAQ");
    // Eight digits are a date only when no further digit is next to them.
    let runs = name.split(|c: char| !c.is_ascii_digit());
    let runs = runs.filter_map(|text| digits_date(text, is_american));
    let dashed = (0..name.len()).filter_map(|at| joined(name.get(at..at + 10)?));
    for date in runs.chain(dashed).chain(session_date(&upper)) {
        if found.replace(date).is_some_and(|other| other != date) {
            return None;
        }
    }
    found
}

/// The date of Nasdaq's own names of a session, `SMMDDYY-v50.txt` and `SMMDDYY-v50-bx.txt`.
fn session_date(name: &str) -> Option<Date> {
    let file = name.rsplit('/').next()?;
    let (digits, version) = file.strip_prefix('S')?.split_at_checked(6)?;
    let (month_day, year) = digits.split_at(4);
    version.strip_prefix("-V").filter(|_| month_day <= "1231")?;
    digits_date(&format!("{month_day}20{year}"), true)
}

/// Eight digits as a date, year first or year last. The American order of month and day counts
/// where it is known. Otherwise the order must follow from the numbers.
fn digits_date(text: &str, is_american: bool) -> Option<Date> {
    if text.len() != 8 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let part = |range: core::ops::Range<usize>| text[range].parse::<i16>().ok();
    let date = |year: i16, month: i16, day: i16| {
        // Electronic order books begin in the 1980s.
        let is_near = (1980..2100).contains(&year);
        is_near.then(|| Date::new(year, month as i8, day as i8).ok()).flatten()
    };
    if let Some(date) = date(part(0..4)?, part(4..6)?, part(6..8)?) {
        return Some(date);
    }
    let (first, second, year) = (part(0..2)?, part(2..4)?, part(4..8)?);
    match (date(year, first, second), date(year, second, first)) {
        (Some(american), Some(european)) => {
            (is_american || american == european).then_some(american)
        }
        (american, european) => american.or(european),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_read_off_the_names_that_venues_give() {
        for (name, date) in [
            ("nasdaq_20191230_aapl.itch50", "2019-12-30"),
            ("01302019.NASDAQ_ITCH50", "2019-01-30"),
            ("12202019.NASDAQ_ITCH50.gz", "2019-12-20"),
            ("LOBSTER_SampleFile_AAPL_2012-06-21_1.zip", "2012-06-21"),
            ("AAPL_2012-06-21_34200000_57600000_message_1.csv", "2012-06-21"),
            ("x-2019-12-30-20191230.pcap", "2019-12-30"),
            ("S050624-v50.txt", "2024-05-06"),
            ("data/S030220-v50-bx.txt.gz", "2020-03-02"),
            ("30122019.pcap", "2019-12-30"),
            ("05062019.BX_ITCH_50.gz", "2019-05-06"),
            ("07072019.csv", "2019-07-07"),
        ] {
            assert_eq!(
                date_in_name(name).map(|date| date.to_string()),
                Some(date.into()),
                "{name}"
            );
        }
        for name in [
            "",
            "day.itch50",
            "2012-06-21_2012-06-22.zip",
            "20191330",
            "120191230",
            "Mdp3.v6.1",
            "05062019.pcap",
            "S050624.txt",
            "S130624-v50.txt",
            "XS050624-v50.txt",
        ] {
            assert_eq!(date_in_name(name), None, "{name}");
        }
    }

    #[test]
    fn a_time_of_day_counts_from_the_venues_midnight_in_winter_and_summer() {
        let clock = TimeOrigin::Midnight { zone: "America/New_York" };
        let at = |date: &str, ns| {
            let ns = clock.epoch_ns(Some(date.parse().unwrap()), ns).unwrap();
            jiff::Timestamp::from_nanosecond(ns.into()).unwrap().to_string()
        };
        let open = 34_200_000_000_000;
        assert_eq!(at("2019-12-30", open), "2019-12-30T14:30:00Z");
        assert_eq!(at("2012-06-21", open), "2012-06-21T13:30:00Z");
        // The second day of a feed of two, over the change to summer time.
        assert_eq!(at("2019-03-08", 3 * DAY_NS + open), "2019-03-11T13:30:00Z");
        assert_eq!(clock.epoch_ns(None, open), None);
        assert_eq!(TimeOrigin::Epoch.epoch_ns(None, 5), Some(5));
        assert_eq!(clock.date_of(1_577_676_600_000_000_000).unwrap().to_string(), "2019-12-29");
    }
}
