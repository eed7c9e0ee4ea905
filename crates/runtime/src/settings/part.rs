//! Reads one table of a text as the type of its owner. A mistake has its line and column.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::Error as PlainError;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor,
};

/// The table of this name, if the text has one.
pub(super) fn of<T: DeserializeOwned>(
    text: &str,
    table: &str,
) -> Result<Option<T>, toml::de::Error> {
    Pick { table, of: PhantomData }.deserialize(toml::Deserializer::parse(text)?)
}

struct Pick<'a, T> {
    table: &'a str,
    of: PhantomData<T>,
}

impl<'de, T: DeserializeOwned> DeserializeSeed<'de> for Pick<'_, T> {
    type Value = Option<T>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de, T: DeserializeOwned> Visitor<'de> for Pick<'_, T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tables of settings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut tables: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(name) = tables.next_key::<String>()? {
            if name == self.table {
                found = Some(tables.next_value()?);
            } else {
                tables.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// The keys of a struct, as its own deserializer names them; empty for a type that is no struct.
pub fn keys_of<T: DeserializeOwned>() -> &'static [&'static str] {
    let fields = Cell::new(&[][..]);
    // Reading ends where the fields are named, because there is nothing to read.
    drop(T::deserialize(Fields(&fields)));
    fields.get()
}

struct Fields<'a>(&'a Cell<&'static [&'static str]>);

impl<'de> Deserializer<'de> for Fields<'_> {
    type Error = PlainError;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, PlainError> {
        self.0.set(fields);
        Err(PlainError::custom("only the names"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, PlainError> {
        Err(PlainError::custom("no struct"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}
