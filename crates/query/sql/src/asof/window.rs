//! Window joins: beside each left row, all right rows within a window around its time.
//!
//! ```text
//!   left   --------------l1----l2------>   times of l1 - x to l1 + y, both included
//!   right  --r1---r2-r3-----r4----r5--->   r2, r3 and r4 stand beside l1
//!                 [---window--]
//! ```
//!
//! DataFusion joins by the keys alone and compares the times of all pairs afterwards. Here both
//! streams are read in order of time. Right rows wait from the first left row whose window may take
//! them until the last one, so that the memory holds one window of rows and not a side.

use std::collections::VecDeque;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::{interleave, take};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;
use datafusion::common::{DFSchema, JoinType, NullEquality, Result};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Between, BinaryExpr, Expr, ExprSchemable as _, Join, Operator};

use super::condition;
use super::merge::{SideBatch, Step, TimeMerge, row_of_nulls};
use super::node::{KeyPair, key_pair};

/// Which right rows a left row takes: those of a time from `left + from` to `left + to`, both
/// included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd)]
pub struct WindowRule {
    /// Offset of the first time, in units of the times.
    pub from: i64,
    /// Offset of the last time.
    pub to: i64,
}

/// The condition of a join that is a window of time.
pub(super) struct WindowCondition {
    pub(super) left: Expr,
    pub(super) right: Expr,
    pub(super) keys: Vec<KeyPair>,
    pub(super) rule: WindowRule,
    /// Conditions on right columns alone, which choose right rows before the join.
    pub(super) of_right: Vec<Expr>,
}

/// One end of a window: a right time compared with a left time and a constant.
struct WindowBound {
    right: Expr,
    base: Expr,
    offset: i64,
}

impl WindowCondition {
    /// The window of a left join; `None` when the condition says anything else.
    pub(super) fn parse(join: &Join) -> Result<Option<Self>> {
        let Some(filter) = &join.filter else { return Ok(None) };
        let is_plain = join.join_type == JoinType::Left
            && join.null_equality == NullEquality::NullEqualsNothing
            && !filter.is_volatile();
        if !is_plain {
            return Ok(None);
        }
        let (left, right) = (join.left.schema(), join.right.schema());
        let keys = join
            .on
            .iter()
            .map(|(left, right)| KeyPair { left: left.clone(), right: right.clone() });
        let mut keys: Vec<KeyPair> = keys.collect();
        let (mut first, mut last, mut of_right) = (None, None, Vec::new());
        for part in split_conjunction(filter) {
            if let Some(key) = key_pair(part, left, right) {
                keys.push(key);
                continue;
            }
            if condition::is_of(part, right) {
                of_right.push(part.clone());
                continue;
            }
            let ends = bounds(part, left, right);
            // The window does not express this part of the condition, so that the plain join has
            // to.
            if ends.is_empty() {
                return Ok(None);
            }
            for (is_first, bound) in ends {
                let end = if is_first { &mut first } else { &mut last };
                let (Some(bound), None) = (bound, &end) else { return Ok(None) };
                *end = Some(bound);
            }
        }
        let (Some(first), Some(last)) = (first, last) else { return Ok(None) };
        if first.right != last.right || first.base != last.base {
            return Ok(None);
        }
        let kinds = (first.base.get_type(left)?, first.right.get_type(right)?);
        if !have_same_units(&kinds.0, &kinds.1) {
            return Ok(None);
        }
        let rule = WindowRule { from: first.offset, to: last.offset };
        Ok(Some(Self { left: first.base, right: first.right, keys, rule, of_right }))
    }
}

/// Whether whole numbers of both types count the same units from the same origin.
fn have_same_units(left: &DataType, right: &DataType) -> bool {
    match (left, right) {
        (DataType::Timestamp(left, _), DataType::Timestamp(right, _)) => left == right,
        (left, right) => left.is_integer() && right.is_integer(),
    }
}

/// The ends of a window that a condition states, and whether each is the first end. An end that is
/// no left time and a constant is `None`.
fn bounds(part: &Expr, left: &DFSchema, right: &DFSchema) -> Vec<(bool, Option<WindowBound>)> {
    match part {
        Expr::Between(Between { expr, negated: false, low, high })
            if condition::is_of(expr, right) =>
        {
            vec![(true, bound(expr, low, 0, left)), (false, bound(expr, high, 0, left))]
        }
        Expr::BinaryExpr(BinaryExpr { left: a, op, right: b }) => {
            let (time, op, limit) = if condition::is_of(a, right) && condition::is_of(b, left) {
                (a, *op, b)
            } else if condition::is_of(b, right) && condition::is_of(a, left) {
                let Some(op) = op.swap() else { return Vec::new() };
                (b, op, a)
            } else {
                return Vec::new();
            };
            // Times are whole numbers, so that "after 10" is "at or after 11".
            match op {
                Operator::GtEq => vec![(true, bound(time, limit, 0, left))],
                Operator::Gt => vec![(true, bound(time, limit, 1, left))],
                Operator::LtEq => vec![(false, bound(time, limit, 0, left))],
                Operator::Lt => vec![(false, bound(time, limit, -1, left))],
                _ => Vec::new(),
            }
        }
        _ => Vec::new(),
    }
}

/// A left time, or a left time and a constant.
fn bound(right: &Expr, limit: &Expr, and: i64, left: &DFSchema) -> Option<WindowBound> {
    let (base, constant, sign) = match limit {
        Expr::BinaryExpr(BinaryExpr { left: a, op: Operator::Minus, right: b }) => {
            (a.as_ref(), Some(b.as_ref()), -1)
        }
        Expr::BinaryExpr(BinaryExpr { left: a, op: Operator::Plus, right: b }) => {
            match b.as_ref() {
                Expr::Literal(..) => (a.as_ref(), Some(b.as_ref()), 1),
                other => (other, Some(a.as_ref()), 1),
            }
        }
        other => (other, None, 1),
    };
    let offset = match constant {
        None => 0,
        Some(Expr::Literal(value, _)) => {
            let kind = base.get_type(left).ok()?;
            condition::in_units(value, &kind)?.checked_mul(sign)?
        }
        Some(_) => return None,
    };
    let is_left_time = condition::is_of(base, left)
        && base.get_type(left).is_ok_and(|kind| condition::is_time(&kind));
    let offset = offset.checked_add(and)?;
    is_left_time.then(|| WindowBound { right: right.clone(), base: base.clone(), offset })
}

/// A right row that waits in the window of its key.
#[derive(Clone, Copy)]
struct WaitingRow {
    batch: u64,
    row: usize,
    time: i64,
}

/// A batch of the right side whose rows wait.
struct WaitingBatch {
    batch: RecordBatch,
    bytes: usize,
    /// The key of each row that waits; rows without a key or a time are left out.
    numbers: Vec<usize>,
    last: i64,
}

/// A pair of the output: a left row, and the place of a right row; `None` for nulls.
type JoinedPair = (u32, Option<WaitingRow>);

/// The merge of one partition.
pub(super) struct WindowMerge {
    rule: WindowRule,
    output: SchemaRef,
    /// Pairs of a batch at most.
    rows_max: usize,
    nulls: RecordBatch,
    /// The waiting rows of each key, in order of time.
    windows: Vec<VecDeque<WaitingRow>>,
    batches: VecDeque<WaitingBatch>,
    /// The number of the first of `batches`.
    first_batch: u64,
    waiting_bytes: usize,
    /// The latest right time that was read.
    read_to: Option<i64>,
    right_ended: bool,
    left: Option<SideBatch>,
    left_row: usize,
    /// Pairs of the left row that were made already.
    pairs_of_row: usize,
    pairs: Vec<JoinedPair>,
}

impl WindowMerge {
    pub(super) fn new(
        rule: WindowRule,
        right: &SchemaRef,
        output: SchemaRef,
        rows_max: usize,
    ) -> Self {
        Self {
            rule,
            output,
            rows_max,
            nulls: row_of_nulls(right),
            windows: Vec::new(),
            batches: VecDeque::new(),
            first_batch: 0,
            waiting_bytes: 0,
            read_to: None,
            right_ended: false,
            left: None,
            left_row: 0,
            pairs_of_row: 0,
            pairs: Vec::with_capacity(rows_max),
        }
    }

    /// Makes the pairs of a left row at a time. Returns whether all of them are made.
    fn pair_row(&mut self, left: &SideBatch, time: i64) -> bool {
        let (from, to) = (time.saturating_add(self.rule.from), time.saturating_add(self.rule.to));
        let window = &mut self.windows[left.number(self.left_row)];
        // Left rows come in order of time, so that no later one takes what lies before this window.
        while window.front().is_some_and(|waiting| waiting.time < from) {
            window.pop_front();
        }
        while let Some(waiting) = window.get(self.pairs_of_row).filter(|row| row.time <= to) {
            if self.pairs.len() >= self.rows_max {
                return false;
            }
            self.pairs.push((self.left_row as u32, Some(*waiting)));
            self.pairs_of_row += 1;
        }
        if self.pairs_of_row == 0 {
            self.pairs.push((self.left_row as u32, None));
        }
        self.pairs_of_row = 0;
        true
    }

    /// Forgets batches whose rows lie before the window of a left row at this time. No pair of them
    /// may be waiting.
    fn forget_before(&mut self, time: i64) {
        let from = time.saturating_add(self.rule.from);
        while self.batches.front().is_some_and(|batch| batch.last < from)
            && let Some(batch) = self.batches.pop_front()
        {
            for number in batch.numbers {
                let window = &mut self.windows[number];
                if window.front().is_some_and(|waiting| waiting.batch == self.first_batch) {
                    window.pop_front();
                }
            }
            self.first_batch += 1;
            self.waiting_bytes -= batch.bytes;
        }
    }

    /// The pairs so far, as rows.
    fn join_pairs(&mut self, left: &SideBatch) -> Result<Option<RecordBatch>, ArrowError> {
        let count = self.pairs.len();
        if count == 0 {
            return Ok(None);
        }
        let rows = UInt32Array::from_iter_values(self.pairs.iter().map(|(row, _)| *row));
        let places: Vec<(usize, usize)> = self
            .pairs
            .iter()
            .map(|(_, right)| match right {
                Some(waiting) => ((waiting.batch - self.first_batch) as usize + 1, waiting.row),
                None => (0, 0),
            })
            .collect();
        let mut columns = Vec::with_capacity(self.output.fields().len());
        for column in left.batch.columns() {
            columns.push(take(column, &rows, None)?);
        }
        for at in 0..self.nulls.num_columns() {
            let nulls = std::iter::once(self.nulls.column(at).as_ref());
            let waiting = self.batches.iter().map(|waiting| waiting.batch.column(at).as_ref());
            let sources: Vec<_> = nulls.chain(waiting).collect();
            columns.push(interleave(&sources, &places)?);
        }
        self.pairs.clear();
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(count));
        RecordBatch::try_new_with_options(self.output.clone(), columns, &options).map(Some)
    }
}

impl TimeMerge for WindowMerge {
    fn add_left(&mut self, side: SideBatch) {
        self.windows.resize_with(side.keys, VecDeque::new);
        self.left = Some(side);
        self.left_row = 0;
    }

    fn add_right(&mut self, side: Option<SideBatch>) {
        let Some(side) = side else {
            self.right_ended = true;
            return;
        };
        let batch = self.first_batch + self.batches.len() as u64;
        self.windows.resize_with(side.keys, VecDeque::new);
        let mut numbers = Vec::with_capacity(side.batch.num_rows());
        for row in 0..side.batch.num_rows() {
            let Some(time) = side.time(row) else { continue };
            let number = side.number(row);
            self.windows[number].push_back(WaitingRow { batch, row, time });
            numbers.push(number);
            self.read_to = Some(time);
        }
        let Some(last) = self.read_to.filter(|_| !numbers.is_empty()) else { return };
        let bytes = side.batch.get_array_memory_size()
            + numbers.len() * (size_of::<usize>() + size_of::<WaitingRow>());
        self.waiting_bytes += bytes;
        self.batches.push_back(WaitingBatch { batch: side.batch, bytes, numbers, last });
    }

    fn memory_bytes(&self) -> usize {
        self.waiting_bytes + self.windows.len() * size_of::<VecDeque<WaitingRow>>()
    }

    fn advance(&mut self) -> Result<Step, ArrowError> {
        let Some(left) = self.left.take() else { return Ok(Step::NeedLeft) };
        while self.left_row < left.batch.num_rows() {
            let Some(time) = left.time(self.left_row) else {
                self.pairs.push((self.left_row as u32, None));
                self.left_row += 1;
                continue;
            };
            // Rows of equal times may go on in the next batch.
            let end = time.saturating_add(self.rule.to);
            let is_read = self.right_ended || self.read_to.is_some_and(|read_to| read_to > end);
            if is_read && self.pair_row(&left, time) {
                self.left_row += 1;
                continue;
            }
            let joined = self.join_pairs(&left)?;
            self.left = Some(left);
            if !is_read {
                self.forget_before(time);
            }
            return Ok(joined.map_or(Step::NeedRight, Step::Joined));
        }
        Ok(self.join_pairs(&left)?.map_or(Step::NeedLeft, Step::Joined))
    }
}
