#![no_main]
//! See `evenfall_node::fuzzing::agent_call`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_node::fuzzing::agent_call(data));
