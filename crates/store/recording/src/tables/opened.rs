//! A recording as a statement finds it: its messages, and the trades and quotes that the store has.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenfall_store_engine::{RecordSource, StoreError};

use crate::catalog::RecordingFiles;
use crate::derived::{DerivedEdge, DerivedStream, DerivedStreams, last_edge};
use crate::files::derived_name;
use crate::snapshot::RecordingSnapshot;

/// Looks at the edges of trades and quotes while messages are ahead of them. A recorder shows
/// messages and then their rows. A recorder that was killed between the two shows no further rows.
const LOOKS: u32 = 20;
/// The pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Messages by which the rows of a live recorder may be behind. Rows that are further behind are
/// those of messages that an earlier process recorded, and the statement then keeps all messages.
const LIVE_MESSAGES_MAX: u64 = 8_192;

/// Edges that did not move while statements waited for them, by recording: nobody writes rows
/// there, and the next statement does not wait.
pub(super) type StillEdges = Mutex<BTreeMap<String, Vec<Option<DerivedEdge>>>>;

/// A recording at one moment.
pub(super) struct OpenedRecording {
    pub(super) snapshot: Arc<RecordingSnapshot>,
    /// By stream, in order.
    pub(super) derived: DerivedStreams,
}

impl OpenedRecording {
    /// A recording of which only the names, columns and times of its tables are asked for.
    pub(super) fn to_list(
        source: &Arc<dyn RecordSource>,
        files: &RecordingFiles,
    ) -> Result<Self, StoreError> {
        let snapshot = Arc::new(RecordingSnapshot::open(Arc::clone(source), files)?);
        Ok(Self { snapshot, derived: Vec::new() })
    }

    /// The recording as it is now.
    ///
    /// A writer that lives shows a message and its rows one after the other. The moment is then
    /// that of the rows, so that all tables end at one message and no row is made. Where nobody
    /// writes rows any more, the moment is that of the messages, and the rows behind the edge are
    /// made while they are read.
    pub(super) fn open(
        source: &Arc<dyn RecordSource>,
        files: &RecordingFiles,
        still: &StillEdges,
    ) -> Result<Self, StoreError> {
        let first = read_edges(&**source, files)?;
        let mut snapshot = RecordingSnapshot::open(Arc::clone(source), files)?;
        let mut edges = first.clone();
        let is_still = lock_edges(still).get(&files.name) == Some(&first);
        let looks = if is_still { 1 } else { LOOKS };
        for look in 0..looks {
            edges = read_edges(&**source, files)?;
            let ends = snapshot.streams().iter().map(|stream| stream.numbers().end);
            let mut looked = ends.zip(edges.iter().zip(&first));
            let is_waiting = looked.any(|(end, (edge, first))| {
                edge.is_some_and(|edge| edge.messages < end) && edge == first
            });
            if !is_waiting {
                break;
            }
            if look + 1 == looks {
                lock_edges(still).insert(files.name.clone(), first.clone());
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        for (place, (edge, first)) in edges.iter().zip(&first).enumerate() {
            let end = snapshot.streams()[place].numbers().end;
            let is_near =
                |edge: &DerivedEdge| end.saturating_sub(edge.messages) <= LIVE_MESSAGES_MAX;
            let Some(edge) = edge.filter(|_| edge != first).filter(is_near) else { continue };
            snapshot.end_stream(place, edge.messages);
        }
        let name = snapshot.name();
        let found = snapshot.streams().iter().zip(&edges).map(|(stream, edge)| {
            edge.as_ref().map(|edge| DerivedStream::find(&**source, name, stream, edge)).transpose()
        });
        let derived = found.collect::<Result<_, _>>()?;
        Ok(Self { snapshot: Arc::new(snapshot), derived })
    }
}

fn lock_edges(still: &StillEdges) -> MutexGuard<'_, BTreeMap<String, Vec<Option<DerivedEdge>>>> {
    still.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How far the trades and quotes of each stream go.
fn read_edges(
    source: &dyn RecordSource,
    files: &RecordingFiles,
) -> Result<Vec<Option<DerivedEdge>>, StoreError> {
    let edge = |stream| -> Result<Option<DerivedEdge>, StoreError> {
        let name = derived_name(&files.name, stream);
        match files.has(&name) {
            true => last_edge(source, &files.name, stream),
            false => Ok(None),
        }
    };
    files.streams().map(edge).collect()
}
