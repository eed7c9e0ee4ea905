use super::*;

const USE: StreamUse = StreamUse::Store;

fn client(name: &[u8], secret: u8) -> ClientHandshake {
    ClientHandshake::new(USE, name, &[secret; 32], &[1; RANDOM_BYTES], Cipher::new_aes)
}

fn connect(
    client: &ClientHandshake,
    secret: u8,
) -> Result<(SealedEnds, SealedEnds), HandshakeError> {
    let hello = ClientHello::parse(USE, client.hello())?;
    let (answer, server) = hello.answer(&[secret; 32], &[2; RANDOM_BYTES], Cipher::new_aes);
    let answer: [u8; ANSWER_BYTES] = answer.try_into().unwrap();
    Ok((client.finish(&answer)?, server))
}

fn pair() -> (SealedEnds, SealedEnds) {
    connect(&client(b"ann", 7), 7).unwrap()
}

/// Gives bytes to an opener in parts of this size, and returns all that opens.
fn open_all(
    opener: &mut RecordOpener,
    mut sealed: &[u8],
    part: usize,
) -> Result<(Vec<u8>, bool), RecordError> {
    let (mut all, mut out) = (Vec::new(), [0; 1_000]);
    loop {
        match opener.take(&mut out)? {
            OpenedRecord::Bytes(len) => all.extend_from_slice(&out[..len]),
            OpenedRecord::End => return Ok((all, true)),
            OpenedRecord::NeedsMore if sealed.is_empty() => return Ok((all, false)),
            OpenedRecord::NeedsMore => {
                let room = opener.room();
                let len = part.min(sealed.len()).min(room.len());
                room[..len].copy_from_slice(&sealed[..len]);
                opener.note_arrival(len);
                sealed = &sealed[len..];
            }
        }
    }
}

#[test]
fn bytes_of_any_length_arrive_in_parts_of_any_length() {
    for length in [0, 1, 15, RECORD_BYTES_MAX - 1, RECORD_BYTES_MAX, 3 * RECORD_BYTES_MAX + 5] {
        for part in [1, 7, 4_096, usize::MAX] {
            let (mut ann, mut server) = pair();
            let bytes: Vec<u8> = (0..length).map(|n| n as u8).collect();
            let mut sealed = Vec::new();
            ann.sealer.seal(&bytes, &mut sealed);
            ann.sealer.seal_end(&mut sealed);
            assert!(length < 16 || !sealed.windows(16).any(|window| *window == bytes[..16]));
            let opened = open_all(&mut server.opener, &sealed, part).unwrap();
            assert_eq!(opened, (bytes, true), "{length} bytes in parts of {part}");
            server.opener.note_end().unwrap();
        }
    }
}

#[test]
fn a_stream_opens_over_many_keys() {
    let (mut ann, mut server) = pair();
    for number in 0..2 * RECORDS_PER_KEY + 10 {
        let mut sealed = Vec::new();
        ann.sealer.seal(&number.to_le_bytes(), &mut sealed);
        let opened = open_all(&mut server.opener, &sealed, usize::MAX).unwrap();
        assert_eq!(opened.0, number.to_le_bytes());
    }
}

#[test]
fn a_changed_byte_a_repeated_and_a_missing_record_end_the_stream() {
    let sealed = || {
        let (mut ann, server) = pair();
        let mut records = [const { Vec::new() }; 2];
        records.iter_mut().for_each(|out| ann.sealer.seal(b"bid", out));
        (records, server.opener)
    };
    let ([first, second], mut opener) = sealed();
    let mut repeated = |bytes: &[u8]| open_all(&mut opener, bytes, usize::MAX);
    assert!(repeated(&first).is_ok());
    assert_eq!(repeated(&first), Err(RecordError::Forged));
    let (_, mut opener) = sealed();
    assert_eq!(open_all(&mut opener, &second, usize::MAX), Err(RecordError::Forged));
    for at in 0..first.len() {
        let (_, mut opener) = sealed();
        let mut changed = first.clone();
        changed[at] ^= 1;
        // A longer length waits for more bytes, which then do not open.
        changed.extend_from_slice(&[0; RECORD_BYTES_MAX]);
        assert!(open_all(&mut opener, &changed, usize::MAX).is_err(), "byte {at}");
    }
    let (_, mut opener) = sealed();
    assert_eq!(open_all(&mut opener, &[255; 64], 64), Err(RecordError::TooLong(65_535)));
}

#[test]
fn a_cut_is_told_apart_from_an_end() {
    let (mut ann, mut server) = pair();
    let mut sealed = Vec::new();
    ann.sealer.seal(b"bid", &mut sealed);
    assert!(!open_all(&mut server.opener, &sealed, 5).unwrap().1);
    assert_eq!(server.opener.note_end(), Err(RecordError::CutOff));
    let mut end = Vec::new();
    ann.sealer.seal_end(&mut end);
    end.push(9);
    assert_eq!(open_all(&mut server.opener, &end, 64), Err(RecordError::BehindEnd));
}

#[test]
fn another_key_another_name_and_a_replayed_hello_make_no_stream() {
    assert_eq!(connect(&client(b"ann", 7), 8).err(), Some(HandshakeError::WrongKey));
    // The same hello again meets other random bytes, so that recorded records do not open.
    let ann = client(b"ann", 7);
    let (mut ends, _) = connect(&ann, 7).unwrap();
    let mut recorded = Vec::new();
    ends.sealer.seal(b"buy", &mut recorded);
    let hello = ClientHello::parse(USE, ann.hello()).unwrap();
    let (_, mut again) = hello.answer(&[7; 32], &[3; RANDOM_BYTES], Cipher::new_aes);
    assert_eq!(open_all(&mut again.opener, &recorded, 64), Err(RecordError::Forged));
    // The name is part of the keys.
    let mut renamed = ann.hello().to_vec();
    *renamed.last_mut().unwrap() = b'b';
    let hello = ClientHello::parse(USE, &renamed).unwrap();
    assert_eq!(hello.key_name(), b"anb");
    let (answer, _) = hello.answer(&[7; 32], &[2; RANDOM_BYTES], Cipher::new_aes);
    let finished = ann.finish(&answer.try_into().unwrap());
    assert_eq!(finished.err(), Some(HandshakeError::WrongKey));
}

#[test]
fn refusals_say_why() {
    let ann = client(b"ann", 7);
    let refused = |bytes: [u8; PREFIX_BYTES]| ann.check_prefix(&bytes).unwrap_err();
    assert_eq!(refused(refuse_hello(HelloVerdict::NoKeys)), HandshakeError::NoKeys);
    let mut later = refuse_hello(HelloVerdict::Version);
    later[4] = 9;
    assert_eq!(refused(later), HandshakeError::Version(9));
    assert_eq!(refused(*b"HTTP/1.1"), HandshakeError::NotSealed);
    assert_eq!(ClientHello::parse(USE, b"GET / HTTP/1.1"), Err(HandshakeError::NotSealed));
    assert_eq!(ClientHello::parse(USE, &ann.hello()[..20]), Err(HandshakeError::NotSealed));
    assert_eq!(ClientHello::parse(StreamUse::Http, ann.hello()), Err(HandshakeError::OtherUse));
    let mut long = ann.hello().to_vec();
    long[6] = 65;
    long.resize(PREFIX_BYTES + RANDOM_BYTES + 65, b'a');
    assert_eq!(ClientHello::parse(USE, &long), Err(HandshakeError::NotSealed));
}
