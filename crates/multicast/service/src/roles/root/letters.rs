//! A root whose messages come from authors: publishers that are processes of their own.
//!
//! Such a root reads no feed. Each root has the messages of the frames on which the roots agreed. A
//! message that was not agreed on when the lead changed is forgotten, because its author sends the
//! message again to the root that leads.

use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use evenfall_core::{Format, MasterKey, SharedKey, Timestamp};
use evenfall_feed_formats::FeedMessage;
use evenfall_multicast_machine::Draft;
use evenfall_multicast_sessions::{ProducerIngress, ProducerList, SessionChange};

use super::{RoleError, Run};
use crate::settings::{MulticastNode, RoleName, Settings};
use evenfall_multicast_sessions::ReplicatedRoot;

/// The authors of the run.
pub(super) fn authors(settings: &Settings) -> Vec<&MulticastNode> {
    settings.nodes.iter().filter(|node| node.role == RoleName::Author).collect()
}

/// A root's side of the lines of authors. Without a key, the root takes letters of the authors of
/// the settings, each from its own address. With node keys, it takes letters of the same authors,
/// each under its own key. With a shared key alone, everyone who has the key may be an author.
pub(super) fn open_ingress(
    settings: &Settings,
    key: Option<SharedKey>,
    master: Option<MasterKey>,
    life: u64,
) -> ProducerIngress {
    let anywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let address = |node: &MulticastNode| if master.is_some() { anywhere } else { node.address };
    let named = authors(settings).into_iter().map(|node| (node.line(), address(node))).collect();
    let permitted = match key.is_some() && master.is_none() {
        true => ProducerList::default(),
        false => ProducerList { named, only_named: true },
    };
    let ingress = ProducerIngress::new(key, life).permitting(permitted);
    match master {
        Some(master) => ingress.with_node_keys(master),
        None => ingress,
    }
}

/// Says which authors every process of their host can pass for.
pub(super) fn warn_of_open_ports(settings: &Settings, root: &MulticastNode, is_keyed: bool) {
    let is_open = |node: &&&MulticastNode| node.address.port() == 0;
    for author in authors(settings).iter().filter(is_open).filter(|_| !is_keyed) {
        tracing::warn!(
            "{}: the settings give {} no port, and the run has no key: every process of {} can \
             publish under this name. Give the author a port, or the run a key",
            root.name,
            author.name,
            author.address.ip()
        );
    }
}

/// A message of the feed under its number.
fn message(index: u64, format: Format, bytes: Bytes) -> FeedMessage {
    FeedMessage { index, time_ns: 0, shard_key: 0, format, bytes }
}

impl Run<'_> {
    /// Whether the messages come from authors.
    pub(super) fn has_authors(&self) -> bool {
        self.settings.count(RoleName::Author) > 0
    }

    /// Takes messages until all authors have finished. `false` when a signal came, or another root
    /// leads now.
    pub(super) fn send_letters(&mut self) -> Result<bool, RoleError> {
        self.on_candidate(0, |candidate, _| candidate.admit(true))?;
        let names: Vec<u64> = authors(self.settings).iter().map(|node| node.line()).collect();
        let has_finished = |candidate: &ReplicatedRoot, name: &u64| {
            candidate.lines().is_some_and(|lines| lines.has_finished(*name))
        };
        while !names.iter().all(|name| has_finished(&self.roots[0], name)) {
            if !self.turn(None)? {
                self.on_candidate(0, |candidate, _| candidate.admit(false))?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// This root gave a message its number.
    pub(super) fn take_letter(&mut self, now: Timestamp, index: u64, format: Format, bytes: Bytes) {
        let scheduled = self.process.base.clock().sync(now);
        self.ledger.queue(0).give(&message(index, format, bytes), scheduled);
    }

    /// The roots agreed on a frame of another root.
    pub(super) fn keep(&mut self, draft: &Draft) {
        let (format, origin) = (draft.format(), draft.origin());
        for (index, bytes) in (draft.first_message()..).zip(draft.messages()) {
            self.ledger.queue(0).push(message(index, format, bytes), origin);
        }
    }

    /// The lead has changed.
    pub(super) fn turn_over(&mut self) {
        self.ledger.turned_over();
        if self.has_authors() {
            self.ledger.queue(0).clear();
        }
    }

    /// Notes when a process of an author has begun and when an author has finished.
    pub(super) fn note_line(&mut self, now: Timestamp, change: &SessionChange) {
        let authors = authors(self.settings);
        let named = |name: u64| authors.iter().find(|node| node.line() == name);
        let lines = self.roots[0].lines();
        let name = lines.map_or(0, |lines| lines.name(change.author()));
        let Some(node) = named(name) else { return };
        let before = lines.map_or(0, |lines| lines.base(change.author()));
        let (id, text) = (
            node.id,
            match change {
                SessionChange::Begin { .. } => {
                    format!("{} publishes, behind {before} messages", node.name)
                }
                SessionChange::End { places, .. } => {
                    format!("{} has finished with {} messages", node.name, before + places)
                }
            },
        );
        tracing::info!("{text}");
        self.ledger.event(now, "author", Some(id), text);
    }
}
