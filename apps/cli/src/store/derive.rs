//! `evenfall store derive`: trades and quotes of a recording that has none, and those that a
//! recorder writes beside its messages.

use std::path::PathBuf;

use evenfall_multicast_recorder::tables::OpenTables;

use super::storage_args::StorageArgs;
use crate::Outcome;

/// Arguments of `evenfall store derive`.
#[derive(clap::Args, Debug)]
pub struct Derive {
    /// The store's directory.
    dir: PathBuf,
    /// The recording.
    name: String,
    #[command(flatten)]
    storage: StorageArgs,
}

/// The trades and quotes of a recorder; `None` in a build without tables.
#[cfg(feature = "arrow")]
pub const OPEN_TABLES: Option<OpenTables> = Some(tables::open_tables);
#[cfg(not(feature = "arrow"))]
pub const OPEN_TABLES: Option<OpenTables> = None;

/// Runs `store derive`.
#[cfg(feature = "arrow")]
pub fn derive_tables(args: &Derive) -> Outcome {
    tables::derive_tables(args)
}

/// Says how to get the command.
#[cfg(not(feature = "arrow"))]
pub fn derive_tables(args: &Derive) -> Outcome {
    let Derive { dir: _, name: _, storage: _ } = args;
    Err(crate::missing::words("trades and quotes of recordings", "arrow").into())
}

#[cfg(feature = "arrow")]
mod tables {
    use std::sync::atomic::AtomicBool;

    use evenfall_multicast_recorder::tables::TableLog;
    use evenfall_runtime::listing::printable;
    use evenfall_store_engine::{Store, StoreError};
    use evenfall_store_recording::writer::TakenMessage;
    use evenfall_store_recording::{BooksConfig, Catalog, DerivedWriter};

    use super::Derive;
    use crate::Outcome;
    use crate::store::change;

    /// Messages of an earlier process that are taken between two messages of the feed: few, because
    /// the feed waits meanwhile.
    const CATCH_UP_MESSAGES: u64 = 2_048;

    struct FeedTables<'a> {
        writer: DerivedWriter<'a>,
        has_warned: bool,
    }

    impl TableLog for FeedTables<'_> {
        fn push(&mut self, message: TakenMessage<'_>) -> Result<(), StoreError> {
            self.writer.push(message)
        }

        fn show(&mut self) -> Result<bool, StoreError> {
            let is_behind = self.writer.catch_up(CATCH_UP_MESSAGES)?;
            self.writer.flush()?;
            if !self.has_warned && self.writer.given_up().next().is_some() {
                self.has_warned = true;
                tracing::warn!(
                    "the feed has more live orders than the books follow: trades and quotes are \
                     written no further"
                );
            }
            Ok(is_behind)
        }
    }

    /// The trades and quotes of a recorder.
    pub fn open_tables<'a>(
        store: &'a Store,
        recording: &str,
        is_stopping: &'a AtomicBool,
    ) -> Result<Box<dyn TableLog + 'a>, StoreError> {
        let writer = DerivedWriter::open(store, recording, BooksConfig::default())?;
        let writer = writer.stopping_with(is_stopping);
        Ok(Box::new(FeedTables { writer, has_warned: false }))
    }

    pub fn derive_tables(args: &Derive) -> Outcome {
        let name = &args.name;
        change(&args.dir, &args.storage, |store| {
            if Catalog::read(store)?.recording(name).is_none() {
                return Err(
                    format!("there is no recording {}: see `store ls`", printable(name)).into()
                );
            }
            let mut writer = DerivedWriter::open(store, name, BooksConfig::default())?;
            writer.catch_up(u64::MAX)?;
            writer.flush()?;
            if let Some(stream) = writer.given_up().next() {
                return Err(format!(
                    "stream {stream} of {} has more live orders than the books follow",
                    printable(name)
                )
                .into());
            }
            let (trades, quotes) = writer.records();
            say!("{trades} trades and {quotes} changes of best prices of {}", printable(name));
            Ok(())
        })
    }
}
