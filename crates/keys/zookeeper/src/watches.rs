//! ZooKeeper's watches: the connections that get an event for a change of a key.
//!
//! | watch | told of | how often |
//! |---|---|---|
//! | data, on a path | made, set, deleted | once |
//! | children, on a path | a child made or deleted, the path deleted | once |
//! | persistent, on a path | both | until it is removed |
//! | recursive, on a path | made, set, deleted, of the path and all below | until it is removed |

use std::collections::{BTreeMap, BTreeSet};

use evenfall_keys_machine::jute::WatchEventKind;
use evenfall_keys_machine::{self as keys, KeyChange, Keys, Rights, What};

/// Most watches of one connection.
pub const WATCHES_MAX: usize = 100_000;

/// Most bytes of the watches of one connection, and of those of all connections.
const BYTES_MAX: (usize, usize) = (16 << 20, 256 << 20);
/// Bytes that a watch is counted for beside its path, which is kept twice.
const WATCH_BYTES: usize = 128;

/// What a watch waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WatchKind {
    /// The key itself.
    Data,
    /// The keys right below.
    Children,
    /// The key itself and the keys right below, more than once.
    Persistent,
    /// The key itself and all keys below, more than once.
    Recursive,
}

/// An event for a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The kind of the event.
    pub told: WatchEventKind,
    /// The key of the event.
    pub path: String,
    /// The rights of the key. A client that may not read the key gets no event.
    pub rights: Rights,
}

/// All watches of a replica's connections, by their numbers.
#[derive(Debug, Default)]
pub struct Watches {
    by_path: BTreeMap<String, BTreeSet<(u64, WatchKind)>>,
    by_connection: BTreeMap<u64, Own>,
    bytes: usize,
}

/// The watches of one connection.
#[derive(Debug, Default)]
struct Own {
    all: BTreeSet<(String, WatchKind)>,
    bytes: usize,
}

/// The bytes for which a watch on this path counts.
fn bytes(path: &str) -> usize {
    2 * path.len() + WATCH_BYTES
}

impl Watches {
    /// Sets a watch. Returns false when the connection has as many watches as it may have.
    pub fn set(&mut self, connection: u64, path: &str, kind: WatchKind) -> bool {
        if self.has(connection, path, kind) {
            return true;
        }
        let bytes = bytes(path);
        let own = self.by_connection.get(&connection);
        let (count, own_bytes) = own.map_or((0, 0), |own| (own.all.len(), own.bytes));
        let (each, all) = BYTES_MAX;
        if count >= WATCHES_MAX || own_bytes + bytes > each || self.bytes + bytes > all {
            return false;
        }
        let own = self.by_connection.entry(connection).or_default();
        own.all.insert((path.to_owned(), kind));
        own.bytes += bytes;
        self.bytes += bytes;
        self.by_path.entry(path.to_owned()).or_default().insert((connection, kind));
        true
    }

    /// Whether a connection has a watch.
    pub fn has(&self, connection: u64, path: &str, kind: WatchKind) -> bool {
        self.by_path.get(path).is_some_and(|all| all.contains(&(connection, kind)))
    }

    /// Removes a watch, and returns whether the watch was set.
    pub fn remove(&mut self, connection: u64, path: &str, kind: WatchKind) -> bool {
        if let Some(own) = self.by_connection.get_mut(&connection)
            && own.all.remove(&(path.to_owned(), kind))
        {
            own.bytes -= bytes(path);
            self.bytes -= bytes(path);
            if own.all.is_empty() {
                self.by_connection.remove(&connection);
            }
        }
        let Some(all) = self.by_path.get_mut(path) else { return false };
        let was_there = all.remove(&(connection, kind));
        if all.is_empty() {
            self.by_path.remove(path);
        }
        was_there
    }

    /// Forgets a connection.
    pub fn forget(&mut self, connection: u64) {
        let own = self.by_connection.remove(&connection).unwrap_or_default();
        self.bytes -= own.bytes;
        for (path, kind) in own.all {
            self.remove(connection, &path, kind);
        }
    }

    /// Connections that watch something.
    pub fn watching(&self) -> Vec<u64> {
        self.by_connection.keys().copied().collect()
    }

    /// Paths that are watched, each with the connections that watch it.
    pub fn by_path(&self) -> impl Iterator<Item = (&str, impl Iterator<Item = u64>)> {
        let connections = |all: &'_ BTreeSet<(u64, WatchKind)>| {
            all.iter().map(|(connection, _)| *connection).collect::<Vec<_>>().into_iter()
        };
        self.by_path.iter().map(move |(path, all)| (path.as_str(), connections(all)))
    }

    /// Number of watches.
    pub fn len(&self) -> usize {
        self.by_connection.values().map(|own| own.all.len()).sum()
    }

    /// The events of these changes, in order, each with its connection. Watches that fire once are
    /// removed. `keys` have the changes already.
    pub fn fire(&mut self, changes: &[KeyChange], keys: &Keys) -> Vec<(u64, Event)> {
        let mut fired = Vec::new();
        if self.by_path.is_empty() {
            return fired;
        }
        for change in changes {
            // A connection with several watches is told of a change once.
            let mut events = Events::default();
            let told = match change.what {
                What::Created => WatchEventKind::Created,
                What::Set => WatchEventKind::Changed,
                What::Deleted => WatchEventKind::Deleted,
            };
            let own =
                |told| Event { told, path: change.key.to_string(), rights: change.rights.clone() };
            self.fire_at(own(told), &[WatchKind::Data, WatchKind::Persistent], &mut events);
            if told == WatchEventKind::Deleted {
                self.fire_at(own(told), &[WatchKind::Children], &mut events);
            }
            let mut above = Some(&*change.key);
            while let Some(path) = above {
                self.fire_above(path, &own(told), &mut events);
                above = keys::parent(path);
            }
            if told != WatchEventKind::Changed
                && let Some(path) = keys::parent(&change.key)
            {
                let kinds = [WatchKind::Children, WatchKind::Persistent];
                let rights = keys.get(path).map(|above| above.rights.clone()).unwrap_or_default();
                let event = Event { told: WatchEventKind::Children, path: path.to_owned(), rights };
                self.fire_at(event, &kinds, &mut events);
            }
            fired.append(&mut events.all);
        }
        fired
    }

    /// Adds the event of a key below `path` for each recursive watch on `path`, unless the
    /// connection of the watch has the event already.
    fn fire_above(&self, path: &str, event: &Event, events: &mut Events) {
        let Some(all) = self.by_path.get(path) else { return };
        for (connection, _) in all.iter().filter(|(_, kind)| *kind == WatchKind::Recursive) {
            events.push(*connection, event);
        }
    }

    fn fire_at(&mut self, event: Event, kinds: &[WatchKind], events: &mut Events) {
        let Some(all) = self.by_path.get(&event.path) else { return };
        let hit: Vec<_> = all.iter().filter(|(_, kind)| kinds.contains(kind)).copied().collect();
        for (connection, kind) in hit {
            events.push(connection, &event);
            if matches!(kind, WatchKind::Data | WatchKind::Children) {
                self.remove(connection, &event.path, kind);
            }
        }
    }
}

/// The events of one change, which are at most one of each kind for a connection.
#[derive(Default)]
struct Events {
    all: Vec<(u64, Event)>,
    told: BTreeSet<(u64, WatchEventKind)>,
}

impl Events {
    fn push(&mut self, connection: u64, event: &Event) {
        if self.told.insert((connection, event.told)) {
            self.all.push((connection, event.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(key: &str, what: What) -> KeyChange {
        KeyChange { key: key.into(), what, rights: Rights::default() }
    }

    fn fired(watches: &mut Watches, key: &str, what: What) -> Vec<(u64, WatchEventKind, String)> {
        let events = watches.fire(&[change(key, what)], &Keys::new(1 << 20));
        events.into_iter().map(|(to, event)| (to, event.told, event.path)).collect()
    }

    #[test]
    fn a_watch_is_told_once_and_a_deletion_once_to_each_connection() {
        let mut watches = Watches::default();
        watches.set(1, "/a", WatchKind::Data);
        watches.set(1, "/a", WatchKind::Children);
        watches.set(2, "/", WatchKind::Children);
        let told = fired(&mut watches, "/a", What::Deleted);
        let expected =
            [(1, WatchEventKind::Deleted, "/a".into()), (2, WatchEventKind::Children, "/".into())];
        assert_eq!(told, expected);
        assert_eq!((fired(&mut watches, "/a", What::Created), watches.len()), (vec![], 0));
    }

    #[test]
    fn each_change_of_one_transaction_is_told() {
        let mut watches = Watches::default();
        watches.set(1, "/a", WatchKind::Recursive);
        let changes =
            [What::Deleted, What::Created, What::Deleted].map(|what| change("/a/b", what));
        let events = watches.fire(&changes, &Keys::new(1 << 20));
        let told: Vec<WatchEventKind> = events.into_iter().map(|(_, event)| event.told).collect();
        assert_eq!(
            told,
            [WatchEventKind::Deleted, WatchEventKind::Created, WatchEventKind::Deleted]
        );
    }

    #[test]
    fn a_recursive_watch_is_told_of_all_below_until_it_is_removed() {
        let mut watches = Watches::default();
        watches.set(1, "/a", WatchKind::Recursive);
        for _ in 0..2 {
            let told = fired(&mut watches, "/a/b/c", What::Set);
            assert_eq!(told, [(1, WatchEventKind::Changed, "/a/b/c".into())]);
        }
        assert!(fired(&mut watches, "/b", What::Set).is_empty());
        assert!(watches.remove(1, "/a", WatchKind::Recursive));
        assert!(fired(&mut watches, "/a/b", What::Set).is_empty());
    }

    #[test]
    fn a_connection_that_ends_leaves_nothing() {
        let mut watches = Watches::default();
        watches.set(1, "/a", WatchKind::Persistent);
        watches.set(1, "/b", WatchKind::Data);
        watches.forget(1);
        assert!(watches.by_path.is_empty() && watches.by_connection.is_empty());
        assert_eq!(watches.bytes, 0);
    }

    #[test]
    fn long_paths_count_by_their_bytes() {
        let mut watches = Watches::default();
        let path = |n: usize| format!("/{n:04000}");
        let set =
            (0..WATCHES_MAX).take_while(|n| watches.set(1, &path(*n), WatchKind::Data)).count();
        assert_eq!(set, BYTES_MAX.0 / bytes(&path(0)));
        assert!(watches.set(1, &path(0), WatchKind::Data), "it is there already");
        assert!(watches.set(2, &path(0), WatchKind::Data), "another connection has its own share");
    }
}
