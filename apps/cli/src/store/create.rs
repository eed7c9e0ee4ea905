//! `evenfall store create`: makes a file, or an empty recording, and keeps the options for later
//! appends.

use std::path::PathBuf;

use evenfall_host::whole_file::{SETTINGS_BYTES_MAX, read_text_up_to};
use evenfall_store_engine::StoreAckLevel;
use evenfall_store_format::Schema;
use evenfall_store_recording::names::{NewNameError, check_new_name};
use evenfall_store_recording::{Catalog, RecordingWriter};

use super::append::ArrivalArgs;
use super::open_as;
use super::storage_args::StorageArgs;
use crate::Outcome;

/// Arguments of `evenfall store create`.
#[derive(clap::Args, Debug)]
pub struct Create {
    /// The store's directory; a missing directory is created.
    dir: PathBuf,
    /// Name of the file or recording.
    #[arg(value_parser = new_name)]
    name: String,
    /// The schema of a file's records, in the form that `store ls --json` prints. Without a schema
    /// a recording is created.
    #[arg(long, value_name = "FILE")]
    schema: Option<PathBuf>,
    /// The field that numbers records. With a window it orders equal times and identifies copies.
    #[arg(long, requires = "schema")]
    sequence: Option<String>,
    #[command(flatten)]
    arrival: ArrivalArgs,
    #[command(flatten)]
    storage: StorageArgs,
}

/// The name of a new file or recording.
pub(super) fn new_name(text: &str) -> Result<String, NewNameError> {
    check_new_name(text).map(|()| text.to_owned())
}

pub fn create(args: &Create) -> Outcome {
    let schema = args.schema.as_ref().map(|path| -> Result<Schema, Box<dyn std::error::Error>> {
        let failed = |error| format!("{}: {error}", path.display());
        let text = read_text_up_to(path, SETTINGS_BYTES_MAX).map_err(failed)?;
        let wrong = |error| format!("{}: not a schema: {error}", path.display());
        Ok(serde_json::from_str(&text).map_err(wrong)?)
    });
    let schema = schema.transpose()?;
    let store = open_as(args.storage.config(&args.dir)?)?;
    let created = (|| -> Outcome {
        let mut arrival = args.arrival.arrival();
        let catalog = Catalog::read(&store)?;
        if let Some(mut schema) = schema {
            if args.arrival.has_symbol() {
                return Err("--symbol is of a recording, and --schema makes a file".into());
            }
            arrival.sequence = args.sequence.clone().unwrap_or_default();
            schema.arrival = arrival;
            catalog.expect_free(&args.name, &schema)?;
            store.create(&args.name, &schema)?;
            say!("{}: a file of {}-byte records", args.name, schema.record_bytes);
            return Ok(());
        }
        for name in ArrivalArgs::names(&args.name, &arrival) {
            catalog.expect_no_recording(&name)?;
            RecordingWriter::with_arrival(&store, &name, 1, StoreAckLevel::Local, arrival.clone())?;
            say!("{name}: a recording");
        }
        Ok(())
    })();
    store.close()?;
    created
}
