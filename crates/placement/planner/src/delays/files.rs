//! Reads measurements from files: a dense matrix, or a list of pairs.
//!
//! ```text
//! host,a,b,c           parent,child,p25_us,p50_us,p75_us,p90_us,stddev_us,recv
//! a,0,51,60.5          a,b,45.0,51.0,63.0,80.0,21.5,100000
//! b,49,0,58            a,c,0.0,0.0,0.0,0.0,0.0,0          <- named and skipped
//! c,61,57,0            a,b,44.0,50.0,61.0,79.0,90.1,99998   <- a repeat: the median counts
//! ```
//!
//! A matrix (microseconds; commas, semicolons or white space between; names optional) is complete,
//! and a gap in it is reported as a mistake. A list of pairs holds the measured pairs. Pairs that
//! are missing from it are edges that cannot be used.

use std::collections::BTreeMap;

use super::{DelayMatrix, EdgeStats, HOSTS_MAX};

/// Skipped rows that are named. Further rows are only counted.
pub const SKIPPED_MAX: usize = 1_000;

/// The end of an error message, which names the accepted forms.
const FORMS: &str = "; give a square matrix, or a list with columns parent, child, p50";

/// The mistake in a file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct BadFile {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong, and what to do.
    pub what: String,
}

/// A row of a list that was left out.
pub type SkippedRow = BadFile;

/// The contents of a file.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Hosts and edges.
    pub delays: DelayMatrix,
    /// The first [`SKIPPED_MAX`] rows that were left out.
    pub skipped: Vec<SkippedRow>,
    /// Number of all rows that were left out.
    pub skipped_rows: usize,
}

impl Loaded {
    /// The number of skipped rows and the first of them, in a line; `None` when all rows are used.
    pub fn skipped_summary(&self) -> Option<String> {
        let first = self.skipped.first()?;
        let count = self.skipped_rows;
        Some(format!("{count} rows were left out; the first is {first}"))
    }
}

impl DelayMatrix {
    /// Reads a dense matrix or a list of pairs; a list's first line names `parent` and `child`.
    ///
    /// # Errors
    /// The first mistake of the file, with its line.
    pub fn parse(text: &str) -> Result<Loaded, BadFile> {
        let mut lines = text
            .lines()
            .enumerate()
            .map(|(number, line)| (number + 1, line.trim()))
            .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let Some((number, first)) = lines.clone().next() else {
            return Err(bad(1, "the file is empty"));
        };
        let heads: Vec<String> = cells(first).iter().map(|cell| cell.to_lowercase()).collect();
        let named = |names: &[&str]| heads.iter().any(|head| names.contains(&head.as_str()));
        if named(PARENT) && named(CHILD) {
            lines.next();
            return pairs(&heads, number, lines);
        }
        let delays = matrix(&lines.map(|(n, line)| (n, cells(line))).collect::<Vec<_>>())?;
        Ok(Loaded { delays, skipped: Vec::new(), skipped_rows: 0 })
    }

    /// The delays of a dense matrix in microseconds, row by row: a row has the delays from a host
    /// to each host. The diagonal is not read. Without names, hosts are named from 1 on.
    ///
    /// # Errors
    /// A matrix that is not square or lacks a delay, with the row and the column, and names that do
    /// not fit the matrix. Their line is the row.
    pub fn of_matrix(names: Option<Vec<String>>, rows: &[Vec<f64>]) -> Result<Self, BadFile> {
        let hosts = rows.len();
        let names = names.unwrap_or_else(|| (1..=hosts).map(|host| host.to_string()).collect());
        if hosts < 2 {
            return Err(bad(1, "a pool needs two hosts at least"));
        }
        if names.len() != hosts {
            return Err(bad(1, format!("{} names for {hosts} hosts", names.len())));
        }
        check_names(&names, 1)?;
        let mut delays = Self::new(names);
        for (from, row) in rows.iter().enumerate() {
            if row.len() != hosts {
                let cells = row.len();
                let what = format!("{cells} cells for {hosts} hosts: give a square matrix");
                return Err(bad(from + 1, format!("row {}: {what}", from + 1)));
            }
            for (to, us) in row.iter().enumerate().filter(|(to, _)| *to != from) {
                let stats = measured(*us).map_err(|what| {
                    bad(from + 1, format!("{}: {what}", pair_words(&delays, from, to)))
                })?;
                delays.set(from, to, Some(stats));
            }
        }
        Ok(delays)
    }
}

fn bad(line: usize, what: impl Into<String>) -> BadFile {
    BadFile { line, what: what.into() }
}

/// Splits a line into cells at commas or semicolons, or at white space when the line has neither. A
/// byte order mark, which spreadsheets write, is removed from the first cell.
fn cells(line: &str) -> Vec<&str> {
    let line = line.trim_start_matches('\u{feff}');
    if line.contains([',', ';']) {
        line.split([',', ';']).map(str::trim).collect()
    } else {
        line.split_whitespace().collect()
    }
}

fn matrix(lines: &[(usize, Vec<&str>)]) -> Result<DelayMatrix, BadFile> {
    let number = |cell: &&str| cell.parse::<f64>().is_ok();
    let headed = lines.len() > 1 && !lines[0].1.iter().any(number);
    let rows = &lines[usize::from(headed)..];
    let names: Vec<String> = if headed {
        let corner = usize::from(lines[0].1.len() == lines[1].1.len());
        lines[0].1[corner..].iter().map(ToString::to_string).collect()
    } else {
        (1..=rows.len()).map(|host| host.to_string()).collect()
    };
    check_names(&names, lines[0].0)?;
    if rows.len() != names.len() {
        let what = format!("{} rows for {} hosts{FORMS}", rows.len(), names.len());
        return Err(bad(rows.last().map_or(1, |row| row.0), what));
    }
    if names.len() < 2 {
        return Err(bad(lines[0].0, format!("a pool needs two hosts at least{FORMS}")));
    }
    let mut delays = DelayMatrix::new(names);
    for (from, (line, cells)) in rows.iter().enumerate() {
        let cells = &cells[usize::from(headed).min(cells.len())..];
        matrix_row(&mut delays, from, *line, cells)?;
    }
    Ok(delays)
}

fn check_names(names: &[String], line: usize) -> Result<(), BadFile> {
    if names.len() > HOSTS_MAX {
        return Err(bad(line, format!("{} hosts, {HOSTS_MAX} at most", names.len())));
    }
    let mut sorted: Vec<&String> = names.iter().collect();
    sorted.sort();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(bad(line, format!("two hosts are named {:?}", pair[0]))),
        None => Ok(()),
    }
}

/// The place of a pair in a matrix.
fn pair_words(delays: &DelayMatrix, from: usize, to: usize) -> String {
    let [sender, receiver] = [from, to].map(|host| &delays.names[host]);
    format!("row {} ({sender}), column {} ({receiver})", from + 1, to + 1)
}

/// The statistics of a pair of which a single delay is known.
fn measured(us: f64) -> Result<EdgeStats, String> {
    match us > 0.0 && us.is_finite() {
        true => Ok(EdgeStats::constant(us)),
        false => Err(format!("{us}, but a delay is above 0")),
    }
}

fn matrix_row(
    delays: &mut DelayMatrix,
    from: usize,
    line: usize,
    cells: &[&str],
) -> Result<(), BadFile> {
    let hosts = delays.hosts();
    let at = |to: usize| pair_words(delays, from, to);
    if cells.len() > hosts {
        let what = format!("row {}: {} cells for {hosts} hosts{FORMS}", from + 1, cells.len());
        return Err(bad(line, what));
    }
    let mut row = Vec::with_capacity(hosts);
    for to in 0..hosts {
        let cell = cells.get(to).copied().unwrap_or("");
        if from == to {
            row.push(None);
            continue;
        }
        if cell.is_empty() {
            return Err(bad(line, format!("{}: a gap; measure the pair", at(to))));
        }
        let us = cell.parse::<f64>().map_err(|_| {
            bad(line, format!("{}: {cell:?} is no number of microseconds{FORMS}", at(to)))
        })?;
        let stats = measured(us).map_err(|what| bad(line, format!("{}: {what}", at(to))))?;
        row.push(Some(stats));
    }
    for (to, stats) in row.into_iter().enumerate() {
        delays.set(from, to, stats);
    }
    Ok(())
}

/// Names of the columns that name the hosts.
const PARENT: &[&str] = &["parent", "from", "src", "sender"];
const CHILD: &[&str] = &["child", "to", "dst", "receiver"];

/// Positions of the columns of a list.
struct Columns {
    parent: usize,
    child: usize,
    /// For each statistic: its column, its index in [`VALUES`], and the factor that converts it to
    /// the unit of the statistics.
    values: Vec<(usize, usize, f64)>,
    received: Option<usize>,
    /// Columns of rate and duration, whose product is the number of sent probes.
    sent: Option<(usize, usize)>,
    count: usize,
}

/// The statistics in the order of the columns' table.
const VALUES: [&str; 9] =
    ["p25", "p50", "p75", "p90", "p99", "mean", "stddev", "loss", "clock_error"];

impl Columns {
    fn of(heads: &[String], line: usize) -> Result<Self, BadFile> {
        let find = |names: &[&str]| heads.iter().position(|head| names.contains(&head.as_str()));
        let values = heads.iter().enumerate().filter_map(|(column, head)| {
            let (name, scale) = match head.rsplit_once('_') {
                Some((name, "us")) => (name, 1.0),
                Some((name, "ms")) => (name, 1e3),
                Some((name, "ns")) => (name, 1e-3),
                _ => (head.as_str(), 1.0),
            };
            let name = if name == "owd" || name == "median" { "p50" } else { name };
            VALUES.iter().position(|known| *known == name).map(|value| (column, value, scale))
        });
        let values: Vec<_> = values.collect();
        if !values.iter().any(|value| value.1 == 1) {
            return Err(bad(line, "no column p50_us (or owd_us): the delays themselves"));
        }
        Ok(Self {
            parent: find(PARENT).unwrap_or(0),
            child: find(CHILD).unwrap_or(0),
            values,
            received: find(&["recv", "received", "count"]),
            sent: find(&["rate_pps", "rate"]).zip(find(&["duration_s", "duration"])),
            count: heads.len(),
        })
    }

    fn stats(&self, cells: &[&str]) -> Result<EdgeStats, String> {
        let number = |column: usize| {
            let cell = cells[column];
            cell.parse::<f64>().map_err(|_| format!("{cell:?} is no number"))
        };
        let mut values = [f64::NAN; 9];
        (values[7], values[8]) = (0.0, 0.0);
        for &(column, value, scale) in &self.values {
            values[value] = number(column)? * scale;
        }
        // A row with a single number is a constant delay.
        if self.values.iter().filter(|value| value.1 < 7).count() == 1 {
            let loss = values[7] as f32;
            let stats = EdgeStats { loss, ..EdgeStats::constant(values[1]) };
            return stats.flaw().map_or(Ok(stats), Err);
        }
        let received = self.received.map(number).transpose()?;
        if let (Some(received), Some((rate, duration))) = (received, self.sent) {
            let sent = number(rate)? * number(duration)?;
            if !self.values.iter().any(|value| value.1 == 7) && sent > 0.0 {
                values[7] = (1.0 - received / sent).clamp(0.0, 1.0);
            }
        }
        let count = received.unwrap_or(0.0) as u32;
        let stats = EdgeStats::from_values(values.map(|value| value as f32), count);
        stats.flaw().map_or(Ok(stats), Err)
    }
}

fn pairs<'a>(
    heads: &[String],
    line: usize,
    rows: impl Iterator<Item = (usize, &'a str)>,
) -> Result<Loaded, BadFile> {
    let columns = Columns::of(heads, line)?;
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    let mut order = Vec::new();
    let mut repeats: BTreeMap<(usize, usize), Vec<EdgeStats>> = BTreeMap::new();
    let (mut skipped, mut skipped_rows) = (Vec::new(), 0);
    for (line, row) in rows {
        let cells = cells(row);
        match pair(&columns, &cells) {
            Ok((parent, child, stats)) => {
                let mut number = |name| {
                    *names.entry(name).or_insert_with(|| {
                        order.push(String::from(name));
                        order.len() - 1
                    })
                };
                let pair = (number(parent), number(child));
                repeats.entry(pair).or_default().push(stats);
                if order.len() > HOSTS_MAX {
                    return Err(bad(line, format!("more than {HOSTS_MAX} hosts")));
                }
            }
            Err(what) => {
                skipped_rows += 1;
                if skipped.len() < SKIPPED_MAX {
                    skipped.push(bad(line, what));
                }
            }
        }
    }
    if repeats.is_empty() {
        let what = skipped.first().map_or("no rows".into(), |row: &SkippedRow| row.to_string());
        return Err(bad(line, format!("no pair can be used; {what}")));
    }
    let mut delays = DelayMatrix::new(order);
    for ((from, to), repeats) in repeats {
        delays.set(from, to, EdgeStats::median_of(&repeats));
    }
    Ok(Loaded { delays, skipped, skipped_rows })
}

fn pair<'a>(columns: &Columns, cells: &[&'a str]) -> Result<(&'a str, &'a str, EdgeStats), String> {
    if cells.len() != columns.count {
        return Err(format!("{} cells, the first line has {}", cells.len(), columns.count));
    }
    let (parent, child) = (cells[columns.parent], cells[columns.child]);
    if parent.is_empty() || child.is_empty() {
        return Err("a host without a name".into());
    }
    if parent == child {
        return Err(format!("{parent} to itself"));
    }
    columns
        .stats(cells)
        .map(|stats| (parent, child, stats))
        .map_err(|what| format!("{parent} to {child}: {what}"))
}
