//! Counts the allocations of each thread, for tests and instruments that assert how many a frame
//! takes. A program counts once it states
//!
//! ```text
//! #[global_allocator]
//! static ALLOCATOR: CountingAllocator = CountingAllocator;
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Without a destructor, so that the allocator may count at any time in the life of a thread.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator with a count for each thread.
pub struct CountingAllocator;

/// How often this thread has allocated or reallocated memory. Zero in a program with another
/// allocator.
pub fn count_of_thread() -> u64 {
    COUNT.get()
}

fn count_call() {
    COUNT.set(COUNT.get() + 1);
}

// SAFETY: every call goes to the system's allocator unchanged. The count allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_call();
        // SAFETY: the caller's promises are those of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_call();
        // SAFETY: the caller's promises are those of this function.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count_call();
        // SAFETY: the caller's promises are those of this function.
        unsafe { System.realloc(pointer, layout, bytes) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are those of this function.
        unsafe { System.dealloc(pointer, layout) };
    }
}
