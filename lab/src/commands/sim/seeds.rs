//! One run under many seeds: the mean of each number, and half the width of its interval.

use evenfall_campaigns::seeds::{in_parallel, mean_and_half_width};
use evenfall_runtime::progress::Progress;
use serde_json::{Map, Value};

/// Parses the first seed of a run. All seeds that follow it are numbers, too.
pub fn first_seed() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(..=u64::MAX / 2)
}

/// What follows the name of a number in the name of half the width of its interval.
const HALF_WIDTH: &str = "_half_width";

/// Runs a scene under `count` seeds from `first` on, and prints what the runs came to. Returns the
/// runs in the order of their seeds.
pub fn several<T: Send>(
    (first, count): (u64, u32),
    json: bool,
    run: impl Fn(u64) -> T + Sync,
    object: impl Fn(&T) -> serde_json::Result<Value>,
) -> serde_json::Result<Vec<T>> {
    let shown = Progress::new();
    shown.stage("simulating seeds", Some(count.into()));
    let done = |finished| shown.at(finished, count.into());
    let runs = in_parallel(first, count.into(), run, done);
    shown.end();
    let objects: Vec<Value> = runs.iter().map(object).collect::<Result<_, _>>()?;
    let mut all = combined(&objects);
    if json {
        all["seed"] = first.into();
        all["seeds"] = count.into();
        say!("{all}");
    } else {
        say!("{count} seeds from {first} on");
        print(&all);
    }
    Ok(runs)
}

/// One object of the same shape as those of the runs. A number becomes the mean of the runs, as
/// does each number of a row, and null when a run has none. A truth becomes whether all runs have
/// it, and a text becomes the list of all texts. Beside each key with numbers stands
/// `KEY_half_width`, half the width of their 95 % intervals by Student's t.
pub fn combined(runs: &[Value]) -> Value {
    let mut all = Map::new();
    for key in runs.first().and_then(Value::as_object).into_iter().flat_map(Map::keys) {
        let values: Vec<&Value> = runs.iter().map(|run| &run[key]).collect();
        all.insert(key.clone(), each(&values, &|values| mean_and_half_width(values).0));
        if has_numbers(&values) {
            let half = each(&values, &|values| mean_and_half_width(values).1);
            all.insert(format!("{key}{HALF_WIDTH}"), half);
        }
    }
    Value::Object(all)
}

/// Prints a line for every number: its name, its mean, and half the width of its interval.
pub fn print(all: &Value) {
    let is_mean = |(key, _): &(&String, &Value)| !key.ends_with(HALF_WIDTH);
    for (key, means) in all.as_object().into_iter().flatten().filter(is_mean) {
        print_each(key, means, &all[format!("{key}{HALF_WIDTH}")]);
    }
}

fn print_each(name: &str, means: &Value, halves: &Value) {
    match means {
        Value::Object(parts) => parts.iter().for_each(|(key, inner)| {
            print_each(&format!("{name} {key}"), inner, &halves[key]);
        }),
        Value::Array(parts) => parts.iter().enumerate().for_each(|(at, inner)| {
            print_each(&format!("{name} {at}"), inner, &halves[at]);
        }),
        Value::Number(mean) => {
            let mean = mean.as_f64().unwrap_or(f64::NAN);
            let half = halves.as_f64().map_or(String::new(), |half| format!(" +- {half:.4}"));
            say!("{name:<28} {mean:>12.4}{half}");
        }
        Value::Null => say!("{name:<28} {:>12}", "-"),
        _ => {}
    }
}

/// Whether all values are rows of equally many numbers, as the two ends of an interval are. An end
/// that is not known is null.
fn are_rows(values: &[&Value]) -> bool {
    let len = values[0].as_array().map(Vec::len);
    let is_row = |value: &&Value| {
        let list = value.as_array();
        let is_end = |end: &Value| end.is_number() || end.is_null();
        list.map(Vec::len) == len && list.is_some_and(|list| list.iter().all(is_end))
    };
    len > Some(0) && values.iter().all(is_row)
}

fn has_numbers(values: &[&Value]) -> bool {
    match values[0] {
        Value::Number(_) | Value::Null => values.iter().any(|value| value.is_number()),
        Value::Object(parts) => parts.keys().any(|key| {
            let inner: Vec<&Value> = values.iter().map(|value| &value[key]).collect();
            has_numbers(&inner)
        }),
        Value::Array(_) => are_rows(values),
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
            // A figure of some of the runs alone would pass for one of all.
            let numbers: Option<Vec<f64>> = values.iter().map(|value| value.as_f64()).collect();
            numbers.and_then(|numbers| figure(&numbers)).into()
        }
        Value::Array(first) if are_rows(values) => (0..first.len())
            .map(|at| {
                let inner: Vec<&Value> = values.iter().map(|value| &value[at]).collect();
                each(&inner, figure)
            })
            .collect(),
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
            let between = json!({ "p50": [p50 - 1.0, p50 + 3.0] });
            json!({"oml_us": oml, "finished": whole, "digest": digest, "between_us": between})
        };
        let all = combined(&[run(10.0, true, "a"), run(12.0, true, "b"), run(14.0, false, "c")]);
        assert_eq!(all["oml_us"]["p50"], 12.0);
        // The deviation is 2, t for two degrees of freedom 4.3027.
        let half = all["oml_us_half_width"]["p50"].as_f64().expect("three runs have an interval");
        assert!((half - 4.3027 * 2.0 / 3f64.sqrt()).abs() < 1e-3, "{half}");
        assert_eq!(all["between_us"]["p50"], json!([11.0, 15.0]));
        assert_eq!(all["between_us_half_width"]["p50"][1], all["oml_us_half_width"]["p50"]);
        assert_eq!(all["finished"], false);
        assert_eq!(all["digest"], json!(["a", "b", "c"]));
        assert!(all.get("digest_half_width").is_none());
    }
}
