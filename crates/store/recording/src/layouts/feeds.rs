//! What the formats of feeds tell the store.

use evenfall_feed_formats::Format;
use evenfall_feed_formats::codec::{self, DAY_NS, TimeOrigin};
use evenfall_feed_formats::event::Event;
use evenfall_feed_formats::itch::{ItchKind, Symbols};
use evenfall_store_format::Schema;
use evenfall_store_format::messages::parts::is_parted;
use evenfall_store_format::messages::{
    FieldPlace, FormatLayout, KindLayout, LineField, LineForm, MessageField, MessageLayout,
    MessageLayouts,
};

use crate::records::is_message_schema;

/// What the formats of feeds tell the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct FeedLayouts;

impl MessageLayouts for FeedLayouts {
    fn layouts_of(&self, schema: &Schema) -> Option<Vec<FormatLayout>> {
        let is_it = is_parted(schema) || is_message_schema(schema, schema.record_bytes);
        is_it.then(|| {
            let line = |form| FormatLayout { tag: codec::LOBSTER.0, layout: lobster_layout(form) };
            let itch = FormatLayout { tag: codec::ITCH.0, layout: itch_layout() };
            vec![itch, line(LineForm::ShortSeconds), line(LineForm::Seconds)]
        })
    }

    fn wall_ns(&self, tag: u8, recorded_ns: i64, day_ns: Option<u64>) -> Option<i64> {
        let clock = codec::of(Format(tag)).map_or(TimeOrigin::Epoch, codec::Codec::clock);
        clock.wall_ns(stated_ns(clock, recorded_ns, day_ns).unwrap_or(recorded_ns))
    }

    fn type_name(&self, tag: u8, message: &[u8]) -> Option<&'static str> {
        let mut first: Option<Event> = None;
        codec::of(Format(tag))?.events(message, &mut Symbols::new(), &mut |event| {
            first.get_or_insert(event);
        });
        first?.kind
    }
}

/// The instant that a message states: an instant, or a time of the day of the recorded time.
pub(crate) fn stated_ns(clock: TimeOrigin, recorded_ns: i64, event_ns: Option<u64>) -> Option<i64> {
    match clock {
        TimeOrigin::Epoch => i64::try_from(event_ns?).ok(),
        TimeOrigin::Midnight { .. } => {
            let day_ns = event_ns? % DAY_NS;
            clock.of_day_ns(clock.date_of(recorded_ns)?, day_ns)
        }
    }
}

/// The column of a field of ITCH; `None` for fields that stay in `rest`.
fn itch_field(name: &str) -> Option<MessageField> {
    Some(match name {
        "order_reference" | "original_reference" => MessageField::OrderRef,
        "new_reference" => MessageField::NewOrderRef,
        "side" => MessageField::Side,
        "shares" | "executed_shares" | "cancelled_shares" => MessageField::Shares,
        "stock" => MessageField::Symbol,
        "price" | "execution_price" | "cross_price" => MessageField::Price,
        "match_number" => MessageField::Match,
        _ => return None,
    })
}

fn itch_layout() -> MessageLayout {
    let kind = |kind: &ItchKind| {
        let place = |field, at, len| FieldPlace { field, at: at as u16, len: len as u16 };
        let head = [
            place(MessageField::Locate, 1, 2),
            place(MessageField::Tracking, 3, 2),
            place(MessageField::Time, 5, 6),
        ];
        let own = kind.fields().iter().filter_map(|field| {
            itch_field(field.name).map(|column| place(column, field.offset, field.width))
        });
        let fields = head.into_iter().chain(own).collect();
        KindLayout { letter: kind.letter(), len: kind.length() as u16, fields }
    };
    MessageLayout::Kinds(ItchKind::ALL.iter().map(kind).collect())
}

fn lobster_layout(seconds: LineForm) -> MessageLayout {
    let field = |field, form| LineField { field, form };
    let words = |pairs: &[(&str, &str)]| {
        let owned = |(word, shown): &(&str, &str)| ((*word).to_owned(), (*shown).to_owned());
        LineForm::Words(pairs.iter().map(owned).collect())
    };
    let types = ["1", "2", "3", "4", "5", "6", "7"].map(|digit| (digit, digit));
    MessageLayout::Line(vec![
        field(MessageField::Time, seconds),
        field(MessageField::Type, words(&types)),
        field(MessageField::OrderRef, LineForm::Number),
        field(MessageField::Shares, LineForm::Number),
        field(MessageField::Price, LineForm::Number),
        field(MessageField::Side, words(&[("1", "B"), ("-1", "S")])),
    ])
}
