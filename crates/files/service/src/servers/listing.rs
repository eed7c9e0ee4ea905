//! Listings of directories, and sums over everything below a directory.

use evenfall_files_machine::namespace::rights::{EXECUTE, READ};
use evenfall_files_machine::namespace::{Caller, Inode, InodeKind, Namespace};
use evenfall_files_machine::{FilesRefusal, InodeId};
use serde_json::Value;

use super::webhdfs::status;

/// Entries of a directory that are listed at once, as in Hadoop. The owner does nothing else
/// meanwhile.
const PAGE: usize = 1_000;
/// Inodes that are summed up at once.
const SUM_STEP: usize = 5_000;

/// Some entries of a directory. A file is listed as its own single entry.
pub struct ListingPage {
    pub directory: InodeId,
    /// The statuses as JSON, with commas between them.
    pub text: String,
    /// The name of the last one.
    pub last: String,
    /// Number of entries behind the last one. Counting stops at [`PAGE`].
    pub left: usize,
}

impl ListingPage {
    /// The entries behind a name.
    pub fn of(namespace: &Namespace, id: InodeId, inode: &Inode, after: &str) -> Self {
        let InodeKind::Directory(entries) = &inode.kind else {
            let text = status(id, inode, "").to_string();
            return Self { directory: id, text, last: String::new(), left: 0 };
        };
        let range = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
        let mut behind = entries.range::<str, _>(range);
        let (mut text, mut last) = (String::new(), String::new());
        for (name, id) in behind.by_ref().take(PAGE) {
            if !text.is_empty() {
                text.push(',');
            }
            text += &status(*id, &namespace.inodes()[id], name).to_string();
            last.clone_from(name);
        }
        Self { directory: id, text, last, left: behind.take(PAGE).count() }
    }

    /// The statuses as a value, and how many entries are left.
    pub fn statuses(self) -> (Value, usize) {
        // The text is our own.
        (serde_json::from_str(&format!("[{}]", self.text)).unwrap_or_default(), self.left)
    }
}

/// The sums of the files and directories below a path.
#[derive(Clone, Copy, Default)]
pub struct Sums {
    pub directories: u64,
    pub files: u64,
    pub length: u64,
    /// Bytes of all copies.
    pub consumed: u64,
}

impl Sums {
    /// Adds some of the rest, and returns what is left. Inodes that are gone meanwhile are left
    /// out.
    ///
    /// # Errors
    /// [`FilesRefusal::Denied`] when the caller may not list a directory.
    pub fn step(
        mut self,
        namespace: &Namespace,
        caller: &Caller,
        mut rest: Vec<InodeId>,
    ) -> Result<(Self, Vec<InodeId>), FilesRefusal> {
        for _ in 0..SUM_STEP {
            let Some(id) = rest.pop() else { break };
            match namespace.inodes().get(&id).map(|inode| &inode.kind) {
                Some(InodeKind::Directory(entries)) => {
                    namespace.check_access(caller, id, READ | EXECUTE)?;
                    self.directories += 1;
                    rest.extend(entries.values());
                }
                Some(InodeKind::File(file)) => {
                    self.files += 1;
                    self.length += file.length;
                    self.consumed += file.length * u64::from(file.replication);
                }
                None => {}
            }
        }
        Ok((self, rest))
    }
}
