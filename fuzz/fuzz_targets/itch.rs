#![no_main]
//! See `evenfall_feed::fuzzing::itch`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_feed::fuzzing::itch(data));
