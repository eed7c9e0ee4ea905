//! What fuzzers call.

use std::time::Duration;

use crate::messages::{MessageBounds, MessageReader, NoMessage};

/// Bytes of a statement in this exercise, so that a fuzzer finds the limit.
const STATEMENT_BYTES: usize = 256;

/// Any bytes of a client are read as messages. None of them ends the process, and none makes the
/// reader hold more than a message may have.
pub fn messages(data: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        let bounds = MessageBounds::new(STATEMENT_BYTES, Duration::from_secs(60));
        let mut reader = MessageReader::new(bounds);
        let mut socket = data;
        // Each turn reads a message, refuses one or finds the end.
        for _ in 0..=data.len() {
            match reader.next(&mut socket).await {
                Err(NoMessage::Gone) => return,
                Err(NoMessage::Refused(refusal)) if refusal.is_fatal => return,
                Ok(_) | Err(NoMessage::Refused(_)) => {}
            }
            // A statement, what may stand beside it, and a piece that was read ahead.
            assert!(reader.held_bytes() <= STATEMENT_BYTES + (64 << 10) + (32 << 10));
        }
        panic!("{} bytes are more messages than bytes", data.len());
    });
}

#[cfg(test)]
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    fn corpus() -> Vec<Vec<u8>> {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/corpus/pg_messages");
        let files = std::fs::read_dir(corpus).expect("the corpus is in the repository");
        files.map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect()
    }

    #[test]
    fn what_once_was_interesting_stays_harmless() {
        super::replay::corpora(&[("pg_messages", super::messages)]);
    }

    /// A fuzzer without coverage, for machines without a nightly Rust: messages that are cut, glued
    /// and changed at places that a counter chooses.
    #[test]
    fn changed_messages_are_read_or_refused() {
        let inputs = corpus();
        let mut state = 7u64;
        let mut next = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below.max(1)
        };
        for _ in 0..5_000 {
            let mut bytes = inputs[next(inputs.len())].clone();
            bytes.truncate(400);
            for _ in 0..=next(4) {
                let at = next(bytes.len());
                match next(3) {
                    0 => bytes[at] = next(256) as u8,
                    1 => bytes.truncate(at.max(1)),
                    _ => bytes.extend(inputs[next(inputs.len())].iter().take(100)),
                }
            }
            super::messages(&bytes);
        }
    }
}
