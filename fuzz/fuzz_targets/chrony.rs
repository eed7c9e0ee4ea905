#![no_main]
//! See `evenfall_host::fuzzing::chrony`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_host::fuzzing::chrony(data));
