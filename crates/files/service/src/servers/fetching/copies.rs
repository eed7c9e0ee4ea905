//! The copies of a file that is read, and which of them a connection reads next.

use std::time::Instant;

use evenfall_runtime::address::SourcePorts;

use super::super::client::{FilesClient, authority};
use crate::ServiceError;

/// Copies that a reader knows.
const COPIES_MAX: usize = 3;
/// A connection whose rate is below this share of another connection's rate tries another copy.
const SLOW: f64 = 0.5;

/// A copy of the file.
#[derive(Clone)]
pub struct SourceCopy {
    /// Where the copy is read, without the range.
    pub url: String,
    pub host: String,
    /// Bytes a second of the last part.
    pub rate: Option<f64>,
    pub has_failed: bool,
    /// The copy fell silent and is not read before this time, unless there is no other copy.
    pub rests_until: Option<Instant>,
    /// The flow that the flowserver has given to reads of the copy.
    pub flow: Option<u64>,
    /// The ports of the path that the flowserver has chosen.
    pub ports: Option<SourcePorts>,
}

impl SourceCopy {
    /// Whether the copy fell silent a short while before.
    pub fn is_resting(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }
}

/// The file that is read: its path, its number and its length when the reading began.
#[derive(Clone, Copy)]
pub struct WantedFile<'a> {
    pub path: &'a str,
    pub id: u64,
    pub length: u64,
}

impl WantedFile<'_> {
    pub fn was_replaced(&self) -> ServiceError {
        ServiceError::Answer(format!("{} was replaced meanwhile", self.path))
    }
}

/// The copies of a file, in the order in which the nameserver gives them to readers.
pub fn find_copies(
    client: &FilesClient,
    wanted: WantedFile<'_>,
) -> Result<Vec<SourceCopy>, ServiceError> {
    let mut copies: Vec<SourceCopy> = Vec::new();
    while copies.len() < COPIES_MAX {
        let known: Vec<&str> = copies.iter().map(|copy| copy.host.as_str()).collect();
        let known = known.join(",");
        let arguments = [("noredirect", "true"), ("excludedatanodes", known.as_str())];
        let value = match client.get_once(wanted.path, "OPEN", &arguments) {
            Ok(value) => value,
            // No further copy lives.
            Err(ServiceError::Refused(..)) if !copies.is_empty() => break,
            Err(error) => return Err(error),
        };
        let url = value["Location"].as_str().unwrap_or_default();
        let host = authority(url).to_owned();
        if !url.contains(&format!("file={}&", wanted.id)) {
            return Err(wanted.was_replaced());
        }
        if copies.iter().any(|copy| copy.host == host) {
            break;
        }
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let is_kept = |argument: &&str| {
            !["offset=", "length=", "end="].iter().any(|name| argument.starts_with(name))
        };
        let query: Vec<&str> = query.split('&').filter(is_kept).collect();
        // A dataserver that lacks bytes up to `end` waits for them or names another one, so the
        // reader gets all bytes that were acknowledged before it asked for the length.
        let url = format!("{place}?{}&end={}", query.join("&"), wanted.length);
        let (rate, rests_until, flow, ports) = (None, None, None, None);
        copies.push(SourceCopy { url, host, rate, has_failed: false, rests_until, flow, ports });
    }
    Ok(copies)
}

/// The copy from which a connection reads next. `readers` has the number of connections that read
/// each copy, and `beside` is the rate of the fastest connection.
///
/// Copies that nobody reads come first: the fastest known one, unless it is slow beside the other
/// connections and the rate of another copy is not known. When every copy is read, the one with the
/// fewest readers is read over one more connection, which has another source port.
pub fn choose_copy(copies: &[SourceCopy], readers: &[usize], beside: f64) -> Option<usize> {
    let now = Instant::now();
    let rests = |copy: &usize| copies[*copy].is_resting(now);
    let usable: Vec<usize> = (0..copies.len()).filter(|copy| !copies[*copy].has_failed).collect();
    let mut free: Vec<usize> = usable.iter().copied().filter(|copy| readers[*copy] == 0).collect();
    if !free.iter().all(rests) || readers.iter().any(|readers| *readers > 0) {
        free.retain(|copy| !rests(copy));
    }
    let rate = |copy: &usize| copies[*copy].rate;
    let known = free.iter().copied().filter(|copy| rate(copy).is_some());
    let best = known.max_by(|a, b| rate(a).unwrap_or(0.0).total_cmp(&rate(b).unwrap_or(0.0)));
    let unknown = free.iter().copied().find(|copy| rate(copy).is_none());
    let is_slow = |copy: &usize| rate(copy).unwrap_or(0.0) < SLOW * beside;
    let chosen = best.filter(|copy| unknown.is_none() || !is_slow(copy)).or(unknown);
    let again = usable.iter().copied().filter(|copy| readers[*copy] > 0 && !rests(copy));
    chosen.or_else(|| again.min_by_key(|copy| readers[*copy]))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn copies(rates: &[Option<f64>]) -> Vec<SourceCopy> {
        let one = |rate: &Option<f64>| SourceCopy {
            url: String::new(),
            host: String::new(),
            rate: *rate,
            has_failed: false,
            rests_until: None,
            flow: None,
            ports: None,
        };
        rates.iter().map(one).collect()
    }

    #[test]
    fn a_free_copy_is_read_before_one_that_is_read_already() {
        let two = copies(&[None, None]);
        assert_eq!(choose_copy(&two, &[0, 0], 0.0), Some(0));
        assert_eq!(choose_copy(&two, &[1, 0], 0.0), Some(1));
        assert_eq!(choose_copy(&two, &[1, 1], 0.0), Some(0), "over another port");
        assert_eq!(choose_copy(&two, &[2, 1], 0.0), Some(1));
    }

    #[test]
    fn a_slow_copy_is_left_for_one_of_which_nothing_is_known() {
        let known = copies(&[Some(10.0), None]);
        assert_eq!(choose_copy(&known, &[0, 0], 15.0), Some(0));
        assert_eq!(choose_copy(&known, &[0, 0], 25.0), Some(1));
    }

    #[test]
    fn a_copy_that_failed_is_not_read_and_one_that_fell_silent_rests() {
        let mut all = copies(&[None, None]);
        all[0].has_failed = true;
        all[1].rests_until = Some(Instant::now() + Duration::from_secs(600));
        assert_eq!(choose_copy(&all, &[0, 0], 0.0), Some(1), "there is no other copy");
        all[0].has_failed = false;
        assert_eq!(choose_copy(&all, &[1, 0], 0.0), Some(0));
        assert_eq!(choose_copy(&copies(&[]), &[], 0.0), None);
    }
}
