//! Reads whole files that a person names: settings, keys, tables of delays.
//!
//! Such a name may belong to anything: a device without end, a sparse file of 200 GB, a pipe into
//! which nobody writes. [`read_up_to`] therefore opens the file without waiting, looks at the
//! opened file and not at its name, and reads at most the bytes that such a file can have.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

/// Most bytes of a key file: 64 digits, and room for a comment.
pub const KEY_BYTES_MAX: u64 = 4 << 10;
/// Most bytes of a settings file. The settings of ten thousand nodes have 1.5 MB.
pub const SETTINGS_BYTES_MAX: u64 = 16 << 20;
/// Most bytes of a table of delays. The matrix of ten thousand hosts has about 600 MB.
pub const DELAYS_BYTES_MAX: u64 = 1 << 30;

/// Longest wait for the next bytes of a pipe. A program that writes settings into a pipe may have
/// to ask a server for them first.
const PIPE_PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks at a pipe.
const PIPE_LOOK: Duration = Duration::from_millis(10);
/// Bytes that are read at once.
const PIECE_BYTES: usize = 64 << 10;

/// A file that was read whole.
#[derive(Debug)]
pub struct WholeFile {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// What the kernel says of the opened file.
    pub about: Metadata,
}

impl WholeFile {
    /// The bytes as text.
    ///
    /// # Errors
    /// When the bytes are not UTF-8.
    pub fn into_text(self) -> io::Result<String> {
        String::from_utf8(self.bytes)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the file is no text in UTF-8"))
    }
}

fn too_long(bytes_max: u64) -> io::Error {
    let why = format!("the file is longer than {bytes_max} bytes, the most that are taken here");
    io::Error::new(io::ErrorKind::FileTooLarge, why)
}

/// Reads a file of at most `bytes_max` bytes. A pipe is read too, and waited for.
///
/// # Errors
/// When the file cannot be read or is longer, and when nothing comes out of a pipe.
pub fn read_up_to(path: &Path, bytes_max: u64) -> io::Result<WholeFile> {
    // A pipe without a writer would let the open wait for ever.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    read_open_up_to(file, bytes_max)
}

/// Reads a file that was opened without waiting, of at most `bytes_max` bytes.
///
/// # Errors
/// As [`read_up_to`].
pub(crate) fn read_open_up_to(mut file: File, bytes_max: u64) -> io::Result<WholeFile> {
    let about = file.metadata()?;
    if about.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if about.is_file() && about.len() > bytes_max {
        return Err(too_long(bytes_max));
    }
    let mut bytes = Vec::new();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match next_piece(&mut file, &mut piece)? {
            0 => return Ok(WholeFile { bytes, about }),
            len => {
                bytes.try_reserve(len)?;
                bytes.extend_from_slice(&piece[..len]);
            }
        }
        // The kernel knows no length of a device, and a file may grow while it is read.
        if bytes.len() as u64 > bytes_max {
            return Err(too_long(bytes_max));
        }
    }
}

/// The next bytes of a file that was opened without waiting.
fn next_piece(file: &mut File, piece: &mut [u8]) -> io::Result<usize> {
    let until = Instant::now() + PIPE_PATIENCE;
    loop {
        match file.read(piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if Instant::now() >= until {
                    let why = format!("nothing came out of the pipe for {PIPE_PATIENCE:?}");
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                }
                std::thread::sleep(PIPE_LOOK);
            }
            read => return read,
        }
    }
}

/// Reads a text of at most `bytes_max` bytes.
///
/// # Errors
/// As [`read_up_to`], and when the file is not UTF-8.
pub fn read_text_up_to(path: &Path, bytes_max: u64) -> io::Result<String> {
    read_up_to(path, bytes_max)?.into_text()
}

/// Reads a secret of at most `bytes_max` bytes. As with ssh, a file of a secret that belongs to the
/// user of this process must be closed to all other users. A file of another owner was handed in,
/// as Kubernetes does, and its mode is the owner's matter.
///
/// # Errors
/// As [`read_text_up_to`], and for a file that other users can read or write.
pub fn read_secret_up_to(path: &Path, bytes_max: u64) -> io::Result<String> {
    let read = read_up_to(path, bytes_max)?;
    let (owner, mode) = (read.about.uid(), read.about.mode() & 0o777);
    let text = read.into_text()?;
    if owner == std::fs::metadata("/proc/self")?.uid() && mode & 0o077 != 0 {
        let shown = path.display();
        let why = format!("its mode {mode:o} gives the key to other users; run chmod 600 {shown}");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_up_to_the_limit_are_read_and_longer_ones_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(read_text_up_to(&path, 3).unwrap(), "abc");
        assert_eq!(read_up_to(&path, 2).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        // A sparse file of 200 GB is refused by its length.
        File::options().write(true).open(&path).unwrap().set_len(200 << 30).unwrap();
        assert_eq!(read_up_to(&path, 1 << 20).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn what_has_no_end_and_what_is_no_file_is_refused() {
        for (path, kind) in [
            ("/dev/zero", io::ErrorKind::FileTooLarge),
            ("/", io::ErrorKind::IsADirectory),
            ("/no/such/file", io::ErrorKind::NotFound),
        ] {
            assert_eq!(read_up_to(Path::new(path), 100_000).unwrap_err().kind(), kind, "{path}");
        }
    }

    #[test]
    fn a_pipe_is_read_to_its_end() {
        let (read, mut write) = io::pipe().unwrap();
        let path = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&read));
        let writer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            io::Write::write_all(&mut write, b"from a pipe").unwrap();
        });
        assert_eq!(read_text_up_to(Path::new(&path), 100).unwrap(), "from a pipe");
        writer.join().unwrap();
    }
}
