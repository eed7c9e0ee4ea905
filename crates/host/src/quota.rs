//! The processor time that control groups allow this process: the limit behind `docker --cpus`, the
//! limits of Kubernetes and `CPUQuota=` of systemd.
//!
//! A quota takes no core away. It stops every thread of the group once the group has used its time
//! in a period, which is a tenth of a second by default. A thread that spins therefore uses up the
//! time of the thread that it waits for, and the whole group then stands still for the rest of the
//! period.

use std::fs;
use std::path::Path;

/// Where the trees of control groups are mounted.
const GROUPS: &str = "/sys/fs/cgroup";
/// Thousandths of a core.
const MILLI: u64 = 1_000;

/// Processor time of this process' control groups, in thousandths of a core; `None` without a
/// quota. Where groups within groups have quotas, the least of them counts.
pub fn milli_cores() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    least(Path::new(GROUPS), &groups)
}

/// The least quota of the groups that a file `/proc/PID/cgroup` lists.
fn least(root: &Path, groups: &str) -> Option<u64> {
    groups.lines().filter_map(|line| of_line(root, line)).min()
}

/// The least quota of a group and of the groups around it. The line has the number of the tree, its
/// controllers and the group.
fn of_line(root: &Path, line: &str) -> Option<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, group) = (parts.next()?, parts.next()?);
    // Version two has one tree, which stands beside the trees of version one on some hosts. A tree
    // of version one is named by all its controllers or by one of them.
    let trees = match controllers {
        "" => vec![String::new(), "unified".into()],
        _ if controllers.split(',').any(|name| name == "cpu") => {
            vec!["cpu".into(), controllers.to_owned()]
        }
        _ => return None,
    };
    // A container may see its own group as the root of the tree and yet be told the group's name on
    // the host. Such a name has no directory, so the search goes on to the root.
    let around = || Path::new(group.trim_start_matches('/')).ancestors();
    let dirs = trees.iter().flat_map(|tree| around().map(move |group| root.join(tree).join(group)));
    dirs.filter_map(|dir| of_group(&dir)).min()
}

/// The quota of one group: `cpu.max` of version two, or two files of version one.
fn of_group(dir: &Path) -> Option<u64> {
    let read = |file: &str| fs::read_to_string(dir.join(file)).ok();
    let words = read("cpu.max").or_else(|| {
        Some(format!("{} {}", read("cpu.cfs_quota_us")?.trim(), read("cpu.cfs_period_us")?.trim()))
    })?;
    let mut words = words.split_whitespace();
    // Without a quota the first word is `max` in version two, and -1 in version one.
    let (quota, period): (u64, u64) =
        (words.next()?.parse().ok()?, words.next()?.parse().ok().filter(|period| *period > 0)?);
    Some(quota.saturating_mul(MILLI) / period)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A tree of control groups in a directory of its own.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let dir = std::env::temp_dir().join(format!("evenfall-{name}-{}", std::process::id()));
            for (file, text) in files {
                let file = dir.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            }
            Self(dir)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    #[test]
    fn the_least_quota_of_a_group_and_the_groups_around_it_counts() {
        let tree = Tree::new(
            "quota-2",
            &[
                ("pod/cpu.max", "150000 100000\n"),
                ("pod/feed/cpu.max", "max 100000\n"),
                ("alone/cpu.max", "15000 100000\n"),
                ("free/cpu.max", "max 100000\n"),
                ("broken/cpu.max", "15000 0\n"),
            ],
        );
        assert_eq!(least(&tree.0, "0::/pod/feed\n"), Some(1_500));
        assert_eq!(least(&tree.0, "0::/alone\n"), Some(150));
        assert_eq!(least(&tree.0, "0::/free\n"), None);
        assert_eq!(least(&tree.0, "0::/broken\n"), None);
        assert_eq!(least(&tree.0, "no line\n"), None);
    }

    #[test]
    fn a_container_that_is_told_its_group_on_the_host_finds_its_quota_at_the_root() {
        let tree = Tree::new("quota-root", &[("cpu.max", "250000 100000\n")]);
        assert_eq!(least(&tree.0, "0::/docker/88bb/feed\n"), Some(2_500));
        assert_eq!(least(&tree.0, "0::/\n"), Some(2_500));
    }

    #[test]
    fn quotas_of_the_first_version_are_read_in_the_tree_of_the_controller_cpu() {
        let tree = Tree::new(
            "quota-1",
            &[
                ("cpu,cpuacct/docker/1/cpu.cfs_quota_us", "40000\n"),
                ("cpu,cpuacct/docker/1/cpu.cfs_period_us", "100000\n"),
                ("cpu/free/cpu.cfs_quota_us", "-1\n"),
                ("cpu/free/cpu.cfs_period_us", "100000\n"),
            ],
        );
        let groups =
            "9:name=systemd:/docker/1\n4:cpu,cpuacct:/docker/1\n3:cpuset:/docker/1\n0::/\n";
        assert_eq!(least(&tree.0, groups), Some(400));
        assert_eq!(least(&tree.0, "1:cpu:/free\n"), None);
    }
}
