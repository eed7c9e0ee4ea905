//! Tables that a recorder writes beside its messages: the trades and quotes of its feed.
//!
//! Another crate makes the rows, and a program passes its [`OpenTables`] to the recorder. The
//! thread that writes the messages also passes them to the tables, so that readers find a message
//! and its rows together.

use std::sync::atomic::AtomicBool;

use evenfall_store_engine::{Store, StoreError};
use evenfall_store_recording::writer::TakenMessage;

/// Takes the messages of a recording and keeps tables beside them.
pub trait TableLog {
    /// Takes the message that the recording has taken last.
    ///
    /// # Errors
    /// The errors of the store.
    fn push(&mut self, message: TakenMessage<'_>) -> Result<(), StoreError>;

    /// Shows the rows so far to readers. The messages must have been shown before. Each call also
    /// makes some rows of messages that an earlier process recorded, and returns whether any are
    /// left.
    ///
    /// # Errors
    /// The errors of the store.
    fn show(&mut self) -> Result<bool, StoreError>;
}

/// Opens the tables of the recording of this name. After the flag is set, rows that the store
/// refuses are given up.
pub type OpenTables =
    for<'a> fn(&'a Store, &str, &'a AtomicBool) -> Result<Box<dyn TableLog + 'a>, StoreError>;
