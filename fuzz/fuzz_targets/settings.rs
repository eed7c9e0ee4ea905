#![no_main]
//! See `evenfall_multicast_service::fuzzing::settings`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_multicast_service::fuzzing::settings(data));
