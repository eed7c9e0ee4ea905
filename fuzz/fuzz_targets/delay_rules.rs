#![no_main]
//! See `evenfall_host::fuzzing::delay_rules`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_host::fuzzing::delay_rules(data));
