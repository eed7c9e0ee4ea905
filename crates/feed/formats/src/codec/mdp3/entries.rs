//! The entries of MDP 3.0: what a message says of one security.
//!
//! A message is a block of fields that hold for all of it, then groups of entries of one length.
//! Templates differ in the places of the fields, and in the decimals of prices: seven up to version
//! 8 of the schema, nine from then on. All prices are given with nine.
//!
//! ```text
//!  0      2        4          6        8         10            10 + block length
//!  +------+--------+----------+--------+---------+-------------+--------+-----------+--------
//!  | size | block  | template | schema | version | fields of   | entry  | number of | entries
//!  |      | length |          |        |         | the message | length | entries u8| ...
//!  +------+--------+----------+--------+---------+-------------+--------+-----------+--------
//! ```
//!
//! All numbers are little-endian. Places are those of `templates_FixBinary.xml`, CME Group. A
//! length of its own goes with each block and each entry, so that fields of later versions behind
//! the known ones are passed over.

use super::{HEAD_BYTES, MESSAGE_HEAD_BYTES, read_short};

/// Bytes in front of the entries of a group: the length of an entry and the number of entries.
const GROUP_HEAD_BYTES: usize = 3;
/// Bytes in front of the entries of a group of orders: the number stands in the last of them.
const ORDERS_HEAD_BYTES: usize = 8;
/// Bytes of an entry in a group of orders.
const ORDER_BYTES: usize = 24;
/// From seven decimals to nine.
const SEVEN_DECIMALS: i64 = 100;
/// Nine decimals are what tables have.
const NINE_DECIMALS: i64 = 1;

/// Entry type of a reset of a book.
pub(super) const TYPE_RESET: u8 = b'J';
/// Entry type of a trade.
pub(super) const TYPE_TRADE: u8 = b'2';

/// What a message says of one security. A field that the template lacks, or that has the value for
/// nothing, is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MdEntry<'a> {
    /// When the matching engine made the event, in nanoseconds since 1970.
    pub(super) transact_ns: Option<u64>,
    /// Bits that say which parts of the event end with this message.
    pub(super) match_event: Option<u8>,
    pub(super) security: Option<u32>,
    /// Number of the entry among all of its security.
    pub(super) rpt_seq: Option<u32>,
    /// Letter of the entry's type, as in tag 269 of FIX.
    pub(super) entry_type: Option<u8>,
    /// Number of the action, as in tag 279 of FIX.
    pub(super) action: Option<u8>,
    /// With nine decimals.
    pub(super) price: Option<i64>,
    pub(super) size: Option<u64>,
    pub(super) orders: Option<u32>,
    /// Place of the level in its side of the book, from 1.
    pub(super) level: Option<u8>,
    /// 1 buy, 2 sell, 0 neither.
    pub(super) aggressor: Option<u8>,
    pub(super) order_id: Option<u64>,
    pub(super) order_priority: Option<u64>,
    pub(super) trading_status: Option<u8>,
    /// The symbol, in definitions.
    pub(super) symbol: Option<&'a str>,
    /// Levels of the book of prices, in definitions.
    pub(super) depth: Option<u8>,
}

/// Where the fields of an entry lie. A field that the template lacks is `None`.
#[derive(Clone, Copy)]
struct EntryLayout {
    /// Bytes up to the end of the last of these fields.
    bytes: usize,
    /// What a price is multiplied by to have nine decimals.
    scale: i64,
    price: Option<usize>,
    size: Option<usize>,
    security: Option<usize>,
    rpt_seq: Option<usize>,
    orders: Option<usize>,
    level: Option<usize>,
    action: Option<usize>,
    entry_type: Option<usize>,
    /// The type of all entries of a template that has no field for it.
    constant_type: Option<u8>,
    aggressor: Option<usize>,
    order_id: Option<usize>,
    order_priority: Option<usize>,
}

const NO_FIELDS: EntryLayout = EntryLayout {
    bytes: 0,
    scale: NINE_DECIMALS,
    price: None,
    size: None,
    security: None,
    rpt_seq: None,
    orders: None,
    level: None,
    action: None,
    entry_type: None,
    constant_type: None,
    aggressor: None,
    order_id: None,
    order_priority: None,
};

/// MDIncrementalRefreshBook, 46.
const BOOK: EntryLayout = EntryLayout {
    bytes: 27,
    price: Some(0),
    size: Some(8),
    security: Some(12),
    rpt_seq: Some(16),
    orders: Some(20),
    level: Some(24),
    action: Some(25),
    entry_type: Some(26),
    ..NO_FIELDS
};
/// MDIncrementalRefreshTradeSummary, 48.
const TRADE_SUMMARY: EntryLayout = EntryLayout {
    bytes: 26,
    price: Some(0),
    size: Some(8),
    security: Some(12),
    rpt_seq: Some(16),
    orders: Some(20),
    aggressor: Some(24),
    action: Some(25),
    constant_type: Some(TYPE_TRADE),
    ..NO_FIELDS
};
/// MDIncrementalRefreshTrade, 36.
const TRADE: EntryLayout = EntryLayout {
    bytes: 30,
    scale: SEVEN_DECIMALS,
    aggressor: Some(28),
    action: Some(29),
    ..TRADE_SUMMARY
};
/// MDIncrementalRefreshVolume, 37.
const VOLUME: EntryLayout = EntryLayout {
    bytes: 13,
    size: Some(0),
    security: Some(4),
    rpt_seq: Some(8),
    action: Some(12),
    constant_type: Some(b'e'),
    ..NO_FIELDS
};
/// MDIncrementalRefreshDailyStatistics, 49.
const DAILY_STATISTICS: EntryLayout = EntryLayout {
    bytes: 25,
    price: Some(0),
    size: Some(8),
    security: Some(12),
    rpt_seq: Some(16),
    action: Some(23),
    entry_type: Some(24),
    ..NO_FIELDS
};
/// MDIncrementalRefreshLimitsBanding, 50. Its three prices are limits and no prices of an entry.
const LIMITS: EntryLayout = EntryLayout {
    bytes: 32,
    security: Some(24),
    rpt_seq: Some(28),
    constant_type: Some(b'g'),
    ..NO_FIELDS
};
/// MDIncrementalRefreshSessionStatistics, 35.
const SESSION_STATISTICS: EntryLayout = EntryLayout {
    bytes: 19,
    scale: SEVEN_DECIMALS,
    price: Some(0),
    security: Some(8),
    rpt_seq: Some(12),
    action: Some(17),
    entry_type: Some(18),
    ..NO_FIELDS
};
/// MDIncrementalRefreshSessionStatistics, 51.
const SESSION_STATISTICS_SIZED: EntryLayout =
    EntryLayout { bytes: 23, scale: NINE_DECIMALS, size: Some(19), ..SESSION_STATISTICS };
/// MDIncrementalRefreshOrderBook, 47.
const ORDER_BOOK: EntryLayout = EntryLayout {
    bytes: 34,
    order_id: Some(0),
    order_priority: Some(8),
    price: Some(16),
    size: Some(24),
    security: Some(28),
    action: Some(32),
    entry_type: Some(33),
    ..NO_FIELDS
};
/// SnapshotFullRefresh, 52. The security stands in front of the entries.
const SNAPSHOT: EntryLayout = EntryLayout {
    bytes: 22,
    price: Some(0),
    size: Some(8),
    orders: Some(12),
    level: Some(16),
    entry_type: Some(21),
    ..NO_FIELDS
};

/// The layout of the entries of a template; `None` for templates whose entries are not read.
fn layout_of(template: u16) -> Option<EntryLayout> {
    let with_seven = |layout| EntryLayout { scale: SEVEN_DECIMALS, ..layout };
    Some(match template {
        32 => with_seven(BOOK),
        46 => BOOK,
        36 => TRADE,
        42 => with_seven(TRADE_SUMMARY),
        48 => TRADE_SUMMARY,
        37 => VOLUME,
        33 => with_seven(DAILY_STATISTICS),
        49 => DAILY_STATISTICS,
        34 | 50 => LIMITS,
        35 => SESSION_STATISTICS,
        51 => SESSION_STATISTICS_SIZED,
        43 => with_seven(ORDER_BOOK),
        47 => ORDER_BOOK,
        38 => with_seven(SNAPSHOT),
        52 => SNAPSHOT,
        _ => return None,
    })
}

/// One of the messages of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct SbeMessage<'a> {
    pub(super) template: u16,
    pub(super) version: u16,
    /// The fields that hold for all of the message.
    block: &'a [u8],
    /// The groups behind them.
    groups: &'a [u8],
}

/// Gives the messages of a packet in order. A packet that is damaged gives those in front of the
/// damage.
pub(super) fn each_message<'a>(packet: &'a [u8], each: &mut dyn FnMut(&SbeMessage<'a>)) {
    let mut rest = packet.get(HEAD_BYTES..).unwrap_or_default();
    while let Some(message) = first_message(rest) {
        let size = message.len();
        if let Some(message) = SbeMessage::decode(message) {
            each(&message);
        }
        rest = &rest[size..];
    }
}

/// The bytes of the first message, with its size in front.
fn first_message(rest: &[u8]) -> Option<&[u8]> {
    let size = usize::from(read_short(rest, 0)?);
    rest.get(..size).filter(|message| message.len() >= MESSAGE_HEAD_BYTES)
}

fn read_array<const N: usize>(bytes: &[u8], at: Option<usize>) -> Option<[u8; N]> {
    bytes.get(at?..)?.first_chunk().copied()
}

fn read_byte(bytes: &[u8], at: Option<usize>) -> Option<u8> {
    bytes.get(at?).copied()
}

/// A whole number that is never negative. The greatest value stands for none.
fn read_number(bytes: &[u8], at: Option<usize>) -> Option<u32> {
    let number = i32::from_le_bytes(read_array(bytes, at)?);
    u32::try_from(number).ok().filter(|_| number != i32::MAX)
}

/// A number of 64 bits. The greatest value stands for none.
fn read_long(bytes: &[u8], at: Option<usize>) -> Option<u64> {
    Some(u64::from_le_bytes(read_array(bytes, at)?)).filter(|number| *number != u64::MAX)
}

/// A price with nine decimals. The greatest value stands for none.
fn read_price(bytes: &[u8], at: Option<usize>, scale: i64) -> Option<i64> {
    let price = i64::from_le_bytes(read_array(bytes, at)?);
    if price == i64::MAX { None } else { price.checked_mul(scale) }
}

/// Text without what fills its field.
fn read_text(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text = core::str::from_utf8(bytes.get(..end)?).ok()?.trim_end();
    (!text.is_empty()).then_some(text)
}

impl EntryLayout {
    /// Reads an entry. What the message says of all entries is in `common`.
    fn read_entry<'a>(&self, entry: &[u8], common: &MdEntry<'a>) -> MdEntry<'a> {
        MdEntry {
            security: read_number(entry, self.security).or(common.security),
            rpt_seq: match self.rpt_seq {
                Some(_) => read_array(entry, self.rpt_seq).map(u32::from_le_bytes),
                None => common.rpt_seq,
            },
            entry_type: read_byte(entry, self.entry_type).or(self.constant_type),
            action: read_byte(entry, self.action),
            price: read_price(entry, self.price, self.scale),
            size: read_number(entry, self.size).map(u64::from),
            orders: read_number(entry, self.orders),
            // The greatest value of the field, signed in snapshots, stands for none.
            level: read_byte(entry, self.level).filter(|level| *level < i8::MAX as u8),
            aggressor: read_byte(entry, self.aggressor),
            order_id: read_long(entry, self.order_id),
            order_priority: read_long(entry, self.order_priority),
            ..*common
        }
    }
}

/// The entries of a group, and the bytes behind the group.
fn split_group(
    groups: &[u8],
    head_bytes: usize,
) -> Option<(core::slice::ChunksExact<'_, u8>, &[u8])> {
    let entry_bytes = usize::from(read_short(groups, 0)?);
    // The number of entries is the last byte of the head.
    let entries = usize::from(*groups.get(head_bytes - 1)?);
    let rest = &groups[head_bytes..];
    if entry_bytes == 0 {
        return None;
    }
    let (entries, rest) = rest.split_at_checked(entries * entry_bytes)?;
    Some((entries.chunks_exact(entry_bytes), rest))
}

impl<'a> SbeMessage<'a> {
    fn decode(message: &'a [u8]) -> Option<Self> {
        let [block_bytes, template, _, version] = [2, 4, 6, 8].map(|at| read_short(message, at));
        let body = message.get(MESSAGE_HEAD_BYTES..)?;
        // A block that is longer than its message is none.
        let parts = body.split_at_checked(usize::from(block_bytes?));
        let (block, groups) = parts.unwrap_or_default();
        Some(Self { template: template?, version: version?, block, groups })
    }

    /// Whether the message states the whole book of a security.
    pub(super) fn is_snapshot(&self) -> bool {
        matches!(self.template, 38 | 52)
    }

    /// What the message says of all of its entries.
    pub(super) fn common_fields(&self) -> MdEntry<'a> {
        let block = self.block;
        let none = MdEntry::default();
        let byte = |at| read_byte(block, Some(at));
        match self.template {
            4 | 32..=37 | 39 | 42 | 43 | 46..=51 => MdEntry {
                transact_ns: read_long(block, Some(0)),
                // A request for quotes has its own number in front of the bits.
                match_event: if self.template == 39 { byte(31) } else { byte(8) },
                entry_type: (self.template == 4).then_some(TYPE_RESET),
                ..none
            },
            38 | 52 => MdEntry {
                transact_ns: read_long(block, Some(16)),
                security: read_number(block, Some(8)),
                rpt_seq: read_array(block, Some(12)).map(u32::from_le_bytes),
                trading_status: byte(34),
                ..none
            },
            30 => MdEntry {
                transact_ns: read_long(block, Some(0)),
                match_event: byte(26),
                security: read_number(block, Some(20)),
                trading_status: byte(27),
                ..none
            },
            27 | 29 | 41 | 54..=56 => MdEntry {
                transact_ns: read_long(block, Some(6)),
                match_event: byte(0),
                security: read_number(block, Some(55)),
                trading_status: byte(14),
                symbol: block.get(35..55).and_then(read_text),
                depth: self.stated_depth(),
                ..none
            },
            _ => none,
        }
    }

    /// The levels of the book of prices, in a definition: the second group names the books.
    fn stated_depth(&self) -> Option<u8> {
        let (_, groups) = split_group(self.groups, GROUP_HEAD_BYTES)?;
        let (mut feeds, _) = split_group(groups, GROUP_HEAD_BYTES)?;
        feeds.find_map(|feed| match feed {
            [b'G', b'B', b'X', depth, ..] => Some(*depth).filter(|depth| *depth > 0),
            _ => None,
        })
    }

    /// Gives what the message says of each security: an entry after the other, then the orders of
    /// which the entries consist. A message without entries is one entry, so that no message is
    /// left out.
    pub(super) fn each_entry(&self, each: &mut dyn FnMut(&MdEntry<'a>)) {
        let common = self.common_fields();
        let group = layout_of(self.template).and_then(|layout| {
            let (entries, rest) = split_group(self.groups, GROUP_HEAD_BYTES)?;
            let is_read = entries.clone().next().is_some_and(|entry| entry.len() >= layout.bytes);
            is_read.then_some((layout, entries, rest))
        });
        let Some((layout, entries, rest)) = group else { return each(&common) };
        for entry in entries.clone() {
            each(&layout.read_entry(entry, &common));
        }
        if self.template == 46 {
            let orders = split_group(rest, ORDERS_HEAD_BYTES);
            let orders = orders.into_iter().flat_map(|(orders, _)| orders);
            for order in orders.filter(|order| order.len() >= ORDER_BYTES) {
                // The reference counts the entries of the message from 1; 255 stands for none.
                let of = usize::from(order[20]).checked_sub(1);
                let of = of.and_then(|place| entries.clone().nth(place));
                let of = of.map_or(common, |entry| layout.read_entry(entry, &common));
                each(&MdEntry {
                    order_id: read_long(order, Some(0)),
                    order_priority: read_long(order, Some(8)),
                    size: read_number(order, Some(16)).map(u64::from),
                    action: Some(order[21]),
                    orders: None,
                    level: None,
                    ..of
                });
            }
        }
    }
}
