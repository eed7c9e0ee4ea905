//! PostgreSQL's own catalogue, as far as clients ask for it when they connect.
//!
//! datafusion-pg-catalog brings `pg_catalog` and rewrites statements about it. What clients ask
//! beyond that is here: `version()`, `current_setting`, and an `information_schema` whose columns
//! have PostgreSQL's types and not Arrow's.

mod subqueries;

use std::sync::{Arc, Mutex};

use arrow::array::{Array as _, Int64Array, StringArray};
use arrow::datatypes::DataType;
use async_trait::async_trait;
use datafusion::catalog::information_schema::{INFORMATION_SCHEMA, InformationSchemaProvider};
use datafusion::catalog::view::ViewTable;
use datafusion::catalog::{SchemaProvider, TableProvider};
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::datasource::provider_as_source;
use datafusion::logical_expr::{
    ColumnarValue, LogicalPlanBuilder, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    TypeSignature, Volatility, col, create_udf,
};
use datafusion_pg_catalog::pg_catalog::context::EmptyContextProvider;
use evenfall_query_sql::QuerySession;
use pgwire::api::Type;

pub(crate) use self::subqueries::answer_empty_subqueries;
use crate::settings::ConnectionSettings;

/// What `version()` answers. SQLAlchemy refuses a server whose version begins otherwise.
const VERSION: &str = concat!("PostgreSQL 16.6 (evenfall ", env!("CARGO_PKG_VERSION"), ")");

/// Adds the catalogue to a session.
///
/// # Errors
/// None that a client could mend.
pub(crate) fn add_catalogue(
    session: &QuerySession,
    database: &str,
    settings: &Arc<Mutex<ConnectionSettings>>,
) -> Result<()> {
    let context = session.datafusion_context();
    datafusion_pg_catalog::pg_catalog::setup_pg_catalog(context, database, EmptyContextProvider)
        .map_err(|error| *error)?;
    context.register_udf(create_udf(
        "version",
        Vec::new(),
        DataType::Utf8,
        Volatility::Stable,
        Arc::new(|_| Ok(ColumnarValue::Scalar(ScalarValue::from(VERSION)))),
    ));
    context.register_udf(CurrentSetting::of(settings));
    // Nobody holds a lock here, and pools of connections give all of them back.
    context.register_udf(create_udf(
        "pg_advisory_unlock_all",
        Vec::new(),
        DataType::Utf8,
        Volatility::Stable,
        Arc::new(|_| Ok(ColumnarValue::Scalar(ScalarValue::from("")))),
    ));
    context.register_udf(create_udf(
        "to_regtype",
        vec![DataType::Utf8],
        DataType::Int64,
        Volatility::Immutable,
        Arc::new(|args| {
            let arrays = ColumnarValue::values_to_arrays(args)?;
            let Some(names) = arrays[0].as_any().downcast_ref::<StringArray>() else {
                return exec_err!("to_regtype takes the name of a type");
            };
            let oids = names.iter().map(|name| name.and_then(type_oid));
            Ok(ColumnarValue::Array(Arc::new(oids.collect::<Int64Array>())))
        }),
    ));
    let catalogs = Arc::clone(context.state().catalog_list());
    let inner = InformationSchemaProvider::new(catalogs);
    let Some(catalog) = context.catalog(database) else { return Ok(()) };
    // The engine's own schema of this name goes before all others, until it is switched off.
    context.state_ref().write().config_mut().options_mut().catalog.information_schema = false;
    catalog.register_schema(INFORMATION_SCHEMA, Arc::new(PgInformationSchema(inner)))?;
    Ok(())
}

/// `information_schema` with the types of PostgreSQL.
#[derive(Debug)]
struct PgInformationSchema(InformationSchemaProvider);

#[async_trait]
impl SchemaProvider for PgInformationSchema {
    fn table_names(&self) -> Vec<String> {
        self.0.table_names()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let table = self.0.table(name).await?;
        match table {
            Some(columns) if name == "columns" => with_postgres_types(columns).map(Some),
            table => Ok(table),
        }
    }

    fn table_exist(&self, name: &str) -> bool {
        self.0.table_exist(name)
    }
}

/// The columns of all tables, whose `data_type` and `udt_name` are PostgreSQL's words.
fn with_postgres_types(columns: Arc<dyn TableProvider>) -> Result<Arc<dyn TableProvider>> {
    let words = |long: bool| {
        let name = if long { "pg_type_words" } else { "pg_type_name" };
        let function = move |args: &[ColumnarValue]| {
            let arrays = ColumnarValue::values_to_arrays(args)?;
            let kinds = arrow::compute::cast(&arrays[0], &DataType::Utf8)?;
            let Some(kinds) = kinds.as_any().downcast_ref::<StringArray>() else {
                return exec_err!("types of columns are text");
            };
            let words = kinds.iter().map(|kind| kind.map(|kind| postgres_type(kind, long)));
            Ok(ColumnarValue::Array(Arc::new(words.collect::<StringArray>())))
        };
        let kinds = vec![DataType::Utf8];
        create_udf(name, kinds, DataType::Utf8, Volatility::Immutable, Arc::new(function))
    };
    let schema = columns.schema();
    let kept = schema.fields().iter().map(|field| match field.name().as_str() {
        "data_type" => words(true).call(vec![col("data_type")]).alias("data_type"),
        name => col(name),
    });
    let short = words(false).call(vec![col("data_type")]).alias("udt_name");
    let plan = LogicalPlanBuilder::scan("columns", provider_as_source(columns), None)?;
    let plan = plan.project(kept.chain([short]))?.build()?;
    Ok(Arc::new(ViewTable::new(plan, None)))
}

/// PostgreSQL's words for a type of Arrow, by its printed name.
fn postgres_type(kind: &str, long: bool) -> &'static str {
    let (words, name) = match kind {
        "Boolean" => ("boolean", "bool"),
        "Int8" | "UInt8" | "Int16" => ("smallint", "int2"),
        "UInt16" | "Int32" => ("integer", "int4"),
        "UInt32" | "Int64" | "UInt64" => ("bigint", "int8"),
        "Float16" | "Float32" => ("real", "float4"),
        "Float64" => ("double precision", "float8"),
        "Date32" | "Date64" => ("date", "date"),
        "Binary" | "LargeBinary" | "BinaryView" => ("bytea", "bytea"),
        _ if kind.starts_with("Decimal") => ("numeric", "numeric"),
        _ if kind.starts_with("Time32") || kind.starts_with("Time64") => {
            ("time without time zone", "time")
        }
        _ if kind.starts_with("Interval") || kind.starts_with("Duration") => {
            ("interval", "interval")
        }
        // A zone stands in quotes behind the unit.
        _ if kind.starts_with("Timestamp") && kind.contains('"') => {
            ("timestamp with time zone", "timestamptz")
        }
        _ if kind.starts_with("Timestamp") => ("timestamp without time zone", "timestamp"),
        _ if kind.contains("List") => ("ARRAY", "_text"),
        _ => ("text", "text"),
    };
    if long { words } else { name }
}

/// The number of a type by its name. Types that columns do not have here have none.
fn type_oid(name: &str) -> Option<i64> {
    let kind = match name {
        "bool" | "boolean" => Type::BOOL,
        "bytea" => Type::BYTEA,
        "int2" | "smallint" => Type::INT2,
        "int4" | "integer" => Type::INT4,
        "int8" | "bigint" => Type::INT8,
        "float4" | "real" => Type::FLOAT4,
        "float8" | "double precision" => Type::FLOAT8,
        "numeric" | "decimal" => Type::NUMERIC,
        "text" => Type::TEXT,
        "date" => Type::DATE,
        "timestamp" | "timestamp without time zone" => Type::TIMESTAMP,
        "timestamptz" | "timestamp with time zone" => Type::TIMESTAMPTZ,
        _ => return None,
    };
    Some(i64::from(kind.oid()))
}

/// The SQL function `current_setting(name)` answers with the setting of this connection.
#[derive(Debug)]
struct CurrentSetting {
    settings: Arc<Mutex<ConnectionSettings>>,
    signature: Signature,
}

impl CurrentSetting {
    fn of(settings: &Arc<Mutex<ConnectionSettings>>) -> ScalarUDF {
        let text = || DataType::Utf8;
        let forms = vec![
            TypeSignature::Exact(vec![text()]),
            TypeSignature::Exact(vec![text(), DataType::Boolean]),
        ];
        let signature = Signature::one_of(forms, Volatility::Volatile);
        ScalarUDF::from(Self { settings: Arc::clone(settings), signature })
    }
}

impl PartialEq for CurrentSetting {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.settings, &other.settings)
    }
}

impl Eq for CurrentSetting {}

impl std::hash::Hash for CurrentSetting {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.settings).hash(state);
    }
}

impl ScalarUDFImpl for CurrentSetting {
    fn name(&self) -> &str {
        "current_setting"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let Some(ColumnarValue::Scalar(ScalarValue::Utf8(Some(name)))) = args.args.first() else {
            return exec_err!("current_setting takes the name of a setting");
        };
        let settings = self.settings.lock().expect("no panic holds the lock");
        let value = settings.value(name).map(str::to_owned);
        if value.is_none() && args.args.len() == 1 {
            return exec_err!("unrecognized configuration parameter \"{name}\"");
        }
        Ok(ColumnarValue::Scalar(ScalarValue::Utf8(value)))
    }
}

/// A text about the catalogue in words that the catalogue knows: functions of input and output are
/// named there and not numbered, so that none of them is compared with a number. The engine has one
/// sign that escapes a pattern; the catalogue has no name in which it would make a difference.
pub(crate) fn known_words(sql: &str) -> String {
    let sql = sql.replace("typreceive != 0", "typreceive <> '-'");
    sql.replace("typsend != 0", "typsend <> '-'").replace("ESCAPE '/'", "")
}

/// Whether a text is about PostgreSQL's own catalogue or functions.
pub(crate) fn names_catalogue(sql: &str) -> bool {
    let lower = sql.to_ascii_lowercase();
    let words = [
        "pg_",
        "information_schema",
        "version()",
        "current_",
        "has_",
        "::reg",
        "quote_ident",
        "parse_ident",
        "format_type",
        "array_upper",
        "session_user",
    ];
    words.iter().any(|word| lower.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_statement_is_not_rewritten() {
        let sql = "SELECT symbol, vwap(price, shares) FROM trades GROUP BY symbol";
        assert!(!names_catalogue(sql));
        assert!(names_catalogue("SELECT oid FROM pg_class"));
    }

    #[test]
    fn types_have_the_words_of_postgresql() {
        assert_eq!(postgres_type("Decimal128(18, 4)", true), "numeric");
        assert_eq!(postgres_type("Timestamp(ns, \"UTC\")", false), "timestamptz");
        assert_eq!(postgres_type("Timestamp(ns)", true), "timestamp without time zone");
        assert_eq!(postgres_type("Utf8View", true), "text");
    }
}
