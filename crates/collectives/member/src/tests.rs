//! Processes that a member has started, when it leaves.

use super::*;

#[test]
fn a_process_that_does_not_end_is_killed_and_named() {
    let mut member = local(1).expect("a group of one");
    let start = |seconds: &str| Command::new("sleep").arg(seconds).spawn().expect("a process");
    member.others = vec![start("0"), start("1000")];
    let pid = member.others[1].id();
    assert_eq!(member.leave_within(Duration::from_millis(500)), [2]);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "it was waited for");
}
