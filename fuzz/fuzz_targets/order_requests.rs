#![no_main]
//! See `evenfall_order_service::fuzzing::requests`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_order_service::fuzzing::requests(data));
