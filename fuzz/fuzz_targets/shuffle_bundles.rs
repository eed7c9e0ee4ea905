#![no_main]
//! See `evenfall_shuffle::fuzzing::bundles`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_shuffle::fuzzing::bundles(data));
