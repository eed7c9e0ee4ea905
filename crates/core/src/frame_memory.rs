//! Memory for the bytes of frames, which is used again.
//!
//! A frame that has memory of its own costs the allocator two calls: one for the bytes, and one for
//! the count of their owners. A frame that grows message by message costs a call at each doubling
//! too, and a kernel page at each new page. Here frames lie one behind another in *chunks*, as the
//! arrivals of a socket do:
//!
//! ```text
//!  chunk   | frame | frame | frame | room ->          |
//!  used    | frame |       | frame |       |   oldest first; free when its last frame is dropped
//! ```
//!
//! A chunk is used again when no frame of it is left. Frames are mostly dropped in the order in
//! which they were made, so only the oldest chunk is looked at. A frame for which no chunk may be
//! made any more gets memory of exactly its size, so that an owner who keeps one frame of each
//! chunk pins no more than the limit.

use core::mem;
use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Chunks of memory, out of which frames are cut one behind another.
#[derive(Debug)]
pub struct FrameMemory {
    /// The chunk that is filled at present. It has no bytes of its own, only room.
    chunk: BytesMut,
    /// Full chunks that may still have frames in use, oldest first.
    used: VecDeque<BytesMut>,
    /// Chunks that were made. All of them are in `chunk` or in `used`.
    chunks: usize,
    chunk_bytes: usize,
    chunks_max: usize,
}

impl FrameMemory {
    /// Memory in chunks of `chunk_bytes`, at most `chunks_max` of them. The first chunk is made for
    /// the first frame.
    ///
    /// # Panics
    /// When a chunk has no bytes.
    pub fn new(chunk_bytes: usize, chunks_max: usize) -> Self {
        assert!(chunk_bytes > 0, "a chunk without bytes has room for no frame");
        let (chunk, used) = (BytesMut::new(), VecDeque::new());
        Self { chunk, used, chunks: 0, chunk_bytes, chunks_max }
    }

    /// A frame of these parts, one behind another. The frame has no other owner, so its bytes can
    /// be changed before it is shared.
    pub fn copy_parts(&mut self, parts: &[&[u8]]) -> BytesMut {
        let bytes = parts.iter().map(|part| part.len()).sum();
        if self.make_room(bytes) {
            parts.iter().for_each(|part| self.chunk.extend_from_slice(part));
            return self.chunk.split();
        }
        let mut own = BytesMut::with_capacity(bytes);
        parts.iter().for_each(|part| own.extend_from_slice(part));
        own
    }

    /// A frame of these bytes; `None` when no chunk has room for it.
    pub fn try_copy(&mut self, bytes: &[u8]) -> Option<Bytes> {
        self.make_room(bytes.len()).then(|| {
            self.chunk.extend_from_slice(bytes);
            self.chunk.split().freeze()
        })
    }

    /// Makes `chunk` one with room for this many bytes. `false` when no chunk has that room.
    fn make_room(&mut self, bytes: usize) -> bool {
        if self.chunk.capacity() >= bytes {
            return true;
        }
        if bytes > self.chunk_bytes {
            return false;
        }
        if self.chunks > 0 && self.chunk.try_reclaim(self.chunk_bytes) {
            return true;
        }
        if let Some(oldest) = self.used.front_mut()
            && oldest.try_reclaim(self.chunk_bytes)
            && let Some(reclaimed) = self.used.pop_front()
        {
            self.retire_chunk(reclaimed);
            return true;
        }
        if self.chunks >= self.chunks_max {
            // The list rotates, so that an old frame does not hide the free chunks behind it.
            self.used.rotate_left(usize::from(!self.used.is_empty()));
            return false;
        }
        let fresh = BytesMut::with_capacity(self.chunk_bytes);
        if self.chunks == 0 {
            self.chunk = fresh;
        } else {
            self.retire_chunk(fresh);
        }
        self.chunks += 1;
        true
    }

    fn retire_chunk(&mut self, next: BytesMut) {
        let full = mem::replace(&mut self.chunk, next);
        self.used.push_back(full);
    }
}

/// A clone has the limits of the original and no memory yet.
impl Clone for FrameMemory {
    fn clone(&self) -> Self {
        Self::new(self.chunk_bytes, self.chunks_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_keep_their_bytes_while_their_memory_is_used_again() {
        let mut memory = FrameMemory::new(64, 4);
        let mut kept = VecDeque::new();
        for number in 0..1_000_u32 {
            let text = number.to_le_bytes();
            let frame = memory.copy_parts(&[&text, &[7; 9][..number as usize % 10]]).freeze();
            kept.push_back((number, frame));
            if kept.len() > 8 {
                kept.pop_front();
            }
            for (number, frame) in &kept {
                assert_eq!(frame[..4], number.to_le_bytes());
                assert_eq!(frame.len(), 4 + *number as usize % 10);
                assert!(frame[4..].iter().all(|byte| *byte == 7));
            }
        }
        assert!(memory.chunks <= 4, "{} chunks", memory.chunks);
    }

    #[test]
    fn a_frame_is_of_its_own_memory_when_all_chunks_are_in_use_or_too_small() {
        let mut memory = FrameMemory::new(16, 2);
        assert_eq!(memory.try_copy(&[1; 17]), None);
        assert_eq!(memory.copy_parts(&[&[1; 17]])[..], [1; 17]);
        let kept: Vec<Bytes> = (0..2).filter_map(|byte| memory.try_copy(&[byte; 9])).collect();
        assert_eq!(kept.len(), 2);
        assert_eq!(memory.try_copy(&[3; 9]), None, "both chunks have a frame in use");
        assert_eq!(memory.copy_parts(&[&[3; 4], &[4; 5]])[..], [3, 3, 3, 3, 4, 4, 4, 4, 4]);
        drop(kept);
        assert_eq!(memory.try_copy(&[5; 9]).as_deref(), Some(&[5; 9][..]));
        assert_eq!(memory.clone().chunks, 0);
    }

    #[test]
    fn a_frame_in_use_does_not_hide_a_free_chunk_behind_it() {
        let mut memory = FrameMemory::new(16, 3);
        let oldest = memory.try_copy(&[1; 16]);
        let others: Vec<_> = (0..2).map(|_| memory.try_copy(&[2; 16])).collect();
        drop(others);
        let kept: Vec<_> = (0..3).map(|_| memory.try_copy(&[3; 16])).collect();
        assert_eq!(kept.iter().flatten().count(), 2, "one look at the chunk that is in use");
        assert_eq!(oldest.as_deref(), Some(&[1; 16][..]));
    }
}
