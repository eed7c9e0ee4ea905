//! Studies: functions that return tables.
//!
//! A table is a value that the command line prints, the documentation quotes and a test checks.

pub mod clock_parts;
pub mod clocks;
pub mod consensus;
pub mod figures;
pub mod hedging;
pub mod hold;
pub mod orders;
pub mod overlay;
pub mod replacement;
pub mod rivals;
pub mod sensitivity;
pub mod time;
pub mod trading;

use serde::Serialize;

/// A table of figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    /// What the table shows.
    pub title: String,
    /// Model, seed and amount, with which the table can be made again.
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

    /// The table in Markdown, title and method above it. A column `+-` is written into the cells of
    /// the column before it.
    pub fn markdown(&self) -> String {
        let heads: Vec<&str> =
            self.columns.iter().map(String::as_str).filter(|head| *head != SPREAD).collect();
        let mut text = format!("### {}\n\n{}\n\n", self.title, self.method);
        text.push_str(&format!("| {} |\n", heads.join(" | ")));
        text.push_str(&format!("|{}\n", "---|".repeat(heads.len())));
        for row in &self.rows {
            text.push_str(&self.line(row));
        }
        text
    }

    /// The last row in Markdown. A study that takes hours shows each row when the row is done.
    pub(crate) fn last_line(&self) -> String {
        self.rows.last().map(|row| self.line(row)).unwrap_or_default()
    }

    fn line(&self, (name, values): &(String, Vec<Option<f64>>)) -> String {
        let spread = |column: usize| self.columns.get(column).is_some_and(|head| head == SPREAD);
        // The first column has the names.
        let beside = |column: usize| values.get(column - 1).copied().flatten();
        let cells: Vec<String> = (1..=values.len())
            .filter(|column| !spread(*column))
            .map(|column| match beside(column) {
                None => "-".into(),
                Some(value) if spread(column + 1) => {
                    let half = beside(column + 1);
                    let half = half.map(|half| format!(" +- {half:.*}", digits(value)));
                    format!("{}{}", cell(value), half.unwrap_or_default())
                }
                Some(value) => cell(value),
            })
            .collect();
        format!("| {name} | {} |\n", cells.join(" | "))
    }
}

/// The head of a column with half the width of the interval of the column before it.
const SPREAD: &str = "+-";

/// The heads of a table: the first column, and for each figure the published column, if there is
/// one, our column, and the column of its interval.
pub(crate) fn columns<'a>(first: &'a str, figures: &[(Option<&'a str>, &'a str)]) -> Vec<&'a str> {
    let each = |&(published, ours): &(Option<&'a str>, &'a str)| {
        published.into_iter().chain([ours, SPREAD])
    };
    core::iter::once(first).chain(figures.iter().flat_map(each)).collect()
}

/// Digits behind the point: three digits of the value mean something.
fn digits(value: f64) -> usize {
    match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 4,
    }
}

fn cell(value: f64) -> String {
    format!("{value:.*}", digits(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_widths_are_written_beside_their_means() {
        let mut table = Table::new("T", "m".into(), &["run", "said", "ours", "+-", "more", "+-"]);
        table.row("a".into(), [Some(1.0), Some(144.2), Some(3.4), Some(0.99), None]);
        table.row("b".into(), [None, None, None, Some(12.34), Some(0.25)]);
        let text = table.markdown();
        let rows: Vec<&str> = text.lines().skip(4).collect();
        assert_eq!(rows[0], "| run | said | ours | more |");
        assert_eq!(rows[2], "| a | 1.00 | 144 +- 3 | 0.9900 |");
        assert_eq!(rows[3], "| b | - | - | 12.3 +- 0.2 |");
    }
}
