#![no_main]
//! See `requests` of `evenfall_feed_service::fuzzing`, and `mold_requests` of the formats.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    evenfall_feed_service::fuzzing::requests(data);
    evenfall_feed_formats::fuzzing::mold_requests(data);
});
