//! The fuzz corpora of this crate, replayed on stable.

use evenfall_exchange_machine::fuzzing;

#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn every_corpus_file_passes_its_target() {
    replay::corpora(&[
        ("shuffle_bundles", fuzzing::bundles),
        ("shuffle_datagrams", fuzzing::datagrams),
    ]);
}
