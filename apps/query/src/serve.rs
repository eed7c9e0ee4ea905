//! Serving: clients of PostgreSQL and of Flight SQL ask until Ctrl-C.

use std::net::SocketAddr;
use std::sync::Arc;

use evenfall_query_flight::FlightListener;
use evenfall_query_pg::PgListener;
use evenfall_query_sql::{DoorLimits, QUERY_STACK_BYTES, QueryEngine};
use tokio::runtime::Handle;

use crate::{EngineArgs, Outcome, open};

/// Where clients of PostgreSQL are answered when no address is given at all.
const PG_DEFAULT: &str = "127.0.0.1:5433";

/// Arguments of `serve`.
#[derive(clap::Args, Debug)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    engine: EngineArgs,
    /// Address for clients of PostgreSQL, on loopback: any user, no password. Without --pg and
    /// --flight, 127.0.0.1:5433.
    #[arg(long, value_name = "ADDRESS")]
    pg: Option<SocketAddr>,
    /// Address for clients of Arrow Flight SQL, on loopback: any user, no password.
    #[arg(long, value_name = "ADDRESS")]
    flight: Option<SocketAddr>,
    /// Connections at once, of each kind of client. Later clients are told so.
    #[arg(long, value_name = "COUNT", default_value_t = DoorLimits::default().connections)]
    connections: usize,
}

/// Serves until Ctrl-C or SIGTERM.
///
/// # Errors
/// The errors of opening and of the addresses.
pub(crate) fn serve(args: ServeArgs) -> Outcome {
    evenfall_host::procstat::raise_files();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(args.engine.limits().threads)
        .thread_stack_size(QUERY_STACK_BYTES)
        .enable_all()
        .build()?;
    // Connections have a thread of their own: a query may keep all threads of queries busy.
    let connections = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_stack_size(QUERY_STACK_BYTES)
        .enable_all()
        .build()?;
    let engine = Arc::new(open::open_engine(&args.engine, runtime.handle())?);
    let outcome = connections.block_on(serve_doors(&args, engine, runtime.handle()));
    // Statements of clients end with the program.
    connections.shutdown_background();
    runtime.shutdown_background();
    outcome
}

async fn serve_doors(args: &ServeArgs, engine: Arc<QueryEngine>, compute: &Handle) -> Outcome {
    let limits = DoorLimits { connections: args.connections, ..DoorLimits::default() };
    let recording = || args.engine.recording.clone();
    let pg = match (args.pg, args.flight) {
        (None, None) => Some(PG_DEFAULT.parse()?),
        (pg, _) => pg,
    };
    let pg = match pg {
        Some(address) => {
            let (engine, compute) = (Arc::clone(&engine), compute.clone());
            let pg = PgListener::bind(address, engine, recording(), compute, limits).await?;
            let address = pg.local_address()?;
            let (host, port) = (address.ip(), address.port());
            aside!("answers clients of PostgreSQL on {address}: psql -h {host} -p {port}");
            Some(pg)
        }
        None => None,
    };
    let flight = match args.flight {
        Some(address) => {
            let compute = compute.clone();
            let flight =
                FlightListener::bind(address, engine, recording(), compute, limits).await?;
            let address = flight.local_address()?;
            aside!("answers clients of Flight SQL on {address}: grpc://{address}");
            Some(flight)
        }
        None => None,
    };
    // A door that was not asked for waits for ever, so that `select!` ends with another door.
    let serve_pg = async {
        match pg {
            Some(pg) => pg.serve().await,
            None => std::future::pending().await,
        }
    };
    let serve_flight = async {
        match flight {
            Some(flight) => flight.serve().await,
            None => std::future::pending().await,
        }
    };
    let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        () = serve_pg => {}
        served = serve_flight => served?,
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated.recv() => {}
    }
    Ok(())
}
