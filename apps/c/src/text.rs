//! Texts, addresses and keys out of the caller's memory.

use std::ffi::{CStr, c_char};
use std::net::SocketAddr;
use std::path::Path;

use evenfall::embedded_root::MESSAGE_BYTES_MAX;
use evenfall::{Bytes, MasterKey, NodeKey, SharedKey};
use evenfall_runtime::address::look_up;
use evenfall_runtime::causes::with_causes;
use evenfall_runtime::settings::{self, SettingsError};

use crate::status::{CallStatus, Failure};

/// A text that must be there.
///
/// # Safety
/// The pointer is null, or points to bytes that end with a nul and live as long as the text.
pub(crate) unsafe fn text<'p>(pointer: *const c_char, argument: &str) -> Result<&'p str, Failure> {
    // SAFETY: the caller's promise, passed on.
    unsafe { text_or_none(pointer, argument) }?
        .ok_or_else(|| Failure::wrong_argument(format!("{argument} is a null pointer")))
}

/// A text, or `None` for a null pointer.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn text_or_none<'p>(
    pointer: *const c_char,
    argument: &str,
) -> Result<Option<&'p str>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, and ends with a nul by the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) }.to_str();
    text.map(Some).map_err(|_| Failure::wrong_argument(format!("{argument} is not UTF-8")))
}

/// The values of an array of the caller.
///
/// # Safety
/// The pointer is null and the count 0, or it points to that many values.
pub(crate) unsafe fn array<'p, T>(
    pointer: *const T,
    count: usize,
    argument: &str,
) -> Result<&'p [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() || count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Failure::wrong_argument(format!("{argument}: no array of {count}")));
    }
    // SAFETY: not null, with so many values by the caller's promise.
    Ok(unsafe { core::slice::from_raw_parts(pointer, count) })
}

/// A copy of the caller's bytes.
///
/// # Safety
/// The pointer points to that many bytes, or the length is 0.
pub(crate) unsafe fn bytes_of(pointer: *const u8, length: usize) -> Result<Bytes, Failure> {
    // The longest message is refused before it is copied.
    if length > MESSAGE_BYTES_MAX {
        return Err(Failure::wrong_argument(format!(
            "a message of {length} bytes; the most is {MESSAGE_BYTES_MAX}"
        )));
    }
    // SAFETY: the caller's promise, passed on.
    Ok(Bytes::copy_from_slice(unsafe { array(pointer, length, "bytes") }?))
}

/// The address of "HOST:PORT".
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn address(
    pointer: *const c_char,
    argument: &str,
) -> Result<SocketAddr, Failure> {
    // SAFETY: the caller's promise, passed on.
    let words = unsafe { text(pointer, argument) }?;
    look_up(words)
        .map_err(|error| Failure::wrong_argument(format!("{argument}: {}", with_causes(&error))))
}

/// The addresses of an array of texts.
///
/// # Safety
/// As [`array`], and each value as [`text`].
pub(crate) unsafe fn addresses(
    pointer: *const *const c_char,
    count: usize,
    argument: &str,
) -> Result<Vec<SocketAddr>, Failure> {
    // SAFETY: the caller's promise, passed on.
    let texts = unsafe { array(pointer, count, argument) }?;
    // SAFETY: as above, for each value.
    texts.iter().map(|&text| unsafe { address(text, argument) }).collect()
}

/// The shared key in the file that a path names, or `None` for a null pointer.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn key_in(
    pointer: *const c_char,
    argument: &str,
) -> Result<Option<SharedKey>, Failure> {
    // SAFETY: the caller's promise, passed on.
    unsafe { read_file_of(pointer, argument, settings::read_key) }
}

/// The key of one node in the file that a path names, or `None` for a null pointer.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn node_key_in(
    pointer: *const c_char,
    argument: &str,
) -> Result<Option<NodeKey>, Failure> {
    // SAFETY: the caller's promise, passed on.
    unsafe { read_file_of(pointer, argument, settings::read_node_key) }
}

/// The master key in the file that a path names, or `None` for a null pointer.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn master_key_in(
    pointer: *const c_char,
    argument: &str,
    shared: Option<&SharedKey>,
) -> Result<Option<MasterKey>, Failure> {
    let read = |path: &Path| settings::read_master_key(path, shared);
    // SAFETY: the caller's promise, passed on.
    unsafe { read_file_of(pointer, argument, read) }
}

/// What is in the file that a path names, or `None` for a null pointer.
///
/// # Safety
/// As [`text`].
unsafe fn read_file_of<T>(
    pointer: *const c_char,
    argument: &str,
    read: impl FnOnce(&Path) -> Result<T, SettingsError>,
) -> Result<Option<T>, Failure> {
    // SAFETY: the caller's promise, passed on.
    let path = unsafe { text_or_none(pointer, argument) }?;
    let Some(path) = path else { return Ok(None) };
    read(Path::new(path)).map(Some).map_err(|error| Failure {
        status: CallStatus::EvenfallWrongSettings,
        words: format!("{argument}: {error}"),
    })
}

/// Refuses options whose size is not that of this version.
pub(crate) fn expect_size<T>(size: usize, name: &str) -> Result<(), Failure> {
    if size == size_of::<T>() {
        return Ok(());
    }
    Err(Failure::wrong_argument(format!(
        "{name}.size is {size}, and this library has {}; set it to sizeof({name}) and compile with \
         the header of this version",
        size_of::<T>()
    )))
}
