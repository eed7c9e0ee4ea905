//! Which symbol a locate stands for, learned from the messages as they pass.

use super::{Stock, View};
use std::collections::BTreeMap;

/// The directory of a day: locate to symbol and back.
///
/// Directory messages give it in full; an excerpt without them gives it as the first message
/// with a symbol of each security passes (adds, trades, crosses and the like), so a filter that
/// observes every message knows a symbol no later than the first order in its book. At most
/// 65,536 locates: half a megabyte, and as many entries the other way.
///
/// A codec of another format [`learn`](Self::learn)s the securities that its venue numbers.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    /// Numbers below 65,536, which are all that ITCH has: a symbol is one load away.
    by_locate: Vec<Option<Stock>>,
    /// Numbers from 65,536 on, at most [`LARGE_MAX`].
    large: BTreeMap<u32, Stock>,
    by_stock: BTreeMap<Stock, u32>,
}

/// Securities with numbers from 65,536 on whose symbols are kept; later securities have no symbol.
/// A venue with options numbers hundreds of thousands. Both directions take 64 MB at most.
const LARGE_MAX: usize = 1 << 20;

impl Symbols {
    /// A directory that knows nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Learns from one message of ITCH. Returns whether something new was learned.
    #[inline]
    pub fn observe(&mut self, view: &View<'_>) -> bool {
        view.stock().is_some_and(|stock| self.learn(view.stock_locate().into(), stock))
    }

    /// Learns the symbol of the security that a venue gives this number. The first symbol stays:
    /// numbers do not change in a day. Returns whether something new was learned.
    pub fn learn(&mut self, number: u32, stock: Stock) -> bool {
        if self.symbol(number).is_some() {
            return false;
        }
        if let Ok(locate) = u16::try_from(number) {
            let place = usize::from(locate);
            if self.by_locate.len() <= place {
                self.by_locate.resize(place + 1, None);
            }
            self.by_locate[place] = Some(stock);
        } else if self.large.len() < LARGE_MAX {
            self.large.insert(number, stock);
        } else {
            return false;
        }
        self.by_stock.entry(stock).or_insert(number);
        true
    }

    /// The symbol of a venue's number.
    #[inline]
    pub fn symbol(&self, number: u32) -> Option<Stock> {
        match u16::try_from(number) {
            Ok(locate) => self.by_locate.get(usize::from(locate)).copied().flatten(),
            Err(_) => self.large.get(&number).copied(),
        }
    }

    /// The venue's number of a symbol.
    pub fn locate(&self, stock: Stock) -> Option<u32> {
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
