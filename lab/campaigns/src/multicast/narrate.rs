//! Small scenarios as stories: each event is one line of words.
//!
//! The texts are kept beside the tests and compared line by line. A change of behaviour therefore
//! shows as a change of a story, which a reviewer can read.

use core::time::Duration;
use std::collections::BTreeMap;
use std::fmt::Write;

use evenfall_core::{NodeId, Timestamp};
use evenfall_multicast_machine::control::TreePosition;
use evenfall_multicast_machine::{
    Framed, Mode, ReceiverEvent, RelayEvent, Release, Replacement, RootEvent,
};
use evenfall_sim::{
    Bounds, Cloud, CloudProfile, Fault, NodeIndex, Observer, Plan, Rates, Seen, SimTime, World,
};

use super::faults::{MulticastScene, bounds};
use super::node::NodeEvent;
use super::owner::{JOIN, Owner, SWITCH, Watch};
use super::subject::Subject;

/// The stories, by name.
pub const STORIES: [&str; 6] = [
    "proxy-dies",
    "loss-and-repair",
    "late-join",
    "mode-switch",
    "straggler-meets-the-cap",
    "proxy-turns-slow",
];

/// A story has a line for one in this many of the frames that met no trouble.
const FRAMES_EACH: u64 = 100;

/// An owner whose run is written down.
struct Narrator {
    owner: Owner,
    text: String,
    mode_holds: Option<bool>,
    /// Repairs not yet told, per node: since when, by whom, first and last frame.
    repairs: BTreeMap<NodeIndex, (SimTime, NodeId, u64, u64)>,
}

impl Watch for Narrator {
    fn owner(&mut self) -> &mut Owner {
        &mut self.owner
    }
}

/// Knobs of a story; the others are 2.
fn scene(knobs: &[(&str, u64)], acts: &[(u64, u64)], faults: &[(u64, Fault)]) -> MulticastScene {
    let mut plan = Plan::new(1, &bounds());
    plan.kinds.clear();
    plan.rates = Rates::default();
    for (knob, value) in &mut plan.knobs {
        let given = knobs.iter().find(|(name, _)| name == knob).map(|(_, value)| *value);
        *value = given.unwrap_or(match *knob {
            "joins" | "leaves" | "switches" | "key" | "hedging" | "coalesce-us" | "replace" => 0,
            "root" | "long-pause" | "mode" | "stalls" => 9,
            "rate" => 200,
            _ => 2,
        });
    }
    let mut scene = MulticastScene::of_plan(plan, &Bounds { kinds: Vec::new(), ..bounds() });
    scene.plan.faults =
        faults.iter().map(|(ms, fault)| (SimTime::from_millis(*ms), fault.clone())).collect();
    scene.acts = acts.iter().map(|(ms, act)| (SimTime::from_millis(*ms), *act)).collect();
    scene.cloud = CloudProfile::constant(Duration::from_micros(50));
    scene.exact_clocks = true;
    scene
}

/// Tells a story.
///
/// # Panics
/// When there is no story of this name.
pub fn tell(story: &str) -> String {
    let n = NodeIndex;
    // Nodes: 0 the root, then proxies, then receivers.
    let scene = match story {
        "proxy-dies" => {
            scene(&[("receivers", 4), ("spares", 1)], &[], &[(600, Fault::Crash(n(1)))])
        }
        "loss-and-repair" => {
            let rates = Rates { loss: 0.4, ..Rates::default() };
            let knobs = [("receivers", 2), ("hedging", 1), ("spares", 0)];
            let faults = [(600, Fault::Rates(rates)), (640, Fault::Rates(Rates::default()))];
            scene(&knobs, &[], &faults)
        }
        "late-join" => scene(&[("receivers", 2), ("spares", 0)], &[(600, JOIN)], &[]),
        "mode-switch" => {
            let mut scene =
                scene(&[("receivers", 2), ("spares", 0)], &[(600, SWITCH), (900, SWITCH + 1)], &[]);
            scene.modes = Some([Mode::Unicast, Mode::Hedge]);
            scene
        }
        "straggler-meets-the-cap" => {
            let faults = [(600, Fault::Slow(n(4), 200.0)), (1_200, Fault::Slow(n(4), 1.0))];
            let mut scene = scene(&[("receivers", 2), ("spares", 0)], &[], &faults);
            scene.config.deadline.hold_max = Duration::from_millis(4);
            scene
        }
        "proxy-turns-slow" => {
            let knobs = [("receivers", 3), ("fanout", 3), ("spares", 1), ("replace", 1)];
            let mut scene = scene(&knobs, &[], &[(600, Fault::Slow(n(2), 40.0))]);
            // A short window lets the hold come down within the story.
            scene.config.deadline.window = Duration::from_millis(500);
            scene
        }
        other => panic!("there is no story {other:?}"),
    };
    let (_, mut narrator) = scene.play(Narrator::new);
    narrator.tell_repairs();
    let mut text = narrator.text;
    for violation in &narrator.owner.checks.violations {
        let _ = writeln!(text, "VIOLATION {violation}");
    }
    text
}

impl Narrator {
    fn new(owner: Owner) -> Self {
        Self { owner, text: String::new(), mode_holds: None, repairs: BTreeMap::new() }
    }

    fn line(&mut self, at: SimTime, what: core::fmt::Arguments<'_>) {
        self.tell_repairs();
        self.write(at, what);
    }

    fn write(&mut self, at: SimTime, what: core::fmt::Arguments<'_>) {
        let ms = at.nanos() / 1_000_000;
        let us = at.nanos() / 1_000 % 1_000;
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{ms:>6}.{us:03} ms  {what}");
    }

    /// Repairs of consecutive frames by one node are one line.
    fn repaired(&mut self, seen: Seen, sequence: u64, via: NodeId) {
        let told = self.repairs.get_mut(&seen.node);
        if let Some((.., last)) =
            told.filter(|(_, by, _, last)| (*by, *last + 1) == (via, sequence))
        {
            *last = sequence;
        } else {
            self.tell_repairs();
            self.repairs.insert(seen.node, (seen.at, via, sequence, sequence));
        }
    }

    fn tell_repairs(&mut self) {
        for (node, (at, via, first, last)) in core::mem::take(&mut self.repairs) {
            if first == last {
                self.write(at, format_args!("{node}: frame {first} repaired by {via}"));
            } else {
                self.write(at, format_args!("{node}: frames {first} to {last} repaired by {via}"));
            }
        }
    }

    fn root(&mut self, seen: Seen, event: &RootEvent) {
        let at = seen.at;
        match event {
            RootEvent::Joined(id, role, _) => {
                self.line(at, format_args!("root: {role:?} {id} joins"))
            }
            RootEvent::Removed(id, why) => {
                self.line(at, format_args!("root: {id} is out: {why:?}"))
            }
            RootEvent::View(view) => {
                let children: Vec<String> =
                    view.children.iter().map(|peer| peer.id.to_string()).collect();
                let (number, depth, spares) = (view.number, view.depth, view.spares.len());
                let below = children.join(" ");
                self.line(
                    at,
                    format_args!(
                        "root: view {number}, depth {depth}, sends to {below}, {spares} spare"
                    ),
                );
            }
            RootEvent::Framed(framed) => self.framed(at, framed),
            RootEvent::Replacement(Replacement { old, new, step, .. }) => {
                self.line(at, format_args!("root: {new} in the place of {old}: {step:?}"));
            }
            RootEvent::Finished(tally) => self.line(
                at,
                format_args!(
                    "root: finished, {} released, {} late, {} lost, {} repaired",
                    tally.released, tally.late, tally.lost, tally.repaired
                ),
            ),
            _ => {}
        }
    }

    fn framed(&mut self, at: SimTime, framed: &Framed) {
        let holds = framed.deadline.is_some();
        let changed = self.mode_holds.replace(holds) != Some(holds);
        let sequence = framed.sequence;
        if !changed && !sequence.is_multiple_of(FRAMES_EACH) {
            return;
        }
        if let Some(deadline) = framed.deadline {
            let hold = deadline.since(framed.origin);
            self.line(at, format_args!("root: frame {sequence}, to be held {hold:?}"));
        } else {
            self.line(at, format_args!("root: frame {sequence}, not held"));
        }
    }

    fn placed(&mut self, seen: Seen, place: &TreePosition) {
        let sources: Vec<String> = place.sources.iter().map(|peer| peer.id.to_string()).collect();
        let (level, start) = (place.level, place.start);
        let from = sources.join(", then ");
        let node = seen.node;
        self.line(seen.at, format_args!("{node}: level {level} below {from}, from frame {start}"));
    }

    fn released(&mut self, seen: Seen, release: &Release) {
        let late_by = release.deadline.filter(|deadline| release.arrived > *deadline);
        let (node, sequence, via) = (seen.node, release.sequence, release.via);
        if release.repaired {
            self.repaired(seen, sequence, via);
        } else if let Some(deadline) = late_by
            && sequence.is_multiple_of(FRAMES_EACH / 4)
        {
            let by = release.arrived.since(deadline);
            self.line(seen.at, format_args!("{node}: frame {sequence} was late by {by:?}"));
        }
    }

    fn receiver(&mut self, seen: Seen, event: &ReceiverEvent) {
        let node = seen.node;
        match event {
            ReceiverEvent::Placed(place) => self.placed(seen, place),
            ReceiverEvent::Released(release) => self.released(seen, release),
            other => self.line(seen.at, format_args!("{node}: {other:?}")),
        }
    }
}

impl Observer<Subject, Cloud> for Narrator {
    fn event(&mut self, seen: Seen, event: NodeEvent) {
        match &event {
            NodeEvent::Root(event) => self.root(seen, event),
            NodeEvent::Receiver(event) => self.receiver(seen, event),
            NodeEvent::Relay(RelayEvent::Placed(place)) => self.placed(seen, place),
            NodeEvent::Relay(other) => {
                self.line(seen.at, format_args!("{}: {other:?}", seen.node));
            }
            NodeEvent::Keeper => {}
        }
        self.owner.event(seen, event);
    }

    fn invoke(&mut self, seen: Seen, token: u64, machine: &mut Subject) {
        self.owner.invoke(seen, token, machine);
    }

    fn token(&mut self, world: &mut World<Subject, Cloud>, token: u64) {
        match token {
            JOIN => self.line(world.now(), format_args!("a receiver is started")),
            _ if token >= SWITCH => self.line(world.now(), format_args!("the mode is switched")),
            _ => {}
        }
        // Only the owner schedules calls, and the owner handles them.
        self.owner.token(world, token);
    }

    fn fault(&mut self, at: SimTime, fault: &Fault) {
        self.line(at, format_args!("fault: {fault:?}"));
        self.owner.fault(at, fault);
    }

    fn revive(&mut self, node: NodeIndex, now: Timestamp) -> Option<Subject> {
        self.owner.revive(node, now)
    }
}
