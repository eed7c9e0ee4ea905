//! Processor time and memory of processes and of the host, for benchmarks.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use crate::clock::process_cpu;
use crate::{Error, pin};

/// Processor time and memory of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Processor time of all threads, user and system together. Soft interrupts that ran during the
    /// process' time are included, unless the kernel accounts interrupt time separately.
    pub cpu: Duration,
    /// Resident memory.
    pub resident_bytes: u64,
}

/// Processor time of the whole host since its start, summed over all cores, in clock ticks of 10
/// ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostUsage {
    /// Time in programs.
    pub user: Duration,
    /// Time in the kernel for programs.
    pub system: Duration,
    /// Time in soft interrupts.
    pub softirq: Duration,
    /// Unused time.
    pub idle: Duration,
    /// Time that the hypervisor took.
    pub steal: Duration,
}

/// Usage of this process.
///
/// # Errors
/// When `/proc` is missing.
pub fn this_process() -> Result<ProcessUsage, Error> {
    Ok(ProcessUsage { cpu: process_cpu(), resident_bytes: resident("self")? })
}

/// The most resident memory that this process has had, bytes; zero when `/proc` is missing. The
/// kernel keeps the number, so that nobody has to look often.
pub fn resident_bytes_max() -> u64 {
    let kibibytes = number_after("/proc/self/status", "VmHWM:");
    let present = || this_process().map_or(0, |usage| usage.resident_bytes);
    kibibytes.map_or_else(present, |kibibytes| kibibytes * 1_024)
}

/// Usage of another process.
///
/// # Errors
/// When the process does not exist, or not any more.
pub fn process(pid: u32) -> Result<ProcessUsage, Error> {
    let name = pid.to_string();
    let cpu = tasks_cpu(&name).or_else(|_| ticks_cpu(&name))?;
    Ok(ProcessUsage { cpu, resident_bytes: resident(&name)? })
}

/// Processor time of the kernel threads that run soft interrupts, when there are too many to run
/// them during the time of their cause.
///
/// # Errors
/// When `/proc` cannot be listed.
pub fn ksoftirqd_cpu() -> Result<Duration, Error> {
    let entries = fs::read_dir("/proc").map_err(|source| Error::Os {
        what: "list /proc".into(),
        source,
        advice: "mount proc",
    })?;
    let mut sum = Duration::ZERO;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|n| n.bytes().all(|b| b.is_ascii_digit())) else {
            continue;
        };
        let command = fs::read_to_string(format!("/proc/{name}/comm")).unwrap_or_default();
        if command.starts_with("ksoftirqd/") {
            sum += tasks_cpu(name).or_else(|_| ticks_cpu(name)).unwrap_or_default();
        }
    }
    Ok(sum)
}

/// Usage of the host.
///
/// # Errors
/// When `/proc/stat` cannot be read.
pub fn host() -> Result<HostUsage, Error> {
    let text = text("/proc/stat")?;
    let mut ticks = text.lines().next().unwrap_or("").split_whitespace().skip(1);
    let mut next = || ticks.next().and_then(|t| t.parse().ok()).map_or(Duration::ZERO, of_ticks);
    let (user, nice, system, idle, iowait, _irq) = (next(), next(), next(), next(), next(), next());
    let (softirq, steal) = (next(), next());
    Ok(HostUsage { user: user + nice, system, softirq, idle: idle + iowait, steal })
}

/// Sum of the threads' run times, which the scheduler keeps in nanoseconds.
fn tasks_cpu(pid: &str) -> Result<Duration, Error> {
    let folder = format!("/proc/{pid}/task");
    let tasks = fs::read_dir(&folder).map_err(|source| gone(&folder, source))?;
    let mut sum = 0_u64;
    for task in tasks.flatten() {
        let text = text(&format!("{}/schedstat", task.path().display()))?;
        sum += text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
    }
    Ok(Duration::from_nanos(sum))
}

/// Processor time from `/proc/pid/stat`. Threads that ended are included, but time is counted in
/// ticks.
fn ticks_cpu(pid: &str) -> Result<Duration, Error> {
    let text = text(&format!("/proc/{pid}/stat"))?;
    // The name is in brackets and may contain brackets too, so the text is read from the last
    // bracket on.
    let after = text.rsplit_once(')').map_or("", |(_, after)| after);
    let fields: Vec<&str> = after.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|t| t.parse::<u64>().ok()).unwrap_or(0);
    Ok(of_ticks(ticks(11) + ticks(12)))
}

fn resident(pid: &str) -> Result<u64, Error> {
    let text = text(&format!("/proc/{pid}/statm"))?;
    let pages: u64 = text.split_whitespace().nth(1).and_then(|p| p.parse().ok()).unwrap_or(0);
    // SAFETY: takes and returns integers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Ok(pages * page.max(0) as u64)
}

/// Room that the machine has for more processes. `None` stands for an unknown value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Cores whose time this process may use, at least one.
    pub cores: u64,
    /// Memory that is available to the machine and to this process's control group.
    pub memory_bytes: Option<u64>,
    /// Threads that the user and the control group may still start.
    pub tasks: Option<u64>,
    /// Files that a process may have open.
    pub files: Option<u64>,
}

/// Memory that is available to the machine and to this process's control group. `None` stands for
/// an unknown value.
pub fn memory_left() -> Option<u64> {
    let free = number_after("/proc/meminfo", "MemAvailable:").map(|kib| kib << 10);
    let own = group_left("memory", ["memory.max", "memory.current"])
        .or_else(|| group_left("memory", ["memory.limit_in_bytes", "memory.usage_in_bytes"]));
    least(free, own)
}

/// The lesser of two limits, either of which may be unknown.
fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}

/// Looks up the room of the machine.
pub fn room() -> Room {
    let allowed = limit(libc::RLIMIT_NPROC).map(|most| most.saturating_sub(own_tasks()));
    let grouped = group_left("pids", ["pids.max", "pids.current"]);
    Room {
        cores: pin::whole_cores().max(1) as u64,
        memory_bytes: memory_left(),
        tasks: least(allowed, grouped),
        files: limit(libc::RLIMIT_NOFILE),
    }
}

/// A limit of this process; `None` without a limit. The kernel does not apply the limit of
/// processes to root.
fn limit(resource: libc::__rlimit_resource_t) -> Option<u64> {
    // SAFETY: takes and returns integers.
    if resource == libc::RLIMIT_NPROC && unsafe { libc::geteuid() } == 0 {
        return None;
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives the call.
    let result = unsafe { libc::getrlimit(resource, &raw mut limit) };
    (result == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Raises the limit of open files as far as this process may. A server of many connections calls
/// this function at its start, because shells hand out 1,024. Returns the limit, or `None` when
/// there is no limit.
pub fn raise_files() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives both calls. Where the kernel refuses, the limit stays as it was.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
    self::limit(libc::RLIMIT_NOFILE)
}

/// Threads of this user.
fn own_tasks() -> u64 {
    // SAFETY: takes and returns integers.
    let own = unsafe { libc::geteuid() };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.metadata().is_ok_and(|entry| entry.uid() == own));
    let status = |entry: fs::DirEntry| entry.path().join("status").display().to_string();
    ours.filter_map(|entry| number_after(&status(entry), "Threads:")).sum()
}

/// The number after a word at the beginning of a line of a file, such as one of `/proc`.
pub fn number_after(path: &str, word: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(word))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The rest that this process's control group may still use, from its files of limit and use.
/// Version two has one group for all controllers, and version one has a tree for each.
fn group_left(controller: &str, files: [&str; 2]) -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let read = |tree: &str, group: &str, file: &str| -> Option<u64> {
        // In a container the group is the root of the visible tree.
        let paths =
            [format!("/sys/fs/cgroup{tree}{group}/{file}"), format!("/sys/fs/cgroup{tree}/{file}")];
        let text = paths.iter().find_map(|path| fs::read_to_string(path).ok())?;
        text.trim().parse().ok()
    };
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (named, group) = (parts.next()?, parts.next()?);
        let tree = match named {
            "" => String::new(),
            _ if named.split(',').any(|name| name == controller) => format!("/{controller}"),
            _ => return None,
        };
        let [most, used] = files.map(|file| read(&tree, group, file));
        Some(most?.saturating_sub(used?))
    })
}

fn of_ticks(ticks: u64) -> Duration {
    // SAFETY: takes and returns integers.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64;
    Duration::from_nanos(ticks * (1_000_000_000 / per_second))
}

fn text(path: &str) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| gone(path, source))
}

fn gone(path: &str, source: std::io::Error) -> Error {
    Error::Os { what: format!("read {path}"), source, advice: "the process may have ended" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_time_is_seen_by_both_views() {
        let inside = this_process().unwrap();
        let outside = process(std::process::id()).unwrap();
        let more = Duration::from_millis(20);
        let mut sum = 0_u64;
        // The loop ends when both counters have grown, because the two need not tick together.
        while process_cpu() < inside.cpu + more
            || process(std::process::id()).unwrap().cpu < outside.cpu + more
        {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(outside.resident_bytes > 500_000);
    }

    #[test]
    fn machine_has_room_for_this_process_at_least() {
        let room = room();
        assert!(room.cores >= 1);
        assert!(room.memory_bytes.is_none_or(|bytes| bytes > 1 << 20), "{room:?}");
        assert!(room.files.is_none_or(|files| files > 8), "{room:?}");
    }

    #[test]
    fn host_time_and_softirq_threads_are_readable() {
        let host = host().unwrap();
        assert!(host.user + host.system + host.idle > Duration::from_millis(100));
        assert!(ksoftirqd_cpu().is_ok());
        assert!(process(u32::MAX).is_err());
    }
}
