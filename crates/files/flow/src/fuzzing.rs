//! Checks that the fuzz targets and the replay of their corpora call. Each check takes any bytes,
//! and panics when a promise breaks.

use crate::openflow::wire::MESSAGE_BYTES_MAX;
use crate::openflow::{ENTRIES_MAX, Event, SwitchMessage, SwitchSession};

/// Input is what a switch sends: a message that is decoded is encoded to the same message, and a
/// session takes any bytes. Bytes that are no stream of messages are tried as one message too.
pub fn openflow(data: &[u8]) {
    // A message of a kind that is not known has lost its body. The match fields of a rule may take
    // eleven bytes more than before, so that a long answer may not fit any more.
    match SwitchMessage::decode(data) {
        Ok((_, SwitchMessage::Other(_))) | Err(_) => {}
        Ok(_) if data.len() > MESSAGE_BYTES_MAX / 2 => {}
        Ok((xid, message)) => {
            let mut bytes = Vec::new();
            message.encode(xid, &mut bytes);
            assert_eq!(SwitchMessage::decode(&bytes), Ok((xid, message)));
        }
    }
    let mut session = SwitchSession::new();
    for piece in data.chunks(100) {
        let Ok(events) = session.arrive(piece) else { break };
        for event in events {
            if let Event::Flows(_, counters) = event {
                assert!(counters.len() <= ENTRIES_MAX);
            }
        }
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
        replay::corpora(&[("openflow", openflow)]);
    }
}
