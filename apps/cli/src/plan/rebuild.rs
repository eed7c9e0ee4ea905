//! `plan live --rebuild PART`: other machines for a part of a feed's tree, and none for the rest.
//!
//! A part is a node of the feed and all nodes below it. The machines that may take its places are
//! those that have the places now and the spares of the feed, without the machines of `--avoid`.
//! They and the machine above the part are measured, all pairs at one time. The planner puts the
//! best of them on the places, with the way from the machine above counted. All other places keep
//! their machines, ids and roles, so that the nodes there need not start again.

use evenfall_placement_planner::tree::{PlacedTree, TreeShape};

use super::apply::FeedSettingsFile;

/// A part of a tree that gets other machines. Machines are numbers of agents.
#[derive(Debug)]
pub struct RebuiltPart {
    tree: PlacedTree,
    /// The places of the part, level by level.
    places: Vec<usize>,
    /// The machine above the part.
    above: usize,
    /// The machines that may take the places.
    candidates: Vec<usize>,
}

impl RebuiltPart {
    /// The part below the node of this name, and the machines that may take it. `avoided` are
    /// agents.
    ///
    /// # Errors
    /// What does not fit, and what to do.
    pub fn of(feed: &FeedSettingsFile, name: &str, avoided: &[usize]) -> Result<Self, String> {
        let tree = feed.placed_tree()?;
        let shape = tree.shape();
        let agent = feed.agent_of(name).ok_or_else(|| {
            format!("--rebuild {name}: no node of the feed and no agent is called so")
        })?;
        let place =
            tree.hosts().iter().position(|host| *host == agent).ok_or_else(|| {
                format!("--rebuild {name}: is a spare, and has no place in the tree")
            })?;
        let Some(parent) = shape.parent(place) else {
            return Err(format!(
                "--rebuild {name}: is the root, and its part is the whole tree; leave --rebuild \
                 out, or name a proxy or a receiver"
            ));
        };
        let places: Vec<usize> = std::iter::once(place).chain(shape.below(place)).collect();
        let above = tree.hosts()[parent];
        let stays = |agent: &usize| {
            let at = tree.hosts().iter().position(|host| host == agent);
            at.is_some_and(|at| !places.contains(&at))
        };
        if let Some(kept) = avoided.iter().find(|agent| stays(agent)) {
            return Err(format!(
                "--avoid {}: has a place outside of the part {name}, which stays; rebuild the part \
                 below that machine",
                feed.agent_name(*kept)
            ));
        }
        let may = |agent: &usize| !avoided.contains(agent) && !stays(agent);
        let candidates: Vec<usize> = feed.machines().iter().copied().filter(may).collect();
        if candidates.len() < places.len() {
            return Err(format!(
                "--rebuild {name}: has {} places, and only {} machines may take them: those of the \
                 part and the spares of the feed, without those of --avoid; add spares to the feed",
                places.len(),
                candidates.len()
            ));
        }
        Ok(Self { tree, places, above, candidates })
    }

    /// The agents that are measured: the machine above first.
    pub fn measured(&self) -> Vec<usize> {
        std::iter::once(self.above).chain(self.candidates.iter().copied()).collect()
    }

    /// Whether the part is one leaf.
    pub fn is_leaf(&self) -> bool {
        self.places.len() == 1
    }

    /// The shape of the tree that is planned. The tree of a leaf has the machine above as its root,
    /// because no tree has a single place.
    pub fn shape(&self) -> TreeShape {
        let fanout = self.tree.shape().fanout;
        let is_level =
            |depth: &u8| TreeShape { depth: *depth, fanout }.places() >= self.places.len();
        match self.is_leaf() {
            true => TreeShape { depth: 1, fanout: 1 },
            false => TreeShape { depth: (1..u8::MAX).find(is_level).unwrap_or(1), fanout },
        }
    }

    /// The whole tree with the planned part. `planned` are the agents of the planned tree, level by
    /// level.
    pub fn join(&self, planned: &[usize]) -> PlacedTree {
        let mut hosts = self.tree.hosts().to_vec();
        // The first machine of a leaf's tree is the one above.
        let planned = &planned[usize::from(self.is_leaf())..];
        for (place, agent) in self.places.iter().zip(planned) {
            hosts[*place] = *agent;
        }
        PlacedTree::new(self.tree.shape(), hosts)
    }
}
