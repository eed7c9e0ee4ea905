//! Keys that end without a client: containers, and keys with a time to live.
//!
//! Every node looks at its keys from time to time and names those that seem over
//! ([`Command::Reap`](crate::Command::Reap)), each with the revision at which the node saw the key
//! change last. The order decides:
//!
//! - A **container** is deleted when it once had children, has none, and has not changed since. The
//!   rule needs no clock, so that one node is enough to decide.
//! - A **timed** key is deleted when it has no children and more than half of all nodes have named
//!   it since its value was set. A single node with a wrong clock, or a node that slept, therefore
//!   deletes no key.

use std::collections::BTreeSet;

use crate::{KeyChange, KeyEntry, KeyLifetime, Keys};

/// Most keys that a node names in one call.
pub const REAPED_MAX: usize = 1_000;

impl KeyEntry {
    /// Whether a container has lost its last child.
    pub fn is_left(&self) -> bool {
        self.kind == KeyLifetime::Container && self.births > 0 && self.children.is_empty()
    }
}

impl Keys {
    /// Containers and timed keys.
    pub fn mortal(&self) -> impl Iterator<Item = (&str, &KeyEntry)> {
        self.mortal.iter().filter_map(|key| Some((&**key, self.get(key)?)))
    }

    pub(super) fn reap(
        &mut self,
        node: u32,
        nodes: u32,
        keys: &[(String, u64)],
        changes: &mut Vec<KeyChange>,
    ) {
        let entries = &self.entries;
        let is_same =
            |key: &str, modified| entries.get(key).is_some_and(|e| e.modified == modified);
        self.votes.retain(|key, (modified, _)| is_same(key, *modified));
        for (key, seen) in keys.iter().take(REAPED_MAX) {
            let Some((key, entry)) = self.entries.get_key_value(key.as_str()) else { continue };
            let is_over = match entry.kind {
                KeyLifetime::Container => entry.is_left() && entry.children_modified == *seen,
                KeyLifetime::Timed(_) if entry.children.is_empty() && entry.modified == *seen => {
                    let votes = self.votes.entry(key.clone());
                    let (_, nodes_for) = votes.or_insert_with(|| (*seen, BTreeSet::new()));
                    nodes_for.insert(node);
                    nodes_for.len() * 2 > nodes as usize
                }
                _ => false,
            };
            if is_over {
                let key = key.clone();
                self.votes.remove(&key);
                self.drop_key(key, changes);
            }
        }
    }
}
