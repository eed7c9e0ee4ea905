//! `reprice`: what the last seconds did to the positions of each account.
//!
//! Positions lie with the worker that records their symbol, so that nothing but sums travels. A
//! position is marked at the middle of bid and ask, now and one window ago. A middle needs both
//! sides: a position whose security lacks a side, or has no quote at all, at either time changes
//! nothing and is counted as unpriced.
//!
//! Sums are integers, so that their order does not change the answer: quantity times bid plus ask,
//! which is twice the middle. A sum's unit is 1/20,000 dollar.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use evenfall_collectives_machine::group::MergeRule;
use evenfall_core::Malformed;

use super::recent::{QuoteAt, RecentSnapshot, SymbolName};
use super::{TABLE_HEAD_BYTES, TableHead};

/// Units of a sum in a dollar.
pub const CHANGE_UNITS: f64 = 20_000.0;
/// Bytes of an account's name.
pub const ACCOUNT_BYTES: usize = 16;
/// Bytes of a row of sums.
const ROW_BYTES: usize = ACCOUNT_BYTES + 16 + 4 + 4;

/// The name of an account, padded with spaces.
pub type AccountName = [u8; ACCOUNT_BYTES];

/// What an account holds of a security.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeskPosition {
    /// The security.
    pub symbol: SymbolName,
    /// The account.
    pub account: AccountName,
    /// Shares; less than nothing when they are owed.
    pub quantity: i64,
}

/// The sums of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AccountChange {
    /// The account.
    pub account: AccountName,
    /// What its positions gained, in 1/20,000 dollar.
    pub change: i128,
    /// Its positions.
    pub positions: u32,
    /// Those of them that have no price at one of the two times.
    pub unpriced: u32,
}

/// The answer of `reprice`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepriceAnswer {
    /// The accounts that lost most, the worst first; of equal losses the least name first.
    pub worst: Vec<AccountChange>,
    /// Accounts with positions.
    pub accounts: u64,
    /// What all accounts together gained, in 1/20,000 dollar.
    pub change: i128,
    /// Positions.
    pub positions: u64,
    /// Positions without a price.
    pub unpriced: u64,
}

/// A line of a file of positions or fills that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct DeskFileError {
    /// Number of the line, from 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

/// A name of at most `N` bytes, padded with spaces.
pub(super) fn pad_name<const N: usize>(what: &str, text: &str) -> Result<[u8; N], String> {
    let bytes = text.as_bytes();
    let is_name = |byte: &u8| byte.is_ascii_graphic();
    if bytes.is_empty() || bytes.len() > N || !bytes.iter().all(is_name) {
        return Err(format!("{what} {text:?}: between 1 and {N} letters of ASCII, without spaces"));
    }
    let mut name = [b' '; N];
    name[..bytes.len()].copy_from_slice(bytes);
    Ok(name)
}

/// Reads positions: lines of `account,symbol,quantity`, with that heading.
///
/// # Errors
/// The first line that is no position.
pub fn read_positions(text: &str) -> Result<Vec<DeskPosition>, DeskFileError> {
    let rows = super::csv_rows(text, "account,symbol,quantity");
    let position = |(line, row): (usize, Result<Vec<&str>, String>)| {
        let position = row.and_then(|row| {
            let quantity =
                row[2].parse().map_err(|_| format!("quantity {:?}: no number", row[2]))?;
            let (account, symbol) = (pad_name("account", row[0])?, pad_name("symbol", row[1])?);
            Ok(DeskPosition { symbol, account, quantity })
        });
        position.map_err(|what| DeskFileError { line, what })
    };
    rows.map(position).collect()
}

/// Twice the middle of bid and ask.
fn twice_middle(quote: Option<QuoteAt>) -> Option<i128> {
    let quote = quote?;
    Some(i128::from(quote.bid?.price) + i128::from(quote.ask?.price))
}

/// Positions, gathered by symbol, so that a question looks up each symbol once.
#[derive(Clone, Debug, Default)]
pub struct PositionBook {
    /// Ascending.
    accounts: Vec<AccountName>,
    /// Each symbol with its positions: number of the account, quantity.
    symbols: Vec<(SymbolName, Vec<(u32, i64)>)>,
    positions: usize,
}

impl PositionBook {
    /// Gathers positions, in any order.
    pub fn new(mut positions: Vec<DeskPosition>) -> Self {
        positions.sort_unstable();
        let mut accounts: Vec<AccountName> = positions.iter().map(|one| one.account).collect();
        accounts.sort_unstable();
        accounts.dedup();
        let number =
            |account: &AccountName| accounts.binary_search(account).map_or(0, |at| at as u32);
        let of_symbol = |all: &[DeskPosition]| {
            let position = |one: &DeskPosition| (number(&one.account), one.quantity);
            (all[0].symbol, all.iter().map(position).collect())
        };
        let symbols = positions.chunk_by(|a, b| a.symbol == b.symbol).map(of_symbol).collect();
        Self { symbols, positions: positions.len(), accounts }
    }

    /// Number of positions.
    pub fn len(&self) -> usize {
        self.positions
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.positions == 0
    }
}

/// The sums of one worker's positions, by account.
pub fn sum_changes(
    rows: &RecentSnapshot,
    positions: &PositionBook,
    [then_ns, now_ns]: [i64; 2],
) -> Vec<AccountChange> {
    let then = rows.quotes_as_of(then_ns);
    let mut now = then.clone();
    for (symbol, quote) in rows.quotes_between(then_ns, now_ns) {
        now[symbol as usize] = Some(quote);
    }
    let mut moves: BTreeMap<SymbolName, i128> = BTreeMap::new();
    for (symbol, (then, now)) in (0..).zip(then.into_iter().zip(now)) {
        if let (Some(then), Some(now)) = (twice_middle(then), twice_middle(now)) {
            moves.insert(rows.name(symbol), now - then);
        }
    }
    let none = |&account| AccountChange { account, change: 0, positions: 0, unpriced: 0 };
    let mut sums: Vec<AccountChange> = positions.accounts.iter().map(none).collect();
    for (symbol, of_symbol) in &positions.symbols {
        let by = moves.get(symbol);
        for &(account, quantity) in of_symbol {
            let sum = &mut sums[account as usize];
            sum.positions += 1;
            match by {
                Some(by) => sum.change += by * i128::from(quantity),
                None => sum.unpriced += 1,
            }
        }
    }
    sums
}

/// The bytes of a table of sums.
pub fn encode_changes(head: TableHead, rows: &[AccountChange]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(TABLE_HEAD_BYTES + ROW_BYTES * rows.len());
    head.encode(&mut bytes);
    for row in rows {
        bytes.put_slice(&row.account);
        bytes.put_i128_le(row.change);
        bytes.put_u32_le(row.positions);
        bytes.put_u32_le(row.unpriced);
    }
    bytes.freeze()
}

fn decode_rows(bytes: &[u8]) -> impl Iterator<Item = AccountChange> + '_ {
    let (rows, _) = bytes.get(TABLE_HEAD_BYTES..).unwrap_or_default().as_chunks::<ROW_BYTES>();
    rows.iter().map(|row| AccountChange {
        account: core::array::from_fn(|i| row[i]),
        change: i128::from_le_bytes(core::array::from_fn(|i| row[ACCOUNT_BYTES + i])),
        positions: u32::from_le_bytes(core::array::from_fn(|i| row[ACCOUNT_BYTES + 16 + i])),
        unpriced: u32::from_le_bytes(core::array::from_fn(|i| row[ACCOUNT_BYTES + 20 + i])),
    })
}

fn check_changes(bytes: &[u8]) -> Result<(), Malformed> {
    let rest = bytes.len().checked_sub(TABLE_HEAD_BYTES).map(|rest| rest % ROW_BYTES);
    match rest {
        Some(0) => Ok(()),
        _ => Err(Malformed { what: "no table of accounts", offset: bytes.len() }),
    }
}

fn merged(tables: &[Bytes]) -> Vec<AccountChange> {
    let mut rows: Vec<AccountChange> = tables.iter().flat_map(|table| decode_rows(table)).collect();
    rows.sort_unstable_by_key(|row| row.account);
    rows.dedup_by(|next, row| {
        let same = next.account == row.account;
        if same {
            row.change = row.change.wrapping_add(next.change);
            row.positions = row.positions.saturating_add(next.positions);
            row.unpriced = row.unpriced.saturating_add(next.unpriced);
        }
        same
    });
    rows
}

/// Adds tables up by account.
pub(super) const ADD_ACCOUNTS: MergeRule = MergeRule {
    number: 201,
    check: check_changes,
    merge: |tables| encode_changes(TableHead::merged(tables), &merged(tables)),
};

/// The answer of these sums, with the `worst` accounts that lost most.
pub fn answer_reprice(mut rows: Vec<AccountChange>, worst: usize) -> RepriceAnswer {
    let sum = |of: fn(&AccountChange) -> u64| rows.iter().map(of).sum();
    let (accounts, positions) = (rows.len() as u64, sum(|row| row.positions.into()));
    let unpriced = sum(|row| row.unpriced.into());
    let change = rows.iter().map(|row| row.change).sum();
    rows.sort_unstable_by_key(|row| (row.change, row.account));
    rows.truncate(worst);
    RepriceAnswer { worst: rows, accounts, change, positions, unpriced }
}

/// The answer of a merged table.
pub(super) fn decode_reprice(table: &Bytes, worst: usize) -> RepriceAnswer {
    answer_reprice(decode_rows(table).collect(), worst)
}
