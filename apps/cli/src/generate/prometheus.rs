//! The settings of Prometheus.

use std::fmt::Write as _;
use std::time::Duration;

use super::{Inventory, prometheus_time};

/// The job under which all nodes are scraped. The rules name it too.
pub const JOB: &str = "evenfall";

/// A target for each node that serves metrics. A target has the labels that the node itself gives
/// to its metrics, so that `up` of a dead node has them too.
///
/// # Errors
/// No node serves metrics, or the interval is none.
pub fn settings(
    inventory: &Inventory,
    interval: Duration,
    rules: &str,
) -> Result<String, Box<dyn std::error::Error>> {
    let interval = prometheus_time(interval)?;
    let mut text = format!(
        "# Made by `evenfall generate prometheus {}`.\n\
         global:\n  scrape_interval: {interval}\n  evaluation_interval: {interval}\n\
         rule_files:\n  - {rules:?}\n\
         scrape_configs:\n  - job_name: {JOB}\n    honor_labels: true\n    static_configs:\n",
        inventory.file
    );
    for node in inventory.observed_nodes()? {
        let Some(http) = node.http else { continue };
        let (name, role) = (&node.name, &node.role);
        let _ = writeln!(
            text,
            "      - targets: [\"{http}\"]\n        labels: {{node: {name:?}, role: {role:?}}}"
        );
    }
    Ok(text)
}
