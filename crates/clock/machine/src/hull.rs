//! The widest straight band between two clouds of points, exactly.
//!
//! ```text
//!  difference   u   u      u    u        upper cloud: the clocks' difference plus a delay
//!     ^          u__u____u____u__        its lower boundary
//!     |         --- the line ---         the middle of the widest band
//!     |          l----l----l---l         upper boundary of the lower cloud
//!     |            l     l   l           lower cloud: the difference minus a delay
//!     +-----------------------> time
//! ```
//!
//! Delays are never negative. The true line of the clocks' difference therefore lies below every
//! point of the upper cloud and above every point of the lower cloud. A support vector machine that
//! separates both clouds finds the widest band between them (Huygens, NSDI 2018). Here a band is
//! measured along the axis of differences, because slopes are a few millionths. The width of the
//! band for a slope `a` is `min(u - a x) - max(l - a x)`. The width is a concave function of the
//! slope and has its corners at the slopes of the edges of two convex hulls. One walk over the
//! edges finds the maximum, and the same walk finds the steepest and the flattest line that still
//! fit between the clouds.

/// A point of a cloud, both coordinates in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HullPoint {
    /// Time since an origin.
    pub x: f64,
    /// Difference of the clocks, less a common base.
    pub y: f64,
}

/// Which side of a cloud looks at the other cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The lower boundary of the upper cloud.
    Below,
    /// The upper boundary of the lower cloud.
    Above,
}

/// The corners of one boundary of a cloud, from left to right. `cloud` is put in the order of time.
///
/// Andrew's monotone chain: a corner that does not turn towards the other cloud is dropped.
pub fn boundary(cloud: &mut [HullPoint], side: Side) -> Vec<HullPoint> {
    // Equal times are ordered so that the outermost point of a column is met first.
    let sign = if side == Side::Below { 1.0 } else { -1.0 };
    cloud.sort_by(|a, b| a.x.total_cmp(&b.x).then((sign * a.y).total_cmp(&(sign * b.y))));
    let mut corners: Vec<HullPoint> = Vec::new();
    for &point in cloud.iter() {
        if corners.last().is_some_and(|last| last.x == point.x) {
            continue;
        }
        while let [.., a, b] = corners[..] {
            let turn = (b.x - a.x) * (point.y - a.y) - (b.y - a.y) * (point.x - a.x);
            if turn * sign > 0.0 {
                break;
            }
            corners.pop();
        }
        corners.push(point);
    }
    corners
}

/// A band between two clouds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Band {
    /// Rise of the middle line for each unit of time.
    pub slope: f64,
    /// The middle line at time zero.
    pub middle: f64,
    /// Half of the width; negative when no line fits between the clouds.
    pub half: f64,
    /// Slope of the steepest line between the clouds; equal to `slope` when no line fits.
    pub slope_max: f64,
    /// Slope of the flattest line between the clouds; equal to `slope` when no line fits.
    pub slope_min: f64,
}

impl Band {
    /// The widest band whose slope lies in `slopes`, between two boundaries. `None` when a boundary
    /// is empty.
    pub fn widest(lower: &[HullPoint], upper: &[HullPoint], slopes: (f64, f64)) -> Option<Self> {
        if lower.is_empty() || upper.is_empty() {
            return None;
        }
        let mut walk = Walk::new(lower, upper, slopes);
        walk.widen();
        let slope = walk.slope;
        let (bottom, top) = (walk.lower().y - slope * walk.lower().x, walk.top(slope));
        let half = (top - bottom) / 2.0;
        let (mut slope_min, mut slope_max) = (slope, slope);
        if half >= 0.0 {
            slope_max = walk.steepen();
            let mirror = |points: &[HullPoint]| -> Vec<HullPoint> {
                points.iter().rev().map(|point| HullPoint { x: -point.x, y: point.y }).collect()
            };
            let (lower, upper) = (mirror(lower), mirror(upper));
            let mut walk = Walk::new(&lower, &upper, (-slopes.1, -slopes.0));
            walk.widen();
            slope_min = -walk.steepen();
        }
        Some(Self { slope, middle: (top + bottom) / 2.0, half, slope_max, slope_min })
    }

    /// The middle line at a time.
    pub fn at(&self, x: f64) -> f64 {
        self.middle + self.slope * x
    }

    /// The highest value at time `x` of a line between the clouds. `x` is not earlier than any
    /// point.
    pub fn high(&self, upper: &[HullPoint], x: f64) -> f64 {
        let slope = self.slope_max;
        upper.iter().map(|point| point.y + slope * (x - point.x)).fold(f64::INFINITY, f64::min)
    }

    /// The lowest value at time `x` of a line between the clouds. `x` is not earlier than any
    /// point.
    pub fn low(&self, lower: &[HullPoint], x: f64) -> f64 {
        let slope = self.slope_min;
        lower.iter().map(|point| point.y + slope * (x - point.x)).fold(f64::NEG_INFINITY, f64::max)
    }
}

/// Both hulls under a slope that grows: the corner that touches the upper hull moves to the right,
/// the corner that touches the lower hull moves to the left.
struct Walk<'a> {
    lower: &'a [HullPoint],
    upper: &'a [HullPoint],
    /// Corner of the upper hull.
    right: usize,
    /// Corner of the lower hull.
    left: usize,
    slope: f64,
    most: f64,
}

impl<'a> Walk<'a> {
    fn new(lower: &'a [HullPoint], upper: &'a [HullPoint], slopes: (f64, f64)) -> Self {
        let left = lower.len() - 1;
        let mut walk = Self { lower, upper, right: 0, left, slope: slopes.0, most: slopes.1 };
        walk.settle();
        walk
    }

    fn upper(&self) -> HullPoint {
        self.upper[self.right]
    }

    fn lower(&self) -> HullPoint {
        self.lower[self.left]
    }

    fn top(&self, slope: f64) -> f64 {
        self.upper().y - slope * self.upper().x
    }

    /// Slopes at which the corners move on, of the upper and of the lower hull.
    fn turns(&self) -> (f64, f64) {
        let slope = |a: &HullPoint, b: &HullPoint| (b.y - a.y) / (b.x - a.x);
        let upper = self.upper.get(self.right + 1).map(|next| slope(&self.upper[self.right], next));
        let lower = self.left.checked_sub(1).map(|k| slope(&self.lower[k], &self.lower[self.left]));
        (upper.unwrap_or(f64::INFINITY), lower.unwrap_or(f64::INFINITY))
    }

    /// Moves the corners to where they touch at the present slope.
    fn settle(&mut self) {
        loop {
            let (upper, lower) = self.turns();
            if upper <= self.slope {
                self.right += 1;
            } else if lower <= self.slope {
                self.left -= 1;
            } else {
                return;
            }
        }
    }

    /// The width grows with the slope as long as the upper corner is left of the lower corner.
    fn widen(&mut self) {
        while self.upper().x < self.lower().x {
            let (upper, lower) = self.turns();
            let next = upper.min(lower);
            if next >= self.most {
                self.slope = self.most;
                return;
            }
            self.slope = next;
            self.settle();
        }
    }

    /// Goes on from the widest band to the slope at which the width is zero.
    fn steepen(&mut self) -> f64 {
        loop {
            let (upper, lower) = self.turns();
            let next = upper.min(lower).min(self.most);
            let (u, l) = (self.upper(), self.lower());
            if u.x > l.x {
                let zero = (u.y - l.y) / (u.x - l.x);
                if zero <= next {
                    return zero.max(self.slope);
                }
            }
            if next >= self.most {
                return self.most;
            }
            self.slope = next;
            self.settle();
        }
    }
}

#[cfg(test)]
mod tests;
