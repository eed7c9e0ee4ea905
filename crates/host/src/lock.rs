//! Locks that keep a second process out of a directory or a file.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// Makes a directory that is missing, and the directories above it, for this user alone: logs and
/// files hold what others may not read.
///
/// # Errors
/// The directory cannot be made.
pub fn create_private(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Makes the directory if it is missing, and locks it until the returned file is dropped.
///
/// # Errors
/// Another process has the lock, or the directory cannot be made.
pub fn directory(path: &Path) -> io::Result<File> {
    create_private(path)?;
    let file = File::create(path.join("lock"))?;
    match take(&file)? {
        true => Ok(file),
        false => Err(io::Error::other("another process runs in this directory")),
    }
}

/// Locks a file until it is closed. Returns whether no other process has the lock.
///
/// # Errors
/// The file cannot be locked at all: for example, its file system has no locks.
pub fn take(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_locked_directory_is_refused_until_the_lock_is_dropped() {
        let path = std::env::temp_dir().join(format!("evenfall-lock-{}", std::process::id()));
        let lock = super::directory(&path).expect("a new directory");
        assert!(super::directory(&path).is_err());
        drop(lock);
        // A process that another test starts at this moment holds the file until it executes.
        let is_free = |_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            super::directory(&path).is_ok()
        };
        assert!((0..500).any(is_free));
        std::fs::remove_dir_all(&path).expect("the test's own directory");
    }
}
