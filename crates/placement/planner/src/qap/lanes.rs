//! Runs loops over rows of costs with the widest vector instructions of this machine.
//!
//! The binary is built for every machine of its architecture. A loop that is passed to [`widest`]
//! is compiled twice, and the faster version is chosen at run time. Sums are laid out in lanes and
//! no operations are fused, so both versions give the same bits. The closure and all that it calls
//! must be `#[inline(always)]`: a function that is not inlined stays narrow.

/// Runs a loop that is compiled for the widest available vectors. Without the feature `vectors` the
/// loop is compiled once, for vectors that every machine of the architecture has.
#[inline(always)]
pub(super) fn widest<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(feature = "vectors")]
    return pulp::Arch::new().dispatch(work);
    #[cfg(not(feature = "vectors"))]
    work()
}
