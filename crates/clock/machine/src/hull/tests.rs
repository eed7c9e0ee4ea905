use evenfall_core::Prng;

use super::*;

/// Clouds around a line, whose delays are `least` and more.
fn clouds(prng: &mut Prng, n: usize, slope: f64, least: f64) -> (Vec<HullPoint>, Vec<HullPoint>) {
    let mut cloud = |sign: f64| {
        let point = |_| {
            let x = prng.unit() * 2_000.0;
            HullPoint { x, y: 700.0 + slope * x + sign * (least + prng.exponential(30.0)) }
        };
        (0..n).map(point).collect::<Vec<_>>()
    };
    (cloud(-1.0), cloud(1.0))
}

fn band(lower: &mut [HullPoint], upper: &mut [HullPoint], most: f64) -> Band {
    let (l, u) = (boundary(lower, Side::Above), boundary(upper, Side::Below));
    Band::widest(&l, &u, (-most, most)).expect("both clouds have points")
}

/// The width for one slope, by looking at every point.
fn width(lower: &[HullPoint], upper: &[HullPoint], slope: f64) -> f64 {
    let top = upper.iter().map(|p| p.y - slope * p.x).fold(f64::INFINITY, f64::min);
    top - lower.iter().map(|p| p.y - slope * p.x).fold(f64::NEG_INFINITY, f64::max)
}

#[test]
fn no_other_slope_gives_a_wider_band() {
    let mut prng = Prng::new(1);
    for n in [1, 2, 3, 5, 20, 200] {
        for _ in 0..40 {
            let (mut lower, mut upper) = clouds(&mut prng, n, 0.02, 5.0);
            let band = band(&mut lower, &mut upper, 0.5);
            assert!((width(&lower, &upper, band.slope) - 2.0 * band.half).abs() < 1e-9);
            for k in -1_000..=1_000 {
                let slope = f64::from(k) * 0.000_5;
                assert!(width(&lower, &upper, slope) <= 2.0 * band.half + 1e-9, "slope {slope}");
            }
        }
    }
}

#[test]
fn the_steepest_and_the_flattest_line_just_fit() {
    let mut prng = Prng::new(2);
    for n in [1, 3, 20, 200] {
        for _ in 0..40 {
            let (mut lower, mut upper) = clouds(&mut prng, n, -0.01, 5.0);
            let band = band(&mut lower, &mut upper, 0.5);
            for (slope, outwards) in [(band.slope_max, 1e-6), (band.slope_min, -1e-6)] {
                assert!(width(&lower, &upper, slope) >= -1e-6, "the line fits");
                let outside = slope.abs() == 0.5 || width(&lower, &upper, slope + outwards) < 0.0;
                assert!(outside, "no line beyond {slope} fits");
            }
            let at = 2_500.0;
            let truth = 700.0 - 0.01 * at;
            assert!(band.low(&lower, at) <= truth && truth <= band.high(&upper, at));
        }
    }
}

/// A linear support vector machine with a hard margin, as a line: slope and value at zero.
///
/// The dual of the machine asks for the closest points of the convex hulls of both classes.
/// Pairwise Frank-Wolfe steps find them, and the line between the classes is perpendicular to the
/// connection.
fn support_vector_machine(lower: &[HullPoint], upper: &[HullPoint]) -> (f64, f64) {
    let (mut p, mut q) = ((upper[0].x, upper[0].y), (lower[0].x, lower[0].y));
    let mut weights = (vec![0.0; upper.len()], vec![0.0; lower.len()]);
    (weights.0[0], weights.1[0]) = (1.0, 1.0);
    for _ in 0..400_000 {
        let w = (p.0 - q.0, p.1 - q.1);
        let score = |point: &HullPoint| w.0 * point.x + w.1 * point.y;
        let by =
            |a: &(usize, &HullPoint), b: &(usize, &HullPoint)| score(a.1).total_cmp(&score(b.1));
        let near = |class: &[HullPoint], worst: bool, held: &[f64]| {
            let points = class.iter().enumerate().filter(|(k, _)| !worst || held[*k] > 0.0);
            points.min_by(by).map(|(k, _)| k).expect("a point")
        };
        let far = |class: &[HullPoint], worst: bool, held: &[f64]| {
            let points = class.iter().enumerate().filter(|(k, _)| !worst || held[*k] > 0.0);
            points.max_by(by).map(|(k, _)| k).expect("a point")
        };
        // Pairwise steps: weight moves from the worst held point to the best point of a class.
        let moves = [
            (true, far(upper, true, &weights.0), near(upper, false, &weights.0)),
            (false, near(lower, true, &weights.1), far(lower, false, &weights.1)),
        ];
        let gain = |&(above, from, to): &(bool, usize, usize)| {
            let class = if above { upper } else { lower };
            (score(&class[from]) - score(&class[to])).abs()
        };
        let step = if gain(&moves[0]) >= gain(&moves[1]) { moves[0] } else { moves[1] };
        if gain(&step) < 1e-12 {
            break;
        }
        let (above, from, to) = step;
        let (class, held) = if above { (upper, &mut weights.0) } else { (lower, &mut weights.1) };
        let d = (class[to].x - class[from].x, class[to].y - class[from].y);
        let sign = if above { 1.0 } else { -1.0 };
        let best = -sign * (w.0 * d.0 + w.1 * d.1) / (d.0 * d.0 + d.1 * d.1);
        let t = best.clamp(0.0, held[from]);
        held[from] -= t;
        held[to] += t;
        let moved = if above { &mut p } else { &mut q };
        *moved = (moved.0 + t * d.0, moved.1 + t * d.1);
    }
    let w = (p.0 - q.0, p.1 - q.1);
    let at = ((p.0 + q.0) / 2.0, (p.1 + q.1) / 2.0);
    let slope = -w.0 / w.1;
    (slope, at.1 - slope * at.0)
}

#[test]
fn a_linear_support_vector_machine_finds_the_same_line() {
    let mut prng = Prng::new(3);
    for _ in 0..12 {
        // Slopes of 2e-5, as clocks have them. The machine's margin is perpendicular and the band's
        // is along the axis; they differ by the square of the slope.
        let (mut lower, mut upper) = clouds(&mut prng, 60, 2e-5, 200.0);
        let band = band(&mut lower, &mut upper, 0.5);
        let (slope, middle) = support_vector_machine(&lower, &upper);
        for x in [0.0, 1_000.0, 2_000.0] {
            let (ours, theirs) = (band.at(x), middle + slope * x);
            assert!((ours - theirs).abs() < 0.05, "at {x}: {ours} and {theirs}, slope {slope}");
        }
    }
}

#[test]
fn clouds_that_cross_have_a_negative_band() {
    let at = |x: f64, y: f64| HullPoint { x, y };
    let lower = [at(0.0, 0.0), at(5.0, 9.0), at(10.0, 0.0)];
    let upper = [at(0.0, 5.0), at(10.0, 5.0)];
    let band = band(&mut lower.clone(), &mut upper.clone(), 1.0);
    assert_eq!((band.half, band.slope_min, band.slope_max), (-2.0, band.slope, band.slope));
}
