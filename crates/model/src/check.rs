//! The ranges that the numbers of a model must keep.

use crate::file::{Distribution, Model, ModelError, Shape};

/// The ranges of the numbers. A row has the end of the keys to which the row applies, the least
/// value and the greatest value. The first row whose end fits a key applies.
///
/// The simulator counts nanoseconds in 64 bits. With a number outside of its range, a run would
/// never end, or would treat the number as 0.
const RANGES: [(&str, f64, f64); 21] = [
    ("random_loss", 0.0, 1.0),
    ("within", 0.0, 1.0),
    ("straggler_share", 0.0, 1.0),
    ("straggler_send", 0.01, 100.0),
    ("straggler_receive", 0.01, 100.0),
    ("host_correlation", -1.0, 1.0),
    ("wander", 0.0, 0.5),
    ("sigma", 0.0, 3.0),
    ("alpha", 0.1, 100.0),
    ("cores", 1.0, 65_535.0),
    // Three hundred years.
    ("gap_ms", 0.001, 1e13),
    ("period_ms", 0.001, 1e9),
    ("wander_period_s", 0.001, 1e9),
    // The simulator keeps each route of a pair for 200 ms at least.
    ("every_s", 0.2, 1e9),
    // A quarter of an hour.
    ("us", 0.0, 1e9),
    ("_ns", 0.0, 1e12),
    // A clock that is 1 % wrong.
    ("_ppb", 0.0, 1e7),
    ("gbit_per_s", 0.0, 1e6),
    ("packets_per_s", 0.0, 1e12),
    ("error", 0.0, f64::MAX),
    ("is", f64::MIN, f64::MAX),
];
/// Limit of the entries of each list, such as the kinds of pauses, the points of a table or the
/// levels of a load. The built-in models have far fewer. Without a limit, the length of a list
/// could slow a simulation down.
const ENTRIES_MAX: usize = 64;

/// Checks every number of a model. The name of the model is for the errors.
///
/// # Errors
/// The key of the first number that is out of its range, or that has an empty source.
pub(crate) fn check(name: &str, model: &Model) -> Result<(), ModelError> {
    let root = toml::Value::try_from(model).expect("a model is plain tables");
    numbers(name, "", &root)?;
    let wrong = |key: &str, range: &str| Err(ModelError::shape(name, key, range));
    let path = &model.path;
    let outages = path.spikes.iter().chain(&path.episodes).chain(&model.host.stalls);
    let lengths = outages.map(|outage| &outage.length);
    let lengths = lengths.chain(path.losses.iter().map(|loss| &loss.length));
    let late = [&model.stack.sockets, &model.stack.kernel_bypass].map(|stack| &stack.timer_late);
    for Distribution { shape, .. } in lengths.chain(late).chain([&path.wait]) {
        match shape {
            Shape::Pareto { least_us, most_us, .. } if !(0.0..=*most_us).contains(least_us) => {
                return wrong("least_us of a pareto", "at most its most_us");
            }
            Shape::Pareto { least_us, .. } if *least_us == 0.0 => {
                return wrong("least_us of a pareto", "above 0");
            }
            Shape::Table { points } => {
                let ascend = |pair: &[(f64, f64)]| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1;
                let fits = |&(share, us): &(f64, f64)| {
                    (0.0..=1.0).contains(&share) && (0.0..=1e9).contains(&us)
                };
                if points.is_empty() || !points.windows(2).all(ascend) || !points.iter().all(fits) {
                    return wrong("points of a table", "[share from 0 to 1, us], both ascending");
                }
            }
            _ => {}
        }
    }
    let levels = path.load.iter().flat_map(|load| &load.levels);
    if levels
        .clone()
        .any(|&(share, busy)| !(0.0..=1.0).contains(&share) || !(0.0..1.0).contains(&busy))
    {
        return wrong("path.load.levels", "[share of the time, busy from 0 to below 1]");
    }
    Ok(())
}

/// Walks over all numbers below a key.
fn numbers(name: &str, key: &str, at: &toml::Value) -> Result<(), ModelError> {
    let below = |word: &str| if key.is_empty() { word.into() } else { format!("{key}.{word}") };
    match at {
        toml::Value::Table(table) => {
            let source = table.get("source").and_then(toml::Value::as_str);
            if source.is_some_and(|source| source.trim().is_empty()) {
                return Err(ModelError::Source(name.into(), key.into()));
            }
            table.iter().try_for_each(|(word, value)| match word.as_str() {
                // An error names the number by the key of its table.
                "is" => numbers(name, key, value),
                _ => numbers(name, &below(word), value),
            })
        }
        toml::Value::Array(list) if list.len() > ENTRIES_MAX => {
            Err(ModelError::shape(name, key, &format!("a list of {ENTRIES_MAX} entries at most")))
        }
        // Points and levels have no keys of their own.
        toml::Value::Array(list) if list.iter().any(toml::Value::is_array) => Ok(()),
        toml::Value::Array(list) => {
            let mut numbered = list.iter().enumerate();
            numbered.try_for_each(|(at, value)| numbers(name, &below(&at.to_string()), value))
        }
        toml::Value::Float(value) => in_range(name, key, *value),
        _ => Ok(()),
    }
}

fn in_range(name: &str, key: &str, value: f64) -> Result<(), ModelError> {
    let range = RANGES.iter().find(|(end, ..)| key.ends_with(end));
    let (_, least, most) = *range.expect("every number has a range, which a test tries");
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let range = match most {
        f64::MAX => format!("a number from {least} on"),
        most => format!("from {least} to {most}"),
    };
    Err(ModelError::Number { model: name.into(), key: key.into(), value, range })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model with every part that a model may have, except episodes.
    fn whole() -> Model {
        let load = "[path.load]\nlevels = [[1.0, 0.5]]\nburst_us = 10.0\nperiod_ms = 5.0\n\
                    source = \"x\"\n\n[path.losses]";
        let text = Model::named("gcp").expect("built in").to_toml();
        Model::parse("whole", &text.replacen("[path.losses]", load, 1)).expect("a load is allowed")
    }

    #[test]
    fn no_number_of_a_model_may_be_negative_endless_or_no_number() {
        let model = whole();
        for (key, _) in model.numbers() {
            let value = model.number(&key).expect("a key of the model");
            for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1e308, -2.0, 1e308] {
                let error = model.scaled(&key, bad / value).expect_err(&key).to_string();
                assert!(error.contains(&key) && error.contains("gcp"), "{error}");
            }
        }
    }

    #[test]
    fn a_number_with_an_empty_source_is_refused_by_its_key() {
        let text = Model::named("quiet").expect("built in").to_toml();
        let at = text.find("base_us").expect("a first number");
        let end = at + text[at..].find(" }").expect("the end of the number");
        let error = Model::parse(
            "mine",
            &format!("{}base_us = {{ is = 1.0, source = \" \"{}", &text[..at], &text[end..]),
        );
        let error = error.expect_err("an empty source").to_string();
        assert!(error.contains("mine") && error.contains("path.base_us"), "{error}");
    }

    #[test]
    fn lists_of_a_model_are_bounded() {
        let text = Model::named("aws").expect("built in").to_toml();
        let stall = "[[host.stalls]]\ngap_ms = { is = 1.0, source = \"x\" }\n\
                     length = { shape = \"constant\", us = 1.0, source = \"x\" }\n\n";
        let at = text.find("[[host.stalls]]").expect("aws has pauses");
        let many = format!("{}{}{}", &text[..at], stall.repeat(1_000), &text[at..]);
        let error = Model::parse("mine", &many).expect_err("a thousand kinds").to_string();
        assert!(error.contains("host.stalls") && error.contains("64"), "{error}");
    }
}
