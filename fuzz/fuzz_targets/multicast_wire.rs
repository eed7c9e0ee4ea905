#![no_main]
//! See `evenfall_multicast::fuzzing::wire`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_multicast::fuzzing::wire(data));
