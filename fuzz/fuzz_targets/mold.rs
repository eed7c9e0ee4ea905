#![no_main]
//! See `evenfall_feed::fuzzing::mold`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_feed::fuzzing::mold(data));
