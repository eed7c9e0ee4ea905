//! Scratch.
use evenfall_sims::shuffle::{plot, study};
use std::io::Write;
/// Scratch.
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let (figs, runs, points, keep, secs) = (
        &a[1],
        a[2].parse::<u64>().unwrap(),
        a[3].parse::<u32>().unwrap(),
        &a[4],
        a[5].parse::<u64>().unwrap(),
    );
    let text = std::fs::read_to_string(keep).unwrap_or_default();
    let mut all: std::collections::BTreeMap<String, study::Record> =
        text.lines().filter_map(study::Record::parse).map(|r| (r.key.clone(), r)).collect();
    let mut file = std::fs::File::options().create(true).append(true).open(keep).unwrap();
    let figures: Vec<_> = study::figures()
        .into_iter()
        .filter(|f| figs == "all" || figs.split(',').any(|n| n == f.number))
        .collect();
    let mut todo: std::collections::BTreeMap<(u64, String), study::Run> = Default::default();
    for f in &figures {
        for r in f.runs(points, runs) {
            todo.insert((r.seed, r.key()), r);
        }
    }
    let begun = std::time::Instant::now();
    for ((_, key), run) in &todo {
        if begun.elapsed().as_secs() >= secs {
            break;
        }
        if all.contains_key(key) {
            continue;
        }
        let r = run.run().unwrap();
        writeln!(file, "{r}").unwrap();
        all.insert(key.clone(), r);
    }
    let all: Vec<_> = all.into_values().collect();
    for f in &figures {
        println!("{}", study::table(f, points, runs, &all).markdown());
        if let (Some(dir), Some(svg)) = (a.get(6), plot::svg(f, points, runs, &all)) {
            std::fs::write(format!("{dir}/{}.svg", f.number), svg).unwrap();
        }
    }
}
