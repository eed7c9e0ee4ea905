//! The one reader of a run: it asks all nodes several times a second and keeps the picture, so that
//! any number of people who look cost the root no more than one reader.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use evenfall_runtime::http::{PageAddress, PageReader, Reply, RequestError};
use evenfall_runtime::settings::Node;
use serde::Serialize;

use super::history::{HistoryPoint, RunHistory};
use super::picture::{NodeNews, RunMood, RunPicture, picture_node, picture_run, spoken_seconds};
use super::told::{ToldEvent, ToldNode, ToldTree, read_root};

/// Time between two looks.
pub const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long a node may take to answer. A node that takes longer counts as silent.
const PATIENCE: Duration = Duration::from_millis(450);
/// The span over which late and lost messages count as recent.
const RECENT: Duration = Duration::from_secs(10);
/// Events that are kept.
const EVENTS_MAX: usize = 200;
/// Nodes with pages of their own that are asked. A run that has more is known by its root.
const ASKED_MAX: usize = 1_024;
/// Values of a node's line over time, one a second.
const LINE_MAX: usize = 60;

/// An event, with its time by the wall clock.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeenEvent {
    /// Number of the event, which grows.
    pub number: u64,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    pub kind: String,
    pub text: String,
}

/// A node that has pages.
#[derive(Clone, Debug)]
pub struct PageOwner {
    pub name: String,
    /// Whether the node is a root or a standby.
    pub is_root: bool,
    pub http: SocketAddr,
}

impl PageOwner {
    /// A node of the settings; `None` when it has no pages.
    pub fn of(node: &Node) -> Option<Self> {
        let (is_root, name) = (matches!(node.role.as_str(), "root" | "standby"), node.name.clone());
        Some(Self { name, is_root, http: node.http? })
    }
}

/// A node that is asked for its page.
#[derive(Clone, Debug)]
struct Asked {
    name: String,
    is_root: bool,
    /// Since when it does not answer.
    silent_since: Option<Instant>,
    /// Whether it ever answered. A node that never did may have no page there.
    has_answered: bool,
}

/// Messages of a node at a look.
#[derive(Clone, Copy, Debug)]
struct NodeCounts {
    at: Instant,
    late: u64,
    lost: u64,
    released: u64,
}

/// What is kept of a node.
#[derive(Clone, Debug, Default)]
struct Kept {
    /// Counts at earlier looks, about once a second.
    counts: VecDeque<NodeCounts>,
    /// 99th percentile of the delay, microseconds, one value a second.
    line: VecDeque<f64>,
}

/// Sums at a look.
#[derive(Clone, Copy, Debug)]
struct Sums {
    at: Instant,
    messages: u64,
    lost: u64,
}

/// The reader of a run.
pub struct RunObserver {
    reader: PageReader,
    began: Instant,
    asked: BTreeMap<SocketAddr, Asked>,
    kept: BTreeMap<u32, Kept>,
    last: Option<ToldTree>,
    /// Since when no root that leads answers.
    leaderless_since: Option<Instant>,
    sums: VecDeque<Sums>,
    told_events: VecDeque<ToldEvent>,
    events: VecDeque<SeenEvent>,
    event_number: u64,
    tick: u64,
    history: RunHistory,
    picture: RunPicture,
}

impl RunObserver {
    /// A reader that begins with these nodes. A root tells the addresses of all others.
    ///
    /// # Errors
    /// When the system refuses a poller.
    pub fn new(owners: &[PageOwner]) -> Result<Self, RequestError> {
        let mut observer = Self {
            reader: PageReader::new(PATIENCE)?,
            began: Instant::now(),
            asked: BTreeMap::new(),
            kept: BTreeMap::new(),
            last: None,
            leaderless_since: None,
            sums: VecDeque::new(),
            told_events: VecDeque::new(),
            events: VecDeque::new(),
            event_number: 0,
            tick: 0,
            history: RunHistory::default(),
            picture: RunPicture::default(),
        };
        owners.iter().for_each(|owner| observer.know(owner.http, &owner.name, owner.is_root));
        Ok(observer)
    }

    fn know(&mut self, http: SocketAddr, name: &str, is_root: bool) {
        if self.asked.len() < ASKED_MAX {
            self.asked.entry(http).or_insert_with(|| Asked {
                name: name.to_owned(),
                is_root,
                silent_since: None,
                has_answered: false,
            });
        }
    }

    /// The picture of the last look.
    pub fn present_picture(&self) -> &RunPicture {
        &self.picture
    }

    /// The figures over time.
    pub fn history(&self) -> &RunHistory {
        &self.history
    }

    /// The latest events, the oldest first.
    pub fn events(&self) -> impl Iterator<Item = &SeenEvent> {
        self.events.iter()
    }

    /// The number of the last look.
    pub fn tick(&self) -> u64 {
        self.tick
    }

    /// The 99th percentiles of a node's delay, one a second, the oldest first.
    pub fn line_of(&self, node: u32) -> impl DoubleEndedIterator<Item = f64> + '_ {
        self.kept.get(&node).into_iter().flat_map(|kept| kept.line.iter().copied())
    }

    /// Asks all nodes once, and makes the picture.
    pub fn look(&mut self) {
        let pages: Vec<PageAddress> = self
            .asked
            .iter()
            .map(|(server, asked)| {
                let path = if asked.is_root { "/status" } else { "/healthz" };
                PageAddress { server: *server, path }
            })
            .collect();
        let answers = self.reader.read_all(&pages);
        let now = Instant::now();
        let mut leads = None;
        for (page, answer) in pages.iter().zip(answers) {
            let told = self.take_answer(now, page.server, answer);
            leads = leads.or(told.filter(|tree| tree.leads));
        }
        self.tick += 1;
        match leads {
            Some(tree) => self.take_tree(now, tree),
            None => self.miss_root(now),
        }
    }

    /// Notes who answered. Returns what a root said.
    fn take_answer(
        &mut self,
        now: Instant,
        server: SocketAddr,
        answer: Result<Reply, RequestError>,
    ) -> Option<ToldTree> {
        let asked = self.asked.get_mut(&server)?;
        let Ok(reply) = answer else {
            asked.silent_since.get_or_insert(now);
            return None;
        };
        (asked.silent_since, asked.has_answered) = (None, true);
        asked.is_root.then(|| read_root(&reply.text)).flatten()
    }

    fn take_tree(&mut self, now: Instant, tree: ToldTree) {
        if let Some(since) = self.leaderless_since.take() {
            let words = format!(
                "{} answers as the root that leads, after {}",
                tree.name,
                spoken_seconds(now.duration_since(since).as_secs_f64())
            );
            self.add_event("root", words);
        }
        for node in tree.roots.iter().filter_map(|root| Some((root.http.as_ref()?, &root.name))) {
            if let Ok(http) = node.0.parse() {
                self.know(http, node.1, true);
            }
        }
        for node in &tree.members {
            if let Some(http) = node.http.as_ref().and_then(|http| http.parse().ok()) {
                self.know(http, &node.name, false);
            }
        }
        self.take_events(&tree);
        let rate = self.take_sums(now, &tree);
        self.picture = self.picture_of(now, &tree, rate);
        let newly_lost = self.newly_lost();
        self.add_point(&tree, newly_lost);
        self.last = Some(tree);
    }

    /// No root that leads answers: the figures stay, and the sentence says since when.
    fn miss_root(&mut self, now: Instant) {
        let first = self.leaderless_since.is_none();
        let since = *self.leaderless_since.get_or_insert(now);
        let silent = spoken_seconds(now.duration_since(since).as_secs_f64());
        let names: Vec<&str> =
            self.asked.values().filter(|asked| asked.is_root).map(|a| a.name.as_str()).collect();
        let names = names.join(", ");
        let (mood, words) = match &self.last {
            Some(last) if last.phase == "ending" => {
                (RunMood::Idle, format!("The run is over since {silent}."))
            }
            Some(_) => (
                RunMood::Bad,
                format!(
                    "No root that leads has answered for {silent} ({names}). The figures are \
                         older than that."
                ),
            ),
            None => (RunMood::Idle, format!("No root answers yet ({names}), for {silent}.")),
        };
        if first && self.last.is_some() {
            self.add_event("root", "no root that leads answers".to_owned());
        }
        (self.picture.mood, self.picture.recent) = (mood, words);
        self.picture.rate = None;
        self.sums.clear();
        let at_s = self.began.elapsed().as_secs_f64();
        let point = HistoryPoint { tick: self.tick, at_s, ..HistoryPoint::default() };
        self.history.add_point(point);
    }

    fn add_event(&mut self, kind: &str, text: String) {
        let at_ms = unix_ms();
        self.push_event(SeenEvent { number: 0, at_ms, kind: kind.to_owned(), text });
    }

    fn push_event(&mut self, event: SeenEvent) {
        self.event_number += 1;
        self.events.push_back(SeenEvent { number: self.event_number, ..event });
        if self.events.len() > EVENTS_MAX {
            self.events.pop_front();
        }
    }

    /// Takes the events that the root has not told before.
    fn take_events(&mut self, tree: &ToldTree) {
        let now_ms = unix_ms();
        for event in &tree.events {
            if self.told_events.contains(event) {
                continue;
            }
            let ago_ms = tree.now_ns.saturating_sub(event.at_ns) / 1_000_000;
            self.told_events.push_back(event.clone());
            if self.told_events.len() > EVENTS_MAX {
                self.told_events.pop_front();
            }
            let (at_ms, ToldEvent { kind, text, .. }) = (now_ms.saturating_sub(ago_ms), event);
            let (kind, text) = (kind.clone(), text.clone());
            self.push_event(SeenEvent { number: 0, at_ms, kind, text });
        }
    }

    /// Messages per second over the last second or so; `None` until a second has passed.
    fn take_sums(&mut self, now: Instant, tree: &ToldTree) -> Option<f64> {
        let sums = Sums { at: now, messages: tree.messages, lost: tree.tally.lost };
        if self.sums.back().is_some_and(|last| last.messages > sums.messages) {
            // Another run began.
            self.sums.clear();
        }
        self.sums.push_back(sums);
        while self.sums.len() > 2 && now.duration_since(self.sums[1].at) >= Duration::from_secs(1) {
            self.sums.pop_front();
        }
        let first = self.sums.front()?;
        let span = now.duration_since(first.at).as_secs_f64();
        (span >= 0.2).then(|| (sums.messages - first.messages) as f64 / span)
    }

    /// Messages lost since the look before. The sum over receivers falls when one of them leaves.
    fn newly_lost(&self) -> u64 {
        let mut latest = self.sums.iter().rev().map(|sums| sums.lost);
        match (latest.next(), latest.next()) {
            (Some(now), Some(before)) => now.saturating_sub(before),
            _ => 0,
        }
    }

    /// What is known of a node beside the root's words.
    fn news_of(&mut self, now: Instant, node: &ToldNode, is_second: bool) -> NodeNews {
        let http = node.http.as_ref().and_then(|http| http.parse::<SocketAddr>().ok());
        let asked = http.and_then(|http| self.asked.get(&http));
        let silent = asked.filter(|asked| asked.has_answered).and_then(|asked| asked.silent_since);
        let kept = self.kept.entry(node.id).or_default();
        let counts =
            NodeCounts { at: now, late: node.late, lost: node.lost, released: node.released };
        let is_less = |last: &NodeCounts| {
            last.late > counts.late || last.lost > counts.lost || last.released > counts.released
        };
        if kept.counts.back().is_some_and(is_less) {
            // The node started again.
            kept.counts.clear();
        }
        if is_second || kept.counts.is_empty() {
            kept.counts.push_back(counts);
            kept.line.push_back(node.delay_p99_us.unwrap_or(0.0));
            if kept.line.len() > LINE_MAX {
                kept.line.pop_front();
            }
        }
        while kept.counts.len() > 1 && now.duration_since(kept.counts[1].at) >= RECENT {
            kept.counts.pop_front();
        }
        let first = kept.counts.front().copied().unwrap_or(counts);
        NodeNews {
            silent_s: silent.map(|since| now.duration_since(since).as_secs_f64()),
            recent_late: counts.late - first.late,
            recent_lost: counts.lost - first.lost,
            recent_released: counts.released - first.released,
        }
    }

    fn picture_of(&mut self, now: Instant, tree: &ToldTree, rate: Option<f64>) -> RunPicture {
        let is_second = self.tick.is_multiple_of(4);
        let ids: Vec<u32> = tree.members.iter().map(|node| node.id).collect();
        self.kept.retain(|id, _| ids.binary_search(id).is_ok() || ids.contains(id));
        let nodes = tree.members.iter().map(|node| {
            let news = self.news_of(now, node, is_second);
            picture_node(node, tree, news)
        });
        let nodes = nodes.collect();
        picture_run(tree, rate, nodes)
    }

    fn add_point(&mut self, tree: &ToldTree, lost: u64) {
        let second = &tree.last_second;
        let pair = |p: &super::told::ToldPercentiles| [p.p50, p.p99];
        self.history.add_point(HistoryPoint {
            tick: self.tick,
            at_s: self.began.elapsed().as_secs_f64(),
            rate: self.picture.rate,
            share: second.on_time_share,
            hold: self.picture.hold,
            oml: pair(&second.oml_us),
            window: pair(&second.window_us),
            lateness: pair(&second.lateness_us),
            lost: lost as f64,
        });
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
