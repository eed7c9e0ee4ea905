//! Files that commands write.
//!
//! A file is written beside its final name, and takes that name when it is complete. A file of that
//! name stays as it was when the command fails or is killed.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

type Failure = Box<dyn std::error::Error>;
/// A place for the bytes of a command.
pub type Out = Box<dyn Write + Send>;

/// A file whose errors name it.
struct Named {
    file: File,
    path: PathBuf,
}

impl Named {
    fn name(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
    }
}

impl Write for Named {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes).map_err(|error| self.name(&error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush().map_err(|error| self.name(&error))
    }
}

/// A file that is written beside its final name. Without [`keep`](Self::keep) it is removed.
pub struct UnfinishedFile {
    /// Where the bytes are; `None` once they have their name, and for standard output and devices.
    beside: Option<PathBuf>,
    path: PathBuf,
}

impl UnfinishedFile {
    /// Gives the file its name, after its bytes have reached the disk.
    pub fn keep(mut self) -> Result<(), Failure> {
        let Some(beside) = &self.beside else { return Ok(()) };
        let named = |error: io::Error| format!("{}: {error}", self.path.display());
        File::open(beside).and_then(|file| file.sync_all()).map_err(named)?;
        fs::rename(beside, &self.path).map_err(named)?;
        self.beside = None;
        Ok(())
    }
}

impl Drop for UnfinishedFile {
    fn drop(&mut self) {
        if let Some(beside) = &self.beside {
            // The error that kept the file from its name is the one to report.
            let _ = fs::remove_file(beside);
        }
    }
}

/// Opens the output.
pub fn open_output(path: Option<&Path>) -> Result<(Out, UnfinishedFile), Failure> {
    let Some(path) = path else {
        let unnamed = UnfinishedFile { beside: None, path: PathBuf::new() };
        return Ok((Box::new(BufWriter::new(evenfall_runtime::program::Stdout)), unnamed));
    };
    let named = |error: io::Error| format!("{}: {error}", path.display());
    let there = fs::metadata(path).ok();
    let is_device = there.as_ref().is_some_and(|there| !there.is_file() && !there.is_dir());
    let (beside, target) = match there {
        // A device or a pipe cannot be replaced.
        Some(_) if is_device => (None, path.to_owned()),
        Some(there) if there.is_dir() => {
            return Err(format!("{}: this is a directory: name a file", path.display()).into());
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
            format!("{}: there is no directory {}: make it first", path.display(), parent.display())
        }
        _ => named(error),
    })?;
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
}
