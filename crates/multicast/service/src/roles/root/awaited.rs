//! The nodes for which the first trees wait. The wait may be long, so the root prints their names.

use evenfall_multicast_machine::config::MembershipConfig;
use evenfall_multicast_machine::{Guest, GuestList, Role};

use crate::settings::{MulticastNode, RoleName, Settings};
use evenfall_multicast_sessions::ReplicatedRoot;

/// Names that are printed for each role.
const NAMES_MAX: usize = 3;

/// The nodes for which a tree waits: the numbers in the settings, or else all nodes of the
/// settings.
pub(super) fn expected(settings: &Settings, stream: u32) -> MembershipConfig {
    let mut expected = settings.multicast.membership;
    if expected.expect_receivers == 0 {
        expected.expect_receivers = settings.count_leaves() as u32;
    }
    if expected.expect_proxies == 0 && !settings.multicast.mode.direct() {
        let proxies = settings.nodes.iter().filter(|node| is_proxy_of(node, stream));
        expected.expect_proxies = proxies.count() as u32;
    }
    expected
}

fn is_proxy_of(node: &MulticastNode, stream: u32) -> bool {
    node.role == RoleName::Proxy && node.tree == stream
}

/// The nodes that the root of a tree lets in. Each node of the settings may join in its own role.
/// Without a key it may join only from its own address, since nothing else tells it from a
/// stranger. With a key, a node with the key may join although the root's settings do not name it.
/// With node keys, a node that the settings do not name any more may not join, so that a node can
/// be shut out though it has its key.
pub(super) fn guests(
    settings: &Settings,
    stream: u32,
    is_keyed: bool,
    has_node_keys: bool,
) -> GuestList {
    let guest = |node: &MulticastNode| {
        let role = match node.role {
            RoleName::Receiver | RoleName::Gateway => Some(Role::Receiver),
            RoleName::Recorder => Some(Role::Recorder),
            RoleName::Proxy => is_proxy_of(node, stream).then_some(Role::Proxy),
            RoleName::Root | RoleName::Standby | RoleName::Author | RoleName::Other => None,
        };
        let is_fixed = !is_keyed && node.address.port() != 0;
        (node.id, Guest { role, addr: is_fixed.then_some(node.address) })
    };
    let named = settings.nodes.iter().map(guest).collect();
    GuestList { named, only_named: !is_keyed || has_node_keys, ..GuestList::default() }
}

/// The nodes that have not joined yet, in words; `None` when all have joined.
pub(super) fn missing(settings: &Settings, roots: &[ReplicatedRoot]) -> Option<String> {
    let mut receivers = Awaited::default();
    let mut proxies = Awaited::default();
    for (stream, root) in roots.iter().map(ReplicatedRoot::root).enumerate() {
        let (expected, there) = (expected(settings, stream as u32), root.status());
        // All trees have the same receivers. Each tree has its own proxies.
        receivers.expected = expected.expect_receivers.max(1) as usize;
        receivers.missing =
            receivers.missing.max(receivers.expected.saturating_sub(there.receivers));
        let wanted = expected.expect_proxies as usize;
        proxies.expected += wanted;
        proxies.missing += wanted.saturating_sub(there.proxies);
        for node in settings.nodes.iter().filter(|node| !root.has_member(node.id)) {
            match node.role {
                RoleName::Receiver | RoleName::Gateway | RoleName::Recorder => {
                    receivers.name(&node.name)
                }
                _ if is_proxy_of(node, stream as u32) => proxies.name(&node.name),
                _ => {}
            }
        }
    }
    let parts = [receivers.words("receiver", "receivers"), proxies.words("proxy", "proxies")];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| format!("waiting for {}", parts.join(", ")))
}

/// The nodes of one role.
#[derive(Default)]
struct Awaited<'a> {
    expected: usize,
    missing: usize,
    names: Vec<&'a str>,
}

impl<'a> Awaited<'a> {
    fn name(&mut self, name: &'a str) {
        if !self.names.contains(&name) {
            self.names.push(name);
        }
    }

    fn words(&self, one: &str, many: &str) -> Option<String> {
        if self.missing == 0 {
            return None;
        }
        let (missing, expected) = (self.missing, self.expected);
        let noun = if expected == 1 { one } else { many };
        let more = if self.names.len() > NAMES_MAX { ", ..." } else { "" };
        let names = self.names[..self.names.len().min(NAMES_MAX)].join(", ");
        let names = if names.is_empty() { names } else { format!(" ({names}{more})") };
        Some(format!("{missing} of {expected} {noun}{names}"))
    }
}
