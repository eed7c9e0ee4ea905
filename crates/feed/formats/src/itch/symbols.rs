//! The symbols of locates, learned from the messages as they pass.

use super::{Stock, View};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The directory of a day: locate to symbol and back.
///
/// Directory messages give the directory in full. An excerpt has no directory messages. In that
/// case the symbol comes from the first message of each security that carries one (an add, a trade
/// or a cross). A filter that observes every message therefore knows a symbol no later than the
/// first order in its book. ITCH has at most 65,536 locates: half a megabyte, and as many entries
/// in the other direction. A recorder that runs over several days meets a directory each day, whose
/// entries replace those of the day before.
///
/// A codec of another format [`learn`](Self::learn)s the securities that its venue numbers. Venues
/// of derivatives have names of twenty letters and more, which are
/// [names of securities](Self::learn_name) beside the symbols of eight bytes.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    /// Numbers below 65,536, which are all that ITCH has: a symbol is one load away.
    by_locate: Vec<Option<Stock>>,
    /// Numbers from 65,536 on, at most [`LARGE_MAX`].
    large: BTreeMap<u32, Stock>,
    by_stock: BTreeMap<Stock, u32>,
    /// Names of any length, at most [`LARGE_MAX`].
    names: BTreeMap<u32, Arc<str>>,
    /// The security of messages that name none.
    only: Option<Stock>,
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

    /// A directory for messages of this security that do not name it, such as LOBSTER's.
    pub fn of_symbol(only: Option<Stock>) -> Self {
        Self { only, ..Self::default() }
    }

    /// The security of messages that name none, where it is known.
    #[inline]
    pub fn only_symbol(&self) -> Option<Stock> {
        self.only
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

    /// Learns the name of the security that a venue gives this number, whatever the name's length.
    /// The latest name counts. Returns whether the entry changed.
    pub fn learn_name(&mut self, number: u32, name: &str) -> bool {
        let known = self.names.get(&number);
        if known.is_some_and(|known| **known == *name)
            || known.is_none() && self.names.len() >= LARGE_MAX
        {
            return false;
        }
        self.names.insert(number, Arc::from(name));
        true
    }

    /// The name of a security that [`learn_name`](Self::learn_name) has learned.
    #[inline]
    pub fn security_name(&self, number: u32) -> Option<&Arc<str>> {
        self.names.get(&number)
    }

    /// The numbers and names that [`learn_name`](Self::learn_name) has learned, by number.
    pub fn security_names(&self) -> impl Iterator<Item = (u32, &Arc<str>)> {
        self.names.iter().map(|(number, name)| (*number, name))
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
