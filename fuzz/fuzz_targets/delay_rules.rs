#![no_main]
//! See `evenfall_io::fuzzing::delay_rules`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_io::fuzzing::delay_rules(data));
