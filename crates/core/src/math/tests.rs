use core::f64::consts::PI;

use super::*;

/// The error of `ours` in units of the true value, or of 1 where the true value is small.
fn error(ours: f64, exact: f64) -> f64 {
    (ours - exact).abs() / exact.abs().max(1.0)
}

#[test]
fn agrees_with_std_to_the_last_digits() {
    for i in 1..20_000 {
        let x = f64::from(i) * 0.37;
        assert!(error(ln(x), x.ln()) < 1e-15, "ln {x}");
        assert!(error(log10(x), x.log10()) < 1e-15, "log10 {x}");
        assert!(error(log2(x), x.log2()) < 1e-15, "log2 {x}");
        let y = f64::from(i - 10_000) * 0.07;
        assert!((exp(y) / y.exp() - 1.0).abs() < 1e-15, "exp {y}");
        assert!((sin(y) - y.sin()).abs() < 1e-15, "sin {y}");
        assert!((cos(y) - y.cos()).abs() < 1e-15, "cos {y}");
        let bound = 1e-15 * (1.0 + (y / 100.0 * x.ln()).abs());
        assert!((pow(x, y / 100.0) / x.powf(y / 100.0) - 1.0).abs() < bound, "{x} to {y}/100");
    }
    for turn in [1e3, 1e5, ANGLE_MAX] {
        assert!((sin(turn) - turn.sin()).abs() < 1e-15, "sin {turn}");
    }
    assert!((tan(0.7) - 0.7_f64.tan()).abs() < 1e-15);
}

#[test]
fn fnv1a_has_the_published_hashes_and_goes_on_where_it_ended() {
    assert_eq!(fnv1a(FNV_BASIS, b""), 0xcbf2_9ce4_8422_2325);
    assert_eq!(fnv1a(FNV_BASIS, b"a"), 0xaf63_dc4c_8601_ec8c);
    assert_eq!(fnv1a(FNV_BASIS, b"foobar"), 0x8594_4171_f739_67e8);
    assert_eq!(fnv1a(fnv1a(FNV_BASIS, b"foo"), b"bar"), fnv1a(FNV_BASIS, b"foobar"));
}

#[test]
fn logarithms_close_to_one_keep_their_digits() {
    for i in 1..1_000 {
        let x = 1.0 + f64::from(i) * 1e-9;
        assert!((ln(x) / x.ln() - 1.0).abs() < 1e-15, "ln {x}");
    }
    assert_eq!(ln(1.0), 0.0);
    assert_eq!([log2(8.0), log2(0.25), log2(1.0)], [3.0, -2.0, 0.0]);
    assert_eq!((sin(0.0), cos(0.0)), (0.0, 1.0));
}

#[test]
fn outside_of_their_range_they_end_as_those_of_std_do() {
    assert_eq!(ln(0.0), f64::NEG_INFINITY);
    assert!(ln(-1.0).is_nan() && ln(f64::NAN).is_nan() && exp(f64::NAN).is_nan());
    assert_eq!(ln(f64::INFINITY), f64::INFINITY);
    assert!(error(ln(f64::from_bits(1)), f64::from_bits(1).ln()) < 1e-15);
    assert_eq!((exp(800.0), exp(-800.0)), (f64::INFINITY, 0.0));
    assert_eq!((exp(f64::INFINITY), exp(f64::NEG_INFINITY)), (f64::INFINITY, 0.0));
    assert!((exp(709.7) / 709.7_f64.exp() - 1.0).abs() < 1e-15);
    assert!((exp(-740.0) - (-740.0_f64).exp()).abs() <= f64::from_bits(1));
    assert_eq!((pow(0.0, 2.0), pow(0.0, 0.0), pow(7.0, 0.0)), (0.0, 1.0, 1.0));
    assert!(sin(f64::INFINITY).is_nan() && cos(f64::NAN).is_nan());
}

#[test]
fn normal_quantiles_are_those_of_the_tables() {
    for (q, z) in [(0.5, 0.0), (0.975, 1.959_963_985), (0.001, -3.090_232_306)] {
        assert!((normal_quantile(q) - z).abs() < 1e-7, "{q}");
    }
}

#[test]
fn bits_are_the_same_for_ever() {
    // Pinned: another bit, on another computer or in another build, changes whole runs.
    let mut digest = 0;
    for i in 1..5_000 {
        let x = f64::from(i) * 0.013;
        let angle = (f64::from(i) - 2_500.0) * PI / 17.0;
        let q = f64::from(i) / 5_000.0;
        let all = [ln(x), log2(x), log10(x), exp(x), exp(-x), pow(x, 0.3), sin(angle), cos(angle)];
        for value in all.into_iter().chain([tan(angle), normal_quantile(q)]) {
            digest = mix(digest ^ value.to_bits());
        }
    }
    assert_eq!(format!("{digest:016x}"), "392423ca5f5cc07b");
}
