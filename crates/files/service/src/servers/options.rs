//! The options with which a server starts, and the errors with which a server ends.

use std::net::SocketAddr;
use std::path::PathBuf;

use evenfall_core::SharedKey;
use evenfall_runtime::address::{AddressError, HostPort};
use evenfall_runtime::http::{AllowedHosts, Guard, RequestError};
use evenfall_runtime::settings::SettingsError;

use super::flows::FlowSteering;
use crate::settings::{FilesNode, FilesSettings, Settings};

/// The options with which a server starts.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address at which this server takes HTTP over TCP, and datagrams over UDP.
    pub listen: SocketAddr,
    /// The address at which other servers and clients reach this server.
    pub reached_at: SocketAddr,
    /// The address of the nameserver. A name is looked up again and again.
    pub nameserver: HostPort,
    /// The address of the flowserver, if there is one.
    pub flowserver: Option<HostPort>,
    /// The directory of the log, and of the chunks of a dataserver.
    pub directory: PathBuf,
    /// The name of this server for people.
    pub name: String,
    /// The rack of a dataserver's host.
    pub rack: String,
    /// The key under which datagrams and connections are sealed.
    pub key: Option<SharedKey>,
    /// The settings that all servers share.
    pub files: FilesSettings,
    /// The address at which the pages of the server stand too.
    pub http: Option<SocketAddr>,
    /// Names by which the settings address servers. Browsers may use them too.
    pub names: Vec<String>,
}

impl Options {
    /// The options of a server without a key.
    pub fn local(listen: SocketAddr, nameserver: SocketAddr, directory: PathBuf) -> Self {
        Self {
            listen,
            reached_at: listen,
            nameserver: nameserver.into(),
            flowserver: None,
            directory,
            name: String::new(),
            rack: String::new(),
            key: None,
            files: FilesSettings::default(),
            http: None,
            names: Vec::new(),
        }
    }

    /// The options of a server that the settings describe.
    ///
    /// # Errors
    /// When the settings have no nameserver, or the key cannot be read.
    pub fn of(settings: &Settings, node: &FilesNode) -> Result<Self, SettingsError> {
        let local = node.own.files.clone().unwrap_or_default();
        let nameserver = settings.nameserver()?.reached_by().clone();
        let reached_at = node.reached_at()?;
        Ok(Self {
            reached_at,
            nameserver,
            name: node.plain.name.clone(),
            rack: node.own.rack.clone().unwrap_or_default(),
            flowserver: settings.flowserver().cloned(),
            key: settings.key()?,
            files: settings.files.clone(),
            http: node.plain.http,
            names: settings.names(),
            ..Self::local(node.plain.address, reached_at, local)
        })
    }

    /// How the server reaches the flowserver, if there is one.
    pub(crate) fn steering(&self) -> Option<FlowSteering> {
        Some(FlowSteering::new(self.flowserver.clone()?, self.key.clone()))
    }

    /// Refuses addresses beyond loopback when the server has no key.
    pub(crate) fn check(&self) -> Result<(), ServiceError> {
        let own = [self.listen, self.reached_at, self.nameserver_at()?];
        self.check_others(&own)?;
        self.check_others(self.http.as_slice())
    }

    /// The address of the nameserver at this moment.
    ///
    /// # Errors
    /// When its name has no address.
    pub(crate) fn nameserver_at(&self) -> Result<SocketAddr, ServiceError> {
        self.nameserver.look_up().map_err(ServiceError::Address)
    }

    /// When the server has no key, refuses every address of `all` that lies beyond loopback.
    pub(crate) fn check_others(&self, all: &[SocketAddr]) -> Result<(), ServiceError> {
        let mut open = all.iter().copied().filter(|address| !address.ip().is_loopback());
        match open.next().filter(|_| self.key.is_none()) {
            Some(address) => Err(ServiceError::Unkeyed(address)),
            None => Ok(()),
        }
    }

    /// The names by which browsers may address this server.
    pub(crate) fn allowed_hosts(&self) -> AllowedHosts {
        let given = self.names.iter().chain(&self.files.hosts);
        given.fold(AllowedHosts::of_this_host(), |hosts, name| hosts.and(name))
    }

    /// The guard that admits clients with the key, if the server has a key.
    pub(crate) fn guard(&self) -> Option<Guard> {
        self.key.clone().map(|key| Guard { key, is_open: self.files.open })
    }
}

/// Why a server ended, or a client got no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServiceError {
    /// The host refused a socket or a thread.
    Host(evenfall_host::Error),
    /// A file or an address failed. The text names the action that failed.
    Io(String, std::io::Error),
    /// The disk failed.
    Disk(evenfall_core::StorageError),
    /// The machine refused the log at this path. The log stays as it is.
    Log(PathBuf, evenfall_files_machine::FilesError),
    /// The address lies beyond loopback, and the server has no key.
    Unkeyed(SocketAddr),
    /// The address lies beyond loopback, and the client has no key.
    Clear(SocketAddr),
    /// The name of a server has no address.
    Address(AddressError),
    /// The server refused a request. The texts are the name and the words of the exception.
    Refused(String, String),
    /// No server answered. The text names the server that was asked.
    Unanswered(String, RequestError),
    /// A server answered what no server of WebHDFS answers.
    Answer(String),
}

impl ServiceError {
    /// The connection to a server has ended before its answer.
    pub(crate) fn cut(whom: &str, error: std::io::Error) -> Self {
        Self::Unanswered(whom.to_owned(), RequestError::Connection(error))
    }
}

impl std::fmt::Display for ServiceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host(error) => error.fmt(f),
            Self::Io(what, error) => write!(f, "{what}: {error}"),
            Self::Disk(error) => error.fmt(f),
            Self::Log(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Unkeyed(address) => write!(
                f,
                "{address} lies beyond loopback, which needs a key: give run.key_file, or an \
                 address in 127.0.0.0/8"
            ),
            Self::Clear(address) => write!(
                f,
                "{address} lies beyond loopback, and without the key everything would be sent in \
                 clear: give --config with the settings of the cluster, or --open if that is meant \
                 (for a store's objects, FILES_ALLOW_HTTP=true)"
            ),
            Self::Address(error) => error.fmt(f),
            Self::Refused(_, what) | Self::Answer(what) => f.write_str(what),
            Self::Unanswered(whom, _) => {
                write!(f, "{whom} does not answer; is `evenfall run files` running?")
            }
        }
    }
}

impl std::error::Error for ServiceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The text of most errors already contains the text of the inner error, so the source is
        // the source of the inner error.
        match self {
            Self::Host(error) => error.source(),
            Self::Io(_, error) => error.source(),
            Self::Disk(error) => error.source(),
            Self::Log(_, error) => error.source(),
            Self::Unanswered(_, error) => Some(error),
            Self::Address(error) => error.source(),
            Self::Unkeyed(_) | Self::Clear(_) | Self::Refused(..) | Self::Answer(_) => None,
        }
    }
}

impl From<evenfall_host::Error> for ServiceError {
    fn from(error: evenfall_host::Error) -> Self {
        Self::Host(error)
    }
}
