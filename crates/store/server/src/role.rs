//! A store on a port as a process: it serves until a signal comes, and takes over files of nodes
//! that are gone.

use std::collections::BTreeSet;
use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use evenfall_host::{interrupt, procstat};
use evenfall_runtime::service::Observed;
use evenfall_runtime::telemetry::Metrics;
use evenfall_store_engine::{NamesError, Occupancy, Store, StoreError};
use evenfall_store_format::age_clock::ClockStep;
use evenfall_store_format::volume::DiskLoss;
use serde_json::{Value, json};

use crate::settings::StoreSettings;
use crate::settlement_watch::SettlementWatch;
#[cfg(feature = "users")]
use crate::users::{UsersError, users_file::WatchedUsers};
use crate::{ClientLimits, Server, ServerCounts};

/// How often the process looks for a signal.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Files that a process opens beside its connections: chunks and journals of its store, and the
/// connections to objects, names and other nodes.
const FILES_BESIDE_CONNECTIONS: u64 = 256;

/// How the process of a store speaks to its user.
pub struct ServeOutput<'a> {
    /// Takes a line of the ordinary output.
    pub say: &'a dyn Fn(&str),
    /// Takes a part of the disk that cannot be used.
    pub tell: &'a dyn Fn(&DiskLoss),
    /// Takes a line beside the output.
    pub note: &'a dyn Fn(&str),
}

/// The store that a process serves at present. A process opens its store again to take over files.
#[derive(Default)]
pub struct ServedStore(Mutex<Option<(Weak<Store>, Arc<Server>)>>);

impl ServedStore {
    fn set(&self, served: Option<(Weak<Store>, Arc<Server>)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = served;
    }

    /// The present sizes and counts, and why the store is not well.
    fn read(&self) -> Option<StoreState> {
        let served = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (store, server) = served?;
        let store = store.upgrade()?;
        let lease = store.member().and_then(|member| member.check_lease().err());
        Some(StoreState {
            sizes: store.occupancy(),
            counts: server.counts(),
            illness: lease.map(|error| error.to_string()),
        })
    }
}

/// The state of a served store at one moment.
struct StoreState {
    sizes: Occupancy,
    counts: ServerCounts,
    illness: Option<String>,
}

impl Observed for ServedStore {
    fn metrics(&self, m: &mut Metrics) {
        let Some(StoreState { sizes, counts, .. }) = self.read() else { return };
        for (name, help, value) in [
            ("store_connections_total", "Connections accepted.", counts.accepted),
            ("store_turned_away_total", "Connections refused: all were busy.", counts.turned_away),
            ("store_made_room_total", "Idle connections closed for new ones.", counts.made_room),
            (
                "store_malformed_connections_total",
                "Connections of malformed bytes.",
                counts.malformed,
            ),
            ("store_timed_out_total", "Connections closed as silent.", counts.timed_out),
            ("store_subscriptions_total", "Subscriptions begun.", counts.subscriptions),
            (
                "store_starved_subscriptions_total",
                "Subscriptions ended for want of credit.",
                counts.starved_subscriptions,
            ),
            ("store_failed_appends_total", "Appends that failed.", counts.failed_appends),
            ("store_sent_bytes_total", "Bytes of replies.", counts.sent_bytes),
            (
                "store_refused_handshakes_total",
                "Connections without the key of a user.",
                counts.refused_handshakes,
            ),
            (
                "store_refused_rights_total",
                "Requests for which their user lacks the right.",
                counts.refused_rights,
            ),
            ("store_refused_appends_total", "Appends that a stage refused.", sizes.refused),
            ("store_commits_total", "Turns of the disk thread.", sizes.commits),
            ("store_disk_errors_total", "Failed requests of the disk.", sizes.disk_errors),
            (
                "store_upload_errors_total",
                "Failed requests of the object store.",
                sizes.upload_errors,
            ),
            (
                "store_encoded_chunks_total",
                "Chunks that were put into columns.",
                sizes.encoded_chunks,
            ),
            (
                "store_encode_errors_total",
                "Failed attempts to put a chunk into columns.",
                sizes.encode_errors,
            ),
            ("store_cache_evictions_total", "Segments that left the cache.", sizes.cache_evictions),
            ("store_written_bytes_total", "Bytes written to disk.", sizes.written.total()),
        ] {
            m.counter(name, help, 0, value);
        }
        put_cluster_counts(m, &sizes, &counts);
        put_sizes(m, &sizes);
        m.gauge(
            "store_clock_step_seconds",
            "Step of the wall clock for which retention by age stands still.",
            0,
            sizes.clock_step_seconds as f64,
        );
        let away = f64::from(u8::from(sizes.is_replica_away));
        m.gauge("store_replica_away", "1 while the second node is absent.", 0, away);
    }

    fn explain_illness(&self) -> Option<String> {
        match self.read() {
            None => Some("the store is being opened".into()),
            Some(state) => state.illness,
        }
    }

    fn status(&self) -> Value {
        self.read().map_or(Value::Null, |state| {
            let mut all = serde_json::to_value(state.sizes).unwrap_or_default();
            all["server"] = serde_json::to_value(state.counts).unwrap_or_else(|_| json!({}));
            all
        })
    }
}

/// The sizes of the stages at present.
fn put_sizes(m: &mut Metrics, sizes: &Occupancy) {
    for (name, help, value) in [
        ("store_memory_bytes", "Bytes of records that no disk has.", sizes.memory_bytes),
        (
            "store_held_bytes",
            "Bytes of records in journals that wait in memory for their chunk.",
            sizes.held_bytes,
        ),
        ("store_local_bytes", "Bytes of chunks on the local disk.", sizes.local_bytes),
        ("store_cache_bytes", "Bytes in the read cache.", sizes.cache_bytes),
        ("store_upload_chunks", "Chunks that wait for the object store.", sizes.upload_chunks),
        ("store_encode_chunks", "Chunks that wait for the encoder.", sizes.encode_chunks),
        ("store_replica_bytes", "Bytes that the second node lacks.", sizes.replica_bytes),
    ] {
        m.gauge(name, help, 0, value as f64);
    }
}

/// Writes the counters of reads between the nodes of a cluster.
fn put_cluster_counts(m: &mut Metrics, sizes: &Occupancy, counts: &ServerCounts) {
    for (name, help, value) in [
        (
            "store_primary_bytes_total",
            "Bytes of records that were read here as from their primary.",
            counts.primary_bytes,
        ),
        (
            "store_others_cache_bytes_total",
            "Bytes of other nodes' files that readers got from memory here.",
            sizes.others_cache_bytes,
        ),
        (
            "store_others_object_bytes_total",
            "Bytes of other nodes' files that readers got from the object store.",
            sizes.others_object_bytes,
        ),
        (
            "store_others_primary_bytes_total",
            "Bytes of other nodes' files that readers got from their primaries.",
            sizes.others_primary_bytes,
        ),
    ] {
        m.counter(name, help, 0, value);
    }
}

/// Raises this process's limit of open files, and notes a limit that is too low for so many
/// connections.
fn raise_open_files(connections: usize, voice: &ServeOutput<'_>) {
    let Some(files) = procstat::raise_files() else { return };
    let most = files.saturating_sub(FILES_BESIDE_CONNECTIONS);
    if most < connections as u64 {
        (voice.note)(&format!(
            "note: this machine lets the process open {files} files, and so {most} connections of \
             the {connections} of store.connections: raise the limit (ulimit -n, LimitNOFILE=)"
        ));
    }
}

/// Serves a store until a signal comes. Returns the counts of its connections.
///
/// # Errors
/// When the store cannot be opened, an address cannot be had, or the lease is over.
pub fn serve(
    settings: &StoreSettings,
    directory: &Path,
    mut listen: SocketAddr,
    served: &ServedStore,
    voice: &ServeOutput<'_>,
    occupancy_every: Option<Duration>,
) -> Result<ServerCounts, Box<dyn Error>> {
    let mut users = ServerUsers::open(settings)?;
    if settings.names.is_some() && listen.ip().is_unspecified() {
        // The other nodes and the readers of the cluster learn this address from the names.
        let why =
            format!("listen address {listen}: name the address at which other nodes reach it");
        return Err(why.into());
    }
    raise_open_files(settings.connections, voice);
    let mut objects = SettlementWatch::default();
    loop {
        let opened = Store::open(settings.config(directory)?)?;
        opened.losses.iter().for_each(voice.tell);
        let store = Arc::new(opened.store);
        objects.begin_life(store.awaits_objects());
        let (connections_max, idle_timeout) = (settings.connections, settings.idle_timeout);
        let limits = ClientLimits { connections_max, idle_timeout, ..ClientLimits::default() };
        let server = Arc::new(users.start(Arc::clone(&store), listen, limits)?);
        listen = server.address();
        served.set(Some((Arc::downgrade(&store), Arc::clone(&server))));
        (voice.say)(&format!("serving tcp://{listen}"));
        if let Some(member) = store.member() {
            member.serve_at(Some(listen.to_string()))?;
        }
        let take_over = settings.take_over;
        let (users, objects) = (&mut users, &mut objects);
        let end = attend(&store, &server, take_over, users, objects, voice, occupancy_every);
        served.set(None);
        let counts = stop(server);
        close(store)?;
        let why = match end {
            Ok(End::NewLife) => "taking over",
            Ok(End::Settled) => "the objects answer",
            end => return Ok(end.map(|_| counts)?),
        };
        (voice.say)(&format!("{why}: the store is opened again"));
    }
}

/// The users of the server of a process, in a build that has them.
#[cfg(feature = "users")]
struct ServerUsers {
    watched: Option<WatchedUsers>,
    looked_at: Instant,
}

#[cfg(feature = "users")]
impl ServerUsers {
    /// How often the file is looked at.
    const LOOK_EVERY: Duration = Duration::from_secs(1);

    fn open(settings: &StoreSettings) -> Result<Self, UsersError> {
        let watched = settings.users_file.as_deref().map(WatchedUsers::open).transpose()?;
        Ok(Self { watched, looked_at: Instant::now() })
    }

    fn start(
        &self,
        store: Arc<Store>,
        listen: SocketAddr,
        limits: ClientLimits,
    ) -> Result<Server, StoreError> {
        match &self.watched {
            Some(watched) => {
                Server::start_for_users(store, listen, limits, Arc::clone(&watched.users))
            }
            None => Server::start_with(store, listen, limits),
        }
    }

    /// Takes a changed file in. Users who were taken out lose their connections.
    fn refresh(&mut self, server: &Server, voice: &ServeOutput<'_>) {
        let Some(watched) = &mut self.watched else { return };
        if self.looked_at.elapsed() < Self::LOOK_EVERY {
            return;
        }
        self.looked_at = Instant::now();
        match watched.refresh() {
            Ok(true) => {
                let closed = server.close_revoked();
                (voice.note)(&format!("note: the users have changed, {closed} connections closed"));
            }
            Ok(false) => {}
            Err(error) => (voice.note)(&format!("note: {error}; the users stay as they were")),
        }
    }
}

/// A build without users serves programs on this machine.
#[cfg(not(feature = "users"))]
struct ServerUsers;

#[cfg(not(feature = "users"))]
impl ServerUsers {
    fn open(settings: &StoreSettings) -> Result<Self, String> {
        match settings.users_file {
            Some(_) => Err("users are not in this build, build the feature users".into()),
            None => Ok(Self),
        }
    }

    fn start(
        &self,
        store: Arc<Store>,
        listen: SocketAddr,
        limits: ClientLimits,
    ) -> Result<Server, StoreError> {
        Server::start_with(store, listen, limits)
    }

    fn refresh(&mut self, _: &Server, _: &ServeOutput<'_>) {}
}

/// How long a reader of the pages may hold a store or a server that ends.
const READERS: Duration = Duration::from_secs(5);

/// The only owner of a value, once readers of the pages have let go of it.
fn only<T>(mut shared: Arc<T>) -> Option<T> {
    let until = Instant::now() + READERS;
    loop {
        match Arc::try_unwrap(shared) {
            Ok(value) => return Some(value),
            Err(still) if Instant::now() < until => shared = still,
            Err(_) => return None,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn stop(server: Arc<Server>) -> ServerCounts {
    let counts = server.counts();
    only(server).map_or(counts, Server::stop)
}

fn close(store: Arc<Store>) -> Result<(), Box<dyn Error>> {
    Ok(only(store).ok_or("a connection holds the store")?.stop()?)
}

/// Why a store is closed.
enum End {
    Signal,
    /// Some files can only be taken over by a new life of the store.
    NewLife,
    /// Some files have waited for the objects, and the objects answer.
    Settled,
}

/// Waits until a signal comes or the lease is over. Meanwhile it takes over files of nodes that are
/// gone.
fn attend(
    store: &Store,
    server: &Server,
    take_over: bool,
    users: &mut ServerUsers,
    objects: &mut SettlementWatch,
    voice: &ServeOutput<'_>,
    occupancy_every: Option<Duration>,
) -> Result<End, StoreError> {
    let (mut looked_at, mut printed_at) = (Instant::now(), Instant::now());
    let mut said = BTreeSet::new();
    let mut has_stepped = false;
    while !interrupt::raised() {
        std::thread::sleep(LOOK_EVERY);
        has_stepped = say_step(store.clock_step(), has_stepped, voice);
        users.refresh(server, voice);
        if occupancy_every.is_some_and(|every| printed_at.elapsed() >= every) {
            printed_at = Instant::now();
            let mut sizes = serde_json::to_value(store.occupancy()).unwrap_or_default();
            sizes["sent_bytes"] = server.counts().sent_bytes.into();
            (voice.say)(&sizes.to_string());
        }
        if objects.look(store) {
            return Ok(End::Settled);
        }
        let Some(member) = store.member() else { continue };
        match member.check_lease() {
            Err(error @ NamesError::LeaseLost { is_over: true, .. }) => return Err(error.into()),
            _ if take_over && looked_at.elapsed() > member.lease_ttl() / 4 => {
                looked_at = Instant::now();
                adopt(store, &mut said, voice);
                if store.is_new_life_due().unwrap_or(false) {
                    return Ok(End::NewLife);
                }
            }
            _ => {}
        }
    }
    Ok(End::Signal)
}

/// Notes the change when the wall clock has stepped, and when it is back. Returns whether the clock
/// has stepped.
fn say_step(step: Option<ClockStep>, has_stepped: bool, voice: &ServeOutput<'_>) -> bool {
    match step {
        Some(step) if !has_stepped => (voice.note)(&format!("note: {step}")),
        None if has_stepped => (voice.note)("note: the wall clock is back, and files age again"),
        _ => {}
    }
    step.is_some()
}

/// Takes over files of nodes that are gone. `said` has the files whose failure the user knows.
fn adopt(store: &Store, said: &mut BTreeSet<String>, voice: &ServeOutput<'_>) {
    // A takeover that fails now is tried again.
    let Ok(taken) = store.take_over() else { return };
    taken.losses.iter().for_each(voice.tell);
    if taken.files > 0 {
        (voice.say)(&format!("{} files taken over", taken.files));
    }
    for (name, error) in taken.failed {
        let what = format!("file {name} is not taken over yet: {error}");
        if said.insert(name) {
            (voice.note)(&format!("note: {what}; it is tried again"));
        }
    }
}
