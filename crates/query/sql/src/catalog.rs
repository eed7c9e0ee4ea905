//! Which tables a statement sees: a schema for each recording, and `public` for users' files.
//!
//! A recording is opened when a statement that names a table of it is planned. The statement sees
//! what had been appended by then, and all tables of the recording end at the same message.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, RwLock};

use async_trait::async_trait;
use datafusion::catalog::{CatalogProvider, SchemaProvider, TableProvider};
use datafusion::common::{DataFusionError, Result};

use crate::faults::table_error;
use crate::scan::SnapshotTable;
use evenfall_store_recording::names::near_names;
use evenfall_store_recording::tables::{TableError, TableName, Tables};

/// The schema of users' files.
pub(crate) const PUBLIC: &str = "public";

/// Limit of tables of one name that an error lists: a person would not read more.
const NAMES_SHOWN: usize = 5;

/// The name of the table in the words of DataFusion's error for an unknown table.
fn unknown_table(words: &str) -> Option<&str> {
    let (name, _) = words.strip_prefix("table '")?.split_once("' not found")?;
    Some(name)
}

/// All tables of a store, and those that a user added by a file.
pub(crate) struct StoreCatalog {
    tables: Arc<dyn Tables>,
    added: Arc<BTreeMap<String, Arc<dyn TableProvider>>>,
    /// The schema whose unknown names are sought in `public`.
    searched_first: String,
    /// Schemas beside those of the store: the catalogues of PostgreSQL.
    others: Arc<RwLock<BTreeMap<String, Arc<dyn SchemaProvider>>>>,
}

impl fmt::Debug for StoreCatalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreCatalog, {} first", self.searched_first)
    }
}

impl StoreCatalog {
    pub(crate) fn new(
        tables: Arc<dyn Tables>,
        added: Arc<BTreeMap<String, Arc<dyn TableProvider>>>,
        searched_first: String,
    ) -> Self {
        Self { tables, added, searched_first, others: Default::default() }
    }

    /// The same catalogue over the tables of one statement.
    pub(crate) fn with_tables(&self, tables: Arc<dyn Tables>) -> Self {
        Self {
            tables,
            added: Arc::clone(&self.added),
            searched_first: self.searched_first.clone(),
            others: Arc::clone(&self.others),
        }
    }

    /// The tables that a user added by a file.
    pub(crate) fn added_tables(&self) -> &Arc<BTreeMap<String, Arc<dyn TableProvider>>> {
        &self.added
    }

    /// Adds to the error for an unknown table the tables that the statement may mean. Other errors
    /// stay as they are. In a store of several recordings, most names need the recording in front.
    pub(crate) fn name_tables(&self, error: DataFusionError) -> DataFusionError {
        match error {
            DataFusionError::Diagnostic(place, error) => {
                DataFusionError::Diagnostic(place, Box::new(self.name_tables(*error)))
            }
            DataFusionError::Context(words, error) => {
                DataFusionError::Context(words, Box::new(self.name_tables(*error)))
            }
            DataFusionError::Plan(words) => {
                let meant = unknown_table(&words).map(|name| self.meant_tables(name));
                DataFusionError::Plan(format!("{words}{}", meant.unwrap_or_default()))
            }
            other => other,
        }
    }

    /// The tables that a name may mean, as the end of a sentence.
    fn meant_tables(&self, name: &str) -> String {
        // The error for the unknown name stands, also when the store cannot list its tables.
        let tables = self.tables.names().unwrap_or_default();
        let table = name.rsplit('.').next().unwrap_or(name);
        let named: Vec<String> = tables
            .iter()
            .filter(|known| known.table == table)
            .map(ToString::to_string)
            .take(NAMES_SHOWN)
            .collect();
        if !named.is_empty() {
            return format!("; name one of {}", named.join(", "));
        }
        let added = self.added.keys().cloned();
        let known: Vec<String> = tables.iter().map(ToString::to_string).chain(added).collect();
        near_names(table, &known)
    }

    /// The recordings of a store, by name.
    pub(crate) fn recordings(tables: &dyn Tables) -> Result<Vec<String>> {
        let names = tables.names().map_err(store_error)?;
        let mut names: Vec<String> = names.into_iter().filter_map(|name| name.recording).collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }
}

impl CatalogProvider for StoreCatalog {
    fn schema_names(&self) -> Vec<String> {
        let mut names = Self::recordings(&*self.tables).unwrap_or_default();
        names.push(PUBLIC.to_owned());
        names.extend(self.others.read().expect("no panic holds the lock").keys().cloned());
        names
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        if let Some(other) = self.others.read().expect("no panic holds the lock").get(name) {
            return Some(Arc::clone(other));
        }
        if !self.schema_names().iter().any(|known| known == name) {
            return None;
        }
        Some(Arc::new(StoreSchema {
            schema: name.to_owned(),
            tables: Arc::clone(&self.tables),
            added: Arc::clone(&self.added),
            is_searched_first: name == self.searched_first,
        }))
    }

    fn register_schema(
        &self,
        name: &str,
        schema: Arc<dyn SchemaProvider>,
    ) -> Result<Option<Arc<dyn SchemaProvider>>> {
        let mut others = self.others.write().expect("no panic holds the lock");
        Ok(others.insert(name.to_owned(), schema))
    }
}

struct StoreSchema {
    schema: String,
    tables: Arc<dyn Tables>,
    added: Arc<BTreeMap<String, Arc<dyn TableProvider>>>,
    is_searched_first: bool,
}

impl fmt::Debug for StoreSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreSchema({})", self.schema)
    }
}

pub(crate) fn store_error(error: TableError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

impl StoreSchema {
    fn list_names(&self) -> Result<Vec<TableName>> {
        let names = self.tables.names().map_err(store_error)?;
        let recording = (self.schema != PUBLIC).then_some(&self.schema);
        Ok(names.into_iter().filter(|name| name.recording.as_ref() == recording).collect())
    }

    /// Names to try, in order.
    fn candidate_names(&self, name: &str) -> Vec<TableName> {
        let mut names = Vec::new();
        if self.schema != PUBLIC {
            names.push(TableName::of_recording(&self.schema, name));
        }
        if self.schema == PUBLIC || self.is_searched_first {
            names.push(TableName::of_file(name));
        }
        names
    }
}

#[async_trait]
impl SchemaProvider for StoreSchema {
    fn table_names(&self) -> Vec<String> {
        let names = self.list_names().unwrap_or_default().into_iter().map(|name| name.table);
        let added = self.added.keys().filter(|_| self.schema == PUBLIC).cloned();
        names.chain(added).collect()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let (tables, candidates) = (Arc::clone(&self.tables), self.candidate_names(name));
        let opened = tokio::task::spawn_blocking(move || -> Result<_> {
            for candidate in candidates {
                match tables.open(&candidate) {
                    Ok(snapshot) => {
                        let table: Arc<dyn TableProvider> = Arc::new(SnapshotTable::new(snapshot));
                        return Ok(Some(table));
                    }
                    Err(TableError::UnknownTable(_)) => {}
                    Err(error) => return Err(table_error(&candidate, error)),
                }
            }
            Ok(None)
        });
        let opened = opened.await.map_err(|error| DataFusionError::External(Box::new(error)))??;
        let is_public = self.schema == PUBLIC || self.is_searched_first;
        Ok(opened.or_else(|| self.added.get(name).filter(|_| is_public).cloned()))
    }

    fn table_exist(&self, name: &str) -> bool {
        self.table_names().iter().any(|known| known == name)
            || (self.is_searched_first && self.added.contains_key(name))
    }
}
