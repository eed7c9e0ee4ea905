//! The engine of a process, and the sessions in it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use datafusion::catalog::{CatalogProviderList as _, MemoryCatalogProviderList, TableProvider};
use datafusion::common::{DataFusionError, Result, plan_err};
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{FairSpillPool, TrackConsumersPool};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::{LogicalPlan, ScalarUDF};
use datafusion::physical_plan::execute_stream;
use datafusion::prelude::{SQLOptions, SessionConfig, SessionContext};
use datafusion::sql::parser::{DFParserBuilder, Statement};
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;

use crate::asof::{self, PlanTimeJoins, PushFiltersBelowTimeJoins};
use crate::book::BookFunction;
use crate::catalog::{PUBLIC, StoreCatalog, store_error};
use crate::desk::DeskSource;
use crate::growing::{CountConstants, GrowingOperators, growing_functions};
use crate::nesting::check_nesting;
use crate::running::{RunningQuery, StopAtDrop};
use crate::stop::{QueryStop, hear_stops};
use crate::values_at::ValuesAtTimes;
use crate::{functions, syntax};
use evenfall_store_recording::tables::{TableError, Tables};

/// Limits of an engine.
#[derive(Clone, Debug)]
pub struct EngineLimits {
    /// Bytes of memory of all queries together.
    pub memory_bytes: usize,
    /// Where sorts, aggregates and joins put what does not fit; `None` for the system's directory
    /// of temporary files.
    pub spill_dir: Option<PathBuf>,
    /// Bytes of all spilled files together.
    pub spill_bytes: u64,
    /// Parts of a query that run at once.
    pub threads: usize,
    /// Bytes of a statement.
    pub statement_bytes: usize,
}

impl Default for EngineLimits {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            memory_bytes: 1 << 30,
            spill_dir: None,
            // Ten times the memory: a sort writes its input once.
            spill_bytes: 10 << 30,
            threads,
            // Programs write statements of some kilobytes; a list of 10,000 symbols has 100 KB.
            statement_bytes: 1 << 20,
        }
    }
}

/// Tables and limits of a process. All sessions share its memory.
pub struct QueryEngine {
    tables: Arc<dyn Tables>,
    added: Arc<BTreeMap<String, Arc<dyn TableProvider>>>,
    desk: DeskSource,
    runtime: Arc<RuntimeEnv>,
    /// Functions that take their memory out of that of the runtime.
    growing: Vec<ScalarUDF>,
    limits: EngineLimits,
}

impl std::fmt::Debug for QueryEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueryEngine").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl QueryEngine {
    /// An engine over these tables, and over tables that a user added by name.
    ///
    /// # Errors
    /// The error of a directory for spilled files that cannot be made.
    pub fn new(
        tables: Arc<dyn Tables>,
        added: BTreeMap<String, Arc<dyn TableProvider>>,
        limits: EngineLimits,
    ) -> Result<Self> {
        let mode = match &limits.spill_dir {
            Some(dir) => DiskManagerMode::Directories(vec![dir.clone()]),
            None => DiskManagerMode::OsTmpDirectory,
        };
        let disk = DiskManagerBuilder::default()
            .with_mode(mode)
            .with_max_temp_directory_size(limits.spill_bytes);
        // An error over the limit names the operators that hold most.
        let largest = std::num::NonZero::new(3).expect("3 is not 0");
        let pool = TrackConsumersPool::new(FairSpillPool::new(limits.memory_bytes), largest);
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(pool))
            .with_disk_manager_builder(disk)
            .build_arc()?;
        let (added, desk) = (Arc::new(added), DeskSource::default());
        let growing = growing_functions(&runtime.memory_pool);
        Ok(Self { tables, added, desk, runtime, growing, limits })
    }

    /// Has `reprice` and `nbbo` answered by this source.
    #[must_use]
    pub fn with_desk(self, desk: DeskSource) -> Self {
        Self { desk, ..self }
    }

    /// The limits.
    pub fn limits(&self) -> &EngineLimits {
        &self.limits
    }

    /// Checks that the store has a recording of this name.
    ///
    /// # Errors
    /// An error for an unknown recording, which lists the known ones, and those of listing the
    /// tables.
    pub fn check_recording(&self, name: &str) -> Result<()> {
        let known = StoreCatalog::recordings(&*self.tables)?;
        match known.iter().any(|known| known == name) {
            true => Ok(()),
            false => {
                Err(store_error(TableError::UnknownRecording { name: name.to_owned(), known }))
            }
        }
    }

    /// A session that searches the recording of this name first. An unknown name is no error: then
    /// the only recording is searched first, or `public` where there are several.
    ///
    /// # Errors
    /// The errors of listing the tables.
    pub fn session(&self, recording: Option<&str>, database: &str) -> Result<QuerySession> {
        let recordings = StoreCatalog::recordings(&*self.tables)?;
        let named = recording.filter(|name| recordings.iter().any(|known| known == name));
        let searched_first = match (named, recordings.as_slice()) {
            (Some(name), _) => name.to_owned(),
            (None, [only]) => only.clone(),
            (None, _) => PUBLIC.to_owned(),
        };
        let config = SessionConfig::new()
            .with_target_partitions(self.limits.threads)
            .with_default_catalog_and_schema(database, &searched_first)
            .with_create_default_catalog_and_schema(false)
            .with_information_schema(true)
            .set_bool("datafusion.sql_parser.collect_spans", true)
            // Without a zone, `TIMESTAMPTZ '...Z'` would lose the zone that it states.
            .set_str("datafusion.execution.time_zone", "UTC")
            // Streams of the store are in order of time already. Keeping that order through a
            // repartition costs less than sorting again.
            .set_bool("datafusion.optimizer.prefer_existing_sort", true);
        let mut analyzers = datafusion::optimizer::Analyzer::new().rules;
        analyzers.push(Arc::new(PlanTimeJoins));
        analyzers.push(Arc::new(ValuesAtTimes));
        // Filters are pushed below joins of time first, so that the other rules push them further.
        let mut optimizers = datafusion::optimizer::Optimizer::new().rules;
        optimizers.insert(0, Arc::new(PushFiltersBelowTimeJoins));
        let growing_operators = GrowingOperators { functions: self.growing.clone() };
        let pool = Arc::clone(&self.runtime.memory_pool);
        let state = SessionStateBuilder::new()
            .with_config(config)
            .with_runtime_env(Arc::clone(&self.runtime))
            // The first planner of an expression wins, and the standard ones come after it.
            .with_expr_planners(vec![Arc::new(growing_operators)])
            .with_default_features()
            .with_physical_optimizer_rule(Arc::new(CountConstants { pool }))
            .with_analyzer_rules(analyzers)
            .with_optimizer_rules(optimizers)
            .with_query_planner(Arc::new(asof::planner::TimeJoinPlanner))
            .build();
        let context = SessionContext::new_with_state(state);
        let scalar_functions = asof::condition::match_functions()
            .into_iter()
            .chain(functions::scalar_functions())
            .chain(self.growing.iter().cloned());
        for function in scalar_functions {
            context.register_udf(function);
        }
        for aggregate in functions::aggregate_functions() {
            context.register_udaf(aggregate);
        }
        let catalog = Arc::new(StoreCatalog::new(
            Arc::clone(&self.tables),
            Arc::clone(&self.added),
            searched_first.clone(),
        ));
        context.register_catalog(database, Arc::clone(&catalog) as _);
        let tables = Arc::clone(&self.tables);
        let (database, statement_bytes) = (database.to_owned(), self.limits.statement_bytes);
        let desk = self.desk.clone();
        Ok(QuerySession {
            context,
            tables,
            catalog,
            desk,
            database,
            statement_bytes,
            searched_first,
        })
    }
}

/// The session in which one connection or command asks its statements.
#[derive(Clone)]
pub struct QuerySession {
    context: SessionContext,
    tables: Arc<dyn Tables>,
    catalog: Arc<StoreCatalog>,
    desk: DeskSource,
    database: String,
    statement_bytes: usize,
    searched_first: String,
}

impl QuerySession {
    /// DataFusion's context, for doors that add their own catalogues and functions.
    pub fn datafusion_context(&self) -> &SessionContext {
        &self.context
    }

    /// The name of the catalogue, which is the database that the client named.
    pub fn catalog_name(&self) -> String {
        self.database.clone()
    }

    /// The schema that is searched first.
    pub fn searched_first(&self) -> &str {
        &self.searched_first
    }

    /// Refuses a text that is too long, or that nests too deeply for the stack of a thread.
    ///
    /// # Errors
    /// What is too much, and the limit.
    pub fn check_text(&self, sql: &str) -> Result<()> {
        if sql.len() > self.statement_bytes {
            return plan_err!(
                "the statement has {} bytes; {} are taken (--statement-bytes)",
                sql.len(),
                self.statement_bytes
            );
        }
        check_nesting(sql).map_err(DataFusionError::Plan)
    }

    /// Parses the statements of a text.
    ///
    /// # Errors
    /// The place of a mistake, and a text that is too long.
    pub fn parse(&self, sql: &str) -> Result<Vec<Statement>> {
        self.check_text(sql)?;
        let mut parser = DFParserBuilder::new(sql).with_dialect(&PostgreSqlDialect {}).build()?;
        parser.parse_statements().map(Vec::from)
    }

    /// Parses a text of one statement.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), and a text of none or of several.
    pub fn parse_one(&self, sql: &str) -> Result<Statement> {
        let mut statements = self.parse(sql)?;
        let count = statements.len();
        match (statements.pop(), count) {
            (Some(statement), 1) => Ok(statement),
            _ => plan_err!("one statement is asked for, and there are {count}"),
        }
    }

    /// Plans a statement that only reads.
    ///
    /// # Errors
    /// The errors of the plan, and a statement that would change something.
    pub async fn plan(&self, mut statement: Statement) -> Result<LogicalPlan> {
        rewrite_statement(&mut statement)?;
        let planned = self.state_of_moment().statement_to_plan(statement).await;
        let plan = planned.map_err(|error| self.catalog.name_tables(error))?;
        check_reads_only(&plan)?;
        Ok(plan)
    }

    /// The state of the session over the tables of one statement.
    fn state_of_moment(&self) -> SessionState {
        let tables = self.tables.at_one_moment();
        let mut state = self.context.state();
        let catalogs = MemoryCatalogProviderList::new();
        for name in state.catalog_list().catalog_names() {
            if let Some(other) = state.catalog_list().catalog(&name) {
                catalogs.register_catalog(name, other);
            }
        }
        let catalog = self.catalog.with_tables(Arc::clone(&tables));
        catalogs.register_catalog(self.database.clone(), Arc::new(catalog));
        state.register_catalog_list(Arc::new(catalogs));
        self.desk.register(&mut state, &tables, self.catalog.added_tables());
        state.register_udtf("book", Arc::new(BookFunction::new(tables)));
        state
    }

    /// Begins a planned statement.
    ///
    /// # Errors
    /// The errors of the physical plan.
    pub async fn start(&self, plan: LogicalPlan) -> Result<RunningQuery> {
        let begun = Instant::now();
        let physical = self.context.state().create_physical_plan(&plan).await?;
        let stop = QueryStop::default();
        let physical = hear_stops(physical, &stop)?;
        let stop = StopAtDrop(stop);
        let task = self.context.task_ctx();
        let stream = execute_stream(Arc::clone(&physical), task)?;
        Ok(RunningQuery { stream, physical, stop, planned_in: begun.elapsed() })
    }

    /// Runs a text of one statement.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), [`plan`](Self::plan) and [`start`](Self::start).
    pub async fn run(&self, sql: &str) -> Result<RunningQuery> {
        let begun = Instant::now();
        let plan = self.plan(self.parse_one(sql)?).await?;
        let mut running = self.start(plan).await?;
        running.planned_in = begun.elapsed();
        Ok(running)
    }
}

fn rewrite_statement(statement: &mut Statement) -> Result<()> {
    match statement {
        Statement::Statement(statement) => {
            syntax::rewrite_statement(statement).map_err(DataFusionError::Plan)
        }
        Statement::Explain(explain) => rewrite_statement(&mut explain.statement),
        // Refused later, because they change something.
        _ => Ok(()),
    }
}

fn check_reads_only(plan: &LogicalPlan) -> Result<()> {
    let options =
        SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    options.verify_plan(plan).map_err(|error| match error {
        // The words of the engine are the debug output of its plan.
        DataFusionError::Plan(_) => DataFusionError::Plan(
            "only statements that read are taken. Tables of the store are made by `evenfall store \
             create`, and other files are added by --table NAME=FILE"
                .to_owned(),
        ),
        other => other,
    })
}
