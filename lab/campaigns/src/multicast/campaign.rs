//! The fault campaigns of the overlay: one with all kinds of faults at once, and five scenes that
//! each test one promise on an otherwise quiet network.

use evenfall_sim::campaign::{Outline, Trap};
use evenfall_sim::{Campaign, FaultKind, NodeIndex, Run, Transcript};

use super::checks::Check;
use super::faults::MulticastScene;
use super::mutants::Mutant;
use super::node::CampaignNode;

/// A campaign of the overlay.
pub struct Overlay {
    draw: fn(u64) -> MulticastScene,
    outline: Outline<Mutant, Check>,
}

/// All faults at once. Repair can only be judged in runs in which no node is ever down. About one
/// seed in fifty draws such a run, so a mutant of repair needs many seeds.
pub static FAULTS: Overlay = Overlay {
    draw: MulticastScene::of,
    outline: Outline {
        name: "multicast",
        about: "the overlay under every fault of hosts and networks, joins, leaves and switches",
        seeds: 1_000,
        once_failed: &[
            2_811, 11_929, 20_794, 37_460, 62_358, 75_840, 76_256, 77_823, 89_455, 204_721,
            338_794, 463_078,
        ],
        kinds: &FaultKind::OF_HOSTS,
        counts_min: &[
            ("frames lost", 1),
            ("replacements tried", 1),
            ("replacements made", 1),
            ("replacements rolled back", 1),
            ("replacements abandoned", 1),
        ],
        mutants: {
            const TRAPS: &[Trap<Mutant, Check>] = &[
                (Mutant::ReleasesTwice, Check::Twice, 0..400),
                (Mutant::SwapsFrames, Check::Order, 0..400),
                (Mutant::ReleasesEarly, Check::Early, 0..400),
                (Mutant::ForgetsRepair, Check::Repaired, 0..400),
                (Mutant::SwallowsLost, Check::Accounted, 0..400),
                (Mutant::SkipsQuietly, Check::Accounted, 0..400),
                (Mutant::TrustsTampered, Check::Content, 0..400),
                (Mutant::LowersDeadline, Check::Monotone, 0..400),
                (Mutant::ForgetsToReparent, Check::Healed, 0..400),
                (Mutant::BelievesForgedReport, Check::Counted, 0..400),
                (Mutant::IgnoresLimits, Check::Bounded, 0..400),
                (Mutant::IgnoresRoot, Check::RootLost, 0..400),
                (Mutant::ReportsTooMuch, Check::Bounded, 0..400),
            ];
            TRAPS
        },
    },
};

/// See [`MulticastScene::with_a_recorder`].
pub static RECORDER: Overlay = Overlay {
    draw: MulticastScene::with_a_recorder,
    outline: Outline {
        name: "recorder",
        about: "a recorder repairs what rings have forgotten, and replays to late joiners",
        seeds: 8,
        once_failed: &[88],
        kinds: &[
            FaultKind::Loss,
            FaultKind::Duplicate,
            FaultKind::Reorder,
            FaultKind::Pause,
            FaultKind::Bursts,
            FaultKind::Late,
        ],
        // The pauses test the recorder only if receivers lose frames in them.
        counts_min: &[("late joiners caught up", 12), ("frames lost", 1)],
        mutants: &[
            (Mutant::NeverCatchesUp, Check::CaughtUp, 0..1),
            (Mutant::ForgetsRepair, Check::Repaired, 0..1),
        ],
    },
};

/// See [`MulticastScene::with_a_slow_receiver`].
pub static SLOW_RECEIVER: Overlay = Overlay {
    draw: MulticastScene::with_a_slow_receiver,
    outline: Outline {
        name: "slow-receiver",
        about: "a receiver is five thousand times too slow for a second, and delays nobody else",
        seeds: 5,
        once_failed: &[],
        kinds: &[FaultKind::Slow],
        counts_min: &[],
        mutants: &[(Mutant::ServesTheSlowFirst, Check::Siblings, 0..5)],
    },
};

/// See [`MulticastScene::with_a_slow_proxy`].
pub static SLOW_PROXY: Overlay = Overlay {
    draw: MulticastScene::with_a_slow_proxy,
    outline: Outline {
        name: "slow-proxy",
        about: "a proxy turns forty times slower, is replaced, and nobody misses a frame",
        seeds: 6,
        once_failed: &[],
        kinds: &[FaultKind::Slow],
        counts_min: &[],
        mutants: &[(Mutant::BreaksBeforeMaking, Check::Switched, 0..1)],
    },
};

/// See [`MulticastScene::with_clock_steps`].
pub static CLOCK: Overlay = Overlay {
    draw: MulticastScene::with_clock_steps,
    outline: Outline {
        name: "clock",
        about: "clocks step by 10 s, an hour and 30 years or leave their bound, and nobody gains",
        seeds: 1_000,
        once_failed: &[],
        kinds: &[FaultKind::ClockStep, FaultKind::ClockYears],
        counts_min: &[
            ("steps of clocks", 1_000),
            ("clocks beyond their bound", 200),
            ("roots beyond their bound", 50),
            ("late joiners caught up", 100),
            ("signed feeds", 100),
        ],
        mutants: &[
            (Mutant::RootTrustsItsHost, Check::Stamped, 0..50),
            (Mutant::ReceiverTrustsItsHost, Check::Early, 0..50),
            (Mutant::BelievesDisproved, Check::Early, 0..50),
            (Mutant::RootBelievesDisproved, Check::Stamped, 0..50),
            (Mutant::MarsSignatures, Check::Signed, 0..50),
            (Mutant::HoldsLonger, Check::Held, 0..50),
            (Mutant::ForgetsRepair, Check::Repaired, 0..50),
        ],
    },
};

/// See [`MulticastScene::with_old_keys`].
pub static OLD_KEYS: Overlay = Overlay {
    draw: MulticastScene::with_old_keys,
    outline: Outline {
        name: "old-keys",
        about: "a node that was shut out writes frames under keys that are out of use, for nobody",
        seeds: 200,
        once_failed: &[],
        kinds: &[FaultKind::Loss, FaultKind::Duplicate, FaultKind::Reorder],
        counts_min: &[("frames refused", 500)],
        mutants: &[(Mutant::TakesOldKeys, Check::Content, 0..5)],
    },
};

/// Datagrams that this machine refused because of their key or their code.
fn forged_at(node: &CampaignNode) -> u64 {
    match node {
        CampaignNode::Root(root) => root.status().refusals.forged,
        CampaignNode::Relay(relay) => relay.status().refusals.forged,
        CampaignNode::Receiver(receiver) => receiver.status().refusals.forged,
        CampaignNode::Recorder(_) | CampaignNode::Keeper(_) => 0,
    }
}

impl Campaign for Overlay {
    type Check = Check;
    type Mutant = Mutant;
    type Scene = MulticastScene;

    fn outline(&self) -> Outline<Mutant, Check> {
        self.outline
    }

    fn seeds_max(&self) -> u64 {
        // Around a single slow host the network is quiet.
        let is_quiet = self.outline.kinds == [FaultKind::Slow];
        if is_quiet { self.outline.seeds } else { u64::MAX }
    }

    fn scene(&self, seed: u64) -> MulticastScene {
        (self.draw)(seed)
    }

    fn run(&self, scene: &MulticastScene, mutant: Option<Mutant>, story: bool) -> Run<Check> {
        let mut scene = scene.clone();
        scene.mutant = mutant;
        let (world, watch) = scene.play(|owner| Transcript::told(owner, story));
        let (owner, mut text) = (watch.inner, watch.text);
        if story {
            text.insert_str(0, &format!("{:#?}\n", scene.config));
        }
        let (checks, made) = (owner.checks, owner.replacements);
        let nodes = (0..world.node_count() as u32).map(NodeIndex);
        let refused: u64 = nodes.map(|node| forged_at(world.machine(node).machine())).sum();
        let counts = vec![
            ("hops", world.tally().hops),
            ("frames released", checks.released),
            ("frames lost", checks.lost),
            ("joins, leaves and switches of mode", owner.acts),
            ("replacements tried", made[0]),
            ("replacements made", made[1]),
            ("replacements rolled back", made[2]),
            ("replacements abandoned", made[3]),
            ("late joiners caught up", checks.caught_up),
            ("steps of clocks", scene.clock_steps()),
            ("clocks beyond their bound", scene.disproved_clocks()),
            ("roots beyond their bound", scene.disproved_roots()),
            ("signed feeds", scene.is_signed().into()),
            ("frames refused", refused),
        ];
        let violations = checks.violations;
        let mut run = Run { violations, digest: world.digest(), counts, story: text };
        let (lost, caught_up) = (checks.lost, checks.caught_up);
        if scene.replaced.is_some() {
            let words = || format!("{made:?} replacements, {lost} frames lost");
            run.expect(Check::Switched, (made, lost) == ([1, 1, 0, 0], 0), words);
        }
        if scene.recorder == Some(false) {
            let joiners = scene.acts.len() as u64;
            run.expect(Check::Repaired, lost == 0, || format!("{lost} frames lost"));
            let words = || format!("{caught_up} of {joiners} late joiners");
            run.expect(Check::CaughtUp, caught_up == joiners, words);
        }
        run
    }
}
