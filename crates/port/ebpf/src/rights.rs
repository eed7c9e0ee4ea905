//! What this process needs before the kernel forwards for it.

use std::fs;

use evenfall_host::rights::{CAP_BPF, CAP_NET_ADMIN, CAP_SYS_ADMIN, read_effective};

/// The first kernel whose hooks (tcx) let go of a program when its process ends. The older clsact
/// would keep the program of a process that was killed.
const KERNEL: (u32, u32) = (6, 6);

/// What this process lacks, in words for people.
pub fn lacks() -> Option<&'static str> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    missing(version(&release), read_effective())
}

fn missing(version: Option<(u32, u32)>, effective: u64) -> Option<&'static str> {
    let has = |bit: u32| effective >> bit & 1 == 1;
    let has_bpf = has(CAP_BPF) || has(CAP_SYS_ADMIN);
    match (version, has_bpf, has(CAP_NET_ADMIN)) {
        (Some(version), ..) if version < KERNEL => Some("Linux 6.6 or later, which has tcx"),
        (_, true, true) => None,
        (_, false, true) => Some("the capability CAP_BPF"),
        (_, true, false) => Some("the capability CAP_NET_ADMIN"),
        (_, false, false) => Some("the capabilities CAP_BPF and CAP_NET_ADMIN"),
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use evenfall_host::rights::parse_effective;

    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let status = "Name:\tevenfall\nCapEff:\t0000008000001000\nCapBnd:\t0\n";
        let both = parse_effective(status);
        assert_eq!(missing(version("6.18.44-fc\n"), both), None);
        assert_eq!(missing(version("6.5.0"), both), Some("Linux 6.6 or later, which has tcx"));
        assert_eq!(missing(None, 1 << CAP_NET_ADMIN), Some("the capability CAP_BPF"));
        assert_eq!(missing(None, 1 << CAP_SYS_ADMIN), Some("the capability CAP_NET_ADMIN"));
        assert!(missing(None, 0).unwrap().contains("CAP_BPF and CAP_NET_ADMIN"));
    }
}
