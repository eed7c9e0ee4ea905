#![no_main]
//! See `evenfall_clock_machine::fuzzing::machine`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_clock_machine::fuzzing::machine(data));
