//! The cores and the scheduling of a thread.

use std::io;
use std::mem;
use std::sync::OnceLock;

use crate::sys::checked;
use crate::{Error, quota};

/// How the kernel schedules a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadSchedule {
    /// Real time, until it waits. Priority 1 to 99.
    Fifo(u8),
    /// Ordinary scheduling in which a waking thread interrupts no other. Where many threads share a
    /// core, a thread then sends to all its children before the first of them runs.
    Batch,
}

/// Cores that this process may run on. A quota of processor time takes none of them away; see
/// [`whole_cores`].
pub fn available_cores() -> Vec<usize> {
    // SAFETY: a CPU set is an array of integers, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: `set` is as large as stated and outlives the call.
    let result = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    if result < 0 {
        return vec![0];
    }
    let cores = 0..libc::CPU_SETSIZE as usize;
    // SAFETY: every number is below CPU_SETSIZE.
    cores.filter(|core| unsafe { libc::CPU_ISSET(*core, &set) }).collect()
}

/// The cores of this process before any of its threads was confined.
static CORES_BEFORE: OnceLock<Vec<usize>> = OnceLock::new();

/// Confines the calling thread, and the threads that it starts later, to these cores.
///
/// # Errors
/// When none of the cores exists, or this process may not use them.
pub fn to_cores(cores: &[usize]) -> Result<(), Error> {
    CORES_BEFORE.get_or_init(available_cores);
    confine_thread(cores)
}

/// Lets the calling thread run on all cores that the process had before its first
/// [`to_cores`]. A thread that writes files must not take the core of the thread that started it.
pub fn to_all_cores() {
    if let Some(cores) = CORES_BEFORE.get() {
        // A thread that stays where it is does the same work.
        let _ = confine_thread(cores);
    }
}

fn confine_thread(cores: &[usize]) -> Result<(), Error> {
    // SAFETY: a CPU set is an array of integers, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    for core in cores.iter().filter(|core| **core < libc::CPU_SETSIZE as usize) {
        // SAFETY: the core is below CPU_SETSIZE.
        unsafe { libc::CPU_SET(*core, &mut set) };
    }
    // SAFETY: `set` is as large as stated and outlives the call.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    checked(result).map(drop).map_err(|source| Error::Os {
        what: format!("pin this thread to cores {cores:?}; available are {:?}", available_cores()),
        source,
        advice: "name cores of this host that its cpuset allows",
    })
}

/// Schedules the calling thread.
///
/// # Errors
/// When the process has no permission. Real time needs CAP_SYS_NICE or a limit.
pub fn schedule(schedule: ThreadSchedule) -> Result<(), Error> {
    let result = match schedule {
        // Children must not inherit real time, because a tool started by this process could then
        // stall the host.
        ThreadSchedule::Fifo(priority) => {
            policy(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, priority)
        }
        ThreadSchedule::Batch => policy(libc::SCHED_BATCH, 0),
    };
    result.map(drop).map_err(|source| {
        let permission = source.raw_os_error() == Some(libc::EPERM);
        let advice = if permission {
            "run as root, grant CAP_SYS_NICE (setcap cap_sys_nice+ep), or raise rtprio in \
             /etc/security/limits.conf"
        } else {
            "real-time priorities are 1 to 99"
        };
        Error::Os { what: format!("schedule this thread as {schedule:?}"), source, advice }
    })
}

/// Cores whose whole time this process can use: those that it may run on, or fewer where control
/// groups have a [`crate::quota`]. A part of a core is no core, so a quota below one core
/// gives 0.
pub fn whole_cores() -> usize {
    let quota = quota::milli_cores().map_or(usize::MAX, |milli| (milli / 1_000) as usize);
    available_cores().len().min(quota)
}

/// Whether this number of processes exceeds the number of [whole cores](whole_cores). A process
/// that spins, or that runs at once when it wakes, then only takes the time of another process.
pub fn is_crowded(processes: usize) -> bool {
    whole_cores() < processes
}

fn policy(policy: i32, priority: u8) -> io::Result<libc::c_int> {
    let parameters = libc::sched_param { sched_priority: priority.into() };
    // SAFETY: `parameters` outlives the call; zero names the calling thread.
    checked(unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_is_pinned_and_only_it() {
        let all = available_cores();
        let first = all[0];
        let pinned = std::thread::spawn(move || {
            to_cores(&[first]).unwrap();
            let pinned = available_cores();
            let heir = std::thread::spawn(|| {
                let inherited = available_cores();
                to_all_cores();
                (inherited, available_cores())
            });
            (pinned, heir.join().unwrap())
        });
        let (pinned, heir) = pinned.join().unwrap();
        assert_eq!((pinned, heir), (vec![first], (vec![first], all.clone())));
        assert_eq!(available_cores(), all);
    }

    #[test]
    fn a_quota_leaves_no_more_cores_than_the_process_may_run_on() {
        assert!(whole_cores() <= available_cores().len());
        assert!(!is_crowded(0));
        assert!(is_crowded(whole_cores() + 1));
    }

    #[test]
    fn missing_core_is_named() {
        let message = to_cores(&[1023]).unwrap_err().to_string();
        assert!(message.contains("1023") && message.contains("available"), "{message}");
    }

    #[test]
    fn impossible_priority_says_what_is_possible() {
        let message = schedule(ThreadSchedule::Fifo(100)).unwrap_err().to_string();
        assert!(message.contains("1 to 99") || message.contains("CAP_SYS_NICE"), "{message}");
    }
}
