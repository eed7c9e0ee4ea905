//! One seed of live measurement under faults:
//! `cargo run --release -p evenfall-sims --example survey -- SEED`.

use evenfall_lab::survey::Scene;

fn main() {
    let seed = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(0);
    let scene = Scene::of(seed);
    print!("{scene}");
    let verdict = scene.run();
    println!("{} jobs, {} hosts failed, {:?}", verdict.jobs, verdict.dropped, verdict.took);
    match &verdict.refused {
        None => println!("planned: {}", verdict.planned),
        Some(error) => println!("no plan: {error}"),
    }
    for violation in &verdict.violations {
        println!("VIOLATION {violation}");
    }
}
