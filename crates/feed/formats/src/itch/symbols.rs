//! Which symbol a locate stands for, learned from the messages as they pass.

use super::{Stock, View};
use std::collections::BTreeMap;

/// The directory of a day: locate to symbol and back.
///
/// Directory messages give it in full; an excerpt without them gives it as the first message
/// with a symbol of each security passes (adds, trades, crosses and the like), so a filter that
/// observes every message knows a symbol no later than the first order in its book. At most
/// 65,536 locates: half a megabyte, and as many entries the other way.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    by_locate: Vec<Option<Stock>>,
    by_stock: BTreeMap<Stock, u16>,
}

impl Symbols {
    /// A directory that knows nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Learns from one message. The first symbol of a locate stays: locates do not change in a
    /// day. Returns whether something new was learned.
    #[inline]
    pub fn observe(&mut self, view: &View<'_>) -> bool {
        let locate = view.stock_locate();
        if self.symbol(locate).is_some() {
            return false;
        }
        let Some(stock) = view.stock() else { return false };
        let place = usize::from(locate);
        if self.by_locate.len() <= place {
            self.by_locate.resize(place + 1, None);
        }
        self.by_locate[place] = Some(stock);
        self.by_stock.entry(stock).or_insert(locate);
        true
    }

    /// The symbol of a locate.
    #[inline]
    pub fn symbol(&self, locate: u16) -> Option<Stock> {
        self.by_locate.get(usize::from(locate)).copied().flatten()
    }

    /// The locate of a symbol.
    pub fn locate(&self, stock: Stock) -> Option<u16> {
        self.by_stock.get(&stock).copied()
    }

    /// Securities known.
    pub fn len(&self) -> usize {
        self.by_stock.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.by_stock.is_empty()
    }
}
