//! A proxy as a process.

use std::time::Duration;

use evenfall_clock_service::Standing;
use evenfall_core::Timestamp;
use evenfall_host::clock::MonotonicClock;
use evenfall_multicast_machine::{DepartureReason, Relay, RelayEvent, RelayStatus};
use serde::Serialize;

use super::part::{Ended, Part};
use super::{RoleError, RoleProcess, identity};
use crate::settings::{MulticastNode, Settings};
use evenfall_runtime::process::PortTaken;
use evenfall_runtime::telemetry::Metrics;

/// How long a proxy serves repair after the receivers below it have finished.
const LINGER: Duration = Duration::from_secs(2);

/// The summary of a proxy.
#[derive(Clone, Debug, Serialize)]
pub struct ProxySummary {
    /// Name of the proxy.
    pub name: String,
    /// Its counters.
    pub status: RelayStatus,
    /// Datagrams that were no messages of the protocol.
    pub malformed: u64,
    /// The kind of its port, and why.
    pub port: PortTaken,
    /// The last state of the proxy's clock in the mesh; `None` when the host's clock was used.
    pub clock: Option<Standing>,
    /// Why the proxy ended.
    pub ended: String,
}

fn metrics(name: &str, tree: u32, status: &RelayStatus, malformed: u64) -> Metrics {
    let mut m = Metrics::of(name, "proxy");
    m.counter("forwarded_frames_total", "Frames forwarded.", tree, status.forwarded);
    let by_port = status.forwarded_by_port;
    m.counter("port_forwarded_frames_total", "Frames the port forwarded.", tree, by_port);
    let left = [
        ("port_duplicate_copies_total", "Copies the port dropped.", status.duplicates_in_port),
        ("port_behind_frames_total", "Frames too old for the port.", status.behind_in_port),
        ("port_refused_frames_total", "Frames without room in the port.", status.refused_by_port),
    ];
    left.into_iter().for_each(|(name, help, count)| m.counter(name, help, tree, count));
    m.counter("duplicate_copies_total", "Copies dropped.", tree, status.duplicates);
    m.counter("repairs_sent_total", "Frames sent again.", tree, status.repairs_sent);
    m.counter("repaired_frames_total", "Frames that came by repair.", tree, status.repaired);
    m.counter("given_up_frames_total", "Frames given up as missing.", tree, status.given_up);
    m.counter("dropped_frames_total", "Frames dropped: driver full.", tree, status.dropped);
    m.counter("malformed_datagrams_total", "Datagrams that were no messages.", tree, malformed);
    m.counter("forged_datagrams_total", "Datagrams refused.", tree, status.refusals.forged);
    let unplaced = "Authentic reports of nodes that are not below this one.";
    m.counter("unplaced_datagrams_total", unplaced, tree, status.refusals.unplaced);
    m.gauge("receivers_below", "Receivers that report.", tree, f64::from(status.below.receivers));
    m
}

/// The state that follows from the proxy's events.
struct Watch<'a> {
    node: &'a MulticastNode,
    root_timeout: Duration,
    /// When to leave, after the receivers below have finished.
    finished: Option<Timestamp>,
    failed: Option<RoleError>,
}

impl Part<Relay> for Watch<'_> {
    fn on(&mut self, _: &Relay, now: Timestamp, event: RelayEvent) {
        match event {
            RelayEvent::Finished => self.finished = Some(now + LINGER),
            RelayEvent::RootLost => self.failed = Some(RoleError::RootLost(self.root_timeout)),
            RelayEvent::Evicted(DepartureReason::TooSlow) => {
                self.failed = Some(RoleError::Evicted(DepartureReason::TooSlow));
            }
            // The machine joins again by itself.
            _ => {}
        }
    }

    fn housekeep(&mut self, process: &mut RoleProcess, relays: &[Relay]) {
        let status = relays[0].status();
        let ill = relays[0].place().is_none().then(|| "not in the tree".to_owned());
        let (name, tree) = (self.node.name.clone(), self.node.tree);
        let refused = process.base.refused();
        process.publish(status, ill, move |status| metrics(&name, tree, status, refused));
    }

    fn ended(&mut self, _: &mut [Relay]) -> Option<Ended> {
        let is_over = self.finished.is_some_and(|at| at <= MonotonicClock::now());
        let failed = self.failed.take().map(Err);
        failed.or_else(|| is_over.then_some(Ok("the stream ended")))
    }

    fn until(&self) -> Option<Timestamp> {
        self.finished
    }
}

/// Runs a proxy until the stream has ended below it, a signal comes or the root is lost.
///
/// # Errors
/// [`RoleError`].
pub fn run(settings: &Settings, node: &MulticastNode) -> Result<ProxySummary, RoleError> {
    let mut process = RoleProcess::start(settings, node)?;
    let who = identity(settings, node, node.tree, process.base.started)?;
    let key = process.base.key.clone();
    let relay = Relay::new(settings.multicast, who, key.as_ref(), MonotonicClock::now());
    let mut relays = [match process.node_key() {
        Some(key) => relay.with_node_key(key),
        None => relay,
    }];
    let root_timeout = settings.multicast.membership.root_timeout;
    let mut watch = Watch { node, root_timeout, finished: None, failed: None };
    let ended = process.play(&mut relays, &mut watch)?;
    let malformed = process.base.refused();
    let why = ended.as_ref().map_or_else(ToString::to_string, ToString::to_string);
    let (name, status) = (node.name.clone(), relays[0].status());
    tracing::info!(
        "{name}: {why}: {} frames forwarded, {} sent again, {} given up, {} dropped",
        status.forwarded,
        status.repairs_sent,
        status.given_up,
        status.dropped
    );
    let clock = process.standing();
    let port = process.base.port_taken.clone();
    let summary = ProxySummary { name, status, malformed, port, clock, ended: why };
    process.end(settings, &summary)?;
    ended.map(|_| summary)
}
