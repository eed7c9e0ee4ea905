//! Memory that the allocator keeps for the next use.
//!
//! The allocator of glibc returns freed memory to the kernel when more than some hundred kilobytes
//! are free. A server that moves megabytes through short-lived buffers then gets each page anew
//! from the kernel, filled with zeros, for each buffer.

/// Freed bytes up to which [`keep_freed`] returns nothing to the kernel: the window of appends of a
/// file (16 MiB) and the pieces that come meanwhile.
#[cfg(target_env = "gnu")]
const KEPT_BYTES: libc::c_int = 32 << 20;
/// Longer buffers are mapped apart from the others, and returned when they are freed. The buffers
/// of servers have some hundred kilobytes.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES: libc::c_int = 4 << 20;

/// From now on, the allocator of this process keeps up to 32 MiB of freed memory at the end of each
/// of its heaps. Without glibc this call does nothing.
pub fn keep_freed() {
    #[cfg(target_env = "gnu")]
    for (setting, bytes) in
        [(libc::M_TRIM_THRESHOLD, KEPT_BYTES), (libc::M_MMAP_THRESHOLD, MAPPED_BYTES)]
    {
        // SAFETY: the call takes numbers only, and glibc allows it at any time from any thread. A
        // setting that is refused leaves the allocator as it was.
        unsafe { libc::mallopt(setting, bytes) };
    }
}
