//! The meaning of the bytes of a record.
//!
//! The store itself needs only the length and the time in the first eight bytes; names and types
//! are for programs that print, export or sum. Types are those of feeds: integers, fixed-point
//! prices, floats and short text. A schema is kept as JSON beside the file's name.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::index::{AGGREGATES_MAX, Aggregate, Geometry};
use crate::layout::Layout;

/// The type of a field; all little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FieldType {
    /// Nanoseconds since 1970.
    Time,
    /// One byte without sign.
    U8,
    /// Two bytes without sign.
    U16,
    /// Four bytes without sign.
    U32,
    /// Eight bytes without sign.
    U64,
    /// Eight bytes with sign.
    I64,
    /// A price: an `i64` in units of `10^-price_decimals`.
    Price,
    /// A float of eight bytes.
    F64,
    /// Text or bytes of any length.
    Bytes,
}

impl FieldType {
    /// Size of the type in bytes; `None` when each field states its own size.
    pub fn bytes(self) -> Option<usize> {
        match self {
            Self::U8 => Some(1),
            Self::U16 => Some(2),
            Self::U32 => Some(4),
            Self::Time | Self::U64 | Self::I64 | Self::Price | Self::F64 => Some(8),
            Self::Bytes => None,
        }
    }
}

/// One field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its first byte in the record.
    pub offset: u16,
    /// Its bytes.
    pub len: u16,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: FieldType,
    /// Whether the index keeps sum, least and greatest.
    #[serde(default)]
    pub aggregate: bool,
}

/// The treatment of the two sides of a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sides {
    /// The first copy of each packet is kept.
    One,
    /// The sides are kept apart, as two recordings.
    Apart,
    /// Both sides are kept in one recording, as they were captured.
    Both,
}

/// The order in which records arrive at a file. Programs that append from a feed or a table follow
/// these settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrivalOrder {
    /// Window in which late records are sorted in before they are appended. Duplicates are dropped,
    /// and records beyond the window are refused. With zero, records must arrive in order of time.
    #[serde(default)]
    pub window_ns: u64,
    /// The field that numbers the records. This number orders records of equal times, and
    /// identifies duplicates. Without such a field, the position in the appended data is used.
    #[serde(default)]
    pub sequence: String,
    /// The sides of the feed, if it has two.
    #[serde(default)]
    pub sides: Option<Sides>,
    /// The symbol of a feed whose messages name none, such as LOBSTER's, or empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub symbol: String,
}

impl ArrivalOrder {
    fn is_plain(&self) -> bool {
        *self == Self::default()
    }
}

/// The meaning of a file's records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schema {
    /// Bytes of a record.
    pub record_bytes: u16,
    /// The fields, the first of them the time.
    pub fields: Vec<Field>,
    /// Decimals of [`FieldType::Price`].
    #[serde(default)]
    pub price_decimals: u8,
    /// The trading date, `YYYY-MM-DD`, or empty.
    #[serde(default)]
    pub trading_date: String,
    /// The zone that the date and the venue's clock are in, or empty.
    #[serde(default)]
    pub zone: String,
    /// The order in which records arrive.
    #[serde(default, skip_serializing_if = "ArrivalOrder::is_plain")]
    pub arrival: ArrivalOrder,
}

impl Schema {
    /// Records of which only the time is known.
    pub fn opaque(record_bytes: u16) -> Self {
        let mut schema = Self::of(&[("time", FieldType::Time)]);
        if record_bytes > 8 {
            let len = record_bytes - 8;
            let kind = FieldType::Bytes;
            let rest = Field { name: "body".into(), offset: 8, len, kind, aggregate: false };
            schema.fields.push(rest);
        }
        schema.record_bytes = record_bytes;
        schema
    }

    /// Fields of fixed size, one behind the other. A field of [`FieldType::Bytes`] has no place
    /// here.
    ///
    /// # Panics
    /// On such a field, or past 65,535 bytes.
    pub fn of(fields: &[(&str, FieldType)]) -> Self {
        let mut offset = 0u16;
        let place = |(name, kind): &(&str, FieldType)| {
            let len = kind.bytes().expect("a field of a fixed size") as u16;
            let name = (*name).to_owned();
            let field = Field { name, offset, len, kind: *kind, aggregate: false };
            offset += len;
            field
        };
        let fields = fields.iter().map(place).collect();
        let (date, zone) = (String::new(), String::new());
        let arrival = ArrivalOrder::default();
        Self { record_bytes: offset, fields, price_decimals: 0, trading_date: date, zone, arrival }
    }

    /// The same with aggregates of these fields.
    pub fn with_aggregates(mut self, names: &[&str]) -> Self {
        for field in &mut self.fields {
            field.aggregate |= names.contains(&field.name.as_str());
        }
        self
    }

    /// Checks the schema.
    ///
    /// # Errors
    /// [`Error::Schema`] or [`Error::RecordLength`], saying which field and why.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::Schema { what });
        Layout::new(usize::from(self.record_bytes))?;
        match self.fields.first() {
            Some(first) if first.offset == 0 && first.kind == FieldType::Time => {}
            _ => return wrong("the first field must be the time, at byte 0".into()),
        }
        for (at, field) in self.fields.iter().enumerate() {
            let name = &field.name;
            let end = u32::from(field.offset) + u32::from(field.len);
            if field.kind.bytes().is_some_and(|bytes| bytes != usize::from(field.len)) {
                return wrong(format!("field {name} has {} bytes, unlike its type", field.len));
            }
            if end > u32::from(self.record_bytes) || field.len == 0 {
                return wrong(format!("field {name} is not inside the record"));
            }
            if self.fields[..at].iter().any(|other| other.name == *name) {
                return wrong(format!("two fields are named {name}"));
            }
            if field.aggregate && matches!(field.kind, FieldType::Bytes | FieldType::F64) {
                return wrong(format!("field {name} is not a whole number: it has no exact sum"));
            }
        }
        let sequence = &self.arrival.sequence;
        let numbers = |field: &Field| !matches!(field.kind, FieldType::Bytes | FieldType::F64);
        if !sequence.is_empty() && !self.field(sequence).is_some_and(numbers) {
            return wrong(format!("the sequence {sequence} must be a field of whole numbers"));
        }
        if self.aggregates().count() > AGGREGATES_MAX {
            return wrong(format!("more than {AGGREGATES_MAX} aggregate fields"));
        }
        Ok(())
    }

    /// The fields with aggregates.
    pub fn aggregates(&self) -> impl Iterator<Item = &Field> {
        self.fields.iter().filter(|field| field.aggregate)
    }

    /// The field of this name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// The layout of the records.
    ///
    /// # Errors
    /// [`Error::RecordLength`].
    pub fn layout(&self) -> Result<Layout> {
        Layout::new(usize::from(self.record_bytes))
    }

    /// The geometry of the index.
    ///
    /// # Errors
    /// [`Error::Schema`].
    pub fn geometry(&self) -> Result<Geometry> {
        Geometry::new(self.aggregates().count())
    }
}

impl Field {
    /// The field's bytes in a record of its schema.
    pub fn of<'a>(&self, record: &'a [u8]) -> &'a [u8] {
        &record[usize::from(self.offset)..usize::from(self.offset) + usize::from(self.len)]
    }

    /// The value of an integer field; zero for a field of another type.
    pub fn whole(&self, record: &[u8]) -> i128 {
        let bytes = self.of(record);
        let mut wide = [0; 8];
        match self.kind {
            FieldType::Bytes | FieldType::F64 => 0,
            FieldType::Time | FieldType::I64 | FieldType::Price => {
                wide.copy_from_slice(bytes);
                i128::from(i64::from_le_bytes(wide))
            }
            FieldType::U8 | FieldType::U16 | FieldType::U32 | FieldType::U64 => {
                wide[..bytes.len()].copy_from_slice(bytes);
                i128::from(u64::from_le_bytes(wide))
            }
        }
    }

    /// [`Aggregate`] over records that lie one behind the other.
    pub fn aggregate_of(&self, records: &[u8], record_bytes: usize) -> Aggregate {
        let mut values = records.chunks_exact(record_bytes).map(|record| self.whole(record));
        let mut all = Aggregate::of(values.next().unwrap_or(0));
        values.for_each(|value| all.merge(&Aggregate::of(value)));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_survives_json_and_its_check() {
        let fields = [("time", FieldType::Time), ("px", FieldType::Price), ("n", FieldType::U32)];
        let schema = Schema::of(&fields).with_aggregates(&["px"]);
        schema.check().unwrap();
        assert_eq!(schema.record_bytes, 20);
        assert_eq!(schema.geometry().unwrap().aggregates(), 1);
        Schema::opaque(16).check().unwrap();
        Schema::opaque(8).check().unwrap();
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let good = Schema::of(&[("time", FieldType::Time), ("a", FieldType::U64)]);
        let mut late = good.clone();
        late.fields[0].offset = 8;
        let mut twice = good.clone();
        twice.fields[1].name = "time".into();
        let mut outside = good.clone();
        outside.fields[1].offset = 9;
        let mut thin = good;
        thin.fields[1].len = 4;
        let mut unnumbered = Schema::opaque(16);
        unnumbered.arrival.sequence = "body".into();
        assert!(unnumbered.check().is_err());
        for schema in [late, twice, outside, thin, Schema::opaque(7)] {
            assert!(schema.check().is_err(), "{schema:?}");
        }
    }
}
