//! Checks that the fuzz targets and the replay of their corpora call. Each check takes any bytes,
//! and panics when a promise breaks.

use evenfall_placement_machine::wire::{self, Decoded};
use prost::Message;

use crate::carrier::Envelope;
use crate::experiment::Experiment;

/// An experiment file, its last line an override: an error in words, or an experiment whose runs
/// are counted.
pub fn experiment(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (file, set) = text.trim_end().rsplit_once('\n').unwrap_or((&text, ""));
    for sets in [&[][..], &[set.to_owned()]] {
        match Experiment::parse(file, "fuzz.toml", sets) {
            Ok(experiment) => assert!(!experiment.plans().is_empty()),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// The body of a call to an agent: an envelope, and the message of the survey in it.
pub fn agent_call(data: &[u8]) {
    let Ok(envelope) = Envelope::decode(data) else { return };
    let again = Envelope::decode(&*envelope.encode_to_vec());
    assert_eq!(again.as_ref(), Ok(&envelope));
    if let Ok(Decoded::Message(message)) = wire::decode(&envelope.message, None) {
        // Long words are cut when they are written.
        let written = message.encode(None);
        let again = wire::decode(&written, None);
        assert!(matches!(again, Ok(Decoded::Message(again)) if again.encode(None) == written));
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
        replay::corpora(&[("agent_call", agent_call), ("experiment", experiment)]);
    }
}
