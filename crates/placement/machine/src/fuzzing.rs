//! Checks that the fuzz targets and the replay of their corpora call. Each check takes any bytes,
//! and panics when a promise breaks.

use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_core::{Arrival, Machine, StampedBy, Timestamp};

use crate::probe::{self, DelayProbe};
use crate::wire::{self, Decoded};
use crate::{Agent, AgentConfig, MacKey};

/// Datagrams that one input makes an agent send at most.
const SENT_MAX: usize = 10_000;

/// Reads a control message and a probe. Encoding a decoded value gives the same value.
pub fn survey_wire(data: &[u8]) {
    if let Ok(Decoded::Message(message)) = wire::decode(data, None) {
        // Long words are cut when they are written.
        let written = message.encode(None);
        let again = wire::decode(&written, None);
        assert!(matches!(again, Ok(Decoded::Message(again)) if again.encode(None) == written));
    }
    if let Ok(probe) = DelayProbe::decode(data, None) {
        assert_eq!(DelayProbe::decode(&probe.encode(None), None).as_ref(), Ok(&probe));
    }
}

/// The inputs of an agent, each behind two bytes: whose it is with the time that passed, and its
/// length. The same machine stands behind the gRPC envelopes and the datagrams of a real agent.
pub fn survey_agent(data: &[u8]) {
    for key in [None, Some(MacKey::new(1, &[7; 16]))] {
        agent(data, key);
    }
}

fn agent(data: &[u8], key: Option<MacKey>) {
    let mut agent = Agent::new(AgentConfig { key: key.clone(), ..AgentConfig::default() });
    let (mut now, mut rest, mut sent) = (Timestamp::from_nanos(1), data, 0);
    while let Some((&[who, length], tail)) = rest.split_first_chunk::<2>() {
        let (input, tail) = tail.split_at(usize::from(length).min(tail.len()));
        rest = tail;
        now = Timestamp::from_nanos(now.nanos() + (u64::from(who >> 2) << 22));
        let from = SocketAddr::from(([10, 0, 0, who & 3], 9400));
        let datagram = Bytes::from(sealed(input, key.as_ref()));
        let (received, stamped_by) = (now, StampedBy::Kernel);
        let _ = agent.handle(now, Arrival::new(from, datagram, received, stamped_by));
        if agent.poll_timeout().is_some_and(|due| due <= now) {
            agent.handle_timeout(now);
        }
        while sent < SENT_MAX && agent.poll_transmit(now).is_some() {
            sent += 1;
        }
        while agent.poll_event().is_some() || agent.poll_install().is_some() {}
        let _ = agent.status();
    }
}

/// Seals the message as a host with the key would, so that more than the seal is tested.
fn sealed(input: &[u8], key: Option<&MacKey>) -> Vec<u8> {
    match wire::decode(input, None) {
        Ok(Decoded::Message(message)) => message.encode(key).to_vec(),
        _ if input.starts_with(&probe::MAGIC) => match DelayProbe::decode(input, None) {
            Ok(probe) => probe.encode(key).to_vec(),
            Err(_) => input.to_vec(),
        },
        _ => input.to_vec(),
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
        replay::corpora(&[("survey_agent", survey_agent), ("survey_wire", survey_wire)]);
    }
}
