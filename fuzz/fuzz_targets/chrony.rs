#![no_main]
//! See `evenfall_port::fuzzing::chrony`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_port::fuzzing::chrony(data));
