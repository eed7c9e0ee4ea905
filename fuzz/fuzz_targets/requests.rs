#![no_main]
//! See `evenfall_feed_service::fuzzing::requests`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_feed_service::fuzzing::requests(data));
