#![no_main]
//! See `evenfall_order_machine::fuzzing::calls`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_order_machine::fuzzing::calls(data));
