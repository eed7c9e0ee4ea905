#![no_main]
//! See `evenfall_multicast_service::fuzzing::run_json`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_multicast_service::fuzzing::run_json(data));
