//! The words of WebHDFS: operations and arguments in, JSON and exceptions out.
//!
//! The protocol is that of the page "WebHDFS REST API" of Hadoop 3.4. Errors are Hadoop's
//! `RemoteException`, with the status that Hadoop's server gives to the exception.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};

use bytes::Bytes;
use evenfall_files_machine::namespace::{Inode, InodeKind};
use evenfall_files_machine::{FilesRefusal, InodeId, config};
use evenfall_runtime::http::streams::{Content, StreamAnswer};
use evenfall_runtime::http::{self, Answered, ForeignRequest, StatusCode};
use evenfall_runtime::listing::is_deceptive;
use serde_json::{Value, json};

/// The prefix of every path.
pub const PREFIX: &str = "/webhdfs/v1";
/// The prefix of the path of every order of an operator.
pub const ORDERS: &str = "/evenfall";
/// Longest name of a user or a group, in bytes. Linux allows 32.
const USER_BYTES_MAX: usize = 64;
/// Copies of a file whose creator names no number, as in Hadoop.
pub const REPLICATION: u64 = 3;

/// An exception of Hadoop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebHdfsException {
    status: StatusCode,
    class: Cow<'static, str>,
    message: String,
}

impl WebHdfsException {
    fn new(status: StatusCode, class: &'static str, message: impl Into<String>) -> Self {
        Self { status, class: class.into(), message: message.into() }
    }

    /// The exception with which another server has refused, in the words of that server.
    pub fn of(answer: Answered) -> Self {
        let status = answer.status;
        let value: Value = answer
            .text()
            .ok()
            .and_then(|text| serde_json::from_str(&text).ok())
            .unwrap_or_default();
        let word = |name: &str| value["RemoteException"][name].as_str().map(str::to_owned);
        match (word("javaClassName"), word("message")) {
            (Some(class), Some(message)) => Self { status, class: class.into(), message },
            _ => Self::again(format!("another server answers {status}")),
        }
    }

    /// An argument that is refused.
    pub fn argument(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "java.lang.IllegalArgumentException", message)
    }

    /// An operation that these servers do not have.
    pub fn unsupported(message: impl Into<String>) -> Self {
        let class = "java.lang.UnsupportedOperationException";
        Self::new(StatusCode::BAD_REQUEST, class, message)
    }

    /// The order is the superuser's.
    pub fn not_superuser(user: &str) -> Self {
        let class = "org.apache.hadoop.security.AccessControlException";
        let what = format!("Access denied for user {user}. Superuser privilege is required");
        Self::new(StatusCode::FORBIDDEN, class, what)
    }

    /// The request failed for another reason.
    pub fn io(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "java.io.IOException", message)
    }

    /// The request had no effect, and may succeed later.
    pub fn again(message: impl Into<String>) -> Self {
        let class = "org.apache.hadoop.ipc.RetriableException";
        Self::new(StatusCode::FORBIDDEN, class, message)
    }
}

impl From<ForeignRequest> for WebHdfsException {
    fn from(why: ForeignRequest) -> Self {
        let class = "org.apache.hadoop.security.AccessControlException";
        Self::new(StatusCode::FORBIDDEN, class, why.to_string())
    }
}

impl From<FilesRefusal> for WebHdfsException {
    fn from(refusal: FilesRefusal) -> Self {
        let (forbidden, words) = (StatusCode::FORBIDDEN, refusal.to_string());
        let missing = "java.io.FileNotFoundException";
        match refusal {
            FilesRefusal::NotFound(_) => Self::new(StatusCode::NOT_FOUND, missing, words),
            FilesRefusal::IsDirectory(path) => {
                let words = format!("Path is not a file: {path}");
                Self::new(StatusCode::NOT_FOUND, missing, words)
            }
            FilesRefusal::Denied(_) => {
                Self::new(forbidden, "org.apache.hadoop.security.AccessControlException", words)
            }
            FilesRefusal::Exists(_) => {
                Self::new(forbidden, "org.apache.hadoop.fs.FileAlreadyExistsException", words)
            }
            FilesRefusal::NotDirectory(_) => {
                Self::new(forbidden, "org.apache.hadoop.fs.ParentNotDirectoryException", words)
            }
            FilesRefusal::NotEmpty(_) => {
                let class = "org.apache.hadoop.fs.PathIsNotEmptyDirectoryException";
                Self::new(forbidden, class, words)
            }
            FilesRefusal::LeaseHeld(_) => {
                let class = "org.apache.hadoop.hdfs.protocol.AlreadyBeingCreatedException";
                Self::new(forbidden, class, words)
            }
            FilesRefusal::Recovering(_) => {
                let class = "org.apache.hadoop.hdfs.protocol.RecoveryInProgressException";
                Self::new(forbidden, class, words)
            }
            FilesRefusal::LeaseLost(_) => {
                let class = "org.apache.hadoop.hdfs.server.namenode.LeaseExpiredException";
                Self::new(forbidden, class, words)
            }
            FilesRefusal::Invalid(_) | FilesRefusal::Length => Self::argument(words),
            FilesRefusal::Changed(_) => {
                Self::new(forbidden, "java.util.ConcurrentModificationException", words)
            }
            // Hadoop's clients repeat a request by themselves after this class of exception.
            FilesRefusal::Busy
            | FilesRefusal::Again
            | FilesRefusal::NotPrimary
            | FilesRefusal::NotHere
            | FilesRefusal::TooFewServers(..)
            | FilesRefusal::SilentKeepers(_) => Self::again(words),
            _ => Self::io(words),
        }
    }
}

impl From<WebHdfsException> for StreamAnswer {
    fn from(exception: WebHdfsException) -> Self {
        let name = exception.class.rsplit('.').next().unwrap_or_default();
        let WebHdfsException { status, class, message } = &exception;
        let value = json!({ "RemoteException": {
            "exception": name, "javaClassName": class, "message": message,
        } });
        json_with(*status, &value)
    }
}

fn json_with(status: StatusCode, value: &Value) -> StreamAnswer {
    StreamAnswer {
        status,
        headers: json_headers(),
        content: Content::Whole(value.to_string().into()),
    }
}

/// The headers of an answer of JSON.
pub fn json_headers() -> Vec<(&'static str, String)> {
    vec![("content-type", "application/json".to_owned())]
}

/// An answer of JSON to a request that succeeded.
pub fn json_of(value: &Value) -> StreamAnswer {
    json_with(StatusCode::OK, value)
}

/// An answer without a body.
pub fn empty(status: StatusCode) -> StreamAnswer {
    StreamAnswer { status, headers: Vec::new(), content: Content::Whole(Bytes::new()) }
}

/// An answer that sends the client to another URL.
pub fn redirect_to(url: &str) -> StreamAnswer {
    let mut answer = empty(StatusCode::TEMPORARY_REDIRECT);
    answer.headers.push(("location", url.to_owned()));
    answer
}

/// Text without its escapes; `None` when an escape is cut or the text is no UTF-8.
fn unescaped(text: &str, plus_is_space: bool) -> Option<String> {
    let (mut out, mut bytes) = (Vec::with_capacity(text.len()), text.bytes());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                (digit()? << 4 | digit()?) as u8
            }
            b'+' if plus_is_space => b' ',
            other => other,
        });
    }
    String::from_utf8(out).ok()
}

/// Text with escapes for everything that a path or an argument cannot have.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                out.push(byte.into());
            }
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

/// A request of WebHDFS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebHdfsRequest {
    /// The path of the file, out of its escapes.
    pub path: String,
    /// The operation in capitals.
    pub op: String,
    /// The client's address.
    pub from: IpAddr,
    arguments: Vec<(String, String)>,
}

impl WebHdfsRequest {
    /// Reads the path and the arguments of a request. `hint` is told when the request is not below
    /// [`PREFIX`].
    ///
    /// # Errors
    /// When the request has no operation, or an escape is wrong.
    pub fn read(request: &http::Request, hint: &str) -> Result<Self, WebHdfsException> {
        let read = Self::parse(&request.path, &request.query, hint)?;
        Ok(Self { from: request.from.ip().to_canonical(), ..read })
    }

    /// Reads an order of an operator, whose path is below [`ORDERS`].
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn order(request: &http::Request) -> Result<Self, WebHdfsException> {
        let query = format!("{}&op=order", request.query);
        Self::parse_below(ORDERS, &request.path, &query, "there is no such order")
    }

    fn parse(path: &str, query: &str, hint: &str) -> Result<Self, WebHdfsException> {
        Self::parse_below(PREFIX, path, query, hint)
    }

    fn parse_below(
        prefix: &str,
        path: &str,
        query: &str,
        hint: &str,
    ) -> Result<Self, WebHdfsException> {
        let rest = path.strip_prefix(prefix);
        let rest = rest.filter(|rest| rest.is_empty() || rest.starts_with('/'));
        let rest = rest.ok_or_else(|| WebHdfsException::unsupported(hint))?;
        let wrong = || WebHdfsException::argument("an escape of the request is cut or is no UTF-8");
        let path = unescaped(rest, false).ok_or_else(wrong)?;
        let path = if path.is_empty() { "/".to_owned() } else { path };
        let mut arguments = Vec::new();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let name = unescaped(name, true).ok_or_else(wrong)?.to_ascii_lowercase();
            arguments.push((name, unescaped(value, true).ok_or_else(wrong)?));
        }
        let from = Ipv4Addr::UNSPECIFIED.into();
        let mut request = Self { path, op: String::new(), from, arguments };
        request.op = request.text("op").unwrap_or_default().to_ascii_uppercase();
        match request.op.is_empty() {
            true => Err(WebHdfsException::argument("there is no argument op")),
            false => Ok(request),
        }
    }

    /// An argument as text.
    pub fn text(&self, name: &str) -> Option<&str> {
        let found = self.arguments.iter().find(|(of, _)| of == name);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// An argument that is a number.
    ///
    /// # Errors
    /// When the argument is no number, or is negative.
    pub fn number(&self, name: &str) -> Result<Option<u64>, WebHdfsException> {
        let wrong = |text: &str| {
            let text: String = text.chars().take(50).collect();
            WebHdfsException::argument(format!(
                "Invalid value for webhdfs parameter {name:?}: {text:?}"
            ))
        };
        self.text(name).map(|text| text.parse().map_err(|_| wrong(text))).transpose()
    }

    /// An argument that is true or false, and false when it is missing.
    ///
    /// # Errors
    /// When the argument is another word.
    pub fn flag(&self, name: &str) -> Result<bool, WebHdfsException> {
        match self.text(name).map(str::to_ascii_lowercase).as_deref() {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => {
                let what = format!("Invalid value for webhdfs parameter {name:?}: true or false");
                Err(WebHdfsException::argument(what))
            }
        }
    }

    /// The argument `permission`: rights in octal digits.
    ///
    /// # Errors
    /// When the argument is no octal number, or is above 1777.
    pub fn mode(&self, default: u16) -> Result<u16, WebHdfsException> {
        let Some(text) = self.text("permission") else { return Ok(default) };
        let mode = u16::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o1777);
        mode.ok_or_else(|| {
            let what = "Invalid value for webhdfs parameter \"permission\": octal, up to 1777";
            WebHdfsException::argument(what)
        })
    }

    /// Copies that a file shall have.
    ///
    /// # Errors
    /// When the argument is no number, or a file may not have so many.
    pub fn replication(&self) -> Result<u16, WebHdfsException> {
        let asked = self.number("replication")?.unwrap_or(REPLICATION);
        let most = config::REPLICATION_MAX;
        let fits = u16::try_from(asked).ok().filter(|asked| (1..=most).contains(asked));
        fits.ok_or_else(|| WebHdfsException::argument(format!("a file has 1 to {most} copies")))
    }

    /// The name of a user or a group.
    ///
    /// # Errors
    /// When the name is too long, or has control characters. A name with a line break would look
    /// like two lines of a listing.
    pub fn name(&self, argument: &str) -> Result<Option<&str>, WebHdfsException> {
        match self.text(argument) {
            Some(name) if name.chars().any(is_deceptive) => {
                let what = format!("the argument {argument} has control characters: {name:?}");
                Err(WebHdfsException::argument(what))
            }
            Some(name) if name.len() > USER_BYTES_MAX => {
                let what = format!("the argument {argument} has more than {USER_BYTES_MAX} bytes");
                Err(WebHdfsException::argument(what))
            }
            name => Ok(name),
        }
    }

    /// The user who asks: `dr.who`, as in Hadoop, when the client names no user.
    ///
    /// # Errors
    /// As [`name`](Self::name).
    pub fn user(&self) -> Result<&str, WebHdfsException> {
        Ok(self.name("user.name")?.unwrap_or("dr.who"))
    }
}

/// The status of an inode. `suffix` is its name in a listing.
pub fn status(id: InodeId, inode: &Inode, suffix: &str) -> Value {
    let (kind, length, replication, block, children) = match &inode.kind {
        InodeKind::File(file) => ("FILE", file.length, file.replication, file.block_bytes, 0),
        InodeKind::Directory(entries) => ("DIRECTORY", 0, 0, 0, entries.len()),
    };
    json!({
        "accessTime": inode.accessed_ms,
        "blockSize": block,
        "childrenNum": children,
        "fileId": id.0,
        "group": inode.group,
        "length": length,
        "modificationTime": inode.modified_ms,
        "owner": inode.owner,
        "pathSuffix": suffix,
        "permission": format!("{:o}", inode.mode),
        "replication": replication,
        "storagePolicy": 0,
        "type": kind,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_with_their_escapes() {
        let read = |path: &str, query: &str| WebHdfsRequest::parse(path, query, "try elsewhere");
        let request = read("/webhdfs/v1/a%20b%2Fc+d", "op=open&Offset=7&user.name=ann+b").unwrap();
        assert_eq!((request.path.as_str(), request.op.as_str()), ("/a b/c+d", "OPEN"));
        assert_eq!((request.number("offset"), request.user()), (Ok(Some(7)), Ok("ann b")));
        assert_eq!(read("/webhdfs/v1", "op=X").unwrap().path, "/");
        assert_eq!(unescaped(&escaped("/ä b%"), false).as_deref(), Some("/ä b%"));
    }

    #[test]
    fn requests_that_cannot_be_read_have_the_exceptions_of_hadoop() {
        let read = |path: &str, query: &str| WebHdfsRequest::parse(path, query, "try elsewhere");
        let class =
            |path: &str, query: &str| read(path, query).map_err(|wrong| wrong.class.into_owned());
        let unsupported = Err("java.lang.UnsupportedOperationException".to_owned());
        assert_eq!(class("/other", "op=OPEN"), unsupported);
        assert_eq!(class("/webhdfs/v1x", "op=OPEN"), unsupported);
        let argument = Err("java.lang.IllegalArgumentException".to_owned());
        for (path, query) in
            [("/%4", "op=OPEN"), ("/%ff", "op=OPEN"), ("/", ""), ("/", "op=OPEN&x=%zz")]
        {
            assert_eq!(class(&format!("{PREFIX}{path}"), query), argument, "{path} {query}");
        }
        let wrong = "op=X&offset=-1&overwrite=yes&permission=999&replication=0&length=9e9";
        let wrong = format!("{wrong}&user.name={}&owner=a%0ab&group=%1b%5b31m", "x".repeat(65));
        let wrong = read(PREFIX, &wrong).unwrap();
        let is_wrong = |error: Option<WebHdfsException>| {
            assert_eq!(error.map(|e| e.status), Some(StatusCode::BAD_REQUEST));
        };
        is_wrong(wrong.number("offset").err());
        is_wrong(wrong.number("length").err());
        is_wrong(wrong.flag("overwrite").err());
        is_wrong(wrong.mode(0).err());
        is_wrong(wrong.replication().err());
        is_wrong(wrong.user().err());
        is_wrong(wrong.name("owner").err());
        is_wrong(wrong.name("group").err());
    }
}
