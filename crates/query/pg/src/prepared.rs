//! Prepared statements: parsed, bound, described and executed one message at a time.
//!
//! pgwire has these steps as well. Its execution holds all rows in memory before it sends the first
//! one, reserves memory for as many rows as the client says, and keeps any number of statements.
//! Here rows leave as they come, and a connection has limits. Answers are sent when the client
//! synchronises, so that the five messages of a statement are answered by one packet.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::logical_expr::LogicalPlan;
use futures_util::{Sink, SinkExt as _};
use pgwire::api::portal::{Format, Portal, PortalExecutionState};
use pgwire::api::query::{
    ExtendedQueryHandler, send_execution_response, send_partial_query_response,
};
use pgwire::api::results::{
    DescribePortalResponse, DescribeResponse, DescribeStatementResponse, FieldInfo, Response,
};
use pgwire::api::stmt::{QueryParser, StoredStatement};
use pgwire::api::store::{Entry, PortalStore};
use pgwire::api::{ClientInfo, ClientPortalStore, DEFAULT_NAME, PgWireConnectionState, Type};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::data::{NoData, ParameterDescription, RowDescription};
use pgwire::messages::extendedquery::{
    Bind, BindComplete, Close, CloseComplete, Describe, Execute, Parse, ParseComplete,
    TARGET_TYPE_BYTE_PORTAL, TARGET_TYPE_BYTE_STATEMENT,
};
use pgwire::messages::response::EmptyQueryResponse;

use crate::errors::user_error;
use crate::session::{PgSession, Statements};
use crate::values;

/// Prepared statements of a connection. Drivers keep 100 to 256.
const STATEMENTS_MAX: usize = 1_000;

/// Bound statements of a connection, each of which may be a query under way. A driver that fetches
/// rows in pieces has one of them for each open result.
const PORTALS_MAX: usize = 100;

/// Bytes of statements and of bound values that a connection keeps, in longest statements.
const HELD_STATEMENTS: usize = 4;

/// A prepared statement.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    pub(crate) statement: Statements,
    /// The types that the statement asks for.
    pub(crate) parameter_types: Vec<Type>,
    pub(crate) schema: Arc<arrow::datatypes::Schema>,
}

/// What a connection keeps between messages, by name and bytes.
#[derive(Debug, Default)]
pub(crate) struct HeldNames {
    statements: BTreeMap<String, usize>,
    portals: BTreeMap<String, usize>,
}

impl HeldNames {
    /// Enters a statement or a portal in place of the one of its name.
    fn enter(
        &mut self,
        target: u8,
        name: &str,
        bytes: usize,
        bytes_max: usize,
    ) -> PgWireResult<()> {
        let all: usize = self.statements.values().chain(self.portals.values()).sum();
        let (held, count_max, what) = match target {
            TARGET_TYPE_BYTE_STATEMENT => {
                (&mut self.statements, STATEMENTS_MAX, "prepared statements")
            }
            _ => (&mut self.portals, PORTALS_MAX, "open results"),
        };
        let replaced = held.get(name).copied();
        if replaced.is_none() && held.len() >= count_max {
            let words = format!("a connection has {count_max} {what} at most; close some");
            return Err(user_error("54000", &words, None));
        }
        if all - replaced.unwrap_or(0) + bytes > bytes_max {
            let words = format!(
                "the statements and values of a connection have {bytes_max} bytes at most; \
                 close prepared statements"
            );
            return Err(user_error("54000", &words, None));
        }
        held.insert(name.to_owned(), bytes);
        Ok(())
    }

    /// Takes out a prepared statement, or all of them.
    pub(crate) fn take_statements(&mut self, name: &str) -> Vec<String> {
        if name.eq_ignore_ascii_case("all") {
            return std::mem::take(&mut self.statements).into_keys().collect();
        }
        self.statements.remove_entry(name).map(|(name, _)| name).into_iter().collect()
    }

    fn leave(&mut self, target: u8, name: &str) {
        match target {
            TARGET_TYPE_BYTE_STATEMENT => self.statements.remove(name),
            _ => self.portals.remove(name),
        };
    }
}

/// The prepared statements of a connection.
pub(crate) struct PreparedStatements {
    session: Arc<PgSession>,
}

impl PreparedStatements {
    pub(crate) fn new(session: Arc<PgSession>) -> Self {
        Self { session }
    }

    fn enter(&self, target: u8, name: &str, bytes: usize) -> PgWireResult<()> {
        let bytes_max = self.session.statement_bytes().saturating_mul(HELD_STATEMENTS);
        // A name is held twice, and a plan has a size even for the shortest statement.
        let bytes = bytes + 2 * name.len();
        self.session
            .held
            .lock()
            .expect("no panic holds the lock")
            .enter(target, name, bytes, bytes_max)
    }

    fn leave(&self, target: u8, name: &str) {
        self.session.held.lock().expect("no panic holds the lock").leave(target, name);
    }
}

/// A bind whose counts agree with its statement. pgwire would index by them.
fn check_bind(bind: &Bind, prepared: &Prepared, types: usize) -> PgWireResult<()> {
    let wanted = prepared.parameter_types.len().max(types);
    let columns = prepared.schema.fields().len();
    let formats = |given: usize, of: usize| given <= 1 || given == of;
    let words = if bind.parameters.len() != wanted {
        format!(
            "bind message supplies {} parameters, but the prepared statement requires {wanted}",
            bind.parameters.len()
        )
    } else if !formats(bind.parameter_format_codes.len(), wanted) {
        format!("bind message has {} formats of parameters", bind.parameter_format_codes.len())
    } else if !formats(bind.result_column_format_codes.len(), columns) {
        format!(
            "bind message has {} formats of results, but the statement has {columns} columns",
            bind.result_column_format_codes.len()
        )
    } else {
        return Ok(());
    };
    Err(user_error("08P01", &words, None))
}

#[async_trait]
impl ExtendedQueryHandler for PreparedStatements {
    type Statement = Prepared;
    type QueryParser = PgSession;

    fn query_parser(&self) -> Arc<Self::QueryParser> {
        Arc::clone(&self.session)
    }

    async fn on_parse<C>(&self, client: &mut C, message: Parse) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Self::Statement>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let name = message.name.as_deref().unwrap_or(DEFAULT_NAME).to_owned();
        self.enter(TARGET_TYPE_BYTE_STATEMENT, &name, message.query.len())?;
        match StoredStatement::parse(client, &message, self.query_parser()).await {
            Ok(Some(statement)) => client.portal_store().put_statement(Arc::new(statement)),
            Ok(None) => client.portal_store().put_empty_statement(&name),
            Err(error) => {
                client.portal_store().rm_statement(&name);
                self.leave(TARGET_TYPE_BYTE_STATEMENT, &name);
                return Err(error);
            }
        }
        client.feed(PgWireBackendMessage::ParseComplete(ParseComplete::new())).await?;
        Ok(())
    }

    async fn on_bind<C>(&self, client: &mut C, message: Bind) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Self::Statement>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let statement_name = message.statement_name.as_deref().unwrap_or(DEFAULT_NAME);
        let portal_name = message.portal_name.as_deref().unwrap_or(DEFAULT_NAME);
        let values = message.parameters.iter().flatten().map(|value| value.len()).sum();
        match client.portal_store().get_statement(statement_name) {
            Some(Entry::Value(statement)) => {
                check_bind(&message, &statement.statement, statement.parameter_types.len())?;
                self.enter(TARGET_TYPE_BYTE_PORTAL, portal_name, values)?;
                let portal = Portal::try_new(&message, statement)?;
                client.portal_store().put_portal(Arc::new(portal));
            }
            Some(Entry::Empty) => {
                self.enter(TARGET_TYPE_BYTE_PORTAL, portal_name, 0)?;
                client.portal_store().put_empty_portal(portal_name);
            }
            None => return Err(missing("26000", "prepared statement", statement_name)),
        }
        client.feed(PgWireBackendMessage::BindComplete(BindComplete::new())).await?;
        Ok(())
    }

    async fn on_describe<C>(&self, client: &mut C, message: Describe) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Self::Statement>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let name = message.name.as_deref().unwrap_or(DEFAULT_NAME);
        match message.target_type {
            TARGET_TYPE_BYTE_STATEMENT => {
                let described = match client.portal_store().get_statement(name) {
                    Some(Entry::Value(stored)) => {
                        self.do_describe_statement(client, &stored).await?
                    }
                    Some(Entry::Empty) => DescribeStatementResponse::no_data(),
                    None => return Err(missing("26000", "prepared statement", name)),
                };
                feed_description(client, &described).await
            }
            TARGET_TYPE_BYTE_PORTAL => {
                let described = match client.portal_store().get_portal(name) {
                    Some(Entry::Value(portal)) => self.do_describe_portal(client, &portal).await?,
                    Some(Entry::Empty) => DescribePortalResponse::no_data(),
                    None => return Err(missing("34000", "portal", name)),
                };
                feed_description(client, &described).await
            }
            other => Err(PgWireError::InvalidTargetType(other)),
        }
    }

    async fn on_execute<C>(&self, client: &mut C, message: Execute) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Self::Statement>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let name = message.name.as_deref().unwrap_or(DEFAULT_NAME);
        // Without a positive number, all rows are asked for.
        let rows_max = usize::try_from(i64::from(message.max_rows)).unwrap_or(0);
        let portal = match client.portal_store().get_portal(name) {
            Some(Entry::Value(portal)) => portal,
            Some(Entry::Empty) => {
                client
                    .feed(PgWireBackendMessage::EmptyQueryResponse(EmptyQueryResponse::new()))
                    .await?;
                return Ok(());
            }
            None => return Err(missing("34000", "portal", name)),
        };
        client.set_state(PgWireConnectionState::QueryInProgress);
        let state = portal.state();
        let mut state = state.lock().await;
        if matches!(*state, PortalExecutionState::Initial) {
            *state = PortalExecutionState::Finished;
            match self.do_query(client, &portal, rows_max).await? {
                Response::Query(rows) => *state = PortalExecutionState::Suspended(rows),
                other => self.end_execution(client, other).await?,
            }
        }
        if let PortalExecutionState::Suspended(rows) = &mut *state {
            let sent = send_partial_query_response(client, rows, rows_max).await;
            if !matches!(sent, Ok(true)) {
                *state = PortalExecutionState::Finished;
            }
            sent?;
        }
        client.set_state(PgWireConnectionState::ReadyForQuery);
        Ok(())
    }

    async fn on_close<C>(&self, client: &mut C, message: Close) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Self::Statement>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let name = message.name.as_deref().unwrap_or(DEFAULT_NAME);
        match message.target_type {
            TARGET_TYPE_BYTE_STATEMENT => client.portal_store().rm_statement(name),
            TARGET_TYPE_BYTE_PORTAL => client.portal_store().rm_portal(name),
            other => return Err(PgWireError::InvalidTargetType(other)),
        }
        self.leave(message.target_type, name);
        client.feed(PgWireBackendMessage::CloseComplete(CloseComplete::new())).await?;
        Ok(())
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
        let query = match &prepared.statement {
            Statements::Setting(statement) => {
                self.session.forget_prepared(client, statement);
                return self.session.answer_setting(client, statement, format).await;
            }
            Statements::Query(query) => query,
        };
        let session = self.session.session(client).await?;
        let bound = match portal.parameters.is_empty() {
            true => None,
            false => Some(values::bind_parameters(portal)?),
        };
        let plan = move |plan: LogicalPlan| match bound {
            Some(bound) => plan.replace_params_with_values(&bound),
            None => Ok(plan),
        };
        self.session.run_query(&session, query, plan, format).await
    }
}

impl PreparedStatements {
    /// Answers a statement that has no rows.
    async fn end_execution<C>(&self, client: &mut C, response: Response) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let status = client.transaction_status();
        match response {
            Response::Execution(tag) => send_execution_response(client, tag).await,
            Response::TransactionStart(tag) => {
                client.set_transaction_status(status.to_in_transaction_state());
                send_execution_response(client, tag).await
            }
            Response::TransactionEnd(tag) => {
                client.set_transaction_status(status.to_idle_state());
                send_execution_response(client, tag).await
            }
            // The session makes no other answer.
            _ => Err(user_error("XX000", "the statement has an answer of no known kind", None)),
        }
    }
}

fn missing(code: &str, what: &str, name: &str) -> PgWireError {
    user_error(code, &format!("{what} \"{name}\" does not exist"), None)
}

/// Describes parameters and columns, without sending a packet for each.
async fn feed_description<C>(client: &mut C, described: &impl DescribeResponse) -> PgWireResult<()>
where
    C: Sink<PgWireBackendMessage> + Unpin,
    C::Error: Debug,
    PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
{
    if let Some(types) = described.parameters() {
        let types = types.iter().map(Type::oid).collect();
        let parameters = ParameterDescription::new(types);
        client.feed(PgWireBackendMessage::ParameterDescription(parameters)).await?;
    }
    let columns = match described.is_no_data() {
        true => PgWireBackendMessage::NoData(NoData::new()),
        false => {
            let fields = described.fields().iter().map(Into::into).collect();
            PgWireBackendMessage::RowDescription(RowDescription::new(fields))
        }
    };
    client.feed(columns).await?;
    Ok(())
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
            (Some(statement), true) => self.prepare(&session, statement, sql).await.map(Some),
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
        arrow_pg::datatypes::arrow_schema_to_pg_fields(&statement.schema, format, None)
    }
}
