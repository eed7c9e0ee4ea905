//! What a root publishes about itself: metrics while it runs, and the settings in its report.

use std::time::Duration;

use evenfall_host::clock::MonotonicClock;
use evenfall_multicast_machine::{FairnessSums, LiveFairness, Root};

use crate::runinfo::{NodeInfo, ReceiverMembership, RunEvent, RunInfo};
use crate::settings::{RoleName, Settings};
use evenfall_runtime::telemetry::Metrics;

/// The settings that the report shows.
pub(super) fn run_info(
    settings: &Settings,
    feed: String,
    started_unix_s: u64,
    memberships: Vec<ReceiverMembership>,
    events: Vec<RunEvent>,
) -> RunInfo {
    let m = &settings.multicast;
    let receivers = settings.count(RoleName::Receiver) + settings.count(RoleName::Gateway);
    let title = format!("Multicast to {receivers} receivers, {} mode: {feed}", m.mode);
    let shown = [
        ("feed", feed),
        ("mode", m.mode.to_string()),
        ("hedging", m.shape.hedging.to_string()),
        ("trees", settings.course.trees.to_string()),
        ("deadline rule", format!("{:?}, target {}", m.deadline.rule, m.deadline.target)),
        ("clock", clock(settings)),
        ("key", if settings.run.is_keyed() { "yes" } else { "no" }.to_owned()),
    ];
    let nodes = settings.nodes.iter().map(|node| NodeInfo {
        id: node.id,
        name: node.name.clone(),
        role: node.role.to_string(),
    });
    RunInfo {
        title,
        started_unix_s,
        is_planted: settings.clock.is_planted(),
        settings: shown.into_iter().map(|(k, v)| (k.to_owned(), v.into())).collect(),
        nodes: nodes.collect(),
        memberships,
        events,
    }
}

/// The clock of the run, in words.
fn clock(settings: &Settings) -> String {
    let planted = settings.clock.plant.map(|plant| format!(", planted up to {plant}"));
    match settings.is_meshed() {
        true => format!("that of the root, measured by probes{}", planted.unwrap_or_default()),
        false => settings.run.clock.clone(),
    }
}

pub(super) fn metrics<'a>(
    name: &str,
    leads: bool,
    roots: impl Iterator<Item = &'a Root>,
) -> Metrics {
    let mut m = Metrics::of(name, "root");
    for (tree, root) in roots.enumerate() {
        let (s, fairness) = (&root.status(), root.fairness());
        let (tree, t) = (tree as u32, &s.tally);
        m.counter("published_messages_total", "Messages published.", tree, s.messages);
        m.counter("framed_total", "Frames made.", tree, s.frames);
        m.counter("signatures_total", "Signatures of frames.", tree, s.signatures);
        m.counter("sampled_frames_total", "Sampled frames of known latency.", tree, s.sampled);
        m.counter(
            "sampled_late_frames_total",
            "Sampled frames late at a receiver.",
            tree,
            s.sampled_late,
        );
        m.counter("released_messages_total", "Released, over receivers.", tree, t.released);
        m.counter("late_messages_total", "Released late, over receivers.", tree, t.late);
        m.counter("lost_messages_total", "Reported lost, over receivers.", tree, t.lost);
        m.counter("repairs_sent_total", "Frames sent again by the root.", tree, s.repairs_sent);
        let r = &s.replacements;
        m.counter("replacements_tried_total", "Spares tried for a straggler.", tree, r.tried);
        m.counter("replacements_made_total", "Stragglers replaced.", tree, r.made);
        m.counter("replacements_undone_total", "Trials that did not help.", tree, r.rolled_back);
        m.counter("forged_datagrams_total", "Datagrams refused.", tree, s.refusals.forged);
        let unplaced = "Authentic datagrams of another run, or of nodes without a place.";
        m.counter("unplaced_datagrams_total", unplaced, tree, s.refusals.unplaced);
        m.gauge("hold_seconds", "From sending to the deadline.", tree, s.hold_ns as f64 / 1e9);
        m.gauge("receivers", "Receivers that are members.", tree, s.receivers as f64);
        m.gauge("proxies", "Proxies that are members.", tree, s.proxies as f64);
        m.gauge("view", "Number of the view in force.", tree, f64::from(s.view));
        let sends = f64::from(u8::from(leads));
        put_fairness(&mut m, tree, fairness);
        m.gauge("leads", "1 while this root sends the feed, 0 while it stands by.", tree, sends);
        if let Some((median, _)) = s.voters_ns {
            let help = "Median time until a majority of the roots has a frame.";
            m.gauge("voting_seconds", help, tree, median as f64 / 1e9);
        }
    }
    m
}

/// Adds the votes of other roots that were dropped because they came again.
pub(super) fn put_repeated_votes(m: &mut Metrics, tree: u32, votes: u64) {
    m.counter("repeated_votes_total", "Votes that came again and were dropped.", tree, votes);
}

/// Adds how even the deliveries are.
fn put_fairness(m: &mut Metrics, tree: u32, fairness: &LiveFairness) {
    let FairnessSums { window, lateness, oml, .. } = fairness.total();
    let all = [
        ("window_seconds", "First to last release of a sampled frame.", window),
        ("release_lateness_seconds", "Deadline to last release of a sampled frame.", lateness),
        ("oml_seconds", "Sending to last arrival of a sampled frame.", oml),
    ];
    for (name, help, counts) in all {
        m.put_histogram(name, help, tree, &counts.counts, counts.sum_ns);
    }
    let recent = fairness.sums_of_last(MonotonicClock::now(), Duration::from_secs(10));
    if let Some(share) = recent.on_time_share() {
        let help = "P(F) of the last ten seconds: share of messages in time at every receiver.";
        m.gauge("on_time_share", help, tree, share);
    }
}
