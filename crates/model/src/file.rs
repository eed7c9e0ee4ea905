//! The form of a model's file, and how such a file is read, checked and changed.

use core::fmt;
use std::fs::File;
use std::io::{self, Read};

use evenfall_core::math;
use serde::{Deserialize, Serialize};

use crate::check::check;

/// Limit of the bytes of a model's file. The built-in models have about nine thousand bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The built-in models by name.
const BUILT_IN: [(&str, &str); 4] = [
    ("aws", include_str!("../../../models/aws.toml")),
    ("gcp", include_str!("../../../models/gcp.toml")),
    ("quiet", include_str!("../../../models/quiet.toml")),
    ("namespaces", include_str!("../../../models/namespaces.toml")),
];

/// A number and its source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Number {
    /// The number.
    pub is: f64,
    /// The largest error of the number as a share of the number, where the source states one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
    /// A measurement with its command, a publication, a fit, or "assumed" with the reason.
    pub source: String,
}

/// A distribution of durations and its source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// Its shape and numbers.
    #[serde(flatten)]
    pub shape: DelayShape,
    /// As for [`Number::error`]: each number of the distribution may be this far off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
    /// As for [`Number::source`].
    pub source: String,
}

/// A distribution of durations, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "shape", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the fields are the parameters by their usual names")]
pub enum DelayShape {
    /// A constant duration.
    Constant { us: f64 },
    /// Exponential.
    Exponential { mean_us: f64 },
    /// Lognormal by its median and the standard deviation of the logarithm.
    Lognormal { median_us: f64, sigma: f64 },
    /// Pareto, cut at `most_us`.
    Pareto { least_us: f64, alpha: f64, most_us: f64 },
    /// Straight lines between measured points: probability and microseconds.
    Table { points: Vec<(f64, f64)> },
}

impl DelayShape {
    /// The duration that this share of durations does not exceed, us. `share` is above 0 and
    /// below 1.
    pub fn quantile_us(&self, share: f64) -> f64 {
        match self {
            Self::Constant { us } => *us,
            Self::Exponential { mean_us } => -mean_us * math::ln(1.0 - share),
            Self::Lognormal { median_us, sigma } => {
                median_us * math::exp(sigma * math::normal_quantile(share))
            }
            Self::Pareto { least_us, alpha, most_us } => {
                (least_us * math::pow(1.0 - share, -1.0 / alpha)).min(*most_us)
            }
            Self::Table { points } => {
                let above = points.partition_point(|point| point.0 <= share);
                match (above.checked_sub(1).map(|i| points[i]), points.get(above)) {
                    (Some((q0, v0)), Some((q1, v1))) => v0 + (v1 - v0) * (share - q0) / (q1 - q0),
                    (Some((_, value)), None) | (None, Some(&(_, value))) => value,
                    (None, None) => 0.0,
                }
            }
        }
    }

    /// The longest duration in a simulation, us. A simulation cuts distributions without an end at
    /// one in a million, and all durations at 4.29 s.
    pub(crate) fn longest_us(&self) -> f64 {
        let longest_us = match self {
            Self::Pareto { most_us, .. } => *most_us,
            Self::Table { points } => points.last().map_or(0.0, |point| point.1),
            other => other.quantile_us(1.0 - 1.0 / 1_048_576.0),
        };
        longest_us.min(4_294_967.0)
    }
}

/// A whole model, as in its file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Name of the model in reports.
    pub name: String,
    /// One sentence about the cloud that the model describes.
    pub about: String,
    /// The network.
    pub path: PathFile,
    /// The machines.
    pub host: HostFile,
    /// Processor costs of packets, by stack.
    pub stack: StackFiles,
    /// The clocks of the machines.
    pub clock: ClockFile,
}

/// The network between hosts. `CloudProfile` of the simulator says what the parts mean.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "CloudProfile has the meanings; units are in the names")]
pub struct PathFile {
    pub base_us: Number,
    pub sender_sigma: Number,
    pub receiver_sigma: Number,
    pub host_correlation: Number,
    pub pair_sigma: Number,
    pub direction_sigma: Number,
    pub straggler_share: Number,
    pub straggler_send: Number,
    pub straggler_receive: Number,
    pub wait: Distribution,
    pub wait_lasts_us: Number,
    pub wander: Number,
    pub wander_period_s: Number,
    pub flow_gbit_per_s: Number,
    pub loopback_us: Number,
    pub send_queue_us: Number,
    pub random_loss: Number,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spikes: Option<OutageFile>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub episodes: Option<OutageFile>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub losses: Option<LossFile>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<LoadFile>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reroutes: Option<RerouteFile>,
}

/// Outages that begin at random times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutageFile {
    /// Mean time from one beginning to the next.
    pub gap_ms: Number,
    /// How long one lasts.
    pub length: Distribution,
}

/// Intervals in which a path loses packets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossFile {
    /// Mean time from one beginning to the next.
    pub gap_ms: Number,
    /// How long one lasts.
    pub length: Distribution,
    /// Share of the packets that the path loses in such an interval.
    pub within: Number,
}

/// Traffic of other tenants at the network card of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadFile {
    /// Pairs of a share of the time and the load of the card in that share.
    pub levels: Vec<(f64, f64)>,
    /// Time that the card takes for a burst, in microseconds.
    pub burst_us: f64,
    /// Duration of a level, in milliseconds.
    pub period_ms: f64,
    /// As for [`Number::source`].
    pub source: String,
}

/// Changes of the route of a pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RerouteFile {
    /// Mean time between two changes.
    pub every_s: Number,
    /// Standard deviation, over routes, of the logarithm of a route's constant delay.
    pub sigma: Number,
}

/// A machine. See `HostSpec` of the simulator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "HostSpec has the meanings; units are in the names")]
pub struct HostFile {
    pub cores: Number,
    pub nic_gbit_per_s: Number,
    pub nic_packets_per_s: Number,
    pub ingress_queue_us: Number,
    /// Pauses of the host; each entry is one kind of pause.
    #[serde(default)]
    pub stalls: Vec<OutageFile>,
}

/// Processor costs of packets, by stack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct StackFiles {
    /// UDP sockets of the kernel: the default.
    pub sockets: StackFile,
    /// A process that owns the network card and polls it without sleeping.
    pub kernel_bypass: StackFile,
}

/// Processor costs of packets on one stack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "HostSpec has the meanings; units are in the names")]
pub struct StackFile {
    pub wake_ns: Number,
    pub receive_ns: Number,
    pub send_ns: Number,
    pub copy_ns: Number,
    #[serde(default = "own_thread")]
    pub send_threads: Number,
    #[serde(default = "own_thread")]
    pub card_ns: Number,
    pub timer_late: Distribution,
}

/// A number that models of earlier versions do not have: the process sends on its only thread.
fn own_thread() -> Number {
    Number { is: 0.0, error: None, source: "not stated: the thread that receives sends".into() }
}

/// The clocks of machines. See `ClockSpec` of the simulator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "ClockSpec has the meanings; units are in the names")]
pub struct ClockFile {
    pub drift_ppb: Number,
    pub wander_ppb: Number,
    pub wander_period_s: Number,
    pub offset_ns: Number,
    pub noise_ns: Number,
    pub slew_ppb: Number,
    pub stated_ns: Number,
    pub period_ms: Number,
}

/// How a process sends and receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stack {
    /// UDP sockets of the kernel, as evenfall uses them.
    #[default]
    Sockets,
    /// A process that owns the network card and polls it without sleeping, as in the published
    /// multicasts.
    KernelBypass,
}

impl std::str::FromStr for Stack {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        match text {
            "sockets" => Ok(Self::Sockets),
            "kernel-bypass" => Ok(Self::KernelBypass),
            _ => Err(ModelError::Stack(text.into())),
        }
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sockets => "sockets",
            Self::KernelBypass => "kernel-bypass",
        })
    }
}

/// Errors of reading and scaling a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// No stack has this name.
    #[error("stack {0}: use sockets or kernel-bypass")]
    Stack(String),
    /// Neither the name of a built-in model nor the path of a readable file.
    #[error(
        "model {0}: not one of {names}, and not a readable file: {1}",
        names = BUILT_IN.map(|(name, _)| name).join(", ")
    )]
    Unknown(String, io::Error),
    /// The file is not a model.
    #[error("model {0}: {1}")]
    File(String, toml::de::Error),
    /// A number of the model is out of its range.
    #[error("model {model}: {key} = {value:?}: must be {range}")]
    Number {
        /// Name of the model.
        model: String,
        /// Key of the number.
        key: String,
        /// The number.
        value: f64,
        /// The range, in words.
        range: String,
    },
    /// A part of the model has a wrong form: the model, the part, and the right form.
    #[error("model {0}: {1}: must be {2}")]
    DelayShape(String, String, String),
    /// A key that a model does not have: the model, and the key.
    #[error(
        "model {0}: {1}: no such key; a distribution has its shape, the numbers of the shape, \
         error and source"
    )]
    Unused(String, String),
    /// A number has an empty source: the model, and the key.
    #[error("model {0}: {1}: its source is empty; say where the number is from")]
    Source(String, String),
    /// The model has no number of this key.
    #[error("model: there is no number {0}")]
    Key(String),
}

impl ModelError {
    pub(crate) fn shape(model: &str, key: &str, form: &str) -> Self {
        Self::DelayShape(model.into(), key.into(), form.into())
    }
}

/// The text of a file. The path may name a device without an end, so the length is limited.
fn read(path: &str) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let most = format!("longer than the {FILE_BYTES_MAX} bytes that a model may have");
        return Err(io::Error::new(io::ErrorKind::InvalidData, most));
    }
    Ok(text)
}

/// Writes in front of each source that the number was not measured and is that of the model `name`.
fn inherit(value: &mut toml::Value, name: &str) {
    match value {
        toml::Value::Table(table) => {
            if let Some(toml::Value::String(source)) = table.get_mut("source") {
                *source = format!("not measured, as {name}: {source}");
            }
            table.iter_mut().for_each(|(_, value)| inherit(value, name));
        }
        toml::Value::Array(list) => list.iter_mut().for_each(|value| inherit(value, name)),
        _ => {}
    }
}

/// The first key of `given` that `known` lacks.
fn unknown(key: &str, given: &toml::Value, known: &toml::Value) -> Option<String> {
    let below = |word: &str| if key.is_empty() { word.into() } else { format!("{key}.{word}") };
    match (given, known) {
        (toml::Value::Table(given), toml::Value::Table(known)) => {
            given.iter().find_map(|(word, value)| match known.get(word) {
                Some(known) => unknown(&below(word), value, known),
                None => Some(below(word)),
            })
        }
        (toml::Value::Array(given), toml::Value::Array(known)) => {
            let both = given.iter().zip(known).enumerate();
            both.into_iter()
                .find_map(|(at, (given, known))| unknown(&below(&at.to_string()), given, known))
        }
        _ => None,
    }
}

/// Whether a value is written on one line: a plain value, or a number beside its source.
fn is_line(value: &toml::Value) -> bool {
    let nested = |list: &Vec<toml::Value>| list.iter().any(|value| !is_line(value));
    match value {
        toml::Value::Table(table) => table.contains_key("source"),
        toml::Value::Array(list) => !nested(list),
        _ => true,
    }
}

/// Writes a table: its lines first, then the tables in it.
fn write_table(text: &mut String, name: &str, value: &toml::Value) {
    let Some(table) = value.as_table() else { return };
    for (key, value) in table.iter().filter(|(_, value)| is_line(value)) {
        text.push_str(&format!("{key} = {value}\n"));
    }
    for (key, value) in table.iter().filter(|(_, value)| !is_line(value)) {
        let inner = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
        match value {
            toml::Value::Array(list) => {
                for value in list {
                    text.push_str(&format!("\n[[{inner}]]\n"));
                    write_table(text, &inner, value);
                }
            }
            _ => {
                if value.as_table().is_some_and(|table| table.values().any(is_line)) {
                    text.push_str(&format!("\n[{inner}]\n"));
                }
                write_table(text, &inner, value);
            }
        }
    }
}

impl Model {
    /// The built-in model of this name, or the model in the file of this path.
    ///
    /// # Errors
    /// When neither a model nor a file has this name, or when the file is not a model. The error
    /// names the line.
    pub fn named(name: &str) -> Result<Self, ModelError> {
        if let Some((_, text)) = BUILT_IN.iter().find(|(built_in, _)| *built_in == name) {
            return Self::parse(name, text);
        }
        let text = read(name).map_err(|error| ModelError::Unknown(name.into(), error))?;
        Self::parse(name, &text)
    }

    /// Reads the text of a model.
    ///
    /// # Errors
    /// When the text is not a model. The error names the line.
    pub fn parse(name: &str, text: &str) -> Result<Self, ModelError> {
        let wrong = |error| ModelError::File(name.into(), error);
        let model: Self = toml::from_str(text).map_err(wrong)?;
        // The reader of files ignores a key of a distribution that it does not know.
        let (given, known) = (toml::from_str(text).map_err(wrong)?, model.values());
        if let Some(key) = unknown("", &given, &known) {
            return Err(ModelError::Unused(name.into(), key));
        }
        check(name, &model)?;
        Ok(model)
    }

    /// Names of the built-in models.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// What packets cost on this stack.
    pub fn costs(&self, stack: Stack) -> &StackFile {
        match stack {
            Stack::Sockets => &self.stack.sockets,
            Stack::KernelBypass => &self.stack.kernel_bypass,
        }
    }

    /// The model as values of its file.
    pub(crate) fn values(&self) -> toml::Value {
        toml::Value::try_from(self).expect("a model is plain tables")
    }

    /// The text of the model's file: a line for each number, with its source.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        write_table(&mut text, "", &self.values());
        text
    }

    /// The same model with one number multiplied: `path.base_us`, `path.wait.sigma`,
    /// `host.stalls.0.gap_ms`.
    ///
    /// # Errors
    /// When the model has no number of this key, or when the result is out of range.
    pub fn scaled(&self, key: &str, factor: f64) -> Result<Self, ModelError> {
        self.changed(key, |value| value * factor)
    }

    /// The keys of all numbers that are not 0, each with its stated error.
    pub fn numbers(&self) -> Vec<(String, Option<f64>)> {
        fn walk(key: &str, at: &toml::Value, found: &mut Vec<(String, Option<f64>)>) {
            let below =
                |word: &str| if key.is_empty() { word.into() } else { format!("{key}.{word}") };
            match at {
                toml::Value::Table(table) if table.contains_key("source") => {
                    let error = table.get("error").and_then(toml::Value::as_float);
                    for (word, value) in table.iter().filter(|(word, _)| *word != "error") {
                        let key = if word == "is" { key.to_owned() } else { below(word) };
                        if value.as_float().is_some_and(|value| value != 0.0) {
                            found.push((key, error));
                        }
                    }
                }
                toml::Value::Table(table) => {
                    table.iter().for_each(|(word, value)| walk(&below(word), value, found));
                }
                toml::Value::Array(list) => {
                    let numbered = list.iter().enumerate();
                    numbered.for_each(|(at, value)| walk(&below(&at.to_string()), value, found));
                }
                _ => {}
            }
        }
        let mut found = Vec::new();
        walk("", &self.values(), &mut found);
        found
    }

    /// The number of this key.
    ///
    /// # Errors
    /// When the model has no number of this key.
    pub fn number(&self, key: &str) -> Result<f64, ModelError> {
        let mut is = f64::NAN;
        self.changed(key, |value| {
            is = value;
            value
        })?;
        Ok(is)
    }

    /// The same numbers. Each source says that the number was not measured and is that of this
    /// model.
    pub(crate) fn inherited(&self) -> Self {
        let mut root = self.values();
        inherit(&mut root, &self.name);
        root.try_into().expect("only words have changed")
    }

    fn changed(&self, key: &str, change: impl FnOnce(f64) -> f64) -> Result<Self, ModelError> {
        let missing = || ModelError::Key(key.into());
        let mut root = self.values();
        let mut at = &mut root;
        for word in key.split('.') {
            at = match (word.parse::<usize>(), at) {
                (Ok(index), toml::Value::Array(list)) => list.get_mut(index),
                (_, toml::Value::Table(table)) => table.get_mut(word),
                _ => None,
            }
            .ok_or_else(missing)?;
        }
        // A number with its source is a table.
        if let toml::Value::Table(table) = at {
            at = table.get_mut("is").ok_or_else(missing)?;
        }
        let value = match *at {
            toml::Value::Float(value) => value,
            toml::Value::Integer(value) => value as f64,
            _ => return Err(missing()),
        };
        *at = toml::Value::Float(change(value));
        let model: Self =
            root.try_into().map_err(|error| ModelError::File(self.name.clone(), error))?;
        check(&model.name, &model)?;
        Ok(model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_model_is_read_and_written_back_the_same() {
        for (name, _) in BUILT_IN {
            let model = Model::named(name).expect(name);
            assert_eq!(model.name, name);
            assert_eq!(Model::parse(name, &model.to_toml()).expect(name), model);
        }
    }

    #[test]
    fn a_number_without_its_source_is_refused_with_its_line() {
        let text = Model::named("quiet").expect("built in").to_toml();
        let known = text.replacen("base_us = { ", "base_us = { is_not = 1, ", 1);
        assert_ne!(known, text);
        let error = Model::parse("x", &known).expect_err("an unknown key").to_string();
        assert!(error.contains("is_not") && error.contains("line"), "{error}");
        let at = text.find(", source").expect("there are sources");
        let end = at + text[at..].find(" }").expect("the end of the number");
        let error = Model::parse("x", &format!("{}{}", &text[..at], &text[end..]));
        assert!(error.expect_err("no source").to_string().contains("source"));
        let error = Model::named("nowhere").expect_err("no such file").to_string();
        assert!(error.contains("aws, gcp, quiet"), "{error}");
    }

    #[test]
    fn numbers_are_scaled_by_their_keys() {
        let model = Model::named("aws").expect("built in");
        for key in ["path.base_us", "path.wait.median_us", "host.stalls.0.gap_ms"] {
            let twice = model.scaled(key, 2.0).expect(key);
            let (was, is) = (model.number(key).expect(key), twice.number(key).expect(key));
            assert!((is / was - 2.0).abs() < 1e-12, "{key}");
        }
        for (key, _) in model.numbers() {
            assert!(model.number(&key).is_ok_and(|value| value != 0.0), "{key}");
        }
        assert!(model.scaled("path.base", 2.0).is_err());
        assert!(model.scaled("host.cores", 0.0).is_err());
    }
}
