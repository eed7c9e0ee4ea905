//! Messages decoded into rows.

use std::collections::BTreeMap;
use std::ops::Range;

use evenfall_feed_formats::Format;
use evenfall_feed_formats::event::{Event, Events};
use evenfall_feed_formats::itch::Stock;
use evenfall_store_engine::{RecordSource, StoreError};

use crate::records::RecordedMessage;
use crate::rows::MessageRow;
use crate::snapshot::StreamSnapshot;

/// Messages in which the symbol of a locate is first sought, backwards from the first decoded
/// message. An active security has an order among them.
const BLOCK_MESSAGES: u64 = 1 << 14;

/// Decodes the messages of a stream from some message on.
///
/// An execution names a locate, and an earlier message names the symbol of the locate. Where
/// decoding begins in the middle of a stream, the symbols of locates are sought backwards from
/// there, in blocks that grow. All of the stream is read only when a symbol is found nowhere.
pub(crate) struct MessageDecoder {
    events: Events,
    /// The format of messages for which the writer stated none.
    untagged: Format,
    /// Symbols by locate, out of the messages from `known.start` to `known.end`.
    earlier: BTreeMap<u16, Stock>,
    known: Range<u64>,
    block: u64,
}

/// A source with the stream that is decoded.
#[derive(Clone, Copy)]
pub(crate) struct DecodedStream<'a> {
    pub(crate) source: &'a dyn RecordSource,
    pub(crate) stream: &'a StreamSnapshot,
}

impl MessageDecoder {
    /// A decoder for the messages from this number on. `only` is the security of messages that
    /// name none.
    pub(crate) fn new(untagged: Format, first: u64, only: Option<Stock>) -> Self {
        Self {
            events: Events::of_symbol(only),
            untagged,
            earlier: BTreeMap::new(),
            known: first..first,
            block: BLOCK_MESSAGES,
        }
    }

    /// The row of a message, and whether the message names the symbol.
    ///
    /// # Errors
    /// The errors of the source, when earlier messages are read.
    pub(crate) fn decode(
        &mut self,
        from: DecodedStream<'_>,
        mut recorded: RecordedMessage,
        symbol: Option<&str>,
    ) -> Result<(MessageRow, bool), StoreError> {
        let format = *recorded.format.get_or_insert(self.untagged);
        let mut is_named = symbol.is_none();
        let mut event = self.events.read_each(format, &recorded.bytes, |event| {
            let found = event.symbol.as_ref().map(Stock::trimmed);
            is_named |= found.is_some() && found == symbol.map(str::as_bytes);
        });
        if let Some(locate) = unnamed_locate(&event) {
            event.symbol = self.earlier_symbol(from, locate)?;
            let found = event.symbol.as_ref().map(Stock::trimmed);
            is_named |= found.is_some() && found == symbol.map(str::as_bytes);
        }
        Ok((MessageRow { stream: from.stream.stream(), recorded, event }, is_named))
    }

    /// Names the security of an event that was read out of columns.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    #[cfg(feature = "arrow")]
    pub(crate) fn name_security(
        &mut self,
        from: DecodedStream<'_>,
        event: &mut Event,
    ) -> Result<(), StoreError> {
        self.events.name_security(event);
        if let Some(locate) = unnamed_locate(event) {
            event.symbol = self.earlier_symbol(from, locate)?;
        }
        Ok(())
    }

    /// The symbol that the last message before the decoded ones names for a locate.
    fn earlier_symbol(
        &mut self,
        from: DecodedStream<'_>,
        locate: u16,
    ) -> Result<Option<Stock>, StoreError> {
        let oldest = from.stream.oldest();
        while !self.earlier.contains_key(&locate) && self.known.start > oldest {
            let block = self.known.start.saturating_sub(self.block).max(oldest)..self.known.start;
            let mut named = BTreeMap::new();
            let mut events = Events::new();
            let mut replay =
                from.stream.replay(from.source, block.clone(), &(i64::MIN..=i64::MAX))?;
            while let Some(recorded) = replay.next_message()? {
                let format = recorded.format.unwrap_or(self.untagged);
                events.read_each(format, &recorded.bytes, |event| {
                    if let (Some(locate), Some(symbol)) = (event.stock_locate, event.symbol) {
                        named.insert(locate, symbol);
                    }
                });
            }
            // What a later message says of a locate stays.
            for (locate, symbol) in named {
                self.earlier.entry(locate).or_insert(symbol);
            }
            self.known.start = block.start;
            self.block = self.block.saturating_mul(4);
        }
        Ok(self.earlier.get(&locate).copied())
    }
}

/// The locate of an event whose symbol is still unknown. Locate 0 is no security.
fn unnamed_locate(event: &Event) -> Option<u16> {
    event.stock_locate.filter(|locate| *locate != 0 && event.symbol.is_none())
}
