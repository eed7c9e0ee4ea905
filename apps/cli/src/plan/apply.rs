//! `plan live --apply`: writes a plan into the settings of a feed.
//!
//! A node of the feed belongs to the agent at the same IP address. The root of a running feed gives
//! out places by id: proxies level by level, then receivers, spread evenly over the last proxies.
//! `--apply` therefore gives the nodes their roles, and reassigns the ids of the file in the order
//! of the plan's places. Machines without a place become proxies with the highest ids, which a feed
//! keeps as spares. All other lines of the file stay as they are, with their comments.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use evenfall_host::whole_file::{SETTINGS_BYTES_MAX, read_text_up_to};
use evenfall_multicast_service::Settings;
use evenfall_multicast_service::settings::{MulticastNode, RoleName};
use evenfall_placement_planner::tree::{PlacedTree, TreeShape};
use evenfall_runtime::settings;
use toml_edit::{DocumentMut, Item, value};

/// A settings file into which a plan over these agents can be written.
#[derive(Debug)]
pub struct FeedSettingsFile {
    path: PathBuf,
    text: String,
    nodes: Vec<MulticastNode>,
    /// By node, the agent at its address.
    agents: Vec<usize>,
    agent_names: Vec<String>,
    /// Depth and fan-out, when the file has both.
    shape: Option<TreeShape>,
}

impl FeedSettingsFile {
    /// Reads the file. `agents` are names and addresses, in the order of the numbers that trees
    /// use.
    ///
    /// # Errors
    /// The part that does not fit, with its line and key.
    pub fn read(path: &Path, names: &[String], agents: &[SocketAddr]) -> Result<Self, String> {
        let shown = path.display();
        let failed = |error| format!("--apply {shown}: {error}");
        let text = read_text_up_to(path, SETTINGS_BYTES_MAX).map_err(failed)?;
        Self::parse(path, text, names, agents)
    }

    fn parse(
        path: &Path,
        text: String,
        names: &[String],
        agents: &[SocketAddr],
    ) -> Result<Self, String> {
        let shown = format!("--apply {}", path.display());
        let settings = Settings::parse(&text, &shown, std::iter::empty(), &[]);
        let settings = settings.map_err(|error| error.to_string())?;
        let mut feed = Self {
            path: path.to_owned(),
            nodes: settings.nodes.clone(),
            agents: Vec::new(),
            agent_names: names.to_vec(),
            shape: shape_of(&settings),
            text,
        };
        feed.refuse_other_shapes(&settings)?;
        for at in 0..feed.nodes.len() {
            let node = &feed.nodes[at];
            if node.role == RoleName::Other {
                let why = "is an agent; a plan is written into the settings of a feed";
                return Err(feed.wrong(&["node", &at.to_string(), "role"], why));
            }
            let same = |agent: &&SocketAddr| agent.ip() == node.address.ip();
            let mut found = agents.iter().enumerate().filter(|(_, agent)| same(agent));
            let why = match (found.next(), found.next()) {
                (Some((agent, _)), None) if !feed.agents.contains(&agent) => {
                    feed.agents.push(agent);
                    continue;
                }
                (Some((agent, _)), None) => format!(
                    "is at the address of agent {}, as another node is; a plan has one place for \
                     each machine",
                    names[agent]
                ),
                (Some(_), Some(_)) => "has the address of several agents".into(),
                (None, _) => {
                    "has the address of no agent; measure its machine, or remove it".into()
                }
            };
            return Err(feed.wrong(&["node", &at.to_string(), "address"], &why));
        }
        Ok(feed)
    }

    /// Refuses settings that a plan of one tree cannot express.
    fn refuse_other_shapes(&self, settings: &Settings) -> Result<(), String> {
        if settings.course.trees > 1 {
            let why = format!("is {}; a plan is of one tree", settings.course.trees);
            return Err(self.wrong(&["run", "trees"], &why));
        }
        if settings.multicast.mode.direct() {
            let why = "sends to every receiver directly; there is no tree to plan";
            return Err(self.wrong(&["multicast", "mode"], why));
        }
        if settings.multicast.shape.scheme == evenfall_multicast_machine::config::Scheme::Extra {
            let why = "is extra, which takes proxies beside the tree; a plan has none";
            return Err(self.wrong(&["multicast", "shape", "scheme"], why));
        }
        Ok(())
    }

    /// The new text of the file with the plan, and a line for each change.
    ///
    /// # Errors
    /// The part that does not fit, with its line and key.
    pub fn with(&self, tree: &PlacedTree) -> Result<(String, Vec<String>), String> {
        let (shape, order) = (tree.shape(), self.order(tree)?);
        let mut document: DocumentMut = self.text.parse().map_err(|error| {
            format!("--apply {}: {error}", self.path.display()) // It was parsed before.
        })?;
        let mut said = Vec::new();
        for (key, new) in [("depth", u32::from(shape.depth)), ("fanout", u32::from(shape.fanout))] {
            let multicast = document.entry("multicast").or_insert_with(implicit);
            let table = multicast.as_table_like_mut().ok_or("multicast is no table")?;
            let inner = table.entry("shape").or_insert_with(toml_edit::table);
            let old = inner.get(key).and_then(Item::as_integer);
            if old != Some(i64::from(new)) {
                let old = old.map_or("none".into(), |old| old.to_string());
                said.push(format!("multicast.shape.{key}: {old} -> {new}"));
                put(&mut inner[key], i64::from(new));
            }
        }
        let ids: BTreeSet<u32> = self.nodes.iter().map(|node| node.id.0).collect();
        let nodes = document["node"].as_array_of_tables_mut().ok_or_else(|| {
            self.wrong(&["node"], "is an array in one line; write each node as [[node]]")
        })?;
        for ((place, at), id) in order.iter().enumerate().zip(ids) {
            let (node, role) = (&self.nodes[*at], self.role(tree, place, *at));
            let table = nodes.get_mut(*at).ok_or("a node is missing")?;
            let mut changes = Vec::new();
            if node.role != role {
                changes.push(format!("role {} -> {role}", node.role));
                put(&mut table["role"], role.to_string());
            }
            if node.id.0 != id {
                changes.push(format!("id {} -> {id}", node.id.0));
                put(&mut table["id"], i64::from(id));
            }
            if !changes.is_empty() {
                said.push(format!("node {}: {}", node.name, changes.join(", ")));
            }
        }
        let text = document.to_string();
        let shown = format!("--apply {}, with the plan", self.path.display());
        Settings::parse(&text, &shown, std::iter::empty(), &[]).map_err(|e| e.to_string())?;
        Ok((text, said))
    }

    /// Number of nodes that are leaves of the tree.
    pub fn receivers(&self) -> usize {
        self.nodes.iter().filter(|node| is_leaf(node.role)).count()
    }

    /// The agents at the addresses of the nodes.
    pub fn machines(&self) -> &[usize] {
        &self.agents
    }

    /// The name of an agent.
    pub fn agent_name(&self, agent: usize) -> &str {
        &self.agent_names[agent]
    }

    /// The agent on whose machine the node of this name runs, or the agent of this name.
    pub fn agent_of(&self, name: &str) -> Option<usize> {
        let node = self.nodes.iter().position(|node| node.name == name);
        let agent = || self.agent_names.iter().position(|known| known == name);
        node.map(|at| self.agents[at]).or_else(agent)
    }

    /// The tree of the file as a root gives it out: the root, the proxies by id, the receivers by
    /// id. Proxies behind the last inner place are spares.
    ///
    /// # Errors
    /// Why the nodes of the file are no whole tree whose places follow the ids, with line and key.
    pub fn placed_tree(&self) -> Result<PlacedTree, String> {
        let first = "write a whole plan by evenfall plan live --apply first";
        let Some(shape) =
            self.shape.filter(|shape| shape.depth > 0 && shape.checked_places().is_some())
        else {
            let why = format!("has no depth and fan-out from which the places follow; {first}");
            return Err(self.wrong(&["multicast", "shape"], &why));
        };
        let mut by_id: Vec<usize> = (0..self.nodes.len()).collect();
        by_id.sort_by_key(|at| self.nodes[*at].id);
        let role = |at: &usize| self.nodes[*at].role;
        let of = |wanted: &dyn Fn(RoleName) -> bool| -> Vec<usize> {
            by_id.iter().copied().filter(|at| wanted(role(at))).collect()
        };
        let roots = of(&|role| role == RoleName::Root);
        let proxies = of(&|role| role == RoleName::Proxy);
        let leaves = of(&is_leaf);
        let inner = shape.inner() - 1;
        let counts = (roots.len(), leaves.len());
        if counts != (1, shape.leaves().len()) || proxies.len() < inner {
            let why = format!(
                "asks for one root, {inner} proxies and {} receivers, and the file has {}, {} and \
                 {}; {first}",
                shape.leaves().len(),
                roots.len(),
                proxies.len(),
                leaves.len()
            );
            return Err(self.wrong(&["multicast", "shape"], &why));
        }
        if let Some(other) = by_id
            .iter()
            .copied()
            .find(|at| !matches!(role(at), RoleName::Root | RoleName::Proxy) && !is_leaf(role(at)))
        {
            let why = "has no place in the tree, so that a plan would change its role";
            return Err(self.wrong(&["node", &other.to_string(), "role"], why));
        }
        let order: Vec<usize> =
            roots.iter().chain(&proxies[..inner]).chain(&leaves).copied().collect();
        // A plan gives the least ids to the places in their order. Other ids would change.
        if let Some(at) = order.iter().zip(&by_id).find(|(at, by_id)| at != by_id) {
            let why = format!("does not follow the places of the tree; {first}");
            return Err(self.wrong(&["node", &at.0.to_string(), "id"], &why));
        }
        Ok(PlacedTree::new(shape, order.iter().map(|at| self.agents[*at]).collect()))
    }

    /// The nodes in the order of the tree's places, then the spares in the order of their ids.
    fn order(&self, tree: &PlacedTree) -> Result<Vec<usize>, String> {
        let mut order = Vec::new();
        for host in tree.hosts() {
            let at = self.agents.iter().position(|agent| agent == host).ok_or_else(|| {
                let why = format!(
                    "has no node at the address of agent {}, which has a place in the plan",
                    self.agent_names[*host]
                );
                self.wrong(&["node"], &why)
            })?;
            order.push(at);
        }
        let mut spares: Vec<usize> =
            (0..self.nodes.len()).filter(|at| !order.contains(at)).collect();
        spares.sort_by_key(|at| self.nodes[*at].id);
        order.extend(spares);
        for (place, at) in order.iter().enumerate() {
            let (node, role, at_text) =
                (&self.nodes[*at], self.role(tree, place, *at), at.to_string());
            if node.role == RoleName::Recorder && role != RoleName::Recorder {
                let why = "is a recorder, and the plan has no leaf on its machine; leave the \
                           recorder's agent out of the pool's inner places, or its node out of \
                           the file";
                return Err(self.wrong(&["node", &at_text, "role"], why));
            }
            if node.from.is_some() && role != RoleName::Receiver {
                let why = format!("belongs to a receiver, and the plan makes this node a {role}");
                return Err(self.wrong(&["node", &at_text, "from"], &why));
            }
        }
        Ok(order)
    }

    fn role(&self, tree: &PlacedTree, place: usize, at: usize) -> RoleName {
        let shape = tree.shape();
        match place {
            0 => RoleName::Root,
            _ if !shape.leaves().contains(&place) => RoleName::Proxy,
            // A recorder or a gateway is a receiver with more to do.
            _ if is_leaf(self.nodes[at].role) => self.nodes[at].role,
            _ => RoleName::Receiver,
        }
    }

    /// An error at a key of the file.
    fn wrong(&self, key: &[&str], why: &str) -> String {
        let place = settings::line_of(&self.text, &key.join("."));
        let place = place.map_or(String::new(), |line| format!("line {line}: "));
        let node = match key {
            ["node", at, _] => at.parse().ok().and_then(|at: usize| self.nodes.get(at)),
            _ => None,
        };
        let node = node.map_or(String::new(), |node| format!("node {}: ", node.name));
        let key = key.iter().copied().filter(|part| part.parse::<usize>().is_err());
        let key = key.collect::<Vec<_>>().join(".");
        format!("--apply {}: {place}{node}{key} {why}", self.path.display())
    }

    /// Replaces the file by the text in one step: a reader finds the old file or the new one.
    ///
    /// # Errors
    /// The error of the system.
    pub fn save(&self, text: &str) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("--apply {}: {error}", self.path.display());
        // A link stays a link: the file behind it is replaced.
        let path = self.path.canonicalize().map_err(failed)?;
        if fs::read_to_string(&path).map_err(failed)? != self.text {
            let shown = self.path.display();
            return Err(format!("--apply {shown}: was changed meanwhile, and is left alone"));
        }
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let part = path.with_file_name(name);
        let write = || {
            let mut file = File::create(&part)?;
            file.set_permissions(fs::metadata(&path)?.permissions())?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&part, &path)
        };
        write().map_err(|error| {
            fs::remove_file(&part).ok();
            failed(error)
        })
    }
}

/// Depth and fan-out of the settings, when both are stated.
fn shape_of(settings: &Settings) -> Option<TreeShape> {
    let shape = &settings.multicast.shape;
    Some(TreeShape { depth: shape.depth?, fanout: shape.fanout? })
}

/// Whether a node of this role is a leaf of the tree.
fn is_leaf(role: RoleName) -> bool {
    matches!(role, RoleName::Receiver | RoleName::Recorder | RoleName::Gateway)
}

fn implicit() -> Item {
    let mut table = toml_edit::Table::new();
    table.set_implicit(true);
    Item::Table(table)
}

/// Sets a value, and keeps the comment after it.
fn put(slot: &mut Item, new: impl Into<toml_edit::Value>) {
    let decor = slot.as_value().map(|old| old.decor().clone());
    *slot = value(new);
    if let (Some(decor), Some(value)) = (decor, slot.as_value_mut()) {
        *value.decor_mut() = decor;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::rebuild::RebuiltPart;

    const TEXT: &str = r#"# a feed
[run] # what runs
key_file = "k"

[multicast.shape]
depth = 2 # two hops
fanout = 3

[[node]] # the first machine
name = "m0"
id = 10
role = "root" # publishes
address = "10.0.0.1:9000"

[[node]]
name = "m1"
id = 11
role = "proxy"
address = "10.0.0.2:9000"
http = "10.0.0.2:9101"

[[node]]
name = "m2"
id = 12
role = "receiver"
address = "10.0.0.3:9000"

[[node]]
name = "m3"
id = 13
role = "receiver"
address = "10.0.0.4:9000"
"#;

    fn pool() -> (Vec<String>, Vec<SocketAddr>) {
        (0..4u8).map(|n| (format!("a{n}"), SocketAddr::from(([10, 0, 0, n + 1], 9400)))).unzip()
    }

    fn feed(text: &str) -> Result<FeedSettingsFile, String> {
        let (names, agents) = pool();
        FeedSettingsFile::parse(Path::new("feed.toml"), text.into(), &names, &agents)
    }

    #[test]
    fn plan_is_written_as_roles_and_ids_and_comments_stay() {
        // a3 feeds a1 and a2; a0 has no place.
        let tree = PlacedTree::new(TreeShape { depth: 1, fanout: 2 }, vec![3, 1, 2]);
        let (text, said) = feed(TEXT).expect("it fits").with(&tree).expect("it fits");
        let wanted = TEXT
            .replace("depth = 2", "depth = 1")
            .replace("fanout = 3", "fanout = 2")
            .replace("id = 10\nrole = \"root\"", "id = 13\nrole = \"proxy\"")
            .replace("id = 11\nrole = \"proxy\"", "id = 11\nrole = \"receiver\"")
            .replace("id = 13\nrole = \"receiver\"", "id = 10\nrole = \"root\"");
        assert_eq!(text, wanted);
        let all = said.join("\n");
        for words in ["multicast.shape.depth: 2 -> 1", "node m0: role root -> proxy, id 10 -> 13"] {
            assert!(all.contains(words), "{words} in:\n{all}");
        }
        // A plan that the file already has changes nothing.
        let (again, said) = feed(&text).expect("it fits").with(&tree).expect("it fits");
        assert_eq!((again, said), (text, Vec::new()));
    }

    #[test]
    fn file_that_does_not_fit_is_refused_with_line_and_key() {
        let tree = PlacedTree::new(TreeShape { depth: 1, fanout: 2 }, vec![3, 1, 2]);
        let last = TEXT.rfind("[[node]]").expect("a node");
        let cases = [
            (
                TEXT.replace("10.0.0.3:9000", "10.0.0.9:9000"),
                ["line 26", "m2: node.address", "no agent"],
            ),
            (
                TEXT.replace("10.0.0.3:9000", "10.0.0.2:9001"),
                ["line 26", "m2: node.address", "agent a1"],
            ),
            (TEXT.replace("[run]", "[run]\ntrees = 2"), ["line 3", "run.trees", "one tree"]),
            (TEXT[..last].to_owned(), ["line 9", "node", "agent a3"]),
            (
                TEXT.replacen("receiver\"", "recorder\"\nrecord = \"d\"", 1)
                    .replacen("10.0.0.1:", "10.0.0.7:", 1)
                    .replacen("10.0.0.3:", "10.0.0.1:", 1)
                    .replacen("10.0.0.7:", "10.0.0.3:", 1),
                ["line 25", "node.role", "recorder"],
            ),
            (
                TEXT.replacen("receiver\"", "receiver\"\nfrom = \"start\"", 1)
                    .replacen("10.0.0.1:", "10.0.0.7:", 1)
                    .replacen("10.0.0.3:", "10.0.0.1:", 1)
                    .replacen("10.0.0.7:", "10.0.0.3:", 1),
                ["line 26", "node.from", "receiver"],
            ),
            (
                TEXT.replace("[run]", "[multicast]\nmode = \"unicast\"\n[run]"),
                ["line 3", "multicast.mode", "directly"],
            ),
            (TEXT.replace("fanout = 3", "fanouts = 3"), ["line 7", "fanouts", "fanout"]),
        ];
        for (text, words) in cases {
            let error = feed(&text).and_then(|feed| feed.with(&tree)).expect_err(words[1]);
            for word in words {
                assert!(error.contains(word), "{word} in:\n{error}");
            }
        }
    }

    /// A root, two proxies with two receivers each, and two spares: agents a0 to a8 in this order.
    fn two_parts() -> (String, Vec<String>, Vec<SocketAddr>) {
        let role = |at: usize| ["root", "proxy", "proxy"].get(at).copied().unwrap_or("receiver");
        let role = |at: usize| if at > 6 { "proxy" } else { role(at) };
        let node = |at: usize| {
            format!(
                "\n[[node]]\nname = \"m{at}\"\nid = {at}\nrole = \"{}\"\naddress = \
                 \"10.0.0.{}:9000\"\n",
                role(at),
                at + 1
            )
        };
        let head = "[run]\nkey_file = \"k\"\n[multicast.shape]\ndepth = 2\nfanout = 2\n";
        let text = head.to_owned() + &(0..9).map(node).collect::<String>();
        let agent = |n: u8| (format!("a{n}"), SocketAddr::from(([10, 0, 0, n + 1], 9400)));
        let (names, agents) = (0..9).map(agent).unzip();
        (text, names, agents)
    }

    #[test]
    fn a_part_gets_other_machines_and_the_rest_stays() {
        let (text, names, agents) = two_parts();
        let feed = FeedSettingsFile::parse(Path::new("feed.toml"), text.clone(), &names, &agents);
        let feed = feed.expect("it fits");
        assert_eq!(feed.placed_tree().expect("whole").hosts(), [0, 1, 2, 3, 4, 5, 6]);
        // Of the part below m2, the machine of m5 is avoided.
        let part = RebuiltPart::of(&feed, "m2", &[5]).expect("two spares");
        assert_eq!(part.measured(), [0, 2, 6, 7, 8]);
        assert_eq!(part.shape(), TreeShape { depth: 1, fanout: 2 });
        let tree = part.join(&[7, 2, 6]);
        assert_eq!(tree.hosts(), [0, 1, 7, 3, 4, 2, 6]);
        let (new, said) = feed.with(&tree).expect("it fits");
        let of_others =
            |line: &&String| ["m0", "m1", "m3", "m4", "m6"].iter().any(|n| line.contains(n));
        assert_eq!(said.iter().filter(of_others).count(), 0, "{said:?}");
        assert!(said.iter().any(|line| line == "node m7: id 7 -> 2"), "{said:?}");
        assert!(said.iter().any(|line| line.starts_with("node m5: role receiver -> proxy")));
        let again =
            FeedSettingsFile::parse(Path::new("feed.toml"), new, &names, &agents).expect("it fits");
        assert_eq!(again.placed_tree().expect("whole").hosts(), tree.hosts());
        // A leaf alone is planned as the only child of the machine above.
        let leaf = RebuiltPart::of(&feed, "a4", &[4]).expect("two spares");
        assert_eq!(leaf.measured(), [1, 7, 8]);
        assert_eq!(leaf.join(&[1, 8]).hosts(), [0, 1, 2, 3, 8, 5, 6]);
    }

    #[test]
    fn a_part_that_cannot_be_rebuilt_says_what_to_do() {
        let (text, names, agents) = two_parts();
        let shown = |text: &str, part: &str, avoided: &[usize]| {
            let feed =
                FeedSettingsFile::parse(Path::new("feed.toml"), text.into(), &names, &agents);
            RebuiltPart::of(&feed.expect("it fits"), part, avoided).expect_err(part)
        };
        assert!(shown(&text, "m0", &[]).contains("is the root"));
        assert!(shown(&text, "m8", &[]).contains("spare"));
        assert!(shown(&text, "m9", &[]).contains("no node"));
        assert!(shown(&text, "m1", &[6]).contains("--avoid a6: has a place outside"));
        assert!(shown(&text, "m1", &[1, 3, 4]).contains("add spares"));
        let crossed = text.replace("id = 5\n", "id = 50\n").replace("id = 7\n", "id = 5\n");
        assert!(shown(&crossed, "m1", &[]).contains("node.id does not follow"));
        let fewer = text.replace("fanout = 2", "fanout = 3");
        assert!(shown(&fewer, "m1", &[]).contains("multicast.shape asks for"));
    }

    #[test]
    fn file_is_replaced_whole_and_not_when_somebody_else_wrote_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("feed.toml");
        fs::write(&path, TEXT).expect("a file");
        let (names, agents) = pool();
        let feed = FeedSettingsFile::read(&path, &names, &agents).expect("it fits");
        feed.save("# new\n").expect("a file");
        assert_eq!(fs::read_to_string(&path).expect("a file"), "# new\n");
        let error = feed.save("# newer\n").expect_err("changed");
        assert!(error.contains("changed meanwhile"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 1);
    }
}
