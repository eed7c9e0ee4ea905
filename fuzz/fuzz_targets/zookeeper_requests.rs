#![no_main]
//! See `evenfall_keys_zookeeper::fuzzing::requests`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_keys_zookeeper::fuzzing::requests(data));
