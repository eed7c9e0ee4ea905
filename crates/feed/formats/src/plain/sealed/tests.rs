use super::*;

const SALT: [u8; SALT_BYTES] = [3; SALT_BYTES];

fn key(byte: u8) -> SharedKey {
    SharedKey::new(1, [byte; 32])
}

#[test]
fn a_datagram_opens_for_its_participant_alone_and_unchanged() {
    let mut sealer = PlainSealer::new(&key(7), SALT);
    let sealed = sealer.seal(b"head", b"message");
    assert_eq!(sealed.len(), SEAL_BYTES + 11);
    let mut opener = PlainOpener::new(key(7));
    assert_eq!(opener.open(&sealed).as_deref(), Some(&b"headmessage"[..]));
    assert_eq!(PlainOpener::new(key(8)).open(&sealed), None);
    for at in 0..sealed.len() {
        let mut changed = sealed.to_vec();
        changed[at] ^= 1;
        assert_eq!(opener.open(&changed), None, "byte {at}");
        assert_eq!(opener.open(&sealed[..at]), None, "{at} bytes");
    }
    assert!(!sealed.windows(7).any(|bytes| bytes == b"message"));
}

#[test]
fn equal_datagrams_are_sealed_differently_each_time_and_at_each_start() {
    let mut sealer = PlainSealer::new(&key(7), SALT);
    let (first, second) = (sealer.seal(b"h", b"m"), sealer.seal(b"h", b"m"));
    let other = PlainSealer::new(&key(7), [4; SALT_BYTES]).seal(b"h", b"m");
    let body = |datagram: &Bytes| datagram.slice(PREFIX_BYTES..);
    assert_ne!(body(&first), body(&second));
    assert_ne!(body(&first), body(&other));
}

#[test]
fn several_gateways_are_read_and_strangers_salts_are_not_remembered() {
    let mut opener = PlainOpener::new(key(7));
    let sealed = |of, salt| PlainSealer::new(&key(of), [salt; SALT_BYTES]).seal(b"h", b"m");
    for salt in 0..100 {
        assert_eq!(opener.open(&sealed(8, salt)), None);
    }
    assert_eq!(format!("{opener:?}"), "PlainOpener(0 starts)");
    for salt in 0..10 {
        assert!(opener.open(&sealed(7, salt)).is_some());
    }
    assert_eq!(format!("{opener:?}"), "PlainOpener(4 starts)");
    assert!(opener.open(&sealed(7, 0)).is_some(), "a start that was forgotten");
}

/// `blake3` and `cryptography` for Python made the wanted bytes.
#[test]
fn sealed_bytes_are_those_that_the_page_of_the_wire_describes() {
    let sealed = PlainSealer::new(&key(7), SALT).seal(b"head", b"message");
    let hex: String = sealed.iter().map(|byte| format!("{byte:02x}")).collect();
    let prefix = "4556465301000000030303030303030303030303030303030100000000000000";
    assert_eq!(hex, format!("{prefix}31636c24f4145ccc47083fdc727e31f3d126b39e4fa70387e110c7"));
}
