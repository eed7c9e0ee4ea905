#![no_main]
//! See `evenfall_clock_machine::fuzzing::wire`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_clock_machine::fuzzing::wire(data));
