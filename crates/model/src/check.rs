//! The ranges that the numbers of a model must keep.

use evenfall_core::math::{exp, square};

use crate::file::{DelayShape, Distribution, Model, ModelError};

/// The ranges of the numbers. A row has the end of the keys to which the row applies, the least
/// value and the greatest value. The first row whose end fits a key applies.
///
/// The simulator counts nanoseconds in 64 bits. With a number outside of its range, a run would
/// never end, or would treat the number as 0.
const RANGES: [(&str, f64, f64); 27] = [
    ("random_loss", 0.0, 1.0),
    ("within", 0.0, 1.0),
    ("straggler_share", 0.0, 1.0),
    ("straggler_send", 0.01, SIDE_MAX),
    ("straggler_receive", 0.01, SIDE_MAX),
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
    // Distributions count nanoseconds in 32 bits.
    ("us", 0.0, US_MAX),
    ("noise_ns", 0.0, 1e9),
    // A tenth of a second for a packet.
    ("wake_ns", 0.0, 1e8),
    ("receive_ns", 0.0, 1e8),
    ("send_ns", 0.0, 1e8),
    ("copy_ns", 0.0, 1e8),
    ("card_ns", 0.0, 1e8),
    // Of each node. No machine of a cloud has more hardware threads for a single process.
    ("send_threads", 0.0, 1_024.0),
    ("_ns", 0.0, 1e12),
    // A clock that is 1 % wrong.
    ("_ppb", 0.0, 1e7),
    ("gbit_per_s", 0.0, 1e6),
    ("packets_per_s", 0.0, 1e12),
    ("error", 0.0, f64::MAX),
];
/// Longest duration in microseconds.
pub(crate) const US_MAX: f64 = 4e6;
/// The least rates above 0. The simulator counts whole bits and packets a second, and 0 stands for
/// no limit.
const RATES_MIN: [(&str, f64); 2] = [("gbit_per_s", 1e-6), ("packets_per_s", 1.0)];
/// The largest share of the time in which a host is paused, all kinds of pauses together. Pauses
/// that overlap count as one, and more of them would never end.
const PAUSED_MAX: f64 = 0.5;
/// Most pauses of a host in a millisecond, all kinds together.
const PAUSES_PER_MS_MAX: f64 = 100.0;
/// The most gaps between outages that fit into the longest outage.
pub(crate) const LONGEST_GAPS_MAX: f64 = 100.0;
/// The longest wait, in median delays, that a model may have.
const WAIT_TAIL_MAX: f64 = 1_000.0;
/// The largest factor by which a straggler is slower in one direction.
pub(crate) const SIDE_MAX: f64 = 100.0;
/// The largest factor by which a path between two stragglers is slower.
pub(crate) const SLOWNESS_MAX: f64 = 1_000.0;
/// The simulator makes no path slower by a larger factor. Hosts and pairs may be slow besides
/// stragglers.
const SCALE_MAX: f64 = 2_048.0;
/// Normal numbers are at most this many standard deviations from their mean: the simulator draws no
/// rarer ones than one in a thousand million.
const NORMAL_MAX: f64 = 6.0;
/// Limit of the entries of each list, such as the kinds of pauses, the points of a table or the
/// levels of a load. The built-in models have far fewer. Without a limit, the length of a list
/// could slow a simulation down.
const ENTRIES_MAX: usize = 64;

/// Checks every number of a model. The name of the model is for the errors.
///
/// # Errors
/// The key of the first number that is out of its range, or that has an empty source.
pub(crate) fn check(name: &str, model: &Model) -> Result<(), ModelError> {
    numbers(name, "", &model.values())?;
    for (key, distribution) in distributions(model) {
        shape(name, &key, distribution)?;
    }
    for (stack, costs) in
        [("sockets", &model.stack.sockets), ("kernel-bypass", &model.stack.kernel_bypass)]
    {
        if costs.card_ns.is > 0.0 && costs.send_threads.is < 1.0 {
            let form = "0 without send_threads: only threads that send have queues of the card";
            return Err(ModelError::shape(name, &format!("stack.{stack}.card_ns"), form));
        }
    }
    pauses(name, model)?;
    outages(name, model)?;
    tail(name, model)?;
    let path = &model.path;
    let scales = path.straggler_send.is.max(1.0) * path.straggler_receive.is.max(1.0);
    if scales > SLOWNESS_MAX {
        let form = format!("at most {SLOWNESS_MAX} times as slow, with path.straggler_receive");
        return Err(ModelError::shape(name, "path.straggler_send", &form));
    }
    // A delay that falls faster than time passes would bring packets out of their order.
    let slowest = (scales * exp(NORMAL_MAX * spread(model))).min(SCALE_MAX);
    let falls_s = 4.0 * path.wander.is * path.base_us.is * 1e-6 * slowest;
    if falls_s > path.wander_period_s.is {
        let form = format!("at least {falls_s}, by the other numbers of the drift");
        return Err(ModelError::shape(name, "path.wander_period_s", &form));
    }
    let Some(load) = &path.load else { return Ok(()) };
    let fits =
        |&(share, busy): &(f64, f64)| (0.0..=1.0).contains(&share) && (0.0..1.0).contains(&busy);
    let all: f64 = load.levels.iter().map(|(share, _)| share).sum();
    if !load.levels.iter().all(fits) || (all - 1.0).abs() > 1e-6 {
        let form = "[share of the time, busy from 0 to below 1], and the shares add up to 1";
        return Err(ModelError::shape(name, "path.load.levels", form));
    }
    Ok(())
}

/// The largest logarithm of the slowness of a path whose normal numbers are 1 at most.
fn spread(model: &Model) -> f64 {
    let path = &model.path;
    // A receiver's slowness has two normal numbers, one that the host has as sender, too.
    let common = path.host_correlation.is.abs();
    let both = common + (1.0 - square(common)).max(0.0).sqrt();
    let rest = [&path.sender_sigma, &path.pair_sigma, &path.direction_sigma];
    both * path.receiver_sigma.is + rest.iter().map(|sigma| sigma.is).sum::<f64>()
}

/// Every distribution of a model, with its key.
fn distributions(model: &Model) -> Vec<(String, &Distribution)> {
    let (path, stack) = (&model.path, &model.stack);
    let mut all = vec![
        ("path.wait".to_owned(), &path.wait),
        ("stack.sockets.timer_late".to_owned(), &stack.sockets.timer_late),
        ("stack.kernel-bypass.timer_late".to_owned(), &stack.kernel_bypass.timer_late),
    ];
    let length = |key: &str, length| (format!("{key}.length"), length);
    all.extend(path.spikes.iter().map(|one| length("path.spikes", &one.length)));
    all.extend(path.episodes.iter().map(|one| length("path.episodes", &one.length)));
    all.extend(path.losses.iter().map(|one| length("path.losses", &one.length)));
    let stalls = model.host.stalls.iter().enumerate();
    all.extend(stalls.map(|(at, one)| length(&format!("host.stalls.{at}"), &one.length)));
    all
}

/// Checks the numbers of a distribution that have no ranges of their own.
fn shape(name: &str, key: &str, distribution: &Distribution) -> Result<(), ModelError> {
    let wrong =
        |word: &str, form: &str| Err(ModelError::shape(name, &format!("{key}.{word}"), form));
    match &distribution.shape {
        DelayShape::Pareto { least_us, .. } if *least_us == 0.0 => wrong("least_us", "above 0"),
        DelayShape::Pareto { least_us, most_us, .. } if least_us > most_us => {
            wrong("least_us", "at most its most_us")
        }
        DelayShape::Table { points } => {
            let ascend = |pair: &[(f64, f64)]| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1;
            let fits = |&(share, us): &(f64, f64)| {
                (0.0..=1.0).contains(&share) && (0.0..=US_MAX).contains(&us)
            };
            if points.is_empty() || !points.windows(2).all(ascend) || !points.iter().all(fits) {
                let form = format!("[share from 0 to 1, us from 0 to {US_MAX}], both ascending");
                return wrong("points", &form);
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Checks that a host runs at all.
fn pauses(name: &str, model: &Model) -> Result<(), ModelError> {
    let (mut paused, mut per_ms) = (0.0, 0.0);
    for stall in &model.host.stalls {
        let (gap, mean) = (stall.gap_ms.is, stall.length.shape.mean_us() / 1e3);
        paused += mean / (mean + gap);
        per_ms += 1.0 / (mean + gap);
    }
    if paused > PAUSED_MAX || per_ms > PAUSES_PER_MS_MAX {
        let form = format!(
            "at most {PAUSES_PER_MS_MAX} pauses a millisecond that take at most {PAUSED_MAX} of \
             the time, all kinds together"
        );
        return Err(ModelError::shape(name, "host.stalls", &form));
    }
    Ok(())
}

/// Checks the outages of paths and hosts: the longest outage may have a hundred gaps at most.
fn outages(name: &str, model: &Model) -> Result<(), ModelError> {
    let path = &model.path;
    let all = [("spikes", &path.spikes), ("episodes", &path.episodes)]
        .into_iter()
        .filter_map(|(key, one)| one.as_ref().map(|one| (key, one.gap_ms.is, &one.length.shape)));
    let losses = path.losses.as_ref().map(|one| ("losses", one.gap_ms.is, &one.length.shape));
    for (key, gap_ms, length) in all.chain(losses) {
        let least_ms = length.longest_us() / 1e3 / LONGEST_GAPS_MAX;
        if gap_ms < least_ms {
            let form = format!("at least {least_ms:.3}: a hundredth of the longest length");
            return Err(ModelError::shape(name, &format!("path.{key}.gap_ms"), &form));
        }
    }
    Ok(())
}

/// Checks that the longest wait leaves the median wait in sight: the simulator counts the levels of
/// a wait in steps of 1/4,096 of the longest one.
fn tail(name: &str, model: &Model) -> Result<(), ModelError> {
    let wait = &model.path.wait.shape;
    let usual_us = model.path.base_us.is + wait.quantile_us(0.5);
    let most_us = usual_us * WAIT_TAIL_MAX;
    if wait.longest_us() > most_us && usual_us > 0.0 {
        let form = format!(
            "a wait of at most {most_us:.0} us, {WAIT_TAIL_MAX} times the median delay; rare long \
             waits belong into path.spikes"
        );
        return Err(ModelError::shape(name, "path.wait", &form));
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
    let rate = RATES_MIN.iter().find(|(end, _)| key.ends_with(end)).map(|(_, least)| *least);
    let is_lost = rate.is_some_and(|rate| value > 0.0 && value < rate);
    if (least..=most).contains(&value) && !is_lost {
        return Ok(());
    }
    let range = match (rate, most) {
        (Some(rate), _) => format!("0 for no limit, or from {rate} to {most}"),
        (None, f64::MAX) => format!("a number from {least} on"),
        (None, most) => format!("from {least} to {most}"),
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

    /// The error of reading the whole model with `to` in place of `from`.
    fn refused(from: &str, to: &str) -> String {
        let text = whole().to_toml();
        assert!(text.contains(from), "{from} is in the model");
        let changed = text.replacen(from, to, 1);
        Model::parse("mine", &changed).expect_err(to).to_string()
    }

    #[test]
    fn a_misspelt_key_of_a_distribution_is_refused_by_name() {
        let error = refused("median_us = ", "eror = 0.1, median_us = ");
        assert!(error.contains("path.wait.eror"), "{error}");
    }

    #[test]
    fn numbers_that_fit_alone_and_not_together_are_refused() {
        let error = refused("levels = [[1.0, 0.5]]", "levels = [[0.5, 0.5]]");
        assert!(error.contains("path.load.levels") && error.contains("add up to 1"), "{error}");
        let model = whole();
        let often = 1e-6 / model.number("host.stalls.0.gap_ms").expect("pauses");
        let error = model.scaled("host.stalls.0.gap_ms", often).expect_err("pauses without end");
        assert!(error.to_string().contains("host.stalls"), "{error}");
        let long = 3e6 / model.number("path.base_us").expect("a delay");
        let text = model.scaled("path.base_us", long).expect("three seconds").to_toml();
        let text = text.replacen("wander = { is = 0.0", "wander = { is = 0.5", 1);
        let error = Model::parse("mine", &text);
        let error = error.expect_err("a drift that is faster than time");
        assert!(error.to_string().contains("path.wander_period_s"), "{error}");
        // A sender that is six standard deviations slow has delays 400 times as long.
        let text = Model::named("gcp").expect("built in").to_toml();
        let text = text.replacen("base_us = { is = 42.4", "base_us = { is = 1000.0", 1);
        let text = text.replacen("wander = { is = 0.0", "wander = { is = 0.5", 1);
        let text = text.replacen("wander_period_s = { is = 5.0", "wander_period_s = { is = 0.1", 1);
        assert!(Model::parse("alike", &text).is_ok());
        let text = text.replacen("sender_sigma = { is = 0.075", "sender_sigma = { is = 1.0", 1);
        let error = Model::parse("spread", &text).expect_err("a slow sender");
        assert!(error.to_string().contains("path.wander_period_s"), "{error}");
    }

    #[test]
    fn what_a_simulation_would_not_follow_is_refused_by_its_key() {
        let aws = Model::named("aws").expect("built in");
        let gap = 0.01 / aws.number("path.spikes.gap_ms").expect("spikes");
        let often = aws.scaled("path.spikes.gap_ms", gap).expect_err("spikes of 5 ms").to_string();
        assert!(often.contains("path.spikes.gap_ms"), "{often}");
        let model = whole();
        let sigma = 2.5 / model.number("path.wait.sigma").expect("a spread");
        let long = model.scaled("path.wait.sigma", sigma).expect_err("a tail").to_string();
        assert!(long.contains("path.wait") && long.contains("path.spikes"), "{long}");
        let slow = [("send", 100.0), ("receive", 100.0)].map(|(side, factor)| {
            let key = format!("path.straggler_{side}");
            (factor / model.number(&key).expect("stragglers"), key)
        });
        let once = model.scaled(&slow[0].1, slow[0].0).expect("one side");
        let twice = once.scaled(&slow[1].1, slow[1].0).expect_err("both sides").to_string();
        assert!(twice.contains("path.straggler_send"), "{twice}");
        let cost = 1e9 / model.number("stack.sockets.copy_ns").expect("a cost");
        assert!(model.scaled("stack.sockets.copy_ns", cost).is_err());
    }

    #[test]
    fn pauses_that_are_rare_and_long_count_for_the_time_they_take() {
        let hidden = "length = { shape = \"table\", points = [[0.0, 5.0], [0.99976, 5.0], \
                      [0.99977, 4e6], [1.0, 4e6]], source = \"x\" }";
        let stall =
            format!("[[host.stalls]]\ngap_ms = {{ is = 0.2, source = \"x\" }}\n{hidden}\n\n");
        let text = Model::named("aws").expect("built in").to_toml();
        let at = text.find("[[host.stalls]]").expect("aws has pauses");
        let text = format!("{}{stall}{}", &text[..at], &text[at..]);
        let error = Model::parse("mine", &text).expect_err("920 us of every 1,120").to_string();
        assert!(error.contains("host.stalls"), "{error}");
    }

    #[test]
    fn a_rate_that_would_count_as_no_limit_is_refused() {
        let model = whole();
        for (key, least) in [("host.nic_packets_per_s", 1.0), ("host.nic_gbit_per_s", 1e-6)] {
            let rate = model.number(key).expect(key);
            assert!(model.scaled(key, least / rate * 1.001).is_ok(), "{key}");
            assert!(model.scaled(key, 0.0).is_ok(), "{key}: 0 is no limit");
            let error = model.scaled(key, least / rate / 2.0).expect_err(key).to_string();
            assert!(error.contains("no limit"), "{error}");
        }
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
