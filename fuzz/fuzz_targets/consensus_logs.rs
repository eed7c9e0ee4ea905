#![no_main]
//! See `evenfall_consensus_machine::fuzzing::logs`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_consensus_machine::fuzzing::logs(data));
