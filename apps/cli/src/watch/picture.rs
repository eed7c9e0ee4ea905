//! What a person sees of a run at one moment: a sentence, figures and every node. The live page and
//! `evenfall top` draw the same picture.

use serde::Serialize;

use super::told::{ToldNode, ToldSpan, ToldTree};

/// How good something is. Pages draw it as a colour, a shape and a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RunMood {
    /// There is nothing to judge.
    #[default]
    Idle,
    Good,
    Warn,
    Bad,
}

/// One node.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NodePicture {
    pub id: u32,
    pub name: String,
    pub role: String,
    pub parent: Option<u32>,
    pub aunts: Vec<u32>,
    pub mood: RunMood,
    /// The state in a word or two.
    pub state: String,
    pub p50: Option<f64>,
    pub p99: Option<f64>,
    pub released: u64,
    pub late: u64,
    pub lost: u64,
    pub repaired: u64,
    pub hedge_wins: u64,
    pub clock: String,
    pub clock_bound: Option<f64>,
    /// Messages that were late or lost in the last ten seconds.
    pub recent_late: u64,
    pub recent_lost: u64,
    pub age_ms: Option<u64>,
}

/// The run at one moment. Times are microseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RunPicture {
    pub mood: RunMood,
    /// The verdict of the last ten seconds.
    pub recent: String,
    /// The verdict since the start.
    pub total: String,
    pub phase: String,
    pub mode: String,
    /// The root that leads.
    pub root: Option<String>,
    /// The other roots.
    pub standbys: Vec<String>,
    pub rate: Option<f64>,
    pub hold: Option<f64>,
    pub hold_max: f64,
    pub target: f64,
    pub messages: u64,
    pub lost: u64,
    pub late: u64,
    pub repaired: u64,
    pub hedge_wins: u64,
    pub released: u64,
    pub clock: String,
    pub clock_bound: Option<f64>,
    pub span: ToldSpan,
    pub since_start: ToldSpan,
    pub nodes: Vec<NodePicture>,
}

/// What a watcher knows of a node beside the words of the root.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeNews {
    /// Seconds since the node's own page stopped answering.
    pub silent_s: Option<f64>,
    /// Messages late, lost and released in the last ten seconds.
    pub recent_late: u64,
    pub recent_lost: u64,
    pub recent_released: u64,
}

/// Age beyond which the figures of a node are old.
const FIGURES_OLD_MS: u64 = 3_000;
/// The share of messages in time below which a run is bad, whatever it aims at.
const SHARE_BAD: f64 = 0.9;

/// A number of microseconds with its unit, three digits.
pub fn spoken_us(us: f64) -> String {
    let (value, unit) = match us.abs() {
        size if size >= 1e6 => (us / 1e6, "s"),
        size if size >= 1e4 => (us / 1e3, "ms"),
        _ => (us, "us"),
    };
    match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => format!("{value:.0} {unit}"),
        size if size >= 10.0 => format!("{value:.1} {unit}"),
        _ => format!("{value:.2} {unit}"),
    }
}

/// As [`spoken_us`], and a dash for none.
pub fn spoken_or_dash(us: Option<f64>) -> String {
    us.map_or_else(|| "-".to_owned(), spoken_us)
}

/// A share in percent, rounded down, so that 100 % means every message.
pub fn percent(share: f64) -> String {
    let places = if share > 0.999 { 1_000.0 } else { 10.0 };
    let shown = (share * 100.0 * places).floor() / places;
    format!("{shown} %")
}

/// A time since, in words.
pub fn spoken_seconds(seconds: f64) -> String {
    match seconds as u64 {
        s @ 0..60 => format!("{s} s"),
        s @ 60..3_600 => format!("{} min {} s", s / 60, s % 60),
        s => format!("{} h {} min", s / 3_600, s / 60 % 60),
    }
}

/// Whether receivers hold messages until a deadline in this mode.
fn is_holding(mode: &str) -> bool {
    matches!(mode, "release" | "cloudex")
}

impl RunPicture {
    /// How long messages are held, and the limit; the mode where none is held.
    pub fn spoken_hold(&self) -> String {
        match self.hold {
            Some(hold) => format!("hold {} of {}", spoken_us(hold), spoken_us(self.hold_max)),
            None => format!("mode {}", self.mode),
        }
    }
}

impl NodePicture {
    /// The share of its messages that an extra copy brought first.
    pub fn spoken_hedge_wins(&self) -> String {
        match self.released {
            0 => "-".to_owned(),
            released => percent((self.hedge_wins as f64 / released as f64).min(1.0)),
        }
    }
}

/// The picture of a run whose nodes look like this.
pub fn picture_run(tree: &ToldTree, rate: Option<f64>, nodes: Vec<NodePicture>) -> RunPicture {
    let others = tree.roots.iter().filter(|root| root.id != tree.id);
    let mut picture = RunPicture {
        phase: tree.phase.clone(),
        mode: tree.mode.clone(),
        root: Some(tree.name.clone()),
        standbys: others.map(|root| root.name.clone()).collect(),
        rate,
        hold: is_holding(&tree.mode).then_some(tree.hold_ns as f64 / 1e3),
        hold_max: tree.hold_max_ns as f64 / 1e3,
        target: tree.target,
        messages: tree.messages,
        lost: tree.tally.lost,
        late: tree.tally.late,
        repaired: tree.tally.repaired,
        hedge_wins: tree.tally.hedge_wins,
        released: tree.tally.released,
        clock: tree.clock.clone(),
        clock_bound: tree.clock_bound_us,
        span: tree.last_10s,
        since_start: tree.since_start,
        nodes,
        ..RunPicture::default()
    };
    (picture.mood, picture.recent) = speak_recent(&picture);
    picture.total = speak_total(&picture);
    picture
}

/// The picture of a node.
pub fn picture_node(told: &ToldNode, tree: &ToldTree, news: NodeNews) -> NodePicture {
    let (mood, state) = judge_node(told, tree, news);
    NodePicture {
        id: told.id,
        name: told.name.clone(),
        role: told.role.clone(),
        parent: told.parent,
        aunts: told.aunts.clone(),
        mood,
        state,
        p50: told.delay_p50_us.filter(|us| *us > 0.0),
        p99: told.delay_p99_us.filter(|us| *us > 0.0),
        released: told.released,
        late: told.late,
        lost: told.lost,
        repaired: told.repaired,
        hedge_wins: told.hedge_wins,
        clock: told.clock.clone(),
        clock_bound: told.clock_bound_us,
        recent_late: news.recent_late,
        recent_lost: news.recent_lost,
        age_ms: told.age_ms,
    }
}

fn judge_node(told: &ToldNode, tree: &ToldTree, news: NodeNews) -> (RunMood, String) {
    let is_over = tree.phase == "ending";
    let hold_us = tree.hold_ns as f64 / 1e3;
    let word = |mood, word: &str| (mood, word.to_owned());
    if let Some(seconds) = news.silent_s.filter(|_| !is_over) {
        return (RunMood::Bad, format!("no answer for {}", spoken_seconds(seconds)));
    }
    match told.state.as_str() {
        "left" => return word(RunMood::Idle, "left"),
        "silent" => return word(RunMood::Bad, "gone"),
        "too slow" | "restarted" => return (RunMood::Bad, told.state.clone()),
        "absent" if tree.phase == "forming" => return word(RunMood::Idle, "awaited"),
        "absent" => return word(RunMood::Bad, "absent"),
        "suspected" => return word(RunMood::Bad, "suspected"),
        "joining" | "spare" | "trial" => return (RunMood::Idle, told.state.clone()),
        _ => {}
    }
    if news.recent_lost > 0 {
        return word(RunMood::Bad, "loses");
    }
    if told.clock == "disproved" {
        return word(RunMood::Warn, "wrong clock");
    }
    // The deadline rule lets a share of the messages be late.
    let allowed = (1.0 - tree.target) * news.recent_released as f64;
    if news.recent_late as f64 > allowed {
        return word(RunMood::Warn, "late");
    }
    if is_holding(&tree.mode)
        && told.role == "receiver"
        && told.delay_p99_us.is_some_and(|us| us > hold_us)
    {
        return word(RunMood::Warn, "slow");
    }
    if told.age_ms.is_some_and(|age| age > FIGURES_OLD_MS) {
        return word(RunMood::Warn, "no news");
    }
    word(RunMood::Good, "sound")
}

/// The sentence about the last ten seconds, and how good they were.
fn speak_recent(picture: &RunPicture) -> (RunMood, String) {
    let receivers = picture.nodes.iter().filter(|node| node.role == "receiver").count();
    match picture.phase.as_str() {
        "forming" => return (RunMood::Idle, speak_awaited(picture)),
        "rehearsing" => {
            let words = "The tree stands. The root rehearses with empty frames; the feed follows.";
            return (RunMood::Idle, words.to_owned());
        }
        "ending" => {
            let words = "The root has sent the whole feed, and waits for the last receivers.";
            return (RunMood::Idle, words.to_owned());
        }
        _ => {}
    }
    let span = &picture.span;
    let worst = worst_node(picture);
    let window = speak_window(picture);
    let Some(share) = span.on_time_share else {
        let mode = &picture.mode;
        let words = match (is_holding(mode), window.is_empty()) {
            (true, _) => "No message was judged in the last 10 s.".to_owned(),
            (false, false) => format!("Mode {mode} holds no message: {window}."),
            (false, true) => format!("Mode {mode} holds no message, and none was sent for 10 s."),
        };
        let mood = worst.map_or(RunMood::Idle, |node| node.mood);
        return (mood, with_reason(words, worst));
    };
    let mood = if share < SHARE_BAD {
        RunMood::Bad
    } else if share < picture.target {
        RunMood::Warn
    } else {
        RunMood::Good
    };
    let mood = worst.map_or(mood, |node| node.mood.max(mood));
    let word = match mood {
        RunMood::Good | RunMood::Idle => "Fair",
        RunMood::Warn => "Nearly fair",
        RunMood::Bad => "Not fair to all",
    };
    let mut words = format!(
        "{word}: in the last 10 s {} of messages were in time at all {receivers} receivers",
        percent(share)
    );
    if !window.is_empty() {
        words.push_str(&format!("; {window}"));
    }
    words.push('.');
    (mood, with_reason(words, worst))
}

/// The window and the clocks in words; empty when no release is known.
fn speak_window(picture: &RunPicture) -> String {
    let ToldSpan { window_us, lateness_us, .. } = &picture.span;
    let Some(window) = window_us.p50 else { return String::new() };
    let mut words = format!(
        "the last receiver had them {} after the first (p99 {})",
        spoken_us(window),
        spoken_or_dash(window_us.p99)
    );
    if let Some(late) = lateness_us.p50 {
        words.push_str(&format!(", {} after the deadline", spoken_us(late)));
    }
    match (picture.clock.as_str(), picture.clock_bound) {
        ("within", Some(bound)) => {
            words.push_str(&format!(", by clocks that err by {} at most", spoken_us(bound)));
            if window < 2.0 * bound {
                words.push_str(" (so the clocks decide who is first)");
            }
        }
        ("disproved", _) => words.push_str(", but a clock has left its proven bound"),
        ("same", _) => {}
        _ => words.push_str(", by clocks of unknown error"),
    }
    words
}

fn speak_awaited(picture: &RunPicture) -> String {
    let awaited: Vec<&str> = picture
        .nodes
        .iter()
        .filter(|node| node.state == "awaited")
        .map(|node| node.name.as_str())
        .collect();
    match awaited.len() {
        0 => "The root forms the tree.".to_owned(),
        1..=3 => format!("The root waits for {}.", awaited.join(", ")),
        more => format!("The root waits for {} and {} more nodes.", awaited[0], more - 1),
    }
}

/// The node that is worst off; `None` when all are well.
fn worst_node(picture: &RunPicture) -> Option<&NodePicture> {
    let troubled = picture.nodes.iter().filter(|node| node.mood >= RunMood::Warn);
    troubled.max_by(|a, b| {
        let rank = |node: &NodePicture| {
            (node.mood, node.recent_lost, node.recent_late, node.p99.unwrap_or(0.0))
        };
        rank(a).partial_cmp(&rank(b)).unwrap_or(core::cmp::Ordering::Equal)
    })
}

fn with_reason(mut words: String, worst: Option<&NodePicture>) -> String {
    let Some(node) = worst else { return words };
    let reason = match node.state.as_str() {
        "loses" => format!("lost {} messages in 10 s", node.recent_lost),
        "late" => format!("had {} late messages in 10 s", node.recent_late),
        "slow" => format!("is slow: p99 delay {}", spoken_or_dash(node.p99)),
        "no news" => "has told no figures for seconds".to_owned(),
        "wrong clock" => "has a wrong clock".to_owned(),
        state if state.starts_with("no answer") => format!("gives {state}"),
        state => format!("is {state}"),
    };
    words.push_str(&format!(" {} {reason}.", node.name));
    words
}

/// The sentence about the whole run so far.
fn speak_total(picture: &RunPicture) -> String {
    let span = &picture.since_start;
    let mut parts = Vec::new();
    if let Some(share) = span.on_time_share {
        parts.push(format!("{} of messages in time everywhere", percent(share)));
    }
    if let Some(window) = span.window_us.p50 {
        let p99 = spoken_or_dash(span.window_us.p99);
        parts.push(format!("window {} (p99 {p99})", spoken_us(window)));
    }
    if let Some(late) = span.lateness_us.p50 {
        let p99 = spoken_or_dash(span.lateness_us.p99);
        parts.push(format!("released {} after the deadline (p99 {p99})", spoken_us(late)));
    }
    parts.push(format!("{} messages sent", picture.messages));
    parts.push(format!("{} copies lost", picture.lost));
    format!("Since the start: {}.", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, mood: RunMood, state: &str) -> NodePicture {
        let (name, state, role) = (name.into(), state.into(), "receiver".into());
        NodePicture { name, mood, state, role, ..NodePicture::default() }
    }

    fn feeding() -> RunPicture {
        let mut picture = RunPicture {
            phase: "feeding".into(),
            mode: "release".into(),
            target: 0.994,
            clock: "within".into(),
            clock_bound: Some(4.0),
            ..RunPicture::default()
        };
        picture.span.on_time_share = Some(0.9971);
        picture.span.window_us.p50 = Some(68.0);
        picture.span.window_us.p99 = Some(410.0);
        picture.span.lateness_us.p50 = Some(31.0);
        picture.nodes = vec![node("receiver-1", RunMood::Good, "sound")];
        picture
    }

    #[test]
    fn a_fair_run_is_said_in_one_sentence() {
        let (mood, words) = speak_recent(&feeding());
        assert_eq!(mood, RunMood::Good);
        assert_eq!(
            words,
            "Fair: in the last 10 s 99.7 % of messages were in time at all 1 receivers; the last \
             receiver had them 68 us after the first (p99 410 us), 31 us after the deadline, by \
             clocks that err by 4 us at most."
        );
    }

    #[test]
    fn the_worst_node_gives_the_reason_and_the_mood() {
        let mut picture = feeding();
        let late = NodePicture { recent_late: 41, ..node("receiver-10", RunMood::Warn, "late") };
        picture.nodes.push(late);
        let (mood, words) = speak_recent(&picture);
        assert_eq!(mood, RunMood::Warn);
        assert!(words.ends_with(" receiver-10 had 41 late messages in 10 s."), "{words}");
        picture.nodes.push(node("receiver-3", RunMood::Bad, "gone"));
        let (mood, words) = speak_recent(&picture);
        assert_eq!(mood, RunMood::Bad);
        assert!(words.starts_with("Not fair to all") && words.ends_with("receiver-3 is gone."));
    }

    #[test]
    fn windows_below_the_clocks_bound_and_modes_without_a_hold_are_said() {
        let mut picture = feeding();
        picture.span.window_us.p50 = Some(3.0);
        assert!(speak_recent(&picture).1.contains("the clocks decide who is first"));
        picture.mode = "hedge".into();
        picture.span.on_time_share = None;
        let words = speak_recent(&picture).1;
        assert!(words.starts_with("Mode hedge holds no message: the last receiver"), "{words}");
    }

    #[test]
    fn a_silent_node_is_bad_before_the_root_knows() {
        let tree = ToldTree { phase: "feeding".into(), ..ToldTree::default() };
        let told = ToldNode { state: "sound".into(), ..ToldNode::default() };
        let news = NodeNews { silent_s: Some(0.3), ..NodeNews::default() };
        let node = picture_node(&told, &tree, news);
        assert_eq!((node.mood, node.state.as_str()), (RunMood::Bad, "no answer for 0 s"));
    }

    #[test]
    fn a_node_is_late_beyond_the_share_that_the_deadline_rule_allows() {
        let tree = ToldTree { phase: "feeding".into(), target: 0.99, ..ToldTree::default() };
        let told = ToldNode { state: "sound".into(), ..ToldNode::default() };
        for (recent_late, state) in [(10, "sound"), (11, "late")] {
            let news = NodeNews { recent_late, recent_released: 1_000, ..NodeNews::default() };
            assert_eq!(picture_node(&told, &tree, news).state, state, "{recent_late}");
        }
    }

    #[test]
    fn numbers_have_units_and_shares_are_never_rounded_up() {
        let all = [0.5, 68.0, 410.25, 2_204.0, 36_464.0, 4_100_000.0].map(spoken_us);
        assert_eq!(all, ["0.50 us", "68 us", "410 us", "2204 us", "36.5 ms", "4.10 s"]);
        assert_eq!([0.999_999, 0.99, 1.0].map(percent), ["99.999 %", "99 %", "100 %"]);
        assert_eq!([59.0, 192.0, 7_260.0].map(spoken_seconds), ["59 s", "3 min 12 s", "2 h 1 min"]);
    }
}
