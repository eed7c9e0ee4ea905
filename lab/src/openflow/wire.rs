//! The messages of OpenFlow 1.3 that set up paths and read counters, byte by byte. Numbers are
//! big-endian. The sections in the comments are those of the OpenFlow Switch Specification 1.3.5.
//!
//! ```text
//!  0         1         2         3         4                             8
//!  | version | kind    | length            | xid                         | body ...
//!    4                   of all, 8 or more   an answer repeats the one of its request
//! ```
//!
//! Decoding is total: any bytes give a message or [`Malformed`]. Kinds of messages, match fields
//! and instructions that this module does not know are skipped by their length.

use std::net::Ipv4Addr;

use evenfall_core::{Malformed, Reader};

/// The version of OpenFlow 1.3 on the wire.
pub const VERSION: u8 = 4;
/// Bytes of the header of every message.
pub const HEADER_BYTES: usize = 8;
/// Most bytes of a message, because its length has two bytes.
pub const MESSAGE_BYTES_MAX: usize = 65_535;
/// Bytes that are kept of the data of an echo or an error. Switches send 64 bytes at least of a
/// message that they refuse, and an echo carries no more than a time.
pub const DATA_BYTES_MAX: usize = 64;

/// The value of a port or a group that stands for any (7.2.1).
const ANY: u32 = 0xffff_ffff;
/// The value of a table that stands for all tables (7.3.4.1).
const TABLE_ALL: u8 = 0xff;

/// Which packets a rule is for. A field that is `None` matches any value. A match without fields
/// matches every packet, and any other match is for TCP over IPv4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketMatch {
    /// The sender's address.
    pub from: Option<Ipv4Addr>,
    /// The receiver's address.
    pub to: Option<Ipv4Addr>,
    /// The sender's TCP port.
    pub from_port: Option<u16>,
    /// The receiver's TCP port.
    pub to_port: Option<u16>,
}

/// A change of the rules of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowMod {
    /// Adds a rule, or replaces the rule with the same match and priority.
    Add(FlowRule),
    /// Removes all rules with this cookie.
    Delete {
        /// The name of the rules.
        cookie: u64,
    },
}

/// A rule: packets that match leave by a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRule {
    /// A name that the controller chooses. Counters and removals carry this name.
    pub cookie: u64,
    /// Which packets.
    pub fits: PacketMatch,
    /// Of several rules that match, the one with the highest priority counts.
    pub priority: u16,
    /// The switch removes the rule after so many seconds without a packet; 0 for never.
    pub idle_s: u16,
    /// The port by which the packets leave.
    pub port: u32,
}

/// Counters of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowStat {
    /// The name of the rule.
    pub cookie: u64,
    /// The priority of the rule.
    pub priority: u16,
    /// Which packets, as far as [`PacketMatch`] has the fields.
    pub fits: PacketMatch,
    /// Packets since the rule was added.
    pub packets: u64,
    /// Bytes of these packets with all headers.
    pub bytes: u64,
}

/// Counters of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortStat {
    /// The port.
    pub port: u32,
    /// Packets that came in and went out.
    pub packets: [u64; 2],
    /// Bytes that came in and went out.
    pub bytes: [u64; 2],
    /// Packets that were dropped on the way in and on the way out.
    pub dropped: [u64; 2],
}

/// The counters of an answer. A long answer comes in several messages, of which all but the last
/// one say that more will come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountersPart<T> {
    /// Counters, in the order of the switch.
    pub entries: Vec<T>,
    /// Whether more will come under the same xid.
    pub has_more: bool,
}

/// A message without its xid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwitchMessage {
    /// The first message of both sides.
    Hello,
    /// The other side refuses the message with the same xid.
    Error {
        /// What is wrong, by the tables of section 7.4.4.
        kind: u16,
        /// Details of `kind`.
        code: u16,
        /// The beginning of the refused message.
        data: Vec<u8>,
    },
    /// Asks whether the other side lives.
    EchoRequest(Vec<u8>),
    /// The answer, with the data of the request.
    EchoReply(Vec<u8>),
    /// Asks a switch for its name.
    FeaturesRequest,
    /// The name of a switch.
    Features {
        /// The name: 64 bits, which the owner of the switch sets.
        datapath: u64,
        /// Number of tables of rules.
        tables: u8,
    },
    /// A change of the rules.
    FlowMod(FlowMod),
    /// Asks for an answer when all earlier messages have been carried out.
    BarrierRequest,
    /// The answer.
    BarrierReply,
    /// Asks for the counters of all rules.
    FlowStatsRequest,
    /// Counters of rules.
    FlowStats(CountersPart<FlowStat>),
    /// Asks for the counters of all ports.
    PortStatsRequest,
    /// Counters of ports.
    PortStats(CountersPart<PortStat>),
    /// A message that this module does not know, by its kind.
    Other(u8),
}

mod kind {
    pub(super) const HELLO: u8 = 0;
    pub(super) const ERROR: u8 = 1;
    pub(super) const ECHO_REQUEST: u8 = 2;
    pub(super) const ECHO_REPLY: u8 = 3;
    pub(super) const FEATURES_REQUEST: u8 = 5;
    pub(super) const FEATURES_REPLY: u8 = 6;
    pub(super) const FLOW_MOD: u8 = 14;
    pub(super) const MULTIPART_REQUEST: u8 = 18;
    pub(super) const MULTIPART_REPLY: u8 = 19;
    pub(super) const BARRIER_REQUEST: u8 = 20;
    pub(super) const BARRIER_REPLY: u8 = 21;
}

/// Kinds of counters (7.3.5).
mod counters {
    pub(super) const FLOW: u16 = 1;
    pub(super) const PORT: u16 = 4;
}

/// Match fields of the basic class, with the bytes of their values (7.2.3.7).
mod field {
    pub(super) const CLASS: u16 = 0x8000;
    pub(super) const ETHER_TYPE: (u8, u8) = (5, 2);
    pub(super) const PROTOCOL: (u8, u8) = (10, 1);
    pub(super) const IPV4_FROM: (u8, u8) = (11, 4);
    pub(super) const IPV4_TO: (u8, u8) = (12, 4);
    pub(super) const TCP_FROM: (u8, u8) = (13, 2);
    pub(super) const TCP_TO: (u8, u8) = (14, 2);
}

const IPV4: u16 = 0x0800;
const TCP: u8 = 6;

fn u16(r: &mut Reader<'_>) -> Result<u16, Malformed> {
    r.array().map(u16::from_be_bytes)
}

fn u32(r: &mut Reader<'_>) -> Result<u32, Malformed> {
    r.array().map(u32::from_be_bytes)
}

fn u64(r: &mut Reader<'_>) -> Result<u64, Malformed> {
    r.array().map(u64::from_be_bytes)
}

/// The length of the first message of these bytes, when its header is there.
///
/// # Errors
/// When the header is that of another version, or its length is shorter than a header. A hello may
/// be of a later version, whose side then speaks ours (6.3.1).
pub fn length(bytes: &[u8]) -> Result<Option<usize>, Malformed> {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let is_hello = header[1] == kind::HELLO && header[0] >= VERSION;
    if header[0] != VERSION && !is_hello {
        return Err(Malformed { what: "not OpenFlow 1.3", offset: 0 });
    }
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if length < HEADER_BYTES {
        return Err(Malformed { what: "a length below that of the header", offset: 2 });
    }
    Ok(Some(length))
}

impl SwitchMessage {
    /// Decodes one whole message. Returns its xid too.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<(u32, Self), Malformed> {
        if length(bytes)? != Some(bytes.len()) {
            return Err(Malformed { what: "a message of another length", offset: 2 });
        }
        let mut r = Reader::new(bytes);
        let (_, kind, _, xid) = (r.u8()?, r.u8()?, u16(&mut r)?, u32(&mut r)?);
        let message = match kind {
            // The body lists versions. Both sides speak the lower version of the two headers.
            kind::HELLO => return Ok((xid, Self::Hello)),
            kind::ERROR => {
                let (kind, code) = (u16(&mut r)?, u16(&mut r)?);
                return Ok((xid, Self::Error { kind, code, data: data(&bytes[12..]) }));
            }
            kind::ECHO_REQUEST => return Ok((xid, Self::EchoRequest(data(&bytes[8..])))),
            kind::ECHO_REPLY => return Ok((xid, Self::EchoReply(data(&bytes[8..])))),
            kind::FEATURES_REQUEST => Self::FeaturesRequest,
            kind::FEATURES_REPLY => {
                let (datapath, _, tables) = (u64(&mut r)?, u32(&mut r)?, r.u8()?);
                r.take(11)?;
                Self::Features { datapath, tables }
            }
            kind::FLOW_MOD => Self::FlowMod(flow_mod(&mut r)?),
            kind::BARRIER_REQUEST => Self::BarrierRequest,
            kind::BARRIER_REPLY => Self::BarrierReply,
            kind::MULTIPART_REQUEST => match request(&mut r)? {
                Some(message) => message,
                None => return Ok((xid, Self::Other(kind))),
            },
            kind::MULTIPART_REPLY => match reply(&mut r, bytes.len())? {
                Some(message) => message,
                None => return Ok((xid, Self::Other(kind))),
            },
            other => return Ok((xid, Self::Other(other))),
        };
        r.finish()?;
        Ok((xid, message))
    }

    /// Appends the bytes of the message.
    ///
    /// # Panics
    /// When the message is longer than [`MESSAGE_BYTES_MAX`].
    pub fn encode(&self, xid: u32, out: &mut Vec<u8>) {
        let begin = out.len();
        out.extend([VERSION, self.kind(), 0, 0]);
        out.extend(xid.to_be_bytes());
        self.put_body(out);
        let length = u16::try_from(out.len() - begin).expect("a message of ours is short");
        out[begin + 2..begin + 4].copy_from_slice(&length.to_be_bytes());
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Hello => kind::HELLO,
            Self::Error { .. } => kind::ERROR,
            Self::EchoRequest(_) => kind::ECHO_REQUEST,
            Self::EchoReply(_) => kind::ECHO_REPLY,
            Self::FeaturesRequest => kind::FEATURES_REQUEST,
            Self::Features { .. } => kind::FEATURES_REPLY,
            Self::FlowMod(_) => kind::FLOW_MOD,
            Self::BarrierRequest => kind::BARRIER_REQUEST,
            Self::BarrierReply => kind::BARRIER_REPLY,
            Self::FlowStatsRequest | Self::PortStatsRequest => kind::MULTIPART_REQUEST,
            Self::FlowStats(_) | Self::PortStats(_) => kind::MULTIPART_REPLY,
            Self::Other(kind) => *kind,
        }
    }

    fn put_body(&self, out: &mut Vec<u8>) {
        match self {
            Self::Error { kind, code, data } => {
                out.extend(kind.to_be_bytes());
                out.extend(code.to_be_bytes());
                out.extend(data);
            }
            Self::EchoRequest(data) | Self::EchoReply(data) => out.extend(data),
            Self::Features { datapath, tables } => {
                out.extend(datapath.to_be_bytes());
                out.extend([0; 4]);
                out.push(*tables);
                out.extend([0; 11]);
            }
            Self::FlowMod(change) => put_flow_mod(out, change),
            Self::FlowStatsRequest => {
                put_counters(out, counters::FLOW, false);
                out.extend([TABLE_ALL, 0, 0, 0]);
                out.extend(ANY.to_be_bytes());
                out.extend(ANY.to_be_bytes());
                // Padding, and a cookie with a mask that compares no bit of it.
                out.extend([0; 20]);
                put_match(out, &PacketMatch::default());
            }
            Self::PortStatsRequest => {
                put_counters(out, counters::PORT, false);
                out.extend(ANY.to_be_bytes());
                out.extend([0; 4]);
            }
            Self::FlowStats(part) => {
                put_counters(out, counters::FLOW, part.has_more);
                part.entries.iter().for_each(|entry| put_flow_stat(out, entry));
            }
            Self::PortStats(part) => {
                put_counters(out, counters::PORT, part.has_more);
                part.entries.iter().for_each(|entry| put_port_stat(out, entry));
            }
            _ => {}
        }
    }
}

fn data(bytes: &[u8]) -> Vec<u8> {
    bytes[..bytes.len().min(DATA_BYTES_MAX)].to_vec()
}

/// A match (7.2.3): its kind, its length without padding, fields, padding to eight bytes.
fn a_match(r: &mut Reader<'_>) -> Result<PacketMatch, Malformed> {
    let (kind, length) = (u16(r)?, usize::from(u16(r)?));
    if kind != 1 || length < 4 {
        return Err(r.malformed("not an OXM match"));
    }
    let mut fields = Reader::new(r.take(length - 4)?);
    r.take(length.next_multiple_of(8) - length)?;
    let mut fits = PacketMatch::default();
    while let Ok(class) = u16(&mut fields) {
        let (name, length) = (fields.u8()?, fields.u8()?);
        let value = fields.take(length.into())?;
        let four = |value: &[u8]| <[u8; 4]>::try_from(value).ok().map(Ipv4Addr::from);
        let two = |value: &[u8]| <[u8; 2]>::try_from(value).ok().map(u16::from_be_bytes);
        // The lowest bit of the name says that a mask follows, which no rule of ours has.
        match (class, (name >> 1, length)) {
            _ if name & 1 == 1 => {}
            (field::CLASS, field::IPV4_FROM) => fits.from = four(value),
            (field::CLASS, field::IPV4_TO) => fits.to = four(value),
            (field::CLASS, field::TCP_FROM) => fits.from_port = two(value),
            (field::CLASS, field::TCP_TO) => fits.to_port = two(value),
            _ => {}
        }
    }
    Ok(fits)
}

fn put_match(out: &mut Vec<u8>, fits: &PacketMatch) {
    let begin = out.len();
    out.extend([0, 1, 0, 0]);
    let mut put = |(name, length): (u8, u8), value: &[u8]| {
        out.extend(field::CLASS.to_be_bytes());
        out.extend([name << 1, length]);
        out.extend(value);
    };
    if *fits != PacketMatch::default() {
        put(field::ETHER_TYPE, &IPV4.to_be_bytes());
        put(field::PROTOCOL, &[TCP]);
    }
    for (name, address) in [(field::IPV4_FROM, fits.from), (field::IPV4_TO, fits.to)] {
        address.iter().for_each(|address| put(name, &address.octets()));
    }
    for (name, port) in [(field::TCP_FROM, fits.from_port), (field::TCP_TO, fits.to_port)] {
        port.iter().for_each(|port| put(name, &port.to_be_bytes()));
    }
    let length = out.len() - begin;
    out[begin + 3] = length as u8;
    out.resize(begin + length.next_multiple_of(8), 0);
}

/// A change of rules (7.3.4.1).
fn flow_mod(r: &mut Reader<'_>) -> Result<FlowMod, Malformed> {
    let (cookie, _mask, _table) = (u64(r)?, u64(r)?, r.u8()?);
    let command = r.u8()?;
    let (idle_s, _hard_s, priority) = (u16(r)?, u16(r)?, u16(r)?);
    let (_buffer, _port, _group) = (u32(r)?, u32(r)?, u32(r)?);
    r.take(4)?;
    let fits = a_match(r)?;
    match command {
        0 => {
            let port = instructions(r)?.ok_or_else(|| r.malformed("a rule without an output"))?;
            Ok(FlowMod::Add(FlowRule { cookie, fits, priority, idle_s, port }))
        }
        3 => Ok(FlowMod::Delete { cookie }),
        _ => Err(r.malformed("a change of rules that is neither an addition nor a removal")),
    }
}

/// Reads all instructions, and returns the port of the last output among them (7.2.4, 7.2.5).
fn instructions(r: &mut Reader<'_>) -> Result<Option<u32>, Malformed> {
    let mut output = None;
    while let Ok(kind) = u16(r) {
        let length = usize::from(u16(r)?);
        let body = r.take(length.checked_sub(4).ok_or_else(|| r.malformed("a short length"))?)?;
        if kind != 3 && kind != 4 {
            continue;
        }
        let mut actions = Reader::new(body);
        actions.take(4)?;
        while let Ok(kind) = u16(&mut actions) {
            let length = usize::from(u16(&mut actions)?);
            let length = length.checked_sub(4).ok_or_else(|| r.malformed("a short length"))?;
            let body = actions.take(length)?;
            if kind == 0 {
                output = Some(u32(&mut Reader::new(body))?);
            }
        }
    }
    Ok(output)
}

/// One instruction that applies one output at once.
fn put_output(out: &mut Vec<u8>, port: u32) {
    out.extend([0, 4, 0, 24, 0, 0, 0, 0]);
    out.extend([0, 0, 0, 16]);
    out.extend(port.to_be_bytes());
    out.extend([0; 8]);
}

fn put_flow_mod(out: &mut Vec<u8>, change: &FlowMod) {
    let (cookie, mask, table, command, rule) = match change {
        FlowMod::Add(rule) => (rule.cookie, 0, 0, 0, Some(rule)),
        FlowMod::Delete { cookie } => (*cookie, u64::MAX, TABLE_ALL, 3, None),
    };
    out.extend(cookie.to_be_bytes());
    out.extend(mask.to_be_bytes());
    out.extend([table, command]);
    out.extend(rule.map_or(0, |rule| rule.idle_s).to_be_bytes());
    out.extend([0; 2]);
    out.extend(rule.map_or(0, |rule| rule.priority).to_be_bytes());
    // No packet waits in a buffer of the switch, and a removal is for rules with any output.
    [ANY; 3].iter().for_each(|any| out.extend(any.to_be_bytes()));
    out.extend([0; 4]);
    put_match(out, &rule.map_or(PacketMatch::default(), |rule| rule.fits));
    if let Some(rule) = rule {
        put_output(out, rule.port);
    }
}

/// The head of a request for counters and of its answer.
fn put_counters(out: &mut Vec<u8>, counters: u16, has_more: bool) {
    out.extend(counters.to_be_bytes());
    out.extend([0, has_more.into(), 0, 0, 0, 0]);
}

fn request(r: &mut Reader<'_>) -> Result<Option<SwitchMessage>, Malformed> {
    let kind = u16(r)?;
    r.take(6)?;
    match kind {
        counters::FLOW => {
            r.take(32)?;
            a_match(r)?;
            Ok(Some(SwitchMessage::FlowStatsRequest))
        }
        counters::PORT => {
            r.take(8)?;
            Ok(Some(SwitchMessage::PortStatsRequest))
        }
        _ => Ok(None),
    }
}

fn reply(r: &mut Reader<'_>, length: usize) -> Result<Option<SwitchMessage>, Malformed> {
    let (kind, flags) = (u16(r)?, u16(r)?);
    r.take(4)?;
    let has_more = flags & 1 == 1;
    // The bytes of the message bound the number of its entries.
    let mut left = length - 16;
    match kind {
        counters::FLOW => {
            let mut entries = Vec::new();
            while left > 0 {
                let (entry, length) = flow_stat(r)?;
                entries.push(entry);
                left -= length;
            }
            Ok(Some(SwitchMessage::FlowStats(CountersPart { entries, has_more })))
        }
        counters::PORT => {
            let mut entries = Vec::new();
            while left > 0 {
                entries.push(port_stat(r)?);
                left -= PORT_STAT_BYTES;
            }
            Ok(Some(SwitchMessage::PortStats(CountersPart { entries, has_more })))
        }
        _ => Ok(None),
    }
}

/// Bytes of the counters of a rule before its match.
const FLOW_STAT_BYTES: usize = 48;
/// Bytes of the counters of a port.
const PORT_STAT_BYTES: usize = 112;

fn flow_stat(r: &mut Reader<'_>) -> Result<(FlowStat, usize), Malformed> {
    let length = usize::from(u16(r)?);
    let short = r.malformed("counters of a rule of a wrong length");
    let mut entry = Reader::new(r.take(length.checked_sub(2).ok_or(short)?)?);
    // The table, padding, and the age in seconds and nanoseconds.
    entry.take(10)?;
    let priority = u16(&mut entry)?;
    // Times until the rule ends, flags and padding.
    entry.take(10)?;
    let (cookie, packets, bytes) = (u64(&mut entry)?, u64(&mut entry)?, u64(&mut entry)?);
    let fits = a_match(&mut entry)?;
    instructions(&mut entry)?;
    Ok((FlowStat { cookie, priority, fits, packets, bytes }, length))
}

fn put_flow_stat(out: &mut Vec<u8>, stat: &FlowStat) {
    let begin = out.len();
    out.extend([0; 12]);
    out.extend(stat.priority.to_be_bytes());
    out.extend([0; 10]);
    [stat.cookie, stat.packets, stat.bytes].iter().for_each(|word| out.extend(word.to_be_bytes()));
    debug_assert_eq!(out.len() - begin, FLOW_STAT_BYTES);
    put_match(out, &stat.fits);
    let length = (out.len() - begin) as u16;
    out[begin..begin + 2].copy_from_slice(&length.to_be_bytes());
}

fn port_stat(r: &mut Reader<'_>) -> Result<PortStat, Malformed> {
    let mut entry = Reader::new(r.take(PORT_STAT_BYTES)?);
    let port = u32(&mut entry)?;
    entry.take(4)?;
    let mut pair = || -> Result<[u64; 2], Malformed> { Ok([u64(&mut entry)?, u64(&mut entry)?]) };
    Ok(PortStat { port, packets: pair()?, bytes: pair()?, dropped: pair()? })
}

fn put_port_stat(out: &mut Vec<u8>, stat: &PortStat) {
    let begin = out.len();
    out.extend(stat.port.to_be_bytes());
    out.extend([0; 4]);
    let words = [stat.packets, stat.bytes, stat.dropped];
    words.iter().flatten().for_each(|word| out.extend(word.to_be_bytes()));
    // Errors, collisions and the age of the port.
    out.resize(begin + PORT_STAT_BYTES, 0);
}
