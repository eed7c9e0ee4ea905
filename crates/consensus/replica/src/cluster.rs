//! The settings that all replicas share and that a log depends on, in a file beside the log.
//!
//! The log of one replica among three says nothing about the other two. A replica that started with
//! other numbers would differ from the others without a word. So the file `cluster` keeps the
//! numbers of the first start, and a start with other numbers is refused.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;

use crate::{ReplicaError, Settings};

/// The name of the file.
const NAME: &str = "cluster";

/// Checks that a replica starts with the settings of its first start, or notes them.
///
/// # Errors
/// [`ReplicaError::Cluster`] when the settings differ, and when the file cannot be read or written.
pub(crate) fn check(settings: &Settings) -> Result<(), ReplicaError> {
    let path = settings.directory.join(NAME);
    let given = words(settings);
    match std::fs::read_to_string(&path) {
        Ok(first) if first == given => Ok(()),
        Ok(first) => Err(ReplicaError::Cluster { path, first: first.trim().into(), given }),
        Err(error) if error.kind() == ErrorKind::NotFound => note(&path, &given)
            .map_err(|error| ReplicaError::Io(format!("write {}", path.display()), error)),
        Err(error) => Err(ReplicaError::Io(format!("read {}", path.display()), error)),
    }
}

fn words(settings: &Settings) -> String {
    let rack = |n: usize| settings.racks.of.get(n).copied().unwrap_or(0).to_string();
    let racks: Vec<String> = (0..settings.replicas.len()).map(rack).collect();
    format!("replicas: {}; rack of each: {}", racks.len(), racks.join(" "))
}

/// A crash leaves the whole file or none.
fn note(path: &Path, words: &str) -> std::io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(words.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RackSettings, SecondRound};

    #[test]
    fn a_replica_starts_only_with_the_settings_of_its_first_start() {
        let directory = tempfile::tempdir().expect("a directory");
        let settings = |replicas: u16, racks: Vec<u8>| Settings {
            node: 0,
            replicas: (1..=replicas).map(|port| ([127, 0, 0, 1], port).into()).collect(),
            directory: directory.path().into(),
            lease_cycles: 0,
            racks: RackSettings {
                of: racks,
                second_round: SecondRound::Off,
                round_trip: core::time::Duration::ZERO,
            },
            key: None,
        };
        for _ in 0..2 {
            check(&settings(3, vec![0, 0, 1])).expect("the same settings");
        }
        for other in [settings(1, vec![0]), settings(3, vec![0, 1, 1])] {
            let error = check(&other).expect_err("other settings").to_string();
            assert!(error.contains("cluster") && error.contains("replicas: 3"), "{error}");
        }
    }
}
