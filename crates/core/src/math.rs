//! Logarithms, powers, exponentials and angles out of `+ - * /` and the square root alone.
//!
//! The functions of `std` call the platform's mathematical library. The last bit of a logarithm
//! differs from one library to the next. A compiler may also compute a constant call by itself,
//! with another last bit. A delay that is one nanosecond off changes a whole run. IEEE 754 fixes
//! the results of the four operations, of the square root and of rounding to whole numbers. The
//! functions of this module use nothing else, so that they give the same bits on every computer, at
//! every optimisation level, with and without fused multiplication.
//!
//! | function | error against the true value, within the stated range |
//! |---|---|
//! | [`ln`], [`log2`], [`log10`] | 1e-15, relative where the result exceeds 1 |
//! | [`exp`] | 1e-15 relative |
//! | [`pow`] | 1e-15 relative for each unit of `exponent * ln(base)` |
//! | [`sin`], [`cos`], [`tan`] | 1e-15 for angles up to [`ANGLE_MAX`] |
//! | [`normal_quantile`] | 2e-9 relative |
//!
//! The functions are total: outside of their range they give infinity, zero or a NaN as those of
//! `std` do. `cargo xtask tidy` refuses the functions of `std` everywhere else.

use core::f64::consts::{FRAC_2_PI, LOG2_E, LOG10_E, SQRT_2};

/// The upper 32 bits of the logarithm of 2: a product with an exponent is exact.
const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
/// The rest of the logarithm of 2.
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
/// The upper 33 bits of a quarter turn: a product with a number of up to 20 bits is exact.
const QUARTER_HIGH: f64 = 1.570_796_326_734_125_6;
/// The next 33 bits of a quarter turn.
const QUARTER_MIDDLE: f64 = 6.077_100_506_303_966e-11;
/// The rest of a quarter turn.
const QUARTER_LOW: f64 = 2.022_266_248_795_950_6e-21;
/// The largest angle, in radians, whose sine and cosine are accurate. An angle beyond this limit
/// has up to twenty bits of whole quarter turns, which leave too few bits for the part of a quarter
/// turn.
pub const ANGLE_MAX: f64 = 1e6;
/// `exp` of more than this is infinite: the logarithm of the largest number is 709.78.
const EXP_MAX: f64 = 709.79;
/// `exp` of less than this is zero: the logarithm of the smallest number is -744.44.
const EXP_MIN: f64 = -745.2;

/// The number times itself.
pub fn square(x: f64) -> f64 {
    x * x
}

/// Natural logarithm.
pub fn ln(x: f64) -> f64 {
    if x == 0.0 {
        return f64::NEG_INFINITY;
    }
    if x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x.is_infinite() {
        return x;
    }
    // A number below the normal ones is scaled up to them by 2^54.
    let (x, scale) = if x.is_normal() { (x, 0.0) } else { (x * 18_014_398_509_481_984.0, 54.0) };
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) as i64 - 1023) as f64 - scale;
    let mut m = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | (1023 << 52));
    if m > SQRT_2 {
        m /= 2.0;
        exponent += 1.0;
    }
    // atanh series: |s| <= 0.172, so that the term in s^23 is below 1e-18. The series begins with
    // the term in s^3, because the sum of the large terms below keeps more bits in this order.
    let f = m - 1.0;
    let s = f / (m + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for k in (1..=10).rev() {
        sum = square * (sum + 2.0 / f64::from(2 * k + 1));
    }
    // 2 s = f - s f: the first is exact, and the second small.
    exponent * LN_2_HIGH + (f - (s * (f - sum) - exponent * LN_2_LOW))
}

/// Logarithm to base 2; exact for powers of two.
pub fn log2(x: f64) -> f64 {
    if !x.is_normal() || x < 0.0 {
        return ln(x) * LOG2_E;
    }
    let bits = x.to_bits();
    let exponent = ((bits >> 52) as i64 - 1023) as f64;
    exponent + ln(f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | (1023 << 52))) * LOG2_E
}

/// Logarithm to base 10.
pub fn log10(x: f64) -> f64 {
    ln(x) * LOG10_E
}

/// Exponential.
pub fn exp(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x > EXP_MAX {
        return f64::INFINITY;
    }
    if x < EXP_MIN {
        return 0.0;
    }
    let k = (x * LOG2_E + 0.5).floor();
    let r = (x - k * LN_2_HIGH) - k * LN_2_LOW;
    // Taylor: |r| <= 0.35, so that the term in r^15 is below 1e-18.
    let mut sum = 1.0;
    for n in (2..=14).rev() {
        sum = 1.0 + r / f64::from(n) * sum;
    }
    // Two factors, because a result below the normal numbers has a factor below 2^-1022.
    let half = (k / 2.0).floor();
    (1.0 + r * sum) * power_of_two(half) * power_of_two(k - half)
}

/// 2 to a whole number between -1022 and 1023.
fn power_of_two(k: f64) -> f64 {
    f64::from_bits(((k as i64 + 1023) as u64) << 52)
}

/// `base` to the power of `exponent`, for a base of zero or more.
pub fn pow(base: f64, exponent: f64) -> f64 {
    // `exponent * ln(base)` is no number when the exponent is 0 and the base is 0, or when the base
    // is 1 and the exponent is infinite.
    if exponent == 0.0 || base == 1.0 { 1.0 } else { exp(exponent * ln(base)) }
}

/// Sine and cosine of an angle in radians.
pub fn sin_cos(angle: f64) -> (f64, f64) {
    if !angle.is_finite() {
        return (f64::NAN, f64::NAN);
    }
    let quarters = (angle * FRAC_2_PI + 0.5).floor();
    let r =
        ((angle - quarters * QUARTER_HIGH) - quarters * QUARTER_MIDDLE) - quarters * QUARTER_LOW;
    // Taylor: |r| <= 0.79, so that the terms in r^21 and r^20 are below 1e-20.
    let square = r * r;
    let (mut sine, mut cosine) = (0.0, 0.0);
    for k in (1..=9).rev() {
        let k = 2.0 * f64::from(k);
        sine = -square / (k * (k + 1.0)) * (1.0 + sine);
        cosine = -square / (k * (k - 1.0)) * (1.0 + cosine);
    }
    let (sine, cosine) = (r + r * sine, 1.0 + cosine);
    match quarters.rem_euclid(4.0) as u8 {
        0 => (sine, cosine),
        1 => (cosine, -sine),
        2 => (-sine, -cosine),
        _ => (-cosine, sine),
    }
}

/// Sine of an angle in radians.
pub fn sin(angle: f64) -> f64 {
    sin_cos(angle).0
}

/// Cosine of an angle in radians.
pub fn cos(angle: f64) -> f64 {
    sin_cos(angle).1
}

/// Tangent of an angle in radians.
pub fn tan(angle: f64) -> f64 {
    let (sine, cosine) = sin_cos(angle);
    sine / cosine
}

/// Quantile of the standard normal distribution (Acklam's rational approximation, relative error
/// 1.2e-9), for `q` strictly between 0 and 1.
pub fn normal_quantile(q: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969683028665376e1,
        2.209460984245205e2,
        -2.759285104469687e2,
        1.38357751867269e2,
        -3.066479806614716e1,
        2.506628277459239,
    ];
    const B: [f64; 6] = [
        -5.447609879822406e1,
        1.615858368580409e2,
        -1.556989798598866e2,
        6.680131188771972e1,
        -1.328068155288572e1,
        1.0,
    ];
    const C: [f64; 6] = [
        -7.784894002430293e-3,
        -3.223964580411365e-1,
        -2.400758277161838,
        -2.549732539343734,
        4.374664141464968,
        2.938163982698783,
    ];
    const D: [f64; 5] =
        [7.784695709041462e-3, 3.224671290700398e-1, 2.445134137142996, 3.754408661907416, 1.0];
    /// Below this probability, and above 1 minus it, the approximation of the tails applies.
    const LOW: f64 = 0.02425;
    let horner = |coefficients: &[f64], x: f64| coefficients.iter().fold(0.0, |sum, c| sum * x + c);
    if q < LOW {
        let r = (-2.0 * ln(q)).sqrt();
        horner(&C, r) / horner(&D, r)
    } else if q > 1.0 - LOW {
        -normal_quantile(1.0 - q)
    } else {
        let r = q - 0.5;
        r * horner(&A, r * r) / horner(&B, r * r)
    }
}

/// The 64-bit finaliser of splitmix64: a good hash of one word.
pub fn mix(word: u64) -> u64 {
    let z = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The hash of no bytes, with which [`fnv1a`] begins.
pub const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a in 64 bits: the hash of more bytes behind those that `hash` stands for. The hash finds
/// torn records and tells names apart. The hash does not protect against forgers.
pub fn fnv1a(hash: u64, bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(hash, step)
}

#[cfg(test)]
mod tests;
