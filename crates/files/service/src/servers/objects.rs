//! Replicated files as objects: the interface of the crate `object_store`, for programs that read
//! and write through it.
//!
//! An object is a file, and the parts of its path are directories. An object appears whole: its
//! bytes go to a file whose name begins with `._evenfall-`, which then takes the name of the object
//! in one change. A writer that dies leaves such a file, and no listing of objects shows it.
//!
//! The tag of an object is the number and the length of its file. Numbers are never given twice, so
//! an update that names the tag fails after any other update ([`PutMode::Update`]).
//!
//! Requests are made on the threads for blocking calls of the caller's runtime.

use std::fmt;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Buf as _, Bytes};
use chrono::{DateTime, Utc};
use futures_util::StreamExt as _;
use futures_util::stream::{BoxStream, unfold};
use object_store::path::{Path, PathPart};
use object_store::{
    Attributes, CopyMode, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, RenameOptions, RenameTargetMode, Result, UpdateVersion, UploadPart,
};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, spawn_blocking};

use super::owner::random_number;
use crate::{BytesSource, FilesClient, ServiceError};

const STORE: &str = "evenfall files";
/// The name of a file that is no object yet begins with this prefix.
const SCRATCH: &str = "._evenfall-";
/// How long a request is tried: as long as a server waits for other servers. Callers have retries
/// of their own.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pieces of an object or of a listing that wait between the thread that reads and the caller.
const PIECES_MAX: usize = 8;
/// An object of up to this many bytes is read whole before the caller gets the first byte.
const WHOLE_BYTES_MAX: u64 = 8 << 20;
/// How often the reading of an object begins anew because another writer has replaced the object.
const ATTEMPTS: usize = 20;
/// Entries of a listing in one piece.
const ENTRIES: usize = 1_000;

/// The objects below a directory of a nameserver.
#[derive(Clone)]
pub struct FileObjects {
    client: FilesClient,
    nameserver: String,
    folder: String,
}

impl fmt::Debug for FileObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileObjects({self})")
    }
}

impl fmt::Display for FileObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "files://{}{}", self.nameserver, self.folder)
    }
}

/// The status of a file or a directory, as the nameserver gives it.
#[derive(Clone, Copy, Debug)]
struct Status {
    id: u64,
    length: u64,
    modified_ms: u64,
    is_file: bool,
}

impl Status {
    fn of(value: &Value) -> Option<Self> {
        let number = |name: &str| value[name].as_u64();
        Some(Self {
            id: number("fileId")?,
            length: number("length")?,
            modified_ms: number("modificationTime")?,
            is_file: value["type"] == "FILE",
        })
    }

    fn tag(&self) -> String {
        format!("{}:{}", self.id, self.length)
    }

    fn meta(&self, location: Path) -> ObjectMeta {
        let modified = DateTime::<Utc>::from_timestamp_millis(self.modified_ms as i64);
        ObjectMeta {
            location,
            last_modified: modified.unwrap_or_default(),
            size: self.length,
            e_tag: Some(self.tag()),
            version: None,
        }
    }
}

/// Names of files cannot have a colon, and names of objects can.
fn name_of(part: &str) -> String {
    part.replace('%', "%25").replace(':', "%3A")
}

fn part_of(name: &str) -> String {
    name.replace("%3A", ":").replace("%25", "%")
}

/// The path of an entry of a directory. Names of objects are escaped already, and names of other
/// files may not be.
fn below(directory: &Path, name: &str) -> Path {
    let part = PathPart::parse(name).unwrap_or_else(|_| PathPart::from(name));
    directory.clone().join(part)
}

/// The error of an object, as callers of `object_store` know it.
fn failed(path: &Path, error: ServiceError) -> Error {
    let path = path.to_string();
    let exception = match &error {
        ServiceError::Refused(exception, _) => exception.as_str(),
        _ => "",
    };
    let source: Box<dyn std::error::Error + Send + Sync> = match exception {
        "FileNotFoundException" => return Error::NotFound { path, source: error.into() },
        "FileAlreadyExistsException" => return Error::AlreadyExists { path, source: error.into() },
        "ConcurrentModificationException" => {
            return Error::Precondition { path, source: error.into() };
        }
        _ => error.into(),
    };
    Error::Generic { store: STORE, source }
}

fn is_missing(error: &ServiceError) -> bool {
    matches!(error, ServiceError::Refused(exception, _) if exception == "FileNotFoundException")
}

fn generic(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Generic { store: STORE, source: what.into() }
}

/// Makes a call that blocks, on a thread for such calls.
async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    spawn_blocking(call).await?
}

/// Gives the pieces that a thread sends as a stream. The thread ends when the stream is dropped.
fn streamed<T: Send + 'static>(
    send: impl FnOnce(&mpsc::Sender<Result<T>>) -> Result<()> + Send + 'static,
) -> BoxStream<'static, Result<T>> {
    let (give, pieces) = mpsc::channel(PIECES_MAX);
    let begin = move || {
        spawn_blocking(move || {
            if let Err(error) = send(&give) {
                // A reader that has gone needs no error.
                let _ = give.blocking_send(Err(error));
            }
        });
    };
    // The thread starts with the first poll, inside of a runtime.
    unfold((Some(begin), pieces), |(mut first, mut pieces)| async move {
        if let Some(begin) = first.take() {
            begin();
        }
        Some((pieces.recv().await?, (first, pieces)))
    })
    .boxed()
}

/// Writes into a stream of pieces.
struct Out<'a>(&'a mpsc::Sender<Result<Bytes>>);

impl io::Write for Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes))).map_err(gone)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The parts of an upload as a source of bytes. The sender of a part gets its answer when every
/// byte of the part was read.
struct Parts {
    parts: mpsc::UnboundedReceiver<(Bytes, oneshot::Sender<()>)>,
    part: Bytes,
    answer: Option<oneshot::Sender<()>>,
    /// Receives a message when the upload is complete. An upload that ends without this message was
    /// abandoned.
    is_complete: oneshot::Receiver<()>,
}

impl Read for Parts {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.part.is_empty() {
            if let Some(answer) = self.answer.take() {
                // The caller may have given the upload up.
                let _ = answer.send(());
            }
            // The source is read by a thread that drives a request, which may not block on a
            // channel of tokio.
            match futures_util::FutureExt::now_or_never(self.parts.recv()) {
                Some(Some((part, answer))) => (self.part, self.answer) = (part, Some(answer)),
                Some(None) => {
                    return match self.is_complete.try_recv() {
                        Ok(()) => Ok(0),
                        Err(_) => Err(io::Error::other("the upload was abandoned")),
                    };
                }
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        let len = out.len().min(self.part.len());
        self.part.copy_to_slice(&mut out[..len]);
        Ok(len)
    }
}

impl FileObjects {
    /// The objects below a directory of the nameserver at `HOST:PORT`. The directory is made with
    /// its first object.
    pub fn new(nameserver: &str, folder: &str, user: &str) -> Self {
        let folder = folder.trim_matches('/');
        let folder = if folder.is_empty() { String::new() } else { format!("/{folder}") };
        let client = FilesClient::new(nameserver, user, PATIENCE);
        Self { client, nameserver: nameserver.to_owned(), folder }
    }

    /// The same objects, which may be on other hosts without a key. Everything is then sent in
    /// clear, and the settings of the servers have `files.open = true`.
    #[must_use]
    pub fn open_to_other_hosts(self, is_open: bool) -> Self {
        Self { client: self.client.open_to_other_hosts(is_open), ..self }
    }

    fn path(&self, location: &Path) -> String {
        let parts = location.parts().map(|part| format!("/{}", name_of(part.as_ref())));
        format!("{}{}", self.folder, parts.collect::<String>())
    }

    fn scratch(&self) -> Result<String> {
        let number = random_number().map_err(generic)?;
        Ok(format!("{}/{SCRATCH}{number:016x}", self.folder))
    }

    fn status(&self, location: &Path) -> Result<Status> {
        let status = self.client.get(&self.path(location), "GETFILESTATUS", &[]);
        let status = match status {
            Ok(status) => Status::of(&status["FileStatus"]),
            Err(error) => return Err(failed(location, error)),
        };
        let status = status.ok_or_else(|| generic("the status of the file has no length"))?;
        match status.is_file {
            true => Ok(status),
            false => {
                let source = "a directory is no object".into();
                Err(Error::NotFound { path: location.to_string(), source })
            }
        }
    }

    /// Gives a file the name of an object. The directory of the object is made when the directory
    /// is missing.
    fn rename(&self, from: &str, to: &Path, is_overwrite: bool) -> Result<()> {
        let path = self.path(to);
        let option = if is_overwrite { "OVERWRITE" } else { "NONE" };
        let arguments = [("destination", path.as_str()), ("renameoptions", option)];
        let rename = || self.client.change(from, "RENAME", &arguments);
        let mut done = rename();
        if let (Err(error), Some((above, _))) = (&done, path.rsplit_once('/'))
            && is_missing(error)
        {
            self.client.change(above, "MKDIRS", &[]).map_err(|error| failed(to, error))?;
            done = rename();
        }
        done.map(drop).map_err(|error| failed(to, error))
    }

    /// Gives a scratch file the name of the object, as the mode says.
    fn publish(&self, scratch: &str, location: &Path, mode: &PutMode) -> Result<()> {
        let done = match mode {
            PutMode::Overwrite => self.rename(scratch, location, true),
            PutMode::Create => self.rename(scratch, location, false),
            PutMode::Update(UpdateVersion { e_tag, .. }) => {
                let was = e_tag.as_deref().unwrap_or_default();
                let arguments = [("with", scratch), ("was", was)];
                let done = self.client.change(&self.path(location), "REPLACE", &arguments);
                done.map(drop).map_err(|error| match failed(location, error) {
                    // The object that was to be updated is gone.
                    Error::NotFound { path, source } => Error::Precondition { path, source },
                    error => error,
                })
            }
        };
        if done.is_err() {
            // The error of the change is reported, and not that of the deletion.
            let _ = self.client.delete(scratch, false);
        }
        done
    }

    /// Begins to write an object part by part.
    fn upload(&self, location: &Path, mode: PutMode) -> FileUpload {
        let (give, parts) = mpsc::unbounded_channel();
        let (complete, is_complete) = oneshot::channel();
        let (this, location) = (self.clone(), location.clone());
        let parts = Parts { parts, part: Bytes::new(), answer: None, is_complete };
        let source = BytesSource::Stream(Box::new(parts));
        let put = spawn_blocking(move || this.put_now(&location, source, &mode));
        FileUpload { give: Some(give), complete: Some(complete), put: Some(put) }
    }

    fn put_now(&self, location: &Path, source: BytesSource, mode: &PutMode) -> Result<PutResult> {
        let scratch = self.scratch()?;
        if let Err(error) = self.client.put(source, &scratch, false, None, &mut |_| {}) {
            // The error of the writing is reported, and not that of the deletion.
            let _ = self.client.delete(&scratch, false);
            return Err(failed(location, error));
        }
        // The tag is that of the new file, whatever replaces it later.
        let status = self.client.get(&scratch, "GETFILESTATUS", &[]);
        let status = status.map_err(|error| failed(location, error))?;
        let e_tag = Status::of(&status["FileStatus"]).map(|status| status.tag());
        self.publish(&scratch, location, mode)?;
        Ok(PutResult { e_tag, version: None })
    }

    fn read(
        &self,
        location: &Path,
        status: Status,
        range: Range<u64>,
        out: &mut dyn io::Write,
    ) -> Result<()> {
        let read = self.client.read(&self.path(location), status.id, range, out, &mut |_| {});
        read.map_err(|error| failed(location, error))
    }

    /// The status of an object, the range that the caller asks for, and the bytes of the range when
    /// they are at most [`WHOLE_BYTES_MAX`]. The caller reads a longer range as a stream, which
    /// ends in an error when another writer replaces the object meanwhile.
    fn begin_to_get(
        &self,
        location: &Path,
        options: &GetOptions,
    ) -> Result<(Status, Range<u64>, Option<Bytes>)> {
        let mut attempts = 0;
        loop {
            let status = self.status(location)?;
            let meta = status.meta(location.clone());
            options.check_preconditions(&meta)?;
            let range = match &options.range {
                Some(range) => range.as_range(meta.size).map_err(generic)?,
                None => 0..meta.size,
            };
            let length = range.end - range.start;
            if options.head || length == 0 {
                return Ok((status, range, Some(Bytes::new())));
            }
            if length > WHOLE_BYTES_MAX {
                return Ok((status, range, None));
            }
            let mut bytes = Vec::with_capacity(length as usize);
            attempts += 1;
            match self.read(location, status, range.clone(), &mut bytes) {
                Ok(()) => return Ok((status, range, Some(bytes.into()))),
                // Another writer has replaced the object meanwhile.
                Err(Error::Precondition { .. }) if attempts < ATTEMPTS => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives each entry of a directory with its name. A missing directory has no entries.
    fn entries(&self, path: &str, each: &mut dyn FnMut(String, Status)) -> Result<()> {
        let path = if path.is_empty() { "/" } else { path };
        let mut give = |entry: &Value| {
            let name = entry["pathSuffix"].as_str().unwrap_or_default();
            // A file lists itself, without a name.
            if let Some(status) = Status::of(entry).filter(|_| !name.is_empty())
                && !name.starts_with(SCRATCH)
            {
                each(part_of(name), status);
            }
        };
        match self.client.list(path, &mut give) {
            Err(error) if is_missing(&error) => Ok(()),
            listed => listed.map_err(|error| failed(&Path::default(), error)),
        }
    }

    /// Sends the objects below a directory, directory by directory.
    fn walk(&self, from: Path, give: &mpsc::Sender<Result<Vec<ObjectMeta>>>) -> Result<()> {
        let mut rest = vec![from];
        while let Some(directory) = rest.pop() {
            let (mut found, mut is_over) = (Vec::new(), false);
            self.entries(&self.path(&directory), &mut |name, status| {
                let location = below(&directory, &name);
                if !status.is_file {
                    rest.push(location);
                    return;
                }
                found.push(status.meta(location));
                if found.len() >= ENTRIES {
                    is_over |= give.blocking_send(Ok(core::mem::take(&mut found))).is_err();
                }
            })?;
            if is_over || (!found.is_empty() && give.blocking_send(Ok(found)).is_err()) {
                return Ok(());
            }
        }
        Ok(())
    }
}

#[async_trait]
impl ObjectStore for FileObjects {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let (this, location) = (self.clone(), location.clone());
        let source = BytesSource::Bytes(payload.into());
        blocking(move || this.put_now(&location, source, &options.mode)).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Ok(Box::new(self.upload(location, PutMode::Overwrite)))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let (this, at) = (self.clone(), location.clone());
        let (status, range, whole) = blocking(move || this.begin_to_get(&at, &options)).await?;
        let (this, at, wanted) = (self.clone(), location.clone(), range.clone());
        let pieces = match whole {
            Some(bytes) => futures_util::stream::iter([Ok(bytes)]).boxed(),
            None => streamed(move |give| this.read(&at, status, wanted, &mut Out(give))),
        };
        let (payload, attributes) = (GetResultPayload::Stream(pieces), Attributes::default());
        let meta = status.meta(location.clone());
        Ok(GetResult { payload, meta, range, attributes })
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = Arc::new(self.clone());
        let delete = move |location: Result<Path>| {
            let this = Arc::clone(&this);
            async move {
                let location = location?;
                blocking(move || {
                    this.status(&location)?;
                    let deleted = this.client.delete(&this.path(&location), false);
                    deleted.map_err(|error| failed(&location, error)).map(|_| location)
                })
                .await
            }
        };
        locations.map(delete).buffered(PIECES_MAX).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (this, from) = (self.clone(), prefix.cloned().unwrap_or_default());
        let found = streamed(move |give| this.walk(from, give));
        let each = |found: Result<Vec<ObjectMeta>>| {
            futures_util::stream::iter(match found {
                Ok(found) => found.into_iter().map(Ok).collect::<Vec<_>>(),
                Err(error) => vec![Err(error)],
            })
        };
        found.flat_map(each).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let (this, from) = (self.clone(), prefix.cloned().unwrap_or_default());
        blocking(move || {
            let (mut objects, mut common_prefixes) = (Vec::new(), Vec::new());
            this.entries(&this.path(&from), &mut |name, status| {
                let location = below(&from, &name);
                match status.is_file {
                    true => objects.push(status.meta(location)),
                    false => common_prefixes.push(location),
                }
            })?;
            Ok(ListResult { common_prefixes, objects })
        })
        .await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let mode = match options.mode {
            CopyMode::Overwrite => PutMode::Overwrite,
            CopyMode::Create => PutMode::Create,
        };
        let mut pieces = self.get_opts(from, GetOptions::default()).await?.into_stream();
        let mut upload = self.upload(to, mode);
        while let Some(piece) = pieces.next().await {
            if upload.put_part(piece?.into()).await.is_err() {
                // The upload has ended, and its end below tells why.
                break;
            }
        }
        upload.complete().await.map(drop)
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let (this, from, to) = (self.clone(), from.clone(), to.clone());
        blocking(move || {
            this.status(&from)?;
            let is_overwrite = options.target_mode == RenameTargetMode::Overwrite;
            this.rename(&this.path(&from), &to, is_overwrite)
        })
        .await
    }
}

/// An object that is written part by part, in the order of the calls. A part is kept in memory
/// until its future ends, so the caller decides how many parts wait.
#[derive(Debug)]
struct FileUpload {
    give: Option<mpsc::UnboundedSender<(Bytes, oneshot::Sender<()>)>>,
    complete: Option<oneshot::Sender<()>>,
    put: Option<JoinHandle<Result<PutResult>>>,
}

#[async_trait]
impl MultipartUpload for FileUpload {
    fn put_part(&mut self, part: PutPayload) -> UploadPart {
        let (answer, answered) = oneshot::channel();
        let part: Bytes = part.into();
        let sent = self.give.as_ref().map(|give| give.send((part, answer)));
        Box::pin(async move {
            let ended = || generic("the upload has ended");
            sent.ok_or_else(ended)?.map_err(|_| ended())?;
            answered.await.map_err(|_| ended())
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        if let Some(complete) = self.complete.take() {
            // An upload that has ended tells its error itself.
            let _ = complete.send(());
        }
        self.give = None;
        let ended = || generic("the upload was completed or aborted before");
        self.put.take().ok_or_else(ended)?.await?
    }

    async fn abort(&mut self) -> Result<()> {
        (self.give, self.complete) = (None, None);
        if let Some(put) = self.put.take() {
            // The upload ends in the error that it was abandoned, and removes its file.
            drop(put.await?);
        }
        Ok(())
    }
}
