//! The fuzz corpora of this crate, replayed on stable.

use evenfall_node::fuzzing;

#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn every_corpus_file_passes_its_target() {
    replay::corpora(&[
        ("settings", fuzzing::settings),
        ("requests", fuzzing::requests),
        ("runlog", fuzzing::runlog),
        ("store_wire", fuzzing::store_wire),
        ("store_table", fuzzing::store_table),
        ("run_json", fuzzing::run_json),
        ("experiment", fuzzing::experiment),
        ("agent_call", fuzzing::agent_call),
    ]);
}
