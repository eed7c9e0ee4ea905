//! The check that a fuzz target and the replay of its corpus call. It takes any bytes, and panics
//! when a promise breaks.

use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_core::{Arrival, NodeId, SharedKey, StampedBy, Timestamp};

use crate::line::letter::{Answer, Envelope, Say};
use crate::standby::{Entry, session::Session};

fn address(place: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 9_000 + place))
}

/// Takes a letter of an author or to an author, and its body.
fn letters(bytes: &Bytes, key: &SharedKey) {
    if let Ok(say) = Say::decode(bytes) {
        assert_eq!(Say::decode(&say.encode().freeze()), Ok(say));
    }
    if let Ok(answer) = Answer::decode(bytes) {
        assert_eq!(Answer::decode(&answer.encode().freeze()), Ok(answer));
    }
    for key in [None, Some(key)] {
        if let Ok((envelope, body)) = Envelope::open(key, bytes) {
            let (head, sealed) = envelope.seal(key, body[..].into());
            assert_eq!([head.as_slice(), &sealed].concat(), bytes[..]);
        }
    }
}

/// Takes a request and a datagram of roots that vote, and a letter.
pub fn wire(data: &[u8]) {
    let bytes = &Bytes::copy_from_slice(data);
    if let Ok((term, entry)) = Entry::decode(bytes) {
        assert_eq!(Entry::decode(&entry.encode(term)), Ok((term, entry)));
    }
    let roots = [(NodeId(0), address(0)), (NodeId(1), address(1))];
    let key = SharedKey::new(1, [3; 32]);
    letters(bytes, &key);
    for key in [None, Some(&key)] {
        let session = Session::new(NodeId(0), &roots, 7, key);
        let arrival = Arrival::new(address(1), bytes.clone(), Timestamp::ZERO, StampedBy::User);
        session.expect("a root of the list").handle(Timestamp::ZERO, &arrival).ok();
    }
}
