//! `evenfall store`: works with the files of a store, from its directory or from its objects alone.

mod append;
mod create;
mod derive;
mod ls;
mod output;
mod read;
mod readers;
mod serve;
mod storage_args;
mod times;
#[cfg(feature = "users")]
mod user;
pub mod verify;
#[cfg(not(feature = "users"))]
mod user {
    pub use crate::missing::Args;

    pub fn main(_: &Args) -> crate::Outcome {
        crate::missing::main("users of a store", "users")
    }
}

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use clap::Subcommand;
use evenfall_core::UserKey;
use evenfall_feed_service::Feed;
use evenfall_runtime::address::look_up;
use evenfall_runtime::listing::printable;
use evenfall_store_engine::{
    Archive, BucketOptions, ChunkForm, Client, ClusterSource, ConnectOptions, Freshness,
    OpenedStore, RecordSource, RemoteSource, Store, StoreConfig, StoreError, StoreFile,
    chunk_codec, clean_shutdown, names, read_user_key, user_key_from_environment,
};
use evenfall_store_format::layout::{parse_chunk_name, parse_journal_name};
use evenfall_store_format::retention::Retention;
use evenfall_store_format::volume::DiskLoss;
use evenfall_store_recording::Catalog;
use humantime::parse_duration;

pub use self::derive::OPEN_TABLES;
use self::storage_args::StorageArgs;
use crate::Outcome;

/// Arguments of `evenfall store`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Serve the store on a port of this machine, until a signal comes.
    Serve(serve::Serve),
    /// List the files and recordings.
    Ls(ls::Ls),
    /// Create a file or an empty recording, and keep the options for later appends to it.
    Create(create::Create),
    /// Record a feed file, every message byte for byte; or append records from a table.
    Append(append::Append),
    /// Print the records of a file, or the messages of a recording or of one symbol in it.
    Read(read::Read),
    /// Print the last records or messages.
    Tail(read::Tail),
    /// Print what a file has in each interval of time: count, and first, least, greatest, last and
    /// sum of its fields with aggregates. The index answers for all but the ends of an interval.
    Bars(read::bars::Bars),
    /// Write a file or a recording as Parquet, which DuckDB, Polars and, with --time-unit us, Spark
    /// open.
    Export(read::Export),
    /// Make the trades and quotes of a recording, which SQL then reads instead of making them for
    /// each question. A recorder writes them by itself.
    Derive(derive::Derive),
    /// Limit the age or the bytes of a file or a recording; older records are deleted.
    ///
    /// The limits replace earlier limits. Without --age and --bytes no further records are deleted.
    Retain(Retain),
    /// Delete a file or a recording, with its objects.
    Delete(Delete),
    /// Name the nodes of a cluster that serve reads of a file beside its primary.
    Readers(readers::Readers),
    /// Put all whole chunks of a directory into columns now, as Parquet files.
    ///
    /// A store does the same by itself while it is open. Chunks of a store that was written with
    /// --chunks raw, by a lean build or by an earlier version become Parquet files too.
    Compact(Compact),
    /// Make users with keys for a server, list them, or take them out.
    User(user::Args),
    /// Read every byte and name damage; compare a recording with its feed.
    Verify(verify::Verify),
}

/// The place of a store.
#[derive(clap::Args, Debug)]
struct Place {
    /// The store's directory, tcp://127.0.0.1:7410 for a server, or etcd://127.0.0.1:2379/name or
    /// keys://127.0.0.1:21811/name for a cluster. With --objects, the directory or address of its
    /// objects.
    dir: PathBuf,
    /// Read only the objects, as a second node does.
    #[arg(long)]
    objects: bool,
    /// In a cluster, also read unpublished records, from each file's primary. A server asks the
    /// primaries of other nodes' files for its reader.
    #[arg(long)]
    fresh: bool,
    #[command(flatten)]
    key: KeyArg,
}

/// The key of a user of a server.
#[derive(clap::Args, Debug)]
pub struct KeyArg {
    /// File of the key of a user of the server, which `evenfall store user new` has made. The
    /// connection is then sealed, and the server may be on another machine. Without it, the
    /// variable EVENFALL_STORE_KEY may name the file.
    #[arg(long = "key", value_name = "FILE")]
    key_file: Option<PathBuf>,
}

impl KeyArg {
    fn read(&self) -> Result<Option<UserKey>, StoreError> {
        match &self.key_file {
            Some(file) => read_user_key(file).map(Some),
            None => user_key_from_environment(),
        }
    }
}

/// Arguments of `evenfall store retain`.
#[derive(clap::Args, Debug)]
struct Retain {
    /// The store's directory.
    dir: PathBuf,
    /// A file or a recording.
    name: String,
    /// Age beyond which records may be deleted, such as 30d.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    age: Option<std::time::Duration>,
    /// Bytes of each file beyond which the oldest records may be deleted, counted in chunks of 4
    /// MiB.
    #[arg(long)]
    bytes: Option<u64>,
    #[command(flatten)]
    storage: StorageArgs,
}

/// Arguments of `evenfall store delete`.
#[derive(clap::Args, Debug)]
struct Delete {
    /// The store's directory.
    dir: PathBuf,
    /// A file or a recording.
    name: String,
    #[command(flatten)]
    storage: StorageArgs,
}

/// Arguments of `evenfall store compact`.
#[derive(clap::Args, Debug)]
struct Compact {
    /// The store's directory.
    dir: PathBuf,
    #[command(flatten)]
    storage: StorageArgs,
}

/// Whether this process has told of damage in a store.
static HAS_TOLD_DAMAGE: AtomicBool = AtomicBool::new(false);

/// Runs a command of `evenfall store`. Every command but `serve` ends with an error when the store
/// is damaged, even when it did its work, so that a script learns of the damage.
pub fn main(args: &Args) -> Outcome {
    run_command(args)?;
    let is_server = matches!(args.command, Command::Serve(_));
    match HAS_TOLD_DAMAGE.load(Relaxed) && !is_server {
        false => Ok(()),
        true => Err("the command is done, and the store was damaged: the lines above that begin \
                     with `damage` name what is lost, and what is kept"
            .into()),
    }
}

fn run_command(args: &Args) -> Outcome {
    match &args.command {
        Command::Serve(args) => serve::serve(args),
        Command::Ls(args) => ls::list_store(args),
        Command::Create(args) => create::create(args),
        Command::Append(args) => append::append(args),
        Command::Read(args) => read::read(args),
        Command::Tail(args) => read::tail(args),
        Command::Bars(args) => read::bars::print_bars(args),
        Command::Export(args) => read::export(args),
        Command::Derive(args) => derive::derive_tables(args),
        Command::Retain(args) => retain(args),
        Command::Delete(args) => delete(args),
        Command::Readers(args) => readers::assign_readers(args),
        Command::Compact(args) => compact(args),
        Command::User(args) => user::main(args),
        Command::Verify(args) => verify::verify(args),
    }
}

/// Waits until the encoder has nothing to do, and says what it did.
fn compact(args: &Compact) -> Outcome {
    if chunk_codec().is_none() {
        return Err(crate::missing::words("chunks in columns", "arrow").into());
    }
    let config = args.storage.config(&args.dir)?;
    if config.chunks == ChunkForm::Raw {
        return Err("--chunks raw leaves chunks as they are: leave it out".into());
    }
    expect_store(&args.dir)?;
    let store = open_as(config)?;
    let has_failed = || store.occupancy().encode_errors > 0;
    while !store.await_columns(std::time::Duration::from_secs(1)) && !has_failed() {}
    let sizes = store.occupancy();
    let (encoded, failed) = (sizes.encoded_chunks, sizes.encode_errors);
    store.close()?;
    say!("{encoded} chunks put into columns, {} bytes of chunks on the disk", sizes.local_bytes);
    match failed {
        0 => Ok(()),
        _ => Err(format!(
            "{failed} chunks stay raw: the disk refused, or a chunk is damaged; `evenfall store \
             verify {}` names damage",
            args.dir.display()
        )
        .into()),
    }
}

/// Returns the store, after printing on stderr what it dropped.
fn said(opened: OpenedStore) -> Store {
    tell(&opened.losses);
    opened.store
}

fn tell(losses: &[DiskLoss]) {
    losses.iter().for_each(|loss| aside!("{loss}"));
    HAS_TOLD_DAMAGE.fetch_or(losses.iter().any(|loss| !loss.is_torn_end), Relaxed);
}

/// Serves readers of the store of a recorder, and says where.
pub fn serve_readers(
    store: &Arc<Store>,
    listen: std::net::SocketAddr,
) -> Result<Box<dyn std::any::Any>, Box<dyn std::error::Error>> {
    let server = evenfall_store_server::Server::start_for_readers(Arc::clone(store), listen)?;
    aside!("serving tcp://{}", server.address());
    Ok(Box::new(server))
}

/// Opens a store with these limits to write, and prints on stderr what it dropped.
pub fn open_as(config: StoreConfig) -> Result<Store, Box<dyn std::error::Error>> {
    refuse_file(&config.directory)?;
    Ok(said(Store::open(config)?))
}

/// Opens a store without changing a byte of it, and prints on stderr what a crash took.
pub fn open_to_read(dir: &Path) -> Result<Store, Box<dyn std::error::Error>> {
    expect_store(dir)?;
    Ok(said(Store::open_to_read(storage_args::remembered(dir)?)?))
}

/// Refuses a file in the place of a store's directory.
fn refuse_file(dir: &Path) -> Result<(), String> {
    match dir.exists() && !dir.is_dir() {
        true => Err(format!("{}: this is a file, and a store is a directory", dir.display())),
        false => Ok(()),
    }
}

/// The advice to a user who named a directory without a store.
const STORE_ADVICE: &str = "name the directory that `evenfall store append` or --record has made";

/// Whether a directory has a file whose name fulfils a condition.
fn has_file(dir: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<bool, String> {
    let entries = std::fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    Ok(entries.flatten().any(|entry| is_wanted(&entry.file_name().to_string_lossy())))
}

/// Refuses a directory that has no file of a store. A reader would take the directory for an empty
/// store.
fn expect_store(dir: &Path) -> Result<(), String> {
    let shown = dir.display();
    refuse_file(dir)?;
    if is_address(dir) {
        return Err(format!(
            "{shown} is an address, and this command works in the directory of a store; with \
             --objects, `ls`, `read`, `tail`, `bars`, `export` and `verify` take the address of \
             objects"
        ));
    }
    if !dir.is_dir() {
        return Err(format!("{shown}: no such directory; {STORE_ADVICE}"));
    }
    let is_ours = |name: &str| {
        ["objects", names::FILE, clean_shutdown::NAME].contains(&name)
            || parse_chunk_name(name).is_some()
            || parse_journal_name(name).is_some()
    };
    match has_file(dir, is_ours)? {
        true => Ok(()),
        false => Err(format!("{shown}: no store is there; {STORE_ADVICE}")),
    }
}

/// Whether the place is an address such as `s3://bucket/prefix`, and no directory.
fn is_address(place: &Path) -> bool {
    place.to_str().is_some_and(|place| place.contains("://"))
}

/// The place of the objects of a store. The directory of a store is refused, because chunks on its
/// disk have the names of objects.
fn objects_at(place: &Path) -> Result<String, String> {
    let shown = place.display().to_string();
    let is_of_store = |name: &str| name == names::FILE || parse_journal_name(name).is_some();
    match place.is_dir() && has_file(place, is_of_store)? {
        true => Err(format!("{shown}: this is a store; its objects are in {shown}/objects")),
        false => Ok(shown),
    }
}

/// Connects to a server, and gives up after five seconds without an answer.
fn connect(
    address: &str,
    key: &KeyArg,
    freshness: Freshness,
) -> Result<Client, Box<dyn std::error::Error>> {
    let wrong = |error| format!("tcp://{address}: {error}");
    let options = ConnectOptions { freshness, ..ConnectOptions::with_key(key.read()?) };
    Ok(Client::connect_with(look_up(address).map_err(wrong)?, &options)?)
}

impl Place {
    /// Whether the place is a server's address.
    fn is_served(&self) -> bool {
        !self.objects && self.dir.to_str().is_some_and(|place| place.starts_with("tcp://"))
    }

    fn cluster(
        &self,
        names: &str,
        freshness: Freshness,
    ) -> Result<Arc<dyn RecordSource>, Box<dyn std::error::Error>> {
        storage_args::check_names(names)?;
        let options = BucketOptions::default();
        let source = ClusterSource::open(names, None, &options, freshness)?;
        Ok(Arc::new(source.with_key(self.key.read()?)))
    }

    fn source(&self) -> Result<Arc<dyn RecordSource>, Box<dyn std::error::Error>> {
        self.source_of(if self.fresh { Freshness::Fresh } else { Freshness::Published })
    }

    /// The names of the files. They are known without the primaries, of which one may be away.
    fn catalog(
        &self,
        source: &Arc<dyn RecordSource>,
    ) -> Result<Catalog, Box<dyn std::error::Error>> {
        Ok(match self.fresh {
            true => Catalog::read(&*self.source_of(Freshness::Published)?)?,
            false => Catalog::read(&**source)?,
        })
    }

    fn source_of(
        &self,
        freshness: Freshness,
    ) -> Result<Arc<dyn RecordSource>, Box<dyn std::error::Error>> {
        let address = self.dir.to_str().and_then(|place| place.strip_prefix("tcp://"));
        if let Some(address) = address.filter(|_| !self.objects) {
            return Ok(Arc::new(RemoteSource::new(connect(address, &self.key, freshness)?)));
        }
        let place = self.dir.display().to_string();
        if storage_args::is_names(&place) {
            return self.cluster(&place, freshness);
        }
        if !self.objects {
            return Ok(Arc::new(open_to_read(&self.dir)?));
        }
        Ok(Arc::new(Archive::open(&objects_at(&self.dir)?)?))
    }
}

fn feed_of(path: &Path) -> Feed {
    Feed { file: Some(path.to_owned()), ..Feed::default() }
}

/// The files for which a name stands: the user's file of that name, or else the files of a
/// recording.
fn files_of(store: &Store, name: &str) -> Result<Vec<Arc<StoreFile>>, Box<dyn std::error::Error>> {
    let catalog = Catalog::read(store)?;
    if catalog.file(name).is_some() {
        return Ok(vec![store.file(name)?]);
    }
    let files = catalog
        .recording(name)
        .ok_or_else(|| format!("no file and no recording {name}: see `store ls`"))?;
    Ok(files.files().map(|file| store.file(&file.name)).collect::<Result<_, _>>()?)
}

/// Works in a store, and closes the store whatever the result.
fn change(dir: &Path, storage: &StorageArgs, work: impl FnOnce(&Store) -> Outcome) -> Outcome {
    expect_store(dir)?;
    let store = open_as(storage.config(dir)?)?;
    let done = work(&store);
    store.close()?;
    done
}

fn retain(args: &Retain) -> Outcome {
    let age_ns_max = args.age.map(|age| u64::try_from(age.as_nanos()).unwrap_or(u64::MAX));
    let retention = Retention { age_ns_max, bytes_max: args.bytes };
    change(&args.dir, &args.storage, |store| {
        for file in files_of(store, &args.name)? {
            let first = store.retain(&file, retention)?;
            let (records, name) = (file.records(), printable(&file.name));
            say!("{name}: {} of {records} records are kept", records - first.min(records));
        }
        if let Some(step) = store.clock_step().filter(|_| args.age.is_some()) {
            aside!("note: {step}");
        }
        Ok(())
    })
}

fn delete(args: &Delete) -> Outcome {
    change(&args.dir, &args.storage, |store| {
        for file in files_of(store, &args.name)? {
            store.delete(&file.name)?;
            say!("{} deleted: {} records", printable(&file.name), file.records());
        }
        Ok(())
    })
}
