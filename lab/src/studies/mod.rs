//! Studies: functions that return tables.
//!
//! A table is a value: the command line prints it, the documentation quotes it, a test asserts on
//! it.

pub mod hedging;
pub mod overlay;
pub mod replacement;

use serde::Serialize;

/// A table of figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// Model, seed and amount, so that it can be made again.
    pub method: String,
    /// Heads of the columns, the first for the rows' names.
    pub columns: Vec<String>,
    /// Rows: a name and a value per further column; `None` where there is none.
    pub rows: Vec<(String, Vec<Option<f64>>)>,
}

impl Table {
    pub(crate) fn new(title: &str, method: String, columns: &[&str]) -> Self {
        let columns = columns.iter().map(ToString::to_string).collect();
        Self { title: title.into(), method, columns, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, name: String, values: impl IntoIterator<Item = Option<f64>>) {
        self.rows.push((name, values.into_iter().collect()));
    }

    /// The table in Markdown, title and method above it.
    pub fn markdown(&self) -> String {
        let mut text = format!("### {}\n\n{}\n\n", self.title, self.method);
        text.push_str(&format!("| {} |\n", self.columns.join(" | ")));
        text.push_str(&format!("|{}\n", "---|".repeat(self.columns.len())));
        for (name, values) in &self.rows {
            let cells: Vec<String> = values.iter().map(|v| v.map_or("-".into(), cell)).collect();
            text.push_str(&format!("| {name} | {} |\n", cells.join(" | ")));
        }
        text
    }
}

/// Three digits that mean something.
fn cell(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}
