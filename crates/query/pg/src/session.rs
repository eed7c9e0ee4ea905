//! One connection: its statements, plain and prepared.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow::datatypes::{DataType, Field, Schema};
use arrow_pg::datatypes::arrow_schema_to_pg_fields;
use async_trait::async_trait;
use datafusion::common::DataFusionError;
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::parser::Statement as DfStatement;
use datafusion::sql::sqlparser::ast::Statement;
use datafusion_pg_catalog::sql::PostgresCompatibilityParser;
use evenfall_query_sql::{QueryEngine, QuerySession, run_on};
use futures_util::{Sink, StreamExt as _, stream};
use pgwire::api::portal::Format;
use pgwire::api::query::SimpleQueryHandler;
use pgwire::api::results::{DataRowEncoder, FieldInfo, QueryResponse, Response, Tag};
use pgwire::api::store::PortalStore;
use pgwire::api::{ClientInfo, ClientPortalStore, Type};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::catalogue;
use crate::errors::{sql_error, user_error};
use crate::prepared::{HeldNames, Prepared};
use crate::rows::RowWriter;
use crate::settings::{ConnectionSettings, SettingsAnswer};
use crate::values;

/// Statements of one text. All of them are planned before the first one is answered.
const STATEMENTS_AT_ONCE: usize = 100;

/// How old a plan may be when it runs. A plan reads what had been appended when it was made, so
/// that a statement that was prepared earlier is planned again.
const PLAN_AGE_MAX: Duration = Duration::from_millis(1);

/// The database of a connection that names none.
pub(crate) const DEFAULT_DATABASE: &str = "evenfall";

/// The statements of one connection.
pub(crate) struct PgSession {
    engine: Arc<QueryEngine>,
    /// A recording that the operator chose for all connections.
    recording: Option<String>,
    /// The threads of queries. Connections have threads of their own.
    compute: Handle,
    /// Made when the first statement comes, because the database is known by then.
    session: tokio::sync::Mutex<Option<QuerySession>>,
    settings: Arc<Mutex<ConnectionSettings>>,
    compatibility: PostgresCompatibilityParser,
    /// The prepared statements that this connection keeps.
    pub(crate) held: Mutex<HeldNames>,
    /// How often this connection was cancelled; it also counts a client that vanished.
    pub(crate) cancels: Arc<watch::Sender<u64>>,
}

/// A statement that can be answered.
#[derive(Clone, Debug)]
pub(crate) enum Statements {
    /// Rows.
    Query(PlannedStatement),
    /// An answer of the settings, made anew at each execution.
    Setting(Box<Statement>),
}

/// A statement, and the plan that was made of it last.
#[derive(Clone, Debug)]
pub(crate) struct PlannedStatement {
    statement: DfStatement,
    fresh: Arc<Mutex<Option<(Instant, LogicalPlan)>>>,
}

impl PlannedStatement {
    fn take_fresh(&self) -> Option<LogicalPlan> {
        let (made, plan) = self.fresh.lock().expect("no panic holds the lock").take()?;
        (made.elapsed() <= PLAN_AGE_MAX).then_some(plan)
    }
}

/// Ends when a statement must end early, with the reason.
type StatementEnd = Pin<Box<dyn Future<Output = PgWireError> + Send>>;

impl PgSession {
    pub(crate) fn new(
        engine: Arc<QueryEngine>,
        recording: Option<String>,
        compute: Handle,
    ) -> Self {
        Self {
            engine,
            recording,
            compute,
            session: tokio::sync::Mutex::default(),
            settings: Arc::default(),
            compatibility: PostgresCompatibilityParser::new(),
            held: Mutex::default(),
            cancels: Arc::new(watch::Sender::new(0)),
        }
    }

    /// Forgets the prepared statements that a `DEALLOCATE` or a `DISCARD` names.
    pub(crate) fn forget_prepared<C>(&self, client: &C, statement: &Statement)
    where
        C: ClientPortalStore,
        C::PortalStore: PortalStore,
    {
        let name = match statement {
            Statement::Deallocate { name, .. } => name.value.as_str(),
            Statement::Discard { .. } => "all",
            _ => return,
        };
        let mut held = self.held.lock().expect("no panic holds the lock");
        for name in held.take_statements(name) {
            client.portal_store().rm_statement(&name);
        }
    }

    /// Bytes that a statement may have.
    pub(crate) fn statement_bytes(&self) -> usize {
        self.engine.limits().statement_bytes
    }

    /// Takes the settings that a client sends when it connects.
    pub(crate) fn apply_startup(&self, parameters: &BTreeMap<String, String>) -> PgWireResult<()> {
        let mut settings = self.settings.lock().expect("no panic holds the lock");
        settings.apply_startup(parameters).map_err(|unknown| unknown.into_error())
    }

    /// The session of this connection.
    pub(crate) async fn session(
        &self,
        client: &(impl ClientInfo + Sync),
    ) -> PgWireResult<QuerySession> {
        let mut session = self.session.lock().await;
        if let Some(session) = session.as_ref() {
            return Ok(session.clone());
        }
        let database = client.metadata().get("database");
        let database = database.map_or(DEFAULT_DATABASE, String::as_str);
        let path = self.settings.lock().expect("no panic holds the lock").search_path();
        let made = self.make_session(database, path).await?;
        Ok(session.insert(made).clone())
    }

    async fn make_session(
        &self,
        database: &str,
        search_path: Option<String>,
    ) -> PgWireResult<QuerySession> {
        let (engine, recording) = (Arc::clone(&self.engine), self.recording.clone());
        let database = database.to_owned();
        // Listing the tables reads from the store, which blocks.
        let made = tokio::task::spawn_blocking(move || {
            let wanted = search_path.or(recording).unwrap_or_else(|| database.clone());
            engine.session(Some(&wanted), &database).map(|session| (session, database))
        });
        let (session, database) =
            made.await.map_err(values::wrap_error)?.map_err(|e| sql_error(e, ""))?;
        catalogue::add_catalogue(&session, &database, &self.settings)
            .map_err(|error| sql_error(error, ""))?;
        Ok(session)
    }

    /// Parses a text. Statements about PostgreSQL's own catalogue are rewritten for DataFusion;
    /// a user's own statements are left as they are.
    pub(crate) fn parse(
        &self,
        session: &QuerySession,
        sql: &str,
    ) -> PgWireResult<Vec<DfStatement>> {
        if catalogue::names_catalogue(sql) {
            session.check_text(sql).map_err(|error| sql_error(error, sql))?;
            let statements = self.compatibility.parse(&catalogue::known_words(sql));
            let mut statements =
                statements.map_err(|error| sql_error(DataFusionError::from(error), sql))?;
            statements.iter_mut().for_each(catalogue::answer_empty_subqueries);
            return Ok(statements
                .into_iter()
                .map(|s| DfStatement::Statement(Box::new(s)))
                .collect());
        }
        session.parse(sql).map_err(|error| sql_error(error, sql))
    }

    /// Plans a statement, for now and for later.
    pub(crate) async fn prepare(
        &self,
        session: &QuerySession,
        statement: DfStatement,
        sql: &str,
    ) -> PgWireResult<Prepared> {
        if let DfStatement::Statement(statement) = &statement {
            let schema = self.setting_schema(statement)?;
            if let Some(schema) = schema {
                let statement = Statements::Setting(statement.clone());
                return Ok(Prepared { statement, parameter_types: Vec::new(), schema });
            }
        }
        let mut end = self.end_of_statement();
        let plan = self.plan(session, statement.clone(), sql, &mut end).await?;
        let types = plan.get_parameter_types().map_err(|error| sql_error(error, sql))?;
        let mut names: Vec<_> = types.into_iter().collect();
        // Parameters are numbered from $1 on, and the map has no order.
        names.sort_by_key(|(name, _)| name.trim_start_matches('$').parse::<usize>().unwrap_or(0));
        let parameter_types =
            names.iter().map(|(_, kind)| kind.as_ref().map_or(Type::TEXT, values::parameter_type));
        let parameter_types = parameter_types.collect();
        let schema = values::outgoing_schema(plan.schema().as_arrow());
        let fresh = Arc::new(Mutex::new(Some((Instant::now(), plan))));
        let statement = Statements::Query(PlannedStatement { statement, fresh });
        Ok(Prepared { statement, parameter_types, schema })
    }

    /// Plans a statement on the threads of queries.
    async fn plan(
        &self,
        session: &QuerySession,
        statement: DfStatement,
        sql: &str,
        end: &mut StatementEnd,
    ) -> PgWireResult<LogicalPlan> {
        let session = session.clone();
        let planned = run_on(&self.compute, async move { session.plan(statement).await });
        tokio::select! {
            planned = planned => planned.flatten().map_err(|error| sql_error(error, sql)),
            error = end => Err(error),
        }
    }

    /// The columns of a statement that the settings answer; `None` for every other statement.
    fn setting_schema(&self, statement: &Statement) -> PgWireResult<Option<Arc<Schema>>> {
        match statement {
            Statement::ShowVariable { variable } => {
                let name = variable.last().map_or("setting", |word| word.value.as_str());
                let field = Field::new(name.to_ascii_lowercase(), DataType::Utf8, false);
                Ok(Some(Arc::new(Schema::new(vec![field]))))
            }
            Statement::Set(_)
            | Statement::StartTransaction { .. }
            | Statement::Commit { .. }
            | Statement::Rollback { .. }
            | Statement::Savepoint { .. }
            | Statement::ReleaseSavepoint { .. }
            | Statement::Deallocate { .. }
            | Statement::Discard { .. }
            | Statement::Close { .. }
            | Statement::UNLISTEN { .. }
            | Statement::Reset(_) => Ok(Some(Arc::new(Schema::empty()))),
            _ => Ok(None),
        }
    }

    pub(crate) async fn answer_setting(
        &self,
        client: &(impl ClientInfo + Sync),
        statement: &Statement,
        format: &Format,
    ) -> PgWireResult<Response> {
        let answer = {
            let mut settings = self.settings.lock().expect("no panic holds the lock");
            settings.answer(statement)
        };
        let answer = match answer {
            Some(Ok(answer)) => answer,
            Some(Err(unknown)) => return Err(unknown.into_error()),
            None => return Err(user_error("0A000", "the statement is not supported", None)),
        };
        Ok(match answer {
            SettingsAnswer::Done(tag) => Response::Execution(Tag::new(tag)),
            SettingsAnswer::Begun => Response::TransactionStart(Tag::new("BEGIN")),
            SettingsAnswer::Ended(tag) => Response::TransactionEnd(Tag::new(tag)),
            SettingsAnswer::SearchPath(path) => {
                let database = client.metadata().get("database").cloned();
                let database = database.unwrap_or_else(|| DEFAULT_DATABASE.to_owned());
                let made = self.make_session(&database, path).await?;
                *self.session.lock().await = Some(made);
                Response::Execution(Tag::new("SET"))
            }
            SettingsAnswer::Shown { name, value } => {
                let field = FieldInfo::new(name, None, None, Type::TEXT, format.format_for(0));
                let fields = Arc::new(vec![field]);
                let mut encoder = DataRowEncoder::new(Arc::clone(&fields));
                encoder.encode_field(&Some(value.as_str()))?;
                let row = Ok(encoder.take_row());
                let mut response = QueryResponse::new(fields, stream::iter([row]));
                response.set_command_tag("SHOW");
                Response::Query(response)
            }
        })
    }

    /// Runs a statement. The rows end at a cancel request, at the statement's time limit, and when
    /// the client has gone. `bind` puts the values of parameters into the plan.
    pub(crate) async fn run_query(
        &self,
        session: &QuerySession,
        query: &PlannedStatement,
        bind: impl FnOnce(LogicalPlan) -> Result<LogicalPlan, DataFusionError> + Send + 'static,
        format: &Format,
    ) -> PgWireResult<Response> {
        let mut end = self.end_of_statement();
        let plan = match query.take_fresh() {
            Some(plan) => plan,
            None => self.plan(session, query.statement.clone(), "", &mut end).await?,
        };
        let starting = {
            let session = session.clone();
            run_on(&self.compute, async move { session.start(bind(plan)?).await })
        };
        let running = tokio::select! {
            running = starting => running.flatten().map_err(|error| sql_error(error, ""))?,
            error = &mut end => return Err(error),
        };
        let zone = self.settings.lock().expect("no panic holds the lock").time_zone();
        let schema = values::outgoing_schema(&running.stream.schema());
        let fields = Arc::new(arrow_schema_to_pg_fields(&schema, format, None)?);
        let writer = RowWriter::new(Arc::clone(&fields), zone);
        // Rows become text on the threads of queries, so that a client with many rows holds no
        // other client up.
        let rows = running.on_threads_of(&self.compute, move |batch| {
            let batch = batch.map_err(|error| sql_error(error, ""));
            let batch = batch.and_then(|batch| values::outgoing_batch(&batch, &schema));
            match batch {
                Ok(batch) => writer.write_batch(&batch),
                Err(error) => vec![Err(error)],
            }
        });
        let pieces = rows.flat_map(|rows| {
            let rows = rows.unwrap_or_else(|error| vec![Err(sql_error(error, ""))]);
            stream::iter(split_rows(rows))
        });
        // The first error ends the rows, whoever makes it.
        let ended = stream::once(end).map(|error| vec![Err(error)]);
        let pieces =
            stream::select(pieces.map(Some).chain(stream::once(async { None })), ended.map(Some));
        let pieces = pieces.take_while(|piece| std::future::ready(piece.is_some()));
        let rows = pieces.filter_map(std::future::ready).flat_map(stream::iter);
        Ok(Response::Query(QueryResponse::new(fields, rows)))
    }

    /// What ends a statement that begins now.
    fn end_of_statement(&self) -> StatementEnd {
        let timeout = self.settings.lock().expect("no panic holds the lock").statement_timeout();
        let mut cancels = self.cancels.subscribe();
        // Cancels before this statement were for earlier ones.
        cancels.mark_unchanged();
        Box::pin(async move {
            let cancelled = async {
                // The sender lives as long as the connection.
                if cancels.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            let Some(timeout) = timeout else {
                cancelled.await;
                return PgWireError::QueryCanceled;
            };
            tokio::select! {
                () = cancelled => PgWireError::QueryCanceled,
                () = tokio::time::sleep(timeout) => {
                    user_error("57014", "canceling statement due to statement timeout", None)
                }
            }
        })
    }
}

/// Rows after which a stream of rows sees that its statement has ended early.
const PIECE_ROWS: usize = 128;

fn split_rows<T>(rows: Vec<T>) -> impl Iterator<Item = Vec<T>> {
    let mut rows = rows.into_iter();
    std::iter::from_fn(move || {
        let piece: Vec<T> = rows.by_ref().take(PIECE_ROWS).collect();
        (!piece.is_empty()).then_some(piece)
    })
}

#[async_trait]
impl SimpleQueryHandler for PgSession {
    async fn do_query<C>(&self, client: &mut C, sql: &str) -> PgWireResult<Vec<Response>>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let session = self.session(client).await?;
        let statements = self.parse(&session, sql)?;
        if statements.len() > STATEMENTS_AT_ONCE {
            let words = format!(
                "the text has {} statements; {STATEMENTS_AT_ONCE} are taken at once",
                statements.len()
            );
            return Err(user_error("54000", &words, None));
        }
        let mut responses = Vec::new();
        for statement in statements {
            let prepared = self.prepare(&session, statement, sql).await?;
            let format = Format::UnifiedText;
            responses.push(match &prepared.statement {
                Statements::Setting(statement) => {
                    self.forget_prepared(client, statement);
                    self.answer_setting(client, statement, &format).await?
                }
                Statements::Query(query) => self.run_query(&session, query, Ok, &format).await?,
            });
        }
        Ok(responses)
    }
}
