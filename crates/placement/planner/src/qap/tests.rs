use super::assignment::AssignmentSolver;
use super::faq::{Descent, Settings, faq, random_doubly_stochastic, step_length};
use super::file::{self, FileError};
use super::generator::{Family, generate};
use super::gradient::Gradient;
use super::printed::printed;
use super::search::{SearchEffort, search};
use super::swaps::Swaps;
use super::{Instance, InstanceError, inverse, transposed};
use evenfall_core::Prng;

/// Every permutation of 0..n.
fn permutations(n: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for host in 0..n {
        let put = |p: &Vec<usize>, at: usize| {
            let mut p = p.clone();
            p.insert(at, host);
            p
        };
        all = all.iter().flat_map(|p| (0..=host).map(move |at| put(p, at))).collect();
    }
    all
}

fn random_permutation(n: usize, prng: &mut Prng) -> Vec<usize> {
    let mut p: Vec<usize> = (0..n).collect();
    prng.shuffle(&mut p);
    p
}

fn naive_product(n: usize, x: &[f64], y: &[f64]) -> Vec<f64> {
    let cell = |i: usize, j: usize| (0..n).map(|k| x[i * n + k] * y[k * n + j]).sum();
    (0..n * n).map(|at| cell(at / n, at % n)).collect()
}

/// The formula of Algorithm 1, line 6, with the sign that minimises.
fn naive_gradient(instance: &Instance, p: &[f64]) -> Vec<f64> {
    let (n, a, b) = (instance.size(), instance.a(), instance.b());
    let (at, bt) = (transposed(n, a), transposed(n, b));
    let one = naive_product(n, &naive_product(n, a, p), &bt);
    let two = naive_product(n, &naive_product(n, &at, p), b);
    one.iter().zip(two).map(|(x, y)| x + y).collect()
}

fn relaxed_cost(instance: &Instance, p: &[f64]) -> f64 {
    0.5 * naive_gradient(instance, p).iter().zip(p).map(|(g, p)| g * p).sum::<f64>()
}

fn matrix_of(q: &[usize]) -> Vec<f64> {
    let n = q.len();
    (0..n * n).map(|at| f64::from(u8::from(q[at / n] == at % n))).collect()
}

fn assert_near(found: &[f64], wanted: &[f64]) {
    let scale = wanted.iter().fold(1.0_f64, |most, x| most.max(x.abs()));
    for (found, wanted) in found.iter().zip(wanted) {
        assert!((found - wanted).abs() <= 1e-9 * scale, "{found} for {wanted}");
    }
}

#[test]
fn an_assignment_is_the_least_of_all() {
    let mut prng = Prng::new(1);
    for case in 0..400 {
        let n = 1 + case % 7;
        let coarse = [2, 5, 1000][case % 3];
        let costs: Vec<f64> = (0..n * n).map(|_| prng.below(coarse) as f64 - 3.0).collect();
        let sum = |p: &[usize]| -> f64 { (0..n).map(|i| costs[i * n + p[i]]).sum() };
        let least = permutations(n).iter().map(|p| sum(p)).fold(f64::INFINITY, f64::min);
        let mut solver = AssignmentSolver::new(n);
        assert_eq!(sum(solver.solve(&costs)), least, "case {case}: {costs:?}");
        // The prices that the first call left are a valid start for any other costs.
        let other: Vec<f64> = (0..n * n).map(|_| prng.unit()).collect();
        solver.solve(&other);
        assert_eq!(sum(solver.solve(&costs)), least, "case {case}, warm");
    }
}

#[test]
fn an_assignment_warm_or_cold_costs_the_same() {
    let mut prng = Prng::new(2);
    for n in [30, 101] {
        let mut warm = AssignmentSolver::new(n);
        let mut costs: Vec<f64> = (0..n * n).map(|_| prng.unit()).collect();
        for _ in 0..20 {
            costs.iter_mut().for_each(|cell| *cell = 0.7 * *cell + 0.3 * prng.unit());
            let sum = |p: &[usize]| -> f64 { (0..n).map(|i| costs[i * n + p[i]]).sum() };
            let (one, two) = (sum(warm.solve(&costs)), sum(AssignmentSolver::new(n).solve(&costs)));
            assert!((one - two).abs() < 1e-9, "{one} and {two}");
        }
    }
}

#[test]
fn the_gradient_is_the_formulas() {
    let mut prng = Prng::new(3);
    for family in Family::ALL {
        for n in [1, 2, 5, 13, 30] {
            let instance = generate(family, n, &mut prng);
            let symmetrised = instance.symmetrised();
            let p = random_doubly_stochastic(n, &mut prng);
            let q = random_permutation(n, &mut prng);
            let works = [(Some(instance.clone()), false), (symmetrised, true)];
            for (work, symmetric) in works.into_iter().filter_map(|(w, s)| Some((w?, s))) {
                let mut gradient = Gradient::new(&work, symmetric);
                assert_near(&gradient.of(&p), &naive_gradient(&work, &p));
                let flat = vec![1.0 / n as f64; n * n];
                assert_near(&gradient.of_barycentre(), &naive_gradient(&work, &flat));
                let mut sum = vec![1.0; n * n];
                gradient.add(&q, 0.5, &mut sum);
                let wanted = naive_gradient(&work, &matrix_of(&q));
                let wanted: Vec<f64> = wanted.iter().map(|cell| 1.0 + 0.5 * cell).collect();
                assert_near(&sum, &wanted);
                assert_near(&[gradient.cost(&q)], &[instance.cost(&q)]);
            }
        }
    }
}

#[test]
fn a_product_deeper_than_one_block_is_whole() {
    let mut prng = Prng::new(4);
    let n = 301;
    let instance = generate(Family::UniformAsymmetric, n, &mut prng);
    let q = random_permutation(n, &mut prng);
    let mut out = vec![0.0; n * n];
    Gradient::new(&instance, false).add(&q, 1.0, &mut out);
    assert_near(&out, &naive_gradient(&instance, &matrix_of(&q)));
}

#[test]
fn the_line_search_finds_the_least_of_the_segment() {
    // Algorithm 1, lines 8 and 9, with the step that Frank-Wolfe has: P + a (Q - P).
    let mut prng = Prng::new(5);
    for case in 0..60 {
        let family = Family::ALL[case % 5];
        let instance = generate(family, 4 + case % 5, &mut prng);
        let n = instance.size();
        let mut descent = Descent::new(&instance, false);
        descent.start_at(random_doubly_stochastic(n, &mut prng));
        let (q, slope, corner) = descent.corner();
        let a = step_length(descent.cost, slope, corner);
        let at = |a: f64| {
            let q = matrix_of(&q);
            let mixed = descent.p.iter().zip(q).map(|(p, q)| p + a * (q - p));
            relaxed_cost(&instance, &mixed.collect::<Vec<_>>())
        };
        let grid = (0..=200).map(|k| at(f64::from(k) / 200.0)).fold(f64::INFINITY, f64::min);
        assert!((0.0..=1.0).contains(&a));
        assert!(at(a) <= grid + 1e-9 * grid.abs(), "case {case}: f({a}) = {}, {grid}", at(a));
    }
}

#[test]
fn a_random_start_is_doubly_stochastic() {
    let n = 40;
    let p = random_doubly_stochastic(n, &mut Prng::new(6));
    for i in 0..n {
        let row: f64 = p[i * n..][..n].iter().sum();
        let column: f64 = (0..n).map(|j| p[j * n + i]).sum();
        assert!((row - 1.0).abs() < 0.01 && (column - 1.0).abs() < 0.01, "{row} {column}");
    }
}

#[test]
fn changes_by_swaps_are_what_the_costs_say() {
    let mut prng = Prng::new(7);
    for family in Family::ALL {
        for n in [2, 3, 8, 17] {
            let mut instance = generate(family, n, &mut prng);
            // Diagonals count too, and QAPLIB has instances with them.
            for i in 0..n {
                instance.a[i * n + i] = prng.below(50) as f64;
                instance.b[i * n + i] = prng.below(50) as f64;
            }
            let mut swaps = Swaps::new(&instance, random_permutation(n, &mut prng));
            for _ in 0..20 {
                let cost = instance.cost(swaps.permutation());
                for u in 0..n {
                    for v in u + 1..n {
                        let mut other = swaps.permutation().to_vec();
                        other.swap(u, v);
                        let wanted = instance.cost(&other) - cost;
                        let found = swaps.delta(v, u);
                        assert!((found - wanted).abs() < 1e-6 * cost, "{family:?} {n} {u} {v}");
                    }
                }
                let u = prng.below(n as u64) as usize;
                let v = (u + 1 + prng.below(n as u64 - 1) as usize) % n;
                swaps.swap(u, v);
            }
        }
    }
}

#[test]
fn a_descent_ends_where_no_swap_helps() {
    let mut prng = Prng::new(8);
    for family in Family::ALL {
        let instance = generate(family, 20, &mut prng);
        let mut swaps = Swaps::new(&instance, random_permutation(20, &mut prng));
        let before = instance.cost(swaps.permutation());
        assert!(swaps.descend() > 0);
        let cost = instance.cost(swaps.permutation());
        assert!(cost < before);
        let all = (0..20).flat_map(|u| (u + 1..20).map(move |v| (u, v)));
        for (u, v) in all {
            let mut other = swaps.permutation().to_vec();
            other.swap(u, v);
            assert!(instance.cost(&other) >= cost, "{family:?}: {u} {v}");
        }
    }
}

#[test]
fn a_search_finds_the_optimum_of_small_instances() {
    let mut prng = Prng::new(9);
    for family in Family::ALL {
        for n in 1..=7 {
            let instance = generate(family, n, &mut prng);
            let all = permutations(n);
            let least = all.iter().map(|p| instance.cost(p)).fold(f64::INFINITY, f64::min);
            let effort = SearchEffort { looks: 2_000, faq: Settings::default() };
            let found = search(&instance, &effort, &mut prng);
            assert_eq!(found.cost, least, "{family:?} {n}");
            assert_eq!(instance.cost(&found.permutation), least);
        }
    }
}

#[test]
fn one_seed_gives_one_answer() {
    let instance = generate(Family::Grid, 24, &mut Prng::new(10));
    let effort = SearchEffort { looks: 3_000, faq: Settings { starts: 3, ..Settings::default() } };
    let run = || search(&instance, &effort, &mut Prng::new(11));
    assert_eq!(run(), run());
}

#[test]
fn a_sparse_second_matrix_is_solved_with_the_roles_exchanged() {
    let tree = generate(Family::Tree, 18, &mut Prng::new(12));
    let plain = Settings { polish: false, ..Settings::default() };
    let exchanged = faq(&tree.exchanged(), &plain, &mut Prng::new(1));
    assert_eq!(tree.cost(&inverse(&exchanged.permutation)), exchanged.cost);
    assert_eq!(faq(&tree, &plain, &mut Prng::new(1)).cost, exchanged.cost);
}

#[test]
fn the_printed_variant_hardly_moves_and_the_correct_one_is_cheaper() {
    // With 25 hosts, an epsilon of 1e-4 ends after one step, and 2.2e-5 at the limit of iterations.
    let instance = generate(Family::Uniform, 25, &mut Prng::new(13));
    let lemon_1 = printed(&instance, 1e-4, 1_000);
    assert_eq!((lemon_1.iterations, lemon_1.converged), (1, 1));
    let lemon_2 = printed(&instance, 2.2e-5, 500);
    assert_eq!((lemon_2.iterations, lemon_2.converged), (501, 0));
    let correct = faq(&instance, &Settings::default(), &mut Prng::new(1));
    assert!(correct.cost < lemon_1.cost.min(lemon_2.cost));
}

#[test]
fn a_file_is_read_however_its_rows_are_wrapped() {
    let text = b"3\r\n\n 0 1 2 1 0\n1.5 2 1 0\n0,1,2, 1,0,3,\n 2 3 0\n\x1a";
    let instance = file::instance(text).unwrap();
    assert_eq!((instance.size(), instance.a()[5], instance.b()[7]), (3, 1.5, 3.0));
    let known = file::known(b"3 14\n 2,3,1\n").unwrap();
    assert_eq!((known.cost, known.permutation), (14.0, vec![1, 2, 0]));
}

#[test]
fn a_broken_file_is_refused_with_its_line() {
    let says = |text: &[u8]| file::instance(text).unwrap_err().to_string();
    assert_eq!(says(b"2\n0 1\n1 x0\n"), "line 3: x0: not the first matrix");
    assert_eq!(says(b"\n0"), "line 2: 0: not a size of 1 to 10000");
    assert_eq!(
        says(b"99999999999999999999"),
        "line 1: 99999999999999999999: not a size of 1 to 10000"
    );
    assert_eq!(says(b"1\n4\n"), "the text ends after 0 of 1 numbers of the second matrix");
    assert_eq!(
        says(b"1 4\n5\n\n6"),
        "line 4: more numbers than the size on the first line asks for"
    );
    assert_eq!(says(b"1 nan 1"), "line 1: nan: not the first matrix");
    assert_eq!(says(b"1 1 \xff\xfe"), "line 1: \\xff\\xfe: not the second matrix");
    let known = |text: &[u8]| file::known(text).unwrap_err();
    assert_eq!(known(b"2 5\n1\n1"), FileError::Repeated { line: 3, host: 1 });
    assert_eq!(known(b"2 5\n1 3").to_string(), "line 2: 3: not a permutation, from 1");
}

#[test]
fn matrices_that_are_no_instance_are_refused() {
    assert_eq!(Instance::new(0, vec![], vec![]), Err(InstanceError::Size(0)));
    let short = Instance::new(2, vec![0.0; 4], vec![0.0; 3]).unwrap_err();
    assert_eq!(short.to_string(), "matrix B has 3 cells; its size asks for 4");
    let hole = Instance::new(1, vec![f64::NAN], vec![0.0]).unwrap_err();
    assert_eq!(hole, InstanceError::Cell { matrix: 'A', row: 0, column: 0 });
}

#[test]
fn qaplib_instances_agree_with_their_known_solutions() {
    let folder = std::env::var("EVENFALL_DATA")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data").into());
    let folder = std::path::Path::new(&folder).join("qaplib");
    if !folder.is_dir() {
        println!("skipped: no data");
        return;
    }
    for name in ["chr15a", "had20", "nug30"] {
        let read = |end: &str| std::fs::read(folder.join(name).with_extension(end)).unwrap();
        let instance = file::instance(&read("dat")).unwrap();
        let known = file::known(&read("sln")).unwrap();
        assert!(known.agrees(&instance).unwrap(), "{name}");
        let mut prng = Prng::new(1);
        let found = search(&instance, &SearchEffort::standard(&instance), &mut prng);
        assert!(found.cost >= known.cost, "{name}: {} below the optimum", found.cost);
        assert!(found.cost <= known.cost * 1.003, "{name}: {}", found.cost);
    }
    let esc32a = file::instance(&std::fs::read(folder.join("esc32a.dat")).unwrap()).unwrap();
    let run = |seed| search(&esc32a, &SearchEffort::standard(&esc32a), &mut Prng::new(seed)).cost;
    let costs: Vec<f64> = (1..=4).map(run).collect();
    assert!(costs.contains(&130.0) && costs.iter().all(|&cost| cost <= 134.0), "{costs:?}");
}
