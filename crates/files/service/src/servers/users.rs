//! The users that the nameserver knows: who they are on its host, and what they may do.
//!
//! As in HDFS without Kerberos, a client is believed who it says it is (`user.name`), and the
//! groups of a user are those on the host of the nameserver. The superuser is the user of the
//! nameserver's process, as in HDFS, and so is everybody in the group of superusers.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use evenfall_files_machine::namespace::Caller;
use evenfall_host::whole_file::{SETTINGS_BYTES_MAX, read_text_up_to};

use crate::settings::FilesSettings;

/// Time after which the groups of the host are read again. Hadoop waits for five minutes.
const READ_EVERY: Duration = Duration::from_secs(30);

/// The groups of each user of this host.
type Groups = BTreeMap<String, Vec<String>>;

/// A file of the host's users. A missing file has no users.
fn table(path: &str) -> String {
    read_text_up_to(Path::new(path), SETTINGS_BYTES_MAX).unwrap_or_default()
}

/// The name of the user of this process: its name on this host, else its number.
pub fn process_user() -> String {
    let uid = std::fs::metadata("/proc/self").map_or(0, |process| process.uid());
    let passwd = table("/etc/passwd");
    let name = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(uid)).then(|| name.to_owned())
    });
    name.unwrap_or_else(|| uid.to_string())
}

/// The user in whose name a program makes files: `USER`, else the user of the process.
pub fn user_of_environment() -> String {
    std::env::var("USER").ok().filter(|user| !user.is_empty()).unwrap_or_else(process_user)
}

/// The groups of each user: the user's own group, and the groups that list the user.
fn groups(passwd: &str, group: &str) -> Groups {
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    let mut all = Groups::new();
    for line in group.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, number, members] = fields[..] else { continue };
        names.insert(number, name);
        for member in members.split(',').filter(|member| !member.is_empty()) {
            all.entry(member.to_owned()).or_default().push(name.to_owned());
        }
    }
    for line in passwd.lines() {
        let mut fields = line.split(':');
        let (Some(user), Some(own)) = (fields.next(), fields.nth(2)) else { continue };
        if let Some(name) = names.get(own) {
            all.entry(user.to_owned()).or_default().insert(0, (*name).to_owned());
        }
    }
    all
}

/// See the documentation of the module.
pub struct Users {
    /// Whether rights are enforced.
    is_enforced: bool,
    superusers: Vec<String>,
    supergroup: String,
    known: Mutex<Option<(Instant, Groups)>>,
}

impl Users {
    /// The users as the settings of the servers describe them.
    pub fn new(files: &FilesSettings) -> Self {
        let mut superusers = files.superusers.clone();
        superusers.extend([process_user(), user_of_environment()]);
        let (is_enforced, supergroup) = (files.permissions, files.supergroup.clone());
        Self { is_enforced, superusers, supergroup, known: Mutex::default() }
    }

    fn groups_of(&self, user: &str) -> Vec<String> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref().is_none_or(|(at, _)| at.elapsed() >= READ_EVERY) {
            *known = Some((Instant::now(), groups(&table("/etc/passwd"), &table("/etc/group"))));
        }
        let found = known.as_ref().and_then(|(_, groups)| groups.get(user));
        found.cloned().unwrap_or_default()
    }

    /// A user of this name, with its groups.
    pub fn caller(&self, user: &str) -> Caller {
        let groups = self.groups_of(user);
        let is_superuser = !self.is_enforced
            || self.superusers.iter().any(|one| one == user)
            || groups.contains(&self.supergroup);
        Caller { user: user.to_owned(), groups, is_superuser }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_the_group_of_its_account_and_those_that_list_it() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nann:x:1000:100::/:\nbob:x:1001:7::/:\ntorn";
        let group = "root:x:0:\nusers:x:100:bob\nsupergroup:x:9:bob,eve\ntorn:x";
        let all = groups(passwd, group);
        let of = |user: &str| all.get(user).cloned().unwrap_or_default().join(" ");
        assert_eq!(of("root"), "root");
        assert_eq!(of("ann"), "users");
        assert_eq!(of("bob"), "users supergroup");
        assert_eq!(of("eve"), "supergroup");
        assert_eq!(of("nobody-here"), "");
    }

    #[test]
    fn the_user_of_the_process_and_those_of_the_settings_are_superusers() {
        let files = FilesSettings { superusers: vec!["hdfs".into()], ..FilesSettings::default() };
        let users = Users::new(&files);
        assert!(users.caller(&process_user()).is_superuser);
        assert!(users.caller("hdfs").is_superuser);
        assert!(!users.caller("no-such-user").is_superuser);
        let open = Users::new(&FilesSettings { permissions: false, ..files });
        assert!(open.caller("no-such-user").is_superuser);
    }
}
