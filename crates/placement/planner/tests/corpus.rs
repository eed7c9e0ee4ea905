//! The fuzz corpora of this crate, replayed on stable.

use evenfall_placement_planner::fuzzing;

#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn every_corpus_file_passes_its_target() {
    replay::corpora(&[
        ("qaplib", fuzzing::qaplib),
        ("survey_wire", fuzzing::survey_wire),
        ("survey_agent", fuzzing::survey_agent),
        ("delays", fuzzing::delays),
    ]);
}
