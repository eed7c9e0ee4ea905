//! The fuzz corpora of this crate, replayed on stable.

use evenfall_host::fuzzing;

#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn every_corpus_file_passes_its_target() {
    replay::corpora(&[("chrony", fuzzing::chrony), ("delay_rules", fuzzing::delay_rules)]);
}
