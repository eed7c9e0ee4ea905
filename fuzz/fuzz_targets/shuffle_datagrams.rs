#![no_main]
//! See `evenfall_collectives_machine::fuzzing::datagrams`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_collectives_machine::fuzzing::datagrams(data));
