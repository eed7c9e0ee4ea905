//! Checks that the fuzz targets and the replay of their corpora call. Each check takes any bytes,
//! and panics when a promise breaks.

use crate::udp::inject;
use evenfall_host::clock::root_distance;

/// Reads the output of `chronyc -c tracking`: a bound on the clock's error, or nothing.
pub fn chrony(data: &[u8]) {
    let _ = root_distance(&String::from_utf8_lossy(data));
}

/// Reads a file of injected delays: rules, or an error that names the line.
pub fn delay_rules(data: &[u8]) {
    if let Err(error) = inject::parse(&String::from_utf8_lossy(data)) {
        assert!(error.starts_with("line "), "{error}");
    }
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_corpus_file_passes_its_check() {
        replay::corpora(&[("chrony", chrony), ("delay_rules", delay_rules)]);
    }
}
