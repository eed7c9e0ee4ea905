//! Buffers for messages. A buffer is used again when the last owner of its message has dropped it.
//!
//! An allocator gives long blocks back to the kernel. The kernel hands out cleared pages, and each
//! new page costs a page fault. For a message of 100 KB, the faults take about as long as a copy of
//! the message.

use core::mem;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// Messages shorter than 32 KiB are left to the allocator, which keeps blocks of that length
/// itself.
const KEPT_BYTES_MIN: usize = 32_768;
/// A message gets a buffer that is at most this many times as long as the message.
const WASTE_MAX: usize = 4;

/// Free buffers by capacity.
#[derive(Debug, Default)]
struct Free {
    by_capacity: BTreeMap<usize, Vec<Vec<u8>>>,
    bytes: usize,
}

/// A store of free buffers. The messages that took buffers from it give them back.
#[derive(Clone, Debug)]
pub(crate) struct Buffers {
    free: Arc<Mutex<Free>>,
    bytes_max: usize,
}

impl Buffers {
    /// A store that keeps this many bytes at most. Buffers that come back beyond this limit are
    /// freed.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { free: Arc::default(), bytes_max }
    }

    /// An empty buffer with room for this many bytes.
    pub(crate) fn take(&self, bytes: usize) -> Vec<u8> {
        if bytes >= KEPT_BYTES_MIN {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            let mut fitting = free.by_capacity.range_mut(bytes..=bytes.saturating_mul(WASTE_MAX));
            if let Some((&capacity, buffers)) = fitting.next() {
                let buffer = buffers.pop().unwrap_or_default();
                if buffers.is_empty() {
                    free.by_capacity.remove(&capacity);
                }
                free.bytes -= capacity;
                return buffer;
            }
        }
        Vec::with_capacity(bytes)
    }

    /// The bytes of a buffer. The buffer returns to the store when the last copy of the bytes is
    /// dropped.
    pub(crate) fn share(&self, buffer: Vec<u8>) -> Bytes {
        if buffer.capacity() < KEPT_BYTES_MIN {
            return Bytes::from(buffer);
        }
        Bytes::from_owner(Shared { buffer, store: self.clone() })
    }
}

struct Shared {
    buffer: Vec<u8>,
    store: Buffers,
}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let mut buffer = mem::take(&mut self.buffer);
        let capacity = buffer.capacity();
        let mut free = self.store.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.bytes + capacity <= self.store.bytes_max {
            buffer.clear();
            free.bytes += capacity;
            free.by_capacity.entry(capacity).or_default().push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_message_leaves_its_buffer_to_the_next_one_within_the_limit() {
        let store = Buffers::new(250_000);
        let message = |bytes: usize| {
            let mut buffer = store.take(bytes);
            buffer.resize(bytes, 7);
            store.share(buffer)
        };
        let first = message(100_000);
        let at = first.as_ptr();
        let part = first.slice(5..9);
        drop(first);
        assert_ne!(message(100_000).as_ptr(), at, "still in use");
        drop(part);
        assert!(store.take(90_000).is_empty());
        drop([message(100_000), message(100_000), message(100_000)]);
        assert!(store.free.lock().expect("no panic").bytes <= 250_000);
        // A buffer that is far too long is not wasted on a short message.
        assert!(store.take(40_000).capacity() >= 40_000);
        assert_eq!(message(40_000), vec![7; 40_000]);
    }
}
