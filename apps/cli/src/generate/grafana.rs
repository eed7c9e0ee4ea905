//! A dashboard of Grafana.

use serde_json::{Value, json};

use super::Inventory;

/// Width of the grid of a dashboard.
const GRID: usize = 24;
/// Width and height of a panel in the grid.
const PANEL: (usize, usize) = (8, 7);

/// A picture over time.
struct Panel {
    title: &'static str,
    unit: &'static str,
    /// Names and expressions.
    lines: &'static [(&'static str, &'static str)],
}

const fn new_panel(
    title: &'static str,
    unit: &'static str,
    lines: &'static [(&'static str, &'static str)],
) -> Panel {
    Panel { title, unit, lines }
}

const PANELS: [Panel; 12] = [
    new_panel(
        "Messages in time at every receiver, P(F)",
        "percentunit",
        &[("P(F)", "evenfall_on_time_share and evenfall_leads == 1")],
    ),
    new_panel(
        "Delivery window",
        "s",
        &[
            (
                "p50",
                "histogram_quantile(0.5, sum by (le) (rate(evenfall_window_seconds_bucket[1m])))",
            ),
            (
                "p99",
                "histogram_quantile(0.99, sum by (le) (rate(evenfall_window_seconds_bucket[1m])))",
            ),
        ],
    ),
    new_panel(
        "Messages per second",
        "short",
        &[("published", "sum(rate(evenfall_published_messages_total[1m]))")],
    ),
    new_panel(
        "Latency to the slowest receiver",
        "s",
        &[
            ("p50", "histogram_quantile(0.5, sum by (le) (rate(evenfall_oml_seconds_bucket[1m])))"),
            (
                "p99",
                "histogram_quantile(0.99, sum by (le) (rate(evenfall_oml_seconds_bucket[1m])))",
            ),
            ("hold", "max(evenfall_hold_seconds)"),
        ],
    ),
    new_panel(
        "Release lateness, p99",
        "s",
        &[(
            "p99",
            "histogram_quantile(0.99, \
             sum by (le) (rate(evenfall_release_lateness_seconds_bucket[1m])))",
        )],
    ),
    new_panel(
        "Late messages by receiver",
        "short",
        &[(
            "{{node}}",
            "topk(8, sum by (node) (rate(evenfall_late_messages_total{role!=\"root\"}[1m])))",
        )],
    ),
    new_panel(
        "Lost messages by receiver",
        "short",
        &[(
            "{{node}}",
            "sum by (node) (increase(evenfall_lost_messages_total{role!=\"root\"}[1m])) > 0",
        )],
    ),
    new_panel(
        "Repairs",
        "short",
        &[("{{role}} {{node}}", "sum by (role, node) (rate(evenfall_repairs_sent_total[1m])) > 0")],
    ),
    new_panel(
        "Replacements of proxies",
        "short",
        &[
            ("tried", "sum(evenfall_replacements_tried_total)"),
            ("made", "sum(evenfall_replacements_made_total)"),
            ("undone", "sum(evenfall_replacements_undone_total)"),
        ],
    ),
    new_panel("Error bound of the clocks", "s", &[("{{node}}", "evenfall_clock_assumed_seconds")]),
    new_panel(
        "Recorded messages per second",
        "short",
        &[("{{node}}", "rate(evenfall_kept_messages_total[1m])")],
    ),
    new_panel(
        "Nodes that do not answer",
        "short",
        &[("{{role}} {{node}}", "up{job=\"evenfall\"} == 0")],
    ),
];

fn draw_panel(at: usize, Panel { title, unit, lines }: &Panel) -> Value {
    let line = |(at, (legend, expression)): (usize, &(&str, &str))| {
        let letter = char::from(b'A' + at as u8).to_string();
        json!({"refId": letter, "expr": expression, "legendFormat": legend})
    };
    let (width, height) = PANEL;
    let across = GRID / width;
    json!({
        "id": at + 1, "type": "timeseries", "title": title,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": at % across * width, "y": at / across * height, "w": width, "h": height},
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": lines.iter().enumerate().map(line).collect::<Vec<_>>(),
    })
}

/// A dashboard that Grafana imports without changes. Grafana asks the user for the source of data.
///
/// # Errors
/// No node serves metrics.
pub fn make_dashboard(inventory: &Inventory) -> Result<String, Box<dyn std::error::Error>> {
    inventory.observed_nodes()?;
    let panels: Vec<_> = PANELS.iter().enumerate().map(|(at, one)| draw_panel(at, one)).collect();
    let dashboard = json!({
        "title": "evenfall", "uid": "evenfall", "tags": ["evenfall"],
        "description": format!("Made by `evenfall generate grafana {}`.", inventory.file),
        "schemaVersion": 39, "refresh": "5s", "time": {"from": "now-15m", "to": "now"},
        "templating": {"list": [
            {"name": "datasource", "type": "datasource", "query": "prometheus"},
        ]},
        "panels": panels,
    });
    Ok(serde_json::to_string_pretty(&dashboard)? + "\n")
}
