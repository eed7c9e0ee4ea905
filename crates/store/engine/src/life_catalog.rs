//! The catalogue of a life among the objects: the names of the files that the life has published.
//!
//! ```text
//! S-<file>-<token>             the entry of one file
//! S-catalog-<token>-<number>   the entries of all files that the life of the token has published,
//!                              and the numbers of deleted files
//! S-gone-<token>-<file>        the deletion of one file, said by its name alone
//! ```
//!
//! A new file gets an entry of its own. When a life has [`SINGLE_MAX`] such entries, it puts a
//! catalogue with all of its entries, and removes the single ones. So a reader of the objects takes
//! one listing, and for each life a catalogue and up to [`SINGLE_MAX`] entries, whatever the number
//! of files. A deletion has an object of its own too, and the next catalogue takes it over. A
//! reader needs no request for it.
//!
//! Of several entries of a file the one with the greatest token counts. Each try to put a catalogue
//! has a number of its own, so that a put that lands late undoes nothing, and the catalogue before
//! the newest one stays, for readers of a listing that is not up to date. A catalogue of an earlier
//! life may list a file that a later life has deleted, so catalogues state deleted files too. File
//! numbers are never used again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use evenfall_core::{Objects as _, StorageError};
use evenfall_store_format::layout::{
    CATALOGS_PREFIX, ENTRIES_PREFIX, catalog_name, deletion_name, life_catalog_name,
    parse_catalog_name, parse_deletion_name, parse_life_catalog_name,
};
use evenfall_store_format::{Error, FileId};

use super::engine::{StoreEngine, StoreFile};
use super::uploads::in_parallel;
use super::{Bucket, Entry, StoreError, lock};

/// Entries of single files after which a life puts a catalogue.
pub(super) const SINGLE_MAX: usize = 64;
/// Files of a catalogue for each deletion that has an object of its own. So a deletion costs four
/// entries of a catalogue at most, some 2 KB, and a listing grows by a quarter of its files.
const FILES_PER_DELETION: usize = 4;
/// Listings that are taken of a catalogue that changes during the reading.
const LISTINGS_MAX: usize = 5;

/// The contents of a catalogue.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct LifeCatalog {
    files: Vec<(String, Entry)>,
    /// Deleted files that a catalogue of an earlier life may list.
    gone: Vec<FileId>,
}

/// The catalogue as one listing shows it.
struct ListedCatalog {
    /// Names and entries, in order of names.
    files: Vec<(String, Entry)>,
    /// An object that is not there any more, a catalogue before a single entry.
    missing: Option<String>,
}

/// What a life has put into the catalogue.
#[derive(Debug, Default)]
pub(super) struct CatalogWriter {
    /// Files that the catalogue lists.
    entered: BTreeSet<FileId>,
    /// Those of them that have an entry of their own.
    single: BTreeSet<FileId>,
    gone: BTreeSet<FileId>,
    /// Deletions that have an object of this life.
    deletions: BTreeSet<FileId>,
    /// Numbers of catalogues that may be there, the last of them that of the last try.
    tries: Vec<u32>,
}

/// A text of JSON and a checksum over it.
fn encode_checked(value: &impl serde::Serialize) -> Bytes {
    let json = serde_json::to_string(value).unwrap_or_default();
    format!("{json}\n{:08x}\n", crc32c::crc32c(json.as_bytes())).into()
}

fn decode_checked<T: serde::de::DeserializeOwned>(
    place: &str,
    bytes: &[u8],
) -> Result<T, StoreError> {
    let damaged = |what: &str| Error::Damaged { place: place.into(), what: what.into() };
    let text = std::str::from_utf8(bytes).map_err(|_| damaged("not text"))?;
    let (json, crc) = text.split_once('\n').ok_or_else(|| damaged("no checksum"))?;
    if crc != format!("{:08x}\n", crc32c::crc32c(json.as_bytes())) {
        return Err(damaged("wrong checksum").into());
    }
    serde_json::from_str(json).map_err(|error| damaged(&error.to_string()).into())
}

/// Checks an object of the catalogue.
pub(super) fn check_catalog(name: &str, bytes: &[u8]) -> Result<(), StoreError> {
    if parse_deletion_name(name).is_some() {
        return decode_checked::<FileId>(name, bytes).map(drop);
    }
    match parse_life_catalog_name(name) {
        Some(_) => decode_checked::<LifeCatalog>(name, bytes).map(drop),
        None => decode_checked::<(String, Entry)>(name, bytes).map(drop),
    }
}

/// All files that are published in this bucket, as far as the listing shows them, in order of
/// names. Each file has the entry of its newest primary.
pub(super) fn read_catalog(bucket: &Bucket) -> Result<Vec<(String, Entry)>, StoreError> {
    let mut listing = 0;
    loop {
        listing += 1;
        let ListedCatalog { files, missing } = read_listed(bucket)?;
        // An object that is gone since the listing has a successor, or its file was deleted. The
        // next listing shows which. The last listing is believed, but a reader without one of the
        // catalogues would miss many files.
        match missing {
            Some(name) if listing == LISTINGS_MAX && parse_catalog_name(&name).is_none() => {
                let what = "listings show it, and it is not there".to_owned();
                return Err(StorageError::Unavailable { name, what }.into());
            }
            Some(_) if listing < LISTINGS_MAX => {}
            _ => return Ok(files),
        }
    }
}

fn read_listed(bucket: &Bucket) -> Result<ListedCatalog, StoreError> {
    let mut missing = None;
    let names = bucket.list(ENTRIES_PREFIX)?;
    let catalogs = greatest_each(names.iter().filter_map(|name| parse_life_catalog_name(name)));
    let mut files: BTreeMap<FileId, (String, Entry)> = BTreeMap::new();
    let deletions = names.iter().filter_map(|name| parse_deletion_name(name));
    let mut gone: BTreeSet<FileId> = deletions.map(|(_, file)| file).collect();
    for (token, number) in catalogs {
        let name = life_catalog_name(token, number);
        let Some(bytes) = bucket.get(&name, 0, usize::MAX)? else {
            missing = Some(name);
            continue;
        };
        let catalog: LifeCatalog = decode_checked(&name, &bytes)?;
        gone.extend(catalog.gone);
        for (name, entry) in catalog.files {
            enter_newest(&mut files, name, entry);
        }
    }
    let single = greatest_each(names.iter().filter_map(|name| parse_catalog_name(name)));
    for (file, token) in single {
        let known = files.get(&file).map_or(0, |(_, entry)| entry.listed);
        if known > token || gone.contains(&file) {
            continue;
        }
        let name = catalog_name(file, token);
        match bucket.get(&name, 0, usize::MAX)? {
            Some(bytes) => {
                let (name, entry) = decode_checked(&name, &bytes)?;
                enter_newest(&mut files, name, entry);
            }
            None => missing = missing.or(Some(name)),
        }
    }
    let kept = files.into_values().filter(|(_, entry)| !gone.contains(&entry.id));
    let mut files: Vec<(String, Entry)> = kept.collect();
    files.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(ListedCatalog { files, missing })
}

/// The greatest of the numbers that come with each key.
fn greatest_each<K: Ord>(pairs: impl Iterator<Item = (K, u32)>) -> BTreeMap<K, u32> {
    let mut greatest = BTreeMap::new();
    for (key, number) in pairs {
        let known: &mut u32 = greatest.entry(key).or_default();
        *known = number.max(*known);
    }
    greatest
}

fn enter_newest(files: &mut BTreeMap<FileId, (String, Entry)>, name: String, entry: Entry) {
    let is_older = files.get(&entry.id).is_some_and(|(_, known)| known.listed > entry.listed);
    if !is_older {
        files.insert(entry.id, (name, entry));
    }
}

impl StoreEngine {
    /// Enters files into the catalogue, of which a block of this life has the metadata.
    pub(super) fn enter_catalog(&self, files: &[&StoreFile]) -> Result<(), StoreError> {
        let bucket = self.bucket.as_ref().ok_or(StoreError::NoObjects)?;
        let mut writer = lock(&self.catalog);
        let ids = files.iter().map(|file| file.id);
        if writer.single.len() + files.len() > SINGLE_MAX {
            let entered = writer.entered.iter().copied().chain(ids).collect();
            return self.put_catalog(bucket, &mut writer, entered);
        }
        let put = |file: &&StoreFile| {
            let (name, entry) = (&file.name, file.entry_now());
            bucket.put(&catalog_name(file.id, entry.listed), encode_checked(&(name, &entry)))
        };
        in_parallel(files, put).into_iter().collect::<Result<(), _>>()?;
        writer.single.extend(ids.clone());
        writer.entered.extend(ids);
        Ok(())
    }

    /// Puts a catalogue with these files, and removes what it replaces.
    fn put_catalog(
        &self,
        bucket: &Bucket,
        writer: &mut CatalogWriter,
        entered: BTreeSet<FileId>,
    ) -> Result<(), StoreError> {
        let ours = self.our_files();
        let is_listed = |file: &&Arc<StoreFile>| entered.contains(&file.id);
        let listed = ours.iter().filter(is_listed);
        let files = listed.map(|file| (file.name.clone(), file.entry_now())).collect();
        let catalog = LifeCatalog { files, gone: writer.gone.iter().copied().collect() };
        let token = self.names.token();
        let number = writer.tries.last().map_or(1, |last| last + 1);
        writer.tries.push(number);
        bucket.put(&life_catalog_name(token, number), encode_checked(&catalog))?;
        writer.entered = entered;
        // What cannot be removed now is removed with the next catalogue.
        let single: Vec<FileId> = writer.single.iter().copied().collect();
        let removed = in_parallel(&single, |file| bucket.delete(&catalog_name(*file, token)));
        let left = single.into_iter().zip(removed).filter(|(_, removed)| removed.is_err());
        writer.single = left.map(|(file, _)| file).collect();
        let told: Vec<FileId> = writer.deletions.iter().copied().collect();
        let removed = in_parallel(&told, |file| bucket.delete(&deletion_name(token, *file)));
        let left = told.into_iter().zip(removed).filter(|(_, removed)| removed.is_err());
        writer.deletions = left.map(|(file, _)| file).collect();
        let stale = writer.tries.len().saturating_sub(2);
        let gone = |number: &u32| bucket.delete(&life_catalog_name(token, *number)).is_ok();
        let kept = writer.tries.iter().enumerate();
        let kept = kept.filter(|&(at, number)| at >= stale || !gone(number));
        writer.tries = kept.map(|(_, number)| *number).collect();
        Ok(())
    }

    /// Removes a deleted file from the catalogue, as far as primaries up to this token entered it.
    pub(super) fn leave_catalog(&self, file: FileId, token: u32) -> Result<(), StoreError> {
        let bucket = self.bucket.as_ref().ok_or(StoreError::NoObjects)?;
        let mut writer = lock(&self.catalog);
        for name in bucket.list(&format!("{ENTRIES_PREFIX}{file}-"))? {
            if parse_catalog_name(&name).is_some_and(|(_, of)| of <= token) {
                bucket.delete(&name)?;
            }
        }
        writer.single.remove(&file);
        if writer.gone.contains(&file) || bucket.list(CATALOGS_PREFIX)?.is_empty() {
            writer.entered.remove(&file);
            return Ok(());
        }
        bucket.put(&deletion_name(self.names.token(), file), encode_checked(&file))?;
        writer.entered.remove(&file);
        writer.gone.insert(file);
        writer.deletions.insert(file);
        if writer.deletions.len() > SINGLE_MAX.max(writer.entered.len() / FILES_PER_DELETION) {
            let entered = writer.entered.clone();
            // The deletion has its object. The next one tries again to put a catalogue.
            let _ = self.put_catalog(bucket, &mut writer, entered);
        }
        Ok(())
    }

    /// Removes the catalogue of an earlier life, of which a later life lists every file.
    pub(super) fn drop_catalog_of(&self, token: u32) -> Result<(), StoreError> {
        let bucket = self.bucket.as_ref().ok_or(StoreError::NoObjects)?;
        let mut writer = lock(&self.catalog);
        let names = bucket.list(ENTRIES_PREFIX)?;
        let catalogs: Vec<(u32, u32)> =
            names.iter().filter_map(|name| parse_life_catalog_name(name)).collect();
        let is_other = |of: u32| of != token && of != self.names.token();
        match catalogs.iter().any(|(of, _)| is_other(*of)) {
            // Catalogues of other lives may list the files that this one states as deleted.
            true => self.inherit_gone(bucket, &mut writer, &names, token)?,
            false => writer.gone.clear(),
        }
        let of_life = |name: &&String| {
            let single = parse_catalog_name(name).map(|(_, of)| of);
            let of = single.or_else(|| parse_life_catalog_name(name).map(|(of, _)| of));
            of.or_else(|| parse_deletion_name(name).map(|(of, _)| of)) == Some(token)
        };
        let old: Vec<&String> = names.iter().filter(of_life).collect();
        in_parallel(&old, |name| bucket.delete(name)).into_iter().collect::<Result<(), _>>()?;
        Ok(())
    }

    /// States the files that an earlier life has deleted in the catalogue of this life.
    fn inherit_gone(
        &self,
        bucket: &Bucket,
        writer: &mut CatalogWriter,
        names: &[String],
        token: u32,
    ) -> Result<(), StoreError> {
        let known = writer.gone.len();
        let deletions = names.iter().filter_map(|name| parse_deletion_name(name));
        writer.gone.extend(deletions.filter(|(of, _)| *of == token).map(|(_, file)| file));
        let catalogs = names.iter().filter_map(|name| parse_life_catalog_name(name));
        let of_life = catalogs.filter(|(of, _)| *of == token);
        if let Some(newest) = of_life.map(|(_, number)| number).max() {
            let name = life_catalog_name(token, newest);
            if let Some(bytes) = bucket.get(&name, 0, usize::MAX)? {
                let catalog: LifeCatalog = decode_checked(&name, &bytes)?;
                writer.gone.extend(catalog.gone);
            }
        }
        if writer.gone.len() == known {
            return Ok(());
        }
        let entered = writer.entered.clone();
        self.put_catalog(bucket, writer, entered)
    }
}
