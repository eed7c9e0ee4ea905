#![no_main]
//! See `evenfall_multicast_service::fuzzing::runlog`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_multicast_service::fuzzing::runlog(data));
