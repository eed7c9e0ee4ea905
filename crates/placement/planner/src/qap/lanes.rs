//! Loops over rows of costs, in the widest vectors of this machine.
//!
//! The binary is built for any machine of its kind; a loop that is handed to [`widest`] is there
//! twice, and the better one is chosen when it runs. The sums are laid out in lanes and nothing is
//! fused, so both give the same bits. The closure and all that it calls must be
//! `#[inline(always)]`: a function that is not inlined stays narrow.

/// Runs a loop compiled for the widest vectors there are.
#[inline(always)]
pub(super) fn widest<R>(work: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(work)
}
