#![no_main]
//! See `evenfall_multicast_machine::fuzzing::machines`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_multicast_machine::fuzzing::machines(data));
