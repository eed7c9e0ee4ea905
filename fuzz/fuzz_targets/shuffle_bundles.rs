#![no_main]
//! See `evenfall_collectives_machine::fuzzing::bundles`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_collectives_machine::fuzzing::bundles(data));
