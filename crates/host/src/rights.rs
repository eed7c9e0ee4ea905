//! The rights of a process, a bit each: its effective capabilities.

use std::fs;

/// Number of the right to change the network (`linux/capability.h`).
pub const CAP_NET_ADMIN: u32 = 12;
/// Number of the right to administer the host, which includes that to load programs.
pub const CAP_SYS_ADMIN: u32 = 21;
/// Number of the right to take a core from others.
pub const CAP_SYS_NICE: u32 = 23;
/// Number of the right to load programs into the kernel.
pub const CAP_BPF: u32 = 39;

/// The effective rights of this process.
pub fn read_effective() -> u64 {
    parse_effective(&fs::read_to_string("/proc/self/status").unwrap_or_default())
}

/// The effective rights in the text of a file `/proc/PID/status`; none where it does not tell them.
pub fn parse_effective(status: &str) -> u64 {
    let bits = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    bits.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0)
}
