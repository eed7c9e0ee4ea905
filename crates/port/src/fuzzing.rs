//! What the fuzz targets and the replay of their corpora call: any bytes in, a panic when a
//! promise breaks.

use crate::udp::inject;
use evenfall_host::clock::root_distance;

/// What `chronyc -c tracking` prints: a bound on the clock's error, or none.
pub fn chrony(data: &[u8]) {
    let _ = root_distance(&String::from_utf8_lossy(data));
}

/// A file of delays that a lab adds to datagrams: rules, or an error that names the line.
pub fn delay_rules(data: &[u8]) {
    if let Err(error) = inject::parse(&String::from_utf8_lossy(data)) {
        assert!(error.starts_with("line "), "{error}");
    }
}
