//! The symbols of locates, learned from the messages as they pass.

use super::{Stock, View};
use std::collections::BTreeMap;

/// The directory of a day: locate to symbol and back.
///
/// Directory messages give the directory in full. An excerpt has no directory messages. In that
/// case the symbol comes from the first message of each security that carries one (an add, a trade
/// or a cross). A filter that observes every message therefore knows a symbol no later than the
/// first order in its book. ITCH has at most 65,536 locates: half a megabyte, and as many entries
/// in the other direction. A recorder that runs over several days meets a directory each day, whose
/// entries replace those of the day before.
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

    /// Learns from one message of ITCH. Returns whether an entry changed.
    #[inline]
    pub fn observe(&mut self, view: &View<'_>) -> bool {
        let stock = view.stock().filter(|stock| *stock != Stock::default());
        stock.is_some_and(|stock| self.learn(view.stock_locate().into(), stock))
    }

    /// Learns the symbol of the security that a venue gives this number. The latest symbol counts,
    /// because a venue gives its numbers anew each day. Returns whether the entry changed.
    #[inline]
    pub fn learn(&mut self, number: u32, stock: Stock) -> bool {
        self.symbol(number) != Some(stock) && self.replace(number, stock)
    }

    fn replace(&mut self, number: u32, stock: Stock) -> bool {
        let before = if let Ok(locate) = u16::try_from(number) {
            let place = usize::from(locate);
            if self.by_locate.len() <= place {
                self.by_locate.resize(place + 1, None);
            }
            self.by_locate[place].replace(stock)
        } else if self.large.len() < LARGE_MAX || self.large.contains_key(&number) {
            self.large.insert(number, stock)
        } else {
            return false;
        };
        // The earlier symbol keeps a number that it got in the meantime.
        if let Some(before) = before.filter(|before| self.by_stock.get(before) == Some(&number)) {
            self.by_stock.remove(&before);
        }
        self.by_stock.insert(stock, number);
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
