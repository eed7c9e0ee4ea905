//! What messages say, as the columns of a table.
//!
//! Venues state different things, so that no list of columns fits all formats. Each codec brings
//! its own columns ([`Codec::columns`](crate::codec::Codec::columns)): their names and kinds are
//! the schema of a table of its messages. It then puts a message's values into a [`ColumnSink`]
//! ([`Codec::put_rows`](crate::codec::Codec::put_rows)). A column that the message does not
//! state gets no value, and is null in that row. A message of a venue that packs several statements
//! into one datagram has a row for each of them.
//!
//! The crate knows no library of tables. [`ColumnBuffers`] gathers rows as plain vectors, which a
//! writer of Parquet or Arrow turns into its own arrays. A writer of text is a sink of its own.
//!
//! ```
//! use evenfall_feed_formats::codec;
//! use evenfall_feed_formats::columns::{ColumnBuffers, ColumnValues};
//! use evenfall_feed_formats::itch::Symbols;
//!
//! let lobster = codec::of(codec::LOBSTER).unwrap();
//! let mut rows = ColumnBuffers::new(lobster.columns());
//! for line in ["34200.5,1,7,100,5853300,1", "34201,7,0,0,-1,-1"] {
//!     lobster.put_rows(line.as_bytes(), &mut Symbols::new(), &mut rows);
//! }
//! let price = rows.columns().find(|(column, _)| column.name == "price").unwrap();
//! assert_eq!(*price.1, ColumnValues::Decimal(vec![Some(5_853_300), None]));
//! ```

/// What the values of a column are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// Whole numbers from 0 that fit this many bits: 8, 16, 32 or 64.
    Unsigned {
        /// Bits of the greatest value.
        bits: u8,
    },
    /// Numbers with decimals, held without the point: 12,345 of scale 4 is 1.2345.
    Decimal {
        /// Digits behind the point.
        scale: u8,
    },
    /// True or false.
    Boolean,
    /// UTF-8.
    Text,
}

/// A column of a codec's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageColumn {
    /// The name, which no other column of the codec has. Codecs use one name for one thing.
    pub name: &'static str,
    /// What its values are.
    pub kind: ColumnKind,
    /// The unit of its numbers, such as `ns` or `dollar`; `None` for numbers without a unit, and
    /// for text.
    pub unit: Option<&'static str>,
    /// Bytes of its longest text; `None` for text of any length, and for numbers.
    pub bytes_max: Option<u8>,
    /// Whether the value may come from an earlier message: the symbol of a number, for instance.
    pub is_derived: bool,
}

impl MessageColumn {
    const fn of_kind(name: &'static str, kind: ColumnKind) -> Self {
        Self { name, kind, unit: None, bytes_max: None, is_derived: false }
    }

    /// A column of whole numbers.
    pub const fn unsigned(name: &'static str, bits: u8) -> Self {
        Self::of_kind(name, ColumnKind::Unsigned { bits })
    }

    /// A column of numbers with decimals.
    pub const fn decimal(name: &'static str, scale: u8) -> Self {
        Self::of_kind(name, ColumnKind::Decimal { scale })
    }

    /// A column of true and false.
    pub const fn boolean(name: &'static str) -> Self {
        Self::of_kind(name, ColumnKind::Boolean)
    }

    /// A column of text.
    pub const fn text(name: &'static str) -> Self {
        Self::of_kind(name, ColumnKind::Text)
    }

    /// The same column, whose numbers are in this unit.
    #[must_use]
    pub const fn in_unit(self, unit: &'static str) -> Self {
        Self { unit: Some(unit), ..self }
    }

    /// The same column, whose texts have at most so many bytes.
    #[must_use]
    pub const fn at_most(self, bytes: u8) -> Self {
        Self { bytes_max: Some(bytes), ..self }
    }

    /// The same column, whose values may come from earlier messages.
    #[must_use]
    pub const fn as_derived(self) -> Self {
        Self { is_derived: true, ..self }
    }
}

/// The column that every codec has first: the name of the message's type.
pub const TYPE_COLUMN: MessageColumn = MessageColumn::text("type");

/// The columns of a codec that reads no more than types.
pub const TYPE_COLUMNS: &[MessageColumn] = &[TYPE_COLUMN];

/// Takes the values of one row at a time. Columns are counted from 0 in the order of the codec's
/// schema, and each gets at most one value a row.
pub trait ColumnSink {
    /// Takes a whole number.
    fn put_unsigned(&mut self, column: usize, value: u64);
    /// Takes a number with decimals, without its point.
    fn put_decimal(&mut self, column: usize, value: i64);
    /// Takes true or false.
    fn put_boolean(&mut self, column: usize, value: bool);
    /// Takes text.
    fn put_text(&mut self, column: usize, value: &str);
    /// Ends the row. Columns that got no value are null in it.
    fn end_row(&mut self);
}

/// The values of a column, one a row; `None` where the message states none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnValues {
    /// Of [`ColumnKind::Unsigned`].
    Unsigned(Vec<Option<u64>>),
    /// Of [`ColumnKind::Decimal`].
    Decimal(Vec<Option<i64>>),
    /// Of [`ColumnKind::Boolean`].
    Boolean(Vec<Option<bool>>),
    /// Of [`ColumnKind::Text`].
    Text(TextValues),
}

impl ColumnValues {
    fn new(kind: ColumnKind) -> Self {
        match kind {
            ColumnKind::Unsigned { .. } => Self::Unsigned(Vec::new()),
            ColumnKind::Decimal { .. } => Self::Decimal(Vec::new()),
            ColumnKind::Boolean => Self::Boolean(Vec::new()),
            ColumnKind::Text => Self::Text(TextValues::default()),
        }
    }

    /// Rows with or without a value.
    fn len(&self) -> usize {
        match self {
            Self::Unsigned(values) => values.len(),
            Self::Decimal(values) => values.len(),
            Self::Boolean(values) => values.len(),
            Self::Text(values) => values.ends.len(),
        }
    }

    fn push_null(&mut self) {
        match self {
            Self::Unsigned(values) => values.push(None),
            Self::Decimal(values) => values.push(None),
            Self::Boolean(values) => values.push(None),
            Self::Text(values) => values.push(None),
        }
    }

    fn clear(&mut self) {
        match self {
            Self::Unsigned(values) => values.clear(),
            Self::Decimal(values) => values.clear(),
            Self::Boolean(values) => values.clear(),
            Self::Text(values) => *values = TextValues::default(),
        }
    }
}

/// The texts of a column, one behind the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextValues {
    text: String,
    /// For each row the end of its text, and whether it has one.
    ends: Vec<(usize, bool)>,
}

impl TextValues {
    fn push(&mut self, value: Option<&str>) {
        self.text.push_str(value.unwrap_or_default());
        self.ends.push((self.text.len(), value.is_some()));
    }

    /// The text of each row.
    pub fn iter(&self) -> impl Iterator<Item = Option<&str>> {
        let starts = core::iter::once(0).chain(self.ends.iter().map(|(end, _)| *end));
        let ends = self.ends.iter();
        starts.zip(ends).map(|(start, (end, is_there))| {
            is_there.then(|| self.text.get(start..*end).unwrap_or_default())
        })
    }
}

/// Rows of messages of one codec, column by column.
#[derive(Clone, Debug)]
pub struct ColumnBuffers {
    schema: &'static [MessageColumn],
    values: Vec<ColumnValues>,
    rows: usize,
}

impl ColumnBuffers {
    /// Buffers without rows, with a codec's columns.
    pub fn new(schema: &'static [MessageColumn]) -> Self {
        let values = schema.iter().map(|column| ColumnValues::new(column.kind)).collect();
        Self { schema, values, rows: 0 }
    }

    /// Rows that were ended.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The values of a column.
    pub fn values(&self, column: usize) -> Option<&ColumnValues> {
        self.values.get(column)
    }

    /// The columns and their values, in the order of the schema.
    pub fn columns(&self) -> impl Iterator<Item = (&'static MessageColumn, &ColumnValues)> {
        self.schema.iter().zip(&self.values)
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.values.iter_mut().for_each(ColumnValues::clear);
        self.rows = 0;
    }

    /// The values of a column that has none yet in this row. A second value, a column beyond the
    /// schema or another kind is a mistake in a codec, which tests find ([`Codec`]).
    ///
    /// [`Codec`]: crate::codec::Codec
    fn open(&mut self, column: usize) -> Option<&mut ColumnValues> {
        let rows = self.rows;
        let values = self.values.get_mut(column).filter(|values| values.len() == rows);
        debug_assert!(values.is_some(), "column {column} has no place for a value");
        values
    }
}

impl ColumnSink for ColumnBuffers {
    fn put_unsigned(&mut self, column: usize, value: u64) {
        match self.open(column) {
            Some(ColumnValues::Unsigned(values)) => values.push(Some(value)),
            values => debug_assert!(values.is_none(), "column {column} has no whole numbers"),
        }
    }

    fn put_decimal(&mut self, column: usize, value: i64) {
        match self.open(column) {
            Some(ColumnValues::Decimal(values)) => values.push(Some(value)),
            values => debug_assert!(values.is_none(), "column {column} has no decimals"),
        }
    }

    fn put_boolean(&mut self, column: usize, value: bool) {
        match self.open(column) {
            Some(ColumnValues::Boolean(values)) => values.push(Some(value)),
            values => debug_assert!(values.is_none(), "column {column} is not true or false"),
        }
    }

    fn put_text(&mut self, column: usize, value: &str) {
        match self.open(column) {
            Some(ColumnValues::Text(values)) => values.push(Some(value)),
            values => debug_assert!(values.is_none(), "column {column} has no text"),
        }
    }

    fn end_row(&mut self) {
        self.rows += 1;
        for values in self.values.iter_mut().filter(|values| values.len() < self.rows) {
            values.push_null();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: &[MessageColumn] = &[
        TYPE_COLUMN,
        MessageColumn::unsigned("size", 32),
        MessageColumn::decimal("price", 2),
        MessageColumn::boolean("last"),
    ];

    #[test]
    fn columns_without_a_value_are_null_in_their_row() {
        let mut rows = ColumnBuffers::new(SCHEMA);
        rows.put_text(0, "A");
        rows.put_decimal(2, -125);
        rows.end_row();
        rows.end_row();
        rows.put_boolean(3, true);
        rows.put_unsigned(1, u64::MAX);
        rows.put_text(0, "");
        rows.end_row();
        let values: Vec<&ColumnValues> = rows.columns().map(|(_, values)| values).collect();
        let ColumnValues::Text(texts) = values[0] else { panic!("{values:?}") };
        assert_eq!(texts.iter().collect::<Vec<_>>(), [Some("A"), None, Some("")]);
        assert_eq!(*values[1], ColumnValues::Unsigned(vec![None, None, Some(u64::MAX)]));
        assert_eq!(*values[2], ColumnValues::Decimal(vec![Some(-125), None, None]));
        assert_eq!(*values[3], ColumnValues::Boolean(vec![None, None, Some(true)]));
        assert_eq!(rows.rows(), 3);
        rows.clear();
        rows.put_unsigned(1, 1);
        rows.end_row();
        assert_eq!((rows.rows(), rows.columns().count()), (1, 4));
        assert!(rows.columns().all(|(_, values)| values.len() == 1));
    }
}
