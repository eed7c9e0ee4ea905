//! Rivals of the multicast on one model of a cloud, in one sitting: a copy made by a switch, two
//! machines for each participant, and packets sprayed over paths. Beside them, the shapes that a
//! linear model of costs picks.
//!
//! ```text
//! receiver hedging    root --+--> machine k       participant k has a message when the first of
//!                            +--> machine k + N   its machines has it
//! ```

use core::time::Duration;

use evenfall_campaigns::multicast::{MessageCourse, OverlayParams, run, run_heard};
use evenfall_campaigns::seeds::{in_parallel, mean_and_half_width};
use evenfall_core::{Hedging, nearest_rank};
use evenfall_multicast_machine::Mode;

use super::overlay::Effort;
use super::{Table, columns};

/// What a level of a tree costs, microseconds: Jasper, section 4.
const LEVEL_US: f64 = 30.0;
/// What a child adds to its level, microseconds: Jasper, section 4.
const CHILD_US: f64 = 2.7;
/// What the published gateway adds to a switch that takes no time, microseconds: the published
/// median less that of the row above. So the median is a fit, and the other percentiles judge it.
const GATEWAY_US: f64 = 159.0;
/// Paths between two hosts over which packets are sprayed: more do not change the rows.
const SPRAYED: u32 = 16;

/// A way to bring a message to every participant.
struct RivalScene {
    name: &'static str,
    /// The run. Its receivers are the machines of all participants.
    params: OverlayParams,
    /// Published percentiles 50, 90 and 99 of the latency, microseconds.
    published: Option<[f64; 3]>,
    /// A constant time on top of each latency, microseconds.
    extra_us: f64,
}

/// When each message was due, and when each participant had it first.
struct ArrivalBook {
    participants: usize,
    due_ns: Vec<u64>,
    /// Of each message in turn, the first arrival at each participant.
    arrivals_ns: Vec<u64>,
}

/// Latency to the slowest participant and window, in microseconds.
struct RivalFigures {
    oml_us: [f64; 3],
    window_p50_us: f64,
}

impl ArrivalBook {
    fn new(participants: u32) -> Self {
        Self { participants: participants as usize, due_ns: Vec::new(), arrivals_ns: Vec::new() }
    }

    fn hear(&mut self, course: MessageCourse) {
        match course {
            MessageCourse::Sent { scheduled_ns, .. } => {
                self.due_ns.push(scheduled_ns);
                let all = self.due_ns.len() * self.participants;
                self.arrivals_ns.resize(all, u64::MAX);
            }
            MessageCourse::Released { message, receiver, arrival_ns, .. } => {
                let participant = receiver as usize % self.participants;
                let first = &mut self.arrivals_ns[message as usize * self.participants..];
                first[participant] = first[participant].min(arrival_ns);
            }
        }
    }

    /// Of the messages that every participant has.
    fn figures(&self) -> RivalFigures {
        let (mut latencies, mut windows) = (Vec::new(), Vec::new());
        for (due, arrivals) in self.due_ns.iter().zip(self.arrivals_ns.chunks(self.participants)) {
            let last = arrivals.iter().copied().max().unwrap_or(u64::MAX);
            if last < u64::MAX {
                latencies.push(last - due);
                windows.push(last - arrivals.iter().copied().min().unwrap_or(last));
            }
        }
        let at = |values: &mut Vec<u64>, share| {
            values.sort_unstable();
            nearest_rank(values, share).map_or(f64::NAN, |ns| ns as f64 / 1e3)
        };
        let oml_us = [0.5, 0.9, 0.99].map(|share| at(&mut latencies, share));
        RivalFigures { oml_us, window_p50_us: at(&mut windows, 0.5) }
    }
}

/// The same run with a sender whose one copy a switch multiplies. Neither processor nor card spends
/// time on the others, and the switch none at all: a real one is slower.
fn with_switch(mut params: OverlayParams) -> OverlayParams {
    let host = &mut params.host;
    (host.copy_cost, host.card_cost) = (Duration::ZERO, Duration::ZERO);
    (host.nic_packets_per_s, host.nic_bits_per_s) = (0, 0);
    params
}

/// The same run with packets that each take one of several paths between their hosts.
fn with_spraying(mut params: OverlayParams) -> OverlayParams {
    params.cloud.sprayed_paths = SPRAYED;
    params
}

fn all_scenes(effort: &Effort, participants: u32) -> Vec<RivalScene> {
    let on =
        |machines, mode, hedging| effort.params(participants * machines, mode, Hedging(hedging));
    let scene = |name, params, published: Option<[f64; 3]>| {
        // The published runs had 100 receivers.
        let published = published.filter(|_| participants == 100);
        RivalScene { name, params, published, extra_us: 0.0 }
    };
    let gateway = [228.0, 272.0, 501.0];
    let switch = || with_switch(on(1, Mode::Unicast, 0));
    vec![
        scene("unicast", on(1, Mode::Unicast, 0), Some([254.0, 331.0, 466.0])),
        scene("unicast, two machines each", on(2, Mode::Unicast, 0), None),
        scene("unicast, sprayed", with_spraying(on(1, Mode::Unicast, 0)), None),
        scene("one copy at a switch that takes no time", switch(), Some(gateway)),
        RivalScene {
            extra_us: GATEWAY_US,
            ..scene("one copy at a switch that takes 159 us", switch(), Some(gateway))
        },
        scene("tree", on(1, Mode::Tree, 0), Some([147.0, 213.0, 401.0])),
        scene("tree, sprayed", with_spraying(on(1, Mode::Tree, 0)), None),
        scene("tree, two machines each", on(2, Mode::Tree, 0), None),
        scene("tree, H=1", on(1, Mode::Hedge, 1), None),
        scene("tree, H=2", on(1, Mode::Hedge, 2), Some([129.0, 146.0, 199.0])),
        scene("tree, H=2, sprayed", with_spraying(on(1, Mode::Hedge, 2)), None),
        scene("tree, H=2, two machines each", on(2, Mode::Hedge, 2), None),
    ]
}

/// Latency and window of each way, to as many participants. A row also has the machines that it
/// needs beside the root.
pub fn table(effort: &Effort, participants: u32, progress: &mut dyn FnMut(&str)) -> Table {
    let figures = [
        (Some("p50 published"), "ours"),
        (Some("p90 published"), "ours"),
        (Some("p99 published"), "ours"),
        (Some("machines"), "window p50"),
    ];
    let title = format!("Ways to {participants} participants: overall latency");
    let mut table = Table::new(&title, effort.method(), &columns("way", &figures));
    for scene in all_scenes(effort, participants) {
        progress(scene.name);
        let machines = scene.params.receivers + scene.params.proxies();
        let one = |seed| {
            let mut book = ArrivalBook::new(participants);
            let params = OverlayParams { seed, ..scene.params.clone() };
            run_heard(&params, &mut |_| {}, &mut |course| book.hear(course));
            book.figures()
        };
        let runs = in_parallel(effort.seed, effort.seeds.into(), one, |_| {});
        let over = |figure: &dyn Fn(&RivalFigures) -> f64| {
            mean_and_half_width(&runs.iter().map(figure).collect::<Vec<f64>>())
        };
        let mut values = Vec::new();
        for at in 0..3 {
            let (mean, half) = over(&|run| run.oml_us[at] + scene.extra_us);
            values.extend([scene.published.map(|us| us[at]), mean, half]);
        }
        let (mean, half) = over(&|run| run.window_p50_us);
        values.extend([Some(f64::from(machines)), mean, half]);
        table.row(scene.name.into(), values);
        progress(table.last_line().trim_end());
    }
    table
}

/// The least fan-out of a tree of this depth with so many leaves.
fn fanout_of(receivers: u32, depth: u8) -> u16 {
    let fits = |fanout: &u16| u32::from(*fanout).saturating_pow(depth.into()) >= receivers;
    (1..).find(fits).unwrap_or(u16::MAX)
}

/// The shapes of trees: what the linear model of section 4 says of each, and what the simulator
/// says. The model picks the shape whose number is the least.
pub fn shapes_by_cost(effort: &Effort, sizes: &[u32], progress: &mut dyn FnMut(&str)) -> Table {
    // A root of a hundred copies at a time cannot do more.
    let effort = &Effort { rate: effort.rate.min(1_000.0), ..effort.clone() };
    let heads = columns("shape", &[(Some("linear model"), "simulated p50")]);
    let mut table = Table::new("Shapes that a linear cost picks", effort.method(), &heads);
    for &receivers in sizes {
        for depth in 1..=4 {
            let fanout = fanout_of(receivers, depth);
            if fanout > 100 {
                continue;
            }
            let said = f64::from(depth) * (LEVEL_US + CHILD_US * f64::from(fanout));
            let mut params = effort.params(receivers, Mode::Tree, Hedging::NONE);
            let shape = &mut params.config.shape;
            (shape.depth, shape.fanout) = (Some(depth), Some(fanout));
            params.receivers_per_host = if receivers < 1_000 { 1 } else { 10 };
            let name = format!("N={receivers} D={depth} F={fanout}");
            progress(&name);
            let one = |seed| run(&OverlayParams { seed, ..params.clone() }).results.oml_us.p50;
            let medians = in_parallel(effort.seed, effort.seeds.into(), one, |_| {});
            let (mean, half) = mean_and_half_width(&medians);
            table.row(name, [Some(said), mean, half]);
            progress(table.last_line().trim_end());
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenfall_campaigns::model::Model;

    #[test]
    fn a_participant_has_a_message_when_its_first_machine_has_it() {
        let mut book = ArrivalBook::new(2);
        for message in 0..2 {
            let scheduled_ns = message * 1_000_000;
            book.hear(MessageCourse::Sent { message, scheduled_ns, deadline_ns: None });
        }
        // Machines 0 and 2 are those of the first participant, 1 and 3 those of the second.
        for (receiver, arrival_ns) in [(0, 90_000), (2, 40_000), (1, 60_000), (3, 70_000)] {
            let (release_ns, ahead_ns, message) = (arrival_ns, 0, 0);
            book.hear(MessageCourse::Released {
                message,
                receiver,
                arrival_ns,
                release_ns,
                ahead_ns,
            });
        }
        // Nobody has the second message, so it is in no figure.
        let figures = book.figures();
        assert_eq!((figures.oml_us, figures.window_p50_us), ([60.0; 3], 20.0));
    }

    #[test]
    fn a_switch_shortens_the_latency_of_unicast_and_every_way_has_its_machines() {
        let model = Model::named("aws").expect("built in");
        let effort = Effort { messages: 500, warm_up: 100, seeds: 1, ..Effort::on(model) };
        let table = table(&effort, 20, &mut |_| {});
        let value = |name: &str, column: usize| {
            let row = table.rows.iter().find(|(row, _)| row == name).expect("a row");
            row.1[column].expect("a number")
        };
        let p50 = |name| value(name, 1);
        assert!(p50("one copy at a switch that takes no time") < p50("unicast"));
        let machines = ["unicast", "unicast, two machines each"].map(|name| value(name, 9));
        assert!((machines[0] - 20.0).abs() < 0.5 && (machines[1] - 40.0).abs() < 0.5);
    }

    #[test]
    fn the_least_fan_out_has_room_for_all() {
        assert_eq!([1, 2, 3, 4].map(|depth| fanout_of(1_000, depth)), [1_000, 32, 10, 6]);
        assert_eq!([1, 2, 3].map(|depth| fanout_of(100, depth)), [100, 10, 5]);
    }
}
