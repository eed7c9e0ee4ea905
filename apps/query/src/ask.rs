//! One statement, and its rows on standard output or in a file.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Instant;

use evenfall_query_sql::{QUERY_STACK_BYTES, QuerySession, error_words, run_on, statement_error};
use futures_util::StreamExt as _;
use tokio::runtime::Handle;

use crate::interrupt::Interrupts;
use crate::output::{Output, OutputFormat};
use crate::{EngineArgs, Outcome, open, prompt};

/// Arguments of a single statement.
#[derive(clap::Args, Debug)]
pub(crate) struct AskArgs {
    #[command(flatten)]
    engine: EngineArgs,
    /// The statement. Without it, statements are asked for on a terminal, and read from standard
    /// input otherwise.
    #[arg(value_name = "SQL")]
    sql: Option<String>,
    /// Answer each statement when its semicolon has come, also when standard input is no terminal.
    #[arg(long, short, conflicts_with_all = ["sql", "out"])]
    interactive: bool,
    /// Format of the rows.
    #[arg(long, value_enum, default_value = "table")]
    format: OutputFormat,
    /// The file to write. Without it, standard output.
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print where the time went, as a line of JSON on standard error.
    #[arg(long)]
    timing: bool,
}

/// Runs the statement.
///
/// # Errors
/// The errors of opening, of the statement and of the output.
pub(crate) fn ask(args: AskArgs) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(args.engine.limits().threads)
        .thread_stack_size(QUERY_STACK_BYTES)
        .enable_all()
        .build()?;
    let engine = open::open_engine(&args.engine, runtime.handle())?;
    if let Some(name) = &args.engine.recording {
        engine.check_recording(name).map_err(|error| error_words(&error))?;
    }
    let database = args.engine.recording.as_deref().unwrap_or("evenfall");
    let session = engine.session(args.engine.recording.as_deref(), database)?;
    let is_terminal = std::io::stdin().is_terminal() && args.out.is_none();
    let sql = match &args.sql {
        Some(sql) => sql.clone(),
        None if args.interactive || is_terminal => {
            let answered = prompt::answer_prompt(&session, &args, &runtime);
            runtime.shutdown_background();
            return answered;
        }
        None => std::io::read_to_string(std::io::stdin())?,
    };
    let interrupts = Interrupts::hear(false)?;
    // A statement under way is dropped at Ctrl-C, and an unfinished file is removed.
    let statement = run_statement(&session, &args, &sql, runtime.handle());
    let outcome = runtime.block_on(interrupts.or_interrupted(statement));
    // A scan that still reads from the store must not hold the exit up.
    runtime.shutdown_background();
    outcome
}

/// Runs a statement of a session on the threads of queries, and writes its rows.
///
/// # Errors
/// The errors of the statement and of the output.
pub(crate) async fn run_statement(
    session: &QuerySession,
    args: &AskArgs,
    sql: &str,
    compute: &Handle,
) -> Outcome {
    let words = |error| statement_error(&error, sql);
    let starting = {
        let (session, sql) = (session.clone(), sql.to_owned());
        run_on(compute, async move { session.run(&sql).await })
    };
    let query = starting.await.flatten().map_err(words)?;
    let (planned_in, counters) = (query.planned_in, query.counters());
    let mut output = Output::begin(args.format, args.out.as_deref(), &query.stream.schema())?;
    let begun = Instant::now();
    let mut progress = Progress::new(begun);
    let mut rows = 0;
    let mut batches = query.on_threads_of(compute, |batch| batch);
    while let Some(batch) = batches.next().await {
        let batch = batch.flatten().map_err(words)?;
        rows += batch.num_rows();
        output.write(&batch)?;
        progress.show(rows);
    }
    drop(progress);
    output.finish()?;
    if args.timing {
        let timing = serde_json::json!({
            "plan_us": planned_in.as_micros() as u64,
            "run_us": begun.elapsed().as_micros() as u64,
            "rows": rows,
            "rows_read": counters.rows_read(),
            "rows_skipped": counters.rows_skipped(),
            "spilled_bytes": counters.spilled_bytes(),
        });
        aside!("{timing}");
    }
    Ok(())
}

/// Rows so far, on a terminal and after two seconds.
struct Progress {
    begun: Instant,
    is_terminal: bool,
    shown: Option<Instant>,
}

impl Progress {
    fn new(begun: Instant) -> Self {
        Self { begun, is_terminal: std::io::stderr().is_terminal(), shown: None }
    }

    fn show(&mut self, rows: usize) {
        let now = Instant::now();
        let is_due = self.shown.is_none_or(|shown| (now - shown).as_millis() >= 200);
        if self.is_terminal && (now - self.begun).as_secs() >= 2 && is_due {
            aside_part!("\r{rows} rows");
            self.shown = Some(now);
        }
    }
}

impl Drop for Progress {
    /// Clears the line, also when the statement has failed.
    fn drop(&mut self) {
        if self.shown.is_some() {
            aside_part!("\r\x1b[K");
        }
    }
}
