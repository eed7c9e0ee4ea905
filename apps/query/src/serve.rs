//! Serving: clients of PostgreSQL ask until Ctrl-C.

use std::net::SocketAddr;
use std::sync::Arc;

use evenfall_query_pg::{PgLimits, PgListener};

use crate::{EngineArgs, Outcome, open};

/// Arguments of `serve`.
#[derive(clap::Args, Debug)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    engine: EngineArgs,
    /// Address for clients of PostgreSQL, on loopback: any user, no password.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:5433")]
    pg: SocketAddr,
    /// Connections at once. Later clients are told so.
    #[arg(long, value_name = "COUNT", default_value_t = PgLimits::default().connections)]
    connections: usize,
}

/// Serves until Ctrl-C or SIGTERM.
///
/// # Errors
/// The errors of opening and of the address.
pub(crate) fn serve(args: ServeArgs) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(args.engine.limits().threads)
        .enable_all()
        .build()?;
    // Connections have a thread of their own: a query may keep all threads of queries busy.
    let connections =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let engine = Arc::new(open::open_engine(&args.engine, runtime.handle())?);
    let compute = runtime.handle().clone();
    let outcome = connections.block_on(async {
        let limits = PgLimits { connections: args.connections };
        let recording = args.engine.recording.clone();
        let listener = PgListener::bind(args.pg, engine, recording, compute, limits).await?;
        let address = listener.local_address()?;
        eprintln!(
            "answers clients of PostgreSQL on {address}: psql -h {} -p {} evenfall",
            address.ip(),
            address.port()
        );
        let mut terminated =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            served = listener.serve() => served?,
            _ = tokio::signal::ctrl_c() => {}
            _ = terminated.recv() => {}
        }
        Ok(())
    });
    // Statements of clients end with the program.
    connections.shutdown_background();
    runtime.shutdown_background();
    outcome
}
