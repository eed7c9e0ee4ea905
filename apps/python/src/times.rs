//! Times and durations of Python: text, or the types of `datetime` and of pandas.

use std::time::Duration;

use evenfall_store_recording::times::TimeArg;
use pyo3::prelude::*;

use crate::errors::wrong_argument;

/// The nanoseconds of a day.
const DAY_NS: i128 = 86_400_000_000_000;

/// A time: text as on the command line, a `date`, `datetime` or `time`, or nanoseconds since 1970.
pub(crate) fn time_of(name: &str, value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<TimeArg>> {
    let Some(value) = value.filter(|value| !value.is_none()) else { return Ok(None) };
    if value.hasattr("isoformat")? {
        let text: String = value.call_method0("isoformat")?.extract()?;
        return parse_time(name, &text).map(Some);
    }
    if let Ok(text) = value.extract::<String>() {
        return parse_time(name, &text).map(Some);
    }
    let ns = value.extract::<i64>().map_err(|_| {
        wrong_argument(format!(
            "{name} = {value}: write text as 2019-12-30 or 09:35, a date, time or datetime, or \
             nanoseconds since 1970 in 64 bits"
        ))
    })?;
    Ok(Some(TimeArg::Instant(ns)))
}

fn parse_time(name: &str, text: &str) -> PyResult<TimeArg> {
    text.parse().map_err(|error| wrong_argument(format!("{name} = {error}")))
}

/// A time on a day that another argument names.
pub(crate) fn on_day(time: Option<TimeArg>, day: Option<TimeArg>) -> PyResult<Option<TimeArg>> {
    match (time, day) {
        (None, day) => Ok(day),
        (time, None) => Ok(time),
        (Some(TimeArg::OfDay(day_ns)), Some(TimeArg::Day(date))) => {
            Ok(Some(TimeArg::Civil(date, day_ns)))
        }
        (Some(_), Some(TimeArg::Day(_))) => {
            Err(wrong_argument("with date, start and end are times of day, such as 09:35"))
        }
        (_, Some(_)) => Err(wrong_argument("date is a day, such as 2019-12-30")),
    }
}

/// A duration: text such as `1m`, or a `timedelta`.
pub(crate) fn window_of(value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    match value.extract::<String>() {
        Ok(text) => humantime::parse_duration(&text)
            .map_err(|error| wrong_argument(format!("{text}: {error}; write 1ms, 1s, 5m or 1h"))),
        Err(_) => value
            .extract::<Duration>()
            .map_err(|_| wrong_argument("a duration is text such as 1m, or a timedelta")),
    }
}

/// The width of bars, of which a day has a whole number. Days are written as `1d`.
pub(crate) fn duration_of(value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let duration = window_of(value)?;
    let ns = duration.as_nanos() as i128;
    // Buckets begin at the venue's midnight, so that a day has a whole number of them.
    match ns > 0 && ns <= DAY_NS && DAY_NS % ns == 0 {
        true => Ok(duration),
        false => Err(wrong_argument("a day has a whole number of bars: 1s, 1m, 5m, 15m, 1h, 1d")),
    }
}
