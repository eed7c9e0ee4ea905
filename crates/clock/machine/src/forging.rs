//! Datagrams that a holder of keys can make in the name of other nodes: what tests and instruments
//! attack nodes with. No role calls this module.

use bytes::Bytes;
use evenfall_core::SharedKey;

use crate::Timekeeper;
use crate::wire::ClockMessage;

/// The datagrams that a node can make of a message: one under the shared key, and one under each
/// key of two ends that the node knows.
pub fn forge_all(thief: &Timekeeper, shared: &SharedKey, message: &ClockMessage) -> Vec<Bytes> {
    let shared = Timekeeper::shared_code(shared);
    thief.known_keys().chain([&shared]).map(|key| message.encode(Some(key))).collect()
}
