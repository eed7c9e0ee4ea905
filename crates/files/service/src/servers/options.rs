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
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// The host refused a socket or a thread.
    #[error(transparent)]
    Host(#[from] evenfall_host::Error),
    /// A file or an address failed. The text names the action that failed.
    #[error("{0}: {1}")]
    Io(String, std::io::Error),
    /// The disk failed.
    #[error(transparent)]
    Disk(evenfall_core::StorageError),
    /// The machine refused the log at this path. The log stays as it is.
    #[error("{}: {error}", .0.display(), error = .1)]
    Log(PathBuf, evenfall_files_machine::FilesError),
    /// The address lies beyond loopback, and the server has no key.
    #[error(
        "{0} lies beyond loopback, which needs a key: give run.key_file, or an address in \
         127.0.0.0/8"
    )]
    Unkeyed(SocketAddr),
    /// The address lies beyond loopback, and the client has no key.
    #[error(
        "{0} lies beyond loopback, and without the key everything would be sent in clear: \
         give --config with the settings of the cluster, or --open if that is meant (for a \
         store's objects, FILES_ALLOW_HTTP=true)"
    )]
    Clear(SocketAddr),
    /// The name of a server has no address.
    #[error(transparent)]
    Address(AddressError),
    /// The server refused a request. The texts are the name and the words of the exception.
    #[error("{1}")]
    Refused(String, String),
    /// No server answered. The text names the server that was asked.
    #[error("{0} does not answer; is `evenfall run files` running?")]
    Unanswered(String, #[source] RequestError),
    /// A server answered what no server of WebHDFS answers.
    #[error("{0}")]
    Answer(String),
}

impl ServiceError {
    /// The connection to a server has ended before its answer.
    pub(crate) fn cut(whom: &str, error: std::io::Error) -> Self {
        Self::Unanswered(whom.to_owned(), RequestError::Connection(error))
    }
}
