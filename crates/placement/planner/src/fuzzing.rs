//! Checks that the fuzz targets and the replay of their corpora call. Each check takes any bytes,
//! and panics when a promise breaks.

use crate::delays::DelayMatrix;
use crate::qap::{faq, file};
use evenfall_core::Prng;

/// Largest size of an instance that the check also solves.
const SOLVED_MAX: usize = 12;

/// QAPLIB texts. Every instance that is read has a cost for each permutation, and FAQ returns a
/// permutation.
pub fn qaplib(data: &[u8]) {
    if let Ok(known) = file::known(data) {
        let mut hosts = known.permutation.clone();
        hosts.sort_unstable();
        assert!(hosts.iter().enumerate().all(|(at, host)| at == *host));
    }
    let Ok(instance) = file::instance(data) else { return };
    let identity: Vec<usize> = (0..instance.size()).collect();
    assert!(instance.cost(&identity).is_finite());
    if instance.size() <= SOLVED_MAX {
        let solution = faq::faq(&instance, &faq::Settings::default(), &mut Prng::new(1));
        assert_eq!(instance.cost(&solution.permutation), solution.cost);
    }
}

/// A matrix or a list of measured delays. Every pair of the delays that are read can be queried.
pub fn delays(data: &[u8]) {
    let Ok(loaded) = DelayMatrix::parse(&String::from_utf8_lossy(data)) else { return };
    assert!(loaded.skipped.len() <= loaded.skipped_rows);
    let hosts = loaded.delays.hosts();
    assert!(hosts <= crate::delays::HOSTS_MAX);
}

#[cfg(test)]
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_corpus_file_passes_its_check() {
        replay::corpora(&[("delays", delays), ("qaplib", qaplib)]);
    }
}
