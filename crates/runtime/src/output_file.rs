//! Files that commands write.
//!
//! A file is written beside its final name, and takes that name when it is complete. A file of
//! that name stays as it was when the command fails or is killed. A device or a pipe is written in
//! place: a file that took the name of `/dev/null` would be there for every program of the machine.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// A place for the bytes of a command.
pub type Out = Box<dyn Write + Send>;

/// A file whose errors name it.
struct Named {
    file: File,
    path: PathBuf,
}

impl Write for Named {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes).map_err(|error| name_error(&error, &self.path))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush().map_err(|error| name_error(&error, &self.path))
    }
}

/// The files of this process that are not complete, for an end of the process that drops nothing.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn change_unfinished(change: impl FnOnce(&mut Vec<PathBuf>)) {
    change(&mut UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner));
}

/// Removes all files that are not complete, before a signal ends the process.
pub fn remove_unfinished() {
    change_unfinished(|files| {
        for file in files.drain(..) {
            // The process ends for another reason, and has nobody to tell.
            let _ = fs::remove_file(file);
        }
    });
}

/// A file that is written beside its final name. Without [`keep`](Self::keep) it is removed.
#[derive(Debug)]
pub struct UnfinishedFile {
    /// Where the bytes are; `None` once they have their name, and for standard output and devices.
    beside: Option<PathBuf>,
    path: PathBuf,
}

impl UnfinishedFile {
    /// Gives the file its name, after its bytes have reached the disk.
    ///
    /// # Errors
    /// When the disk does not take the bytes, or the directory the name.
    pub fn keep(mut self) -> io::Result<()> {
        let Some(beside) = &self.beside else { return Ok(()) };
        let named = |error: io::Error| name_error(&error, &self.path);
        File::open(beside).and_then(|file| file.sync_all()).map_err(named)?;
        fs::rename(beside, &self.path).map_err(named)?;
        change_unfinished(|files| files.retain(|file| file != beside));
        self.beside = None;
        Ok(())
    }
}

fn name_error(error: &io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

impl Drop for UnfinishedFile {
    fn drop(&mut self) {
        if let Some(beside) = &self.beside {
            // The error that kept the file from its name is the one to report.
            let _ = fs::remove_file(beside);
            change_unfinished(|files| files.retain(|file| file != beside));
        }
    }
}

/// Opens the output: a file, or standard output without a path.
///
/// # Errors
/// A directory in the place of a file, a directory that is missing, and a file that cannot be made.
pub fn open_output(path: Option<&Path>) -> io::Result<(Out, UnfinishedFile)> {
    match path {
        Some(path) => open_file(path),
        None => {
            let unnamed = UnfinishedFile { beside: None, path: PathBuf::new() };
            Ok((Box::new(BufWriter::new(crate::program::Stdout)), unnamed))
        }
    }
}

/// Opens the file of an output.
///
/// # Errors
/// As [`open_output`].
pub fn open_file(path: &Path) -> io::Result<(Out, UnfinishedFile)> {
    let named = |error: io::Error| name_error(&error, path);
    let there = fs::metadata(path).ok();
    let is_device = there.as_ref().is_some_and(|there| !there.is_file() && !there.is_dir());
    let (beside, target) = match there {
        // A device or a pipe cannot be replaced.
        Some(_) if is_device => (None, path.to_owned()),
        Some(there) if there.is_dir() => {
            let why = format!("{}: this is a directory: name a file", path.display());
            return Err(io::Error::new(io::ErrorKind::IsADirectory, why));
        }
        // A link stays a link, and the file behind it is replaced.
        Some(_) => {
            let target = fs::canonicalize(path).map_err(named)?;
            (Some(beside(&target)), target)
        }
        None => (Some(beside(path)), path.to_owned()),
    };
    let file = match &beside {
        Some(beside) => File::create(beside),
        None => File::options().write(true).open(&target),
    };
    let file = file.map_err(|error| match path.parent() {
        Some(parent) if error.kind() == io::ErrorKind::NotFound && parent != "" => {
            let (path, parent) = (path.display(), parent.display());
            let why = format!("{path}: there is no directory {parent}: make it first");
            io::Error::new(io::ErrorKind::NotFound, why)
        }
        _ => named(error),
    })?;
    change_unfinished(|files| files.extend(beside.clone()));
    let out = BufWriter::new(Named { file, path: path.to_owned() });
    Ok((Box::new(out), UnfinishedFile { beside, path: target }))
}

fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.unfinished", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_directory_under_the_output_is_named() {
        let error = open_output(Some(Path::new("/nowhere/x.csv"))).err().expect("no directory");
        let wanted = "/nowhere/x.csv: there is no directory /nowhere: make it first";
        assert_eq!(error.to_string(), wanted);
    }

    #[test]
    fn a_full_disk_under_the_output_is_named() {
        let (mut full, file) = open_output(Some(Path::new("/dev/full"))).expect("a device");
        let error = full.write_all(b"word").and_then(|()| full.flush()).expect_err("no room");
        assert!(error.to_string().starts_with("/dev/full: "), "{error}");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        file.keep().expect("a device is not renamed");
        assert!(Path::new("/dev/full").exists());
    }

    #[test]
    fn unfinished_file_is_removed_before_a_signal_ends_the_process_and_a_kept_one_stays() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, kept) = (directory.path().join("x.csv"), directory.path().join("y.csv"));
        let (_out, unfinished) = open_file(&path).expect("a file");
        let (_other, file) = open_file(&kept).expect("a file");
        let beside = unfinished.beside.clone().expect("a file beside");
        let former = file.beside.clone().expect("a file beside");
        file.keep().expect("a name");
        assert!(beside.exists());
        // Other tests of this process have files of their own, which must not be removed here.
        change_unfinished(|files| {
            assert!(files.contains(&beside) && !files.contains(&former));
        });
        drop(unfinished);
        assert!(!beside.exists() && !path.exists() && kept.exists());
        change_unfinished(|files| assert!(!files.contains(&beside)));
    }
}
