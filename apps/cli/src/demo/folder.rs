//! The directory of a demo. One demo plays there at a time, and removes only files that demos
//! write.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::processes::{DELAYS_FILE, fresh_key};
use super::signed::KEY_FILES;
use crate::services::CONFIG;

/// A file that the demo in a directory holds locked. A demo that finds the file unlocked may
/// replace the files of an earlier demo.
const LOCK_FILE: &str = "demo.lock";
/// Name of the key of a run.
pub const KEY_FILE: &str = "evenfall.key";
/// Name of the key of the participant behind a gateway.
pub const PARTICIPANT_KEY: &str = "participant.key";
/// Name of the settings of a run.
pub const SETTINGS_FILE: &str = CONFIG;

/// The bytes of a feed that came by a pipe.
pub const PIPED_FEED: &str = "piped-feed";
/// The feed of trades (`--trading`).
pub const TRADES_FILE: &str = "trades.itch50";

/// A directory that belongs to this demo as long as this value lives.
pub struct Folder {
    _lock: File,
}

/// Whether a demo writes files of this name.
fn is_ours(name: &str) -> bool {
    name.ends_with(".evlog")
        || name.ends_with(".stderr")
        || name.ends_with(".step")
        || name.starts_with("summary-")
        || (name.starts_with(KEY_FILES) && (name.ends_with(".key") || name.ends_with(".key.pub")))
        || (name.starts_with("memory-") && name.ends_with(".csv"))
        || [
            "run.json",
            "report.html",
            PIPED_FEED,
            TRADES_FILE,
            KEY_FILE,
            PARTICIPANT_KEY,
            SETTINGS_FILE,
            DELAYS_FILE,
        ]
        .contains(&name)
}

impl Folder {
    /// Makes the directory, and removes only the files of an earlier demo.
    pub fn take(dir: &Path) -> Result<Self, String> {
        let failed = |error| format!("--dir {}: {error}", dir.display());
        fs::create_dir_all(dir).map_err(|error| {
            format!("--dir {}: cannot be made: {error}; name another directory", dir.display())
        })?;
        let mut old = Vec::new();
        for entry in fs::read_dir(dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if is_ours(&path.file_name().unwrap_or_default().to_string_lossy()) {
                old.push(path);
            }
        }
        let path = dir.join(LOCK_FILE);
        if let (Some(foreign), false) = (old.first(), path.exists()) {
            let name = foreign.file_name().unwrap_or_default().to_string_lossy();
            return Err(format!(
                "--dir {}: {name} is there, and no demo wrote it (there is no {LOCK_FILE}); name \
                 another directory, or move the files away",
                dir.display()
            ));
        }
        let lock = File::create(&path).map_err(failed)?;
        if !evenfall_host::lock::take(&lock).map_err(failed)? {
            return Err(format!(
                "--dir {}: another demo plays there; wait for its end, or name another directory",
                dir.display()
            ));
        }
        old.iter().try_for_each(fs::remove_file).map_err(failed)?;
        Ok(Self { _lock: lock })
    }
}

/// Writes a file. The error names it, as when the disk is full.
pub fn write_file(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Writes a fresh key that no other user can read.
pub fn write_key(path: &Path) -> Result<(), String> {
    let failed = |error| format!("{}: {error}", path.display());
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(path).map_err(failed)?;
    file.write_all(fresh_key().map_err(failed)?.as_bytes()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_is_for_one_demo_at_a_time_and_the_next_replaces_its_files() {
        let dir = tempfile::TempDir::new().unwrap();
        let first = Folder::take(dir.path()).unwrap();
        fs::write(dir.path().join("run.json"), "{}").unwrap();
        fs::write(dir.path().join("notes.txt"), "mine").unwrap();
        let said = Folder::take(dir.path()).err().unwrap();
        assert!(said.contains("another demo plays there"), "{said}");
        assert!(dir.path().join("run.json").exists(), "what the first wrote");
        drop(first);
        Folder::take(dir.path()).unwrap();
        assert!(!dir.path().join("run.json").exists());
        assert!(dir.path().join("notes.txt").exists(), "no demo writes that");
    }

    #[test]
    fn a_file_that_the_disk_does_not_take_is_named() {
        let said = write_file(Path::new("/dev/full"), "a text").unwrap_err();
        assert!(said.starts_with("/dev/full: "), "{said}");
    }

    #[test]
    fn settings_and_logs_that_no_demo_wrote_are_left_alone() {
        for name in [SETTINGS_FILE, KEY_FILE, "root.evlog"] {
            let dir = tempfile::TempDir::new().unwrap();
            fs::write(dir.path().join(name), "somebody's").unwrap();
            let said = Folder::take(dir.path()).err().unwrap();
            assert!(said.contains(name) && said.contains("another directory"), "{said}");
            assert_eq!(fs::read(dir.path().join(name)).unwrap(), b"somebody's");
        }
    }
}
