//! Catalogues, schemas and tables of a session, and what the server says of itself.

use arrow::array::RecordBatch;
use arrow_flight::error::FlightError;
use arrow_flight::sql::metadata::{
    SqlInfoData, SqlInfoDataBuilder, XdbcTypeInfo, XdbcTypeInfoData, XdbcTypeInfoDataBuilder,
};
use arrow_flight::sql::{
    CommandGetCatalogs, CommandGetDbSchemas, CommandGetTables, Nullable, Searchable, SqlInfo,
    SqlSupportedCaseSensitivity, SqlSupportedTransaction, XdbcDataType,
};
use datafusion::catalog::CatalogProvider;
use datafusion::common::DataFusionError;
use evenfall_query_sql::QuerySession;
use std::sync::Arc;

use crate::outgoing::outgoing_schema;

/// The one kind of table.
pub(crate) const TABLE: &str = "TABLE";

/// Types of columns, their words in SQL, and the digits or characters that they hold.
const TYPES: [(&str, XdbcDataType, i32); 8] = [
    ("boolean", XdbcDataType::XdbcBit, 1),
    ("integer", XdbcDataType::XdbcInteger, 10),
    ("bigint", XdbcDataType::XdbcBigint, 19),
    ("double", XdbcDataType::XdbcDouble, 15),
    ("decimal", XdbcDataType::XdbcDecimal, 38),
    ("varchar", XdbcDataType::XdbcVarchar, i32::MAX),
    ("varbinary", XdbcDataType::XdbcVarbinary, i32::MAX),
    ("timestamp", XdbcDataType::XdbcTimestamp, 29),
];

fn catalog(session: &QuerySession) -> Option<(String, Arc<dyn CatalogProvider>)> {
    let name = session.catalog_name();
    let catalog = session.datafusion_context().catalog(&name)?;
    Some((name, catalog))
}

/// The catalogue of a session.
pub(crate) fn list_catalogs(
    session: &QuerySession,
    asked: CommandGetCatalogs,
) -> Result<RecordBatch, FlightError> {
    let mut catalogs = asked.into_builder();
    catalogs.append(session.catalog_name());
    catalogs.build()
}

/// The schemas of a session: recordings, and `public`.
pub(crate) fn list_schemas(
    session: &QuerySession,
    asked: CommandGetDbSchemas,
) -> Result<RecordBatch, FlightError> {
    let mut schemas = asked.into_builder();
    if let Some((name, catalog)) = catalog(session) {
        for schema in catalog.schema_names() {
            schemas.append(&name, schema);
        }
    }
    schemas.build()
}

/// The tables of a session, with their columns where they are asked for.
pub(crate) async fn list_tables(
    session: &QuerySession,
    asked: CommandGetTables,
) -> Result<Result<RecordBatch, FlightError>, DataFusionError> {
    let mut tables = asked.into_builder();
    let with_columns = tables.include_schema();
    if let Some((name, catalog)) = catalog(session) {
        for schema in catalog.schema_names() {
            let Some(provider) = catalog.schema(&schema) else { continue };
            for table in provider.table_names() {
                let columns = match with_columns {
                    true => provider.table(&table).await?.map(|table| table.schema()),
                    false => None,
                };
                let columns =
                    columns.unwrap_or_else(|| Arc::new(arrow::datatypes::Schema::empty()));
                let columns = outgoing_schema(&columns);
                if let Err(error) = tables.append(&name, &schema, &table, TABLE, &columns) {
                    return Ok(Err(error));
                }
            }
        }
    }
    Ok(tables.build())
}

/// What the server says of itself.
///
/// # Errors
/// None that could be mended: the values are fixed.
pub(crate) fn server_info() -> Result<SqlInfoData, FlightError> {
    let mut info = SqlInfoDataBuilder::new();
    info.append(SqlInfo::FlightSqlServerName, "evenfall");
    info.append(SqlInfo::FlightSqlServerVersion, env!("CARGO_PKG_VERSION"));
    // The version of the columnar format.
    info.append(SqlInfo::FlightSqlServerArrowVersion, "1.3");
    info.append(SqlInfo::FlightSqlServerReadOnly, true);
    info.append(SqlInfo::FlightSqlServerSql, true);
    info.append(SqlInfo::FlightSqlServerSubstrait, false);
    info.append(SqlInfo::FlightSqlServerTransaction, SqlSupportedTransaction::None as i32);
    info.append(SqlInfo::FlightSqlServerCancel, true);
    info.append(SqlInfo::FlightSqlServerStatementTimeout, 0);
    info.append(SqlInfo::FlightSqlServerTransactionTimeout, 0);
    info.append(SqlInfo::SqlDdlCatalog, false);
    info.append(SqlInfo::SqlDdlSchema, false);
    info.append(SqlInfo::SqlDdlTable, false);
    let lowercase = SqlSupportedCaseSensitivity::SqlCaseSensitivityLowercase as i32;
    let as_written = SqlSupportedCaseSensitivity::SqlCaseSensitivityCaseInsensitive as i32;
    info.append(SqlInfo::SqlIdentifierCase, i64::from(lowercase));
    info.append(SqlInfo::SqlIdentifierQuoteChar, "\"");
    info.append(SqlInfo::SqlQuotedIdentifierCase, i64::from(as_written));
    info.append(SqlInfo::SqlAllTablesAreSelectable, true);
    info.append(SqlInfo::SqlSearchStringEscape, "\\");
    info.append(SqlInfo::SqlSchemaTerm, "schema");
    info.append(SqlInfo::SqlCatalogTerm, "database");
    info.append(SqlInfo::SqlTransactionsSupported, false);
    info.build()
}

/// The types of columns.
///
/// # Errors
/// None that could be mended: the values are fixed.
pub(crate) fn type_info() -> Result<XdbcTypeInfoData, FlightError> {
    let mut types = XdbcTypeInfoDataBuilder::new();
    for (name, kind, size) in TYPES {
        types.append(XdbcTypeInfo {
            type_name: name.to_owned(),
            data_type: kind,
            column_size: Some(size),
            nullable: Nullable::NullabilityNullable,
            case_sensitive: true,
            searchable: Searchable::Full,
            local_type_name: Some(name.to_owned()),
            sql_data_type: kind,
            ..XdbcTypeInfo::default()
        });
    }
    types.build()
}
