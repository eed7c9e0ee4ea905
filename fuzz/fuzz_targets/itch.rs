#![no_main]
//! See `evenfall_feed_formats::fuzzing::itch`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_feed_formats::fuzzing::itch(data));
