//! A gateway as a process: a receiver whose messages go on to participants.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenfall_core::{Clock, SharedKey, Summary, Timestamp};
use evenfall_feed_formats::mold::replay::RequestCounts;
use evenfall_feed_formats::plain::sealed::PlainSealer;
use evenfall_host::clock::MonotonicClock;
use evenfall_multicast_machine::{Receiver, ReceiverEvent, ReceiverStatus};
use evenfall_port::{Options, Port};
use evenfall_runtime::settings::{SettingsError, read_key};
use evenfall_runtime::telemetry::Metrics;
use serde::Serialize;
use serde_json::{Map, Value};

use super::handoff::{Handoff, HandoffCounts, Rings};
use super::requests::{RequestDesk, RerequestServer};
use super::settings::{GatewayNode, GatewaySettings, HandoffProtocol};
use crate::roles::receiver::{self, Delivery, ReceiverSummary, note_duplicates};
use crate::roles::{Ended, Part, RoleError, RoleProcess, random};
use crate::settings::{MulticastNode, Settings};

#[cfg(test)]
mod tests;

/// Frames that wait in this process while the network takes no more: one release of 512 messages in
/// plain datagrams, sixteen times.
const QUEUE_FRAMES_MAX: usize = 8_192;
/// Sealed copies of each participant that may wait: two such releases.
const SEALED_FRAMES: usize = 1_024;
/// How many times `gateway.linger` a gateway stays after the end at most, however long participants
/// go on asking.
const LINGERS_MAX: u32 = 10;

/// Metrics of requests without an answer, in the order of `RequestRefusal::ALL`.
const REFUSED: [(&str, &str); 6] = [
    ("rerequests_of_strangers_total", "Requests of addresses that may not ask."),
    ("malformed_rerequests_total", "Datagrams that were no requests."),
    ("too_fast_rerequests_total", "Requests beyond the rate of their address or of all."),
    ("other_session_rerequests_total", "Requests for sessions that are not sent here."),
    ("not_sent_rerequests_total", "Requests for messages that were not released yet."),
    ("not_kept_rerequests_total", "Requests for messages that are not kept any more."),
];

/// The figures of a hand-over.
#[derive(Clone, Debug, Serialize)]
pub struct HandoffSummary {
    /// How messages were handed on.
    pub protocol: String,
    /// Hosts and groups that got each message.
    pub participants: usize,
    /// The sessions, one a tree.
    pub sessions: Vec<String>,
    /// Counts of messages and datagrams.
    #[serde(flatten)]
    pub counts: HandoffCounts,
    /// From the release of a message until its last copy had left, in microseconds.
    pub handed_us: Summary,
    /// Copies that the network refused for good.
    pub failed: u64,
    /// Datagrams at the re-request server.
    pub requests: u64,
    /// Requests answered.
    pub answers: u64,
    /// Messages sent again.
    pub rerequested: u64,
    /// Requests that got no answer, by reason.
    pub refused: Map<String, Value>,
}

/// The summary of a gateway.
#[derive(Clone, Debug, Serialize)]
pub struct GatewaySummary {
    /// The gateway as a receiver.
    #[serde(flatten)]
    pub receiver: ReceiverSummary,
    /// The gateway towards its participants.
    pub gateway: HandoffSummary,
}

/// The address from which participants are served.
fn source_address(node: &MulticastNode, gateway: &GatewayNode) -> SocketAddr {
    let is_v4 = gateway.participants.iter().all(SocketAddr::is_ipv4);
    let ip: IpAddr = match (gateway.is_local(), is_v4) {
        (true, true) => Ipv4Addr::LOCALHOST.into(),
        (true, false) => Ipv6Addr::LOCALHOST.into(),
        (false, _) if node.address.is_ipv4() == is_v4 && !node.address.ip().is_loopback() => {
            node.address.ip()
        }
        (false, true) => Ipv4Addr::UNSPECIFIED.into(),
        (false, false) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, 0)
}

fn open_port(
    node: &MulticastNode,
    gateway: &GatewayNode,
    protocol: HandoffProtocol,
    keyed: bool,
) -> Result<Box<dyn Port>, RoleError> {
    let is_sealed = protocol == HandoffProtocol::Sealed;
    let queue_frames_max = match is_sealed {
        true => QUEUE_FRAMES_MAX.max(SEALED_FRAMES * gateway.participants.len()),
        false => QUEUE_FRAMES_MAX,
    };
    let options = Options {
        keyed,
        // Nothing is received here.
        coalescing: false,
        // The handoff gives sealed copies their turns. A port that joins segments would turn them
        // once more, and one of two participants would always be first.
        segmentation: !is_sealed,
        queue_frames_max,
        multicast_interface: gateway.interface,
        ..Options::default()
    };
    let port = evenfall_port::open(source_address(node, gateway), options)?;
    for note in port.notes() {
        tracing::warn!("{}: to participants: {note}", node.name);
    }
    Ok(port)
}

/// The key of each participant, which differs from that of the run and from all others.
///
/// # Errors
/// The node, and the file that cannot be read or holds a key of others.
fn read_participant_keys(
    gateway: &GatewayNode,
    of_run: Option<&SharedKey>,
) -> Result<Vec<SharedKey>, SettingsError> {
    let refused =
        |why: String| SettingsError::new(format!("node {}: participant_keys: {why}", gateway.name));
    let mut keys: Vec<SharedKey> = Vec::new();
    for file in &gateway.participant_keys {
        let (key, shown) = (read_key(file).map_err(|e| refused(e.to_string()))?, file.display());
        let is_same = |other: &SharedKey| other.secret() == key.secret();
        if of_run.is_some_and(is_same) {
            return Err(refused(format!(
                "{shown} is the key of the run, which opens messages before their deadline; give \
                 the participant a key of its own, made by `evenfall key new`"
            )));
        }
        if let Some(at) = keys.iter().position(is_same) {
            let other = gateway.participant_keys[at].display();
            return Err(refused(format!(
                "{other} and {shown} hold one key, so that two participants read each other's \
                 copies; make a key for each by `evenfall key new`"
            )));
        }
        keys.push(key);
    }
    Ok(keys)
}

/// The gateway's part in the loop of its machines.
struct GatewayRole<'s> {
    name: &'s str,
    delivery: Delivery<'s, Handoff>,
    server: Option<RerequestServer>,
    protocol: String,
    participants: usize,
    trees: u32,
    duplicates: u64,
    linger: Duration,
    /// When to leave after the end: as things stand, and at the latest.
    leave_at: Option<(Timestamp, Timestamp)>,
    /// Answers to requests when that time was set.
    answers: u64,
    /// Copies that the network had refused at the last look.
    failed: u64,
}

impl GatewayRole<'_> {
    fn request_counts(&self) -> RequestCounts {
        self.server.as_ref().map(RerequestServer::counts).unwrap_or_default()
    }

    fn summary(&self) -> HandoffSummary {
        let (requests, handoff) = (self.request_counts(), &*self.delivery.sink);
        let refused = requests.refused_by_reason();
        HandoffSummary {
            protocol: self.protocol.clone(),
            participants: self.participants,
            sessions: handoff.sessions(),
            counts: handoff.counts(),
            handed_us: handoff.handed_us(),
            failed: handoff.send_failures().0,
            requests: requests.requests,
            answers: requests.answers,
            rerequested: requests.messages,
            refused: refused.map(|(why, count)| (why.word().to_owned(), count.into())).collect(),
        }
    }

    fn put_metrics(&self, m: &mut Metrics) {
        let handoff = &*self.delivery.sink;
        let HandoffCounts { handed, datagrams, too_large, dropped } = handoff.counts();
        let participants = self.participants as f64;
        m.gauge("participants", "Hosts and groups that get each message.", 0, participants);
        m.counter("handed_messages_total", "Messages handed on to participants.", 0, handed);
        let help = "Datagrams with messages, once for all participants.";
        m.counter("handed_datagrams_total", help, 0, datagrams);
        let help = "Messages that fit no packet, and were not handed on.";
        m.counter("unhanded_messages_total", help, 0, too_large);
        let help = "Copies dropped because the network took no more.";
        m.counter("dropped_datagrams_total", help, 0, dropped);
        let help = "Copies that the network refused for good.";
        m.counter("failed_copies_total", help, 0, handoff.send_failures().0);
        let Summary { p50, p99, max, .. } = handoff.handed_us();
        let help = "Median of the time from release to the departure of the last copy.";
        m.gauge("handed_us_p50", help, 0, p50);
        let help = "99th percentile of the time from release to the departure of the last copy.";
        m.gauge("handed_us_p99", help, 0, p99);
        let help = "Longest time from release to the departure of the last copy.";
        m.gauge("handed_us_max", help, 0, max);
        let requests = self.request_counts();
        m.counter("rerequests_total", "Datagrams at the re-request server.", 0, requests.requests);
        m.counter("rerequest_answers_total", "Requests answered.", 0, requests.answers);
        m.counter("rerequested_messages_total", "Messages sent again.", 0, requests.messages);
        for ((name, help), count) in REFUSED.into_iter().zip(requests.refused) {
            m.counter(name, help, 0, count);
        }
    }

    /// Why participants are not served, if they are not.
    fn explain_failures(&mut self) -> Option<String> {
        let (failed, errno) = self.delivery.sink.send_failures();
        let fresh = failed - core::mem::replace(&mut self.failed, failed);
        let why = std::io::Error::from_raw_os_error(errno);
        (fresh > 0).then(|| format!("{fresh} copies to participants were refused: {why}"))
    }
}

impl Part<Receiver> for GatewayRole<'_> {
    fn on(&mut self, machine: &Receiver, now: Timestamp, event: ReceiverEvent) {
        let stream = machine.stream();
        match &event {
            ReceiverEvent::Placed(place) => {
                if let Some(run) = machine.epoch() {
                    self.delivery.sink.begin(stream, run, place.start_message);
                }
            }
            ReceiverEvent::Finished => self.delivery.sink.finish(stream, now),
            _ => {}
        }
        self.delivery.on(stream, event);
    }

    fn set_clock(&mut self, clock: Clock) {
        self.delivery.clock = clock;
    }

    fn turned(&mut self, process: &mut RoleProcess, _: &mut [Receiver]) {
        self.delivery.sink.retry();
        self.delivery.sink.keep_alive(MonotonicClock::now());
        self.delivery.records.drain(..).for_each(|record| process.note(record));
        self.delivery.sink.records.drain(..).for_each(|record| process.note(record));
    }

    fn housekeep(&mut self, process: &mut RoleProcess, machines: &[Receiver]) {
        let all: Vec<ReceiverStatus> = machines.iter().map(Receiver::status).collect();
        self.duplicates = note_duplicates(process, &all, self.duplicates);
        let refused = process.base.refused();
        let mut page = receiver::metrics((self.name, "gateway"), &all, refused);
        self.put_metrics(&mut page);
        let why = receiver::explain_illness(machines).map(str::to_owned);
        let why = why.or_else(|| self.explain_failures());
        let status = GatewayStatus { trees: all, gateway: self.summary() };
        process.publish(status, why, move |_| page);
    }

    fn ended(&mut self, _: &mut [Receiver]) -> Option<Ended> {
        if let Some(error) = self.delivery.failed.take() {
            return Some(Err(error));
        }
        if self.delivery.finished.len() < self.trees as usize {
            return None;
        }
        let (now, answers) = (MonotonicClock::now(), self.request_counts().answers);
        let (leave_at, most) =
            self.leave_at.get_or_insert((now + self.linger, now + self.linger * LINGERS_MAX));
        if answers > core::mem::replace(&mut self.answers, answers) {
            *leave_at = (now + self.linger).min(*most);
        }
        (*leave_at <= now).then_some(Ok("the stream ended"))
    }

    fn until(&self) -> Option<Timestamp> {
        let leave_at = self.leave_at.map(|(leave_at, _)| leave_at);
        leave_at.into_iter().chain(self.delivery.sink.until()).min()
    }
}

/// The state of a gateway on its page.
#[derive(Serialize)]
struct GatewayStatus {
    trees: Vec<ReceiverStatus>,
    gateway: HandoffSummary,
}

/// Runs a gateway until the feed has ended and participants had time to ask for what they miss, a
/// signal comes, or the root is lost. After a signal no end is announced: the feed goes on without
/// this gateway.
///
/// # Errors
/// [`RoleError`].
pub fn run(
    settings: &Settings,
    node: &MulticastNode,
    gateway: &GatewayNode,
    table: &GatewaySettings,
) -> Result<GatewaySummary, RoleError> {
    let keys = read_participant_keys(gateway, settings.key()?.as_ref())?;
    let mut process = RoleProcess::start(settings, node)?;
    let trees = settings.course.trees;
    let keyed = process.base.key.is_some();
    let mut machines = receiver::start_machines(settings, node, &process)?;
    let rings: Rings = (0..trees).map(|_| Mutex::new(None)).collect();
    let rings = gateway.rerequest.map(|_| rings);
    let port = open_port(node, gateway, table.protocol, keyed)?;
    let mut handoff = Handoff::new(table, gateway, port, trees, rings.clone())?;
    if table.protocol == HandoffProtocol::Sealed {
        let sealer = |key| Ok::<_, RoleError>(PlainSealer::new(key, random()?));
        handoff.seal_for(gateway, keys.iter().map(sealer).collect::<Result<_, _>>()?)?;
    }
    let server = gateway.rerequest.zip(rings).map(|(address, rings)| {
        let desk = RequestDesk::new(table, gateway, Arc::clone(&rings));
        RerequestServer::start(address, keyed, desk)
    });
    let server = server.transpose()?;
    say_participants(node, gateway, table, server.as_ref());
    let delivery = Delivery::new(&mut handoff, settings, node, process.base.clock());
    let mut role = GatewayRole {
        name: &node.name,
        delivery,
        server,
        protocol: table.protocol.to_string(),
        participants: gateway.participants.len(),
        trees,
        duplicates: 0,
        linger: table.linger,
        leave_at: None,
        answers: 0,
        failed: 0,
    };
    let ended = process.play(&mut machines, &mut role)?;
    let all: Vec<ReceiverStatus> = machines.iter().map(Receiver::status).collect();
    note_duplicates(&mut process, &all, role.duplicates);
    let receiver = receiver::summarise(node, &process, &role.delivery.hash, all, &ended);
    let summary = GatewaySummary { receiver, gateway: role.summary() };
    say_handed(&summary);
    process.end(settings, &summary)?;
    ended.map(|_| summary)
}

fn say_participants(
    node: &MulticastNode,
    gateway: &GatewayNode,
    table: &GatewaySettings,
    server: Option<&RerequestServer>,
) {
    let to: Vec<String> = gateway.participants.iter().map(ToString::to_string).collect();
    let requests = server.map(|server| format!(", requests at {}", server.address()));
    tracing::info!(
        "{}: hands on to {} as {}{}",
        node.name,
        to.join(", "),
        table.protocol,
        requests.unwrap_or_default()
    );
}

fn say_handed(summary: &GatewaySummary) {
    let (name, gateway) = (&summary.receiver.name, &summary.gateway);
    tracing::info!(
        "{name}: {} messages handed on to {} participants, {} sent again; {:.1} us from release \
         to departure at the median, {:.1} us at the 99th percentile",
        gateway.counts.handed,
        gateway.participants,
        gateway.rerequested,
        gateway.handed_us.p50,
        gateway.handed_us.p99
    );
    let HandoffCounts { too_large, dropped, .. } = gateway.counts;
    if too_large + dropped + gateway.failed > 0 {
        tracing::warn!(
            "{name}: {too_large} messages fit no packet (gateway.packet_bytes), {dropped} \
             datagrams found no room, {} copies were refused by the network",
            gateway.failed
        );
    }
}
