#![no_main]
//! See `evenfall_multicast_machine::fuzzing::wire`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_multicast_machine::fuzzing::wire(data));
