//! Whether the memory of this host is enough for a burst. The kernel grants more memory than there
//! is and ends a process later, so the need is compared before anything begins.

use evenfall_collectives_member::local_rank;
use evenfall_host::procstat::memory_left;

/// Refuses what needs more memory than this host has available. `option` is the option that asks
/// for it, with its value.
pub fn expect_memory(option: &str, needed: u128) -> Result<(), String> {
    // The processes that this command starts share what it has compared already.
    if local_rank().is_some() {
        return Ok(());
    }
    compare_memory(option, needed, memory_left())
}

fn compare_memory(option: &str, needed: u128, left: Option<u64>) -> Result<(), String> {
    match left {
        Some(left) if needed > u128::from(left) => Err(format!(
            "{option}: needs {needed} bytes of memory on this host, and {left} bytes are available"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_is_available_is_refused_with_both_numbers() {
        assert_eq!(compare_memory("--records 3", 300, Some(300)), Ok(()));
        assert_eq!(compare_memory("--records 3", u128::MAX, None), Ok(()));
        let why = compare_memory("--records 4", 400, Some(300)).expect_err("too much");
        assert_eq!(
            why,
            "--records 4: needs 400 bytes of memory on this host, and 300 bytes are available"
        );
    }
}
