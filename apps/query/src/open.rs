//! Opening: the store's tables, and the tables that a user adds.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use evenfall_query_sql::QueryEngine;
use evenfall_query_sql::datafusion::catalog::TableProvider;
use evenfall_query_sql::datafusion::datasource::file_format::options::ArrowReadOptions;
use evenfall_query_sql::datafusion::prelude::{CsvReadOptions, ParquetReadOptions, SessionContext};
use evenfall_store_engine::{
    Archive, Client, Names, RecordSource, RemoteSource, Store, StoreConfig,
};
use evenfall_store_recording::tables::StoreTables;
use tokio::runtime::Handle;

use crate::{EngineArgs, NamedFile};

type Failure = Box<dyn std::error::Error>;

/// The engine of these arguments.
///
/// # Errors
/// The errors of opening the store, and files that are no tables.
pub(crate) fn open_engine(args: &EngineArgs, runtime: &Handle) -> Result<QueryEngine, Failure> {
    let tables = Arc::new(StoreTables::new(open_source(&args.place)?));
    let mut added: BTreeMap<String, Arc<dyn TableProvider>> = BTreeMap::new();
    for table in &args.tables {
        let provider = runtime.block_on(file_table(table))?;
        if added.insert(table.name.clone(), provider).is_some() {
            return Err(format!("--table names {} twice", table.name).into());
        }
    }
    Ok(QueryEngine::new(tables, added, args.limits())?)
}

/// The source of a place: a server, the names of a cluster, or a directory. A directory without a
/// store is one of objects alone.
fn open_source(place: &str) -> Result<Arc<dyn RecordSource>, Failure> {
    if let Some(address) = place.strip_prefix("tcp://") {
        let wrong = |error| format!("{place}: {error}: write tcp://127.0.0.1:7410");
        let client = Client::connect(address.parse().map_err(wrong)?)?;
        return Ok(Arc::new(RemoteSource::new(client)));
    }
    if place.contains("://") {
        return Ok(Arc::new(Archive::open(place)?));
    }
    let dir = Path::new(place);
    if !dir.is_dir() {
        return Err(format!("{place}: there is no such directory").into());
    }
    let mut config = StoreConfig::new(dir);
    if let Some(objects) = Names::objects_of(dir)? {
        config.objects = Some(objects);
    }
    Ok(Arc::new(Store::open_to_read(config)?.store))
}

async fn file_table(table: &NamedFile) -> Result<Arc<dyn TableProvider>, Failure> {
    let path = table.file.to_str().ok_or("--table takes a file whose name is UTF-8")?;
    if !Path::new(path).is_file() {
        return Err(format!("--table {}={path}: there is no such file", table.name).into());
    }
    let ending = table.file.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    let context = SessionContext::new();
    let rows = match ending {
        "csv" => context.read_csv(path, CsvReadOptions::new()).await,
        "parquet" => context.read_parquet(path, ParquetReadOptions::default()).await,
        "arrow" => context.read_arrow(path, ArrowReadOptions::default()).await,
        _ => {
            return Err(format!(
                "--table {}={path}: the name must end in .csv, .parquet or .arrow",
                table.name
            )
            .into());
        }
    };
    let rows = rows.map_err(|error| format!("--table {}={path}: {error}", table.name))?;
    Ok(rows.into_view())
}
