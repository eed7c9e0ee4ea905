//! Curves with several values per point, from which tables and drawings are made.

use evenfall_core::statistics::half_width;

use crate::tables::Table;

/// Probability that the true mean lies outside the interval: 5 % for a 95 % interval.
const TAIL: f64 = 0.05;

/// Curves over one axis.
#[derive(Clone, Debug)]
pub struct Curves {
    /// The number of the figure, such as `6.7a`.
    pub number: &'static str,
    /// Title of the figure.
    pub title: &'static str,
    /// Label of the horizontal axis.
    pub x: &'static str,
    /// Positions of the points on the horizontal axis.
    pub at: Vec<f64>,
    /// The percentile that stands for bad cases: 10 where larger values are better, 90 where
    /// smaller values are better.
    pub worst: usize,
    /// Name of each curve, and for each point its values over the seeds.
    pub curves: Vec<(String, Vec<Vec<f64>>)>,
}

impl Curves {
    /// The curves that have at least one value.
    pub fn found(&self) -> impl Iterator<Item = &(String, Vec<Vec<f64>>)> {
        self.curves.iter().filter(|(_, points)| points.iter().any(|values| !values.is_empty()))
    }

    /// A table with three rows for each curve: the median, the percentile of bad cases, and half
    /// the width of the 95 % interval of the mean. Each row states the number of values of a point.
    pub fn table(&self) -> Table {
        let heads: Vec<String> = self.at.iter().map(|at| format!("{at:.2}")).collect();
        let mut columns = vec![self.x];
        columns.extend(heads.iter().map(String::as_str));
        let worst = self.worst;
        let method = format!(
            "Rows: median, {worst}th percentile by nearest rank, half the width of \
             the 95 % interval of the mean by Student's t; n is the number of runs of a point."
        );
        let title = format!("Figure {}: {}", self.number, self.title);
        let mut table = Table::new(&title, method, &columns);
        for (name, points) in self.found() {
            let n = || points.iter().map(Vec::len);
            let (least, most) = (n().min().unwrap_or(0), n().max().unwrap_or(0));
            let n = if least == most { format!("{least}") } else { format!("{least} to {most}") };
            let mut row = |what: &str, value: &dyn Fn(&[f64]) -> Option<f64>| {
                let name = format!("{name}{what} (n = {n})");
                table.row(name, points.iter().map(|values| value(values)));
            };
            row("", &|values| percentile(values, 50));
            row(&format!(", p{worst}"), &|values| percentile(values, worst));
            row(", +-", &|values| half_width(values, TAIL));
        }
        table
    }
}

/// The percentile by nearest rank.
pub(super) fn percentile(values: &[f64], percent: usize) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_of_how_many_runs_and_how_sure_its_mean_is() {
        let points = vec![vec![10.0, 12.0, 11.0], vec![10.0]];
        let curves = vec![("ours".to_owned(), points)];
        let curves =
            Curves { number: "0", title: "t", x: "x", at: vec![0.1, 0.5], worst: 10, curves };
        let rows = curves.table().rows;
        assert_eq!(rows[0], ("ours (n = 1 to 3)".into(), vec![Some(11.0), Some(10.0)]));
        assert_eq!(rows[1].1, [Some(10.0), Some(10.0)]);
        // For three values, Student's t gives 4.303 standard errors. The normal distribution would
        // give 1.96.
        let half = rows[2].1[0].expect("three values");
        assert!((half - 4.303 / 3f64.sqrt()).abs() < 1e-3, "{half}");
        assert_eq!(rows[2].1[1], None);
    }
}
