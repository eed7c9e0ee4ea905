//! Logarithm, exponential and normal quantile out of `+ - * /` alone.
//!
//! The functions of `std` call the platform's mathematical library, whose last bit differs from
//! one platform to the next; a delay that is one nanosecond off changes a whole run. IEEE 754
//! fixes the result of the four operations and of the square root, so these give the same bits
//! everywhere. They run when tables are built, not per packet.

/// Natural logarithm of a positive, normal number.
pub(crate) fn ln(x: f64) -> f64 {
    assert!(x.is_normal() && x > 0.0, "ln of {x}");
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) as i64 - 1023) as f64;
    let mut m = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | (1023 << 52));
    if m > core::f64::consts::SQRT_2 {
        m /= 2.0;
        exponent += 1.0;
    }
    // atanh series: |s| <= 0.172, so that the term in s^23 is below 1e-18.
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for k in (0..=10).rev() {
        sum = sum * square + 1.0 / f64::from(2 * k + 1);
    }
    2.0 * s * sum + exponent * core::f64::consts::LN_2
}

/// Exponential, for arguments whose result is a normal number.
pub(crate) fn exp(x: f64) -> f64 {
    assert!((-700.0..700.0).contains(&x), "exp of {x}");
    let k = (x / core::f64::consts::LN_2 + 0.5).floor();
    let r = x - k * core::f64::consts::LN_2;
    // Taylor: |r| <= 0.35, so that the term in r^15 is below 1e-18.
    let mut sum = 1.0;
    for n in (1..=14).rev() {
        sum = 1.0 + r / f64::from(n) * sum;
    }
    sum * f64::from_bits(((k as i64 + 1023) as u64) << 52)
}

/// Quantile of the standard normal distribution (Acklam's rational approximation, relative error
/// 1.2e-9), for `q` strictly between 0 and 1.
pub(crate) fn normal_quantile(q: f64) -> f64 {
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
    /// Where the central approximation hands over to the tails.
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
pub(crate) fn mix(word: u64) -> u64 {
    let z = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_std_to_the_last_digits() {
        for i in 1..2_000 {
            let x = f64::from(i) * 0.37;
            assert!((ln(x) - x.ln()).abs() < 1e-14 * x.ln().abs().max(1.0), "ln {x}");
            let y = f64::from(i - 1_000) * 0.01;
            assert!((exp(y) / y.exp() - 1.0).abs() < 1e-14, "exp {y}");
        }
    }

    #[test]
    fn normal_quantiles_are_those_of_the_tables() {
        for (q, z) in [(0.5, 0.0), (0.975, 1.959_963_985), (0.001, -3.090_232_306)] {
            assert!((normal_quantile(q) - z).abs() < 1e-7, "{q}");
        }
    }
}
