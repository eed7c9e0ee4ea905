#![no_main]
//! See `messages` in `crates/query/pg/src/fuzzing.rs`. The two modules are taken by their files:
//! the crate brings a query engine, which builds for ten minutes and has no part in this.

#[path = "../../crates/query/pg/src/fuzzing.rs"]
mod fuzzing;
#[path = "../../crates/query/pg/src/messages.rs"]
mod messages;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::messages(data));
