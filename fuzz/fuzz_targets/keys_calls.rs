#![no_main]
//! See `evenfall_keys_machine::fuzzing::calls`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_keys_machine::fuzzing::calls(data));
