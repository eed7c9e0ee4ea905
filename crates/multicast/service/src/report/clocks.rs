//! The offsets and the bounds of a run's clocks over time, for the report page.

use evenfall_core::{ClockError, ClockReading};
use serde::Serialize;

/// Most curves of a page. In a larger run, the processes with the widest bounds are kept.
const CURVES_MAX: usize = 32;
/// Most points of a curve. A process reads its clock 50 times a second. When a curve has more
/// points, each two neighbouring points become one point.
const POINTS_MAX: usize = 400;

/// The clock of one process over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClockCurve {
    /// Name of the process.
    pub name: String,
    /// Times of the points, in nanoseconds since 1970.
    pub at_ns: Vec<u64>,
    /// The correction that the process added to its local clock, less its first correction, in
    /// microseconds.
    pub moved_us: Vec<f64>,
    /// The widest bound on the error that was stated since the point before, in microseconds.
    /// `None` when a reading had no bound.
    pub bound_us: Vec<Option<f64>>,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    at_ns: u64,
    offset_ns: i64,
    bound_ns: Option<u64>,
}

/// The readings of one process, thinned out as they come.
#[derive(Debug, Default)]
pub(super) struct ClockTrack {
    first_ns: Option<i64>,
    points: Vec<Point>,
    /// Readings that make a point, less one.
    beside: u64,
    /// Readings in the last point, less one.
    taken: u64,
}

fn merged(earlier: Point, later: Point) -> Point {
    let both = earlier.bound_ns.zip(later.bound_ns);
    Point { bound_ns: both.map(|(a, b)| a.max(b)), ..later }
}

impl ClockTrack {
    pub(super) fn read(&mut self, at_ns: u64, reading: ClockReading) {
        let bound_ns = match reading.error {
            ClockError::Within(bound) => u64::try_from(bound.as_nanos()).ok(),
            ClockError::SameClock => Some(0),
            ClockError::Unknown | ClockError::Disproved => None,
        };
        let point = Point { at_ns, offset_ns: reading.offset_ns, bound_ns };
        self.first_ns.get_or_insert(point.offset_ns);
        match self.points.last_mut().filter(|_| self.taken < self.beside) {
            Some(last) => {
                *last = merged(*last, point);
                self.taken += 1;
            }
            None => {
                self.points.push(point);
                self.taken = 0;
            }
        }
        if self.points.len() > POINTS_MAX {
            let pairs = self.points.chunks(2);
            self.points = pairs.filter_map(|pair| pair.iter().copied().reduce(merged)).collect();
            self.beside = 2 * self.beside + 1;
            self.taken = 0;
        }
    }

    fn curve(&self, name: String) -> ClockCurve {
        let first_ns = self.first_ns.unwrap_or_default();
        let us = |ns: i64| ns as f64 / 1e3;
        ClockCurve {
            name,
            at_ns: self.points.iter().map(|point| point.at_ns).collect(),
            moved_us: self
                .points
                .iter()
                .map(|point| us(point.offset_ns.saturating_sub(first_ns)))
                .collect(),
            bound_us: self
                .points
                .iter()
                .map(|point| point.bound_ns.map(|ns| ns as f64 / 1e3))
                .collect(),
        }
    }
}

/// The curves of the processes that read their clocks more than once, in the order of `courses`.
pub(super) fn curves(courses: impl Iterator<Item = (String, ClockTrack)>) -> Vec<ClockCurve> {
    let read = courses.filter(|(_, course)| course.points.len() > 1);
    let mut curves: Vec<ClockCurve> = read.map(|(name, course)| course.curve(name)).collect();
    if curves.len() > CURVES_MAX {
        let widest =
            |curve: &ClockCurve| curve.bound_us.iter().flatten().copied().fold(0.0, f64::max);
        curves.sort_by(|a, b| widest(b).total_cmp(&widest(a)));
        curves.truncate(CURVES_MAX);
    }
    curves
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_long_course_is_thinned_out_and_keeps_its_widest_bounds() {
        let mut course = ClockTrack::default();
        let count = 100_000u64;
        for k in 0..count {
            let bound = Duration::from_micros(if k == 77_777 { 900 } else { 2 });
            let error = ClockError::Within(bound);
            course.read(20_000_000 * k, ClockReading { offset_ns: 5_000 + 10 * k as i64, error });
        }
        let curves = curves([("n".to_owned(), course)].into_iter());
        let curve = &curves[0];
        assert!(
            (POINTS_MAX / 2..=POINTS_MAX).contains(&curve.at_ns.len()),
            "{}",
            curve.at_ns.len()
        );
        let wide: Vec<usize> =
            (0..curve.at_ns.len()).filter(|k| curve.bound_us[*k] == Some(900.0)).collect();
        let [wide] = wide[..] else { panic!("{wide:?}") };
        let at = 20_000_000 * 77_777;
        assert!(curve.at_ns[wide - 1] < at && at <= curve.at_ns[wide]);
        let last = curve.moved_us.last().expect("points");
        assert_eq!(
            (*last, curve.bound_us.last()),
            (10.0 * (count - 1) as f64 / 1e3, Some(&Some(2.0)))
        );
    }

    #[test]
    fn a_clock_without_a_bound_says_nothing_of_its_bound() {
        let mut course = ClockTrack::default();
        for k in 0..3 {
            course.read(k, ClockReading { offset_ns: 0, error: ClockError::Disproved });
        }
        assert_eq!(curves([("n".to_owned(), course)].into_iter())[0].bound_us, [None; 3]);
        let once = ClockTrack::default();
        assert!(curves([("n".to_owned(), once)].into_iter()).is_empty());
    }
}
