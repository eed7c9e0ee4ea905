//! The settings of gateways: the table `[gateway]`, and the keys of `[[node]]` that say to whom a
//! gateway hands messages on.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use evenfall_feed_formats::mold::HEADER_BYTES;
use evenfall_feed_formats::mold::replay::{ReplayLimits, RequestLimits};
use evenfall_runtime::address::HostPort;
use evenfall_runtime::settings::check::within;
use evenfall_runtime::settings::{SettingsDocument, SettingsError, SettingsMistake};
use serde::{Deserialize, Serialize};

use crate::settings::{RoleName, Settings};

#[cfg(test)]
mod tests;

/// Bytes of a packet. Below 100 no message of any venue fits, and no datagram is longer than the
/// upper end.
const PACKET_BYTES: RangeInclusive<usize> = 100..=evenfall_port::DATAGRAM_BYTES_MAX;
/// Time between two heartbeats.
const HEARTBEAT_MIN: Duration = Duration::from_millis(1);
/// Participants of a gateway. Every one gets a copy of every message, and the last copy of ten
/// thousand leaves milliseconds after the first.
const PARTICIPANTS_MAX: usize = 1_024;
/// Answers a second, to one address and to all.
const RATE: RangeInclusive<u32> = 1..=1_000_000;
/// Addresses whose rate of requests is remembered.
const REQUESTERS_MAX: usize = 4_096;

/// How messages are handed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HandoffProtocol {
    /// As MoldUDP64: several messages in a packet, sequence numbers, heartbeats, end of session,
    /// requests for messages again.
    #[default]
    Mold,
    /// A datagram a message, behind a head of 40 bytes (`docs/wire/gateway.md`).
    Plain,
    /// The same, sealed for each participant under a key of its own.
    Sealed,
}

impl fmt::Display for HandoffProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mold => "mold",
            Self::Plain => "plain",
            Self::Sealed => "sealed",
        })
    }
}

/// A range of IP addresses, such as `10.0.0.0/24`, or a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AddressRange {
    network: IpAddr,
    /// Leading bits that all addresses of the range share.
    bits: u8,
}

impl AddressRange {
    /// The range of one address.
    pub fn of(address: IpAddr) -> Self {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        Self { network: address, bits }
    }

    /// Whether the address lies in the range.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.network, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let other_bits = network.to_bits() ^ address.to_bits();
                other_bits.leading_zeros() >= self.bits.into()
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let other_bits = network.to_bits() ^ address.to_bits();
                other_bits.leading_zeros() >= self.bits.into()
            }
            _ => false,
        }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { network, bits } = self;
        match *self == Self::of(*network) {
            true => write!(f, "{network}"),
            false => write!(f, "{network}/{bits}"),
        }
    }
}

impl From<AddressRange> for String {
    fn from(range: AddressRange) -> Self {
        range.to_string()
    }
}

impl FromStr for AddressRange {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, SettingsError> {
        let (network, bits) = text.split_once('/').map_or((text, None), |(n, b)| (n, Some(b)));
        let whole = network.parse().map(Self::of).ok();
        let range = match bits {
            None => whole,
            Some(bits) => whole.and_then(|whole| {
                let bits = bits.parse().ok().filter(|bits| *bits <= whole.bits)?;
                Some(Self { bits, ..whole })
            }),
        };
        range.ok_or_else(|| {
            SettingsError::new(format!(
                "{text:.50?}: give an IP address or a range of them, such as \"10.0.0.0/24\""
            ))
        })
    }
}

impl TryFrom<String> for AddressRange {
    type Error = SettingsError;

    fn try_from(text: String) -> Result<Self, SettingsError> {
        text.parse()
    }
}

/// The table `[gateway]`: what all gateways of a run have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GatewaySettings {
    /// How messages are handed on: `mold`, `plain` or `sealed`.
    pub protocol: HandoffProtocol,
    /// Longest MoldUDP64 packet. A message that fits no packet is counted and not handed on.
    pub packet_bytes: usize,
    /// How often a silent gateway says that it is alive.
    #[serde(with = "humantime_serde")]
    pub heartbeat: Duration,
    /// How long the end is announced and requests are answered, counted from the end or from the
    /// last answer.
    #[serde(with = "humantime_serde")]
    pub linger: Duration,
    /// Messages that are kept for requests, per tree.
    pub ring_messages: usize,
    /// Bytes of messages that are kept for requests, per tree.
    pub ring_bytes: usize,
    /// Answers a second to one address.
    pub requests_per_second: u32,
    /// Answers to one address at once.
    pub request_burst: u32,
    /// Answers a second to all addresses together.
    pub requests_per_second_total: u32,
}

impl Default for GatewaySettings {
    fn default() -> Self {
        Self {
            protocol: HandoffProtocol::Mold,
            // The Ethernet MTU without the headers of IPv4 and UDP, and some room for tunnels.
            packet_bytes: 1_400,
            // As in the specification of MoldUDP64.
            heartbeat: Duration::from_secs(1),
            linger: Duration::from_secs(2),
            // 30 s of a feed of 35,000 messages a second, in 72 MiB with 40-byte messages.
            ring_messages: 1 << 20,
            ring_bytes: 64 << 20,
            // A participant that lost a second of that feed has it again in .6 s.
            requests_per_second: 2_000,
            request_burst: 256,
            // 28 MB a second of packets of 1,400 bytes: a fourth of a link of 1 Gb/s.
            requests_per_second_total: 20_000,
        }
    }
}

impl GatewaySettings {
    /// How much is kept for requests.
    pub fn replay_limits(&self) -> ReplayLimits {
        ReplayLimits { messages_max: self.ring_messages, bytes_max: self.ring_bytes }
    }

    /// How fast requests are answered.
    pub fn request_limits(&self) -> RequestLimits {
        RequestLimits {
            per_second: self.requests_per_second,
            burst: self.request_burst,
            total_per_second: self.requests_per_second_total,
            requesters_max: REQUESTERS_MAX,
        }
    }

    fn check(&self) -> Result<(), SettingsMistake> {
        within("gateway.packet_bytes", self.packet_bytes, &PACKET_BYTES)?;
        within("gateway.requests_per_second", self.requests_per_second, &RATE)?;
        within("gateway.request_burst", self.request_burst, &RATE)?;
        within("gateway.requests_per_second_total", self.requests_per_second_total, &RATE)?;
        if self.heartbeat < HEARTBEAT_MIN {
            let why = format!(
                "gateway.heartbeat = \"{:?}\": must be {HEARTBEAT_MIN:?} or more",
                self.heartbeat
            );
            return Err(SettingsMistake::new("gateway.heartbeat", why));
        }
        for (key, value) in [("ring_messages", self.ring_messages), ("ring_bytes", self.ring_bytes)]
        {
            if value == 0 {
                let why = format!(
                    "gateway.{key} = 0: must be above 0; leave `rerequest` out of the node where \
                     no message is to be sent again"
                );
                return Err(SettingsMistake::new(format!("gateway.{key}"), why));
            }
        }
        Ok(())
    }
}

/// The keys of a `[[node]]` with the role `gateway`.
#[derive(Clone, Debug, Deserialize)]
struct GatewayNodeKeys {
    name: String,
    role: RoleName,
    #[serde(default)]
    participants: Vec<HostPort>,
    #[serde(default)]
    participant_keys: Vec<PathBuf>,
    #[serde(default, deserialize_with = "evenfall_runtime::address::deserialize_optional")]
    rerequest: Option<SocketAddr>,
    #[serde(default)]
    requesters: Vec<AddressRange>,
    interface: Option<Ipv4Addr>,
}

/// One gateway: to whom it hands messages on, and who may ask for them again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayNode {
    /// Name of the node.
    pub name: String,
    /// Where the messages of the first tree go: hosts and multicast groups. Those of tree `n` go to
    /// the port `n` above.
    pub participants: Vec<SocketAddr>,
    /// Files with the keys of the participants, in their order, where messages are sealed.
    pub participant_keys: Vec<PathBuf>,
    /// Where requests are answered; `None` answers none.
    pub rerequest: Option<SocketAddr>,
    /// Who may ask.
    pub requesters: Vec<AddressRange>,
    /// The interface over which groups are reached.
    pub interface: Option<Ipv4Addr>,
}

impl GatewayNode {
    /// The gateway of this name.
    ///
    /// # Errors
    /// The line and key of the first mistake, or that no gateway has this name.
    pub fn of(document: &SettingsDocument, name: &str) -> Result<Self, SettingsError> {
        let found = all_gateways(document)?.into_iter().find(|gateway| gateway.name == name);
        found.ok_or_else(|| SettingsError::new(format!("no gateway is called {name}")))
    }

    /// Where the messages of a tree go.
    pub fn participants_of(&self, tree: u32) -> Vec<SocketAddr> {
        let port = |port: u16| port.saturating_add(u16::try_from(tree).unwrap_or(u16::MAX));
        let all = self.participants.iter();
        all.map(|address| SocketAddr::new(address.ip(), port(address.port()))).collect()
    }

    /// Whether an address lies on this machine.
    fn is_near(&self, address: &SocketAddr) -> bool {
        let interface = self.interface.is_some_and(|interface| interface.is_loopback());
        address.ip().is_loopback() || address.ip().is_multicast() && interface
    }

    /// Whether all participants are on this machine.
    pub fn is_local(&self) -> bool {
        self.participants.iter().all(|address| self.is_near(address))
    }
}

/// The table `[gateway]` of a document.
///
/// # Errors
/// The line and key of the first mistake, and what is allowed.
pub fn table(document: &SettingsDocument) -> Result<GatewaySettings, SettingsError> {
    let settings: GatewaySettings = document.part("gateway")?;
    settings.check().map_err(|mistake| document.refuse(mistake))?;
    Ok(settings)
}

/// All gateways of a document.
///
/// # Errors
/// The line and key of the first mistake, and what is allowed.
pub fn all_gateways(document: &SettingsDocument) -> Result<Vec<GatewayNode>, SettingsError> {
    let protocol = table(document)?.protocol;
    let settings = Settings::of(document)?;
    let (trees, keyed) = (settings.course.trees, settings.run.is_keyed());
    let nodes: Vec<GatewayNodeKeys> = document.list("node")?;
    let mut gateways = Vec::new();
    for (at, keys) in nodes.into_iter().enumerate() {
        if keys.role != RoleName::Gateway {
            continue;
        }
        let key_of = |key: &str| format!("node.{at}.{key}");
        let refuse =
            |key: &str, why: String| document.refuse(SettingsMistake::new(key_of(key), why));
        let name = keys.name.clone();
        let found = keys.participants.iter().map(HostPort::look_up).collect::<Result<_, _>>();
        let participants = found.map_err(|error| {
            refuse("participants", format!("node {name}: participants: {error}"))
        })?;
        let GatewayNodeKeys { participant_keys, rerequest, requesters, interface, .. } = keys;
        let participant_keys =
            participant_keys.into_iter().map(|file| document.base().join(file)).collect();
        let mut gateway =
            GatewayNode { name, participants, participant_keys, rerequest, requesters, interface };
        gateway
            .check(protocol, trees, keyed)
            .map_err(|SettingsMistake { key, why }| refuse(&key, why))?;
        gateway.fill_requesters();
        gateways.push(gateway);
    }
    Ok(gateways)
}

impl GatewayNode {
    fn check(
        &self,
        protocol: HandoffProtocol,
        trees: u32,
        keyed: bool,
    ) -> Result<(), SettingsMistake> {
        let name = &self.name;
        self.check_participants(trees)?;
        self.check_keys(protocol)?;
        let given = self.participants.iter().map(|address| ("participants", address));
        let given = given.chain(self.rerequest.iter().map(|address| ("rerequest", address)));
        for (key, address) in given {
            if !keyed && !self.is_near(address) {
                let why = format!(
                    "node {name}: {key} = {address}: without a key nothing leaves loopback, and a \
                     gateway has no feed that others may not read; set run.key_file, or an address \
                     in 127.0.0.0/8"
                );
                return Err(SettingsMistake::new(key, why));
            }
        }
        let Some(rerequest) = self.rerequest else { return Ok(()) };
        if protocol != HandoffProtocol::Mold {
            let why = format!(
                "node {name}: rerequest = {rerequest}: {protocol} datagrams have no requests; set \
                 gateway.protocol = \"mold\", or leave it out"
            );
            return Err(SettingsMistake::new("rerequest", why));
        }
        let has_group = self.participants.iter().any(|address| address.ip().is_multicast());
        if has_group && self.requesters.is_empty() && !rerequest.ip().is_loopback() {
            let why = format!(
                "node {name}: requesters: the members of a multicast group are not known, and a \
                 server that answers everybody can be made to flood anybody; list who may ask, \
                 such as requesters = [\"10.0.0.0/24\"]"
            );
            return Err(SettingsMistake::new("rerequest", why));
        }
        Ok(())
    }

    /// Checks that each participant has a key where messages are sealed, and none elsewhere.
    fn check_keys(&self, protocol: HandoffProtocol) -> Result<(), SettingsMistake> {
        let (name, wanted) = (&self.name, self.participants.len());
        let (found, is_sealed) = (self.participant_keys.len(), protocol == HandoffProtocol::Sealed);
        let why = match (is_sealed, found) {
            (true, found) if found == wanted => return Ok(()),
            (false, 0) => return Ok(()),
            (true, _) => format!(
                "node {name}: participant_keys names {found} files, and there are {wanted} \
                 participants: give each a key of its own, made by `evenfall key new`"
            ),
            (false, _) => format!(
                "node {name}: participant_keys: {protocol} datagrams are not sealed; set \
                 gateway.protocol = \"sealed\", or leave it out"
            ),
        };
        Err(SettingsMistake::new("participant_keys", why))
    }

    fn check_participants(&self, trees: u32) -> Result<(), SettingsMistake> {
        let name = &self.name;
        let refuse =
            |why: String| Err(SettingsMistake::new("participants", format!("node {name}: {why}")));
        let Some(first) = self.participants.first() else {
            return refuse(
                "participants: to whom shall the gateway hand messages on? Give hosts or multicast \
                 groups, such as participants = [\"10.0.0.8:7500\", \"239.1.1.1:7500\"]"
                    .to_owned(),
            );
        };
        if self.participants.len() > PARTICIPANTS_MAX {
            let count = self.participants.len();
            return refuse(format!(
                "{count} participants: {PARTICIPANTS_MAX} at most; start another gateway, or hand \
                 on to a multicast group"
            ));
        }
        for (at, address) in self.participants.iter().enumerate() {
            if address.is_ipv4() != first.is_ipv4() {
                return refuse(format!(
                    "participants {first} and {address}: one gateway has either IPv4 or IPv6 \
                     participants"
                ));
            }
            if self.participants[..at].contains(address) {
                return refuse(format!("participant {address} is listed twice"));
            }
            let last = u32::from(address.port()) + trees - 1;
            if address.port() == 0 || last > u16::MAX.into() {
                return refuse(format!(
                    "participant {address}: each of the {trees} trees has a port, from this one \
                     on, and ports go from 1 to 65535"
                ));
            }
        }
        Ok(())
    }

    /// Lets the participants that are hosts ask, where nobody is listed. A server on loopback is
    /// reached from this machine alone.
    fn fill_requesters(&mut self) {
        let Some(rerequest) = self.rerequest.filter(|_| self.requesters.is_empty()) else { return };
        let hosts = self.participants.iter().filter(|address| !address.ip().is_multicast());
        self.requesters = hosts.map(|address| AddressRange::of(address.ip())).collect();
        self.requesters.dedup();
        if rerequest.ip().is_loopback() {
            let all = match rerequest.ip() {
                IpAddr::V4(_) => AddressRange { network: Ipv4Addr::LOCALHOST.into(), bits: 8 },
                IpAddr::V6(ip) => AddressRange::of(ip.into()),
            };
            self.requesters.push(all);
        }
    }
}

/// A packet holds its header and a message with its length.
const _: () = assert!(*PACKET_BYTES.start() > HEADER_BYTES + 2);
