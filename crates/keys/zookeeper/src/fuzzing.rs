//! A check that the fuzz target and the replay of its corpus call.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use bytes::Bytes;
use evenfall_host::Waker;
use evenfall_keys_machine::{AclIdentity, Command, KeyCall, Keys};

use crate::operations::ZooKeeperRequest;
use crate::reading::ReadingClient;
use crate::replica::ReplicaInbox;
use crate::shared::SharedKeys;
use crate::{Options, Settings};
use evenfall_keys_machine::jute::Fields;

/// Input is requests of clients, each behind two bytes of length and without its xid. Any bytes are
/// either answered as a request or refused. A call for the order survives its encoding.
pub fn requests(data: &[u8]) {
    let address = ([127, 0, 0, 1], 0).into();
    let replica = evenfall_consensus_replica::Settings {
        node: 0,
        replicas: vec![address],
        directory: Default::default(),
        lease_cycles: 0,
        racks: Default::default(),
        key: None,
    };
    let zookeeper = Options::default();
    let settings = Settings { replica, listen: address, bytes_max: None, zookeeper };
    let waker = Waker::new().expect("a descriptor is left");
    let (inputs, _taken) = sync_channel(1);
    let shared =
        Arc::new(SharedKeys::new(settings, ReplicaInbox::new(inputs, waker.clone()), waker));
    let mut keys = Keys::new(1 << 20);
    let who = [AclIdentity::new("ip", "127.0.0.1"), AclIdentity::new("digest", "ann:x")];
    let open = Command::Open { timeout_ms: 4_000, password: 9, is_new: true };
    keys.apply(&KeyCall { session: 1, opened: 0, sequence: 0, at_ms: 0, command: open }.encode());
    let opened = keys.revision();
    let (mut at, mut revision) = (0, 0);
    while let Some(head) = data.get(at..at + 2) {
        let length = usize::from(u16::from_le_bytes([head[0], head[1]]));
        let message = &data[at + 2..data.len().min(at + 2 + length)];
        at += 2 + length;
        let Ok(number) = Fields::new(message).int() else { continue };
        match ZooKeeperRequest::read(number, &message[4..], &who) {
            Ok(ZooKeeperRequest::Write(command, shape)) => {
                revision += 1;
                let call = KeyCall { session: 1, opened, sequence: 0, at_ms: revision, command };
                let body = call.encode();
                assert_eq!(KeyCall::decode(&body), Ok(call));
                shape.answer(1, revision, &keys.apply(&body).reply);
            }
            Ok(ZooKeeperRequest::Call(body)) => {
                let _ = KeyCall::decode(&Bytes::copy_from_slice(&body));
            }
            Ok(ZooKeeperRequest::Read(query)) => {
                query.answer(1, &keys, &shared, &mut ReadingClient::new(2, 1, &who));
            }
            _ => {}
        }
    }
    assert!(keys.bytes() <= 1 << 20);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Inputs that a fuzzer once found interesting do no harm.
    #[test]
    fn the_corpus_is_answered() {
        let corpus =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/zookeeper_requests");
        let files = std::fs::read_dir(corpus).expect("the corpus is in the repository");
        let count = files.map(|file| {
            super::requests(&std::fs::read(file.expect("a file").path()).expect("read"))
        });
        assert!(count.count() > 0);
    }
}
