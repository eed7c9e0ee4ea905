//! How much room a file system has.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

use crate::checked;

/// Room of a file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskRoom {
    /// Bytes that are left for this process.
    pub free_bytes: u64,
    /// Used and free bytes.
    pub all_bytes: u64,
}

/// The room of the file system on which an open file or directory is.
///
/// # Errors
/// When the file system does not tell.
pub fn measure_room(opened: impl AsFd) -> io::Result<DiskRoom> {
    // SAFETY: `statvfs` is plain integers, for which zero is a value.
    let mut told: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and `told` outlives the call.
    checked(unsafe { libc::fstatvfs(opened.as_fd().as_raw_fd(), &raw mut told) })?;
    let bytes = |blocks: u64| blocks.saturating_mul(told.f_frsize);
    Ok(DiskRoom { free_bytes: bytes(told.f_bavail), all_bytes: bytes(told.f_blocks) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_has_bytes_and_no_more_free_ones() {
        let directory = std::fs::File::open(std::env::temp_dir()).unwrap();
        let room = measure_room(&directory).unwrap();
        assert!(room.all_bytes > 0 && room.free_bytes <= room.all_bytes, "{room:?}");
    }
}
