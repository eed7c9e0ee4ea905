//! What a call came to, and the sentence of the last error of a thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char};

use evenfall::embedded_root::EmbeddedRootError;
use evenfall::publisher::PublisherError;
use evenfall::subscriber::{RoleError, SubscribeError};
use evenfall_runtime::SettingsError;
use evenfall_runtime::causes::with_causes;
use evenfall_runtime::process::ProcessError;

/// What a call came to.
#[allow(clippy::enum_variant_names, reason = "C has no name spaces")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum CallStatus {
    /// The call did what it says.
    EvenfallOk = 0,
    /// The stream has ended, or the handle is finished.
    EvenfallEnded = 1,
    /// An argument is wrong: a null pointer, text that is no address, a size of another version.
    EvenfallWrongArgument = 2,
    /// A settings file, a node of it or a key is wrong.
    EvenfallWrongSettings = 3,
    /// The run failed: a socket, a root that does not answer, another version on the wire.
    EvenfallRunFailed = 4,
    /// The program took its messages too slowly, and the feed was cut off. Other receivers are not
    /// affected.
    EvenfallTooSlow = 5,
    /// Another thread is in a call with this handle, or the handle is of the process before a fork.
    EvenfallBusy = 6,
    /// A fault of evenfall itself. The handle can only be freed.
    EvenfallPanicked = 7,
}

/// A status that is an error, and its sentence.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: CallStatus,
    pub(crate) words: String,
}

impl Failure {
    pub(crate) fn wrong_argument(words: impl Into<String>) -> Self {
        Self { status: CallStatus::EvenfallWrongArgument, words: words.into() }
    }

    pub(crate) fn ended(words: impl Into<String>) -> Self {
        Self { status: CallStatus::EvenfallEnded, words: words.into() }
    }

    fn of_role(error: &RoleError) -> Self {
        let status = match error {
            RoleError::Process(ProcessError::Settings(_)) => CallStatus::EvenfallWrongSettings,
            _ => CallStatus::EvenfallRunFailed,
        };
        Self { status, words: with_causes(error) }
    }
}

impl From<SettingsError> for Failure {
    fn from(error: SettingsError) -> Self {
        Self { status: CallStatus::EvenfallWrongSettings, words: with_causes(&error) }
    }
}

impl From<SubscribeError> for Failure {
    fn from(error: SubscribeError) -> Self {
        match &error {
            SubscribeError::Role(role) => Self::of_role(role),
            SubscribeError::TooSlow { .. } => {
                Self { status: CallStatus::EvenfallTooSlow, words: with_causes(&error) }
            }
            _ => Self { status: CallStatus::EvenfallWrongSettings, words: with_causes(&error) },
        }
    }
}

impl From<EmbeddedRootError> for Failure {
    fn from(error: EmbeddedRootError) -> Self {
        match &error {
            EmbeddedRootError::Role(role) => Self::of_role(role),
            EmbeddedRootError::Ended => Self::ended(with_causes(&error)),
            _ => Self::wrong_argument(with_causes(&error)),
        }
    }
}

impl From<PublisherError> for Failure {
    fn from(error: PublisherError) -> Self {
        match &error {
            PublisherError::Role(role) => Self::of_role(role),
            PublisherError::Ended => Self::ended(with_causes(&error)),
            _ => Self::wrong_argument(with_causes(&error)),
        }
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Keeps the sentence of a failure for this thread.
pub(crate) fn keep_words(words: &str) {
    // A nul inside would cut the sentence for a reader in C.
    let words = CString::new(words.replace('\0', " ")).unwrap_or_default();
    LAST_ERROR.with(|last| *last.borrow_mut() = words);
}

/// What was wrong with the last call of this thread that failed, and what to do; empty before the
/// first. The text is valid until the next call of this thread that fails.
#[unsafe(no_mangle)]
pub extern "C" fn evenfall_last_error() -> *const c_char {
    LAST_ERROR.with(|last| last.borrow().as_ptr())
}
