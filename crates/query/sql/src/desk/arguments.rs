//! The arguments of `reprice` and `nbbo`.

use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue, plan_datafusion_err, plan_err};
use datafusion::logical_expr::Expr;
use evenfall_query_member::desk::nbbo::DeskFill;
use evenfall_query_member::desk::{DeskAsk, DeskQuestion};

use crate::asof::condition::span_ns;

/// Which function is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeskFunctionName {
    Reprice,
    Nbbo,
}

impl DeskFunctionName {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Reprice => "reprice",
            Self::Nbbo => "nbbo",
        }
    }

    /// An example for errors.
    fn show_usage(self) -> &'static str {
        match self {
            Self::Reprice => {
                "reprice takes a table of positions, a window and a number of accounts, as in \
                 reprice('positions', interval '5 s', 10)"
            }
            Self::Nbbo => {
                "nbbo takes a window, or a table of fills, a window and the time of a markout, as \
                 in nbbo(interval '5 s') and nbbo('fills', interval '5 s', interval '100 ms')"
            }
        }
    }
}

/// What the rows of an answer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerKind {
    /// Accounts.
    Accounts,
    /// Symbols.
    Symbols,
    /// Fills.
    Fills,
}

impl AnswerKind {
    /// The columns of the table that a call names, as the files of positions and fills have them.
    pub(super) fn given_columns(self) -> &'static [&'static str] {
        match self {
            Self::Accounts => &["account", "symbol", "quantity"],
            Self::Fills => &["time_ns", "symbol", "side", "price", "shares"],
            Self::Symbols => &[],
        }
    }
}

/// One call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DeskCall {
    of: DeskQuestion,
    window: Duration,
    worst: usize,
    /// The table of positions or fills.
    pub(super) given: Option<String>,
}

impl DeskCall {
    /// Reads the arguments.
    ///
    /// # Errors
    /// What is wrong, with an example.
    pub(super) fn read(name: DeskFunctionName, args: &[Expr]) -> Result<Self> {
        let usage = name.show_usage();
        match (name, args) {
            (DeskFunctionName::Reprice, [positions, window, worst]) => Ok(Self {
                of: DeskQuestion::Reprice,
                window: span(window, usage, Duration::from_nanos(1))?,
                worst: count(worst, usage)?,
                given: Some(text(positions, usage)?),
            }),
            (DeskFunctionName::Nbbo, [window]) => Ok(Self {
                of: DeskQuestion::Nbbo { markout: Duration::ZERO },
                window: span(window, usage, Duration::from_nanos(1))?,
                worst: 0,
                given: None,
            }),
            (DeskFunctionName::Nbbo, [fills, window, markout]) => Ok(Self {
                of: DeskQuestion::Nbbo { markout: span(markout, usage, Duration::ZERO)? },
                window: span(window, usage, Duration::from_nanos(1))?,
                worst: 0,
                given: Some(text(fills, usage)?),
            }),
            _ => plan_err!("{usage}; found {} arguments", args.len()),
        }
    }

    pub(super) fn kind(&self) -> AnswerKind {
        match (self.of, &self.given) {
            (DeskQuestion::Reprice, _) => AnswerKind::Accounts,
            (DeskQuestion::Nbbo { .. }, Some(_)) => AnswerKind::Fills,
            (DeskQuestion::Nbbo { .. }, None) => AnswerKind::Symbols,
        }
    }

    /// The question, with these fills.
    pub(super) fn ask(&self, fills: Arc<[DeskFill]>) -> DeskAsk {
        DeskAsk { of: self.of, window: self.window, worst: self.worst, fills }
    }
}

fn constant<'a>(expr: &'a Expr, usage: &str) -> Result<&'a ScalarValue> {
    match expr {
        Expr::Literal(value, _) => Ok(value),
        other => plan_err!("{usage}; found {other}, which is no constant"),
    }
}

fn text(expr: &Expr, usage: &str) -> Result<String> {
    let value = constant(expr, usage)?;
    match value.try_as_str() {
        Some(Some(text)) => Ok(text.to_owned()),
        _ => plan_err!("{usage}; found {value} in the place of a table's name"),
    }
}

fn count(expr: &Expr, usage: &str) -> Result<usize> {
    let value = constant(expr, usage)?;
    let count = match value.cast_to(&DataType::Int64) {
        Ok(ScalarValue::Int64(Some(count))) if value.data_type().is_integer() => {
            usize::try_from(count).ok()
        }
        _ => None,
    };
    count.ok_or_else(|| plan_datafusion_err!("{usage}; found {value} accounts"))
}

/// A span of time of at least this length.
fn span(expr: &Expr, usage: &str, least: Duration) -> Result<Duration> {
    let value = constant(expr, usage)?;
    let span = span_ns(value).and_then(|ns| u64::try_from(ns).ok()).map(Duration::from_nanos);
    span.filter(|span| *span >= least)
        .ok_or_else(|| plan_datafusion_err!("{usage}; found {value} in the place of a time span"))
}
