use super::*;
use crate::config::{Mode, Scheme, Shape};

const HOP_NS: u32 = 50_000;

fn ids(from: u32, n: u32) -> Vec<NodeId> {
    (from..from + n).map(NodeId).collect()
}

/// Four proxies of three receivers each (100 and up), and two spares.
fn tree(hedging: u8) -> Tree {
    let hedging = evenfall_core::Hedging(hedging);
    let shape = Shape { depth: Some(2), fanout: Some(4), hedging, scheme: Scheme::Siblings };
    Tree::build(NodeId(0), &ids(1, 6), &ids(100, 12), &shape, Mode::Release)
}

fn edge(from: u32, to: u32, mean_ns: u32) -> Worst {
    Worst { from: NodeId(from), to: NodeId(to), mean_ns, max_ns: 2 * mean_ns }
}

fn blamed(worst: &[Worst], oml_ns: u64, hedging: u8) -> Vec<u32> {
    let round = Round { worst, hop_ns: HOP_NS.into(), oml_ns, clock_error_ns: 110_000 };
    let found = stragglers(&round, &tree(hedging), &Replace::default());
    found.into_iter().map(|straggler| straggler.node.0).collect()
}

#[test]
fn several_slow_edges_of_one_node_are_its_fault() {
    let ms = 1_000_000;
    let out = [edge(2, 103, 2 * ms), edge(2, 104, 2 * ms), edge(2, 105, 2 * ms)];
    assert_eq!(blamed(&out, 2_050_000, 0), [2], "slow to send");
    assert_eq!(blamed(&[edge(0, 3, 2 * ms)], 2_050_000, 0), [3], "slow to hear");
    assert_eq!(blamed(&[edge(4, 4, 2 * ms)], 2_050_000, 0), [4], "slow inside");
    let both = [&out[..], &[edge(0, 3, ms)]].concat();
    assert_eq!(blamed(&both, 2_050_000, 0), [2, 3], "the worst first");
}

#[test]
fn what_no_spare_can_mend_is_nobodys_fault() {
    let ms = 1_000_000;
    let root = [edge(0, 1, ms), edge(0, 2, ms), edge(0, 3, ms), edge(0, 4, ms)];
    assert_eq!(blamed(&root, 1_050_000, 0), [0; 0], "the root is slow to all");
    let receiver = [edge(1, 100, ms), edge(4, 100, ms)];
    assert_eq!(blamed(&receiver, 1_050_000, 1), [0; 0], "a receiver is slow to hear");
    assert_eq!(blamed(&[edge(1, 100, ms)], 1_050_000, 0), [0; 0], "a single link");
}

#[test]
fn an_edge_that_does_not_hurt_is_left_alone() {
    assert_eq!(
        blamed(&[edge(0, 3, HOP_NS * 29 / 10)], 245_000, 0),
        [0; 0],
        "not three times as slow"
    );
    assert_eq!(blamed(&[edge(0, 3, HOP_NS * 3)], 1_900_000, 0), [0; 0], "little of the whole");
    assert_eq!(blamed(&[edge(0, 3, 2_000_000)], 120_000, 1), [0; 0], "a hedge comes first");
    assert_eq!(blamed(&[edge(0, 3, 155_000)], 210_000, 0), [0; 0], "a clock may be wrong");
    assert_eq!(blamed(&[edge(0, 3, 165_000)], 220_000, 0), [3], "not that wrong");
}

/// Rounds of 50 ms in which a proxy may be slow.
struct Feed {
    watch: Watch,
    tree: Tree,
    now: Timestamp,
    sequence: u64,
    rules: Replace,
}

impl Feed {
    fn new() -> Self {
        let now = Timestamp::from_nanos(1_000_000_000);
        let (watch, rules) = (Watch::default(), Replace::default());
        Self { watch, tree: tree(0), now, sequence: 0, rules }
    }

    /// A round with the edges that stand out, the overall latency, and the mean of first arrivals.
    fn round(&mut self, worst: &[Worst], oml_us: u64, mean_us: u64) -> Option<Replacement> {
        self.now += Duration::from_millis(50);
        let mut delays = Histogram::default();
        for _ in 0..40 {
            delays.record(Duration::from_micros(100));
            self.watch.observe(self.now, self.sequence, (oml_us * 1_000) as u32);
            self.sequence += 1;
        }
        for _ in 0..60 {
            delays.record(Duration::from_micros(mean_us));
        }
        let interval = Duration::from_millis(50);
        let (tree, rules) = (&self.tree, &self.rules);
        let (usable, delays): (&dyn Fn(NodeId) -> bool, _) = (&|_| true, &delays);
        let known = Known {
            worst,
            delays,
            tree,
            rules,
            interval,
            usable,
            settled: true,
            clock_error_ns: 0,
        };
        let step = self.watch.round(self.now, &known)?;
        match step.step {
            ReplacementStep::Tried => {
                assert!(self.tree.begin_overlap(step.old, step.new));
                self.watch.feeding(self.now, (step.old, step.new), self.sequence);
            }
            ReplacementStep::Made => self.tree.end_overlap(true),
            ReplacementStep::RolledBack => self.tree.end_overlap(false),
            ReplacementStep::Abandoned => {}
        }
        Some(step)
    }

    /// Rounds until a step is taken, a hundred at most.
    fn until_step(&mut self, worst: &[Worst], oml_us: u64, mean_us: u64) -> (u32, Replacement) {
        let mut rounds = 0;
        loop {
            rounds += 1;
            assert!(rounds <= 100, "nothing is done");
            if let Some(step) = self.round(worst, oml_us, mean_us) {
                return (rounds, step);
            }
        }
    }
}

fn slow(node: u32) -> [Worst; 1] {
    [edge(0, node, 2_000_000)]
}

#[test]
fn a_straggler_is_replaced_once_a_spare_has_shown_that_it_helps() {
    let mut feed = Feed::new();
    let (rounds, tried) = feed.until_step(&slow(2), 2_100, 500);
    assert_eq!((tried.step, tried.old, tried.new), (ReplacementStep::Tried, NodeId(2), NodeId(5)));
    assert_eq!(rounds, 10, "patience");
    let (rounds, made) = feed.until_step(&slow(2), 150, 100);
    assert_eq!(
        (made.step, made.oml_before_ns, made.oml_after_ns),
        (ReplacementStep::Made, 2_100_000, 150_000)
    );
    assert_eq!(rounds, 10, "the length of a trial");
    assert_eq!(feed.tree.spares(), ids_of(&[6, 2]));
}

fn ids_of(ids: &[u32]) -> Vec<NodeId> {
    ids.iter().copied().map(NodeId).collect()
}

#[test]
fn a_spare_that_does_not_help_steps_back_and_the_next_one_is_tried() {
    let mut feed = Feed::new();
    for spare in [5, 6] {
        let (_, tried) = feed.until_step(&slow(2), 2_100, 500);
        assert_eq!((tried.step, tried.new), (ReplacementStep::Tried, NodeId(spare)));
        let (_, end) = feed.until_step(&slow(2), 2_050, 495);
        assert_eq!(end.step, ReplacementStep::RolledBack);
    }
    for _ in 0..100 {
        assert_eq!(feed.round(&slow(2), 2_100, 500), None, "both have had their chance");
    }
    assert_eq!(feed.watch.counts, Replacements { tried: 2, made: 0, rolled_back: 2 });
}

#[test]
fn without_a_spare_the_sibling_with_the_fewest_receivers_takes_over_where_that_is_allowed() {
    let mut feed = Feed::new();
    feed.rules.siblings = true;
    for spare in [5, 6] {
        assert!(feed.tree.remove(NodeId(spare)));
    }
    assert!(feed.tree.remove(NodeId(100)), "proxy 1 has one receiver less");
    let (_, tried) = feed.until_step(&slow(2), 2_100, 500);
    assert_eq!((tried.old, tried.new), (NodeId(2), NodeId(1)));
    assert_eq!(feed.until_step(&slow(2), 150, 100).1.step, ReplacementStep::Made);
    assert_eq!(feed.tree.neighbours(NodeId(1)).children.len(), 5);
    feed.rules.siblings = false;
    feed.rules.cooldown = Duration::ZERO;
    let (_, tried) = feed.until_step(&slow(3), 2_100, 500);
    assert_eq!(tried.new, NodeId(2), "a spare now");
}

#[test]
fn a_pause_is_no_reason_and_the_budget_is_kept() {
    let mut feed = Feed::new();
    for _ in 0..50 {
        for _ in 0..4 {
            assert_eq!(feed.round(&slow(2), 2_100, 500), None);
        }
        for _ in 0..5 {
            assert_eq!(feed.round(&[edge(0, 2, 55_000)], 150, 100), None);
        }
    }
    feed.rules.per_minute = 1;
    assert_eq!(feed.until_step(&slow(2), 2_100, 500).1.step, ReplacementStep::Tried);
    assert_eq!(feed.until_step(&slow(2), 150, 100).1.step, ReplacementStep::Made);
    for _ in 0..1_150 {
        assert_eq!(feed.round(&slow(3), 2_100, 500), None, "one a minute");
    }
    let (rounds, _) = feed.until_step(&slow(3), 2_100, 500);
    assert!(rounds < 100, "a minute is 1,200 rounds");
}

#[test]
fn with_two_stragglers_each_counts_by_what_its_own_receivers_gain() {
    let mut feed = Feed::new();
    let both = [edge(0, 2, 2_000_000), edge(0, 3, 1_900_000)];
    assert_eq!(feed.until_step(&both, 2_100, 1_000).1.old, NodeId(2));
    let (_, made) = feed.until_step(&both, 2_050, 500);
    assert_eq!(
        made.step,
        ReplacementStep::Made,
        "the OML did not fall: the other one is still slow"
    );
}

#[test]
fn a_trial_whose_tree_changed_is_abandoned_and_one_without_a_feed_ends() {
    let mut feed = Feed::new();
    feed.until_step(&slow(2), 2_100, 500);
    assert!(feed.tree.remove(NodeId(5)));
    assert_eq!(feed.until_step(&slow(2), 2_100, 500).1.step, ReplacementStep::Abandoned);
    feed.until_step(&slow(2), 2_100, 500);
    feed.watch.trial.as_mut().unwrap().feeding = None;
    let (rounds, end) = feed.until_step(&slow(2), 2_100, 500);
    assert_eq!((rounds, end.step), (80, ReplacementStep::RolledBack));
}
