//! A handle that threads share until one of them finishes it.

use std::sync::{Arc, Mutex, PoisonError};

use crate::guard::{HomeProcess, refuse_as_busy};
use crate::status::Failure;

/// A value that several calls use at once, and one call takes in the end.
pub(crate) struct SharedHandle<T> {
    home: HomeProcess,
    value: Mutex<Option<Arc<T>>>,
}

impl<T> SharedHandle<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { home: HomeProcess::of_caller(), value: Mutex::new(Some(Arc::new(value))) }
    }

    pub(crate) fn is_of_this_process(&self) -> bool {
        self.home.is_here()
    }

    /// The value, for a call that may wait.
    pub(crate) fn share(&self) -> Result<Arc<T>, Failure> {
        self.home.expect_here()?;
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        value.clone().ok_or_else(|| Failure::ended("it is finished and takes no message"))
    }

    /// Takes the value to its end. While other threads are in a call, they keep it.
    pub(crate) fn take(&self) -> Result<T, Failure> {
        self.home.expect_here()?;
        let mut value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = value.take().ok_or_else(|| Failure::ended("it is finished already"))?;
        Arc::try_unwrap(shared).map_err(|shared| {
            *value = Some(shared);
            refuse_as_busy("another thread publishes; finish when it is done")
        })
    }
}
