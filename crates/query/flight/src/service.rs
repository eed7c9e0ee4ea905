//! The calls of Flight SQL.
//!
//! A statement takes two calls. The first one plans it, and answers with its columns and a ticket.
//! The second one fetches the rows by the ticket. A prepared statement is planned anew each time it
//! is asked for, so that it sees what has been appended since.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_server::FlightService;
use arrow_flight::sql::metadata::{SqlInfoData, XdbcTypeInfoData};
use arrow_flight::sql::server::{FlightSqlService, PeekableFlightDataStream};
use arrow_flight::sql::{
    ActionCancelQueryRequest, ActionCancelQueryResult, ActionClosePreparedStatementRequest,
    ActionCreatePreparedStatementRequest, ActionCreatePreparedStatementResult, Any,
    CommandGetCatalogs, CommandGetCrossReference, CommandGetDbSchemas, CommandGetExportedKeys,
    CommandGetImportedKeys, CommandGetPrimaryKeys, CommandGetSqlInfo, CommandGetTableTypes,
    CommandGetTables, CommandGetXdbcTypeInfo, CommandPreparedStatementQuery,
    CommandPreparedStatementUpdate, CommandStatementIngest, CommandStatementQuery,
    CommandStatementUpdate, DoPutPreparedStatementResult, ProstMessageExt, SqlInfo,
    TicketStatementQuery,
};
use arrow_flight::{
    Action, CancelFlightInfoRequest, CancelFlightInfoResult, CancelStatus, FlightData,
    FlightDescriptor, FlightEndpoint, FlightInfo, HandshakeRequest, HandshakeResponse, IpcMessage,
    SchemaAsIpc, Ticket,
};
use datafusion::common::{DataFusionError, ParamValues, ScalarValue};
use datafusion::logical_expr::LogicalPlan;
use evenfall_query_sql::{QueryEngine, QuerySession, run_on};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, stream};
use prost::Message as _;
use tokio::runtime::Handle as RuntimeHandle;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use crate::errors::{arrow_status, statement_status};
use crate::metadata::{self, TABLE};
use crate::outgoing::{outgoing_batch, outgoing_schema};
use crate::statements::{
    Cancelled, PlannedQuery, PreparedStatement, RunningStatement, StatementTable, handle_bytes,
};

/// The headers of a call that name the recording that is searched first.
const DATABASE_HEADERS: [&str; 2] = ["database", "catalog"];

/// The database of a call that names none.
const DEFAULT_DATABASE: &str = "evenfall";

/// Sessions that are kept, and for how long. A session that is kept does not search a recording
/// that is new.
const SESSIONS_MAX: usize = 64;
const SESSION_AGE_MAX: Duration = Duration::from_secs(2);

/// The action by which later clients cancel.
const CANCEL_FLIGHT_INFO: &str = "CancelFlightInfo";

const READS_ONLY: &str = "only statements that read are taken";

type FlightStream = Pin<Box<dyn Stream<Item = Result<FlightData, Status>> + Send>>;
type Answer<T> = Result<Response<T>, Status>;

/// The engine behind the calls.
#[derive(Clone)]
pub(crate) struct FlightDoor(Arc<Shared>);

struct Shared {
    engine: Arc<QueryEngine>,
    recording: Option<String>,
    compute: RuntimeHandle,
    statements: Arc<StatementTable>,
    sessions: Mutex<BTreeMap<String, (Instant, QuerySession)>>,
    info: SqlInfoData,
    types: XdbcTypeInfoData,
}

impl fmt::Debug for FlightDoor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlightDoor").field("engine", &self.0.engine).finish_non_exhaustive()
    }
}

impl FlightDoor {
    pub(crate) fn new(
        engine: Arc<QueryEngine>,
        recording: Option<String>,
        compute: RuntimeHandle,
    ) -> io::Result<Self> {
        let statements = Arc::new(StatementTable::default());
        let sessions = Mutex::default();
        let info = metadata::server_info().map_err(io::Error::other)?;
        let types = metadata::type_info().map_err(io::Error::other)?;
        let shared = Shared { engine, recording, compute, statements, sessions, info, types };
        Ok(Self(Arc::new(shared)))
    }

    /// The session of a call.
    async fn session(&self, headers: &MetadataMap) -> Result<QuerySession, Status> {
        let database = DATABASE_HEADERS.iter().find_map(|name| headers.get(*name)?.to_str().ok());
        let database = database.unwrap_or(DEFAULT_DATABASE).to_owned();
        {
            let sessions = self.0.sessions.lock().expect("no panic holds the lock");
            if let Some((made, session)) = sessions.get(&database)
                && made.elapsed() < SESSION_AGE_MAX
            {
                return Ok(session.clone());
            }
        }
        let (engine, recording) = (Arc::clone(&self.0.engine), self.0.recording.clone());
        let name = database.clone();
        // Listing the tables reads from the store, which blocks.
        let made = tokio::task::spawn_blocking(move || {
            let wanted = recording.unwrap_or_else(|| name.clone());
            engine.session(Some(&wanted), &name)
        });
        let session = made.await.map_err(|error| Status::internal(error.to_string()))?;
        let session = session.map_err(|error| statement_status(&error, ""))?;
        let mut sessions = self.0.sessions.lock().expect("no panic holds the lock");
        sessions.retain(|_, (made, _)| made.elapsed() < SESSION_AGE_MAX);
        if sessions.len() < SESSIONS_MAX {
            sessions.insert(database, (Instant::now(), session.clone()));
        }
        Ok(session)
    }

    /// Plans a statement on the threads of queries.
    async fn plan(&self, session: &QuerySession, sql: &Arc<str>) -> Result<LogicalPlan, Status> {
        let (session, text) = (session.clone(), Arc::clone(sql));
        let planned =
            run_on(&self.0.compute, async move { session.plan(session.parse_one(&text)?).await });
        planned.await.flatten().map_err(|error| statement_status(&error, sql))
    }

    /// Keeps a plan for its client, and says how the client fetches the rows.
    fn keep_for_ticket(&self, query: PlannedQuery, asked: FlightDescriptor) -> Answer<FlightInfo> {
        let schema = outgoing_schema(query.plan.schema().as_arrow());
        let handle = self.0.statements.keep_planned(query)?;
        let ticket = TicketStatementQuery { statement_handle: handle_bytes(handle) };
        flight_info(&schema, ticket.as_any(), asked)
    }

    /// Runs a plan. The rows end when the client cancels, or goes.
    async fn run(&self, query: PlannedQuery, running: RunningStatement) -> Answer<FlightStream> {
        let PlannedQuery { sql, session, plan } = query;
        let schema = outgoing_schema(plan.schema().as_arrow());
        let started = run_on(&self.0.compute, async move { session.start(plan).await });
        let mut cancelled = Box::pin(running.until_cancelled());
        let started = tokio::select! {
            started = started => started.flatten(),
            status = &mut cancelled => return Err(status),
        };
        let started = started.map_err(|error| statement_status(&error, &sql))?;
        let columns = Arc::clone(&schema);
        let batches = started.on_threads_of(&self.0.compute, move |batch| {
            let batch = batch?;
            outgoing_batch(&batch, &columns).map_err(DataFusionError::from)
        });
        let batches = batches.map(move |batch| {
            batch.flatten().map_err(|error| statement_status(&error, &sql).into())
        });
        // A cancellation ends the rows with its own words.
        let ended = stream::once(cancelled).map(|status| Some(Err(FlightError::from(status))));
        let batches = batches.map(Some).chain(stream::once(async { None }));
        let batches = stream::select(batches, ended);
        let batches = batches.take_while(|batch| std::future::ready(batch.is_some()));
        Ok(Response::new(encode_batches(schema, batches.filter_map(std::future::ready))))
    }

    /// Cancels the statements whose tickets an answer of ours holds.
    fn cancel(&self, info: &FlightInfo) -> Cancelled {
        let tickets = info.endpoint.iter().filter_map(|endpoint| endpoint.ticket.as_ref());
        let handles = tickets.filter_map(|ticket| {
            let ticket = Any::decode(ticket.ticket.as_ref()).ok()?;
            ticket.unpack::<TicketStatementQuery>().ok()?
        });
        let cancelled = handles.map(|ticket| self.0.statements.cancel(&ticket.statement_handle));
        cancelled.fold(Cancelled::Unknown, |all, one| match one {
            Cancelled::Ends => Cancelled::Ends,
            Cancelled::Unknown => all,
        })
    }
}

fn flight_info(schema: &Schema, ticket: Any, asked: FlightDescriptor) -> Answer<FlightInfo> {
    let ticket = Ticket::new(ticket.encode_to_vec());
    let info = FlightInfo::new()
        .try_with_schema(schema)
        .map_err(|error| Status::internal(error.to_string()))?
        // Without a place, the ticket is good where it came from.
        .with_endpoint(FlightEndpoint::new().with_ticket(ticket))
        .with_descriptor(asked);
    Ok(Response::new(info))
}

fn encode_batches(
    schema: SchemaRef,
    batches: impl Stream<Item = Result<RecordBatch, FlightError>> + Send + 'static,
) -> FlightStream {
    let encoded = FlightDataEncoderBuilder::new().with_schema(schema).build(batches);
    Box::pin(encoded.map_err(arrow_status))
}

/// The answer of a call that has one batch.
fn one_batch(batch: Result<RecordBatch, FlightError>) -> Answer<FlightStream> {
    let batch = batch.map_err(arrow_status)?;
    Ok(Response::new(encode_batches(batch.schema(), stream::iter([Ok(batch)]))))
}

/// The columns of keys, of which no table has any.
fn key_columns(is_primary: bool) -> SchemaRef {
    let text = |name: &str, nullable| Field::new(name, DataType::Utf8, nullable);
    let number = |name: &str, kind| Field::new(name, kind, false);
    let place = |prefix: &str| {
        ["catalog_name", "db_schema_name"].map(|name| text(&format!("{prefix}{name}"), true))
    };
    let mut fields = Vec::new();
    if is_primary {
        fields.extend(place(""));
        fields.extend([text("table_name", false), text("column_name", false)]);
        fields.extend([text("key_name", true), number("key_sequence", DataType::Int32)]);
        return Arc::new(Schema::new(fields));
    }
    for prefix in ["pk_", "fk_"] {
        fields.extend(place(prefix));
        fields.extend(["table_name", "column_name"].map(|n| text(&format!("{prefix}{n}"), false)));
    }
    fields.push(number("key_sequence", DataType::Int32));
    fields.extend(["fk_key_name", "pk_key_name"].map(|name| text(name, true)));
    fields.extend(["update_rule", "delete_rule"].map(|name| number(name, DataType::UInt8)));
    Arc::new(Schema::new(fields))
}

/// The values of a statement's parameters, out of what a client puts, and their bytes.
async fn bound_values(
    request: Request<PeekableFlightDataStream>,
    parameters: usize,
) -> Result<(ParamValues, usize), Status> {
    let data = request.into_inner().into_peekable().map_err(FlightError::from);
    let batches = FlightRecordBatchStream::new_from_flight_data(data);
    let batches: Vec<RecordBatch> = batches.try_collect().await.map_err(arrow_status)?;
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    let batch = batches.iter().find(|batch| batch.num_rows() > 0);
    let (Some(batch), 1) = (batch, rows) else {
        let words = format!("{rows} rows of parameters; a statement that reads takes one");
        return Err(Status::invalid_argument(words));
    };
    if batch.num_columns() != parameters {
        let words = format!("{} parameters; the statement has {parameters}", batch.num_columns());
        return Err(Status::invalid_argument(words));
    }
    let values = batch.columns().iter().map(|column| ScalarValue::try_from_array(column, 0));
    let values = values.collect::<Result<Vec<_>, _>>();
    let values = values.map_err(|error| statement_status(&error, ""))?;
    Ok((ParamValues::from(values), batch.get_array_memory_size()))
}

#[tonic::async_trait]
impl FlightSqlService for FlightDoor {
    type FlightService = Self;

    async fn do_handshake(
        &self,
        _request: Request<Streaming<HandshakeRequest>>,
    ) -> Answer<Pin<Box<dyn Stream<Item = Result<HandshakeResponse, Status>> + Send>>> {
        // On loopback, any user is taken, without a password.
        let answer = HandshakeResponse::default();
        let mut response: Response<Pin<Box<dyn Stream<Item = _> + Send>>> =
            Response::new(Box::pin(stream::iter([Ok(answer)])));
        // Drivers that log in send this word with each later call.
        let token = tonic::metadata::MetadataValue::from_static("Bearer loopback");
        response.metadata_mut().insert("authorization", token);
        Ok(response)
    }

    async fn get_flight_info_statement(
        &self,
        query: CommandStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> Answer<FlightInfo> {
        let session = self.session(request.metadata()).await?;
        let sql: Arc<str> = query.query.into();
        let plan = self.plan(&session, &sql).await?;
        self.keep_for_ticket(PlannedQuery { sql, session, plan }, request.into_inner())
    }

    async fn do_get_statement(
        &self,
        ticket: TicketStatementQuery,
        _request: Request<Ticket>,
    ) -> Answer<FlightStream> {
        let (query, running) = self.0.statements.begin(&ticket.statement_handle)?;
        self.run(query, running).await
    }

    async fn do_action_create_prepared_statement(
        &self,
        query: ActionCreatePreparedStatementRequest,
        request: Request<Action>,
    ) -> Result<ActionCreatePreparedStatementResult, Status> {
        let session = self.session(request.metadata()).await?;
        session.check_text(&query.query).map_err(|error| statement_status(&error, ""))?;
        let sql = evenfall_query_sql::number_placeholders(&query.query);
        let sql: Arc<str> = sql.map_err(|error| statement_status(&error, &query.query))?.into();
        let plan = self.plan(&session, &sql).await?;
        let types = plan.get_parameter_types();
        let types = types.map_err(|error| statement_status(&error, &sql))?;
        let mut parameters: Vec<_> = types.into_iter().collect();
        parameters
            .sort_by_key(|(name, _)| name.trim_start_matches('$').parse::<usize>().unwrap_or(0));
        let fields = parameters
            .iter()
            .map(|(name, kind)| Field::new(name, kind.clone().unwrap_or(DataType::Utf8), true));
        let parameter_schema = outgoing_schema(&Schema::new(fields.collect::<Vec<_>>()));
        let schema = outgoing_schema(plan.schema().as_arrow());
        let parameters = parameter_schema.fields().len();
        let prepared = PreparedStatement { sql, session, parameters, bound: None };
        let handle = self.0.statements.keep_prepared(prepared)?;
        Ok(ActionCreatePreparedStatementResult {
            prepared_statement_handle: handle_bytes(handle),
            dataset_schema: schema_bytes(&schema)?,
            parameter_schema: schema_bytes(&parameter_schema)?,
        })
    }

    async fn do_action_close_prepared_statement(
        &self,
        query: ActionClosePreparedStatementRequest,
        _request: Request<Action>,
    ) -> Result<(), Status> {
        self.0.statements.close_prepared(&query.prepared_statement_handle);
        Ok(())
    }

    async fn do_put_prepared_statement_query(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<PeekableFlightDataStream>,
    ) -> Result<DoPutPreparedStatementResult, Status> {
        let handle = query.prepared_statement_handle;
        let prepared = self.0.statements.find_prepared(&handle)?;
        let (values, bytes) = bound_values(request, prepared.parameters).await?;
        self.0.statements.bind(&handle, values, bytes)?;
        Ok(DoPutPreparedStatementResult { prepared_statement_handle: Some(handle) })
    }

    async fn get_flight_info_prepared_statement(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> Answer<FlightInfo> {
        let query = self.bind_prepared(&query.prepared_statement_handle).await?;
        self.keep_for_ticket(query, request.into_inner())
    }

    async fn do_get_prepared_statement(
        &self,
        query: CommandPreparedStatementQuery,
        _request: Request<Ticket>,
    ) -> Answer<FlightStream> {
        let query = self.bind_prepared(&query.prepared_statement_handle).await?;
        let handle = self.0.statements.keep_planned(query)?;
        let (query, running) = self.0.statements.begin(&handle)?;
        self.run(query, running).await
    }

    async fn get_flight_info_catalogs(
        &self,
        query: CommandGetCatalogs,
        request: Request<FlightDescriptor>,
    ) -> Answer<FlightInfo> {
        flight_info(&query.into_builder().schema(), query.as_any(), request.into_inner())
    }

    async fn do_get_catalogs(
        &self,
        query: CommandGetCatalogs,
        request: Request<Ticket>,
    ) -> Answer<FlightStream> {
        let session = self.session(request.metadata()).await?;
        one_batch(metadata::list_catalogs(&session, query))
    }

    async fn get_flight_info_schemas(
        &self,
        query: CommandGetDbSchemas,
        request: Request<FlightDescriptor>,
    ) -> Answer<FlightInfo> {
        let schema = query.clone().into_builder().schema();
        flight_info(&schema, query.as_any(), request.into_inner())
    }

    async fn do_get_schemas(
        &self,
        query: CommandGetDbSchemas,
        request: Request<Ticket>,
    ) -> Answer<FlightStream> {
        let session = self.session(request.metadata()).await?;
        // Listing the recordings reads from the store, which blocks.
        let listed = run_on(&self.0.compute, async move {
            tokio::task::block_in_place(|| metadata::list_schemas(&session, query))
        });
        one_batch(listed.await.map_err(|error| statement_status(&error, ""))?)
    }

    async fn get_flight_info_tables(
        &self,
        query: CommandGetTables,
        request: Request<FlightDescriptor>,
    ) -> Answer<FlightInfo> {
        let schema = query.clone().into_builder().schema();
        flight_info(&schema, query.as_any(), request.into_inner())
    }

    async fn do_get_tables(
        &self,
        query: CommandGetTables,
        request: Request<Ticket>,
    ) -> Answer<FlightStream> {
        let session = self.session(request.metadata()).await?;
        let listed =
            run_on(&self.0.compute, async move { metadata::list_tables(&session, query).await });
        one_batch(listed.await.flatten().map_err(|error| statement_status(&error, ""))?)
    }

    async fn get_flight_info_table_types(
        &self,
        query: CommandGetTableTypes,
        request: Request<FlightDescriptor>,
    ) -> Answer<FlightInfo> {
        flight_info(&query.into_builder().schema(), query.as_any(), request.into_inner())
    }

    async fn do_get_table_types(
        &self,
        query: CommandGetTableTypes,
        _request: Request<Ticket>,
    ) -> Answer<FlightStream> {
        let mut types = query.into_builder();
        types.append(TABLE);
        one_batch(types.build())
    }

    async fn get_flight_info_sql_info(
        &self,
        query: CommandGetSqlInfo,
        request: Request<FlightDescriptor>,
    ) -> Answer<FlightInfo> {
        flight_info(&self.0.info.schema(), query.as_any(), request.into_inner())
    }

    async fn do_get_sql_info(
        &self,
        query: CommandGetSqlInfo,
        _request: Request<Ticket>,
    ) -> Answer<FlightStream> {
        one_batch(query.into_builder(&self.0.info).build())
    }

    async fn get_flight_info_xdbc_type_info(
        &self,
        query: CommandGetXdbcTypeInfo,
        request: Request<FlightDescriptor>,
    ) -> Answer<FlightInfo> {
        flight_info(&self.0.types.schema(), query.as_any(), request.into_inner())
    }

    async fn do_get_xdbc_type_info(
        &self,
        query: CommandGetXdbcTypeInfo,
        _request: Request<Ticket>,
    ) -> Answer<FlightStream> {
        one_batch(query.into_builder(&self.0.types).build())
    }

    async fn get_flight_info_primary_keys(
        &self,
        query: CommandGetPrimaryKeys,
        request: Request<FlightDescriptor>,
    ) -> Answer<FlightInfo> {
        flight_info(&key_columns(true), query.as_any(), request.into_inner())
    }

    async fn do_get_primary_keys(
        &self,
        _query: CommandGetPrimaryKeys,
        _request: Request<Ticket>,
    ) -> Answer<FlightStream> {
        one_batch(Ok(RecordBatch::new_empty(key_columns(true))))
    }

    async fn get_flight_info_exported_keys(
        &self,
        query: CommandGetExportedKeys,
        request: Request<FlightDescriptor>,
    ) -> Answer<FlightInfo> {
        flight_info(&key_columns(false), query.as_any(), request.into_inner())
    }

    async fn do_get_exported_keys(
        &self,
        _query: CommandGetExportedKeys,
        _request: Request<Ticket>,
    ) -> Answer<FlightStream> {
        one_batch(Ok(RecordBatch::new_empty(key_columns(false))))
    }

    async fn get_flight_info_imported_keys(
        &self,
        query: CommandGetImportedKeys,
        request: Request<FlightDescriptor>,
    ) -> Answer<FlightInfo> {
        flight_info(&key_columns(false), query.as_any(), request.into_inner())
    }

    async fn do_get_imported_keys(
        &self,
        _query: CommandGetImportedKeys,
        _request: Request<Ticket>,
    ) -> Answer<FlightStream> {
        one_batch(Ok(RecordBatch::new_empty(key_columns(false))))
    }

    async fn get_flight_info_cross_reference(
        &self,
        query: CommandGetCrossReference,
        request: Request<FlightDescriptor>,
    ) -> Answer<FlightInfo> {
        flight_info(&key_columns(false), query.as_any(), request.into_inner())
    }

    async fn do_get_cross_reference(
        &self,
        _query: CommandGetCrossReference,
        _request: Request<Ticket>,
    ) -> Answer<FlightStream> {
        one_batch(Ok(RecordBatch::new_empty(key_columns(false))))
    }

    async fn do_put_statement_update(
        &self,
        _command: CommandStatementUpdate,
        _request: Request<PeekableFlightDataStream>,
    ) -> Result<i64, Status> {
        Err(Status::invalid_argument(READS_ONLY))
    }

    async fn do_put_statement_ingest(
        &self,
        _command: CommandStatementIngest,
        _request: Request<PeekableFlightDataStream>,
    ) -> Result<i64, Status> {
        Err(Status::invalid_argument(READS_ONLY))
    }

    async fn do_put_prepared_statement_update(
        &self,
        _command: CommandPreparedStatementUpdate,
        _request: Request<PeekableFlightDataStream>,
    ) -> Result<i64, Status> {
        Err(Status::invalid_argument(READS_ONLY))
    }

    async fn do_action_cancel_query(
        &self,
        query: ActionCancelQueryRequest,
        _request: Request<Action>,
    ) -> Result<ActionCancelQueryResult, Status> {
        let info = FlightInfo::decode(query.info);
        let info = info.map_err(|error| Status::invalid_argument(error.to_string()))?;
        // The states of both actions have the same numbers.
        Ok(ActionCancelQueryResult { result: cancel_status(self.cancel(&info)) as i32 })
    }

    async fn do_action_fallback(
        &self,
        request: Request<Action>,
    ) -> Answer<<Self as FlightService>::DoActionStream> {
        let action = request.into_inner();
        if action.r#type != CANCEL_FLIGHT_INFO {
            let words = format!("there is no action {:?}", action.r#type);
            return Err(Status::unimplemented(words));
        }
        let asked = CancelFlightInfoRequest::decode(action.body);
        let asked = asked.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let cancelled = asked.info.map_or(Cancelled::Unknown, |info| self.cancel(&info));
        let result = CancelFlightInfoResult::new(cancel_status(cancelled));
        let result = arrow_flight::Result { body: result.encode_to_vec().into() };
        Ok(Response::new(Box::pin(stream::iter([Ok(result)]))))
    }

    async fn list_custom_actions(&self) -> Option<Vec<Result<arrow_flight::ActionType, Status>>> {
        Some(vec![Ok(arrow_flight::ActionType {
            r#type: CANCEL_FLIGHT_INFO.to_owned(),
            description: "Cancels a statement by the answer that gave its ticket.".to_owned(),
        })])
    }

    async fn register_sql_info(&self, _id: i32, _info: &SqlInfo) {}
}

impl FlightDoor {
    /// Plans a prepared statement with the values that were bound last.
    async fn bind_prepared(&self, handle: &[u8]) -> Result<PlannedQuery, Status> {
        let prepared = self.0.statements.find_prepared(handle)?;
        let PreparedStatement { sql, session, parameters, bound } = prepared;
        let mut plan = self.plan(&session, &sql).await?;
        match bound {
            Some(values) => {
                let bound = plan.replace_params_with_values(&values);
                plan = bound.map_err(|error| statement_status(&error, &sql))?;
            }
            None if parameters > 0 => {
                let words = format!("the statement has {parameters} parameters without values");
                return Err(Status::failed_precondition(words));
            }
            None => {}
        }
        Ok(PlannedQuery { sql, session, plan })
    }
}

fn cancel_status(cancelled: Cancelled) -> CancelStatus {
    match cancelled {
        Cancelled::Ends => CancelStatus::Cancelled,
        Cancelled::Unknown => CancelStatus::NotCancellable,
    }
}

fn schema_bytes(schema: &Schema) -> Result<bytes::Bytes, Status> {
    let options = arrow::ipc::writer::IpcWriteOptions::default();
    let message = IpcMessage::try_from(SchemaAsIpc::new(schema, &options));
    message.map(|message| message.0).map_err(|error| Status::internal(error.to_string()))
}
