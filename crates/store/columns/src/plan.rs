//! Which column of a Parquet file has which bytes of a row.

use std::ops::Range;
use std::sync::Arc;

use evenfall_store_format::{Field, FieldType, Schema};
use parquet::basic::{LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::schema::types::{Type, TypePtr};

/// The most digits that a decimal of 64 bits may have in Parquet.
const LONG_DIGITS: u32 = 18;
/// Bytes and digits of a decimal that holds any price.
pub(crate) const WIDE_BYTES: usize = 9;
const WIDE_DIGITS: i32 = 19;
/// Name of the column of bytes that no field covers. More lines go in front of a name that a field
/// has already.
const REST: &str = "_rest";

/// How the values of a column are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    /// Numbers of one, two or four bytes, as 32 bits.
    Word,
    /// Numbers of eight bytes, as they are.
    Long,
    /// Prices with more digits than a decimal of 64 bits has, as nine bytes, the greatest first.
    Wide,
    /// Floats of eight bytes.
    Double,
    /// Bytes of a fixed number.
    Fixed,
    /// Text or bytes of any length, which messages have and fields of a schema do not.
    Text,
}

impl ColumnKind {
    pub(crate) fn physical_type(self) -> Physical {
        match self {
            Self::Word => Physical::INT32,
            Self::Long => Physical::INT64,
            Self::Double => Physical::DOUBLE,
            Self::Wide | Self::Fixed => Physical::FIXED_LEN_BYTE_ARRAY,
            Self::Text => Physical::BYTE_ARRAY,
        }
    }
}

/// A column, and the bytes of a row that it has.
#[derive(Clone, Debug)]
pub(crate) struct ColumnPlan {
    pub name: String,
    pub kind: ColumnKind,
    /// Places in the row. All kinds but [`ColumnKind::Fixed`] have one.
    pub pieces: Vec<Range<usize>>,
    field: Option<FieldType>,
    decimals: u8,
}

impl ColumnPlan {
    fn of(schema: &Schema, field: &Field, is_wide: bool) -> Self {
        let kind = match field.kind {
            FieldType::U8 | FieldType::U16 | FieldType::U32 => ColumnKind::Word,
            FieldType::Price if is_wide => ColumnKind::Wide,
            FieldType::Time | FieldType::U64 | FieldType::I64 | FieldType::Price => {
                ColumnKind::Long
            }
            FieldType::F64 => ColumnKind::Double,
            FieldType::Bytes => ColumnKind::Fixed,
        };
        let from = usize::from(field.offset);
        let place = from..from + usize::from(field.len);
        let (name, field) = (field.name.clone(), Some(field.kind));
        Self { name, kind, pieces: vec![place], field, decimals: schema.price_decimals }
    }

    /// Bytes of a row in this column.
    pub fn bytes(&self) -> usize {
        self.pieces.iter().map(Range::len).sum()
    }

    /// Whether other readers see a decimal, and not a whole number.
    fn is_decimal(&self) -> bool {
        // A decimal has no more decimals than digits. A price with more is a whole number here.
        self.field == Some(FieldType::Price) && u32::from(self.decimals) <= LONG_DIGITS
    }

    fn logical_type(&self) -> Option<LogicalType> {
        let decimals = i32::from(self.decimals);
        match self.field? {
            FieldType::Time => Some(LogicalType::timestamp(true, TimeUnit::NANOS)),
            FieldType::U8 => Some(LogicalType::integer(8, false)),
            FieldType::U16 => Some(LogicalType::integer(16, false)),
            FieldType::U32 => Some(LogicalType::integer(32, false)),
            FieldType::U64 => Some(LogicalType::integer(64, false)),
            FieldType::Price if self.kind == ColumnKind::Wide => {
                Some(LogicalType::decimal(decimals, WIDE_DIGITS))
            }
            FieldType::Price if self.is_decimal() => {
                Some(LogicalType::decimal(decimals, LONG_DIGITS as i32))
            }
            FieldType::Price | FieldType::I64 | FieldType::F64 | FieldType::Bytes => None,
        }
    }

    pub(crate) fn parquet_type(&self) -> parquet::errors::Result<TypePtr> {
        let logical = self.logical_type();
        let mut builder = Type::primitive_type_builder(&self.name, self.kind.physical_type())
            .with_repetition(Repetition::REQUIRED);
        builder = match self.kind {
            ColumnKind::Wide => builder.with_length(WIDE_BYTES as i32),
            ColumnKind::Fixed => builder.with_length(self.bytes() as i32),
            _ => builder,
        };
        if let Some(LogicalType::Decimal(decimal)) = &logical {
            builder = builder.with_precision(decimal.precision).with_scale(decimal.scale);
        }
        Ok(Arc::new(builder.with_logical_type(logical).build()?))
    }
}

/// The columns of these rows, in the order of the fields, then the bytes that no field covers.
/// `is_wide` tells of a price whether its values have more digits than fit into 64 bits.
pub(crate) fn plan(schema: &Schema, is_wide: &dyn Fn(&Field) -> bool) -> Vec<ColumnPlan> {
    let decimals = u32::from(schema.price_decimals);
    let wide =
        |field: &Field| field.kind == FieldType::Price && decimals <= LONG_DIGITS && is_wide(field);
    let of = |field: &Field| ColumnPlan::of(schema, field, wide(field));
    let mut columns: Vec<ColumnPlan> = schema.fields.iter().map(of).collect();
    let pieces = uncovered_bytes(schema);
    if !pieces.is_empty() {
        let mut name = REST.to_owned();
        while schema.field(&name).is_some() {
            name.insert(0, '_');
        }
        let kind = ColumnKind::Fixed;
        columns.push(ColumnPlan { name, kind, pieces, field: None, decimals: 0 });
    }
    columns
}

/// Whether this price has more digits than a decimal of 64 bits.
pub(crate) fn is_wide_price(price: i64) -> bool {
    price.unsigned_abs() >= 10u64.pow(LONG_DIGITS)
}

/// The bytes of a row that no field covers. Fields may overlap.
fn uncovered_bytes(schema: &Schema) -> Vec<Range<usize>> {
    let mut fields: Vec<Range<usize>> = (schema.fields.iter())
        .map(|field| usize::from(field.offset)..usize::from(field.offset + field.len))
        .collect();
    fields.sort_unstable_by_key(|range| range.start);
    let (mut pieces, mut at) = (Vec::new(), 0);
    for field in fields {
        if field.start > at {
            pieces.push(at..field.start);
        }
        at = at.max(field.end);
    }
    let end = usize::from(schema.record_bytes);
    if end > at {
        pieces.push(at..end);
    }
    pieces
}

/// The schema of the Parquet file.
pub(crate) fn parquet_schema(
    columns: impl Iterator<Item = parquet::errors::Result<TypePtr>>,
) -> parquet::errors::Result<TypePtr> {
    let message = Type::group_type_builder("rows").with_fields(columns.collect::<Result<_, _>>()?);
    Ok(Arc::new(message.build()?))
}
