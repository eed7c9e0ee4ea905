//! Random bytes of the kernel, for keys and for the numbers that tell one run from another. A
//! machine draws from a seeded generator instead, so that a run can be played again.

use std::fs::File;
use std::io::{self, Read};

/// Fills the bytes out of `/dev/urandom`.
///
/// # Errors
/// The device cannot be opened: for example, no file descriptor is left, or a container has no
/// `/dev`.
pub fn fill(bytes: &mut [u8]) -> io::Result<()> {
    File::open("/dev/urandom")?.read_exact(bytes)
}

/// A random number, all of whose values are equally likely.
///
/// # Errors
/// The errors of [`fill`].
pub fn number() -> io::Result<u64> {
    let mut bytes = [0; 8];
    fill(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    #[test]
    fn two_draws_differ() {
        let mut draws = [[0; 32]; 2];
        draws.iter_mut().for_each(|draw| super::fill(draw).expect("Linux has the device"));
        assert_ne!(draws[0], draws[1]);
    }
}
