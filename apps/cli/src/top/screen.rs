//! The lines of `evenfall top`, as a function of the picture and of the size of the terminal.
//!
//! ```text
//!  Fair: in the last 10 s 99.7 % of messages were in time at all 20 receivers; ...
//!  2512 msg/s  hold 233 us of 50 ms  OML 128/204 us  window 68/410 us  late by 31 us  lost 0
//!
//!  NODE                STATE            p50      p99  60 s        LATE  LOST  CLK
//! >proxy-1             sound          41 us    88 us  ▁▁▂▁▁▁▁▁▁▁     0     0  2.1
//!   receiver-1         sound         118 us   190 us  ▁▁▁▁▂▁▁▁▁▁     0     0  3.0
//!   receiver-10        late          301 us  2204 us  ▁▂▇▇▇▂▂▇▇▇    41     0  3.9
//!
//!  proxy-2 is replaced by spare-1
//!  s sort: tree   Enter node   arrows move   q quit
//! ```

use std::collections::{BTreeMap, BTreeSet};

use evenfall_runtime::listing::printable;

use crate::watch::picture::{NodePicture, RunMood, RunPicture, spoken_or_dash, spoken_us};

/// Columns below which only the most important figures have room.
const WIDE_MIN: usize = 80;
/// Rows from which the verdict and the rates may take several lines.
const TALL_MIN: usize = 20;
/// Lines of the verdict, and of the rates.
const WRAPPED_MAX: usize = 3;
/// Columns of a node's line over time.
const LINE_COLUMNS: usize = 10;
/// Heights of a line over time.
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A key that a person pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopKey {
    Up,
    Down,
    Sort,
    Open,
    Leave,
    Quit,
    Other,
}

/// The order of the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum NodeOrder {
    /// Below their parents.
    #[default]
    Tree,
    /// The worst first.
    Trouble,
    /// The slowest first.
    Delay,
}

impl NodeOrder {
    fn word(self) -> &'static str {
        match self {
            Self::Tree => "tree",
            Self::Trouble => "trouble",
            Self::Delay => "p99",
        }
    }
}

/// What a person has chosen.
#[derive(Clone, Debug, Default)]
pub struct TopView {
    order: NodeOrder,
    /// The place of the chosen row.
    chosen: usize,
    /// The first row on the screen.
    first: usize,
    /// Whether the chosen node is open.
    is_open: bool,
}

impl TopView {
    /// Takes a key. `false` when the program shall end.
    pub fn press_key(&mut self, key: TopKey, nodes: usize) -> bool {
        match key {
            TopKey::Quit if !self.is_open => return false,
            TopKey::Quit | TopKey::Leave => self.is_open = false,
            TopKey::Open => self.is_open = !self.is_open,
            TopKey::Up => self.chosen = self.chosen.saturating_sub(1),
            TopKey::Down => self.chosen = (self.chosen + 1).min(nodes.saturating_sub(1)),
            TopKey::Sort => {
                self.order = match self.order {
                    NodeOrder::Tree => NodeOrder::Trouble,
                    NodeOrder::Trouble => NodeOrder::Delay,
                    NodeOrder::Delay => NodeOrder::Tree,
                };
                (self.chosen, self.first) = (0, 0);
            }
            TopKey::Other => {}
        }
        true
    }
}

/// What is to be shown.
pub struct ShownRun<'a> {
    pub picture: &'a RunPicture,
    /// The 99th percentiles of a node over the last minute.
    pub line_of: &'a dyn Fn(u32) -> Vec<f64>,
    /// The latest events, the oldest first.
    pub events: Vec<String>,
}

/// The terminal.
pub struct TopScreen {
    pub columns: usize,
    pub rows: usize,
    pub has_colour: bool,
}

impl TopScreen {
    /// The lines of the screen, as many as it has rows at most.
    pub fn render_lines(&self, shown: &ShownRun<'_>, view: &mut TopView) -> Vec<String> {
        let picture = shown.picture;
        let verdict = self.wrap_text(&printable(&picture.recent), " ");
        let mut lines: Vec<_> =
            verdict.iter().map(|line| self.paint_text(picture.mood, line)).collect();
        lines.extend(self.wrap_text(&rates(picture), "  "));
        lines.push(String::new());
        let rows = rows_of(picture, view.order);
        view.chosen = view.chosen.min(rows.len().saturating_sub(1));
        let foot = self.foot_lines(shown, view);
        let room = self.rows.saturating_sub(lines.len() + 1 + foot.len());
        if view.is_open {
            let node = rows.get(view.chosen).map(|(node, _)| *node);
            lines.extend(node.into_iter().flat_map(|node| self.node_lines(node, picture)));
            lines.truncate(self.rows.saturating_sub(foot.len()));
        } else {
            lines.push(self.cut(&self.head()));
            // The chosen row stays on the screen.
            view.first = view.first.min(view.chosen).max((view.chosen + 1).saturating_sub(room));
            for (at, (node, depth)) in rows.iter().enumerate().skip(view.first).take(room) {
                let line = self.row(node, *depth, shown);
                let mark = if at == view.chosen { '>' } else { ' ' };
                lines.push(self.paint_text(node.mood, &format!("{mark}{line}")));
            }
        }
        lines.extend(foot);
        lines.truncate(self.rows);
        lines
    }

    fn is_wide(&self) -> bool {
        self.columns >= WIDE_MIN
    }

    /// Breaks a text into lines, only at `between`. The last line ends in `…` when text is left
    /// out.
    fn wrap_text(&self, text: &str, between: &str) -> Vec<String> {
        let most = if self.rows < TALL_MIN { 1 } else { WRAPPED_MAX };
        let mut lines: Vec<String> = Vec::new();
        for part in text.split(between) {
            let has_room = |line: &String| {
                line.chars().count() + between.len() + part.chars().count() <= self.columns
            };
            match lines.last_mut() {
                Some(line) if has_room(line) => {
                    line.push_str(between);
                    line.push_str(part);
                }
                _ => lines.push(part.to_owned()),
            }
        }
        let is_cut = lines.len() > most;
        lines.truncate(most);
        if let Some(last) = lines.last_mut().filter(|_| is_cut) {
            *last = last.chars().take(self.columns.saturating_sub(1)).collect();
            last.push('…');
        }
        lines.iter().map(|line| self.cut(line)).collect()
    }

    /// The text as far as it has room.
    fn cut(&self, text: &str) -> String {
        text.chars().take(self.columns).collect()
    }

    /// The text as far as it has room, in the colour of a mood.
    fn paint_text(&self, mood: RunMood, text: &str) -> String {
        let text = self.cut(text);
        let colour = match mood {
            RunMood::Bad => "31",
            RunMood::Warn => "33",
            RunMood::Good | RunMood::Idle => return text,
        };
        if self.has_colour { format!("\x1b[{colour}m{text}\x1b[0m") } else { text }
    }

    fn head(&self) -> String {
        if self.is_wide() {
            let columns = ["p50", "p99"].map(|name| format!("{name:>9}")).concat();
            format!(
                " {:<20}{:<11}{columns}  {:<10}{:>6}{:>6}{:>5}",
                "NODE", "STATE", "60 s", "LATE", "LOST", "CLK"
            )
        } else {
            format!(" {:<20}{:<11}{:>9}{:>6}{:>6}", "NODE", "STATE", "p99", "LATE", "LOST")
        }
    }

    fn row(&self, node: &NodePicture, depth: usize, shown: &ShownRun<'_>) -> String {
        let name = format!("{:depth$}{}", "", printable(&node.name));
        let name: String = name.chars().take(19).collect();
        let state: String = printable(&node.state).chars().take(10).collect();
        let (p50, p99) = (spoken_or_dash(node.p50), spoken_or_dash(node.p99));
        let (late, lost) = (node.late, node.lost);
        if !self.is_wide() {
            return format!("{name:<20}{state:<11}{p99:>9}{late:>6}{lost:>6}");
        }
        let line = line_over_time(&(shown.line_of)(node.id), shown.picture.hold);
        let clock = match (node.clock.as_str(), node.clock_bound) {
            ("same", _) => "0".to_owned(),
            (_, Some(us)) => format!("{us:.1}"),
            ("disproved", _) => "bad".to_owned(),
            _ => "-".to_owned(),
        };
        format!("{name:<20}{state:<11}{p50:>9}{p99:>9}  {line:<10}{late:>6}{lost:>6}{clock:>5}")
    }

    /// Everything about one node.
    fn node_lines(&self, node: &NodePicture, picture: &RunPicture) -> Vec<String> {
        let name_of = |id: u32| {
            let found = picture.nodes.iter().find(|node| node.id == id);
            found.map_or_else(|| "the root".to_owned(), |node| node.name.clone())
        };
        let aunts: Vec<String> = node.aunts.iter().map(|id| name_of(*id)).collect();
        let rows = [
            ("node", node.name.clone()),
            ("role", node.role.clone()),
            ("state", node.state.clone()),
            ("parent", node.parent.map_or_else(|| "-".to_owned(), name_of)),
            ("extra copies from", if aunts.is_empty() { "-".into() } else { aunts.join(", ") }),
            ("delay p50, p99", [node.p50, node.p99].map(spoken_or_dash).join(", ")),
            ("late, last 10 s", format!("{}, {}", node.late, node.recent_late)),
            ("lost, last 10 s", format!("{}, {}", node.lost, node.recent_lost)),
            ("released messages", node.released.to_string()),
            ("repaired frames", node.repaired.to_string()),
            ("hedge wins", node.spoken_hedge_wins()),
            (
                "clock",
                match node.clock_bound {
                    Some(bound) => format!("{}, {}", node.clock, spoken_us(bound)),
                    None => node.clock.clone(),
                },
            ),
        ];
        rows.map(|(key, value)| self.cut(&format!(" {key:<20}{}", printable(&value)))).to_vec()
    }

    /// The last event, and the keys.
    fn foot_lines(&self, shown: &ShownRun<'_>, view: &TopView) -> Vec<String> {
        let event = shown.events.last().map_or(String::new(), |text| printable(text));
        let keys = match view.is_open {
            true => "Enter back   q back".to_owned(),
            false => format!("s sort: {}   Enter node   arrows move   q quit", view.order.word()),
        };
        vec![String::new(), self.cut(&event), self.cut(&keys)]
    }
}

/// The rates of a run in a line.
fn rates(picture: &RunPicture) -> String {
    let span = &picture.span;
    let both = |p: &[Option<f64>; 2]| p.map(spoken_or_dash).join("/");
    let rate = picture.rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}"));
    let hold = picture.spoken_hold();
    format!(
        "{rate} msg/s  {hold}  OML {}  window {}  late by {}  lost {}  repaired {}",
        both(&[span.oml_us.p50, span.oml_us.p99]),
        both(&[span.window_us.p50, span.window_us.p99]),
        spoken_or_dash(span.lateness_us.p50),
        picture.lost,
        picture.repaired
    )
}

/// One line for the whole run, as it is printed where there is no terminal.
pub fn line_of_run(picture: &RunPicture) -> String {
    if picture.root.is_none() {
        return printable(&picture.recent);
    }
    printable(&format!("{} | {}", picture.recent, rates(picture)))
}

/// The last minute in ten characters. The scale ends at the hold, or at the largest value.
fn line_over_time(values: &[f64], hold: Option<f64>) -> String {
    let top = values.iter().copied().fold(hold.unwrap_or(0.0), f64::max);
    if top <= 0.0 || values.is_empty() {
        return String::new();
    }
    let per_column = values.len().div_ceil(LINE_COLUMNS);
    let column = |part: &[f64]| {
        let most = part.iter().copied().fold(0.0, f64::max);
        let last = HEIGHTS.len() - 1;
        HEIGHTS[((most / top * last as f64).round() as usize).min(last)]
    };
    values.chunks(per_column).map(column).collect()
}

/// The nodes in their order, each with its depth below the root.
fn rows_of(picture: &RunPicture, order: NodeOrder) -> Vec<(&NodePicture, usize)> {
    let flat = || picture.nodes.iter().map(|node| (node, 0));
    let mut rows: Vec<(&NodePicture, usize)> = flat().collect();
    let delay = |node: &NodePicture| node.p99.unwrap_or(0.0);
    match order {
        NodeOrder::Tree => return tree_rows(picture),
        NodeOrder::Trouble => rows.sort_by(|(a, _), (b, _)| {
            let rank = |node: &NodePicture| (node.mood, node.recent_lost, node.recent_late);
            rank(b).cmp(&rank(a)).then(delay(b).total_cmp(&delay(a)))
        }),
        NodeOrder::Delay => rows.sort_by(|(a, _), (b, _)| delay(b).total_cmp(&delay(a))),
    }
    rows
}

fn tree_rows(picture: &RunPicture) -> Vec<(&NodePicture, usize)> {
    let ids: BTreeSet<u32> = picture.nodes.iter().map(|node| node.id).collect();
    let mut children: BTreeMap<Option<u32>, Vec<&NodePicture>> = BTreeMap::new();
    for node in &picture.nodes {
        // The root is no node of the list.
        let parent = node.parent.filter(|id| ids.contains(id));
        children.entry(parent).or_default().push(node);
    }
    let (mut rows, mut seen) = (Vec::new(), BTreeSet::new());
    let mut open: Vec<(&NodePicture, usize)> =
        children.get(&None).into_iter().flatten().rev().map(|node| (*node, 0)).collect();
    while let Some((node, depth)) = open.pop() {
        // Two views may be mixed while the tree changes, so that a node could be below itself.
        if seen.insert(node.id) {
            rows.push((node, depth));
            let below = children.get(&Some(node.id)).into_iter().flatten().rev();
            open.extend(below.map(|child| (*child, depth + 1)));
        }
    }
    rows.extend(picture.nodes.iter().filter(|node| !seen.contains(&node.id)).map(|n| (n, 0)));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture() -> RunPicture {
        let node = |id, name: &str, parent, mood| NodePicture {
            id,
            name: name.into(),
            role: if id < 3 { "proxy" } else { "receiver" }.into(),
            parent: Some(parent),
            mood,
            state: if mood == RunMood::Good { "sound" } else { "late" }.into(),
            p50: Some(118.0),
            p99: Some(if mood == RunMood::Good { 190.0 } else { 2_204.0 }),
            clock: "within".into(),
            clock_bound: Some(3.9),
            late: 41,
            ..NodePicture::default()
        };
        RunPicture {
            mood: RunMood::Warn,
            recent: "Nearly fair: receiver-10\u{1b}[2J had 41 late messages in 10 s.".into(),
            root: Some("root".into()),
            rate: Some(2_512.0),
            hold: Some(233.0),
            hold_max: 50_000.0,
            nodes: vec![
                node(1, "proxy-1", 0, RunMood::Good),
                node(2, "proxy-2", 0, RunMood::Good),
                node(3, "receiver-1", 2, RunMood::Good),
                node(4, "receiver-10", 1, RunMood::Warn),
            ],
            ..RunPicture::default()
        }
    }

    fn render_run(columns: usize, rows: usize, view: &mut TopView) -> Vec<String> {
        let picture = picture();
        let line_of = |_| vec![20.0, 233.0];
        let shown =
            ShownRun { picture: &picture, line_of: &line_of, events: vec!["joined".into()] };
        TopScreen { columns, rows, has_colour: false }.render_lines(&shown, view)
    }

    #[test]
    fn eighty_columns_show_the_tree_and_sixty_the_most_important_figures() {
        for (columns, rows) in [(80, 24), (60, 24), (40, 8), (10, 3), (0, 0)] {
            let lines = render_run(columns, rows, &mut TopView::default());
            assert!(lines.len() <= rows, "{lines:?}");
            assert!(lines.iter().all(|line| line.chars().count() <= columns), "{lines:?}");
            assert!(!lines.concat().contains('\u{1b}'), "a name moves no cursor");
        }
        let wide = render_run(80, 24, &mut TopView::default());
        let nodes_of = |lines: &[String]| {
            let head = lines.iter().position(|line| line.contains("NODE")).expect("a head");
            lines[head + 1..][..4].to_vec()
        };
        let nodes = nodes_of(&wide);
        let names: Vec<&str> =
            nodes.iter().map(|line| line[1..].split("  ").next().unwrap_or("")).collect();
        assert_eq!(names, ["proxy-1", " receiver-10", "proxy-2", " receiver-1"]);
        assert!(wide[1].starts_with("2512 msg/s  hold 233 us of 50 ms"), "{}", wide[1]);
        assert!(nodes[1].contains("2204 us  ▂█") && nodes[1].contains("3.9"), "{}", nodes[1]);
        let narrow = nodes_of(&render_run(60, 24, &mut TopView::default()));
        assert!(narrow[1].contains("late") && narrow[1].contains("2204 us    41     0"));
    }

    #[test]
    fn a_long_verdict_is_wrapped_on_a_tall_screen_and_cut_with_a_sign_on_a_small_one() {
        let screen = |rows| TopScreen { columns: 20, rows, has_colour: false };
        let text = "Nearly fair: in the last 10 s 99 % of messages were in time at all receivers";
        let lines = screen(24).wrap_text(text, " ");
        assert_eq!(lines, ["Nearly fair: in the", "last 10 s 99 % of", "messages were in…"]);
        assert_eq!(screen(24).wrap_text("Fair", " "), ["Fair"]);
        assert_eq!(screen(8).wrap_text(text, " "), ["Nearly fair: in the…"]);
        assert_eq!(screen(24).wrap_text("lost 0  repaired 0", "  "), ["lost 0  repaired 0"]);
    }

    #[test]
    fn keys_sort_open_and_end() {
        let mut view = TopView::default();
        assert!(view.press_key(TopKey::Sort, 4));
        let lines = render_run(80, 24, &mut view);
        let first = lines.iter().find(|line| line.starts_with('>')).expect("a chosen node");
        assert!(first.starts_with(">receiver-10"), "the worst first: {first}");
        assert!(view.press_key(TopKey::Open, 4));
        let lines = render_run(80, 24, &mut view);
        assert!(lines.iter().any(|line| line.contains("parent              proxy-1")), "{lines:?}");
        assert!(view.press_key(TopKey::Quit, 4), "q closes the node first");
        assert!(!view.press_key(TopKey::Quit, 4));
    }

    #[test]
    fn the_chosen_row_stays_on_a_small_screen() {
        let mut view = TopView::default();
        (0..3).for_each(|_| assert!(view.press_key(TopKey::Down, 4)));
        let lines = render_run(80, 9, &mut view);
        assert!(lines.iter().any(|line| line.starts_with("> receiver-1 ")), "{lines:?}");
    }
}
