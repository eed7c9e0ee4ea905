//! The symbols of locates, learned from the messages as they pass.

use super::{Stock, View};
use std::collections::BTreeMap;

/// The directory of a day: locate to symbol and back.
///
/// Directory messages give the directory in full. An excerpt has no directory messages. In that
/// case the symbol comes from the first message of each security that carries one (an add, a trade
/// or a cross). A filter that observes every message therefore knows a symbol no later than the
/// first order in its book. ITCH has at most 65,536 locates: half a megabyte, and as many entries
/// in the other direction.
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

/// Securities with numbers from 65,536 on whose symbols are kept. Further securities have no
/// symbol. A venue with options has hundreds of thousands of numbers. Both directions take 64 MB at
/// most.
const LARGE_MAX: usize = 1 << 20;

impl Symbols {
    /// A directory without entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// Learns from one message of ITCH. Returns whether an entry is new.
    #[inline]
    pub fn observe(&mut self, view: &View<'_>) -> bool {
        view.stock().is_some_and(|stock| self.learn(view.stock_locate().into(), stock))
    }

    /// Learns the symbol of the security that a venue gives this number. The first symbol stays,
    /// because numbers do not change during a day. Returns whether the entry is new.
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
