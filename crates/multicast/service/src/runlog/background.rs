//! Where the bytes of a log go: to any writer, or to a thread that writes a file. A role's thread
//! that wrote its log itself would wait for the disk between two releases.
//!
//! ```text
//!  role's thread --full buffer--> thread "log" --> file
//!        ^------ empty buffer ---------'
//! ```
//!
//! At most [`BUFFERS_MAX`] buffers are under way. A role whose disk is further behind waits for a
//! buffer, because a log that leaves records out would accuse the role of losses.

use std::fs::File;
use std::io::{self, Write};
use std::mem;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};

use evenfall_host::pin;

/// Buffers on their way to the file and back. Eight of them hold 50,000 records, half a second of
/// 100,000 messages a second.
const BUFFERS_MAX: usize = 8;

/// Takes the bytes of a log.
pub trait LogOutput {
    /// Takes all bytes of the buffer. A buffer whose bytes were taken is empty.
    ///
    /// # Errors
    /// The errors of the file, which may be those of earlier bytes.
    fn put_bytes(&mut self, bytes: &mut Vec<u8>) -> io::Result<()>;

    /// Returns when all bytes are written.
    ///
    /// # Errors
    /// The errors of the file.
    fn settle_bytes(&mut self) -> io::Result<()>;
}

impl<W: Write> LogOutput for W {
    fn put_bytes(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        self.write_all(bytes)?;
        bytes.clear();
        self.flush()
    }

    fn settle_bytes(&mut self) -> io::Result<()> {
        self.flush()
    }
}

/// A thread that writes a file. When the value is dropped, the thread writes what it has and ends.
#[derive(Debug)]
pub struct LogThread {
    /// `None` once the thread is to end.
    full: Option<SyncSender<Vec<u8>>>,
    empty: Receiver<Vec<u8>>,
    /// Buffers that came back during a wait.
    spares: Vec<Vec<u8>>,
    /// Buffers that were made here.
    made: usize,
    /// The first failure of the file.
    failed: Arc<OnceLock<io::Error>>,
    thread: Option<JoinHandle<()>>,
}

impl LogThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the process may not start another thread.
    pub fn start(mut file: File) -> io::Result<Self> {
        let (full, to_write) = sync_channel::<Vec<u8>>(BUFFERS_MAX);
        let (written, empty) = sync_channel(BUFFERS_MAX);
        let failed = Arc::<OnceLock<io::Error>>::default();
        let first = Arc::clone(&failed);
        let work = move || {
            pin::to_all_cores();
            for mut bytes in to_write {
                if first.get().is_none()
                    && let Err(error) = file.write_all(&bytes)
                {
                    // Only the first failure is kept.
                    let _ = first.set(error);
                }
                bytes.clear();
                // The log may have ended.
                let _ = written.send(bytes);
            }
        };
        let thread = Some(Builder::new().name("log".into()).spawn(work)?);
        Ok(Self { full: Some(full), empty, spares: Vec::new(), made: 0, failed, thread })
    }

    fn check_failure(&self) -> io::Result<()> {
        let failed = self.failed.get();
        failed.map_or(Ok(()), |error| Err(io::Error::new(error.kind(), error.to_string())))
    }
}

fn has_ended() -> io::Error {
    io::Error::other("the thread that writes the log has ended")
}

impl LogOutput for LogThread {
    fn put_bytes(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        self.check_failure()?;
        let next = match self.spares.pop().or_else(|| self.empty.try_recv().ok()) {
            Some(next) => next,
            None if self.made < BUFFERS_MAX => {
                self.made += 1;
                Vec::with_capacity(bytes.capacity())
            }
            None => self.empty.recv().map_err(|_| has_ended())?,
        };
        let full = mem::replace(bytes, next);
        let to = self.full.as_ref().ok_or_else(has_ended)?;
        to.send(full).map_err(|_| has_ended())
    }

    fn settle_bytes(&mut self) -> io::Result<()> {
        // The log has one buffer, and all others come back when they are written.
        while self.spares.len() < self.made {
            self.spares.push(self.empty.recv().map_err(|_| has_ended())?);
        }
        self.check_failure()
    }
}

impl Drop for LogThread {
    fn drop(&mut self) {
        self.full = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_are_in_the_file_once_they_are_settled() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log");
        let mut log = LogThread::start(File::create(&path).expect("a file")).expect("a thread");
        let mut bytes = Vec::with_capacity(1_000);
        for number in 0..100_u8 {
            bytes.extend_from_slice(&[number; 1_000]);
            log.put_bytes(&mut bytes).expect("a disk");
            assert!(bytes.is_empty() && bytes.capacity() >= 1_000 && log.made <= BUFFERS_MAX);
        }
        log.settle_bytes().expect("a disk");
        let written = std::fs::read(&path).expect("the file");
        assert!(written.iter().copied().eq((0..100).flat_map(|number| [number; 1_000])));
        bytes.push(7);
        log.put_bytes(&mut bytes).expect("a disk");
        drop(log);
        assert_eq!(std::fs::read(&path).expect("the file").len(), 100_001);
    }

    #[test]
    fn a_file_that_takes_no_bytes_is_said_by_its_error() {
        let full = File::options().write(true).open("/dev/full").expect("a full disk");
        let mut log = LogThread::start(full).expect("a thread");
        let mut bytes = vec![1; 100];
        log.put_bytes(&mut bytes).expect("nothing has failed yet");
        let failed = log.settle_bytes().expect_err("the disk is full");
        assert_eq!(failed.kind(), io::ErrorKind::StorageFull);
        assert!(log.put_bytes(&mut vec![2]).is_err());
    }
}
