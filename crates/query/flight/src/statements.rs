//! Statements between two calls: prepared ones, planned ones that wait for their client, and
//! running ones that a client may cancel.
//!
//! A client knows a statement by a handle, sixteen random bytes. What is kept has limits. A plan
//! that nobody fetches is forgotten after some minutes, or when later plans need its place.
//! Prepared statements are forgotten when nobody has used them for half an hour.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use datafusion::common::ParamValues;
use datafusion::logical_expr::LogicalPlan;
use evenfall_query_sql::QuerySession;
use tokio::sync::watch;
use tonic::Status;

/// Prepared statements of all clients together.
const PREPARED_MAX: usize = 10_000;

/// Plans of all clients together that wait for their client.
const PLANNED_MAX: usize = 1_000;

/// Bytes of all kept statements and of their parameters together.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// How long a plan waits. A client fetches it at once.
const PLANNED_AGE_MAX: Duration = Duration::from_secs(300);

/// How long a prepared statement is kept after its last use.
const PREPARED_AGE_MAX: Duration = Duration::from_secs(1_800);

/// What a kept statement takes beside its text: a plan of some nodes.
const BESIDE_TEXT: usize = 4 << 10;

/// The handle of a statement.
pub(crate) type Handle = [u8; 16];

/// A prepared statement.
#[derive(Clone)]
pub(crate) struct PreparedStatement {
    pub(crate) sql: Arc<str>,
    pub(crate) session: QuerySession,
    pub(crate) parameters: usize,
    /// The values that were bound last.
    pub(crate) bound: Option<ParamValues>,
}

/// A plan that waits for its client.
pub(crate) struct PlannedQuery {
    pub(crate) sql: Arc<str>,
    pub(crate) session: QuerySession,
    pub(crate) plan: LogicalPlan,
}

struct Kept<T> {
    value: T,
    bytes: usize,
    used: Instant,
}

#[derive(Default)]
struct Tables {
    prepared: HashMap<Handle, Kept<PreparedStatement>>,
    planned: HashMap<Handle, Kept<PlannedQuery>>,
    running: HashMap<Handle, Arc<watch::Sender<bool>>>,
}

/// The statements of a listener.
#[derive(Default)]
pub(crate) struct StatementTable(Mutex<Tables>);

/// What became of a cancelled statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cancelled {
    /// The statement waited or ran, and ends.
    Ends,
    /// Nobody knows the handle: the statement has ended, or there never was one.
    Unknown,
}

impl StatementTable {
    /// Keeps a prepared statement.
    ///
    /// # Errors
    /// No place, which the words say.
    pub(crate) fn keep_prepared(&self, statement: PreparedStatement) -> Result<Handle, Status> {
        let mut tables = self.0.lock().expect("no panic holds the lock");
        tables.forget_old(Instant::now());
        let bytes = statement.sql.len() + BESIDE_TEXT;
        if tables.prepared.len() >= PREPARED_MAX || tables.bytes() + bytes > KEPT_BYTES_MAX {
            return Err(Status::resource_exhausted(
                "all places of prepared statements are taken; close some",
            ));
        }
        let handle = new_handle()?;
        let kept = Kept { value: statement, bytes, used: Instant::now() };
        tables.prepared.insert(handle, kept);
        Ok(handle)
    }

    /// A prepared statement as it is bound now.
    ///
    /// # Errors
    /// A handle that nobody knows.
    pub(crate) fn find_prepared(&self, handle: &[u8]) -> Result<PreparedStatement, Status> {
        let mut tables = self.0.lock().expect("no panic holds the lock");
        let kept = find(&mut tables.prepared, handle)?;
        kept.used = Instant::now();
        Ok(kept.value.clone())
    }

    /// Binds the parameters of a prepared statement.
    ///
    /// # Errors
    /// A handle that nobody knows, and values for which there is no place.
    pub(crate) fn bind(
        &self,
        handle: &[u8],
        values: ParamValues,
        value_bytes: usize,
    ) -> Result<(), Status> {
        let mut tables = self.0.lock().expect("no panic holds the lock");
        let all = tables.bytes();
        let kept = find(&mut tables.prepared, handle)?;
        let bytes = kept.value.sql.len() + BESIDE_TEXT + value_bytes;
        if all - kept.bytes + bytes > KEPT_BYTES_MAX {
            return Err(Status::resource_exhausted("there is no place for the parameters"));
        }
        kept.bytes = bytes;
        kept.value.bound = Some(values);
        Ok(())
    }

    /// Forgets a prepared statement.
    pub(crate) fn close_prepared(&self, handle: &[u8]) {
        let mut tables = self.0.lock().expect("no panic holds the lock");
        if let Ok(handle) = Handle::try_from(handle) {
            tables.prepared.remove(&handle);
        }
    }

    /// Keeps a plan until its client fetches the rows. The plan that has waited longest makes room.
    ///
    /// # Errors
    /// A system without random numbers.
    pub(crate) fn keep_planned(&self, query: PlannedQuery) -> Result<Handle, Status> {
        let handle = new_handle()?;
        let mut tables = self.0.lock().expect("no panic holds the lock");
        tables.forget_old(Instant::now());
        let bytes = query.sql.len() + BESIDE_TEXT;
        while tables.planned.len() >= PLANNED_MAX
            || (tables.bytes() + bytes > KEPT_BYTES_MAX && !tables.planned.is_empty())
        {
            let oldest = tables.planned.iter().min_by_key(|(_, kept)| kept.used);
            let Some(oldest) = oldest.map(|(handle, _)| *handle) else { break };
            tables.planned.remove(&oldest);
        }
        tables.planned.insert(handle, Kept { value: query, bytes, used: Instant::now() });
        Ok(handle)
    }

    /// Takes a plan that is to run under its handle, and hears of its cancellation.
    ///
    /// # Errors
    /// A handle that nobody knows.
    pub(crate) fn begin(
        self: &Arc<Self>,
        handle: &[u8],
    ) -> Result<(PlannedQuery, RunningStatement), Status> {
        let mut tables = self.0.lock().expect("no panic holds the lock");
        let handle = Handle::try_from(handle).map_err(|_| unknown_handle())?;
        let query = tables.planned.remove(&handle).ok_or_else(unknown_handle)?.value;
        let (sender, cancelled) = watch::channel(false);
        tables.running.insert(handle, Arc::new(sender));
        let running = RunningStatement { table: Arc::clone(self), handle, cancelled };
        Ok((query, running))
    }

    /// Cancels a statement that waits or runs.
    pub(crate) fn cancel(&self, handle: &[u8]) -> Cancelled {
        let Ok(handle) = Handle::try_from(handle) else { return Cancelled::Unknown };
        let mut tables = self.0.lock().expect("no panic holds the lock");
        let waited = tables.planned.remove(&handle).is_some();
        let ran = tables.running.get(&handle).inspect(|running| {
            running.send_replace(true);
        });
        match waited || ran.is_some() {
            true => Cancelled::Ends,
            false => Cancelled::Unknown,
        }
    }
}

impl Tables {
    fn bytes(&self) -> usize {
        let prepared = self.prepared.values().map(|kept| kept.bytes);
        prepared.chain(self.planned.values().map(|kept| kept.bytes)).sum()
    }

    fn forget_old(&mut self, now: Instant) {
        self.prepared.retain(|_, kept| now.duration_since(kept.used) < PREPARED_AGE_MAX);
        self.planned.retain(|_, kept| now.duration_since(kept.used) < PLANNED_AGE_MAX);
    }
}

/// A statement under way. It is known for as long as this value lives.
pub(crate) struct RunningStatement {
    table: Arc<StatementTable>,
    handle: Handle,
    cancelled: watch::Receiver<bool>,
}

impl RunningStatement {
    /// Ends when the statement is cancelled.
    pub(crate) async fn until_cancelled(mut self) -> Status {
        // The sender lives in the table as long as this value.
        if self.cancelled.wait_for(|cancelled| *cancelled).await.is_err() {
            std::future::pending::<()>().await;
        }
        Status::cancelled("the statement was cancelled")
    }
}

impl Drop for RunningStatement {
    fn drop(&mut self) {
        let mut tables = self.table.0.lock().expect("no panic holds the lock");
        tables.running.remove(&self.handle);
    }
}

fn find<'a, T>(
    table: &'a mut HashMap<Handle, Kept<T>>,
    handle: &[u8],
) -> Result<&'a mut Kept<T>, Status> {
    let handle = Handle::try_from(handle).map_err(|_| unknown_handle())?;
    table.get_mut(&handle).ok_or_else(unknown_handle)
}

fn unknown_handle() -> Status {
    Status::not_found("no statement has this handle: it was closed, was fetched or waited too long")
}

fn new_handle() -> Result<Handle, Status> {
    let mut handle = Handle::default();
    let failed = |error: io::Error| Status::unavailable(format!("no random numbers: {error}"));
    evenfall_host::random::fill(&mut handle).map_err(failed)?;
    Ok(handle)
}

/// A handle as it goes over the wire.
pub(crate) fn handle_bytes(handle: Handle) -> Bytes {
    Bytes::copy_from_slice(&handle)
}
