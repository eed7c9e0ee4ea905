//! What the `/status` of a root says, as far as a watcher reads it. A field that an older root does
//! not have is empty.

use serde::{Deserialize, Serialize};

/// Median and 99th percentile, microseconds.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct ToldPercentiles {
    pub p50: Option<f64>,
    pub p99: Option<f64>,
}

impl ToldPercentiles {
    /// The larger of two, as the figures of several trees are put together.
    fn widen(&mut self, other: &Self) {
        *self = Self { p50: larger_of(self.p50, other.p50), p99: larger_of(self.p99, other.p99) };
    }
}

/// The larger of two figures, where there are any.
fn larger_of(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.into_iter().chain(b).reduce(f64::max)
}

/// How even deliveries were in a span of time.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct ToldSpan {
    pub judged: u64,
    pub late: u64,
    pub on_time_share: Option<f64>,
    pub oml_us: ToldPercentiles,
    pub window_us: ToldPercentiles,
    pub lateness_us: ToldPercentiles,
}

impl ToldSpan {
    fn widen(&mut self, other: &Self) {
        self.judged += other.judged;
        self.late += other.late;
        self.on_time_share = (self.judged > 0).then(|| 1.0 - self.late as f64 / self.judged as f64);
        self.oml_us.widen(&other.oml_us);
        self.window_us.widen(&other.window_us);
        self.lateness_us.widen(&other.lateness_us);
    }
}

/// Counts over all receivers.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ToldTally {
    pub released: u64,
    pub late: u64,
    pub lost: u64,
    pub repaired: u64,
    pub hedge_wins: u64,
}

/// A root or a standby.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ToldRoot {
    pub id: u32,
    pub name: String,
    pub http: Option<String>,
}

/// A proxy, receiver or recorder.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ToldNode {
    pub id: u32,
    pub name: String,
    pub role: String,
    pub state: String,
    pub parent: Option<u32>,
    pub aunts: Vec<u32>,
    pub http: Option<String>,
    pub delay_p50_us: Option<f64>,
    pub delay_p99_us: Option<f64>,
    pub released: u64,
    pub late: u64,
    pub lost: u64,
    pub repaired: u64,
    pub hedge_wins: u64,
    pub clock: String,
    pub clock_bound_us: Option<f64>,
    pub age_ms: Option<u64>,
}

/// An event of the run. Its time is on the clock of the run, as `now_ns` of the page.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct ToldEvent {
    pub at_ns: u64,
    pub kind: String,
    pub text: String,
}

/// One tree of a root.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ToldTree {
    pub name: String,
    pub id: u32,
    pub leads: bool,
    pub phase: String,
    pub mode: String,
    pub hold_ns: u64,
    pub hold_max_ns: u64,
    pub target: f64,
    pub now_ns: u64,
    pub messages: u64,
    pub tally: ToldTally,
    pub last_second: ToldSpan,
    pub last_10s: ToldSpan,
    pub since_start: ToldSpan,
    pub clock: String,
    pub clock_bound_us: Option<f64>,
    pub roots: Vec<ToldRoot>,
    pub members: Vec<ToldNode>,
    pub events: Vec<ToldEvent>,
}

/// All trees of a root as one: counts are added up, and of percentiles the larger one counts.
/// `None` when the text is no page of a root.
pub fn read_root(text: &str) -> Option<ToldTree> {
    let trees: Vec<ToldTree> = serde_json::from_str(text).ok()?;
    let mut trees = trees.into_iter();
    // A page without these is that of another role, or of an older root.
    let mut whole = trees.next().filter(|tree| !tree.phase.is_empty())?;
    for tree in trees {
        whole.messages += tree.messages;
        whole.hold_ns = whole.hold_ns.max(tree.hold_ns);
        for (sum, part) in [
            (&mut whole.tally.released, tree.tally.released),
            (&mut whole.tally.late, tree.tally.late),
            (&mut whole.tally.lost, tree.tally.lost),
            (&mut whole.tally.repaired, tree.tally.repaired),
            (&mut whole.tally.hedge_wins, tree.tally.hedge_wins),
        ] {
            *sum += part;
        }
        whole.last_second.widen(&tree.last_second);
        whole.last_10s.widen(&tree.last_10s);
        whole.since_start.widen(&tree.since_start);
        tree.members.into_iter().for_each(|node| add_node(&mut whole.members, node));
    }
    Some(whole)
}

/// Adds a node of a further tree. A receiver is in all trees, and has its place in the first one.
fn add_node(nodes: &mut Vec<ToldNode>, other: ToldNode) {
    let Some(node) = nodes.iter_mut().find(|node| node.id == other.id) else {
        return nodes.push(other);
    };
    node.delay_p50_us = larger_of(node.delay_p50_us, other.delay_p50_us);
    node.delay_p99_us = larger_of(node.delay_p99_us, other.delay_p99_us);
    node.released += other.released;
    node.late += other.late;
    node.lost += other.lost;
    node.repaired += other.repaired;
    node.hedge_wins += other.hedge_wins;
    if other.state != "sound" {
        node.state = other.state;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_trees_are_one_run_and_other_pages_are_none() {
        let tree = |share: &str| {
            format!(
                r#"{{"phase":"feeding","messages":5,"tally":{{"lost":1}},
                "last_10s":{{"judged":4,"late":{share},"window_us":{{"p50":2.0,"p99":null}}}},
                "members":[{{"id":7,"name":"r","state":"sound","lost":1,"delay_p99_us":9.0}}]}}"#
            )
        };
        let run = read_root(&format!("[{},{}]", tree("0"), tree("2"))).expect("a root");
        assert_eq!((run.messages, run.tally.lost, run.members.len()), (10, 2, 1));
        assert_eq!((run.last_10s.judged, run.last_10s.on_time_share), (8, Some(0.75)));
        assert_eq!((run.members[0].lost, run.last_10s.window_us.p50), (2, Some(2.0)));
        for other in ["[]", "{}", "[{\"released\":5}]", "<html>", ""] {
            assert!(read_root(other).is_none(), "{other}");
        }
    }
}
