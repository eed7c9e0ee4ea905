//! Exhaustive models of the protocol, checked with `stateright`. `make test-long`, which sets
//! `EVENFALL_SEEDS`, checks the larger ones, too.

mod external_membership;
mod two_leaves;

/// Whether the larger models are checked.
fn is_long() -> bool {
    std::env::var_os("EVENFALL_SEEDS").is_some()
}
