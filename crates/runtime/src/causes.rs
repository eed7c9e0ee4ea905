//! Errors in words, as every program and library of ours tells them.

/// An error and the chain of its causes. An error that has the words of its cause has the cause of
/// that cause too, so nothing is printed twice.
pub fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
