use super::*;
use proptest::prelude::*;

fn head(kind: PlainKind) -> PlainHead {
    PlainHead {
        kind,
        format: Format(3),
        tree: 2,
        run: 0x6512_0001,
        number: 1 << 40,
        deadline_ns: 5,
        released_ns: 6,
    }
}

#[test]
fn every_kind_comes_back_as_it_went() {
    let kinds =
        [PlainKind::Message, PlainKind::Heartbeat, PlainKind::End, PlainKind::Lost(u64::MAX)];
    for kind in kinds {
        let head = head(kind);
        let message: &[u8] = if kind == PlainKind::Message { b"a message" } else { b"" };
        let datagram = [&head.encode()[..], &head.encode_body(), message].concat();
        assert_eq!(PlainHead::decode(&datagram), Ok((head, message)));
    }
    let bytes = head(PlainKind::Message).encode();
    assert_eq!(&bytes[..16], b"EVFP\x01\0\x03\0\x02\0\0\0\x01\0\x12\x65");
}

#[test]
fn other_bytes_are_refused_by_name() {
    let good = head(PlainKind::Heartbeat).encode();
    let changed = |at: usize, byte: u8| {
        let mut bytes = good;
        bytes[at] = byte;
        PlainHead::decode(&bytes).map(drop)
    };
    assert_eq!(PlainHead::decode(&good[..39]), Err(PlainError::Truncated { found: 39 }));
    assert_eq!(changed(0, b'X'), Err(PlainError::Foreign));
    assert_eq!(changed(4, 2), Err(PlainError::Version { found: 2 }));
    assert_eq!(changed(5, 4), Err(PlainError::Kind { found: 4 }));
    assert_eq!(changed(5, 3), Err(PlainError::Kind { found: 3 }), "a loss says how many");
    let nothing = [&head(PlainKind::Lost(0)).encode()[..], &[0; 8]].concat();
    assert_eq!(PlainHead::decode(&nothing), Err(PlainError::Kind { found: 3 }), "and not none");
}

proptest! {
    #[test]
    fn any_bytes_are_a_datagram_or_refused(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..60), is_ours in any::<bool>()
    ) {
        if is_ours && bytes.len() > 6 {
            bytes[..5].copy_from_slice(b"EVFP\x01");
            bytes[5] %= 5;
        }
        if let Ok((head, message)) = PlainHead::decode(&bytes) {
            let again = [&head.encode()[..], &head.encode_body(), message].concat();
            // The byte that is reserved has any value in what others send.
            prop_assert_eq!(&again[8..], &bytes[8..]);
        }
    }
}
