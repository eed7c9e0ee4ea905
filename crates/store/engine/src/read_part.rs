//! Reads a part of a file into memory, whatever the length of the file.

use std::fs::File;
use std::io::{self, ErrorKind};

use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::io::Errno;

/// The most bytes that are read at once. A journal turns to the next at 64 MiB or at four times
/// what it began with, and it begins with 16 KiB for each file that is written. So 4 GiB are a
/// journal of 65,536 files. A longer file was not written by a store.
const READ_BYTES_MAX: u64 = 4 << 30;

/// Reads from an offset on, at most `len` bytes and to the end of the file.
///
/// # Errors
/// The file is longer than any that a store writes, there is no memory for the part, or the file
/// cannot be read.
pub fn read_part(file: &File, offset: u64, len: usize) -> io::Result<Bytes> {
    let there = file.metadata()?.len().saturating_sub(offset);
    let wanted = there.min(u64::try_from(len).unwrap_or(u64::MAX));
    if wanted > READ_BYTES_MAX {
        let why = format!("its {there} bytes are more than a store writes into one file");
        return Err(io::Error::new(ErrorKind::InvalidData, why));
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(wanted as usize).map_err(|_| {
        let why = format!("there is no memory for {wanted} bytes");
        io::Error::new(ErrorKind::OutOfMemory, why)
    })?;
    while bytes.len() < wanted as usize {
        // Into memory that was not written before: zeros first would cost as much as the read.
        let at = offset + bytes.len() as u64;
        match rustix::io::pread(file, spare_capacity(&mut bytes), at) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // An allocator may give more room than was asked for, and a read fills all of it.
    bytes.truncate(wanted as usize);
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_any_length_is_an_error_and_no_end_of_the_process() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(200 << 30).expect("a length");
        let error = read_part(&file, 0, usize::MAX).expect_err("too long");
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert_eq!(read_part(&file, 1 << 40, 8).expect("nothing").len(), 0);
        assert_eq!(read_part(&file, 100, 8).expect("a part").len(), 8);
    }
}
