//! One connection: its statements, plain and prepared.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema};
use arrow_pg::datatypes::{arrow_schema_to_pg_fields, encode_recordbatch};
use async_trait::async_trait;
use datafusion::common::{DataFusionError, ScalarValue};
use datafusion::logical_expr::{ColumnarValue, LogicalPlan, Volatility, create_udf};
use datafusion::sql::parser::Statement as DfStatement;
use datafusion::sql::sqlparser::ast::Statement;
use datafusion_pg_catalog::pg_catalog::context::EmptyContextProvider;
use datafusion_pg_catalog::sql::PostgresCompatibilityParser;
use evenfall_query_sql::{QueryEngine, QuerySession, RunningQuery};
use futures_util::{Sink, StreamExt as _, stream};
use pgwire::api::portal::{Format, Portal};
use pgwire::api::query::{ExtendedQueryHandler, SimpleQueryHandler};
use pgwire::api::results::{DataRowEncoder, FieldInfo, QueryResponse, Response, Tag};
use pgwire::api::stmt::QueryParser;
use pgwire::api::store::PortalStore;
use pgwire::api::{ClientInfo, ClientPortalStore, Type};
use pgwire::error::{ErrorInfo, PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage;
use pgwire::types::format::FormatOptions;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::settings::{ConnectionSettings, SettingsAnswer};
use crate::values;

/// What `version()` answers. SQLAlchemy refuses a server whose version begins otherwise.
const VERSION: &str = concat!("PostgreSQL 16.6 (evenfall ", env!("CARGO_PKG_VERSION"), ")");

/// Batches that wait for a slow client. The query waits while they do.
const BATCHES_WAITING: usize = 2;

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
    settings: Mutex<ConnectionSettings>,
    compatibility: PostgresCompatibilityParser,
    /// How often this connection was cancelled; it also counts a client that vanished.
    pub(crate) cancels: Arc<watch::Sender<u64>>,
}

/// A statement with its plan.
#[derive(Clone, Debug)]
pub(crate) enum Statements {
    /// Rows.
    Query(Box<LogicalPlan>),
    /// An answer of the settings, made anew at each execution.
    Setting(Box<Statement>),
}

/// A prepared statement.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    statement: Statements,
    pub(crate) parameter_types: Vec<Type>,
    schema: Arc<Schema>,
}

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
            settings: Mutex::default(),
            compatibility: PostgresCompatibilityParser::new(),
            cancels: Arc::new(watch::Sender::new(0)),
        }
    }

    /// The session of this connection.
    async fn session(&self, client: &(impl ClientInfo + Sync)) -> PgWireResult<QuerySession> {
        let mut session = self.session.lock().await;
        if let Some(session) = session.as_ref() {
            return Ok(session.clone());
        }
        let database = client.metadata().get("database");
        let database = database.map_or(DEFAULT_DATABASE, String::as_str);
        let made = self.make_session(database, None).await?;
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
        datafusion_pg_catalog::pg_catalog::setup_pg_catalog(
            session.datafusion_context(),
            &database,
            EmptyContextProvider,
        )
        .map_err(|error| sql_error(*error, ""))?;
        session.datafusion_context().register_udf(create_udf(
            "version",
            Vec::new(),
            DataType::Utf8,
            Volatility::Stable,
            Arc::new(|_| Ok(ColumnarValue::Scalar(ScalarValue::from(VERSION)))),
        ));
        Ok(session)
    }

    /// Parses a text. Statements about PostgreSQL's own catalogue are rewritten for DataFusion;
    /// a user's own statements are left as they are.
    fn parse(&self, session: &QuerySession, sql: &str) -> PgWireResult<Vec<DfStatement>> {
        if names_catalog(sql) {
            session.check_length(sql).map_err(|error| sql_error(error, sql))?;
            let statements = self.compatibility.parse(sql);
            let statements =
                statements.map_err(|error| sql_error(DataFusionError::from(error), sql))?;
            return Ok(statements
                .into_iter()
                .map(|s| DfStatement::Statement(Box::new(s)))
                .collect());
        }
        session.parse(sql).map_err(|error| sql_error(error, sql))
    }

    async fn prepare(
        &self,
        client: &(impl ClientInfo + Sync),
        statement: DfStatement,
        sql: &str,
    ) -> PgWireResult<Prepared> {
        let session = self.session(client).await?;
        if let DfStatement::Statement(statement) = &statement {
            let schema = self.setting_schema(statement)?;
            if let Some(schema) = schema {
                let statement = Statements::Setting(statement.clone());
                return Ok(Prepared { statement, parameter_types: Vec::new(), schema });
            }
        }
        let plan = session.plan(statement).await.map_err(|error| sql_error(error, sql))?;
        let types = plan.get_parameter_types().map_err(|error| sql_error(error, sql))?;
        let mut names: Vec<_> = types.into_iter().collect();
        // Parameters are numbered from $1 on, and the map has no order.
        names.sort_by_key(|(name, _)| name.trim_start_matches('$').parse::<usize>().unwrap_or(0));
        let parameter_types =
            names.iter().map(|(_, kind)| kind.as_ref().map_or(Type::TEXT, values::parameter_type));
        let parameter_types = parameter_types.collect();
        let schema = values::outgoing_schema(plan.schema().as_arrow());
        Ok(Prepared { statement: Statements::Query(Box::new(plan)), parameter_types, schema })
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
            | Statement::Discard { .. } => Ok(Some(Arc::new(Schema::empty()))),
            _ => Ok(None),
        }
    }

    async fn answer_setting(
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
            Some(Err(unknown)) => {
                let what = format!("unrecognized configuration parameter \"{}\"", unknown.0);
                return Err(user_error("42704", &what, None));
            }
            None => return Err(user_error("0A000", "the statement is not supported", None)),
        };
        Ok(match answer {
            SettingsAnswer::Done(tag) => Response::Execution(Tag::new(tag)),
            SettingsAnswer::Begun => Response::TransactionStart(Tag::new("BEGIN")),
            SettingsAnswer::Ended(tag) => Response::TransactionEnd(Tag::new(tag)),
            SettingsAnswer::SearchPath(path) => {
                let database = client.metadata().get("database").cloned();
                let database = database.unwrap_or_else(|| DEFAULT_DATABASE.to_owned());
                let first = path.split(',').next().unwrap_or_default();
                let first = first.trim().trim_matches('"').to_owned();
                let made = self.make_session(&database, Some(first)).await?;
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

    /// Begins a plan. The rows end at a cancel request, at the statement's time limit, and when the
    /// client has gone.
    async fn run_plan(
        &self,
        session: &QuerySession,
        plan: LogicalPlan,
        format: &Format,
    ) -> PgWireResult<Response> {
        let (timeout, options) = {
            let settings = self.settings.lock().expect("no panic holds the lock");
            let mut options = FormatOptions::default();
            settings.time_zone().clone_into(&mut options.time_zone);
            (settings.statement_timeout(), Arc::new(options))
        };
        let running = session.start(plan).await.map_err(|error| sql_error(error, ""))?;
        let schema = values::outgoing_schema(&running.stream.schema());
        let fields = Arc::new(arrow_schema_to_pg_fields(&schema, format, Some(options))?);
        let encoded = Arc::clone(&fields);
        let rows = in_background(running, self.compute.clone()).flat_map(move |batch| {
            let rows = batch.map_err(|error| sql_error(error, ""));
            let rows = rows.and_then(|batch| values::outgoing_batch(&batch, &schema));
            match rows {
                Ok(batch) => {
                    let rows = encode_recordbatch(Arc::clone(&encoded), batch);
                    stream::iter(rows.collect::<Vec<_>>())
                }
                Err(error) => stream::iter(vec![Err(error)]),
            }
        });
        let end = self.end_of_statement(timeout);
        // The first error ends the rows, whoever makes it.
        let ended = stream::once(end).map(Err);
        let rows =
            stream::select(rows.map(Some).chain(stream::once(async { None })), ended.map(Some));
        let rows = rows.take_while(|row| std::future::ready(row.is_some()));
        let rows = rows.filter_map(std::future::ready);
        Ok(Response::Query(QueryResponse::new(fields, rows)))
    }

    /// Ends when the statement must end early, with the reason.
    fn end_of_statement(
        &self,
        timeout: Option<Duration>,
    ) -> impl Future<Output = PgWireError> + Send + 'static {
        let mut cancels = self.cancels.subscribe();
        // Cancels before this statement were for earlier ones.
        cancels.mark_unchanged();
        async move {
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
        }
    }
}

/// The batches of a query that runs on the threads of queries, so that a cancel request is heard
/// while the query computes. The query ends with the stream.
fn in_background(
    mut running: RunningQuery,
    compute: Handle,
) -> impl futures_util::Stream<Item = datafusion::common::Result<RecordBatch>> + Send {
    let (sender, receiver) = mpsc::channel(BATCHES_WAITING);
    let mut task = JoinSet::new();
    let reading = async move {
        while let Some(batch) = running.stream.next().await {
            // Nobody receives any more: the client has gone.
            if sender.send(batch).await.is_err() {
                break;
            }
        }
    };
    task.spawn_on(reading, &compute);
    stream::unfold((receiver, task), |(mut receiver, task)| async move {
        receiver.recv().await.map(|batch| (batch, (receiver, task)))
    })
}

/// Whether a text is about PostgreSQL's own catalogue or functions.
fn names_catalog(sql: &str) -> bool {
    let lower = sql.to_ascii_lowercase();
    let words = [
        "pg_",
        "information_schema",
        "version()",
        "current_",
        "has_",
        "::reg",
        "quote_ident",
        "parse_ident",
        "format_type",
        "array_upper",
        "session_user",
    ];
    words.iter().any(|word| lower.contains(word))
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
        let mut responses = Vec::new();
        for statement in self.parse(&session, sql)? {
            let prepared = self.prepare(client, statement, sql).await?;
            let format = Format::UnifiedText;
            responses.push(match prepared.statement {
                Statements::Setting(statement) => {
                    self.answer_setting(client, &statement, &format).await?
                }
                Statements::Query(plan) => self.run_plan(&session, *plan, &format).await?,
            });
        }
        Ok(responses)
    }
}

/// The prepared statements of a connection.
pub(crate) struct PreparedStatements(pub(crate) Arc<PgSession>);

#[async_trait]
impl ExtendedQueryHandler for PreparedStatements {
    type Statement = Prepared;
    type QueryParser = PgSession;

    fn query_parser(&self) -> Arc<Self::QueryParser> {
        Arc::clone(&self.0)
    }

    async fn do_query<C>(
        &self,
        client: &mut C,
        portal: &Portal<Self::Statement>,
        _max_rows: usize,
    ) -> PgWireResult<Response>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Self::Statement>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let prepared = &portal.statement.statement;
        let format = &portal.result_column_format;
        match &prepared.statement {
            Statements::Setting(statement) => {
                self.0.answer_setting(client, statement, format).await
            }
            Statements::Query(plan) => {
                let session = self.0.session(client).await?;
                let mut plan = plan.as_ref().clone();
                if !prepared.parameter_types.is_empty() {
                    let bound = values::bind_parameters(portal)?;
                    plan = plan
                        .replace_params_with_values(&bound)
                        .map_err(|error| sql_error(error, ""))?;
                }
                self.0.run_plan(&session, plan, format).await
            }
        }
    }
}

#[async_trait]
impl QueryParser for PgSession {
    type Statement = Prepared;

    async fn parse_sql<C>(
        &self,
        client: &C,
        sql: &str,
        _types: &[Option<Type>],
    ) -> PgWireResult<Option<Self::Statement>>
    where
        C: ClientInfo + Unpin + Send + Sync,
    {
        let session = self.session(client).await?;
        let mut statements = self.parse(&session, sql)?;
        match (statements.pop(), statements.is_empty()) {
            (None, _) => Ok(None),
            (Some(statement), true) => self.prepare(client, statement, sql).await.map(Some),
            (Some(_), false) => Err(user_error(
                "42601",
                "cannot insert multiple commands into a prepared statement",
                None,
            )),
        }
    }

    fn get_parameter_types(&self, statement: &Self::Statement) -> PgWireResult<Vec<Type>> {
        Ok(statement.parameter_types.clone())
    }

    fn get_result_schema(
        &self,
        statement: &Self::Statement,
        column_format: Option<&Format>,
    ) -> PgWireResult<Vec<FieldInfo>> {
        let format = column_format.unwrap_or(&Format::UnifiedBinary);
        arrow_schema_to_pg_fields(&statement.schema, format, None)
    }
}

/// An error by its code, with a hint where there is one.
pub(crate) fn user_error(code: &str, what: &str, position: Option<usize>) -> PgWireError {
    let mut info = ErrorInfo::new("ERROR".to_owned(), code.to_owned(), what.to_owned());
    info.position = position.map(|at| at.to_string());
    PgWireError::UserError(Box::new(info))
}

/// Another layer's error under a code.
pub(crate) fn plain_error(code: &str, error: impl std::fmt::Display) -> PgWireError {
    user_error(code, &error.to_string(), None)
}

/// An error of the engine, with PostgreSQL's code for its kind and the place in the statement.
pub(crate) fn sql_error(error: DataFusionError, sql: &str) -> PgWireError {
    use datafusion::common::SchemaError;
    let position = place(&error, sql);
    let root = error.find_root();
    let code = match root {
        DataFusionError::SQL(..) => "42601",
        DataFusionError::SchemaError(error, _) => match error.as_ref() {
            SchemaError::FieldNotFound { .. } => "42703",
            SchemaError::AmbiguousReference { .. } => "42702",
            _ => "42P10",
        },
        DataFusionError::Plan(what) if what.contains("not found") && what.contains("table") => {
            "42P01"
        }
        DataFusionError::Plan(what) if what.contains("Invalid function") => "42883",
        DataFusionError::Plan(what) if what.contains("only statements that read") => "25006",
        DataFusionError::Plan(_) => "42000",
        DataFusionError::NotImplemented(_) => "0A000",
        DataFusionError::ResourcesExhausted(_) => "53200",
        DataFusionError::ArrowError(..) | DataFusionError::Execution(_) => "22000",
        DataFusionError::External(_) => "58030",
        _ => "XX000",
    };
    user_error(code, &root.strip_backtrace(), position)
}

/// The place of an error as PostgreSQL counts it: characters from 1.
fn place(error: &DataFusionError, sql: &str) -> Option<usize> {
    if let Some(span) = error.diagnostic().and_then(|diagnostic| diagnostic.span) {
        return character_of(sql, span.start.line as usize, span.start.column as usize);
    }
    // The parser has its place in its words: "... at Line: 1, Column: 8".
    let text = error.to_string();
    let line = number_after(&text, "Line: ")?;
    let column = number_after(&text, "Column: ")?;
    character_of(sql, line, column)
}

fn number_after(text: &str, word: &str) -> Option<usize> {
    let rest = &text[text.rfind(word)? + word.len()..];
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

fn character_of(sql: &str, line: usize, column: usize) -> Option<usize> {
    let before: usize =
        sql.split('\n').take(line.checked_sub(1)?).map(|line| line.chars().count() + 1).sum();
    Some(before + column)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_counts_characters_over_lines() {
        assert_eq!(character_of("select\nfrom x", 2, 1), Some(8));
        assert_eq!(number_after("found: x at Line: 3, Column: 14", "Line: "), Some(3));
        assert_eq!(number_after("found: x at Line: 3, Column: 14", "Column: "), Some(14));
    }

    #[test]
    fn a_users_statement_is_not_rewritten() {
        assert!(!names_catalog("SELECT symbol, vwap(price, shares) FROM trades GROUP BY symbol"));
        assert!(names_catalog("SELECT oid FROM pg_class"));
    }
}
