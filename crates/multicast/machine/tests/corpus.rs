//! The fuzz corpora of this crate, replayed on stable.

use evenfall_multicast_machine::fuzzing;

#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn every_corpus_file_passes_its_target() {
    replay::corpora(&[
        ("multicast_wire", fuzzing::wire),
        ("multicast_machines", fuzzing::machines),
        ("fairness_csv", fuzzing::fairness_csv),
    ]);
}
