//! The check that a fuzz target and the replay of its corpus call. It takes any bytes, and panics
//! when a promise breaks.

use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_core::{Arrival, NodeId, SharedKey, StampedBy, Timestamp};

use crate::producer::wire::{ProduceRequest, ProduceResponse, ProducerEnvelope};
use crate::standby::{FeedEntry, session::VoterSession};

fn address(place: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 9_000 + place))
}

/// Takes a letter of an author or to an author, and its body.
fn letters(bytes: &Bytes, key: &SharedKey) {
    if let Ok(say) = ProduceRequest::decode(bytes) {
        assert_eq!(ProduceRequest::decode(&say.encode().freeze()), Ok(say));
    }
    if let Ok(answer) = ProduceResponse::decode(bytes) {
        assert_eq!(ProduceResponse::decode(&answer.encode().freeze()), Ok(answer));
    }
    for key in [None, Some(key)] {
        if let Ok((envelope, body)) = ProducerEnvelope::open(key, bytes) {
            let (head, sealed) = envelope.seal(key, body[..].into());
            assert_eq!([head.as_slice(), &sealed].concat(), bytes[..]);
        }
    }
}

/// Takes a request and a datagram of roots that vote, and a letter.
pub fn wire(data: &[u8]) {
    let bytes = &Bytes::copy_from_slice(data);
    if let Ok((term, entry)) = FeedEntry::decode(bytes) {
        assert_eq!(FeedEntry::decode(&entry.encode(term)), Ok((term, entry)));
    }
    let roots = [(NodeId(0), address(0)), (NodeId(1), address(1))];
    let key = SharedKey::new(1, [3; 32]);
    letters(bytes, &key);
    for key in [None, Some(&key)] {
        let session = VoterSession::new(NodeId(0), &roots, 7, key);
        let arrival = Arrival::new(address(1), bytes.clone(), Timestamp::ZERO, StampedBy::User);
        session.expect("a root of the list").handle(Timestamp::ZERO, &arrival).ok();
    }
}

#[cfg(test)]
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_corpus_file_passes_its_check() {
        replay::corpora(&[("multicast_wire", wire)]);
    }
}
