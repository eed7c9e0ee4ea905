//! A query that runs, and its rows on other threads than those that ask for them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlan;
use futures_util::{Stream, StreamExt as _};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};

use crate::scan::SnapshotExec;
use crate::stop::{QueryStop, panic_error};

/// Batches that wait for a slow client. The query waits while they do.
const BATCHES_WAITING: usize = 2;

/// A query that runs.
pub struct RunningQuery {
    /// The rows. A query whose stream is dropped ends at the next place where it yields. A
    /// [`QueryStop`] ends the query inside joins as well.
    pub stream: SendableRecordBatchStream,
    pub(crate) physical: Arc<dyn ExecutionPlan>,
    pub(crate) stop: StopAtDrop,
    /// Time from the text to the plan.
    pub planned_in: Duration,
}

impl RunningQuery {
    /// What ends the query.
    pub fn stop(&self) -> QueryStop {
        self.stop.0.clone()
    }

    /// The rows, made and converted on the threads of `compute`, so that a caller hears its client
    /// while the query computes. The query ends when the rows are dropped.
    pub fn on_threads_of<T: Send + 'static>(
        self,
        compute: &Handle,
        mut convert: impl FnMut(Result<RecordBatch>) -> T + Send + 'static,
    ) -> BackgroundRows<T> {
        let (sender, batches) = mpsc::channel(BATCHES_WAITING);
        let stop = self.stop();
        let Self { mut stream, stop: at_drop, .. } = self;
        let task = compute.spawn(async move {
            let _at_drop = at_drop;
            while let Some(batch) = stream.next().await {
                // Nobody receives any more: the client has gone.
                if sender.send(convert(batch)).await.is_err() {
                    break;
                }
            }
        });
        BackgroundRows { batches, task: EndedTask(task), stop, has_ended: false }
    }

    /// What the query has read and spilled. The counters go on while the rows are on their way.
    pub fn counters(&self) -> QueryCounters {
        QueryCounters(Arc::clone(&self.physical))
    }
}

/// What a query has read and spilled so far.
#[derive(Clone, Debug)]
pub struct QueryCounters(Arc<dyn ExecutionPlan>);

impl QueryCounters {
    /// Bytes that the operators have spilled.
    pub fn spilled_bytes(&self) -> usize {
        self.sum(&|plan| plan.metrics().and_then(|metrics| metrics.spilled_bytes()).unwrap_or(0))
    }

    /// Rows that the store has handed over.
    pub fn rows_read(&self) -> usize {
        self.sum(&|plan| match plan.downcast_ref::<SnapshotExec>() {
            Some(scan) => scan.metrics().and_then(|metrics| metrics.output_rows()).unwrap_or(0),
            None => 0,
        })
    }

    /// Rows of the tables that lie in no part of a scan, because their times were not asked for.
    pub fn rows_skipped(&self) -> usize {
        self.sum(&|plan| plan.downcast_ref::<SnapshotExec>().map_or(0, SnapshotExec::rows_skipped))
    }

    fn sum(&self, of: &dyn Fn(&dyn ExecutionPlan) -> usize) -> usize {
        fn below(plan: &dyn ExecutionPlan, of: &dyn Fn(&dyn ExecutionPlan) -> usize) -> usize {
            let children = plan.children();
            of(plan) + children.iter().map(|child| below(child.as_ref(), of)).sum::<usize>()
        }
        below(self.0.as_ref(), of)
    }
}

/// Ends a query that is dropped before it has a reader: its parts run on threads of their own from
/// the moment at which the query begins.
pub(crate) struct StopAtDrop(pub(crate) QueryStop);

impl Drop for StopAtDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// The converted batches of a query that runs on other threads. An error of the stream itself is a
/// panic of the query: rows that end by a panic are not all rows.
pub struct BackgroundRows<T> {
    batches: mpsc::Receiver<T>,
    task: EndedTask<()>,
    stop: QueryStop,
    has_ended: bool,
}

impl<T> Drop for BackgroundRows<T> {
    fn drop(&mut self) {
        // The task ends where it yields. Inside a join, the flag ends it.
        self.stop.stop();
    }
}

impl<T: Send + 'static> Stream for BackgroundRows<T> {
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        if let Some(batch) = std::task::ready!(self.batches.poll_recv(cx)) {
            return Poll::Ready(Some(Ok(batch)));
        }
        let ended = std::task::ready!(Pin::new(&mut self.task.0).poll(cx));
        self.has_ended = true;
        Poll::Ready(ended.err().map(|error| Err(join_error(error))))
    }
}

/// Work on the threads of `compute`, which ends when the caller does.
///
/// # Errors
/// A panic of the work.
pub async fn run_on<T: Send + 'static>(
    compute: &Handle,
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T> {
    let mut task = EndedTask(compute.spawn(work));
    (&mut task.0).await.map_err(join_error)
}

/// A task that ends with its owner.
struct EndedTask<T>(JoinHandle<T>);

impl<T> Drop for EndedTask<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn join_error(error: JoinError) -> DataFusionError {
    match error.try_into_panic() {
        Ok(panic) => panic_error(panic),
        Err(error) => DataFusionError::External(Box::new(error)),
    }
}
