#![no_main]
//! See `evenfall_feed_formats::fuzzing::mold`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_feed_formats::fuzzing::mold(data));
