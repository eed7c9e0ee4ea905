//! The score of a candidate: a number that is computed from the statistics of the edge to it.
//!
//! TreeBuilder (thesis section 4.3.1, table 4.1) ranks candidates by one of three sums; any other
//! sum may be written out:
//!
//! ```text
//! WEIGHTED   0.3 * p90 + 0.7 * stddev
//! P90        p90
//! P50        p50
//! yours      max(p90, mean + 2 * stddev) * (1 + 10 * loss)
//! ```
//!
//! A lower score is better. In every sum, lost probes count as infinitely late: percentiles are
//! those of the sent probes (see [`EdgeStats::counting_loss`]).

use core::fmt;

use crate::delays::{DelayMatrix, DelayStatistic, EdgeStats};

/// Limit of the characters of a written strategy.
const TEXT_MAX: usize = 1_000;
/// Limit of nested parentheses, so that no text exhausts the stack.
const NESTED_MAX: usize = 32;

/// A sum over the statistics of an edge, in the form that is evaluated: operands first.
#[derive(Clone, Debug, PartialEq)]
pub struct Strategy {
    text: String,
    program: Vec<Op>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    Number(f64),
    Field(DelayStatistic),
    Negate,
    Add,
    Subtract,
    Multiply,
    Divide,
    Min,
    Max,
}

/// Which candidates are taken, once they are ranked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pick {
    /// The candidates that score lowest.
    #[default]
    Best,
    /// The candidates that score highest: the harm that stragglers can do to a tree.
    Worst,
    /// Random candidates, as in a cluster without selection.
    Random,
}

/// A strategy that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("strategy {:?}, character {}: {}", .text, .at + 1, .what)]
pub struct BadStrategy {
    text: String,
    /// Byte in the text.
    at: usize,
    what: String,
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Strategy {
    /// 0.3 p90 + 0.7 stddev.
    pub fn weighted() -> Self {
        Self::named("weighted", "0.3 * p90 + 0.7 * stddev")
    }

    /// The 90th percentile.
    pub fn p90() -> Self {
        Self::named("p90", "p90")
    }

    /// The median.
    pub fn p50() -> Self {
        Self::named("p50", "p50")
    }

    fn named(name: &str, text: &str) -> Self {
        let program = Parser::program(text).expect("the built-in strategies can be read");
        Self { text: name.into(), program }
    }

    /// `weighted`, `p90`, `p50` in any case, or a sum of numbers and p25 p50 p75 p90 p99 mean
    /// stddev loss with `+ - * / ( )`, `min(a, b)` and `max(a, b)`.
    ///
    /// # Errors
    /// The position of the first mistake, and the text that is allowed there.
    pub fn parse(text: &str) -> Result<Self, BadStrategy> {
        if text.trim().eq_ignore_ascii_case("weighted") {
            return Ok(Self::weighted());
        }
        let lower = text.trim().to_ascii_lowercase();
        let program = Parser::program(&lower).map_err(|(at, what)| BadStrategy {
            text: text.chars().take(80).collect(),
            at,
            what,
        })?;
        Ok(Self { text: lower, program })
    }

    /// The statistics that the strategy reads.
    pub fn fields(&self) -> impl Iterator<Item = DelayStatistic> + '_ {
        self.program.iter().filter_map(|op| match op {
            Op::Field(field) => Some(*field),
            _ => None,
        })
    }

    /// A statistic that the strategy reads and these measurements lack.
    pub fn lacks(&self, delays: &DelayMatrix) -> Option<DelayStatistic> {
        self.fields().find(|field| !delays.has(*field))
    }

    /// The score of an edge. The score is infinite when too many probes were lost, or when a
    /// statistic of the sum was not measured.
    pub fn score(&self, stats: &EdgeStats) -> f64 {
        let stats = stats.counting_loss();
        let mut stack: Vec<f64> = Vec::with_capacity(8);
        for op in &self.program {
            let value = match *op {
                Op::Number(number) => number,
                Op::Field(field) => f64::from(stats.field(field)),
                Op::Negate => -stack.pop().unwrap_or(f64::NAN),
                _ => {
                    let b = stack.pop().unwrap_or(f64::NAN);
                    let a = stack.pop().unwrap_or(f64::NAN);
                    match op {
                        Op::Add => a + b,
                        Op::Subtract => a - b,
                        Op::Multiply => a * b,
                        Op::Divide => a / b,
                        Op::Min => a.min(b),
                        _ => a.max(b),
                    }
                }
            };
            stack.push(value);
        }
        let score = stack.pop().unwrap_or(f64::NAN);
        if score.is_nan() { f64::INFINITY } else { score }
    }
}

/// sum := product (('+' | '-') product)*, product := unary (('*' | '/') unary)*,
/// unary := '-' unary | number | field | ('min' | 'max') '(' sum ',' sum ')' | '(' sum ')'
struct Parser<'a> {
    text: &'a str,
    at: usize,
    nested: usize,
    program: Vec<Op>,
}

type Parsed = Result<(), (usize, String)>;

impl<'a> Parser<'a> {
    fn program(text: &'a str) -> Result<Vec<Op>, (usize, String)> {
        if text.len() > TEXT_MAX {
            return Err((TEXT_MAX, format!("longer than {TEXT_MAX} characters")));
        }
        let mut parser = Self { text, at: 0, nested: 0, program: Vec::new() };
        parser.sum()?;
        match parser.peek() {
            None => Ok(parser.program),
            Some(c) => Err((parser.at, format!("{c:?}: expected + - * / or the end"))),
        }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&mut self) -> Option<char> {
        self.at += self.rest().len() - self.rest().trim_start().len();
        self.rest().chars().next()
    }

    fn eat(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += if found { wanted.len_utf8() } else { 0 };
        found
    }

    fn expect(&mut self, wanted: char) -> Parsed {
        if self.eat(wanted) { Ok(()) } else { Err((self.at, format!("expected {wanted:?}"))) }
    }

    fn sum(&mut self) -> Parsed {
        self.product()?;
        loop {
            let op = match self.peek() {
                Some('+') => Op::Add,
                Some('-') => Op::Subtract,
                _ => return Ok(()),
            };
            self.at += 1;
            self.product()?;
            self.program.push(op);
        }
    }

    fn product(&mut self) -> Parsed {
        self.unary()?;
        loop {
            let op = match self.peek() {
                Some('*') => Op::Multiply,
                Some('/') => Op::Divide,
                _ => return Ok(()),
            };
            self.at += 1;
            self.unary()?;
            self.program.push(op);
        }
    }

    fn unary(&mut self) -> Parsed {
        self.nested += 1;
        if self.nested > NESTED_MAX {
            return Err((self.at, format!("nested more than {NESTED_MAX} deep")));
        }
        match self.peek() {
            Some('-') => {
                self.at += 1;
                self.unary()?;
                self.program.push(Op::Negate);
            }
            Some('(') => {
                self.at += 1;
                self.sum()?;
                self.expect(')')?;
            }
            Some(c) if c.is_ascii_digit() || c == '.' => self.number()?,
            Some(c) if c.is_ascii_alphabetic() => self.word()?,
            Some(c) => return Err((self.at, format!("{c:?}: expected a number or a statistic"))),
            None => return Err((self.at, "ends here: expected a number or a statistic".into())),
        }
        self.nested -= 1;
        Ok(())
    }

    fn number(&mut self) -> Parsed {
        let digit = |c: char| c.is_ascii_digit() || c == '.';
        let end = self.rest().find(|c| !digit(c)).unwrap_or(self.rest().len());
        let text = &self.rest()[..end];
        let number = text.parse().map_err(|_| (self.at, format!("{text:?} is no number")))?;
        self.program.push(Op::Number(number));
        self.at += end;
        Ok(())
    }

    fn word(&mut self) -> Parsed {
        let end = self.rest().find(|c: char| !c.is_ascii_alphanumeric());
        let (start, word) = (self.at, &self.rest()[..end.unwrap_or(self.rest().len())]);
        self.at += word.len();
        if let Some((_, field)) = DelayStatistic::ALL.iter().find(|(name, _)| *name == word) {
            self.program.push(Op::Field(*field));
            return Ok(());
        }
        let op = match word {
            "min" => Op::Min,
            "max" => Op::Max,
            _ => {
                let names = DelayStatistic::ALL.map(|(name, _)| name).join(" ");
                return Err((start, format!("{word:?}: expected one of {names}, min or max")));
            }
        };
        self.expect('(')?;
        self.sum()?;
        self.expect(',')?;
        self.sum()?;
        self.expect(')')?;
        self.program.push(op);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats() -> EdgeStats {
        let (p50_us, p90_us, stddev_us) = (50.0, 100.0, 20.0);
        EdgeStats { p50_us, p90_us, stddev_us, mean_us: 55.0, ..EdgeStats::UNKNOWN }
    }

    #[test]
    fn thesis_table_4_1_strategies_score_as_printed() {
        let score = |text: &str| Strategy::parse(text).expect("a strategy").score(&stats());
        assert!((score("WEIGHTED") - (0.3 * 100.0 + 0.7 * 20.0)).abs() < 1e-9);
        assert_eq!((score("P90"), score("p50")), (100.0, 50.0));
        assert_eq!(score("WEIGHTED"), Strategy::weighted().score(&stats()));
    }

    #[test]
    fn sums_have_their_usual_meaning() {
        for (text, value) in [
            ("1 + 2 * 3 - 4 / 2", 5.0),
            ("-(1 + 2) * -2", 6.0),
            ("8 - 4 - 2", 2.0),
            ("max(p50, min(p90, 70)) / 2", 35.0),
            ("mean+2*stddev", 95.0),
            ("loss", 0.0),
        ] {
            assert_eq!(Strategy::parse(text).expect(text).score(&stats()), value, "{text}");
        }
        assert_eq!(Strategy::parse("p99").expect("p99").score(&stats()), f64::INFINITY);
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (text, wanted) in [
            ("p95", "character 1: \"p95\": expected one of p25 p50"),
            ("p90 +", "character 6: ends here"),
            ("(p90", "character 5: expected ')'"),
            ("p90 p50", "character 5: 'p': expected + - * /"),
            ("1.2.3", "\"1.2.3\" is no number"),
            ("min(p50)", "expected ','"),
            ("", "ends here"),
            ("p90 % 2", "'%'"),
            ("é", "'é'"),
        ] {
            let said = Strategy::parse(text).expect_err(text).to_string();
            assert!(said.contains(wanted), "{said}");
        }
        assert!(Strategy::parse(&"(".repeat(900)).is_err());
        assert!(Strategy::parse(&"1+".repeat(900)).is_err());
    }

    #[test]
    fn any_text_is_read_or_refused() {
        let words = ["p50", "(", ")", "-", "*", "1", ".", "max", ",", " ", "x", "/", "µ"];
        let mut prng = evenfall_core::Prng::new(4);
        for _ in 0..20_000 {
            let length = prng.below(12);
            let mut word = || words[prng.below(words.len() as u64) as usize];
            let text: String = (0..length).map(|_| word()).collect();
            if let Ok(strategy) = Strategy::parse(&text) {
                assert!(!strategy.score(&stats()).is_nan());
            }
        }
    }
}
