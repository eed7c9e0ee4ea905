#![no_main]
//! See `read_statements` in `crates/query/sql/src/fuzzing.rs`. The modules of that crate are taken
//! by their files, because the crate brings a query engine, which builds for ten minutes and has no
//! part in this.

#[path = "../../crates/query/sql/src/fuzzing.rs"]
mod fuzzing;
#[path = "../../crates/query/sql/src/nesting.rs"]
mod nesting;
#[path = "../../crates/query/sql/src/placeholders.rs"]
mod placeholders;
#[path = "../../crates/query/sql/src/syntax.rs"]
mod syntax;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::read_statements(data));
