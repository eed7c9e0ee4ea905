//! Columns with nulls, on their way to a Parquet file and out of it.

use bytes::Bytes;
use evenfall_store_format::columnar::MessageValues;
use parquet::column::reader::ColumnReader;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::schema::types::ColumnDescriptor;

use crate::encode::Values;
use crate::plan::ColumnKind;

/// The values that are there.
enum CellValues {
    Words(Vec<i32>),
    Longs(Vec<i64>),
    /// The texts one behind the other, and the end of each.
    Texts(Vec<u8>, Vec<usize>),
}

impl CellValues {
    fn new(kind: ColumnKind, rows: usize) -> Self {
        match kind {
            ColumnKind::Word => Self::Words(Vec::with_capacity(rows)),
            ColumnKind::Text => Self::Texts(Vec::new(), Vec::with_capacity(rows)),
            _ => Self::Longs(Vec::with_capacity(rows)),
        }
    }

    /// Some of the values.
    fn part(&self, from: usize, to: usize) -> Values {
        match self {
            Self::Words(values) => Values::Words(values[from..to].to_vec()),
            Self::Longs(values) => Values::Longs(values[from..to].to_vec()),
            Self::Texts(bytes, ends) => {
                let end_of = |at: usize| at.checked_sub(1).map_or(0, |at| ends[at]);
                let start = end_of(from);
                let bytes = Bytes::copy_from_slice(&bytes[start..end_of(to)]);
                let text = |at| ByteArray::from(bytes.slice(end_of(at) - start..ends[at] - start));
                Values::Texts((from..to).map(text).collect())
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Words(values) => values.len(),
            Self::Longs(values) => values.len(),
            Self::Texts(_, ends) => ends.len(),
        }
    }
}

/// A column that is filled row by row.
pub(super) struct Cells {
    values: CellValues,
    /// For each row whether it has a value; `None` for a column without nulls.
    levels: Option<Vec<i16>>,
}

impl Cells {
    pub(super) fn new(kind: ColumnKind, is_optional: bool, rows: usize) -> Self {
        let levels = is_optional.then(|| Vec::with_capacity(rows));
        Self { values: CellValues::new(kind, rows), levels }
    }

    /// Number of rows, those without a value included.
    pub(super) fn rows(&self) -> usize {
        self.levels.as_ref().map_or_else(|| self.values.len(), Vec::len)
    }

    fn level(&mut self, is_there: bool) {
        self.levels.iter_mut().for_each(|levels| levels.push(is_there.into()));
    }

    pub(super) fn push_null(&mut self) {
        self.level(false);
    }

    pub(super) fn push_number(&mut self, value: Option<i64>) {
        self.level(value.is_some());
        match (&mut self.values, value) {
            (CellValues::Words(values), Some(value)) => values.push(value as i32),
            (CellValues::Longs(values), Some(value)) => values.push(value),
            (CellValues::Texts(..), _) | (_, None) => {}
        }
    }

    pub(super) fn push_text(&mut self, value: Option<&[u8]>) {
        self.level(value.is_some());
        if let (CellValues::Texts(bytes, ends), Some(value)) = (&mut self.values, value) {
            bytes.extend_from_slice(value);
            ends.push(bytes.len());
        }
    }

    /// The whole column, as it is written.
    pub(super) fn finish(&self) -> (Values, Option<Vec<i16>>) {
        (self.values.part(0, self.values.len()), self.levels.clone())
    }

    /// The first rows of several groups, one behind the other.
    pub(super) fn sample(groups: &[&Self], rows: usize) -> (Values, Option<Vec<i16>>) {
        let mut all: Option<(Values, Option<Vec<i16>>)> = None;
        for group in groups {
            let levels = group.levels.as_ref().map(|levels| &levels[..rows.min(levels.len())]);
            let there = levels.map(|levels| levels.iter().filter(|level| **level > 0).count());
            let part = group.values.part(0, there.unwrap_or(rows).min(group.values.len()));
            match &mut all {
                None => all = Some((part, levels.map(<[i16]>::to_vec))),
                Some((values, all)) => {
                    values.append(part);
                    if let (Some(all), Some(levels)) = (all, levels) {
                        all.extend_from_slice(levels);
                    }
                }
            }
        }
        all.unwrap_or((Values::Longs(Vec::new()), None))
    }
}

/// A column of a stored group.
pub(super) struct CellsReader {
    words: Vec<i32>,
    longs: Vec<i64>,
    texts: Vec<ByteArray>,
    levels: Option<Vec<i16>>,
}

impl CellsReader {
    /// Reads a whole column.
    pub(super) fn read(
        reader: ColumnReader,
        of: &ColumnDescriptor,
        kind: ColumnKind,
        is_optional: bool,
        rows: usize,
    ) -> Result<Self, ParquetError> {
        let other_type = || ParquetError::General("a column of another type".into());
        if of.max_rep_level() != 0 || of.max_def_level() != i16::from(is_optional) {
            return Err(other_type());
        }
        let mut levels = is_optional.then(|| Vec::with_capacity(rows));
        let mut found =
            Self { words: Vec::new(), longs: Vec::new(), texts: Vec::new(), levels: None };
        let values = match (reader, kind) {
            (ColumnReader::Int32ColumnReader(mut from), ColumnKind::Word) => {
                from.read_records(rows, levels.as_mut(), None, &mut found.words)?;
                found.words.len()
            }
            (ColumnReader::Int64ColumnReader(mut from), ColumnKind::Long) => {
                from.read_records(rows, levels.as_mut(), None, &mut found.longs)?;
                found.longs.len()
            }
            (ColumnReader::ByteArrayColumnReader(mut from), ColumnKind::Text) => {
                from.read_records(rows, levels.as_mut(), None, &mut found.texts)?;
                found.texts.len()
            }
            _ => return Err(other_type()),
        };
        let there = levels.as_ref().map(|levels| levels.iter().filter(|level| **level > 0).count());
        let is_whole = values == there.unwrap_or(rows)
            && levels.as_ref().is_none_or(|levels: &Vec<i16>| levels.len() == rows);
        found.levels = levels;
        match is_whole {
            true => Ok(found),
            false => Err(ParquetError::General(format!("{values} values of {rows} rows"))),
        }
    }

    /// The numbers of a column of 64 bits without nulls.
    pub(super) fn longs(&self) -> &[i64] {
        &self.longs
    }

    /// The numbers of a column of 32 bits without nulls.
    pub(super) fn words(&self) -> &[i32] {
        &self.words
    }

    /// The first row.
    pub(super) fn first_row(&self) -> CellCursor<'_> {
        CellCursor { cells: self, row: 0, value: 0 }
    }

    /// Appends all rows.
    pub(super) fn append_to(&self, to: &mut MessageValues, rows: usize) {
        let mut cursor = self.first_row();
        for _ in 0..rows {
            match to {
                MessageValues::Numbers(values) => values.push(cursor.next_number()),
                MessageValues::Texts(values) => values.push(cursor.next_bytes()),
            }
        }
    }
}

/// Goes over the rows of a column.
pub(super) struct CellCursor<'a> {
    cells: &'a CellsReader,
    row: usize,
    value: usize,
}

impl<'a> CellCursor<'a> {
    /// The index of the next row's value among the values; `None` for a null.
    fn next_place(&mut self) -> Option<usize> {
        let row = self.row;
        self.row += 1;
        let is_there = self.cells.levels.as_ref().is_none_or(|levels| levels[row] > 0);
        is_there.then(|| {
            self.value += 1;
            self.value - 1
        })
    }

    /// The number of the next row.
    pub(super) fn next_number(&mut self) -> Option<i64> {
        let place = self.next_place()?;
        let word = self.cells.words.get(place).map(|word| i64::from(*word));
        word.or_else(|| self.cells.longs.get(place).copied())
    }

    /// The text of the next row.
    pub(super) fn next_text(&mut self) -> Option<&'a [u8]> {
        let place = self.next_place()?;
        self.cells.texts.get(place).map(ByteArray::data)
    }

    /// A copy of the text of the next row.
    pub(super) fn next_bytes(&mut self) -> Option<Bytes> {
        self.next_text().map(Bytes::copy_from_slice)
    }
}
