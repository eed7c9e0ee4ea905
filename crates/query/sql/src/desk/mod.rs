//! `reprice(...)` and `nbbo(...)`: what a desk asks of the last seconds, as tables.
//!
//! ```text
//!  reprice('positions', interval '5 s', 10)             accounts that lost most in the window
//!  nbbo(interval '5 s')                                 best bid and offer over venues
//!  nbbo('fills', interval '5 s', interval '100 ms')     fills beside it
//! ```
//!
//! Where the engine has standing workers ([`DeskSource`]), they are asked: positions lie with them,
//! and fills are sent. Otherwise the recordings of the store are the venues. Both ways answer by
//! the steps of [`evenfall_query_member::desk`], so that the answer does not depend on where the
//! rows of the window lie. A recording without a message in the window has no part in the answer,
//! unlike a worker without one. The question is asked when a statement runs, and not when it is
//! planned.
//!
//! | module | what |
//! |---|---|
//! | `arguments` | the arguments of both functions |
//! | `given` | positions and fills out of a table |
//! | `venues` | the last seconds of the recordings |
//! | `answers` | answers as rows |

mod answers;
mod arguments;
mod given;
#[cfg(test)]
mod tests;
mod venues;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::catalog::{Session, TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::{DataFusionError, Result, exec_err, plan_err};
use datafusion::execution::{SendableRecordBatchStream, SessionState, TaskContext};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::streaming::PartitionStream;
use evenfall_query_member::desk::in_place::answer_in_place;
use evenfall_query_member::desk::nbbo::DeskFill;
use evenfall_query_member::desk::reprice::DeskPosition;
use evenfall_query_member::desk::{DeskAnswer, DeskAsk};
use evenfall_query_member::standing_group::AskerEvent;
use evenfall_query_member::{AccessError, DeskClient, WorkerAccess};
use evenfall_store_recording::tables::{TableError, TableName, Tables};

use self::answers::{AnswerSource, answer_schema, encode_answer};
use self::arguments::{DeskCall, DeskFunctionName};
use self::given::{GIVEN_ROWS_MAX, GivenRows};
use crate::faults::table_error;
use crate::scan::SnapshotTable;

/// The table of positions of standing workers, which lies with them.
const WORKERS_POSITIONS: &str = "positions";

/// Who answers `reprice` and `nbbo`: by default the recordings of the store.
#[derive(Clone, Default)]
pub struct DeskSource {
    workers: Option<Arc<AskedWorkers>>,
}

struct AskedWorkers {
    access: WorkerAccess,
    /// One question at a time. Others wait: a question ends within ten silences.
    client: Mutex<DeskClient>,
}

impl DeskSource {
    /// Standing workers answer.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn of_workers(access: WorkerAccess) -> std::result::Result<Self, AccessError> {
        let client = Mutex::new(access.connect()?);
        Ok(Self { workers: Some(Arc::new(AskedWorkers { access, client })) })
    }

    /// Makes both functions known to a statement. `added` are the tables that a user added.
    pub(crate) fn register(
        &self,
        state: &mut SessionState,
        tables: &Arc<dyn Tables>,
        added: &Arc<BTreeMap<String, Arc<dyn TableProvider>>>,
    ) {
        for name in [DeskFunctionName::Reprice, DeskFunctionName::Nbbo] {
            let (source, tables, added) = (self.clone(), Arc::clone(tables), Arc::clone(added));
            let function = DeskFunction { name, source, tables, added };
            state.register_udtf(name.as_str(), Arc::new(function));
        }
    }
}

impl fmt::Debug for DeskSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.workers {
            Some(workers) => write!(f, "DeskSource({} workers)", workers.access.workers.len()),
            None => f.write_str("DeskSource(recordings)"),
        }
    }
}

/// The table function.
struct DeskFunction {
    name: DeskFunctionName,
    source: DeskSource,
    tables: Arc<dyn Tables>,
    added: Arc<BTreeMap<String, Arc<dyn TableProvider>>>,
}

impl fmt::Debug for DeskFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name.as_str())
    }
}

impl TableFunctionImpl for DeskFunction {
    fn call_with_args(&self, args: TableFunctionArgs<'_, '_>) -> Result<Arc<dyn TableProvider>> {
        let mut call = DeskCall::read(self.name, args.exprs())?;
        // The workers have the positions, so that there is no table to read.
        if self.source.workers.is_some()
            && self.name == DeskFunctionName::Reprice
            && let Some(name) = call.given.take()
            && name != WORKERS_POSITIONS
        {
            return plan_err!(
                "reprice('{name}', ...): standing workers hold the positions, and the name of \
                 these is '{WORKERS_POSITIONS}'"
            );
        }
        let (source, tables) = (self.source.clone(), Arc::clone(&self.tables));
        let schema = answer_schema(call.kind());
        Ok(Arc::new(DeskTable { call, source, tables, added: Arc::clone(&self.added), schema }))
    }
}

/// The table of one call.
struct DeskTable {
    call: DeskCall,
    source: DeskSource,
    tables: Arc<dyn Tables>,
    added: Arc<BTreeMap<String, Arc<dyn TableProvider>>>,
    schema: SchemaRef,
}

impl fmt::Debug for DeskTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeskTable({:?})", self.call)
    }
}

impl DeskTable {
    /// The table of positions or fills that the call names.
    async fn find_given(&self, name: &str) -> Result<Arc<dyn TableProvider>> {
        if let Some(added) = self.added.get(name) {
            return Ok(Arc::clone(added));
        }
        let (tables, file) = (Arc::clone(&self.tables), TableName::of_file(name));
        let opened = tokio::task::spawn_blocking(move || tables.open(&file)).await;
        match opened.map_err(|error| DataFusionError::External(Box::new(error)))? {
            Ok(snapshot) => Ok(Arc::new(SnapshotTable::new(snapshot))),
            Err(TableError::UnknownTable(_)) => plan_err!(
                "there is no table {name} with {}: add it by --table {name}=FILE.csv",
                self.call.kind().given_columns().join(", ")
            ),
            Err(error) => Err(table_error(&TableName::of_file(name), error)),
        }
    }
}

#[async_trait]
impl TableProvider for DeskTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let given = match &self.call.given {
            Some(name) => {
                let table = self.find_given(name).await?;
                // One row more than is taken, so that a longer table is seen.
                Some(table.scan(state, None, &[], Some(GIVEN_ROWS_MAX + 1)).await?)
            }
            None => None,
        };
        let (source, tables) = (self.source.clone(), Arc::clone(&self.tables));
        let (call, schema) = (self.call.clone(), Arc::clone(&self.schema));
        let answer = DeskStream { call, source, tables, given, schema };
        let table = StreamingTable::try_new(Arc::clone(&self.schema), vec![Arc::new(answer)])?;
        table.scan(state, projection, filters, limit).await
    }
}

/// The answer of a call, when the statement runs.
#[derive(Clone)]
struct DeskStream {
    call: DeskCall,
    source: DeskSource,
    tables: Arc<dyn Tables>,
    given: Option<Arc<dyn ExecutionPlan>>,
    schema: SchemaRef,
}

impl fmt::Debug for DeskStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeskStream({:?})", self.call)
    }
}

impl PartitionStream for DeskStream {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let mut answer = RecordBatchReceiverStream::builder(Arc::clone(&self.schema), 1);
        let (sender, this) = (answer.tx(), self.clone());
        answer.spawn(async move {
            let kind = this.call.kind();
            let given = match &this.given {
                Some(plan) => given::read_given(kind, Arc::clone(plan), context).await?,
                None => GivenRows::default(),
            };
            let closed = sender.clone();
            let ask = move || this.ask(given, &|| !closed.is_closed());
            let rows = tokio::task::spawn_blocking(ask).await;
            let rows = rows.map_err(|error| DataFusionError::External(Box::new(error)))??;
            // Nobody listens any more when the query has ended or was cancelled.
            let _ = sender.send(Ok(rows)).await;
            Ok(())
        });
        answer.build()
    }
}

impl DeskStream {
    /// Asks, and waits for the answer.
    fn ask(&self, given: GivenRows, goes_on: &dyn Fn() -> bool) -> Result<RecordBatch> {
        let fills: Arc<[DeskFill]> = given.fills.into();
        let ask = self.call.ask(Arc::clone(&fills));
        let (answer, source) = match &self.source.workers {
            Some(workers) => ask_workers(workers, ask, goes_on)?,
            None => ask_recordings(&*self.tables, given.positions, &ask, goes_on)?,
        };
        encode_answer(self.call.kind(), &answer, &fills, &source, Arc::clone(&self.schema))
    }
}

fn ask_workers(
    workers: &AskedWorkers,
    ask: DeskAsk,
    goes_on: &dyn Fn() -> bool,
) -> Result<(DeskAnswer, AnswerSource)> {
    // A question that panicked may still be under way. `ask` lets it end first.
    let mut client = workers.client.lock().unwrap_or_else(PoisonError::into_inner);
    if !goes_on() {
        return exec_err!("the statement was ended while others asked");
    }
    let asked = client.ask(ask).map_err(|error| DataFusionError::External(Box::new(error)))?;
    let answered = match asked {
        AskerEvent::Answered(answered) => answered,
        AskerEvent::Unanswered { workers: here, missing, .. } => {
            return exec_err!("{}", workers.access.say_unanswered(here, &missing));
        }
    };
    let address = |&worker: &usize| workers.access.workers[worker].to_string();
    let venues = answered.workers.iter().map(address).collect();
    let missing = answered.missing.iter().map(|one| format!("{}: {}", one.address, one.why));
    let missing: Vec<String> = missing.collect();
    match answered.output.answer {
        Some(answer) => Ok((answer, AnswerSource { venues, missing: missing.join("; ") })),
        None => exec_err!("the workers have ended the question without an answer"),
    }
}

fn ask_recordings(
    tables: &dyn Tables,
    positions: Vec<DeskPosition>,
    ask: &DeskAsk,
    goes_on: &dyn Fn() -> bool,
) -> Result<(DeskAnswer, AnswerSource)> {
    let read = venues::read_venues(tables, ask.window, goes_on)?;
    let answer = answer_in_place(&read.rows, positions, ask, read.newest_ns.unwrap_or(0));
    let answer = answer.map_err(|error| DataFusionError::External(Box::new(error)))?;
    Ok((answer, AnswerSource { venues: read.names, missing: String::new() }))
}
