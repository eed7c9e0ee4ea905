//! Messages taken apart by their layouts, and put together.

use evenfall_store_format::messages::{
    FieldPlace, FormatLayout, KindLayout, LineField, LineForm, MessageField, MessageLayout,
    MessageShredder, ShreddedMessage,
};

fn place(field: MessageField, at: u16, len: u16) -> FieldPlace {
    FieldPlace { field, at, len }
}

/// A kind of 24 bytes: two bytes that no field covers at 13, and one at the end.
fn orders() -> FormatLayout {
    let fields = vec![
        place(MessageField::Locate, 1, 2),
        place(MessageField::Time, 3, 6),
        place(MessageField::OrderRef, 9, 4),
        place(MessageField::Symbol, 15, 8),
    ];
    let kind = KindLayout { letter: b'A', len: 24, fields };
    FormatLayout { tag: 1, layout: MessageLayout::Kinds(vec![kind]) }
}

fn lines(form: LineForm) -> FormatLayout {
    let field = |field, form| LineField { field, form };
    let words = [("1", "B"), ("-1", "S")].map(|(word, side)| (word.to_owned(), side.to_owned()));
    let fields = vec![
        field(MessageField::Time, form),
        field(MessageField::Type, LineForm::Text),
        field(MessageField::Price, LineForm::Number),
        field(MessageField::Side, LineForm::Words(words.to_vec())),
    ];
    FormatLayout { tag: 2, layout: MessageLayout::Line(fields) }
}

fn is_shredded(shredder: &MessageShredder, tag: u8, message: &[u8]) -> bool {
    let (mut values, mut scratch) = (ShreddedMessage::default(), Vec::new());
    let is_shredded = shredder.shred_message(tag, message, &mut values, &mut scratch);
    let mut back = Vec::new();
    assert!(!is_shredded || shredder.assemble_message(tag, &values, &mut back) && back == message);
    is_shredded
}

#[test]
fn a_binary_message_comes_back_out_of_its_values() {
    let shredder = MessageShredder::new(&[orders()]).expect("a layout");
    let message = *b"A\x00\x0d\x00\x00\x00\x00\x00\x05\x00\x00\x01\x02xyAAPL    z";
    let (mut values, mut scratch) = (ShreddedMessage::default(), Vec::new());
    assert!(shredder.shred_message(1, &message, &mut values, &mut scratch));
    assert_eq!(values.number(MessageField::Locate), Some(13));
    assert_eq!(values.number(MessageField::OrderRef), Some(258));
    assert_eq!((values.day_ns, values.text(MessageField::Type)), (Some(5), Some(&b"A"[..])));
    assert_eq!(values.text(MessageField::Symbol), Some(&b"AAPL"[..]));
    assert_eq!((values.number(MessageField::Price), &values.rest[..]), (None, &b"xyz"[..]));
    assert!(is_shredded(&shredder, 1, &message));
    let change = |at: usize, byte: u8| {
        let mut message = message;
        message[at] = byte;
        is_shredded(&shredder, 1, &message)
    };
    assert!(change(18, b' ') && change(15, b' '), "spaces within a symbol");
    assert!(!change(0, b'B'), "an unknown kind");
    assert!(!change(3, 0xff), "a time beyond the day");
    assert!(!change(16, 0) && !change(16, 0xe4), "a symbol that is not ASCII");
    assert!(!is_shredded(&shredder, 1, &message[..23]) && !is_shredded(&shredder, 1, b""));
    assert!(!is_shredded(&shredder, 9, &message), "an unknown format");
}

#[test]
fn a_line_comes_back_out_of_its_values_or_stays_a_line() {
    let short = MessageShredder::new(&[lines(LineForm::ShortSeconds)]).expect("a layout");
    let full = MessageShredder::new(&[lines(LineForm::Seconds)]).expect("a layout");
    for (line, by_short, by_full) in [
        ("34200.004241176,1,5853300,1", true, true),
        ("34200.00424117,1,5853300,-1", true, false),
        ("34200.004241170,1,5853300,-1,null", false, true),
        ("34200,1,5853300,-1,", true, false),
        ("34200.,1,5853300,-1", false, false),
        ("0.000000001,X7,-5,1,a,b", true, true),
        ("86400.5,1,5,1", false, false),
        ("034200.5,1,5,1", false, false),
        ("34200.5,1,05,1", false, false),
        ("34200.5,1,5.0,1", false, false),
        ("34200.5,1,-0,1", false, false),
        ("34200.5,1,1000000000000000000,1", false, false),
        ("34200.5,1,99999999999999999999,1", false, false),
        ("34200.5,1,5,2", false, false),
        ("34200.5,1,5", false, false),
        ("", false, false),
    ] {
        assert_eq!(is_shredded(&short, 2, line.as_bytes()), by_short, "{line}");
        assert_eq!(is_shredded(&full, 2, line.as_bytes()), by_full, "{line}");
    }
}

#[test]
fn layouts_that_cannot_be_are_refused() {
    let kind = |len, fields: Vec<FieldPlace>| {
        let kinds = vec![KindLayout { letter: b'A', len, fields }];
        MessageShredder::new(&[FormatLayout { tag: 1, layout: MessageLayout::Kinds(kinds) }])
    };
    let order = place(MessageField::OrderRef, 1, 8);
    assert!(kind(9, vec![order]).is_ok());
    assert!(kind(8, vec![order]).is_err(), "beyond the message");
    assert!(kind(9, vec![place(MessageField::OrderRef, 0, 8)]).is_err(), "over the letter");
    assert!(kind(9, vec![order, place(MessageField::Match, 5, 4)]).is_err(), "overlapping");
    assert!(kind(20, vec![order, place(MessageField::OrderRef, 10, 8)]).is_err(), "twice");
    assert!(kind(20, vec![place(MessageField::Price, 1, 9)]).is_err(), "too long");
    assert!(kind(u16::MAX, vec![]).is_err(), "longer than any message");
    assert!(MessageShredder::new(&[orders(), orders()]).is_err(), "two layouts of a format");
    let field = LineField { field: MessageField::Side, form: LineForm::Number };
    let line = FormatLayout { tag: 1, layout: MessageLayout::Line(vec![field]) };
    assert!(MessageShredder::new(&[line]).is_err(), "a side is no number");
}

#[test]
fn values_that_are_no_message_are_refused() {
    let shredder = MessageShredder::new(&[orders()]).expect("a layout");
    let message = b"A\x00\x0d\x00\x00\x00\x00\x00\x05\x00\x00\x01\x02xyAAPL    z";
    let (mut whole, mut scratch) = (ShreddedMessage::default(), Vec::new());
    assert!(shredder.shred_message(1, message, &mut whole, &mut scratch));
    let changes: [fn(&mut ShreddedMessage<'_>); 7] = [
        |values| values.set_number(MessageField::OrderRef, None),
        |values| values.set_number(MessageField::OrderRef, Some(-1)),
        |values| values.set_number(MessageField::OrderRef, Some(1 << 32)),
        |values| values.set_text(MessageField::Symbol, Some(b"TOO LONG A NAME")),
        |values| values.set_text(MessageField::Type, None),
        |values| values.rest.truncate(2),
        |values| values.rest.push(0),
    ];
    for change in changes {
        let mut values = whole.clone();
        change(&mut values);
        assert!(!shredder.assemble_message(1, &values, &mut Vec::new()), "{values:?}");
    }
}
