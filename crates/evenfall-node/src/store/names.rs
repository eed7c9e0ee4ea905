//! Names of files: which number a file has, what its records mean, and who may write it.
//!
//! Embedded in one `redb` file. Each claim of a file raises its fencing token, which every segment,
//! tail and journal frame then carries.

use std::path::Path;

use evenfall_store::retention::Retention;
use evenfall_store::{FileId, Schema};
use redb::backends::InMemoryBackend;
use redb::{Database, ReadableTable as _, StorageBackend as _, TableDefinition};
use serde::{Deserialize, Serialize};

/// The file in the store's directory.
pub const FILE: &str = "names.redb";
const FILES: TableDefinition<&str, &[u8]> = TableDefinition::new("files");
const COUNTERS: TableDefinition<&str, u64> = TableDefinition::new("counters");

/// What is known under a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The file's number.
    pub id: FileId,
    /// What its records mean.
    pub schema: Schema,
    /// The store node that may append.
    pub primary: u32,
    /// Its token; the greatest that was ever given out for the file.
    pub token: u32,
    /// Place of its metadata node among those of the primary.
    pub slot: u32,
    /// First record that is kept.
    #[serde(default)]
    pub first: u64,
    /// How long and how much of it is kept.
    #[serde(default)]
    pub retention: Retention,
}

/// The directory of names.
#[derive(Debug)]
pub struct Names {
    database: Database,
}

/// Why the directory of names did not answer, in its own words.
#[derive(Clone, Debug)]
pub struct NamesError(pub String);

impl std::fmt::Display for NamesError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "directory of names: {}", self.0)
    }
}

impl std::error::Error for NamesError {}

impl<E: Into<redb::Error>> From<E> for NamesError {
    fn from(error: E) -> Self {
        Self(error.into().to_string())
    }
}

fn decode(bytes: &[u8]) -> Result<Entry, NamesError> {
    serde_json::from_slice(bytes).map_err(|error| NamesError(error.to_string()))
}

impl Names {
    /// Opens or creates the file.
    ///
    /// # Errors
    /// When it cannot be opened or is damaged.
    pub fn open(path: &Path) -> Result<Self, NamesError> {
        Self::with(Database::create(path)?)
    }

    /// A copy in memory of the file, as it is; of nothing when there is none.
    ///
    /// # Errors
    /// When it cannot be read or is damaged.
    pub fn open_to_read(path: &Path) -> Result<Self, NamesError> {
        let words = |error: std::io::Error| NamesError(format!("{}: {error}", path.display()));
        let memory = InMemoryBackend::new();
        match std::fs::read(path) {
            Ok(bytes) => {
                memory.set_len(bytes.len() as u64).map_err(words)?;
                memory.write(0, &bytes).map_err(words)?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(words(error)),
        }
        Self::with(Database::builder().create_with_backend(memory)?)
    }

    /// Checks the file's own checksums, without a change to it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(path: &Path) -> Result<(), NamesError> {
        let mut names = Self::open_to_read(path)?;
        match names.database.check_integrity()? {
            true => Ok(()),
            false => Err(NamesError("wrong checksum".into())),
        }
    }

    fn with(database: Database) -> Result<Self, NamesError> {
        let write = database.begin_write()?;
        write.open_table(FILES)?;
        write.open_table(COUNTERS)?;
        write.commit()?;
        Ok(Self { database })
    }

    /// The entry of this name.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn find(&self, name: &str) -> Result<Option<Entry>, NamesError> {
        let read = self.database.begin_read()?;
        let table = read.open_table(FILES)?;
        let found = table.get(name)?;
        found.map(|bytes| decode(bytes.value())).transpose()
    }

    /// Every name, in order.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn list(&self) -> Result<Vec<(String, Entry)>, NamesError> {
        let read = self.database.begin_read()?;
        let table = read.open_table(FILES)?;
        let mut all = Vec::new();
        for row in table.iter()? {
            let (name, bytes) = row?;
            all.push((name.value().to_owned(), decode(bytes.value())?));
        }
        Ok(all)
    }

    /// Gives new names numbers, slots and a first token, in one transaction; names that are there
    /// already keep their entries.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn create(
        &self,
        files: &[(String, Schema)],
        node: u32,
    ) -> Result<Vec<(Entry, bool)>, NamesError> {
        let write = self.database.begin_write()?;
        let mut entries = Vec::new();
        {
            let mut table = write.open_table(FILES)?;
            let mut counters = write.open_table(COUNTERS)?;
            let mut next = counters.get("next file")?.map_or(1, |value| value.value());
            for (name, schema) in files {
                let found = table.get(name.as_str())?.map(|bytes| decode(bytes.value()));
                if let Some(entry) = found.transpose()? {
                    entries.push((entry, false));
                    continue;
                }
                let slot = (next - 1) as u32;
                let (id, schema) = (FileId(next), schema.clone());
                let (first, retention) = (0, Retention::default());
                let entry = Entry { id, schema, primary: node, token: 1, slot, first, retention };
                let bytes = serde_json::to_vec(&entry).unwrap_or_default();
                table.insert(name.as_str(), bytes.as_slice())?;
                entries.push((entry, true));
                next += 1;
            }
            counters.insert("next file", next)?;
        }
        write.commit()?;
        Ok(entries)
    }

    /// Makes this node the primary of every file, each with a token that is new. Whoever had one
    /// before is fenced.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn claim_all(&self, node: u32) -> Result<Vec<(String, Entry)>, NamesError> {
        let mut all = self.list()?;
        let write = self.database.begin_write()?;
        {
            let mut table = write.open_table(FILES)?;
            for (name, entry) in &mut all {
                entry.token += 1;
                entry.primary = node;
                let bytes = serde_json::to_vec(entry).unwrap_or_default();
                table.insert(name.as_str(), bytes.as_slice())?;
            }
        }
        write.commit()?;
        Ok(all)
    }

    /// Changes what of a file is kept; nothing when there is no such name.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn keep(&self, name: &str, first: u64, retention: Retention) -> Result<(), NamesError> {
        let Some(mut entry) = self.find(name)? else { return Ok(()) };
        (entry.first, entry.retention) = (first, retention);
        let write = self.database.begin_write()?;
        let bytes = serde_json::to_vec(&entry).unwrap_or_default();
        write.open_table(FILES)?.insert(name, bytes.as_slice())?;
        write.commit()?;
        Ok(())
    }

    /// Forgets a name; its number is never used again.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn remove(&self, name: &str) -> Result<(), NamesError> {
        let write = self.database.begin_write()?;
        write.open_table(FILES)?.remove(name)?;
        write.commit()?;
        Ok(())
    }

    /// Restores names from what the objects say of them, when the file itself was lost.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn restore(&self, files: &[(String, Entry)]) -> Result<(), NamesError> {
        let write = self.database.begin_write()?;
        {
            let mut table = write.open_table(FILES)?;
            let mut counters = write.open_table(COUNTERS)?;
            let mut next = counters.get("next file")?.map_or(1, |value| value.value());
            for (name, entry) in files {
                let bytes = serde_json::to_vec(entry).unwrap_or_default();
                table.insert(name.as_str(), bytes.as_slice())?;
                next = next.max(entry.id.0 + 1);
            }
            counters.insert("next file", next)?;
        }
        write.commit()?;
        Ok(())
    }
}
