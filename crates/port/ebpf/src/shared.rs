//! Memory of a map that this process and the program share.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// An array of words of a map with `BPF_F_MMAPABLE`, which are read and written without a call of
/// the kernel.
pub(crate) struct SharedWords {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the memory belongs to this value until it is dropped, and is only used by atomic words.
unsafe impl Send for SharedWords {}

impl SharedWords {
    /// Maps the first words of a map.
    pub(crate) fn map_words(fd: &impl AsFd, words: usize) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping of a descriptor that is open during the call. The kernel refuses
        // a length that the map does not have.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                words * size_of::<u64>(),
                access,
                libc::MAP_SHARED,
                fd.as_fd().as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, words })
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has this many words, is aligned to a page, and lives as long as
        // `self`. Atomic words may be changed by others.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    pub(crate) fn read(&self, at: usize) -> u64 {
        self.words()[at].load(Ordering::Relaxed)
    }

    pub(crate) fn clear(&self, range: std::ops::Range<usize>) {
        self.words()[range].iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: `map_words` made exactly this mapping, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.words * size_of::<u64>()) };
    }
}
