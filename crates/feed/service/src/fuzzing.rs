//! What the fuzz targets and the replay of their corpora call: any bytes in, a panic when a
//! promise breaks.

/// Re-requests of a live feed: what a root asks for, and what a player answers.
pub fn requests(data: &[u8]) {
    crate::intake::gaps::fuzz(data);
    crate::player::fuzz(data);
}
