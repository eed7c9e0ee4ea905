//! Turns the failure of a system call, which stands in a global variable, into a result.

use std::io;

/// The result of a system call that returns a negative number when it fails.
///
/// # Errors
/// The calling thread's last error.
pub fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
