//! The directory of names in one `redb` file. A store without a cluster has no other directory of
//! names. In a cluster the file is a copy of this node's names, so that its directory can be read
//! and checked alone.

use std::cell::Cell;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use evenfall_host::whole_file::read_up_to;
use evenfall_store_format::{FileId, Schema};
use redb::backends::InMemoryBackend;
use redb::{Database, ReadableTable as _, StorageBackend as _, TableDefinition};

use super::{Claimed, Entry, NamesError};

const FILES: TableDefinition<&str, &[u8]> = TableDefinition::new("files");
const COUNTERS: TableDefinition<&str, u64> = TableDefinition::new("counters");
const SETTINGS: TableDefinition<&str, &str> = TableDefinition::new("settings");
/// Blocks of metadata, by the names of their objects.
const BLOCKS: TableDefinition<&str, &[u8]> = TableDefinition::new("blocks");

impl<E: Into<redb::Error>> From<E> for NamesError {
    fn from(error: E) -> Self {
        Self::Failed(error.into().to_string())
    }
}

/// The file.
#[derive(Debug)]
pub struct Embedded {
    database: Database,
    /// Token of this life; zero before the claim.
    token: AtomicU32,
}

fn decode(bytes: &[u8]) -> Result<Entry, NamesError> {
    serde_json::from_slice(bytes).map_err(|error| NamesError::Failed(error.to_string()))
}

/// Most bytes of the file. An entry has about one kilobyte, so that there is room for half a
/// million files and as many free pages again.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// Why a look into the file failed.
enum LookError {
    /// The bytes are not those that `redb` wrote.
    Damaged,
    /// Anything else, in words.
    Failed(String),
}

impl<E: Into<redb::Error>> From<E> for LookError {
    fn from(error: E) -> Self {
        use std::io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        match error.into() {
            redb::Error::Corrupted(_) => Self::Damaged,
            // A page beyond the end of a file is `UnexpectedEof`, and of memory `InvalidInput`.
            redb::Error::Io(why)
                if matches!(why.kind(), InvalidData | InvalidInput | UnexpectedEof) =>
            {
                Self::Damaged
            }
            error => Self::Failed(error.to_string()),
        }
    }
}

thread_local! {
    /// Whether this thread looks into a file that may be damaged.
    static IS_LOOKING: Cell<bool> = const { Cell::new(false) };
}

/// Keeps panics of a look into the file off standard error: they say where in redb they happened,
/// and nothing about the file. All other panics are printed as before.
fn silence_looks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_LOOKING.get() {
                before(panic);
            }
        }));
    });
}

/// Looks into the file at `path`. Some damages make redb panic, and this function turns the panic
/// into an error.
fn unless_damaged<T>(
    path: &Path,
    look: impl FnOnce() -> Result<T, LookError>,
) -> Result<T, NamesError> {
    silence_looks();
    IS_LOOKING.set(true);
    let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(look));
    IS_LOOKING.set(false);
    let shown = path.display();
    let words = match looked {
        Ok(Ok(seen)) => return Ok(seen),
        Ok(Err(LookError::Failed(why))) => format!("{shown}: {why}"),
        Ok(Err(LookError::Damaged)) | Err(_) => format!(
            "{shown} is damaged: move it away and open the store again to write, with the \
             --objects and --names that it has, and the names come back from the catalogue among \
             the objects"
        ),
    };
    Err(NamesError::Failed(words))
}

impl Embedded {
    /// Opens or creates the file.
    ///
    /// # Errors
    /// When it cannot be opened or is damaged.
    pub fn open(path: &Path) -> Result<Self, NamesError> {
        unless_damaged(path, || Self::with(Database::create(path)?))
    }

    /// A copy of the file in memory, as it is; empty when the file is missing.
    ///
    /// # Errors
    /// When it cannot be read or is damaged.
    pub fn open_to_read(path: &Path) -> Result<Self, NamesError> {
        let words =
            |error: std::io::Error| NamesError::Failed(format!("{}: {error}", path.display()));
        let memory = InMemoryBackend::new();
        match read_up_to(path, FILE_BYTES_MAX) {
            Ok(file) => {
                memory.set_len(file.bytes.len() as u64).map_err(words)?;
                memory.write(0, &file.bytes).map_err(words)?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(words(error)),
        }
        unless_damaged(path, || Self::with(Database::builder().create_with_backend(memory)?))
    }

    /// Checks the file's own checksums without changing the file.
    ///
    /// # Errors
    /// The damage of the file.
    pub fn check(path: &Path) -> Result<(), NamesError> {
        let mut names = Self::open_to_read(path)?;
        match unless_damaged(path, || Ok(names.database.check_integrity()?))? {
            true => Ok(()),
            false => Err(NamesError::Failed("wrong checksum".into())),
        }
    }

    fn with(database: Database) -> Result<Self, LookError> {
        let write = database.begin_write()?;
        write.open_table(FILES)?;
        write.open_table(COUNTERS)?;
        write.open_table(SETTINGS)?;
        write.open_table(BLOCKS)?;
        write.commit()?;
        Ok(Self { database, token: AtomicU32::new(0) })
    }

    /// Token of this life; zero before the claim.
    pub fn token(&self) -> u32 {
        self.token.load(Relaxed)
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

    /// Gives new names numbers, slots and a first token, in one transaction. Existing names keep
    /// their entries.
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
                let entry = Entry::new(FileId(next), schema, node, self.token.load(Relaxed));
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

    /// The entry of a copy of another directory's file. [`restore`](Self::restore) writes the
    /// entry.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn allot(&self, original: &Entry, node: u32) -> Result<Entry, NamesError> {
        let read = self.database.begin_read()?;
        let next = read.open_table(COUNTERS)?.get("next file")?.map_or(1, |value| value.value());
        Ok(Entry::new(FileId(next), &original.schema, node, self.token.load(Relaxed)))
    }

    /// Makes this node the primary of every file, with the token of a new life. Copies of other
    /// nodes' files are included only if `copies` is set. A node that was primary before is fenced.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn claim_all(&self, node: u32, copies: bool) -> Result<Vec<Claimed>, NamesError> {
        let mut all = Vec::new();
        let before = self.list()?;
        let write = self.database.begin_write()?;
        {
            let mut table = write.open_table(FILES)?;
            let mut counters = write.open_table(COUNTERS)?;
            let next = counters.get("next token")?.map_or(1, |value| value.value() as u32);
            let greatest = before.iter().map(|(_, entry)| entry.token).max().unwrap_or(0);
            let token = next.max(greatest + 1);
            counters.insert("next token", u64::from(token) + 1)?;
            self.token.store(token, Relaxed);
            for (name, mut entry) in before {
                if !copies && entry.copies.is_some() {
                    continue;
                }
                entry.copies = None;
                let was_ours = entry.primary == node;
                (entry.token, entry.primary) = (token, node);
                let bytes = serde_json::to_vec(&entry).unwrap_or_default();
                table.insert(name.as_str(), bytes.as_slice())?;
                all.push(Claimed { name, entry, was_ours });
            }
        }
        write.commit()?;
        Ok(all)
    }

    /// Changes some entries in one transaction. Missing names stay missing.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn change(&self, names: &[&str], change: &dyn Fn(&mut Entry)) -> Result<(), NamesError> {
        let write = self.database.begin_write()?;
        {
            let mut table = write.open_table(FILES)?;
            for name in names {
                let found = table.get(*name)?.map(|bytes| decode(bytes.value()));
                let Some(mut entry) = found.transpose()? else { continue };
                change(&mut entry);
                let bytes = serde_json::to_vec(&entry).unwrap_or_default();
                table.insert(*name, bytes.as_slice())?;
            }
        }
        write.commit()?;
        Ok(())
    }

    /// The block of metadata of this name, as it was before its publication.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn block(&self, name: &str) -> Result<Option<Vec<u8>>, NamesError> {
        let read = self.database.begin_read()?;
        let table = read.open_table(BLOCKS)?;
        Ok(table.get(name)?.map(|bytes| bytes.value().to_vec()))
    }

    /// Keeps a block of metadata, or forgets it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn keep_block(&self, name: &str, bytes: Option<&[u8]>) -> Result<(), NamesError> {
        let write = self.database.begin_write()?;
        {
            let mut table = write.open_table(BLOCKS)?;
            match bytes {
                Some(bytes) => drop(table.insert(name, bytes)?),
                None => drop(table.remove(name)?),
            }
        }
        write.commit()?;
        Ok(())
    }

    /// A setting that the directory remembers.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn setting(&self, key: &str) -> Result<Option<String>, NamesError> {
        let read = self.database.begin_read()?;
        let table = read.open_table(SETTINGS)?;
        Ok(table.get(key)?.map(|value| value.value().to_owned()))
    }

    /// Remembers a setting.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set(&self, key: &str, value: &str) -> Result<(), NamesError> {
        if self.setting(key)?.as_deref() == Some(value) {
            return Ok(());
        }
        let write = self.database.begin_write()?;
        write.open_table(SETTINGS)?.insert(key, value)?;
        write.commit()?;
        Ok(())
    }

    /// Forgets a name. Its number is never used again.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn remove(&self, name: &str) -> Result<(), NamesError> {
        let write = self.database.begin_write()?;
        write.open_table(FILES)?.remove(name)?;
        write.commit()?;
        Ok(())
    }

    /// Never again gives out a file number or a token up to these.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn reserve(&self, file: FileId, token: u32) -> Result<(), NamesError> {
        let least = [("next file", file.0 + 1), ("next token", u64::from(token) + 1)];
        let read = self.database.begin_read()?.open_table(COUNTERS)?;
        let mut is_reserved = true;
        for (counter, least) in least {
            is_reserved &= read.get(counter)?.map_or(1, |value| value.value()) >= least;
        }
        if is_reserved {
            return Ok(());
        }
        let write = self.database.begin_write()?;
        {
            let mut counters = write.open_table(COUNTERS)?;
            for (counter, least) in least {
                let next = counters.get(counter)?.map_or(1, |value| value.value());
                counters.insert(counter, next.max(least))?;
            }
        }
        write.commit()?;
        Ok(())
    }

    /// Writes these entries as they are: entries from the objects after the file was lost, or a
    /// copy of the cluster's entries.
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
