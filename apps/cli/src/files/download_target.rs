//! Where the bytes of a fetched file land on this machine.
//!
//! A regular file is written beside its place and gets its name at the end, so that nobody reads
//! half a file. A device or a pipe is no place for such a rename: the rename would put a regular
//! file where the device was, and a reader of the pipe would wait without end.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(super) enum DownloadTarget {
    /// A device or a pipe, which takes the bytes in their order.
    Stream(File),
    /// A regular file.
    File(Unfinished),
}

/// A regular file that gets its name when all bytes are there. Without [`Unfinished::keep`] the
/// bytes are removed.
#[derive(Debug)]
pub(super) struct Unfinished {
    pub out: File,
    part: PathBuf,
    path: PathBuf,
    is_kept: bool,
}

impl DownloadTarget {
    /// Opens the place. The target of a symbolic link gets the bytes, and the link stays.
    ///
    /// # Errors
    /// When the place is a directory, or cannot be written.
    pub fn open(local: &Path) -> io::Result<Self> {
        let path = fs::canonicalize(local).unwrap_or_else(|_| local.to_owned());
        match fs::metadata(&path) {
            Ok(there) if there.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            Ok(there) if !there.is_file() => {
                Ok(Self::Stream(File::options().write(true).open(&path)?))
            }
            _ => Unfinished::begin(path).map(Self::File),
        }
    }
}

impl Unfinished {
    /// Two commands with the same place would mix their bytes, so the part is locked. A command
    /// that was killed leaves its part, and the next command writes over the part.
    fn begin(path: PathBuf) -> io::Result<Self> {
        let mut part = path.clone().into_os_string();
        part.push(".part");
        let part = PathBuf::from(part);
        loop {
            let out = File::options().write(true).create(true).truncate(false).open(&part)?;
            if !evenfall_host::lock::take(&out)? {
                let what = format!("another command writes {}", part.display());
                return Err(io::Error::other(what));
            }
            // A command that has just ended may have renamed or removed the file that was opened.
            let (own, there) = (out.metadata()?.ino(), fs::metadata(&part).map(|it| it.ino()));
            if there.is_ok_and(|there| there == own) {
                out.set_len(0)?;
                return Ok(Self { out, part, path, is_kept: false });
            }
        }
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// When the file cannot be renamed.
    pub fn keep(mut self) -> io::Result<()> {
        fs::rename(&self.part, &self.path)?;
        self.is_kept = true;
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_kept {
            // The command reports its first error. A part that cannot be removed is not reported.
            let _ = fs::remove_file(&self.part);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("landing-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        dir
    }

    fn land(local: &Path, bytes: &[u8]) {
        match DownloadTarget::open(local).expect("a place") {
            DownloadTarget::Stream(_) => panic!("{} is a file", local.display()),
            DownloadTarget::File(mut file) => {
                file.out.write_all(bytes).expect("room");
                file.keep().expect("a name");
            }
        }
    }

    #[test]
    fn a_file_gets_its_name_at_the_end_and_a_fetch_that_fails_leaves_the_old_file() {
        let dir = scratch("file");
        let path = dir.join("out");
        land(&path, b"old");
        drop(DownloadTarget::open(&path).expect("a place"));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        land(&path, b"new");
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "no part is left");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_second_fetch_to_the_same_place_is_refused_until_the_first_one_ends() {
        let dir = scratch("twice");
        let path = dir.join("out");
        fs::write(dir.join("out.part"), "left by a command that was killed").unwrap();
        let DownloadTarget::File(mut first) = DownloadTarget::open(&path).expect("a place") else {
            panic!()
        };
        let refused = DownloadTarget::open(&path).expect_err("the place is taken");
        assert!(refused.to_string().ends_with("out.part"), "{refused}");
        first.out.write_all(b"first").unwrap();
        first.keep().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first");
        land(&path, b"second");
        assert_eq!(fs::read(&path).unwrap(), b"second");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_device_is_written_and_not_replaced() {
        assert!(matches!(
            DownloadTarget::open(Path::new("/dev/null")),
            Ok(DownloadTarget::Stream(_))
        ));
    }

    #[test]
    fn a_link_stays_and_a_directory_is_refused() {
        let dir = scratch("link");
        let (path, link) = (dir.join("target"), dir.join("link"));
        land(&path, b"old");
        symlink(&path, &link).unwrap();
        land(&link, b"new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"new");
        let refused = DownloadTarget::open(&dir).expect_err("a directory");
        assert_eq!(refused.kind(), io::ErrorKind::IsADirectory);
        fs::remove_dir_all(dir).unwrap();
    }
}
