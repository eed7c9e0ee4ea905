#![no_main]
//! See `evenfall_shuffle::fuzzing::datagrams`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_shuffle::fuzzing::datagrams(data));
