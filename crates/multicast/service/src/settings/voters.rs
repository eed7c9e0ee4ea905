//! The roots that vote on each frame, so that one of them may die.

use evenfall_runtime::settings::Mistake;

use super::mesh::is_known;
use super::{Node, RoleName, Settings};

/// Standbys that a run can have. With two standbys one root may die, with four standbys two may.
/// Another root more would add a vote to wait for, and no root that may die.
const STANDBYS: [usize; 2] = [2, 4];

impl Settings {
    /// The roots that vote, in the order in which they lead. A run without standbys has none.
    pub fn voters(&self) -> Vec<&Node> {
        if self.count(RoleName::Standby) == 0 {
            return Vec::new();
        }
        let of = |role| self.nodes.iter().filter(move |node| node.role == role);
        of(RoleName::Root).chain(of(RoleName::Standby)).collect()
    }

    /// Checks that the standbys can go on with the feed.
    pub(super) fn check_voters(&self) -> Result<(), Mistake> {
        let voters = self.voters();
        if voters.is_empty() {
            return Ok(());
        }
        let place = |id| self.nodes.iter().position(|node| node.id == id).unwrap_or_default();
        let count = voters.len() - 1;
        if !STANDBYS.contains(&count) {
            let last = voters.last().map_or(0, |node| place(node.id));
            let why = format!(
                "node: {count} nodes have role = \"standby\"; there must be 2 or 4, so that a \
                 majority of the roots is left when one of them dies"
            );
            return Err(Mistake::new(format!("node.{last}.role"), why));
        }
        if self.course.trees != 1 {
            let trees = self.course.trees;
            let why = format!("run.trees = {trees}: a run with standbys has one tree");
            return Err(Mistake::new("run.trees", why));
        }
        #[cfg(feature = "roles")]
        if self.feed.mold.is_some() {
            let why = "feed.mold: a run with standbys plays a file or the generator, because all \
                       roots have to read the same messages";
            return Err(Mistake::new("feed.mold", why));
        }
        for node in voters {
            if !is_known(&node.address) {
                let why = format!(
                    "node {}: address = {}: the root and its standbys must know each other's \
                     addresses; give a port and the address of one interface",
                    node.name, node.address
                );
                return Err(Mistake::new(format!("node.{}.address", place(node.id)), why));
            }
        }
        Ok(())
    }
}
