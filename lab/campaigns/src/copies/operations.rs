//! What the clients of a run do, and when.

use evenfall_core::Prng;
use evenfall_sim::{NodeIndex, SimTime};

use super::history::FILES_MAX;
use super::writers::is_leased;
use super::{BALANCE_AT, BALANCED_AT, CLIENTS_UNTIL, FLUSH_AT, LAST_AT, NAMES, OPERATIONS};

/// Times that writers ask for leases or give them back, in a run with leases.
const LEASE_OPERATIONS: u64 = 200;

/// What a client does.
#[derive(Clone, Debug)]
pub enum Kind {
    Create(String),
    Rename(String),
    Delete,
    /// An append of this many bytes.
    Append(usize),
    Read,
    /// The nameserver learns the length of a file.
    Flush,
    /// All copies shall leave a disk.
    Leave,
    /// A writer asks for the lease of a file.
    Lease,
    /// A writer gives the lease of a file back.
    Close,
    /// Copies move from full disks to empty ones, or move no more.
    Balance(bool),
}

#[derive(Clone, Debug)]
pub struct CopiesOperation {
    pub at: SimTime,
    pub node: NodeIndex,
    /// Chooses a file among the files that exist when the operation begins.
    pub pick: u64,
    pub kind: Kind,
}

/// The operations of the clients of a run.
pub fn operations(seed: u64, nodes: u32) -> Vec<CopiesOperation> {
    let mut prng = Prng::new(seed).fork(0x6f70);
    let mut times: Vec<u64> = (0..OPERATIONS).map(|_| prng.below(CLIENTS_UNTIL.nanos())).collect();
    times.sort_unstable();
    let servers = u64::from(nodes) - 1;
    let mut operation = |(number, at): (usize, u64)| {
        let path = format!("/d{}/f{number}", number % 3);
        let (is_names, pick) = (prng.chance(0.1), prng.next_u64());
        let kind = match (is_names, prng.below(10)) {
            (true, 0) => Kind::Delete,
            (true, 1..=3) => Kind::Rename(path),
            (true, _) => Kind::Create(path),
            (false, 0..=5) => Kind::Append(prng.below(600) as usize + 8),
            (false, _) => Kind::Read,
        };
        let node = if is_names { NAMES } else { NodeIndex(prng.below(servers) as u32 + 1) };
        CopiesOperation { at: SimTime::from_nanos(at), node, pick, kind }
    };
    let mut all: Vec<CopiesOperation> = times.into_iter().enumerate().map(&mut operation).collect();
    // A first file, as soon as the dataservers are known.
    let (at, node, kind) = (SimTime::from_millis(40), NAMES, Kind::Create("/first".into()));
    all.push(CopiesOperation { at, node, pick: 0, kind });
    let mut prng = Prng::new(seed).fork(0x6c65_6176);
    let at = SimTime::from_nanos(prng.below(CLIENTS_UNTIL.nanos()));
    let mut at_names =
        |at, kind| all.push(CopiesOperation { at, node, pick: prng.next_u64(), kind });
    at_names(at, Kind::Leave);
    at_names(BALANCE_AT, Kind::Balance(true));
    at_names(BALANCED_AT, Kind::Balance(false));
    let mut at_every_file = |at, kind: Kind| {
        for node in (1..nodes).map(NodeIndex) {
            for pick in 0..FILES_MAX {
                all.push(CopiesOperation { at, node, pick, kind: kind.clone() });
            }
        }
    };
    at_every_file(FLUSH_AT, Kind::Flush);
    LAST_AT.into_iter().for_each(|at| at_every_file(at, Kind::Append(100)));
    if is_leased(seed) {
        all.extend(lease_operations(seed, servers));
    }
    all
}

/// What the writers of a run do beside their appends.
fn lease_operations(seed: u64, servers: u64) -> Vec<CopiesOperation> {
    let mut prng = Prng::new(seed).fork(0x7772_6974);
    let mut operation = |_| {
        let at = SimTime::from_nanos(prng.below(CLIENTS_UNTIL.nanos()));
        let (is_close, pick) = (prng.chance(0.3), prng.next_u64());
        let (kind, node) = match is_close {
            true => (Kind::Close, NodeIndex(prng.below(servers) as u32 + 1)),
            false => (Kind::Lease, NAMES),
        };
        CopiesOperation { at, node, pick, kind }
    };
    (0..LEASE_OPERATIONS).map(&mut operation).collect()
}
