#![no_main]
//! See `evenfall_feed_formats::fuzzing::feed`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_feed_formats::fuzzing::feed(data));
