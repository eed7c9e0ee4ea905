#![no_main]
//! See `evenfall_placement_survey::fuzzing::agent_call`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_placement_survey::fuzzing::agent_call(data));
