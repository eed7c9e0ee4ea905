//! Means of a few values, with their confidence intervals.
//!
//! Studies have 2 to 50 values, too few for the normal distribution: with three values, the 95 %
//! interval of the mean is 2.2 times as wide as the normal distribution says. Student's t is exact
//! for normally distributed values.
//!
//! ```
//! use evenfall_core::statistics::{half_width, mean};
//!
//! let seconds = [10.0, 12.0, 11.0];
//! assert_eq!(mean(&seconds), Some(11.0));
//! // 4.303 standard errors: the mean lies in 11 +- 2.48 at 95 %.
//! assert!((half_width(&seconds, 0.05).unwrap() - 2.484).abs() < 0.001);
//! ```

use core::f64::consts::{FRAC_2_PI, FRAC_PI_2};

use crate::math::{sin_cos, square, tan};

/// Largest number of degrees of freedom that is computed as such. From here on, t differs from the
/// normal distribution's value by less than 1 %, for tails of a millionth and more.
const DEGREES_MAX: u32 = 1_000;
/// Halvings of the angle whose tangent is t. Sixty halvings go below the precision of an angle.
const HALVINGS: u32 = 60;

/// The mean. `None` for an empty slice, or when any value is not finite.
pub fn mean(values: &[f64]) -> Option<f64> {
    let finite = !values.is_empty() && values.iter().all(|value| value.is_finite());
    finite.then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The standard deviation of the population from which the values were drawn, estimated with n - 1.
/// `None` for fewer than two values.
pub fn deviation(values: &[f64]) -> Option<f64> {
    let (mean, n) = (mean(values)?, values.len() as f64);
    let squares: f64 = values.iter().map(|value| square(value - mean)).sum();
    (values.len() > 1).then(|| (squares / (n - 1.0)).sqrt())
}

/// Half the width of the confidence interval of the mean by Student's t: the true mean lies outside
/// `mean - half ..= mean + half` with probability `tail`. `None` for fewer than two values.
pub fn half_width(values: &[f64], tail: f64) -> Option<f64> {
    let error = deviation(values)? / (values.len() as f64).sqrt();
    Some(error * student_t(values.len() as u32 - 1, tail))
}

/// The value that |t| exceeds with probability `tail`, for this many degrees of freedom (at least
/// 1).
///
/// Bisection of the closed form for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and
/// 26.7.4).
pub fn student_t(degrees: u32, tail: f64) -> f64 {
    let degrees = degrees.clamp(1, DEGREES_MAX);
    let (mut low, mut high) = (0.0, FRAC_PI_2);
    for _ in 0..HALVINGS {
        let angle: f64 = (low + high) / 2.0;
        if 1.0 - within(degrees, angle) > tail { low = angle } else { high = angle }
    }
    f64::from(degrees).sqrt() * tan(low)
}

/// The probability that |t| is below sqrt(degrees) * tan(angle).
fn within(degrees: u32, angle: f64) -> f64 {
    let (sin, cos) = sin_cos(angle);
    let odd = degrees % 2 == 1;
    let mut term = if odd { cos } else { 1.0 };
    let mut sum = 0.0;
    let first = if odd { 3 } else { 2 };
    for next in (first..=degrees).step_by(2) {
        sum += term;
        term *= f64::from(next - 1) / f64::from(next) * cos * cos;
    }
    if odd { FRAC_2_PI * (angle + sin * sum) } else { sin * sum }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Prng;

    #[test]
    fn t_is_that_of_the_printed_tables() {
        let printed = [
            (1, 0.05, 12.706),
            (2, 0.05, 4.303),
            (3, 0.05, 3.182),
            (4, 0.05, 2.776),
            (9, 0.05, 2.262),
            (49, 0.05, 2.010),
            (2, 0.001, 31.599),
            (5, 0.001, 6.869),
            (10, 0.01, 3.169),
            (1_000_000, 0.05, 1.962),
        ];
        for (degrees, tail, t) in printed {
            let ours = student_t(degrees, tail);
            assert!((ours - t).abs() < 0.001, "{degrees} degrees, tail {tail}: {ours}, not {t}");
        }
    }

    #[test]
    fn intervals_of_few_values_cover_the_mean_as_often_as_they_say() {
        let mut prng = Prng::new(1);
        for n in [2, 3, 5, 20] {
            let covers = |_: &u32| {
                let values: Vec<f64> = (0..n).map(|_| 7.0 + 3.0 * prng.normal()).collect();
                let (mean, half) = (mean(&values), half_width(&values, 0.05));
                (mean.expect("values") - 7.0).abs() <= half.expect("two values")
            };
            let covered = (0..4_000u32).filter(covers).count();
            assert!((3_740..3_860).contains(&covered), "{n} values: {covered} of 4000");
        }
    }

    #[test]
    fn of_one_value_no_interval_is_known() {
        assert_eq!(half_width(&[3.0], 0.05), None);
        assert_eq!(half_width(&[], 0.05), None);
        assert_eq!(mean(&[]), None);
        assert_eq!(mean(&[1.0, f64::INFINITY]), None);
    }
}
