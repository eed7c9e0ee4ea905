#![no_main]
//! See `evenfall_port::fuzzing::delay_rules`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_port::fuzzing::delay_rules(data));
