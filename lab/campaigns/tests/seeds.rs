//! Runs of many seeds stand in order, and a run that panics is named.

use evenfall_campaigns::seeds::in_parallel;

#[test]
fn results_stand_in_the_order_of_their_seeds() {
    let mut heard = 0;
    let results = in_parallel(7, 20, |seed| seed * seed, |_| heard += 1);
    assert_eq!(results, (7..27).map(|seed| seed * seed).collect::<Vec<_>>());
    assert_eq!(heard, 20);
}

#[test]
#[should_panic(expected = "seed 9: the run broke")]
fn a_run_that_panics_is_named() {
    in_parallel(7, 20, |seed| assert!(seed < 9, "the run broke"), |_| {});
}
