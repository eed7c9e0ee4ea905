//! Checks that the fuzz targets and the replay of their corpora call. Each check takes any bytes,
//! and panics when a promise breaks.

/// Re-requests of a live feed: the requests of a root, and the answers of a player or a gateway.
pub fn requests(data: &[u8]) {
    crate::intake::gaps::fuzz(data);
    evenfall_feed_formats::fuzzing::mold_requests(data);
}
