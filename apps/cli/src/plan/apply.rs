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
use evenfall_multicast_service::settings::{Node, RoleName};
use evenfall_placement_planner::tree::PlacedTree;
use evenfall_runtime::settings;
use toml_edit::{DocumentMut, Item, value};

/// A settings file into which a plan over these agents can be written.
#[derive(Debug)]
pub struct Feed {
    path: PathBuf,
    text: String,
    nodes: Vec<Node>,
    /// By node, the agent at its address.
    agents: Vec<usize>,
    agent_names: Vec<String>,
}

impl Feed {
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
            _ if self.nodes[at].role == RoleName::Recorder => RoleName::Recorder,
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
    use evenfall_placement_planner::tree::TreeShape;

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

    fn feed(text: &str) -> Result<Feed, String> {
        let (names, agents) = pool();
        Feed::parse(Path::new("feed.toml"), text.into(), &names, &agents)
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

    #[test]
    fn file_is_replaced_whole_and_not_when_somebody_else_wrote_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("feed.toml");
        fs::write(&path, TEXT).expect("a file");
        let (names, agents) = pool();
        let feed = Feed::read(&path, &names, &agents).expect("it fits");
        feed.save("# new\n").expect("a file");
        assert_eq!(fs::read_to_string(&path).expect("a file"), "# new\n");
        let error = feed.save("# newer\n").expect_err("changed");
        assert!(error.contains("changed meanwhile"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 1);
    }
}
