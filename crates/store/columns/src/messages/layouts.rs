//! The layouts of the messages of one chunk, and the venue's clock at their times.

use std::collections::BTreeMap;

use evenfall_store_format::Result;
use evenfall_store_format::messages::{
    FormatLayout, MessageLayout, MessageLayouts, MessageShredder, QuarterMemo, ShreddedMessage,
};

use super::ChunkMessages;

/// For each format of these messages, the layout that shreds the most of a sample. A layout keeps
/// the kinds of messages that are there.
pub(super) fn chosen_layouts(
    messages: &ChunkMessages<'_>,
    candidates: Vec<FormatLayout>,
) -> Result<Vec<FormatLayout>> {
    let mut best: BTreeMap<u8, (usize, FormatLayout)> = BTreeMap::new();
    for layout in candidates {
        let shredder = MessageShredder::new(std::slice::from_ref(&layout))?;
        let (mut values, mut scratch) = (ShreddedMessage::default(), Vec::new());
        let mut count = 0;
        for record in messages.sample() {
            let is_shredded = record.plain.is_some_and(|message| {
                shredder.shred_message(record.tag, message, &mut values, &mut scratch)
            });
            count += usize::from(is_shredded);
        }
        if best.get(&layout.tag).map_or(0, |(most, _)| *most) < count {
            best.insert(layout.tag, (count, layout));
        }
    }
    let mut there = vec![[false; 256]; 256];
    for record in messages.all() {
        if let Some(letter) = record.kept.first() {
            there[usize::from(record.tag)][usize::from(*letter)] = true;
        }
    }
    Ok(best
        .into_values()
        .map(|(_, mut layout)| {
            if let MessageLayout::Kinds(kinds) = &mut layout.layout {
                let there = &there[usize::from(layout.tag)];
                kinds.retain(|kind| there[usize::from(kind.letter)]);
            }
            layout
        })
        .collect())
}

/// The venues' clocks.
pub(super) struct OffsetClock<'a> {
    layouts: &'a dyn MessageLayouts,
    /// By tag, what to add to a message's time; `None` where no clock shows a time.
    offsets: QuarterMemo<u8, Option<i64>>,
}

impl<'a> OffsetClock<'a> {
    pub(super) fn new(layouts: &'a dyn MessageLayouts) -> Self {
        Self { layouts, offsets: QuarterMemo::default() }
    }

    pub(super) fn message_layouts(&self) -> &'a dyn MessageLayouts {
        self.layouts
    }

    /// What the venue's clock shows at a message; the recorded time where no clock does.
    pub(super) fn wall_ns(&mut self, tag: u8, recorded_ns: i64, day_ns: Option<u64>) -> i64 {
        let stated = day_ns.map(|day_ns| day_ns as i64);
        let from = stated.unwrap_or(recorded_ns);
        let offset = self.offsets.recall(tag, recorded_ns, stated, || {
            let wall_ns = self.layouts.wall_ns(tag, recorded_ns, day_ns)?;
            Some(wall_ns.wrapping_sub(from))
        });
        offset.map_or(recorded_ns, |offset| from.wrapping_add(offset))
    }
}
