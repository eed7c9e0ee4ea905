//! Addresses as people write them: a host and a port, where the host is an IP address or a name.
//!
//! A name is looked up where the address is taken, by the resolver of this host: `/etc/hosts`, then
//! DNS. A name may have several addresses, and the resolver may give them in another order each
//! time. All processes of a run must choose the same one, so [`look_up`] takes the least IPv4
//! address, and the least IPv6 address of a name that has no IPv4 address. `localhost` is therefore
//! 127.0.0.1 on a host that has both.
//!
//! A process that has lost a peer looks the peer's name up again with [`HostPort::look_up`],
//! because the peer may have come back at another address, as the pods of Kubernetes do.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

/// Bytes of a name. DNS allows no longer name.
const NAME_BYTES_MAX: usize = 253;

/// Why a text has no address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The text is no host with a port.
    #[error(
        "{0:.80?}: give an IP address or a name, and a port, such as \"10.0.0.2:9000\" or \
         \"[::1]:9000\" or \"host.example:9000\""
    )]
    Form(String),
    /// The resolver gives no address for the name of the host.
    #[error("the name {0} has no address here: {1}")]
    Name(String, io::Error),
    /// The text is no range of ports.
    #[error("{0:.80?}: give the first and the last port, such as \"40000-40999\"")]
    Ports(String),
}

/// A host and a port as they were written. The host may be a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostPort(String);

impl HostPort {
    /// The address at this moment. A name is looked up, which may take seconds.
    ///
    /// # Errors
    /// [`AddressError::Name`].
    pub fn look_up(&self) -> Result<SocketAddr, AddressError> {
        look_up(&self.0)
    }

    /// Whether the host is a name, whose address may change.
    pub fn is_name(&self) -> bool {
        self.0.parse::<SocketAddr>().is_err()
    }

    /// The host, without the brackets of an IPv6 address.
    pub fn host(&self) -> &str {
        let host = self.0.rsplit_once(':').map_or(self.0.as_str(), |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }
}

impl FromStr for HostPort {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        match text.parse::<SocketAddr>() {
            Ok(_) => Ok(Self(text.to_owned())),
            Err(_) => name_and_port(text).map(|_| Self(text.to_owned())),
        }
    }
}

impl TryFrom<String> for HostPort {
    type Error = AddressError;

    fn try_from(text: String) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl From<HostPort> for String {
    fn from(address: HostPort) -> Self {
        address.0
    }
}

impl From<SocketAddr> for HostPort {
    fn from(address: SocketAddr) -> Self {
        Self(address.to_string())
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The local ports of a client from which a connection comes, as `FIRST-LAST`. Switches may carry
/// the connections from some ports over one path, and those from other ports over another path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SourcePorts {
    /// The first port.
    pub first: u16,
    /// The last port.
    pub last: u16,
}

impl FromStr for SourcePorts {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let ports = text.split_once('-').and_then(|(first, last)| {
            let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            Some(Self { first, last })
        });
        let ports = ports.filter(|ports| 0 < ports.first && ports.first <= ports.last);
        ports.ok_or_else(|| AddressError::Ports(text.to_owned()))
    }
}

impl TryFrom<String> for SourcePorts {
    type Error = AddressError;

    fn try_from(text: String) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl From<SourcePorts> for String {
    fn from(ports: SourcePorts) -> Self {
        ports.to_string()
    }
}

impl fmt::Display for SourcePorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// Splits `NAME:PORT`. A name whose last part is a number is no name but a mistyped IPv4 address,
/// which the C library would complete to another address.
fn name_and_port(text: &str) -> Result<(&str, u16), AddressError> {
    let is_name = |name: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let last = name.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
        name.len() <= NAME_BYTES_MAX
            && name.bytes().all(is_plain)
            && last.bytes().any(|byte| !byte.is_ascii_digit())
    };
    let found = text.rsplit_once(':').filter(|(name, _)| is_name(name));
    let found = found.and_then(|(name, port)| Some((name, port.parse().ok()?)));
    found.ok_or_else(|| AddressError::Form(text.to_owned()))
}

/// The address of `HOST:PORT`. A name is looked up, which may take seconds.
///
/// # Errors
/// [`AddressError`].
pub fn look_up(text: &str) -> Result<SocketAddr, AddressError> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let (name, port) = name_and_port(text)?;
    let failed = |error| AddressError::Name(name.to_owned(), error);
    let found = (name, port).to_socket_addrs().map_err(failed)?;
    let nothing = || failed(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    found.min_by_key(|address| (address.is_ipv6(), *address)).ok_or_else(nothing)
}

/// Reads an address of the settings, and looks up a name, for `#[serde(deserialize_with)]`.
///
/// # Errors
/// The words of [`AddressError`].
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(from)?;
    look_up(&text).map_err(serde::de::Error::custom)
}

/// As [`deserialize`], for an address that may be left out. The field also needs
/// `#[serde(default)]`.
///
/// # Errors
/// As [`deserialize`].
pub fn deserialize_optional<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<SocketAddr>, D::Error> {
    deserialize(from).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_ports_has_a_first_and_a_last_one() {
        let ports: SourcePorts = "40000-40999".parse().unwrap();
        assert_eq!((ports.first, ports.last), (40_000, 40_999));
        assert_eq!(ports.to_string(), "40000-40999");
        for wrong in ["", "40000", "2-1", "0-5", "1-70000", "a-b"] {
            let error = wrong.parse::<SourcePorts>().unwrap_err().to_string();
            assert!(error.contains("the first and the last port"), "{wrong}: {error}");
        }
    }

    #[test]
    fn names_are_looked_up_and_addresses_are_taken_as_they_are() {
        for (text, address) in [
            ("10.0.0.2:9000", "10.0.0.2:9000"),
            ("[::1]:0", "[::1]:0"),
            ("localhost:9001", "127.0.0.1:9001"),
            ("LocalHost:9001", "127.0.0.1:9001"),
        ] {
            assert_eq!(look_up(text).map(|a| a.to_string()).unwrap(), address, "{text}");
            assert_eq!(text.parse::<HostPort>().unwrap().to_string(), text);
        }
        assert_eq!("[::1]:1".parse::<HostPort>().unwrap().host(), "::1");
        assert!("localhost:1".parse::<HostPort>().unwrap().is_name());
    }

    #[test]
    fn the_error_says_which_name_has_no_address() {
        let error = look_up("no-such-host.invalid:9000").unwrap_err().to_string();
        assert!(error.starts_with("the name no-such-host.invalid has no address"), "{error}");
    }

    #[test]
    fn a_text_that_is_no_host_with_a_port_is_refused_by_its_form() {
        let texts =
            ["", "9000", ":9000", "10.0.0.300:9000", "10.1:9000", "::1:9000", "a:b", "a b:1"];
        for text in texts.into_iter().chain(["http://a:1", "a:70000", "fe80::1%eth0:1", "a/b:1"]) {
            assert!(matches!(look_up(text), Err(AddressError::Form(_))), "{text}");
            assert!(text.parse::<HostPort>().is_err(), "{text}");
        }
    }
}
