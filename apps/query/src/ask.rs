//! One statement, and its rows on standard output or in a file.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Instant;

use evenfall_query_sql::{QUERY_STACK_BYTES, QueryEngine, statement_error};
use futures_util::TryStreamExt as _;

use crate::output::{Output, OutputFormat};
use crate::{EngineArgs, Outcome, open};

/// Arguments of a single statement.
#[derive(clap::Args, Debug)]
pub(crate) struct AskArgs {
    #[command(flatten)]
    engine: EngineArgs,
    /// The statement. Without it, the statement is read from standard input.
    #[arg(value_name = "SQL")]
    sql: Option<String>,
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
    let sql = match &args.sql {
        Some(sql) => sql.clone(),
        None => std::io::read_to_string(std::io::stdin())?,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(args.engine.limits().threads)
        .thread_stack_size(QUERY_STACK_BYTES)
        .enable_all()
        .build()?;
    let engine = open::open_engine(&args.engine, runtime.handle())?;
    // Ctrl-C is heard on a thread of its own, whatever the statement computes.
    let signals = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (sender, interrupted) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        if signals.block_on(tokio::signal::ctrl_c()).is_ok() {
            let _ = sender.send(());
        }
    });
    let outcome = runtime.block_on(async {
        tokio::select! {
            // A statement under way is dropped at Ctrl-C, and an unfinished file is removed.
            outcome = run(&engine, &args, &sql) => outcome,
            Ok(()) = interrupted => Err("interrupted: the statement was ended".into()),
        }
    });
    // A scan that still reads from the store must not hold the exit up.
    runtime.shutdown_background();
    outcome
}

async fn run(engine: &QueryEngine, args: &AskArgs, sql: &str) -> Outcome {
    let database = args.engine.recording.as_deref().unwrap_or("evenfall");
    let session = engine.session(args.engine.recording.as_deref(), database)?;
    let mut query = session.run(sql).await.map_err(|error| statement_error(&error, sql))?;
    let mut output = Output::begin(args.format, args.out.as_deref(), &query.stream.schema())?;
    let begun = Instant::now();
    let mut progress = Progress::new(begun);
    let mut rows = 0;
    while let Some(batch) =
        query.stream.try_next().await.map_err(|error| statement_error(&error, sql))?
    {
        rows += batch.num_rows();
        output.write(&batch)?;
        progress.show(rows);
    }
    progress.clear();
    output.finish()?;
    if args.timing {
        let timing = serde_json::json!({
            "plan_us": query.planned_in.as_micros() as u64,
            "run_us": begun.elapsed().as_micros() as u64,
            "rows": rows,
            "rows_read": query.rows_read(),
            "rows_skipped": query.rows_skipped(),
            "spilled_bytes": query.spilled_bytes(),
        });
        eprintln!("{timing}");
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
            eprint!("\r{rows} rows");
            self.shown = Some(now);
        }
    }

    fn clear(&self) {
        if self.shown.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}
