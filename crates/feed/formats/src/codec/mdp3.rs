//! CME MDP 3.0: packets of SBE messages, and what each message says of each security.
//!
//! ```text
//!  0          4              12     14             16          18        20        22
//!  +----------+--------------+------+--------------+-----------+---------+---------+---
//!  | sequence | sending time | size | block length | template  | schema  | version | ...
//!  +----------+--------------+------+--------------+-----------+---------+---------+---
//!                             one or more messages; a size counts its own two bytes
//! ```
//!
//! All numbers are little-endian.
//!
//! A table has a row for each entry of each message ([`entries`]), with the venue's own names and
//! numbers: types of entries are the letters of tag 269 of FIX, actions the numbers of tag 279.
//! Prices have nine decimals, in the units in which the venue trades: a display factor is not
//! applied.
//!
//! Books are those of prices, of the types 0 (bid) and 1 (offer). Implied prices (E and F) are
//! books of their own, and are in `messages` alone. A snapshot counts when it is no older than the
//! last change of its security that came before it.
//!
//! Source: CME Group, MDP 3.0 Binary Packet Header, SBE Message Header and Market by Price.

mod entries;

use self::entries::{MdEntry, SbeMessage, TYPE_RESET, TYPE_TRADE, each_message};
use crate::books::OrderSide;
use crate::books::levels::{
    LevelAction, LevelChange, LevelTrade, MarketChange, MarketCodec, MarketMessage, MarketUpdate,
    SecurityName,
};
use crate::codec::{Codec, Format, MDP3, PacketHead, TimeOrigin};
use crate::columns::{ColumnSink, MessageColumn, TYPE_COLUMN};
use crate::event::Event;
use crate::itch::{Stock, Symbols};

/// Bytes in front of a packet's messages.
const HEAD_BYTES: usize = 12;
/// Bytes in front of the contents of a message.
const MESSAGE_HEAD_BYTES: usize = 10;
/// The schema number of MDP 3.0.
const SCHEMA: u16 = 1;
/// Decimals of prices.
const DECIMALS: u8 = 9;

pub(crate) struct Mdp3;

fn read_short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The template of the first message of a packet that holds whole messages to its last byte.
fn first_template(packet: &[u8]) -> Option<u16> {
    let mut at = HEAD_BYTES;
    while at < packet.len() {
        let size = usize::from(read_short(packet, at)?);
        if size < MESSAGE_HEAD_BYTES || read_short(packet, at + 6)? != SCHEMA {
            return None;
        }
        at += size;
    }
    if at == packet.len() { read_short(packet, HEAD_BYTES + 4) } else { None }
}

/// The name of a template.
fn template_name(template: u16) -> &'static str {
    match template {
        4 => "ChannelReset4",
        12 => "AdminHeartbeat12",
        15 => "AdminLogin15",
        16 => "AdminLogout16",
        27 | 54 => "MDInstrumentDefinitionFuture",
        29 | 56 => "MDInstrumentDefinitionSpread",
        30 => "SecurityStatus30",
        32 | 46 => "MDIncrementalRefreshBook",
        33 | 49 => "MDIncrementalRefreshDailyStatistics",
        34 | 50 => "MDIncrementalRefreshLimitsBanding",
        35 | 51 => "MDIncrementalRefreshSessionStatistics",
        36 => "MDIncrementalRefreshTrade36",
        37 => "MDIncrementalRefreshVolume37",
        38 | 52 => "SnapshotFullRefresh",
        39 => "QuoteRequest39",
        41 | 55 => "MDInstrumentDefinitionOption",
        42 | 48 => "MDIncrementalRefreshTradeSummary",
        43 | 47 => "MDIncrementalRefreshOrderBook",
        44 | 53 => "SnapshotFullRefreshOrderBook",
        _ => "other template of MDP 3.0",
    }
}

/// The columns, in the order in which [`put_row`] puts their values.
const COLUMNS: &[MessageColumn] = &[
    TYPE_COLUMN,
    MessageColumn::unsigned("template", 16),
    MessageColumn::unsigned("schema_version", 16),
    MessageColumn::unsigned("packet_sequence", 32),
    MessageColumn::unsigned("sending_time_ns", 64).in_unit("ns"),
    MessageColumn::unsigned("transact_time_ns", 64).in_unit("ns"),
    MessageColumn::unsigned("match_event", 8),
    MessageColumn::unsigned("security_id", 32),
    MessageColumn::text("symbol").at_most(20).as_derived(),
    MessageColumn::text("entry_type").at_most(1),
    MessageColumn::unsigned("update_action", 8),
    MessageColumn::decimal("price", DECIMALS),
    MessageColumn::unsigned("size", 64),
    MessageColumn::unsigned("orders", 32),
    MessageColumn::unsigned("level", 8),
    MessageColumn::text("aggressor").at_most(1),
    MessageColumn::unsigned("rpt_seq", 32),
    MessageColumn::unsigned("order_id", 64),
    MessageColumn::unsigned("order_priority", 64),
    MessageColumn::unsigned("trading_status", 8),
];
/// The place of `transact_time_ns`.
const TIME_COLUMN: usize = 5;

/// Puts an entry into [`COLUMNS`].
fn put_row(
    packet: PacketHead,
    message: &SbeMessage<'_>,
    entry: &MdEntry<'_>,
    symbols: &Symbols,
    sink: &mut dyn ColumnSink,
) {
    sink.put_text(0, template_name(message.template));
    sink.put_unsigned(1, message.template.into());
    sink.put_unsigned(2, message.version.into());
    sink.put_unsigned(3, packet.sequence);
    sink.put_unsigned(4, packet.sent_ns);
    entry.transact_ns.inspect(|ns| sink.put_unsigned(TIME_COLUMN, *ns));
    entry.match_event.inspect(|bits| sink.put_unsigned(6, u64::from(*bits)));
    entry.security.inspect(|security| sink.put_unsigned(7, u64::from(*security)));
    let symbol = entry.security.and_then(|security| symbols.security_name(security));
    symbol.inspect(|symbol| sink.put_text(8, symbol));
    let letter = entry.entry_type.filter(u8::is_ascii_graphic).map(char::from);
    letter.inspect(|letter| sink.put_text(9, letter.encode_utf8(&mut [0; 4])));
    entry.action.inspect(|action| sink.put_unsigned(10, u64::from(*action)));
    entry.price.inspect(|price| sink.put_decimal(11, *price));
    entry.size.inspect(|size| sink.put_unsigned(12, *size));
    entry.orders.inspect(|orders| sink.put_unsigned(13, u64::from(*orders)));
    entry.level.inspect(|level| sink.put_unsigned(14, u64::from(*level)));
    let aggressor = entry.aggressor.and_then(aggressor_letter);
    aggressor.inspect(|letter| sink.put_text(15, letter));
    entry.rpt_seq.inspect(|number| sink.put_unsigned(16, u64::from(*number)));
    entry.order_id.inspect(|order| sink.put_unsigned(17, *order));
    entry.order_priority.inspect(|priority| sink.put_unsigned(18, *priority));
    entry.trading_status.inspect(|status| sink.put_unsigned(19, u64::from(*status)));
    sink.end_row();
}

fn aggressor_letter(side: u8) -> Option<&'static str> {
    match side {
        1 => Some("B"),
        2 => Some("S"),
        _ => None,
    }
}

impl Codec for Mdp3 {
    fn format(&self) -> Format {
        MDP3
    }

    fn word(&self) -> &'static str {
        "mdp3"
    }

    fn name(&self) -> &'static str {
        "CME MDP 3.0"
    }

    fn clock(&self) -> TimeOrigin {
        TimeOrigin::Epoch
    }

    fn is_packet(&self, datagram: &[u8]) -> bool {
        first_template(datagram).is_some()
    }

    fn packet_head(&self, packet: &[u8]) -> Option<PacketHead> {
        let (sequence, rest) = packet.split_first_chunk()?;
        let sent_ns = u64::from_le_bytes(*rest.first_chunk()?);
        Some(PacketHead { sequence: u32::from_le_bytes(*sequence).into(), sent_ns })
    }

    fn type_name(&self, message: &[u8]) -> Option<&'static str> {
        first_template(message).map(template_name)
    }

    /// An event for each entry, with its security where the name of the security fits. Prices have
    /// more decimals than an event has, and are in the columns alone.
    fn events(&self, message: &[u8], symbols: &mut Symbols, each: &mut dyn FnMut(Event)) {
        if first_template(message).is_none() {
            return;
        }
        self.learn_names(message, symbols);
        each_message(message, &mut |message| {
            let kind = Some(template_name(message.template));
            message.each_entry(&mut |entry| {
                let name = entry.security.and_then(|security| symbols.security_name(security));
                let symbol = name.and_then(|name| Stock::new(name));
                each(Event { kind, event_ns: entry.transact_ns, symbol, ..Event::default() });
            });
        });
    }

    fn columns(&self) -> &'static [MessageColumn] {
        COLUMNS
    }

    fn put_rows(&self, message: &[u8], symbols: &mut Symbols, sink: &mut dyn ColumnSink) {
        let Some(packet) = self.packet_head(message) else { return };
        if first_template(message).is_none() {
            return;
        }
        self.learn_names(message, symbols);
        each_message(message, &mut |message| {
            message.each_entry(&mut |entry| put_row(packet, message, entry, symbols, sink));
        });
    }

    fn time_column(&self) -> Option<usize> {
        Some(TIME_COLUMN)
    }

    fn learn_names(&self, message: &[u8], symbols: &mut Symbols) {
        each_message(message, &mut |message| {
            if let Some(SecurityName { security, name, .. }) = message.security_name() {
                symbols.learn_name(security, name);
            }
        });
    }

    fn market_codec(&self) -> Option<&dyn MarketCodec> {
        Some(self)
    }
}

impl<'a> SbeMessage<'a> {
    /// The security that a definition names.
    fn security_name(&self) -> Option<SecurityName<'a>> {
        if !matches!(self.template, 27 | 29 | 41 | 54..=56) {
            return None;
        }
        let common = self.common_fields();
        let depth = common.depth.map(usize::from);
        Some(SecurityName { security: common.security?, name: common.symbol?, depth })
    }
}

impl MarketCodec for Mdp3 {
    fn price_decimals(&self) -> u8 {
        DECIMALS
    }

    fn read_updates(&self, message: MarketMessage<'_>, each: &mut dyn FnMut(MarketUpdate<'_>)) {
        let Some(packet) = self.packet_head(message.bytes) else { return };
        if first_template(message.bytes).is_none() {
            return;
        }
        each_message(message.bytes, &mut |message| {
            let stated_ns = message.common_fields().transact_ns;
            let time_ns = stated_ns.unwrap_or(packet.sent_ns);
            let mut give = |change| each(MarketUpdate { time_ns, change });
            if let Some(name) = message.security_name() {
                give(MarketChange::Name(name));
            }
            if message.is_snapshot() {
                let MdEntry { security, rpt_seq, .. } = message.common_fields();
                let Some(security) = security else { return };
                let sequence = rpt_seq.unwrap_or(0);
                give(MarketChange::Snapshot { security, sequence });
            }
            message.each_entry(&mut |entry| {
                change_of(message, entry).into_iter().for_each(&mut give);
            });
        });
    }
}

/// What an entry does to its book, or the trade that it is.
fn change_of<'a>(message: &SbeMessage<'_>, entry: &MdEntry<'_>) -> Option<MarketChange<'a>> {
    let entry_type = entry.entry_type?;
    if entry_type == TYPE_RESET {
        return Some(MarketChange::Reset { security: entry.security });
    }
    let security = entry.security?;
    // The price of the last trade in a snapshot is no trade.
    if entry_type == TYPE_TRADE && !message.is_snapshot() {
        // Another action corrects or takes back a trade that was given before.
        return (entry.action == Some(0)).then_some(MarketChange::Trade(LevelTrade {
            kind: template_name(message.template),
            security,
            price: entry.price,
            size: entry.size.unwrap_or(0),
            // The order that rested is on the other side of the aggressor.
            resting: match entry.aggressor {
                Some(1) => Some(OrderSide::Ask),
                Some(2) => Some(OrderSide::Bid),
                _ => None,
            },
        }));
    }
    let side = match entry_type {
        b'0' => OrderSide::Bid,
        b'1' => OrderSide::Ask,
        _ => return None,
    };
    // Entries without a level are orders, or prices of statistics.
    let level = usize::from(entry.level?).checked_sub(1)?;
    let action = match entry.action {
        Some(0) => LevelAction::Insert,
        Some(1 | 5) => LevelAction::Replace,
        Some(2) => LevelAction::Remove,
        Some(3) => LevelAction::RemoveAll,
        Some(4) => LevelAction::RemoveBest,
        // A snapshot states levels without an action.
        None if message.is_snapshot() => LevelAction::Replace,
        _ => return None,
    };
    Some(MarketChange::Level(LevelChange {
        security,
        sequence: entry.rpt_seq.unwrap_or(0),
        is_snapshot: message.is_snapshot(),
        side,
        level,
        action,
        price: entry.price,
        size: entry.size.unwrap_or(0),
        orders: entry.orders.unwrap_or(0).into(),
    }))
}

#[cfg(test)]
mod tests;
