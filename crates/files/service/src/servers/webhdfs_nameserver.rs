//! WebHDFS at the nameserver: answers about names, and redirects to the dataservers for bytes.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenfall_core::SharedKey;
use evenfall_files_machine::namespace::rights::{EXECUTE, READ, WRITE};
use evenfall_files_machine::namespace::{
    Caller, Inode, InodeKind, Namespace, NamespaceCall, names,
};
use evenfall_files_machine::wire::DataserverPlace;
use evenfall_files_machine::{FilesRefusal, InodeId, Nameserver};
use evenfall_runtime::http::streams::{Arriving, Content, StreamAnswer};
use evenfall_runtime::http::{self, AllowedHosts, Method, StatusCode};
use serde_json::{Value, json};

use super::create_concat::{MAKE, REPLACE};
use super::leases::{self, LEASE, WRITER};
use super::listing::{ListingPage, Sums};
use super::owner::{OwnerInbox, now_ms};
use super::pages::{StatePages, of_nameserver};
use super::users::Users;
use super::webhdfs::{self, WebHdfsException, WebHdfsRequest, escaped, json_of, status};
use super::{facts, reports};
use crate::Options;
use crate::settings::NAMESERVER;

/// Longest wait for the log of the nameserver, or for a dataserver that leads a file.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two looks.
pub const ROUND: Duration = Duration::from_millis(20);

/// The routes of a nameserver.
pub struct NameserverRoutes {
    pub inbox: OwnerInbox<Nameserver>,
    pub started: Instant,
    /// Time after the start in which live dataservers may not have reported yet.
    pub grace: Duration,
    /// Counts reads, so that equally near copies take turns.
    turn: AtomicUsize,
    /// The key under which dataservers are reached.
    pub key: Option<SharedKey>,
    /// The names by which browsers may address this server.
    hosts: AllowedHosts,
    users: Users,
    pages: StatePages,
}

impl NameserverRoutes {
    /// The routes in front of a nameserver that starts now.
    pub fn new(inbox: OwnerInbox<Nameserver>, grace: Duration, options: &Options) -> Self {
        let (key, hosts) = (options.key.clone(), options.allowed_hosts());
        let (users, turn) = (Users::new(&options.files), AtomicUsize::new(0));
        let looked_at = inbox.clone();
        let pages = StatePages::new(&options.name, NAMESERVER, move || of_nameserver(&looked_at));
        Self { inbox, started: Instant::now(), grace, turn, key, hosts, users, pages }
    }

    /// The pages of the server about itself.
    pub fn pages(&self) -> &StatePages {
        &self.pages
    }

    /// The user who asks.
    ///
    /// # Errors
    /// When the name of the user is no name.
    pub fn caller(&self, request: &WebHdfsRequest) -> Result<Caller, WebHdfsException> {
        Ok(self.users.caller(request.user()?))
    }

    /// Answers a request. Bodies belong to dataservers, so none is read here.
    pub fn answer(&self, request: &http::Request, _: Arriving) -> StreamAnswer {
        if let Some(page) = self.pages.answer(request) {
            return page;
        }
        if let Err(foreign) = self.hosts.check(request) {
            return WebHdfsException::from(foreign).into();
        }
        let answered = match (&request.method, request.path.as_str()) {
            (&Method::GET, "/evenfall/status") => reports::servers(&self.inbox),
            (&Method::GET, "/evenfall/fsck") => reports::fsck(&self.inbox),
            (&Method::GET, "/evenfall/leases") => leases::held_leases(&self.inbox),
            (&Method::POST, path) if path.starts_with("/evenfall/") => self.order(request),
            _ => WebHdfsRequest::read(request, "there is nothing at this path: try /webhdfs/v1")
                .and_then(|read| self.operate(&request.method, &read)),
        };
        answered.unwrap_or_else(StreamAnswer::from)
    }

    /// Carries out an order of an operator: no part of WebHDFS.
    fn order(&self, request: &http::Request) -> Result<StreamAnswer, WebHdfsException> {
        let order = WebHdfsRequest::order(request)?;
        if !self.caller(&order)?.is_superuser {
            return Err(WebHdfsException::not_superuser(order.user()?));
        }
        let called = order.text("server").unwrap_or_default();
        match order.path.as_str() {
            "/leave" => reports::leave(&self.inbox, called, true),
            "/stay" => reports::leave(&self.inbox, called, false),
            "/forget" => reports::forget(&self.inbox, called, order.flag("force")?),
            "/balance" => reports::balance(&self.inbox, order.number("bytes")?.unwrap_or(0)),
            path => Err(WebHdfsException::unsupported(format!("there is no order {path:.50}"))),
        }
    }

    fn operate(
        &self,
        method: &Method,
        request: &WebHdfsRequest,
    ) -> Result<StreamAnswer, WebHdfsException> {
        match (method, request.op.as_str()) {
            (&Method::GET, op) => self.get(op, request),
            (&Method::PUT, op) => self.put(op, request),
            (&Method::POST, "APPEND") => self.redirect_to_primary(request),
            (&Method::POST, "CONCAT") => self.concat(request),
            (&Method::POST, "TRUNCATE") => self.truncate(request),
            (&Method::DELETE, "DELETE") => self.delete(request),
            (method, op) => Err(no_operation(method, op)),
        }
    }

    /// Deletes a path. As in HDFS, a missing path and the root give `false`.
    fn delete(&self, request: &WebHdfsRequest) -> Result<StreamAnswer, WebHdfsException> {
        let (path, recursive) = (request.path.clone(), request.flag("recursive")?);
        let is_root = names(&path)?.is_empty();
        let is_gone = match self.change(request, NamespaceCall::Delete { path, recursive })? {
            Err(FilesRefusal::NotFound(_)) => false,
            Err(FilesRefusal::Invalid(_)) if is_root => false,
            changed => changed.map(|()| true)?,
        };
        Ok(json_of(&json!({ "boolean": is_gone })))
    }

    fn get(&self, op: &str, request: &WebHdfsRequest) -> Result<StreamAnswer, WebHdfsException> {
        let value = match op {
            "OPEN" | "GETFILECHECKSUM" => return self.redirect_read(op, request),
            "LISTSTATUS" => return self.list(request),
            "LISTSTATUS_BATCH" => {
                let after = request.text("startafter").unwrap_or_default().to_owned();
                let (all, left) = self.look(request, to_list, move |namespace, id, inode| {
                    ListingPage::of(namespace, id, inode, &after).statuses()
                })?;
                let page = json!({ "FileStatuses": { "FileStatus": all } });
                json!({ "DirectoryListing": { "partialListing": page, "remainingEntries": left } })
            }
            "GETFILESTATUS" | "GETFILELINKSTATUS" => {
                let status = self.look(request, |_| 0, |_, id, inode| status(id, inode, ""))?;
                json!({ "FileStatus": status })
            }
            "GETCONTENTSUMMARY" => self.content_summary(request)?,
            "GETQUOTAUSAGE" => self.quota_usage(request)?,
            "GETHOMEDIRECTORY" => json!({ "Path": format!("/user/{}", request.user()?) }),
            "GETTRASHROOT" => json!({ "Path": format!("/user/{}/.Trash", request.user()?) }),
            "GETSERVERDEFAULTS" => facts::server_defaults(),
            "GETSTATUS" => facts::file_system(&self.inbox)?,
            "GETACLSTATUS" => self.look(request, |_| 0, |_, _, inode| facts::acl(inode))?,
            "GETFILEBLOCKLOCATIONS" | "GET_BLOCK_LOCATIONS" => self.blocks(op, request)?,
            "CHECKACCESS" => {
                let access = facts::action(request)?;
                self.look(request, move |_| access, |_, _, _| ())?;
                return Ok(webhdfs::empty(StatusCode::OK));
            }
            // HDFS without Kerberos also gives no tokens and asks for none.
            "GETDELEGATIONTOKEN" => json!({ "Token": null }),
            op => return Err(no_operation(&Method::GET, op)),
        };
        Ok(json_of(&value))
    }

    fn put(&self, op: &str, request: &WebHdfsRequest) -> Result<StreamAnswer, WebHdfsException> {
        let path = request.path.clone();
        let (call, is_boolean) = match op {
            "CREATE" => return self.redirect_writer(request),
            MAKE => return self.make(request),
            REPLACE => return self.replace(request),
            LEASE => return self.grant_lease(request),
            "RENAME" => return self.rename(request),
            "MKDIRS" => (NamespaceCall::Mkdirs { path, mode: request.mode(0o755)? }, true),
            "SETREPLICATION" => {
                let replication = request.replication()?;
                (NamespaceCall::SetReplication { path, replication }, true)
            }
            "SETPERMISSION" => (NamespaceCall::SetMode { path, mode: request.mode(0o755)? }, false),
            "SETOWNER" => {
                let (owner, group) = (request.name("owner")?, request.name("group")?);
                if owner.is_none() && group.is_none() {
                    return Err(WebHdfsException::argument("Both owner and group are empty."));
                }
                let (owner, group) = (owner.map(str::to_owned), group.map(str::to_owned));
                (NamespaceCall::SetOwner { path, owner, group }, false)
            }
            "SETTIMES" => {
                // In Hadoop -1 leaves a time as it is.
                let time = |name| match request.text(name) {
                    Some("-1") => Ok(None),
                    _ => request.number(name),
                };
                let (modified_ms, accessed_ms) = (time("modificationtime")?, time("accesstime")?);
                (NamespaceCall::SetTimes { path, modified_ms, accessed_ms }, false)
            }
            op => return Err(no_operation(&Method::PUT, op)),
        };
        let is_done = match self.change(request, call)? {
            // As in HDFS, nothing and a directory have no copies, which is no error.
            Err(FilesRefusal::NotFound(_) | FilesRefusal::IsDirectory(_))
                if op == "SETREPLICATION" =>
            {
                false
            }
            changed => changed.map(|()| true)?,
        };
        Ok(match is_boolean {
            true => json_of(&json!({ "boolean": is_done })),
            false => webhdfs::empty(StatusCode::OK),
        })
    }

    /// As in HDFS, a rename that cannot be made gives `false` when the request has no options, and
    /// an error when the request has options.
    fn rename(&self, request: &WebHdfsRequest) -> Result<StreamAnswer, WebHdfsException> {
        let Some(to) = request.text("destination") else {
            return Err(WebHdfsException::argument("there is no argument destination"));
        };
        names(&request.path)?;
        names(to)?;
        let options = request.text("renameoptions").map(str::to_ascii_uppercase);
        let overwrite = options.as_deref().is_some_and(|options| options.contains("OVERWRITE"));
        let (from, to) = (request.path.clone(), to.to_owned());
        let is_exact = options.is_some();
        let made = self.change(request, NamespaceCall::Rename { from, to, overwrite, is_exact })?;
        if options.is_some() {
            return made.map(|()| webhdfs::empty(StatusCode::OK)).map_err(WebHdfsException::from);
        }
        let is_made = match made {
            Ok(()) => true,
            Err(
                refusal @ (FilesRefusal::DiskFull
                | FilesRefusal::Limit(_)
                | FilesRefusal::Denied(_)),
            ) => {
                return Err(refusal.into());
            }
            Err(_) => false,
        };
        Ok(json_of(&json!({ "boolean": is_made })))
    }

    /// Looks at the inode of the path, on which the caller needs the rights that `needs` names.
    fn look<T: Send + 'static>(
        &self,
        request: &WebHdfsRequest,
        needs: impl FnOnce(&InodeKind) -> u16 + Send + 'static,
        of: impl FnOnce(&Namespace, InodeId, &Inode) -> T + Send + 'static,
    ) -> Result<T, WebHdfsException> {
        let (path, caller) = (request.path.clone(), self.caller(request)?);
        let found = self.inbox.ask(move |server, _| {
            let namespace = server.namespace();
            let (id, inode) = found(namespace, &caller, &path)?;
            namespace.check_access(&caller, id, needs(&inode.kind))?;
            Ok::<T, FilesRefusal>(of(namespace, id, inode))
        })?;
        Ok(found?)
    }

    /// The statuses of a directory. A long listing leaves page by page, so that no directory fills
    /// the memory.
    fn list(&self, request: &WebHdfsRequest) -> Result<StreamAnswer, WebHdfsException> {
        let first = self.look(request, to_list, |namespace, id, inode| {
            ListingPage::of(namespace, id, inode, "")
        })?;
        let (begin, end) = (r#"{"FileStatuses":{"FileStatus":["#, "]}}\n");
        if first.left == 0 {
            let text = format!("{begin}{}{end}", first.text);
            let content = Content::Whole(text.into());
            let (status, headers) = (StatusCode::OK, webhdfs::json_headers());
            return Ok(StreamAnswer { status, headers, content });
        }
        let (inbox, mut page, mut comma) = (self.inbox.clone(), Some(first), "");
        let pages = std::iter::from_fn(move || {
            let now = page.take()?;
            let (id, after) = (now.directory, now.last);
            if now.left > 0 {
                let next = inbox.ask(move |server: &mut Nameserver, _| {
                    let namespace = server.namespace();
                    namespace
                        .inodes()
                        .get(&id)
                        .map(|inode| ListingPage::of(namespace, id, inode, &after))
                });
                match next {
                    // The entries that were still to list may have been deleted meanwhile, alone or
                    // with their directory.
                    Ok(next) => page = next.filter(|next| !next.text.is_empty()),
                    Err(refusal) => return Some(Err(io::Error::other(refusal))),
                }
            }
            let end = if page.is_none() { end } else { "" };
            let text = format!("{comma}{}{end}", now.text);
            comma = ",";
            Some(Ok(Bytes::from(text)))
        });
        let pages = std::iter::once(Ok(Bytes::from_static(begin.as_bytes()))).chain(pages);
        let content = Content::Stream(None, Box::new(pages));
        Ok(StreamAnswer { status: StatusCode::OK, headers: webhdfs::json_headers(), content })
    }

    /// The sums of all files below a path. The owner counts some inodes at a time, and names may
    /// change between two steps.
    fn sums(&self, request: &WebHdfsRequest) -> Result<Sums, WebHdfsException> {
        let id = self.look(request, |_| 0, |_, id, _| id)?;
        let (mut sums, mut rest) = (Sums::default(), vec![id]);
        while !rest.is_empty() {
            let caller = self.caller(request)?;
            let step =
                self.inbox.ask(move |server, _| sums.step(server.namespace(), &caller, rest))?;
            (sums, rest) = step?;
        }
        Ok(sums)
    }

    fn content_summary(&self, request: &WebHdfsRequest) -> Result<Value, WebHdfsException> {
        let sums = self.sums(request)?;
        Ok(json!({ "ContentSummary": {
            "directoryCount": sums.directories, "fileCount": sums.files, "length": sums.length,
            "quota": -1, "spaceConsumed": sums.consumed, "spaceQuota": -1, "typeQuota": {},
        } }))
    }

    fn quota_usage(&self, request: &WebHdfsRequest) -> Result<Value, WebHdfsException> {
        let sums = self.sums(request)?;
        Ok(json!({ "QuotaUsage": {
            "fileAndDirectoryCount": sums.directories + sums.files, "quota": -1,
            "spaceConsumed": sums.consumed, "spaceQuota": -1, "typeQuota": {},
        } }))
    }

    /// Where the bytes of a part of a file are.
    fn blocks(&self, op: &str, request: &WebHdfsRequest) -> Result<Value, WebHdfsException> {
        let offset = request.number("offset")?.unwrap_or(0);
        let length = request.number("length")?.unwrap_or(u64::MAX);
        let located = self.locate(request, &request.path, READ)?;
        let range = offset..offset.saturating_add(length);
        Ok(match op {
            "GETFILEBLOCKLOCATIONS" => facts::block_locations(&located, range),
            _ => facts::located_blocks(&located, range),
        })
    }

    /// Makes a change, and waits until the log has it.
    pub fn change(
        &self,
        request: &WebHdfsRequest,
        call: NamespaceCall,
    ) -> Result<Result<(), FilesRefusal>, WebHdfsException> {
        self.change_as(self.caller(request)?, call)
    }

    /// Makes a change with the rights of a caller, and waits until the log has it.
    pub fn change_as(
        &self,
        caller: Caller,
        call: NamespaceCall,
    ) -> Result<Result<(), FilesRefusal>, WebHdfsException> {
        let pending = self
            .inbox
            .begin(move |server, now, token| server.call(now, now_ms(), token, &caller, &call));
        reports::logged(&self.inbox, &pending)
    }

    /// A file, on which the caller needs these rights, and the dataservers that have a copy of it.
    /// The primary comes first when its address is known.
    pub fn locate(
        &self,
        request: &WebHdfsRequest,
        path: &str,
        access: u16,
    ) -> Result<Located, WebHdfsException> {
        let (path, client, caller) = (path.to_owned(), request.from, self.caller(request)?);
        let found = self.inbox.ask(move |server, now| {
            let (id, inode) = found(server.namespace(), &caller, &path)?;
            server.namespace().check_access(&caller, id, access)?;
            let InodeKind::File(file) = &inode.kind else {
                return Err(FilesRefusal::IsDirectory(path));
            };
            let places = server.places(file);
            let primary = file.group.members.first();
            let primary = places.iter().find(|place| Some(&place.disk) == primary).copied();
            let is_live = |place: &DataserverPlace| server.is_live(now, place.disk);
            // The racks of the dataservers on the client's host.
            let near = server.servers().values().filter(|one| one.place.http.ip() == client);
            let near: Vec<&str> = near.map(|one| one.rack.as_str()).collect();
            let distance = |place: &DataserverPlace| match server.servers().get(&place.disk) {
                _ if place.http.ip() == client => Distance::SameHost,
                Some(one) if near.contains(&one.rack.as_str()) => Distance::SameRack,
                _ => Distance::Elsewhere,
            };
            let live = places.iter().filter(|place| is_live(place));
            let live = live.map(|place| (distance(place), *place)).collect();
            let (length, replication, block_bytes) =
                (file.length, file.replication, file.block_bytes);
            let primary = primary.filter(is_live);
            Ok(Located { id, length, replication, block_bytes, primary, live })
        })?;
        Ok(found?)
    }

    /// Waits until the file has a live primary. A dead primary is replaced within seconds.
    fn redirect_to_primary(
        &self,
        request: &WebHdfsRequest,
    ) -> Result<StreamAnswer, WebHdfsException> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let located = self.locate(request, &request.path, WRITE)?;
            if let Some(primary) = located.primary {
                // A dataserver that checks no leases would mix the bytes of two writers.
                self.inbox.ask(move |server, _| server.check_lease_peer(located.id))??;
                let mut query = format!("op=APPEND&file={}", located.id.0);
                if let Some(at) = request.number("at")? {
                    query += &format!("&at={at}");
                }
                if let Some(writer) = request.text(WRITER) {
                    query += &format!("&{WRITER}={}", escaped(writer));
                }
                return redirect(request, &primary, &query);
            }
            if Instant::now() >= deadline {
                let what = format!("the dataserver that leads {} is not alive", request.path);
                return Err(WebHdfsException::again(what));
            }
            std::thread::sleep(ROUND);
        }
    }

    /// Sends a reader to a near copy. Copies that are equally near take turns.
    fn redirect_read(
        &self,
        op: &str,
        request: &WebHdfsRequest,
    ) -> Result<StreamAnswer, WebHdfsException> {
        let located = self.locate(request, &request.path, READ)?;
        let length = located.length;
        // A reader that goes on in another copy must not go on in another file.
        if request.number("number")?.is_some_and(|number| number != located.id.0) {
            return Err(FilesRefusal::Changed(request.path.clone()).into());
        }
        let offset = request.number("offset")?.unwrap_or(0);
        if offset > length {
            return Err(WebHdfsException::io(format!(
                "Offset={offset} out of the range [0, {length}]"
            )));
        }
        let mut query = format!("op={op}&file={}&end={length}&offset={offset}", located.id.0);
        if let Some(bytes) = request.number("length")? {
            query += &format!("&length={bytes}");
        }
        if op == "GETFILECHECKSUM" {
            let combine = request.text("combine").unwrap_or_default();
            query += &format!("&block={}&combine={}", located.block_bytes, escaped(combine));
        }
        let fit = located.live.iter().filter(|(_, place)| !is_excluded(request, place));
        let nearest = fit.clone().map(|(distance, _)| *distance).min();
        let fit = fit.filter(|(distance, _)| Some(*distance) == nearest);
        let fit: Vec<DataserverPlace> = fit.map(|(_, place)| *place).collect();
        match self.in_turn(request, &fit, usize::MAX) {
            Some(place) => redirect(request, place, &query),
            None => {
                let what = format!("no live dataserver has {}", request.path);
                Err(WebHdfsException::again(what))
            }
        }
    }

    /// One of the first `most` dataservers that the client does not exclude. Repeated calls take
    /// turns among them.
    pub fn in_turn<'a>(
        &self,
        request: &WebHdfsRequest,
        all: &'a [DataserverPlace],
        most: usize,
    ) -> Option<&'a DataserverPlace> {
        let fit = all.iter().filter(|place| !is_excluded(request, place));
        let fit: Vec<&DataserverPlace> = fit.take(most).collect();
        fit.get(self.turn.fetch_add(1, Relaxed) % fit.len().max(1)).copied()
    }
}

/// A file and the dataservers that have a copy of it.
pub struct Located {
    pub id: InodeId,
    /// The length that the nameserver knows.
    pub length: u64,
    /// Copies that the file shall have.
    pub replication: u16,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// The primary, when it lives.
    pub primary: Option<DataserverPlace>,
    /// The members that live, each with its distance from the client.
    pub live: Vec<(Distance, DataserverPlace)>,
}

impl Located {
    /// The members that live.
    pub fn places(&self) -> impl Iterator<Item = &DataserverPlace> {
        self.live.iter().map(|(_, place)| place)
    }
}

/// How far a dataserver is from a client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    SameHost,
    SameRack,
    Elsewhere,
}

/// Sends the client to a dataserver. With `noredirect` the answer only tells the address.
pub fn redirect(
    request: &WebHdfsRequest,
    place: &DataserverPlace,
    query: &str,
) -> Result<StreamAnswer, WebHdfsException> {
    let (path, http) = (escaped(&request.path), place.http);
    let user = escaped(request.user()?);
    let to = format!("http://{http}{}{path}?{query}&user.name={user}", webhdfs::PREFIX);
    match request.flag("noredirect")? {
        true => Ok(json_of(&json!({ "Location": to }))),
        false => Ok(webhdfs::redirect_to(&to)),
    }
}

/// The rights that a listing needs: a file is listed by everybody who finds it.
fn to_list(kind: &InodeKind) -> u16 {
    match kind {
        InodeKind::Directory(_) => READ | EXECUTE,
        InodeKind::File(_) => 0,
    }
}

/// The inode of a path. A path below a file is not there for a reader, as in HDFS.
fn found<'a>(
    namespace: &'a Namespace,
    caller: &Caller,
    path: &str,
) -> Result<(InodeId, &'a Inode), FilesRefusal> {
    namespace.find_as(caller, path).map_err(|refusal| match refusal {
        FilesRefusal::NotDirectory(_) => FilesRefusal::NotFound(path.to_owned()),
        refusal => refusal,
    })
}

/// Whether the client excludes a dataserver that did not answer the client.
fn is_excluded(request: &WebHdfsRequest, place: &DataserverPlace) -> bool {
    let excluded = request.text("excludedatanodes").unwrap_or_default();
    excluded.split(',').any(|one| one == place.http.to_string())
}

fn no_operation(method: &Method, op: &str) -> WebHdfsException {
    let op: String = op.chars().take(50).collect();
    WebHdfsException::unsupported(format!("{method} has no operation {op}"))
}
