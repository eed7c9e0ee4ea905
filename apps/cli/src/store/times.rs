//! Says times to people.

use std::time::{Duration, UNIX_EPOCH};

use evenfall_store_recording::times::is_of_day;

/// Nanoseconds of a second.
const NANOS: i64 = 1_000_000_000;

/// A time to the second, in a form that [`TimeArg`](evenfall_store_recording::times::TimeArg)
/// reads.
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
    use evenfall_feed_formats::codec::TimeOrigin;
    use evenfall_store_recording::times::{RangeEnd, TimeArg};

    use super::words;

    #[test]
    fn a_time_is_said_as_it_is_written() {
        for text in ["00:00:00", "09:39:37", "99:59:59", "2026-11-21T09:30:00Z"] {
            let time: TimeArg = text.parse().expect("a time");
            assert_eq!(
                time.resolve(TimeOrigin::Epoch, None, RangeEnd::First).map(words),
                Some(text.into())
            );
        }
        assert_eq!(words(34_777_900_000_000), "09:39:37", "to the second");
        assert_eq!(words(-1), "-1 ns");
    }
}
