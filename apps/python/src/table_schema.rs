//! The schema of a user's table, as Python states it, and the table in the store.

use std::sync::Arc;

use evenfall::recording::Catalog;
use evenfall::store::{Field, FieldType, Schema, Store, StoreError};
use evenfall_store_recording::connect_to;
use evenfall_store_recording::names::check_new_name;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{RowsError, store_error, wrong_argument};
use crate::place::StorePlace;

/// The types of fields, for errors.
const TYPES: &str = "time, u8, u16, u32, u64, i64, f64, price, or bytes:8 for eight bytes";

/// The schema of a table whose fields lie one behind the other.
pub(crate) fn schema_of(
    fields: &Bound<'_, PyDict>,
    price_decimals: u8,
    window_ns: u64,
    sequence: Option<String>,
) -> PyResult<Schema> {
    let mut schema = Schema::of(&[]);
    let mut end: usize = 0;
    for (name, kind) in fields.iter() {
        let (name, word): (String, String) = (name.extract()?, kind.extract()?);
        let (kind, len) = field_type(&word).ok_or_else(|| {
            wrong_argument(format!("field {name}: {word:?} is no type; the types are {TYPES}"))
        })?;
        let offset = u16::try_from(end)
            .map_err(|_| wrong_argument(format!("field {name} begins beyond 65,535 bytes")))?;
        end += usize::from(len);
        schema.fields.push(Field { name, offset, len, kind, aggregate: false });
    }
    schema.record_bytes =
        u16::try_from(end).map_err(|_| wrong_argument("the fields take more than 65,535 bytes"))?;
    schema.price_decimals = price_decimals;
    schema.arrival.window_ns = window_ns;
    schema.arrival.sequence = sequence.unwrap_or_default();
    schema.check().map_err(|error| wrong_argument(error.to_string()))?;
    Ok(schema)
}

/// The type of a word, and its bytes.
fn field_type(word: &str) -> Option<(FieldType, u16)> {
    if let Some(len) = word.strip_prefix("bytes:") {
        return Some((FieldType::Bytes, len.parse().ok().filter(|len| *len > 0)?));
    }
    let kind: FieldType = serde_json::from_value(serde_json::Value::from(word)).ok()?;
    Some((kind, u16::try_from(kind.bytes()?).ok()?))
}

/// Creates a table. A missing directory of the store is made first. A table of this name with the
/// same schema stays as it is.
pub(crate) fn create_table(place: &Arc<StorePlace>, name: &str, schema: &Schema) -> PyResult<()> {
    let failed = |error: StoreError| store_error(&error);
    check_new_name(name).map_err(|error| wrong_argument(format!("name {name:?}: {error}")))?;
    if place.is_served() {
        let catalog = place.catalog()?;
        catalog.expect_free(name, schema).map_err(|error| wrong_argument(error.to_string()))?;
        let mut client = connect_to(place.name()).map_err(failed)?;
        return client.create(name, schema).map(drop).map_err(failed);
    }
    let store = place.open_to_write()?;
    let made = create_in(&store, name, schema);
    let closed = store.close().map_err(failed);
    made.and(closed)
}

fn create_in(store: &Store, name: &str, schema: &Schema) -> PyResult<()> {
    let catalog = Catalog::read(store).map_err(RowsError::from)?;
    catalog.expect_free(name, schema).map_err(|error| wrong_argument(error.to_string()))?;
    store.create(name, schema).map(drop).map_err(|error| store_error(&error))
}
