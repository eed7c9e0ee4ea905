//! The as-of join itself: two streams in order of time, one held row a key.
//!
//! ```text
//!   left   -----l1--------l2---l3------->   each left row takes the held row of its key
//!   right  --r1----r2-r3-------r4------->   each right row replaces the held row of its key
//! ```
//!
//! A join that collects the right side needs memory for all of it. Here the right rows that have
//! passed are forgotten but for the latest of each key, so that the memory grows with the keys and
//! not with the rows. Both streams must be sorted by time. A join that looks forward (`<=`, `<`)
//! is the same merge over streams in descending order.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

use arrow::array::{ArrayRef, AsArray as _, Int64Array, RecordBatch, new_null_array};
use arrow::compute::{cast, interleave};
use arrow::datatypes::{DataType, Int64Type, SchemaRef};
use arrow::error::ArrowError;
use arrow::row::{RowConverter, SortField};
use datafusion::common::hash_utils::RandomState;

/// Which right row a left row takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd)]
pub struct AsOfRule {
    /// The right row lies at or after the left row (`<=`, `<`), and not at or before it.
    pub looks_forward: bool,
    /// Equal times do not match (`>`, `<`).
    pub is_strict: bool,
    /// The greatest distance in time of a match, included; `None` without a limit.
    pub tolerance: Option<i64>,
}

impl AsOfRule {
    /// The comparison of the left time with the right time.
    pub(super) fn comparison_sign(self) -> &'static str {
        match (self.looks_forward, self.is_strict) {
            (false, false) => ">=",
            (false, true) => ">",
            (true, false) => "<=",
            (true, true) => "<",
        }
    }

    /// Whether a right row of this time has passed when the left row is at `left`.
    fn has_passed(self, right: i64, left: i64) -> bool {
        match (self.looks_forward, self.is_strict) {
            (false, false) => right <= left,
            (false, true) => right < left,
            (true, false) => right >= left,
            (true, true) => right > left,
        }
    }

    fn is_near_enough(self, right: i64, left: i64) -> bool {
        self.tolerance.is_none_or(|most| {
            // Two times of opposite signs may be further apart than an i64 can say.
            (i128::from(left) - i128::from(right)).abs() <= i128::from(most)
        })
    }
}

/// A batch of one side with its times and the numbers of its keys.
pub(super) struct SideBatch {
    pub(super) batch: RecordBatch,
    pub(super) times: Int64Array,
    /// The number of each row's key; empty without keys. Rows without a time have any number.
    numbers: Vec<u32>,
    /// How many keys both sides have had, this batch included.
    pub(super) keys: usize,
}

impl SideBatch {
    pub(super) fn time(&self, row: usize) -> Option<i64> {
        use arrow::array::Array as _;
        self.times.is_valid(row).then(|| self.times.value(row))
    }

    /// The number of a row's key. Without keys all rows have the number 0.
    pub(super) fn number(&self, row: usize) -> usize {
        self.numbers.get(row).map_or(0, |number| *number as usize)
    }
}

/// Dense numbers of keys. Equal keys have one number on both sides, whose keys have the same types.
pub(super) struct KeyNumbers {
    table: KeyTable,
}

// Keys come from feeds, so that the hashes have a seed.
enum KeyTable {
    NoKeys,
    /// One column of whole numbers of at most 63 bits and a sign.
    Numbers(HashMap<i64, u32, RandomState>),
    /// One column of text.
    Texts(HashMap<Box<str>, u32, RandomState>),
    /// Any other columns, as bytes that can be compared.
    Rows(RowConverter, HashMap<Box<[u8]>, u32, RandomState>),
}

impl KeyNumbers {
    pub(super) fn new(types: &[DataType]) -> Result<Self, ArrowError> {
        let table = match types {
            [] => KeyTable::NoKeys,
            [DataType::Utf8] => KeyTable::Texts(HashMap::default()),
            [kind] if kind.is_integer() && *kind != DataType::UInt64 => {
                KeyTable::Numbers(HashMap::default())
            }
            types => {
                let fields = types.iter().cloned().map(SortField::new).collect();
                KeyTable::Rows(RowConverter::new(fields)?, HashMap::default())
            }
        };
        Ok(Self { table })
    }

    pub(super) fn number_batch(
        &mut self,
        batch: RecordBatch,
        mut times: Int64Array,
        keys: &[ArrayRef],
    ) -> Result<SideBatch, ArrowError> {
        // A null key equals nothing. A row without a time matches nothing either, so both are
        // told by the same mark.
        for key in keys {
            if let Some(nulls) = key.logical_nulls() {
                let (_, values, known) = times.into_parts();
                let both = arrow::buffer::NullBuffer::union(known.as_ref(), Some(&nulls));
                times = Int64Array::new(values, both);
            }
        }
        let rows = 0..batch.num_rows();
        let numbers = match &mut self.table {
            KeyTable::NoKeys => Vec::new(),
            KeyTable::Numbers(table) => {
                let keys = cast(&keys[0], &DataType::Int64)?;
                let keys = keys.as_primitive::<Int64Type>().values();
                keys.iter().map(|key| number_of(table, key, |key| *key)).collect()
            }
            KeyTable::Texts(table) => {
                let keys = keys[0].as_string::<i32>();
                rows.map(|row| number_of(table, keys.value(row), |key| key.into())).collect()
            }
            KeyTable::Rows(converter, table) => {
                let keys = converter.convert_columns(keys)?;
                rows.map(|row| number_of(table, keys.row(row).data(), |key| key.into())).collect()
            }
        };
        Ok(SideBatch { batch, times, numbers, keys: self.key_count() })
    }

    fn key_count(&self) -> usize {
        match &self.table {
            KeyTable::NoKeys => 1,
            KeyTable::Numbers(table) => table.len(),
            KeyTable::Texts(table) => table.len(),
            KeyTable::Rows(_, table) => table.len(),
        }
    }

    /// Bytes of memory.
    pub(super) fn memory_bytes(&self) -> usize {
        // An entry has the key, its allocation and its place in the table: 96 bytes for a symbol.
        self.key_count() * 96
    }
}

/// The number of a key, which is a new one for a new key.
fn number_of<K, Q>(
    table: &mut HashMap<K, u32, RandomState>,
    key: &Q,
    own: impl FnOnce(&Q) -> K,
) -> u32
where
    K: Borrow<Q> + Eq + Hash,
    Q: Eq + Hash + ?Sized,
{
    if let Some(number) = table.get(key) {
        return *number;
    }
    let number = table.len() as u32;
    table.insert(own(key), number);
    number
}

/// One row of nulls, which stands for the right row of a left row without a match.
pub(super) fn row_of_nulls(right: &SchemaRef) -> RecordBatch {
    let nulls = right.fields().iter().map(|field| new_null_array(field.data_type(), 1));
    // Columns that are never null on the right are null here, so the schema of this one row
    // differs from the schema of the right side.
    let fields = right.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
    let schema = arrow::datatypes::Schema::new(fields.collect::<Vec<_>>());
    let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(1));
    let nulls = RecordBatch::try_new_with_options(schema.into(), nulls.collect(), &options);
    nulls.expect("one row of nulls fits its own schema")
}

/// A merge of two streams in order of time. It is driven in steps: [`advance`](Self::advance) says
/// which batch it needs.
pub(super) trait TimeMerge: Send {
    /// The next batch of the left side.
    fn add_left(&mut self, side: SideBatch);

    /// The next batch of the right side; `None` at its end.
    fn add_right(&mut self, side: Option<SideBatch>);

    /// Bytes of held batches and keys, for the memory limit.
    fn memory_bytes(&self) -> usize;

    /// Goes on until something is needed or joined.
    fn advance(&mut self) -> Result<Step, ArrowError>;
}

/// The place of a held right row.
#[derive(Clone, Copy)]
struct HeldRow {
    slot: u32,
    row: u32,
    time: i64,
}

impl HeldRow {
    /// The row of nulls, which a key holds before any row.
    const NONE: Self = Self { slot: 0, row: 0, time: 0 };
}

/// The merge of one partition.
pub(super) struct AsOfMerge {
    rule: AsOfRule,
    output: SchemaRef,
    /// The held row of each key.
    held: Vec<HeldRow>,
    /// Batches that held rows lie in; slot 0 is one row of nulls.
    slots: Vec<RecordBatch>,
    right: Option<SideBatch>,
    /// Slot of `right`, once a row of it is held.
    right_slot: Option<u32>,
    right_row: usize,
    right_ended: bool,
    left: Option<SideBatch>,
    left_row: usize,
    /// First left row without output.
    left_begin: usize,
    matches: Vec<(usize, usize)>,
}

/// Batches that held rows may lie in. Then one row of each key is copied into a batch of its own,
/// and the others are let go. More batches take more memory, and fewer need more copies.
const SLOTS_MAX: usize = 8;

/// What the merge needs next.
pub(super) enum Step {
    /// A batch of the left side, or its end.
    NeedLeft,
    /// A batch of the right side, or its end.
    NeedRight,
    /// Joined rows.
    Joined(RecordBatch),
}

impl AsOfMerge {
    pub(super) fn new(rule: AsOfRule, right: &SchemaRef, output: SchemaRef) -> Self {
        Self {
            rule,
            output,
            held: Vec::new(),
            slots: vec![row_of_nulls(right)],
            right: None,
            right_slot: None,
            right_row: 0,
            right_ended: false,
            left: None,
            left_row: 0,
            left_begin: 0,
            matches: Vec::new(),
        }
    }
}

impl TimeMerge for AsOfMerge {
    fn add_left(&mut self, side: SideBatch) {
        self.held.resize(side.keys, HeldRow::NONE);
        self.left = Some(side);
        (self.left_row, self.left_begin) = (0, 0);
    }

    fn add_right(&mut self, side: Option<SideBatch>) {
        self.right_ended = side.is_none();
        if let Some(side) = &side {
            self.held.resize(side.keys, HeldRow::NONE);
        }
        self.right = side;
        (self.right_row, self.right_slot) = (0, None);
    }

    fn memory_bytes(&self) -> usize {
        let batches: usize = self.slots.iter().map(RecordBatch::get_array_memory_size).sum();
        batches + self.held.len() * size_of::<HeldRow>()
    }

    fn advance(&mut self) -> Result<Step, ArrowError> {
        let Some(left) = self.left.take() else { return Ok(Step::NeedLeft) };
        let rows = left.batch.num_rows();
        while self.left_row < rows {
            if let Some(time) = left.time(self.left_row) {
                if !self.pass_right_rows(time) {
                    if self.slots.len() <= SLOTS_MAX {
                        self.left = Some(left);
                        return Ok(Step::NeedRight);
                    }
                    // The rows so far go out before the batches are let go, so that only held rows
                    // of them must be kept.
                    let joined = self.join_rows(&left)?;
                    self.left = Some(left);
                    self.compact_slots()?;
                    return Ok(joined.map_or(Step::NeedRight, Step::Joined));
                }
                self.matches.push(self.matched_row(&left, time));
            } else {
                self.matches.push((0, 0));
            }
            self.left_row += 1;
        }
        Ok(self.join_rows(&left)?.map_or(Step::NeedLeft, Step::Joined))
    }
}

impl AsOfMerge {
    /// Holds each right row that has passed at this time of the left side. Returns whether no
    /// further right row can have passed; `false` asks for the next batch.
    fn pass_right_rows(&mut self, time: i64) -> bool {
        let Some(right) = &self.right else { return self.right_ended };
        while self.right_row < right.batch.num_rows() {
            let row = self.right_row;
            if let Some(right_time) = right.time(row) {
                if !self.rule.has_passed(right_time, time) {
                    return true;
                }
                let slot = *self.right_slot.get_or_insert_with(|| {
                    self.slots.push(right.batch.clone());
                    self.slots.len() as u32 - 1
                });
                let held = HeldRow { slot, row: row as u32, time: right_time };
                self.held[right.number(row)] = held;
            }
            self.right_row += 1;
        }
        self.right = None;
        self.right_ended
    }

    fn matched_row(&self, left: &SideBatch, time: i64) -> (usize, usize) {
        let held = self.held[left.number(self.left_row)];
        match self.rule.is_near_enough(held.time, time) {
            true => (held.slot as usize, held.row as usize),
            false => (0, 0),
        }
    }

    /// The left rows that have found their matches, beside them.
    fn join_rows(&mut self, left: &SideBatch) -> Result<Option<RecordBatch>, ArrowError> {
        let count = self.matches.len();
        if count == 0 {
            return Ok(None);
        }
        let part = left.batch.slice(self.left_begin, count);
        let mut columns = part.columns().to_vec();
        for at in 0..self.slots[0].num_columns() {
            let sources: Vec<_> = self.slots.iter().map(|slot| slot.column(at).as_ref()).collect();
            columns.push(interleave(&sources, &self.matches)?);
        }
        self.matches.clear();
        self.left_begin += count;
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(count));
        RecordBatch::try_new_with_options(self.output.clone(), columns, &options).map(Some)
    }

    /// Copies held rows together, so that no whole batch is kept for a few rows of it.
    fn compact_slots(&mut self) -> Result<(), ArrowError> {
        let held = self.held.iter().filter(|held| held.slot > 0);
        let held: Vec<_> = held.map(|held| (held.slot as usize, held.row as usize)).collect();
        let mut columns = Vec::with_capacity(self.slots[0].num_columns());
        for at in 0..self.slots[0].num_columns() {
            let sources: Vec<_> = self.slots.iter().map(|slot| slot.column(at).as_ref()).collect();
            columns.push(interleave(&sources, &held)?);
        }
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(held.len()));
        let schema = self.slots[0].schema();
        let together = RecordBatch::try_new_with_options(schema, columns, &options)?;
        self.slots.truncate(1);
        self.slots.push(together);
        for (row, held) in self.held.iter_mut().filter(|held| held.slot > 0).enumerate() {
            (held.slot, held.row) = (1, row as u32);
        }
        self.right_slot = None;
        Ok(())
    }
}
