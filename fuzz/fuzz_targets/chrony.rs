#![no_main]
//! See `evenfall_io::fuzzing::chrony`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_io::fuzzing::chrony(data));
