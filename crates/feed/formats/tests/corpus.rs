//! The fuzz corpora of this crate, replayed on stable.

use evenfall_feed_formats::fuzzing;

#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn every_corpus_file_passes_its_target() {
    replay::corpora(&[("itch", fuzzing::itch), ("mold", fuzzing::mold), ("feed", fuzzing::feed)]);
}
