//! The roots that vote on each frame, so that one of them may die.

use evenfall_runtime::settings::SettingsMistake;

use super::mesh::is_known;
use super::{MulticastNode, RoleName, Settings};

/// Standbys that a run can have. With two standbys one root may die, with four standbys two may.
/// Another root more would add a vote to wait for, and no root that may die.
const STANDBYS: [usize; 2] = [2, 4];

impl Settings {
    /// The roots that vote, in the order in which they lead. A run without standbys has none.
    pub fn voters(&self) -> Vec<&MulticastNode> {
        if self.count(RoleName::Standby) == 0 {
            return Vec::new();
        }
        let of = |role| self.nodes.iter().filter(move |node| node.role == role);
        of(RoleName::Root).chain(of(RoleName::Standby)).collect()
    }

    /// The roots to which authors publish: the root, and its standbys in the order in which they
    /// lead.
    pub fn publishing(&self) -> Vec<&MulticastNode> {
        let of = |role| self.nodes.iter().filter(move |node| node.role == role);
        of(RoleName::Root).chain(of(RoleName::Standby)).collect()
    }

    /// Checks that the standbys can go on with the feed, and that authors find all roots.
    pub(super) fn check_voters(&self) -> Result<(), SettingsMistake> {
        let voters = self.voters();
        let authors = self.count(RoleName::Author);
        if voters.is_empty() && authors == 0 {
            return Ok(());
        }
        let place = |id| self.nodes.iter().position(|node| node.id == id).unwrap_or_default();
        let count = voters.len().saturating_sub(1);
        if !voters.is_empty() && !STANDBYS.contains(&count) {
            let last = voters.last().map_or(0, |node| place(node.id));
            let why = format!(
                "node: {count} nodes have role = \"standby\"; there must be 2 or 4, so that a \
                 majority of the roots is left when one of them dies"
            );
            return Err(SettingsMistake::new(format!("node.{last}.role"), why));
        }
        if self.course.trees != 1 {
            let trees = self.course.trees;
            let why = format!("run.trees = {trees}: a run with standbys or authors has one tree");
            return Err(SettingsMistake::new("run.trees", why));
        }
        #[cfg(feature = "roles")]
        if self.feed.mold.is_some() && authors == 0 {
            let why = "feed.mold: standbys cannot read a live feed, because all roots have to read \
                       the same messages; add a [[node]] with role = \"author\", which takes the \
                       feed in and publishes it to the roots";
            return Err(SettingsMistake::new("feed.mold", why));
        }
        for node in self.publishing() {
            if !is_known(&node.address) {
                let why = format!(
                    "node {}: address = {}: the other roots and the authors must know the \
                     addresses of all roots; give a port and the address of one interface",
                    node.name, node.address
                );
                return Err(SettingsMistake::new(format!("node.{}.address", place(node.id)), why));
            }
        }
        Ok(())
    }
}
