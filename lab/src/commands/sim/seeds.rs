//! One run under many seeds: the mean of each number, and half the width of its interval.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use serde_json::{Map, Value};

use crate::files::interval_of;

/// The results of `run` for seeds from `first` on, by seed. Each core works on one seed at a time.
/// `done` is called with the number of finished runs.
pub fn in_parallel<T: Send>(
    first: u64,
    count: usize,
    run: impl Fn(u64) -> T + Sync,
    mut done: impl FnMut(u64),
) -> Vec<T> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let mut results: Vec<Option<T>> = (0..count).map(|_| None).collect();
    std::thread::scope(|scope| {
        let (ended, endings) = mpsc::channel();
        for _ in 0..cores.min(count) {
            let (ended, next, run) = (ended.clone(), &next, &run);
            scope.spawn(move || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count || ended.send((at, run(first + at as u64))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(ended);
        for (finished, (at, result)) in (1..).zip(endings) {
            results[at] = Some(result);
            done(finished);
        }
    });
    results.into_iter().flatten().collect()
}

/// One object of the same shape as those of the runs. A number becomes the mean of the runs, a
/// truth becomes whether all runs have it, and a text becomes the list of all texts. Beside each
/// key with numbers stands `KEY_half_width`, half the width of their 95 % intervals by Student's t.
pub fn combined(runs: &[Value]) -> Value {
    let mut all = Map::new();
    for key in runs.first().and_then(Value::as_object).into_iter().flat_map(Map::keys) {
        let values: Vec<&Value> = runs.iter().map(|run| &run[key]).collect();
        all.insert(key.clone(), each(&values, &|values| interval_of(values).0));
        if has_numbers(values[0]) {
            let half = each(&values, &|values| interval_of(values).1);
            all.insert(format!("{key}_half_width"), half);
        }
    }
    Value::Object(all)
}

fn has_numbers(value: &Value) -> bool {
    match value {
        Value::Number(_) => true,
        Value::Object(parts) => parts.values().any(has_numbers),
        _ => false,
    }
}

fn each(values: &[&Value], figure: &dyn Fn(&[f64]) -> Option<f64>) -> Value {
    match values[0] {
        Value::Object(parts) => parts
            .keys()
            .map(|key| {
                let inner: Vec<&Value> = values.iter().map(|value| &value[key]).collect();
                (key.clone(), each(&inner, figure))
            })
            .collect(),
        Value::Bool(_) => values.iter().all(|value| **value == Value::Bool(true)).into(),
        Value::Number(_) | Value::Null => {
            let numbers: Vec<f64> = values.iter().filter_map(|value| value.as_f64()).collect();
            figure(&numbers).into()
        }
        Value::String(_) | Value::Array(_) => values.iter().map(|value| (*value).clone()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_get_a_mean_and_the_half_width_by_student_t() {
        let run = |p50: f64, whole: bool, digest: &str| {
            let oml = json!({ "p50": p50 });
            json!({"oml_us": oml, "finished": whole, "digest": digest})
        };
        let all = combined(&[run(10.0, true, "a"), run(12.0, true, "b"), run(14.0, false, "c")]);
        assert_eq!(all["oml_us"]["p50"], 12.0);
        // The deviation is 2, t for two degrees of freedom 4.3027.
        let half = all["oml_us_half_width"]["p50"].as_f64().expect("three runs have an interval");
        assert!((half - 4.3027 * 2.0 / 3f64.sqrt()).abs() < 1e-3, "{half}");
        assert_eq!(all["finished"], false);
        assert_eq!(all["digest"], json!(["a", "b", "c"]));
        assert!(all.get("digest_half_width").is_none());
    }

    #[test]
    fn results_stand_in_the_order_of_their_seeds() {
        let mut heard = 0;
        let results = in_parallel(7, 20, |seed| seed * seed, |_| heard += 1);
        assert_eq!(results, (7..27).map(|seed| seed * seed).collect::<Vec<_>>());
        assert_eq!(heard, 20);
    }
}
