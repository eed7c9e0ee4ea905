//! The rules by which Prometheus raises alerts.
//!
//! A limit that the settings state is taken from the settings. All other limits are options, whose
//! defaults are far from what a healthy run shows.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::json;

use super::prometheus::JOB;
use super::{Inventory, prometheus_time};

/// P(F) below which a run with a deadline of Jasper's rule is alerted: its rule gives 91 % when all
/// is well (docs/results/multicast.md).
const ON_TIME_OTHER_RULE: f64 = 0.8;
/// How many times the allowed share of late messages may be late for ten seconds. Bursts of
/// lateness last shorter than the alert waits.
const LATE_TIMES: f64 = 5.0;
/// The share of its limit from which a hold counts as being at the limit.
const HOLD_SHARE: f64 = 0.99;

/// How long a condition must hold before it is an alert, as an option of the command has it too.
pub const HOLD_FOR: Duration = Duration::from_secs(15);
/// The longest window of 99 % of the frames, as an option of the command has it too.
pub const WINDOW: Duration = Duration::from_millis(5);

/// The limits of all rules.
pub struct AlertLimits {
    /// How long a condition must hold, in Prometheus' words.
    hold_for: String,
    on_time: f64,
    window: Duration,
    hold_max: Option<Duration>,
}

impl AlertLimits {
    /// The limits without options.
    ///
    /// # Errors
    /// Settings that cannot be read.
    pub fn of_defaults(inventory: &Inventory) -> Result<Self, Box<dyn std::error::Error>> {
        Self::of(inventory, HOLD_FOR, None, WINDOW)
    }

    /// # Errors
    /// A share that is none, and settings that cannot be read.
    pub fn of(
        inventory: &Inventory,
        hold_for: Duration,
        on_time: Option<f64>,
        window: Duration,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        if let Some(share) = on_time.filter(|share| !(0.0..=1.0).contains(share)) {
            return Err(format!("--on-time {share}: must be from 0 to 1").into());
        }
        let deadline = |key| inventory.setting(&["multicast", "deadline", key]);
        let target = match deadline("rule")?.as_ref().and_then(|rule| rule.as_str()) {
            Some("on-time") => deadline("target")?.and_then(|target| target.as_float()),
            _ => None,
        };
        let follows = target.map_or(ON_TIME_OTHER_RULE, |target| 1.0 - LATE_TIMES * (1.0 - target));
        let longest = deadline("hold_max")?;
        let longest = longest.as_ref().and_then(|text| text.as_str());
        let hold_max = longest.map(humantime::parse_duration).transpose()?;
        let hold_for = prometheus_time(hold_for)?;
        Ok(Self { hold_for, on_time: on_time.unwrap_or(follows.max(0.0)), window, hold_max })
    }
}

/// A rule of Prometheus.
struct AlertRule {
    name: &'static str,
    expression: String,
    severity: &'static str,
    summary: String,
}

fn rule(
    name: &'static str,
    severity: &'static str,
    expression: String,
    summary: impl Into<String>,
) -> AlertRule {
    AlertRule { name, expression, severity, summary: summary.into() }
}

/// The rules of a feed: fairness, latency, losses.
fn feed_rules(limits: &AlertLimits) -> Vec<AlertRule> {
    let (on_time, window) = (limits.on_time, limits.window.as_secs_f64());
    let quantile = |share: &str, metric: &str| {
        format!("histogram_quantile({share}, sum by (le) (rate(evenfall_{metric}_bucket[1m])))")
    };
    let mut rules = vec![
        rule(
            "EvenfallUnfair",
            "page",
            format!("evenfall_on_time_share < {on_time:.4} and evenfall_leads == 1"),
            format!(
                "Only {{{{ $value | humanizePercentage }}}} of the messages reached every receiver \
                 before their deadline; the limit is {:.2} %.",
                on_time * 100.0
            ),
        ),
        rule(
            "EvenfallWindowWide",
            "warn",
            format!("{} > {window}", quantile("0.99", "window_seconds")),
            "The last receiver releases {{ $value | humanizeDuration }} after the first (p99).",
        ),
        rule(
            "EvenfallMessagesLost",
            "page",
            "sum by (node) (increase(evenfall_lost_messages_total{role!=\"root\"}[1m])) > 0".into(),
            "{{ $labels.node }} reports {{ $value | humanize }} lost messages in a minute.",
        ),
        rule(
            "EvenfallReceiverLate",
            "warn",
            "sum by (node) (rate(evenfall_late_messages_total{role!=\"root\"}[1m])) / (sum by \
             (node) (rate(evenfall_released_messages_total{role!=\"root\"}[1m])) > 0) > 0.05"
                .into(),
            "{{ $labels.node }} releases {{ $value | humanizePercentage }} of its messages late.",
        ),
        rule(
            "EvenfallProxyReplaced",
            "info",
            "increase(evenfall_replacements_made_total[5m]) > 0".into(),
            "The root has put a spare in the place of a slow proxy.",
        ),
        rule(
            "EvenfallForgedDatagrams",
            "warn",
            "sum by (node) (increase(evenfall_forged_datagrams_total[5m])) > 0".into(),
            "{{ $labels.node }} gets datagrams that the key of the run does not vouch for.",
        ),
    ];
    if let Some(hold_max) = limits.hold_max {
        let limit = hold_max.as_secs_f64() * HOLD_SHARE;
        let summary = format!(
            "Messages are held for {{{{ $value | humanizeDuration }}}}, and hold_max is {}: some \
             receiver is slower than the feed may wait.",
            humantime::format_duration(hold_max)
        );
        rules.push(rule(
            "EvenfallHoldAtLimit",
            "page",
            format!("evenfall_hold_seconds >= {limit} and evenfall_leads == 1"),
            summary,
        ));
    }
    rules
}

/// The rules of nodes, their cards and their clocks.
fn machine_rules() -> Vec<AlertRule> {
    vec![
        rule(
            "EvenfallNodeGone",
            "page",
            format!("up{{job=\"{JOB}\"}} == 0"),
            "{{ $labels.role }} {{ $labels.node }} does not answer.",
        ),
        rule(
            "EvenfallNoRoot",
            "page",
            "sum(evenfall_leads) < 1 or absent(evenfall_leads)".into(),
            "No root sends the feed.",
        ),
        rule(
            "EvenfallCloudAllowance",
            "warn",
            "sum by (node, counter) \
             (increase(evenfall_card_lost_packets_total{cause=\"cloud\"}[5m])) > 0"
                .into(),
            "The cloud holds back or drops packets of {{ $labels.node }} beyond an allowance of \
             its kind of machine: {{ $labels.counter }}.",
        ),
        rule(
            "EvenfallClockUnsound",
            "page",
            "evenfall_clock_sound == 0".into(),
            "The clock of {{ $labels.node }} has left the bound that the feed's delays prove.",
        ),
        rule(
            "EvenfallClockStepped",
            "warn",
            "increase(evenfall_clock_steps_total[5m]) > 0".into(),
            "The clock of {{ $labels.node }} was stepped.",
        ),
        rule(
            "EvenfallClockAboveWindow",
            "warn",
            "max(evenfall_clock_assumed_seconds) > scalar(histogram_quantile(0.99, \
             sum by (le) (rate(evenfall_window_seconds_bucket[1m]))))"
                .into(),
            "Clocks may err by {{ $value | humanizeDuration }}, more than the delivery window: the \
             clocks decide which receiver is first.",
        ),
        rule(
            "EvenfallClockLost",
            "warn",
            "evenfall_clock_lost + evenfall_clock_disrupted + evenfall_clock_liars > 0".into(),
            "{{ $value }} clocks of the mesh are not measured, left their bounds, or lie.",
        ),
    ]
}

/// The rules of disks, buckets and racks.
fn storage_rules() -> Vec<AlertRule> {
    vec![
        rule(
            "EvenfallRecorderStands",
            "page",
            "rate(evenfall_released_messages_total{role=\"recorder\"}[1m]) > 0 and on (node) \
             rate(evenfall_kept_messages_total[1m]) == 0"
                .into(),
            "{{ $labels.node }} takes messages and keeps none: its disk may be full.",
        ),
        rule(
            "EvenfallDiskErrors",
            "page",
            "increase(evenfall_store_disk_errors_total[5m]) + \
             increase(evenfall_store_refused_appends_total[5m]) > 0"
                .into(),
            "The store {{ $labels.node }} refuses appends: its disk may be full.",
        ),
        rule(
            "EvenfallUploadsFail",
            "warn",
            "increase(evenfall_store_upload_errors_total[5m]) > 0".into(),
            "The object store refuses what {{ $labels.node }} sends.",
        ),
        rule(
            "EvenfallSecondNodeAway",
            "warn",
            "evenfall_store_replica_away == 1".into(),
            "The store {{ $labels.node }} has no second node.",
        ),
        rule(
            "EvenfallRackOut",
            "warn",
            "max(evenfall_racks_out) > 0".into(),
            "{{ $value }} racks of ordered keys take no part.",
        ),
    ]
}

fn all_rules(limits: &AlertLimits) -> Vec<AlertRule> {
    { feed_rules(limits).into_iter() }.chain(machine_rules()).chain(storage_rules()).collect()
}

/// A file of rules.
///
/// # Errors
/// No node serves metrics.
pub fn rules(
    inventory: &Inventory,
    limits: &AlertLimits,
) -> Result<String, Box<dyn std::error::Error>> {
    inventory.observed_nodes()?;
    let mut text = format!(
        "# Made by `evenfall generate alerts {}`.\ngroups:\n  - name: evenfall\n    rules:\n",
        inventory.file
    );
    for AlertRule { name, expression, severity, summary } in all_rules(limits) {
        // A string of JSON is a string of YAML.
        let (expression, summary) = (json!(expression), json!(summary));
        let _ = write!(
            text,
            "      - alert: {name}\n        expr: {expression}\n        for: {}\n        labels: \
             {{severity: {severity}}}\n        annotations:\n          summary: {summary}\n",
            limits.hold_for
        );
    }
    Ok(text)
}

/// The rules as an object of the operator of Prometheus.
pub fn operator_rules(limits: &AlertLimits) -> serde_json::Value {
    let each = |rule: AlertRule| {
        json!({
            "alert": rule.name, "expr": rule.expression, "for": limits.hold_for,
            "labels": {"severity": rule.severity}, "annotations": {"summary": rule.summary},
        })
    };
    let rules: Vec<_> = all_rules(limits).into_iter().map(each).collect();
    json!({"groups": [{"name": "evenfall", "rules": rules}]})
}
