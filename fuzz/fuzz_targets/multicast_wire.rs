#![no_main]
//! See `evenfall_multicast_machine::fuzzing::wire`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    evenfall_multicast_machine::fuzzing::wire(data);
    evenfall_multicast_sessions::fuzzing::wire(data);
});
