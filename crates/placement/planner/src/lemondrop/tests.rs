use evenfall_core::math;

use super::*;

const SHAPE: TreeShape = TreeShape { depth: 3, fanout: 2 };
const SETTINGS: AssignmentMethod =
    AssignmentMethod::Faq(Settings { epsilon: None, iterations_max: 30, starts: 1, polish: true });

fn delays(pool: usize, seed: u64) -> Vec<f64> {
    let mut prng = Prng::new(seed);
    let hosts: Vec<f64> = (0..pool).map(|_| math::exp(0.4 * prng.normal())).collect();
    (0..pool * pool)
        .map(|at| 20.0 * (hosts[at / pool] + hosts[at % pool]) + prng.exponential(15.0))
        .collect()
}

fn sum_of_edges(tree: &PlacedTree, delays: &[f64], pool: usize) -> f64 {
    tree.edges().map(|(from, to)| delays[from * pool + to]).sum()
}

fn lemon(delays: &[f64], pool: usize) -> LemonDrop<'_> {
    LemonDrop { shape: SHAPE, pool, delays, packets_per_s: 10_000.0, root: None }
}

#[test]
fn every_parent_sends_to_its_children_and_padding_is_silent() {
    // Thesis, section 2.1.3: the load matrix follows from rate, depth and fan-out.
    let load = load_matrix(TreeShape { depth: 1, fanout: 2 }, 5.0, 4);
    let wanted = [0., 5., 5., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0.];
    assert_eq!(load, wanted);
}

#[test]
fn the_cost_is_the_rate_times_the_sum_of_edges() {
    // Equation 2.1.
    let delays = delays(25, 1);
    let (tree, solution) = lemon(&delays, 25).plan(SETTINGS, &mut Prng::new(1)).unwrap();
    let sum = sum_of_edges(&tree, &delays, 25);
    assert!((solution.cost / 10_000.0 - sum).abs() < 1e-6 * sum);
}

#[test]
fn the_correct_step_beats_the_printed_one_over_seeds() {
    let (mut correct, mut as_printed) = (0.0, 0.0);
    for seed in 0..20 {
        let delays = delays(25, seed);
        let plan = |method| {
            let (tree, _) = lemon(&delays, 25).plan(method, &mut Prng::new(seed)).unwrap();
            sum_of_edges(&tree, &delays, 25)
        };
        let (_, epsilon, iterations_max) = LEMON_SETTINGS[0];
        let unpolished = Settings { polish: false, ..Settings::default() };
        correct += plan(AssignmentMethod::Faq(unpolished));
        as_printed += plan(AssignmentMethod::Printed { epsilon, iterations_max });
    }
    assert!(correct < as_printed, "{correct} {as_printed}");
}

#[test]
fn a_wanted_root_is_the_root() {
    for seed in 0..20 {
        let (delays, root) = (delays(20, seed), seed as usize);
        let lemon = LemonDrop { root: Some(root), ..lemon(&delays, 20) };
        let (tree, solution) = lemon.plan(SETTINGS, &mut Prng::new(1)).unwrap();
        assert_eq!(tree.hosts()[0], root);
        let sum = 10_000.0 * sum_of_edges(&tree, &delays, 20);
        assert!((solution.cost - sum).abs() < 1e-6 * sum, "the price of the root is not paid");
    }
}

#[test]
fn edges_that_were_not_measured_are_avoided_or_named() {
    let mut cells = delays(20, 3);
    for at in (0..400).step_by(3) {
        cells[at] = f64::NAN;
    }
    let (tree, _) = lemon(&cells, 20).plan(SETTINGS, &mut Prng::new(1)).unwrap();
    assert!(tree.edges().all(|(from, to)| cells[from * 20 + to].is_finite()));
    let none = vec![f64::INFINITY; 400];
    let error = lemon(&none, 20).plan(SETTINGS, &mut Prng::new(1)).unwrap_err();
    assert!(matches!(error, LemonDropError::Unreachable { .. }));
}

#[test]
fn unfit_input_is_refused_by_name() {
    let refuse = |lemon: LemonDrop| lemon.plan(SETTINGS, &mut Prng::new(1)).unwrap_err();
    let small = delays(12, 1);
    assert_eq!(
        refuse(lemon(&small, 12)).to_string(),
        "the tree has 15 places, the pool 12 hosts: 3 are missing"
    );
    let mut cells = delays(20, 1);
    assert_eq!(refuse(LemonDrop { root: Some(20), ..lemon(&cells, 20) }), LemonDropError::Root(20));
    assert!(matches!(refuse(lemon(&cells, 19)), LemonDropError::Cells { needed: 361, .. }));
    cells[21 + 20] = -1.0;
    assert_eq!(refuse(lemon(&cells, 20)), LemonDropError::Delay { from: 2, to: 1 });
}
