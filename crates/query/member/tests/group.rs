//! A group of threads over loopback.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use evenfall_collectives_machine::group::GroupSettings;
use evenfall_collectives_member::{GroupMember, GroupSocket, GroupSocketOptions};

/// Settings under which a rank that is silent for half a second is dead.
pub fn settings() -> GroupSettings {
    let mut settings = GroupSettings::default();
    settings.shuffle.silence_max = Duration::from_millis(500);
    settings
}

/// Runs each rank in a thread, and gives what the ranks return.
pub fn run_ranks<T: Send>(
    ranks: usize,
    settings: &GroupSettings,
    rank: impl Fn(GroupMember) -> T + Sync,
) -> Vec<T> {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let bind = |_| GroupSocket::bind(any, GroupSocketOptions::default()).expect("loopback");
    let sockets: Vec<GroupSocket> = (0..ranks).map(bind).collect();
    let members: Vec<SocketAddr> = sockets.iter().map(GroupSocket::address).collect();
    thread::scope(|scope| {
        let start = |(at, socket): (usize, GroupSocket)| {
            let (members, rank) = (members.clone(), &rank);
            let settings = settings.clone();
            scope.spawn(move || rank(socket.join(at, members, settings).expect("a rank")))
        };
        let threads: Vec<_> = sockets.into_iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    })
}
