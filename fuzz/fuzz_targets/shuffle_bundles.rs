#![no_main]
//! See `evenfall_exchange_machine::fuzzing::bundles`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_exchange_machine::fuzzing::bundles(data));
