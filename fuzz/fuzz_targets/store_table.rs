#![no_main]
//! See `evenfall_node::fuzzing::store_table`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_node::fuzzing::store_table(data));
