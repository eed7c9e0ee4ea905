//! Checks that the fuzz targets and the replay of their corpora call. Each check takes any bytes,
//! and panics when a promise breaks.

use evenfall_placement_machine::fuzzing::survey_wire;
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
    survey_wire(&envelope.message);
}
