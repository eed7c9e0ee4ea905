//! The figures of a run over time, in bounded memory: the newer half is kept as it came, and older
//! points are put together in pairs, again and again.

use std::collections::VecDeque;

/// Points that are kept. With four points a second the last eight minutes are whole.
const POINTS_MAX: usize = 4_096;

/// The figures of one moment. Times are microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HistoryPoint {
    /// Number of the look, which grows by one.
    pub tick: u64,
    /// Seconds since the watch began.
    pub at_s: f64,
    /// Messages per second.
    pub rate: Option<f64>,
    /// Share of messages in time at every receiver.
    pub share: Option<f64>,
    pub hold: Option<f64>,
    pub oml: [Option<f64>; 2],
    pub window: [Option<f64>; 2],
    pub lateness: [Option<f64>; 2],
    /// Messages lost since the point before, over all receivers.
    pub lost: f64,
}

impl HistoryPoint {
    /// The numbers of a point for the page, in the order in which `web/live.js` reads them.
    pub fn row(&self) -> [Option<f64>; 12] {
        let round = |value: Option<f64>| value.map(|value| (value * 10.0).round() / 10.0);
        let share = self.share.map(|share| (share * 1e6).round() / 1e6);
        let [oml, window, late] = [self.oml, self.window, self.lateness];
        let (tick, at) = (Some(self.tick as f64), round(Some(self.at_s)));
        [
            tick,
            at,
            round(self.rate),
            share,
            round(self.hold),
            round(oml[0]),
            round(oml[1]),
            round(window[0]),
            round(window[1]),
            round(late[0]),
            round(late[1]),
            Some(self.lost),
        ]
    }

    /// This point and the next one as one. Nothing bad disappears: of two shares the smaller stays,
    /// and of two times the larger.
    fn join(&self, next: &Self) -> Self {
        let most = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).reduce(f64::max);
        let both = |a: [Option<f64>; 2], b: [Option<f64>; 2]| [most(a[0], b[0]), most(a[1], b[1])];
        Self {
            tick: next.tick,
            at_s: next.at_s,
            rate: most(self.rate, next.rate),
            share: self.share.into_iter().chain(next.share).reduce(f64::min),
            hold: most(self.hold, next.hold),
            oml: both(self.oml, next.oml),
            window: both(self.window, next.window),
            lateness: both(self.lateness, next.lateness),
            lost: self.lost + next.lost,
        }
    }
}

/// The points so far.
#[derive(Clone, Debug, Default)]
pub struct RunHistory {
    points: VecDeque<HistoryPoint>,
}

impl RunHistory {
    /// Adds the newest point.
    pub fn add_point(&mut self, point: HistoryPoint) {
        self.points.push_back(point);
        if self.points.len() > POINTS_MAX {
            let old: Vec<HistoryPoint> = self.points.drain(..POINTS_MAX / 2).collect();
            for pair in old.chunks(2).rev() {
                let joined = pair.iter().skip(1).fold(pair[0], |first, next| first.join(next));
                self.points.push_front(joined);
            }
        }
    }

    /// The points after a tick, the oldest first.
    pub fn points_after(&self, tick: u64) -> impl Iterator<Item = &HistoryPoint> {
        let from = self.points.partition_point(|point| point.tick <= tick);
        self.points.iter().skip(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_takes_no_more_room_than_an_hour_and_loses_no_loss() {
        let mut history = RunHistory::default();
        for tick in 1..=345_600 {
            let share = Some(if tick == 70 { 0.5 } else { 1.0 });
            let lost = f64::from(u8::from(tick % 1_000 == 0));
            history.add_point(HistoryPoint { tick, share, lost, ..HistoryPoint::default() });
        }
        let all: Vec<_> = history.points_after(0).collect();
        assert!(all.len() <= POINTS_MAX && all.len() >= POINTS_MAX / 2, "{}", all.len());
        assert_eq!(all.iter().map(|point| point.lost).sum::<f64>(), 345.0);
        assert_eq!(all[0].share, Some(0.5), "the worst share stays");
        assert!(all.is_sorted_by_key(|point| point.tick));
        let latest: Vec<u64> = history.points_after(345_598).map(|point| point.tick).collect();
        assert_eq!(latest, [345_599, 345_600]);
    }
}
