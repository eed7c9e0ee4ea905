//! What the fuzz targets and the replay of their corpora call: any bytes in, a panic when a
//! promise breaks.

use crate::delays::Delays;
use crate::qap::{faq, file};
use evenfall_core::Prng;

/// Sizes up to which what was read is also solved.
const SOLVED_MAX: usize = 12;

/// QAPLIB texts: what is read as an instance has a cost for every permutation, and FAQ gives one.
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

/// A matrix or a list of measured delays: what is read can be asked for every pair.
pub fn delays(data: &[u8]) {
    let Ok(loaded) = Delays::parse(&String::from_utf8_lossy(data)) else { return };
    assert!(loaded.skipped.len() <= loaded.skipped_rows);
    let hosts = loaded.delays.hosts();
    assert!(hosts <= crate::delays::HOSTS_MAX);
}
