//! Opening: the store's tables, and the tables that a user adds.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use evenfall_query_sql::datafusion::catalog::TableProvider;
use evenfall_query_sql::datafusion::datasource::file_format::options::ArrowReadOptions;
use evenfall_query_sql::datafusion::prelude::{CsvReadOptions, ParquetReadOptions, SessionContext};
use evenfall_query_sql::{QueryEngine, error_words};
use evenfall_store_engine::RecordSource;
use evenfall_store_recording::{StoreTables, open_source};
use tokio::runtime::Handle;

use crate::{EngineArgs, NamedFile};

type Failure = Box<dyn std::error::Error>;

/// The engine of these arguments.
///
/// # Errors
/// The errors of opening the store, and files that are no tables.
pub(crate) fn open_engine(args: &EngineArgs, runtime: &Handle) -> Result<QueryEngine, Failure> {
    let tables = Arc::new(StoreTables::new(open_place(&args.place)?));
    let mut added: BTreeMap<String, Arc<dyn TableProvider>> = BTreeMap::new();
    for table in &args.tables {
        let provider = runtime.block_on(file_table(table))?;
        if added.insert(table.name.clone(), provider).is_some() {
            return Err(format!("--table names {} twice", table.name).into());
        }
    }
    Ok(QueryEngine::new(tables, added, args.limits())?.with_desk(args.desk.source()?))
}

/// The source of a place.
fn open_place(place: &str) -> Result<Arc<dyn RecordSource>, Failure> {
    if !place.contains("://") && !Path::new(place).is_dir() {
        return Err(format!("{place}: there is no such directory").into());
    }
    Ok(open_source(place)?)
}

async fn file_table(table: &NamedFile) -> Result<Arc<dyn TableProvider>, Failure> {
    let path = table.file.to_str().ok_or("--table takes a file whose name is UTF-8")?;
    let refused = |why: &str| Failure::from(format!("--table {}={path}: {why}", table.name));
    match std::fs::metadata(path) {
        Ok(about) if !about.is_file() => return Err(refused("this is no file")),
        // The engine takes an empty file for a table without columns.
        Ok(about) if about.len() == 0 => return Err(refused("the file is empty")),
        Ok(_) => {}
        Err(_) => return Err(refused("there is no such file")),
    }
    let ending = table.file.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    let context = SessionContext::new();
    let rows = match ending {
        "csv" => context.read_csv(path, CsvReadOptions::new()).await,
        "parquet" => context.read_parquet(path, ParquetReadOptions::default()).await,
        "arrow" => context.read_arrow(path, ArrowReadOptions::default()).await,
        _ => return Err(refused("the name must end in .csv, .parquet or .arrow")),
    };
    let rows = rows.map_err(|error| refused(&error_words(&error)))?;
    Ok(rows.into_view())
}
