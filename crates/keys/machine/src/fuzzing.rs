//! Checks that the fuzz targets and the replay of their corpora call. Each check takes any bytes,
//! and panics when a promise breaks.

use bytes::Bytes;

use crate::{KeyCall, Keys};

/// Any bytes are a call that is encoded to an equal call and applied, and a snapshot or none.
pub fn calls(data: &[u8]) {
    const BYTES_MAX: usize = 1 << 20;
    let body = Bytes::copy_from_slice(data);
    let _ = Keys::decode(&body);
    if let Ok(call) = KeyCall::decode(&body) {
        assert_eq!(KeyCall::decode(&call.encode()), Ok(call));
    }
    let mut keys = Keys::new(BYTES_MAX);
    keys.apply(&body);
    keys.apply(&body);
    assert!(keys.limit().is_some() || keys.bytes() <= BYTES_MAX);
    assert_eq!(Keys::decode(&keys.encode()), Ok(keys));
}

#[cfg(test)]
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_corpus_file_passes_its_check() {
        replay::corpora(&[("keys_calls", calls)]);
    }
}
