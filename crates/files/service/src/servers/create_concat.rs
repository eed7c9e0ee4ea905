//! How the nameserver makes files: new files, and files that are put together from other files.
//!
//! The first step of `CREATE` makes nothing, as in HDFS. It names a dataserver, and the dataserver
//! makes the file when the bytes come:
//!
//! ```text
//!  client ── CREATE ──> nameserver         the path may be made: a redirect
//!    └─ CREATE, bytes ─> dataserver ── MAKE ──> nameserver: the file, led by this dataserver
//! ```
//!
//! `CONCAT` and `TRUNCATE` copy. A file grows at its end and never changes elsewhere, so a new file
//! takes the place of the old one in one change of the names. A crash meanwhile leaves the old
//! files as they were, and perhaps the new file, whose name begins with `._evenfall-`.

use std::time::Duration;

use evenfall_core::SharedKey;
use evenfall_files_machine::config::BLOCK_BYTES;
use evenfall_files_machine::namespace::rights::{READ, WRITE};
use evenfall_files_machine::namespace::{Caller, Namespace, NamespaceCall, names};
use evenfall_files_machine::wire::DataserverPlace;
use evenfall_files_machine::{DiskId, FilesRefusal, InodeId, Nameserver};
use evenfall_runtime::http::streams::StreamAnswer;
use evenfall_runtime::http::{Method, StatusCode, Upload, exchange_under};
use serde_json::json;

use super::leases::WRITER;
use super::owner::{now_ms, random_number};
use super::reports;
use super::webhdfs::{self, WebHdfsException, WebHdfsRequest, escaped, json_of};
use super::webhdfs_nameserver::{Located, NameserverRoutes, ROUND, redirect};

/// Evenfall's own operation with which a dataserver makes a file.
pub const MAKE: &str = "MAKE";
/// Evenfall's own operation that puts a file into the place of another file, unless the other file
/// has changed.
pub const REPLACE: &str = "REPLACE";
/// Evenfall's own operation with which a dataserver copies the beginnings of files into a new file.
pub const GATHER: &str = "GATHER";
/// The arguments of `CREATE` that the dataserver hands back to the nameserver.
pub const CREATE_ARGUMENTS: [&str; 6] =
    ["permission", "replication", "overwrite", "createflag", "createparent", "blocksize"];
/// New files take turns among this many dataservers, whose disks are the least used.
const WRITERS: usize = 3;
/// Most files that one `CONCAT` appends. A request line has room for their names.
const SOURCES_MAX: usize = 500;
/// Longest wait for a dataserver that copies: half a minute for each gigabyte of a file of 30 GB.
const GATHER_PATIENCE: Duration = Duration::from_secs(900);

/// What the arguments of `CREATE` ask for.
struct Asked {
    call: NamespaceCall,
    replication: u16,
    /// Whether missing directories above the file are made.
    makes_parents: bool,
}

impl Asked {
    fn read(request: &WebHdfsRequest, writer: Option<DiskId>) -> Result<Self, WebHdfsException> {
        let (path, mode) = (request.path.clone(), request.mode(0o644)?);
        let replication = request.replication()?;
        // Hadoop's `createNonRecursive` says here whether it overwrites.
        let flags = request.text("createflag").unwrap_or_default().to_ascii_uppercase();
        let overwrite = request.flag("overwrite")? || flags.contains("OVERWRITE");
        let makes_parents =
            request.text("createparent").is_none() || request.flag("createparent")?;
        let block_bytes = request.number("blocksize")?.unwrap_or(BLOCK_BYTES);
        let call =
            NamespaceCall::Create { path, mode, replication, overwrite, writer, block_bytes };
        Ok(Self { call, replication, makes_parents })
    }

    /// Whether the directory above the file is there, when it has to be.
    fn check_parent(
        &self,
        namespace: &Namespace,
        caller: &Caller,
        path: &str,
    ) -> Result<(), FilesRefusal> {
        let names = names(path)?;
        match names.split_last() {
            Some((_, above)) if !self.makes_parents => {
                namespace.find_as(caller, &format!("/{}", above.join("/"))).map(drop)
            }
            _ => Ok(()),
        }
    }
}

/// A part of a file that is made out of other files: the path of a source, where its copies are,
/// and how many of its first bytes are taken.
struct Part(String, Located, u64);

impl NameserverRoutes {
    /// Waits until `count` dataservers live, if the nameserver has just started. A file that is
    /// made before the dataservers have said that they live has too few copies.
    fn wait_for_dataservers(&self, count: u16) -> Result<(), WebHdfsException> {
        let live = |server: &mut Nameserver, now| {
            server.servers().keys().filter(|disk| server.is_live(now, **disk)).count()
        };
        while self.started.elapsed() < self.grace && self.inbox.ask(live)? < usize::from(count) {
            std::thread::sleep(ROUND);
        }
        Ok(())
    }

    /// The first step of `CREATE`: refuses a request that is sure to fail, and names a dataserver.
    pub fn redirect_writer(
        &self,
        request: &WebHdfsRequest,
    ) -> Result<StreamAnswer, WebHdfsException> {
        let asked = Asked::read(request, None)?;
        self.wait_for_dataservers(asked.replication)?;
        let (path, caller) = (request.path.clone(), self.caller(request)?);
        let places = self.inbox.ask(move |server, now| {
            server.check_writers(now, &caller, &asked.call)?;
            asked.check_parent(server.namespace(), &caller, &path)?;
            server.namespace().decide(&asked.call, &caller, 0, &[])?;
            let place = |disk: &DiskId| server.servers().get(disk).map(|server| server.place);
            let disks = server.choose(now, usize::MAX, &[], &[]);
            Ok::<Vec<DataserverPlace>, FilesRefusal>(disks.iter().filter_map(place).collect())
        })??;
        let writer = self.in_turn(request, &places, WRITERS);
        let writer = writer.ok_or(FilesRefusal::TooFewServers(1, 0))?;
        let mut query = "op=CREATE".to_owned();
        for name in CREATE_ARGUMENTS.into_iter().chain([WRITER]) {
            if let Some(value) = request.text(name) {
                query += &format!("&{name}={}", escaped(value));
            }
        }
        redirect(request, writer, &query)
    }

    /// Makes a file for a dataserver that has the first bytes.
    pub fn make(&self, request: &WebHdfsRequest) -> Result<StreamAnswer, WebHdfsException> {
        let disk = request.number("disk")?.map(DiskId);
        let missing = || WebHdfsException::argument("there is no argument disk");
        let asked = Asked::read(request, Some(disk.ok_or_else(missing)?))?;
        self.wait_for_dataservers(asked.replication)?;
        let writer = request.text(WRITER).map(str::to_owned);
        let (file, lease) = self.made(self.caller(request)?, asked, writer)?;
        Ok(json_of(&json!({ "file": file.0, "lease": lease })))
    }

    /// Makes a file, and waits until the log has it. With a writer, also grants the lease of the
    /// file. Returns the file, and the generation of its lease.
    fn made(
        &self,
        caller: Caller,
        asked: Asked,
        writer: Option<String>,
    ) -> Result<(InodeId, Option<u64>), WebHdfsException> {
        reports::logged_value(&self.inbox, move |server, now, token| {
            let NamespaceCall::Create { path, .. } = &asked.call else {
                return Err(FilesRefusal::Unknown);
            };
            asked.check_parent(server.namespace(), &caller, path)?;
            // The request ends with the last record. No request has the token 0.
            let of_file = if writer.is_some() { 0 } else { token };
            server.call(now, now_ms(), of_file, &caller, &asked.call)?;
            let (file, _) = server.namespace().find(path)?;
            // As in HDFS, the maker of a file writes its first bytes whatever its rights say.
            let maker = Caller::superuser(&caller.user);
            let grant =
                |writer: String| server.grant_lease(now, now_ms(), token, &maker, file, &writer);
            let lease = writer.map(grant).transpose()?;
            Ok((file, lease))
        })
    }

    /// Puts the file of the argument `with` into the place of a file that has not changed since the
    /// caller knew it.
    pub fn replace(&self, request: &WebHdfsRequest) -> Result<StreamAnswer, WebHdfsException> {
        let wrong = || WebHdfsException::argument("REPLACE needs with=PATH and was=NUMBER:LENGTH");
        let with = request.text("with").ok_or_else(wrong)?.to_owned();
        let was = request.text("was").and_then(|was| was.split_once(':'));
        let was = was.and_then(|(id, length)| Some((id.parse().ok()?, length.parse().ok()?)));
        let (id, length) = was.ok_or_else(wrong)?;
        let (path, sources) = (request.path.clone(), Vec::new());
        let call = NamespaceCall::Replace { path, with, sources, was: vec![(InodeId(id), length)] };
        self.change(request, call)??;
        Ok(webhdfs::empty(StatusCode::OK))
    }

    /// Appends files to a file, and deletes them, as one change.
    pub fn concat(&self, request: &WebHdfsRequest) -> Result<StreamAnswer, WebHdfsException> {
        let sources = request.text("sources").unwrap_or_default().split(',');
        let sources: Vec<&str> = sources.filter(|source| !source.is_empty()).collect();
        if sources.is_empty() || sources.len() > SOURCES_MAX {
            let what = format!("CONCAT takes 1 to {SOURCES_MAX} sources");
            return Err(WebHdfsException::argument(what));
        }
        let located = self.locate(request, &request.path, WRITE)?;
        let length = located.length;
        let mut parts = vec![Part(request.path.clone(), located, length)];
        let folder = |path: &str| {
            let names = names(path)?;
            Ok::<String, FilesRefusal>(names[..names.len().saturating_sub(1)].join("/"))
        };
        for source in sources {
            let located = self.locate(request, source, READ)?;
            let (id, length) = (located.id, located.length);
            if parts.iter().any(|Part(_, known, _)| known.id == id) {
                return Err(WebHdfsException::argument(format!("concat: {source} is named twice")));
            }
            if folder(source)? != folder(&request.path)? {
                let what = format!(
                    "Source file {source} is not in the same directory with the target {}",
                    request.path
                );
                return Err(WebHdfsException::argument(what));
            }
            if length == 0 {
                let what = format!("concat: source file {source} is invalid or empty");
                return Err(WebHdfsException::argument(what));
            }
            parts.push(Part(source.to_owned(), located, length));
        }
        self.rewrite(request, &parts)?;
        Ok(webhdfs::empty(StatusCode::OK))
    }

    /// Cuts a file at its end.
    pub fn truncate(&self, request: &WebHdfsRequest) -> Result<StreamAnswer, WebHdfsException> {
        let length = request.number("newlength")?;
        let length =
            length.ok_or_else(|| WebHdfsException::argument("there is no argument newlength"))?;
        let located = self.locate(request, &request.path, WRITE)?;
        let now = located.length;
        if length > now {
            return Err(WebHdfsException::argument(format!(
                "Cannot truncate to a larger file size. Current size: {now}, truncate size: \
                 {length}."
            )));
        }
        if length < now {
            self.rewrite(request, &[Part(request.path.clone(), located, length)])?;
        }
        Ok(json_of(&json!({ "boolean": true })))
    }

    /// Makes a file out of the parts, and puts it into the place of the first of them. The others
    /// are deleted.
    fn rewrite(&self, request: &WebHdfsRequest, parts: &[Part]) -> Result<(), WebHdfsException> {
        let Part(path, first, _) = &parts[0];
        let what =
            || WebHdfsException::again(format!("the dataserver that leads {path} is not alive"));
        let primary = first.primary.ok_or_else(what)?;
        let number = random_number().map_err(|error| WebHdfsException::io(error.to_string()))?;
        let above = path.trim_end_matches('/').rsplit_once('/').map_or("", |(above, _)| above);
        let with = format!("{above}/._evenfall-{number:016x}");
        let (replication, makes_parents) = (first.replication, false);
        let (mode, overwrite, writer) = (0o600, false, Some(primary.disk));
        let (path_of_new, block_bytes) = (with.clone(), first.block_bytes);
        // The caller has the right to write the file, and needs none on its directory.
        let helper = Caller::superuser(request.user()?);
        let call = NamespaceCall::Create {
            path: path_of_new,
            mode,
            replication,
            overwrite,
            writer,
            block_bytes,
        };
        let asked = Asked { call, replication, makes_parents };
        let (file, _) = self.made(helper.clone(), asked, None)?;
        let was = parts.iter().map(|Part(_, located, _)| (located.id, located.length)).collect();
        let sources: Vec<String> = parts[1..].iter().map(|Part(path, ..)| path.clone()).collect();
        // Sources are deleted, for which the caller needs the right.
        let caller = match sources.is_empty() {
            true => helper.clone(),
            false => self.caller(request)?,
        };
        let call = NamespaceCall::Replace { path: path.clone(), with: with.clone(), sources, was };
        let done = gather(self.key.as_ref(), &primary, &with, file, parts)
            .and_then(|()| Ok(self.change_as(caller, call)??));
        if done.is_err() {
            // The error of the copying is reported, and not that of the deletion.
            let _ = self.change_as(helper, NamespaceCall::Delete { path: with, recursive: false });
        }
        done
    }
}

/// Asks a dataserver to copy the parts into a new file that the dataserver leads.
fn gather(
    key: Option<&SharedKey>,
    primary: &DataserverPlace,
    path: &str,
    file: InodeId,
    parts: &[Part],
) -> Result<(), WebHdfsException> {
    let mut all = Vec::new();
    for Part(of, located, length) in parts.iter().filter(|Part(_, _, length)| *length > 0) {
        let near = located.places().find(|place| place.http == primary.http);
        let near = near.or(located.places().next());
        let gone = || WebHdfsException::again(format!("no live dataserver has {of}"));
        all.push(format!("{}@{}@{length}", located.id.0, near.ok_or_else(gone)?.http));
    }
    let (http, path, all) = (primary.http, escaped(path), escaped(&all.join(",")));
    let url =
        format!("http://{http}{}{path}?op={GATHER}&file={}&parts={all}", webhdfs::PREFIX, file.0);
    let none = Upload::none();
    let answer = exchange_under(key, &url, Method::POST, none, GATHER_PATIENCE, &mut |_| {});
    match answer {
        Ok(answer) if answer.status == StatusCode::OK => Ok(()),
        Ok(answer) => Err(WebHdfsException::of(answer)),
        Err(error) => Err(WebHdfsException::again(format!("dataserver {http}: {error}"))),
    }
}
