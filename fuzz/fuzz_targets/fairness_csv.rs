#![no_main]
//! See `evenfall_multicast_report::fuzzing::fairness_csv`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_multicast_report::fuzzing::fairness_csv(data));
