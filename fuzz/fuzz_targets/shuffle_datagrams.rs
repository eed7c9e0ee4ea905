#![no_main]
//! See `evenfall_exchange_machine::fuzzing::datagrams`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_exchange_machine::fuzzing::datagrams(data));
