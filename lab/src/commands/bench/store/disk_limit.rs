//! A limit of the bytes that a process writes to a disk in a second: a control group of block IO,
//! which only root makes.
//!
//! Version two of control groups counts all writes. Version one counts the writes that a process
//! makes itself, such as those of `fdatasync`, with which journals are synced. It may miss what
//! the kernel writes back, such as chunks before `syncfs` returns: at 20 and 100 MB/s a server took
//! 19 and 90 MB/s of appends, and wrote up to half as much again.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::Failure;

/// The tree of version one for block IO.
const TREE_ONE: &str = "/sys/fs/cgroup/blkio";
const KEY_ONE: &str = "blkio.throttle.write_bps_device";
/// The tree of version two.
const TREE_TWO: &str = "/sys/fs/cgroup";
const KEY_TWO: &str = "io.max";

/// The control group of one process. It is removed when this value is dropped, which has to be
/// after the process has ended.
#[derive(Debug)]
pub(super) struct DiskLimit {
    group: PathBuf,
}

/// The version of control groups on this machine that limits block IO.
pub(super) fn group_version() -> u8 {
    if Path::new(TREE_ONE).join(KEY_ONE).exists() { 1 } else { 2 }
}

impl DiskLimit {
    /// Limits what this process writes to the disk of a directory.
    ///
    /// # Errors
    /// When the directory is on no disk, or this machine gives no group.
    pub(super) fn put_on(pid: u32, dir: &Path, bytes_per_s: u64) -> Result<Self, Failure> {
        let disk = find_disk(dir)?;
        let (tree, key, limit) = match group_version() {
            1 => (TREE_ONE, KEY_ONE, format!("{disk} {bytes_per_s}")),
            _ => (TREE_TWO, KEY_TWO, format!("{disk} wbps={bytes_per_s}")),
        };
        let make = || -> io::Result<Self> {
            if tree == TREE_TWO {
                fs::write(Path::new(tree).join("cgroup.subtree_control"), "+io")?;
            }
            let group = Path::new(tree).join(format!("evenfall-bench-{pid}"));
            fs::create_dir(&group)?;
            let limited = Self { group };
            fs::write(limited.group.join(key), limit)?;
            fs::write(limited.group.join("cgroup.procs"), pid.to_string())?;
            Ok(limited)
        };
        let needs = "a limit of the disk needs root and control groups of block IO";
        Ok(make().map_err(|error| format!("{needs} in {tree}: {error}"))?)
    }
}

impl Drop for DiskLimit {
    fn drop(&mut self) {
        // An empty group that stays takes some kilobytes of the kernel, and limits nothing.
        let _ = fs::remove_dir(&self.group);
    }
}

/// The numbers of the disk on which a directory is, such as `254:0`. The kernel limits whole disks
/// only, so that of a partition is looked up.
fn find_disk(dir: &Path) -> Result<String, Failure> {
    let device = fs::metadata(dir)?.dev();
    let numbers = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let known = Path::new("/sys/dev/block").join(&numbers);
    if !known.exists() {
        let words = "this is on no disk, and control groups limit disks";
        return Err(format!("{}: {words} (device {numbers})", dir.display()).into());
    }
    match known.join("partition").exists() {
        // The directory of a partition is in that of its disk.
        true => Ok(fs::read_to_string(known.join("../dev"))?.trim().to_owned()),
        false => Ok(numbers),
    }
}
