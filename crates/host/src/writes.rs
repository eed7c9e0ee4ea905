//! The writes of machines on a real disk. A thread writes and syncs, so that no machine waits.
//!
//! The thread takes all requests that have come, writes all of them, syncs each log once, and
//! answers. Many writes then share one sync, and a machine with few requests waits for one sync.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::durable::{Change, Durable, WRITES_MAX, Write, WriteId};
use evenfall_core::{StorageError, Timestamp};

use crate::Waker;
use crate::disk_room::measure_room;
use crate::whole_file::read_open_up_to;

/// Logs of one directory that stay open between two rounds of writes. Most machines have two or
/// three logs, and a machine with a log for each piece of a file has many thousands.
const LOGS_OPEN_MAX: usize = 128;

/// A small file system keeps one of so many of its bytes free.
const RESERVED_PART: u64 = 16;

/// Room on the file system of a directory that some logs leave to the others. A machine whose bulk
/// has filled the disk can then still log that the bulk is deleted.
#[derive(Clone, Copy, Debug)]
pub struct RoomReserve {
    /// Bytes that stay free, or a sixteenth of a small file system.
    pub bytes: u64,
    /// Whether the log of this name is bulk and leaves the room.
    pub is_bulk: fn(&str) -> bool,
}

impl RoomReserve {
    /// Refuses bytes of a bulk log that would use the reserved room.
    fn check(&self, directory: &File, log: &str, bytes: usize) -> Result<(), StorageError> {
        if !(self.is_bulk)(log) {
            return Ok(());
        }
        // A file system that does not tell its room refuses the write itself.
        let Ok(room) = measure_room(directory) else { return Ok(()) };
        let reserved = self.bytes.min(room.all_bytes / RESERVED_PART);
        match room.free_bytes < reserved.saturating_add(bytes as u64) {
            true => Err(StorageError::Full { name: log.into() }),
            false => Ok(()),
        }
    }
}

type Answer = (WriteId, Result<(), StorageError>);

/// Carries out the writes of machines in one directory. Dropping the value completes the polled
/// writes, and no machine gets the answers.
#[derive(Debug)]
pub struct Writes {
    directory: PathBuf,
    requests: Option<SyncSender<Write>>,
    answers: Receiver<Answer>,
    /// Answers that came during a wait.
    came: VecDeque<Answer>,
    under_way: usize,
    /// Ends the wait of a driver when answers have come.
    waker: Arc<OnceLock<Waker>>,
    thread: Option<JoinHandle<()>>,
}

impl Writes {
    /// Opens the writes in this directory. A missing directory is created.
    ///
    /// # Errors
    /// When the directory cannot be created or opened.
    pub fn open(directory: &Path) -> io::Result<Self> {
        Self::open_with(directory, None)
    }

    /// As [`open`](Self::open), and bulk leaves this room.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with_reserve(directory: &Path, reserve: RoomReserve) -> io::Result<Self> {
        Self::open_with(directory, Some(reserve))
    }

    fn open_with(directory: &Path, reserve: Option<RoomReserve>) -> io::Result<Self> {
        crate::lock::create_private(directory)?;
        let (requests, taken) = sync_channel(WRITES_MAX);
        let (answer, answers) = channel();
        let logs = Logs {
            handle: File::open(directory)?,
            directory: directory.to_owned(),
            open: BTreeMap::new(),
            broken: BTreeSet::new(),
            reserve,
        };
        let thread = std::thread::Builder::new().name("durable".into());
        let waker = Arc::<OnceLock<Waker>>::default();
        let wakes = Arc::clone(&waker);
        let thread = Some(thread.spawn(move || logs.run(&taken, &answer, &wakes))?);
        let (directory, came, requests) = (directory.to_owned(), VecDeque::new(), Some(requests));
        Ok(Self { directory, requests, answers, came, under_way: 0, waker, thread })
    }

    /// From now on, answers end the wait of the driver that `waker` wakes. Only the first call
    /// counts.
    pub fn wake(&self, waker: Waker) {
        let _ = self.waker.set(waker);
    }

    /// Hands the machine the answers that have come, and takes its writes.
    pub fn drive(&mut self, now: Timestamp, machine: &mut (impl Durable + ?Sized)) {
        while let Some((id, done)) = self.answer() {
            machine.handle_written(now, id, done);
        }
        self.ask(machine);
    }

    /// The next answer that has come.
    pub fn answer(&mut self) -> Option<(WriteId, Result<(), StorageError>)> {
        let answer = self.came.pop_front().or_else(|| self.answers.try_recv().ok())?;
        self.under_way -= 1;
        Some(answer)
    }

    /// Takes the writes that the machine asks for.
    pub fn ask(&mut self, machine: &mut (impl Durable + ?Sized)) {
        while self.under_way < WRITES_MAX {
            let Some(write) = machine.poll_write() else { return };
            self.under_way += 1;
            let id = write.id;
            let is_taken = self.requests.as_ref().is_some_and(|to| to.send(write).is_ok());
            if !is_taken {
                let what = "the thread that writes has ended".to_owned();
                self.came
                    .push_back((id, Err(StorageError::Failed { name: "writes".into(), what })));
            }
        }
    }

    /// Sleeps until an answer comes, or for `timeout`.
    pub fn wait(&mut self, timeout: Duration) {
        if !self.came.is_empty() || self.under_way == 0 {
            return;
        }
        match self.answers.recv_timeout(timeout) {
            Ok(answer) => self.came.push_back(answer),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
    }

    /// Says that a log of this many bytes has whole records up to the byte `whole` alone, and what
    /// to do when it is damaged.
    pub fn warn_of_cut(&self, log: &str, bytes: u64, whole: u64, advice: &str) {
        if whole < bytes {
            tracing::warn!(
                "{}: no whole record begins at byte {whole}: the last {} bytes are cut off. A \
                 crash leaves such an end. If nothing crashed, the file is damaged: {advice}",
                self.directory.join(log).display(),
                bytes - whole
            );
        }
    }

    /// The bytes of a log, with which a machine starts; empty when the log is missing.
    ///
    /// # Errors
    /// The errors of the disk.
    pub fn read(&self, log: &str) -> Result<Bytes, StorageError> {
        match read_log(&self.directory.join(log)) {
            Ok(bytes) => Ok(bytes.into()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Bytes::new()),
            Err(error) => Err(storage_error(log, &error)),
        }
    }
}

impl Drop for Writes {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// How a log is opened: a link in the place of a log would let the machine write into a file
/// elsewhere, and a pipe would let the machine wait for ever.
fn log_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options
}

/// Most bytes of a log that a machine starts with. Machines keep in memory what their logs say, and
/// write a log anew when most of it is out of date. A longer file is sparse or of another program.
const LOG_BYTES_MAX: u64 = 32 << 30;

/// The bytes of a log. Anything but a plain file is refused.
fn read_log(path: &Path) -> io::Result<Vec<u8>> {
    let file = plain_file(log_options().read(true).open(path))?;
    Ok(read_open_up_to(file, LOG_BYTES_MAX)?.bytes)
}

/// The file, if it is a plain one.
fn plain_file(opened: io::Result<File>) -> io::Result<File> {
    let refused = || io::Error::other("this is no plain file: a log is never a link or a device");
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => refused(),
        _ => error,
    })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(refused()) }
}

fn storage_error(name: &str, error: &io::Error) -> StorageError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            StorageError::Full { name: name.into() }
        }
        _ => StorageError::Failed { name: name.into(), what: error.to_string() },
    }
}

struct Logs {
    directory: PathBuf,
    handle: File,
    open: BTreeMap<String, File>,
    /// Logs whose end is unknown, because a write of the log failed.
    broken: BTreeSet<String>,
    reserve: Option<RoomReserve>,
}

impl Logs {
    fn run(mut self, taken: &Receiver<Write>, answer: &Sender<Answer>, waker: &OnceLock<Waker>) {
        while let Ok(first) = taken.recv() {
            let writes: Vec<Write> =
                std::iter::once(first).chain(taken.try_iter().take(WRITES_MAX - 1)).collect();
            for done in self.carry_out(&writes) {
                // The receiver of the answer may be gone.
                let _ = answer.send(done);
            }
            if let Some(waker) = waker.get() {
                waker.wake();
            }
        }
    }

    fn carry_out(&mut self, writes: &[Write]) -> Vec<Answer> {
        if self.open.len() + writes.len() > LOGS_OPEN_MAX {
            // Every round ends with a sync of its logs, so nothing waits in the open files.
            self.open.clear();
        }
        let mut answers: Vec<Answer> = Vec::with_capacity(writes.len());
        for write in writes {
            let done = self.change(write);
            if done.is_err() {
                self.broken.insert(write.log.clone());
            }
            answers.push((write.id, done));
        }
        let logs: BTreeSet<&String> = writes.iter().map(|write| &write.log).collect();
        for log in logs {
            let Some(file) = self.open.get(log) else { continue };
            let Err(error) = file.sync_data() else { continue };
            // The disk may have any part of the bytes.
            self.broken.insert(log.clone());
            for (write, (_, done)) in writes.iter().zip(&mut answers) {
                if write.log == *log && done.is_ok() {
                    *done = Err(storage_error(log, &error));
                }
            }
        }
        answers
    }

    fn change(&mut self, write: &Write) -> Result<(), StorageError> {
        write.check_name()?;
        let (log, failed) = (&write.log, |error: io::Error| storage_error(&write.log, &error));
        if let (Some(reserve), Change::Append(bytes) | Change::Replace(bytes)) =
            (&self.reserve, &write.change)
        {
            reserve.check(&self.handle, log, bytes.len())?;
        }
        match &write.change {
            Change::Append(_) if self.broken.contains(log) => {
                let what = "an earlier write of this log failed: truncate or replace it".to_owned();
                return Err(StorageError::Failed { name: log.clone(), what });
            }
            Change::Append(bytes) => return self.file(log)?.write_all(bytes).map_err(failed),
            Change::Truncate(keep) => {
                let file = self.file(log)?;
                let len = file.metadata().map_err(failed)?.len();
                let cut = file.set_len(len.min(*keep)).and_then(|()| file.sync_data());
                cut.map_err(failed)?;
            }
            Change::Replace(bytes) => {
                let new = self.staged(log, bytes).map_err(failed)?;
                let renamed = std::fs::rename(&new, self.directory.join(log));
                // Up to this point the old file is synced for the earlier writes. From here on the
                // handle may be of a file without a name, also when the sync below fails.
                self.open.remove(log);
                renamed.and_then(|()| self.handle.sync_all()).map_err(failed)?;
            }
        }
        self.broken.remove(log);
        Ok(())
    }

    /// Writes and syncs a whole file under another name, which then takes the place of the log in
    /// one step.
    fn staged(&self, log: &str, bytes: &[u8]) -> io::Result<PathBuf> {
        let new = self.directory.join(format!("{log}.new"));
        let mut file = plain_file(log_options().write(true).create(true).open(&new))?;
        file.set_len(0)?;
        file.write_all(bytes)?;
        file.sync_data()?;
        Ok(new)
    }

    fn file(&mut self, log: &str) -> Result<&mut File, StorageError> {
        let failed = |error: io::Error| storage_error(log, &error);
        if !self.open.contains_key(log) {
            let path = self.directory.join(log);
            let opened = log_options().append(true).create(true).open(path);
            let file = plain_file(opened).map_err(failed)?;
            // The directory is synced also when the log exists, because an earlier life may have
            // died before it synced the name.
            self.handle.sync_all().map_err(failed)?;
            self.open.insert(log.to_owned(), file);
        }
        Ok(self.open.get_mut(log).expect("it was opened"))
    }
}

#[cfg(test)]
mod tests {
    use evenfall_core::WriteId;

    use super::*;

    /// A directory in which no change of a name can be synced, because the kernel cannot sync a
    /// null device.
    fn logs_that_lose_names(directory: &std::path::Path) -> Logs {
        let handle = File::open("/dev/null").unwrap();
        let (open, broken) = (BTreeMap::new(), BTreeSet::new());
        Logs { directory: directory.to_owned(), handle, open, broken, reserve: None }
    }

    #[test]
    fn appends_after_a_replacement_that_failed_to_sync_go_to_the_file_that_has_the_name() {
        let directory = tempfile::tempdir().unwrap();
        let mut logs = logs_that_lose_names(directory.path());
        let path = directory.path().join("log");
        std::fs::write(&path, "old").unwrap();
        let old = OpenOptions::new().append(true).open(&path).unwrap();
        logs.open.insert("log".into(), old);
        let write = |change| Write { id: WriteId(1), log: "log".into(), change };
        let new = Bytes::from_static(b"new");
        assert!(logs.change(&write(Change::Replace(new))).is_err(), "the sync failed");
        // The disk works again, and the machine replaces the log as the error demands.
        logs.handle = File::open(directory.path()).unwrap();
        logs.change(&write(Change::Truncate(3))).unwrap();
        let answers = logs.carry_out(&[write(Change::Append(Bytes::from_static(b" more")))]);
        assert_eq!(answers, [(WriteId(1), Ok(()))]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new more");
    }

    #[test]
    fn a_log_that_is_a_link_or_a_pipe_is_refused_and_what_it_leads_to_stays() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("own");
        let writes = Writes::open(&own).unwrap();
        let text = directory.path().join("text");
        std::fs::write(&text, "letters").unwrap();
        let write = |log: &str, change| Write { id: WriteId(1), log: log.into(), change };
        let logs = || Logs {
            directory: own.clone(),
            handle: File::open(&own).unwrap(),
            open: BTreeMap::new(),
            broken: BTreeSet::new(),
            reserve: None,
        };
        std::os::unix::fs::symlink(&text, own.join("link")).unwrap();
        std::os::unix::fs::symlink(&text, own.join("log.new")).unwrap();
        let more = Bytes::from_static(b"more");
        assert!(writes.read("link").is_err());
        assert!(logs().change(&write("link", Change::Append(more.clone()))).is_err());
        assert!(logs().change(&write("log", Change::Replace(more.clone()))).is_err());
        let made = std::process::Command::new("mkfifo").arg(own.join("pipe")).status();
        if made.is_ok_and(|status| status.success()) {
            assert!(writes.read("pipe").is_err());
            assert!(logs().change(&write("pipe", Change::Append(more))).is_err());
        }
        // A file of 32 GB without bytes on the disk, where the file system takes it.
        let sparse = File::create(own.join("sparse")).unwrap();
        if sparse.set_len(LOG_BYTES_MAX + 1).is_ok() {
            let refused = format!("{:?}", writes.read("sparse").unwrap_err());
            assert!(refused.contains("longer than"), "{refused}");
        }
        assert_eq!(std::fs::read_to_string(&text).unwrap(), "letters");
        let mode = std::os::unix::fs::PermissionsExt::mode(&own.metadata().unwrap().permissions());
        assert_eq!(mode & 0o777, 0o700, "what a role keeps is its own");
    }

    #[test]
    fn a_log_whose_name_cannot_be_synced_takes_no_append() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("log"), "there since an earlier life").unwrap();
        let mut logs = logs_that_lose_names(directory.path());
        let change = Change::Append(Bytes::from_static(b"more"));
        assert!(logs.change(&Write { id: WriteId(1), log: "log".into(), change }).is_err());
    }

    #[test]
    fn a_directory_has_more_logs_than_may_be_open_and_each_keeps_its_appends() {
        let directory = tempfile::tempdir().unwrap();
        let handle = File::open(directory.path()).unwrap();
        let (open, broken) = (BTreeMap::new(), BTreeSet::new());
        let mut logs =
            Logs { directory: directory.path().to_owned(), handle, open, broken, reserve: None };
        let write = |n: usize, text: &'static str| {
            let change = Change::Append(Bytes::from_static(text.as_bytes()));
            Write { id: WriteId(n as u64), log: format!("log-{n}"), change }
        };
        for text in ["first ", "second"] {
            for n in 0..2 * LOGS_OPEN_MAX {
                assert_eq!(logs.carry_out(&[write(n, text)]), [(WriteId(n as u64), Ok(()))]);
                assert!(logs.open.len() <= LOGS_OPEN_MAX);
            }
        }
        for n in 0..2 * LOGS_OPEN_MAX {
            let path = directory.path().join(format!("log-{n}"));
            assert_eq!(std::fs::read_to_string(path).unwrap(), "first second");
        }
    }
}
