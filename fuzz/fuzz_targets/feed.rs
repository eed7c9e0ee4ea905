#![no_main]
//! See `evenfall_feed::fuzzing::feed`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_feed::fuzzing::feed(data));
