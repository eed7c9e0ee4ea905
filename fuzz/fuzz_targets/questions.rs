#![no_main]
//! See `evenfall_query_burst::fuzzing::take_questions`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_query_burst::fuzzing::take_questions(data));
