//! Checks that the fuzz targets and the replay of their corpora call. Each check takes any bytes,
//! and panics when a promise breaks.

/// Requests of a root for what its live feed lost. The answers of a player or a gateway are checked
/// by `mold_requests` of `evenfall-feed-formats`.
pub fn requests(data: &[u8]) {
    crate::intake::gaps::fuzz(data);
}

#[cfg(test)]
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_corpus_file_passes_its_check() {
        replay::corpora(&[("requests", requests)]);
    }
}
