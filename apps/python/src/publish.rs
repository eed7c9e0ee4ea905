//! The root in a program, and a publisher that outlives the root.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenfall::NodeId;
use evenfall::embedded_root::{EmbeddedRoot, EmbeddedRootError, EmbeddedRootSettings};
use evenfall::publisher::{PendingMessage, Publisher, PublisherError, PublisherSettings};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{kinds, publisher_error, root_error, settings_error};
use crate::feed::{KeyFiles, address_of, read_key, read_master_key};
use crate::report::python_value;
use crate::waits::{run_beside, wait_for};

/// Pause before a message is offered again to a full queue.
const OFFER_EVERY: Duration = Duration::from_millis(1);

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the root of a run, which sends what the program publishes.
#[pyfunction]
#[pyo3(name = "publish", signature = (address, receivers, *, id = 0, key = None, master_key = None,
    trees = 1))]
pub(crate) fn publish_from(
    py: Python<'_>,
    address: String,
    receivers: &Bound<'_, PyDict>,
    id: u32,
    key: Option<PathBuf>,
    master_key: Option<PathBuf>,
    trees: u32,
) -> PyResult<PyRoot> {
    let mut settings = EmbeddedRootSettings::new(address_of("address", &address)?, NodeId(id));
    for (id, address) in receivers.iter() {
        let address = address_of("receivers", &address.extract::<String>()?)?;
        settings.receivers.push((NodeId(id.extract()?), address));
    }
    settings.trees = trees;
    settings.key = key.map(|path| read_key(&path)).transpose()?;
    let master = master_key.map(|path| read_master_key(&path, settings.key.as_ref()));
    settings.master_key = master.transpose()?;
    let settings = settings.settings().map_err(|error| settings_error(&error))?;
    let root = run_beside(py, move || EmbeddedRoot::start(settings, EmbeddedRootSettings::NAME))?;
    Ok(PyRoot { root: Mutex::new(Some(root.map_err(|error| root_error(&error))?)) })
}

fn ended() -> PyErr {
    kinds::RunError::new_err("this publisher is finished")
}

/// The root of a run.
#[pyclass(frozen, name = "Root", module = "evenfall")]
pub(crate) struct PyRoot {
    root: Mutex<Option<EmbeddedRoot>>,
}

#[pymethods]
impl PyRoot {
    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    /// Ends the stream. After an exception of the program the root is only dropped.
    #[pyo3(signature = (raised, *_rest))]
    fn __exit__(
        &self,
        py: Python<'_>,
        raised: &Bound<'_, PyAny>,
        _rest: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let root = lock(&self.root).take();
        if !raised.is_none() {
            return run_beside(py, move || drop(root));
        }
        let finished = root.map(|root| run_beside(py, move || root.finish()));
        let finished = finished.transpose()?.transpose();
        finished.map(drop).map_err(|error| root_error(&error))
    }

    /// Publishes a message, and waits while the queue is full.
    #[pyo3(name = "publish", signature = (message, key = 0))]
    fn publish_message(&self, py: Python<'_>, message: Vec<u8>, key: u32) -> PyResult<()> {
        let message = evenfall::Bytes::from(message);
        let published = wait_for(py, |_| match &*lock(&self.root) {
            None => Some(None),
            Some(root) => match root.try_publish(message.clone(), key) {
                Err(EmbeddedRootError::Full) => {
                    std::thread::sleep(OFFER_EVERY);
                    None
                }
                published => Some(Some(published)),
            },
        })?;
        published.ok_or_else(ended)?.map_err(|error| root_error(&error))
    }

    /// Ends the stream, waits until every receiver has it, and gives the summary.
    #[pyo3(name = "finish")]
    fn finish_stream<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let root = lock(&self.root).take().ok_or_else(ended)?;
        let summary = run_beside(py, move || root.finish())?;
        python_value(py, &summary.map_err(|error| root_error(&error))?)
    }
}

/// A publisher that outlives the root.
#[pyclass(frozen, name = "Publisher", module = "evenfall")]
pub(crate) struct PyPublisher {
    /// Threads of the program share it, and none of them holds the lock while it waits.
    publisher: Mutex<Option<Arc<Publisher>>>,
}

impl PyPublisher {
    /// Asks the publisher until it answers.
    fn ask_until<T: Send>(
        &self,
        py: Python<'_>,
        mut ask: impl FnMut(&Publisher, Duration) -> Result<Option<T>, PublisherError> + Send,
    ) -> PyResult<T> {
        let publisher = lock(&self.publisher).clone().ok_or_else(ended)?;
        let answer = wait_for(py, |time| ask(&publisher, time).transpose())?;
        answer.map_err(|error| publisher_error(&error))
    }

    /// Takes the publisher, once no thread waits by it any more.
    fn take_publisher(&self, py: Python<'_>) -> PyResult<Option<Publisher>> {
        let Some(publisher) = lock(&self.publisher).take() else { return Ok(None) };
        let mut shared = Some(publisher);
        wait_for(py, |_| match Arc::try_unwrap(shared.take()?) {
            Ok(publisher) => Some(Some(publisher)),
            Err(still) => {
                shared = Some(still);
                std::thread::sleep(OFFER_EVERY);
                None
            }
        })
    }
}

#[pymethods]
impl PyPublisher {
    /// Starts a publisher, and returns when it listens.
    #[new]
    #[pyo3(signature = (roots, *, address, id, key = None, node_key = None))]
    fn start_publisher(
        py: Python<'_>,
        roots: Vec<String>,
        address: String,
        id: u32,
        key: Option<PathBuf>,
        node_key: Option<PathBuf>,
    ) -> PyResult<Self> {
        let roots = roots.iter().map(|root| address_of("roots", root));
        let roots = roots.collect::<PyResult<Vec<_>>>()?;
        let mut settings =
            PublisherSettings::new(&roots, address_of("address", &address)?, NodeId(id));
        (settings.key, settings.node_key) = KeyFiles { key, node_key }.read_keys()?;
        let settings = settings.settings().map_err(|error| settings_error(&error))?;
        let publisher =
            run_beside(py, move || Publisher::start(settings, PublisherSettings::NAME))?;
        let publisher = publisher.map_err(|error| publisher_error(&error))?;
        Ok(Self { publisher: Mutex::new(Some(Arc::new(publisher))) })
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (raised, *_rest))]
    fn __exit__(
        &self,
        py: Python<'_>,
        raised: &Bound<'_, PyAny>,
        _rest: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let publisher = self.take_publisher(py)?;
        if !raised.is_none() {
            return run_beside(py, move || drop(publisher));
        }
        let finished = publisher.map(|publisher| run_beside(py, move || publisher.finish()));
        let finished = finished.transpose()?.transpose();
        finished.map(drop).map_err(|error| publisher_error(&error))
    }

    /// Messages of earlier processes under this id that are in the feed.
    #[pyo3(name = "before")]
    fn messages_before(&self, py: Python<'_>) -> PyResult<u64> {
        self.ask_until(py, Publisher::before_within)
    }

    /// Sends a message, and waits for its number in the feed.
    #[pyo3(name = "publish")]
    fn publish_message(&self, py: Python<'_>, message: Vec<u8>) -> PyResult<u64> {
        let pending = self.send_message(py, message)?;
        pending.wait_number(py)
    }

    /// Sends a message, and gives what its number can be asked of.
    #[pyo3(name = "send")]
    fn send_message(&self, py: Python<'_>, message: Vec<u8>) -> PyResult<PendingNumber> {
        let message = evenfall::Bytes::from(message);
        let pending =
            self.ask_until(py, |publisher, time| publisher.send_within(message.clone(), time))?;
        Ok(PendingNumber { pending })
    }

    /// Tells the roots that no message follows, and gives the summary.
    #[pyo3(name = "finish")]
    fn finish_stream<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let publisher = self.take_publisher(py)?.ok_or_else(ended)?;
        let summary = run_beside(py, move || publisher.finish())?;
        python_value(py, &summary.map_err(|error| publisher_error(&error))?)
    }
}

/// A message whose number in the feed may not be known yet.
#[pyclass(frozen, name = "Pending", module = "evenfall")]
pub(crate) struct PendingNumber {
    pending: PendingMessage,
}

#[pymethods]
impl PendingNumber {
    /// Waits for the number of the message in the feed.
    #[pyo3(name = "number")]
    fn wait_number(&self, py: Python<'_>) -> PyResult<u64> {
        let number = wait_for(py, |time| self.pending.number_within(time).transpose())?;
        number.map_err(|error| publisher_error(&error))
    }
}
