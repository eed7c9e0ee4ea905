#![no_main]
//! See `evenfall_store_engine::fuzzing::store_seal`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_store_engine::fuzzing::store_seal(data));
