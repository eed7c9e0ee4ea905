use super::*;
use proptest::prelude::*;

/// A message of this kind whose every byte differs from its neighbours.
fn patterned(kind: ItchKind, salt: u8) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        (0..kind.length()).map(|i| (i as u8).wrapping_mul(37).wrapping_add(salt)).collect();
    bytes[0] = kind.letter();
    bytes
}

#[test]
fn there_are_twenty_three_kinds_and_letters_lead_back_to_them() {
    assert_eq!(ItchKind::ALL.len(), 23);
    for &kind in ItchKind::ALL {
        assert_eq!(ItchKind::from_letter(kind.letter()), Some(kind));
    }
    let letters: String = ItchKind::ALL.iter().map(|kind| char::from(kind.letter())).collect();
    assert_eq!(letters, "SRHYLVWKJhAFECXDUPQBINO");
    assert_eq!(ItchKind::ALL.iter().map(|kind| kind.length()).max(), Some(MESSAGE_BYTES_MAX));
}

#[test]
fn lengths_are_those_of_the_specification() {
    // The lengths are typed from the specification and not taken from the table, so that a slip in
    // either shows.
    let lengths: Vec<usize> = ItchKind::ALL.iter().map(|kind| kind.length()).collect();
    let expected = [
        12, 39, 25, 20, 26, 35, 12, 28, 35, 21, 36, 40, 31, 36, 23, 19, 35, 44, 40, 19, 50, 20, 48,
    ];
    assert_eq!(lengths, expected);
}

#[test]
fn every_kind_comes_back_byte_for_byte_through_owned_values() {
    for &kind in ItchKind::ALL {
        for salt in [0, 1, 128, 255] {
            let bytes = patterned(kind, salt);
            let view = View::decode(&bytes).unwrap();
            assert_eq!(view.kind(), kind);
            let mut again = Vec::new();
            view.to_owned().encode_into(&mut again);
            assert_eq!(again, bytes, "{kind:?}");
        }
    }
}

#[test]
fn a_wrong_length_is_named_with_its_type() {
    for &kind in ItchKind::ALL {
        let mut bytes = patterned(kind, 9);
        bytes.push(0);
        let found = bytes.len();
        assert_eq!(View::decode(&bytes), Err(ItchError::WrongLength { kind, found }));
        bytes.truncate(kind.length() - 1);
        assert!(View::decode(&bytes).is_err());
    }
    assert_eq!(View::decode(&[]), Err(ItchError::Empty));
    let error = View::decode(b"zzz").unwrap_err();
    assert_eq!(error.to_string(), "unknown ITCH 5.0 message type 'z' (0x7a), 3 bytes");
}

#[test]
fn an_add_order_reads_as_the_exchange_wrote_it() {
    let add = AddOrder {
        stock_locate: 13,
        tracking_number: 0,
        timestamp_ns: 34_500_000_155_705,
        order_reference: 3_555_576_147,
        side: Code(b'S'),
        shares: 20,
        stock: Stock::new("AAPL").unwrap(),
        price: Price4(2_887_300),
    };
    let bytes = add.encode();
    assert_eq!(&bytes[..11], &[0x41, 0, 0x0d, 0, 0, 0x1f, 0x60, 0xa8, 0x41, 0x08, 0x39]);
    let view = View::decode(&bytes).unwrap();
    assert_eq!(view.to_string(), "A,13,0,34500.000155705,3555576147,S,20,AAPL,288.7300");
    assert_eq!(
        view.kind().csv_header(),
        "type,stock_locate,tracking_number,seconds,order_reference,side,shares,stock,price"
    );
    let View::AddOrder(add_view) = view else { panic!("{view:?}") };
    assert_eq!(add_view.to_owned(), add);
    assert_eq!(add_view.timestamp_ns(), add.timestamp_ns);
}

#[test]
fn symbols_are_learned_from_any_message_that_carries_one() {
    let mut symbols = Symbols::new();
    let stock = Stock::new("MSFT").unwrap();
    let delete = OrderDelete { stock_locate: 7, ..Default::default() }.encode();
    assert!(!symbols.observe(&View::decode(&delete).unwrap()));
    assert_eq!(symbols.symbol(7), None);
    let noii = Noii { stock_locate: 7, stock, ..Default::default() }.encode();
    assert!(symbols.observe(&View::decode(&noii).unwrap()));
    assert_eq!(symbols.symbol(7), Some(stock));
    assert_eq!(symbols.locate(stock), Some(7));
    assert_eq!(symbols.len(), 1);
}

#[test]
fn symbols_are_learned_of_numbers_beyond_the_locates_up_to_a_limit() {
    let mut symbols = Symbols::new();
    let [first, other] = ["ESZ6", "NQZ6"].map(|symbol| Stock::new(symbol).unwrap());
    assert!(symbols.learn(u32::MAX, first));
    assert!(!symbols.learn(u32::MAX, first), "nothing is new");
    assert_eq!((symbols.symbol(u32::MAX), symbols.symbol(65_535)), (Some(first), None));
    assert_eq!(symbols.locate(first), Some(u32::MAX));
    let learned = (65_536..2_000_000).filter(|number| symbols.learn(*number, other)).count();
    assert_eq!(learned, (1 << 20) - 1);
    assert!(symbols.learn(7, other), "a locate has its own room");
}

#[test]
fn the_directory_of_another_day_replaces_the_symbols_of_the_locates() {
    let mut symbols = Symbols::new();
    let directory = |stock_locate, symbol: &str| {
        let stock = Stock::new(symbol).unwrap();
        StockDirectory { stock_locate, stock, ..Default::default() }.encode()
    };
    for (locate, symbol) in [(7, "TEST"), (8, "EVEN"), (7, "OTHR"), (8, "TEST"), (8, "")] {
        symbols.observe(&View::decode(&directory(locate, symbol)).unwrap());
    }
    let [test, even, other] = ["TEST", "EVEN", "OTHR"].map(|symbol| Stock::new(symbol).unwrap());
    assert_eq!([7, 8].map(|locate| symbols.symbol(locate)), [Some(other), Some(test)]);
    assert_eq!([test, even, other].map(|stock| symbols.locate(stock)), [Some(8), None, Some(7)]);
    assert_eq!(symbols.len(), 2);
}

#[test]
fn text_that_would_break_a_csv_line_is_escaped() {
    assert_eq!(Alpha::<4>(*b"a,\n ").to_string(), "a\\x2c\\x0a");
    assert_eq!(Alpha::<4>::new("toolong"), None);
    assert_eq!(Alpha::<4>::new("é"), None);
    assert_eq!(Price8(123_456_789).to_string(), "1.23456789");
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(view) = View::decode(&bytes) {
            let line = view.to_string();
            prop_assert_eq!(line.split(',').count(), 4 + view.kind().fields().len());
            prop_assert_eq!(view.bytes(), &bytes[..]);
        }
    }

    #[test]
    fn any_bytes_of_a_kind_come_back(
        kind in prop::sample::select(ItchKind::ALL),
        noise in prop::collection::vec(any::<u8>(), MESSAGE_BYTES_MAX),
    ) {
        let mut bytes = noise[..kind.length()].to_vec();
        bytes[0] = kind.letter();
        let view = View::decode(&bytes).unwrap();
        let mut again = Vec::new();
        view.to_owned().encode_into(&mut again);
        prop_assert_eq!(again, bytes);
    }
}
