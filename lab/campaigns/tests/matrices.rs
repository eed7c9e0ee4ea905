//! The matrices of shuffles: their text, their bound, and the generators for measurements.

use evenfall_campaigns::shuffle::workload::{by_sampling, by_sorting};
use evenfall_campaigns::shuffle::{Links, Matrix, Normal};
use evenfall_core::Prng;

#[test]
fn a_matrix_that_was_written_reads_back() {
    let matrix = Matrix::of(3, vec![0, 1500, 200, 900, 0, 800, 800, 200, u32::MAX.into()]);
    assert_eq!(Matrix::parse(&matrix.to_string()), Ok(matrix));
}

#[test]
fn bad_matrices_are_refused_with_their_place() {
    let words = |text| Matrix::parse(text).expect_err("refused").to_string();
    assert!(words("# nothing\n").starts_with("the matrix has no rows"));
    assert!(words("1 2\n3 -4\n").starts_with("line 2, cell 2: \"-4\" is negative"));
    assert!(words("1 2\n\n3 x\n").starts_with("line 3, cell 2: \"x\" is not a whole"));
    assert!(words("1 2\n3\n").starts_with("line 2 has 1 cells, but there are 2 rows"));
    assert!(words("1 4294967296\n1 2\n").contains("more than a message can hold"));
}

#[test]
fn skewness_is_zero_for_equal_messages_and_one_for_a_permutation() {
    assert_eq!(Matrix::of(4, vec![7; 16]).skewness(), 0.0);
    let mut one = Matrix::new(4);
    (0..4).for_each(|from| one.set(from, (from + 1) % 4, 100));
    assert!((one.skewness() - 1.0).abs() < 1e-12);
}

#[test]
fn the_bound_is_that_of_the_most_loaded_link() {
    let mut matrix = Matrix::new(4);
    matrix.set(0, 2, 1000);
    matrix.set(1, 3, 1000);
    matrix.set(0, 0, 99_000);
    let links = Links { rack_hosts: 2, host_bits_per_s: 8e3, rack_bits_per_s: 8e3 };
    assert_eq!(matrix.bound(&links, |bytes| bytes as f64), 2.0);
    let links = Links { rack_bits_per_s: 16e3, ..links };
    assert_eq!(matrix.bound(&links, |bytes| bytes as f64), 1.0);
}

fn sums(matrix: &Normal) -> (f64, f64) {
    let n = matrix.nodes();
    let off = |sum: f64| (sum - n as f64).abs();
    let row = |i: usize| off(matrix.cells()[i * n..(i + 1) * n].iter().sum());
    let column = |j: usize| off((0..n).map(|i| matrix.cells()[i * n + j]).sum());
    let worst = |f: &dyn Fn(usize) -> f64| (0..n).map(f).fold(0.0, f64::max);
    (worst(&row), worst(&column))
}

#[test]
fn rows_and_columns_of_both_generators_add_up() {
    for seed in 0..6 {
        let mut prng = Prng::new(seed);
        let skewness = 0.05 + 0.18 * seed as f64;
        for matrix in
            [by_sampling(40, skewness, &mut prng), by_sorting(24, seed as f64 / 5.0, &mut prng)]
        {
            let (row, column) = sums(&matrix);
            assert!(row < 1e-6 && column < 1e-6, "seed {seed}: {row} {column}");
        }
    }
}

#[test]
fn sampling_covers_the_whole_range_of_skewness() {
    for percent in [0u32, 5, 10, 25, 40, 50, 60, 75, 90, 95] {
        let wanted = f64::from(percent) / 100.0;
        let matrix = by_sampling(160, wanted, &mut Prng::new(percent.into()));
        let got = matrix.skewness();
        assert!((got - wanted).abs() < 0.06, "wanted {wanted}, got {got}");
    }
}

#[test]
fn sorting_duplicate_keys_makes_skewed_messages() {
    let skewness = |d| by_sorting(32, d, &mut Prng::new(1)).skewness();
    assert!(skewness(0.0) < 0.05);
    assert!(skewness(0.5) > 0.2);
    assert!(skewness(1.0) > 0.6);
}

#[test]
fn bytes_keep_the_sums_of_rows() {
    let matrix = by_sampling(40, 0.5, &mut Prng::new(3)).bytes(24_000.0);
    for from in 0..40 {
        let sum: u64 = matrix.row(from).iter().sum();
        assert!(sum.abs_diff(960_000) <= 1, "{sum}");
    }
}

#[test]
fn weights_skew_the_data() {
    let weight: Vec<f64> = (1..=10).map(f64::from).collect();
    let matrix = by_sampling(10, 0.3, &mut Prng::new(3)).weighted(&weight).bytes(1e6);
    let sum = |from: usize| matrix.row(from).iter().sum::<u64>() as f64;
    assert!((sum(9) / sum(0) - 10.0).abs() < 0.01);
}
