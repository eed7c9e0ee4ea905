#![no_main]
//! See `evenfall_multicast::fuzzing::machines`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_multicast::fuzzing::machines(data));
