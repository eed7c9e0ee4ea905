//! What a root says of the run while the run goes on: how even deliveries are, and every node by
//! name. The live page, `evenfall top` and `evenfall stat` read it from `/status`.

use std::time::Duration;

use evenfall_clock_service::Standing;
use evenfall_core::{ClockError, NodeId, SyncTime, Timestamp};
use evenfall_host::clock::MonotonicClock;
use evenfall_multicast_machine::{
    DurationCounts, FairnessSums, MemberStatus, Role, Root, RootStatus,
};
use serde::Serialize;

use crate::runinfo::RunEvent;
use crate::settings::{MulticastNode, RoleName, Settings};

/// The span of the recent figures.
const RECENT: Duration = Duration::from_secs(10);
/// The span of the latest figures, of which a line over time is made.
const LATEST: Duration = Duration::from_secs(1);
/// Events on the page, the latest. A reader comes several times a second.
const EVENTS_SHOWN: usize = 50;
/// Members from which on the page is made once a second. A larger page would keep the root from
/// sending for a millisecond at each housekeeping.
pub(super) const MEMBERS_FAST_MAX: usize = 200;

/// The part of a run in which a root is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    /// Waits for nodes.
    #[default]
    Forming,
    /// Sends empty frames and learns how long they take.
    Rehearsing,
    /// Sends the feed.
    Feeding,
    /// Has sent everything, and waits for the last receivers.
    Ending,
}

/// Median and 99th percentile in microseconds; both `None` without observations.
#[derive(Clone, Copy, Debug, Serialize)]
struct Percentiles {
    p50: Option<f64>,
    p99: Option<f64>,
}

impl Percentiles {
    fn of(counts: &DurationCounts) -> Self {
        let us = |q| {
            let value = counts.counts.interpolated_quantile(q);
            (counts.counts.total() > 0).then(|| value.as_nanos() as f64 / 1e3)
        };
        Self { p50: us(0.5), p99: us(0.99) }
    }
}

/// How even the deliveries of a span were, by sampled frames.
#[derive(Clone, Copy, Debug, Serialize)]
struct FairnessFigures {
    judged: u64,
    late: u64,
    on_time_share: Option<f64>,
    oml_us: Percentiles,
    window_us: Percentiles,
    lateness_us: Percentiles,
}

impl FairnessFigures {
    fn of(sums: &FairnessSums) -> Self {
        Self {
            judged: sums.judged,
            late: sums.late,
            on_time_share: sums.on_time_share(),
            oml_us: Percentiles::of(&sums.oml),
            window_us: Percentiles::of(&sums.window),
            lateness_us: Percentiles::of(&sums.lateness),
        }
    }
}

/// The error of a node's clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct ClockBound {
    /// `same` for the root's own clock, `within`, `unknown` or `disproved`.
    clock: &'static str,
    /// The bound; `None` when there is none.
    clock_bound_us: Option<f64>,
}

impl From<ClockError> for ClockBound {
    fn from(error: ClockError) -> Self {
        let (clock, clock_bound_us) = match error {
            ClockError::SameClock => ("same", Some(0.0)),
            ClockError::Within(bound) => ("within", Some(bound.as_nanos() as f64 / 1e3)),
            ClockError::Unknown => ("unknown", None),
            ClockError::Disproved => ("disproved", None),
        };
        Self { clock, clock_bound_us }
    }
}

/// The figures of one node, by its own words.
#[derive(Clone, Debug, Serialize)]
struct NodeFigures {
    delay_p50_us: f64,
    delay_p99_us: f64,
    released: u64,
    late: u64,
    lost: u64,
    repaired: u64,
    hedge_wins: u64,
    #[serde(flatten)]
    clock: ClockBound,
    /// Age of all these figures.
    age_ms: u32,
}

/// A node of the run.
#[derive(Clone, Debug, Serialize)]
struct NodeLine {
    id: NodeId,
    name: String,
    role: String,
    /// The word of its state; `absent` for a node of the settings that has not joined.
    state: &'static str,
    parent: Option<NodeId>,
    aunts: Vec<NodeId>,
    /// Where the node serves its own pages.
    http: Option<String>,
    #[serde(flatten)]
    figures: Option<NodeFigures>,
}

impl NodeLine {
    fn of(member: &MemberStatus, settings: &Settings) -> Self {
        let node = settings.nodes.iter().find(|node| node.id == member.id);
        let role = match member.role {
            Role::Proxy => "proxy",
            Role::Receiver => "receiver",
            Role::Recorder => "recorder",
        };
        let figures = member.figures.map(|told| NodeFigures {
            delay_p50_us: f64::from(told.delay_p50_ns) / 1e3,
            delay_p99_us: f64::from(told.delay_p99_ns) / 1e3,
            released: told.released,
            late: told.late,
            lost: told.lost,
            repaired: told.repaired,
            hedge_wins: told.hedge_wins,
            clock: told.clock.into(),
            age_ms: told.age_ms,
        });
        Self {
            id: member.id,
            name: node.map_or_else(|| member.id.to_string(), |node| node.name.clone()),
            role: role.to_owned(),
            state: member.state.word(),
            parent: member.parent,
            aunts: member.aunts.clone(),
            http: node.and_then(|node| node.http).map(|http| http.to_string()),
            figures,
        }
    }

    fn absent(node: &MulticastNode) -> Self {
        Self {
            id: node.id,
            name: node.name.clone(),
            role: node.role.to_string(),
            state: "absent",
            parent: None,
            aunts: Vec::new(),
            http: node.http.map(|http| http.to_string()),
            figures: None,
        }
    }
}

/// A root or a standby of the run.
#[derive(Clone, Debug, Serialize)]
struct RootLine {
    id: NodeId,
    name: String,
    http: Option<String>,
}

/// What `/status` of a root says of one tree.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LivePage {
    #[serde(flatten)]
    status: RootStatus,
    /// Name and id of this root.
    name: String,
    id: NodeId,
    leads: bool,
    phase: Phase,
    mode: String,
    hold_max_ns: u64,
    /// The share of messages that the deadline rule aims at.
    target: f64,
    /// The time of the run at which the page was made, as the times of events.
    now_ns: u64,
    last_second: FairnessFigures,
    last_10s: FairnessFigures,
    since_start: FairnessFigures,
    /// The widest bound of a receiver's clock.
    #[serde(flatten)]
    clock: ClockBound,
    roots: Vec<RootLine>,
    members: Vec<NodeLine>,
    events: Vec<RunEvent>,
}

/// What the root knows of the run beside its machine.
pub(super) struct Moment<'a> {
    pub(super) settings: &'a Settings,
    pub(super) node: &'a MulticastNode,
    pub(super) leads: bool,
    pub(super) phase: Phase,
    pub(super) events: &'a [RunEvent],
    /// The present time by the clock of the events.
    pub(super) now: SyncTime,
}

impl LivePage {
    pub(super) fn of(root: &Root, moment: &Moment<'_>) -> Self {
        let now: Timestamp = MonotonicClock::now();
        let Moment { settings, node, .. } = *moment;
        let members = root.members(now);
        let fairness = root.fairness();
        let recent = |span| FairnessFigures::of(&fairness.sums_of_last(now, span));
        let roots = settings.nodes.iter();
        let roots = roots.filter(|node| matches!(node.role, RoleName::Root | RoleName::Standby));
        Self {
            status: root.status(),
            name: node.name.clone(),
            id: node.id,
            leads: moment.leads,
            phase: moment.phase,
            mode: settings.multicast.mode.to_string(),
            hold_max_ns: evenfall_core::time::nanos(settings.multicast.deadline.hold_max),
            target: settings.multicast.deadline.target,
            now_ns: moment.now.nanos(),
            last_second: recent(LATEST),
            last_10s: recent(RECENT),
            since_start: FairnessFigures::of(fairness.total()),
            clock: widest(&members).into(),
            roots: roots
                .map(|node| RootLine {
                    id: node.id,
                    name: node.name.clone(),
                    http: node.http.map(|http| http.to_string()),
                })
                .collect(),
            members: lines(&members, settings, root.stream()),
            events: moment.events[moment.events.len().saturating_sub(EVENTS_SHOWN)..].to_vec(),
        }
    }
}

/// The members, and the nodes of the settings that have not joined.
fn lines(members: &[MemberStatus], settings: &Settings, stream: u32) -> Vec<NodeLine> {
    let mut lines: Vec<NodeLine> = members.iter().map(|m| NodeLine::of(m, settings)).collect();
    let absent = settings.nodes.iter().filter(|node| match node.role {
        RoleName::Proxy => node.tree == stream,
        RoleName::Receiver | RoleName::Gateway | RoleName::Recorder => true,
        _ => false,
    });
    let has_joined = |node: &&MulticastNode| members.iter().any(|member| member.id == node.id);
    lines.extend(absent.filter(|node| !has_joined(node)).map(NodeLine::absent));
    lines
}

/// The worst error of the clocks of receivers that are in the tree.
fn widest(members: &[MemberStatus]) -> ClockError {
    let rank = |error: &ClockError| match error {
        ClockError::SameClock => (0, Duration::ZERO),
        ClockError::Within(bound) => (1, *bound),
        ClockError::Unknown => (2, Duration::ZERO),
        ClockError::Disproved => (3, Duration::ZERO),
    };
    let told = members.iter().filter(|m| m.role == Role::Receiver && !m.state.is_gone());
    let errors = told.filter_map(|member| member.figures).map(|figures| figures.clock);
    errors.max_by_key(rank).unwrap_or(ClockError::Unknown)
}

/// What `/clock` of a root says: its own clock, and what every node says of its clock.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ClockPage {
    #[serde(flatten)]
    standing: Standing,
    members: Vec<ClockLine>,
}

/// The clock of a node, by the node's own words.
#[derive(Clone, Debug, Serialize)]
struct ClockLine {
    id: NodeId,
    name: String,
    #[serde(flatten)]
    clock: ClockBound,
    age_ms: u32,
}

impl ClockPage {
    pub(super) fn of(standing: Standing, pages: &[LivePage]) -> Self {
        // Proxies are in one tree each, and receivers in all.
        let mut members = Vec::new();
        for (at, page) in pages.iter().enumerate() {
            let of_first = at == 0;
            let shown = page.members.iter().filter(|line| of_first || line.role == "proxy");
            members.extend(shown.filter_map(|line| {
                let NodeFigures { clock, age_ms, .. } = *line.figures.as_ref()?;
                Some(ClockLine { id: line.id, name: line.name.clone(), clock, age_ms })
            }));
        }
        Self { standing, members }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_leaf_that_has_not_joined_is_on_the_page() {
        let leaf = |(id, role): (u32, RoleName)| MulticastNode {
            name: role.to_string(),
            id: NodeId(id),
            role,
            address: ([127, 0, 0, 1], 0).into(),
            http: None,
            tree: 0,
            record: None,
            from: None,
        };
        let roles = [RoleName::Root, RoleName::Receiver, RoleName::Gateway, RoleName::Recorder];
        let nodes = (0..).zip(roles).map(leaf).collect();
        let settings = Settings { nodes, ..Settings::default() };
        let lines = lines(&[], &settings, 0);
        let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names, ["receiver", "gateway", "recorder"]);
    }
}
