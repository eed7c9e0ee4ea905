//! Refusals that all ports share: groups that are not installed, addresses beyond loopback without
//! a key, and datagrams that are too long.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use evenfall_core::{Destination, GroupId, Transmit};
use evenfall_host::Error;

use crate::{Options, Refusal};

/// The groups of the machines on one port, in the form `G` that the port sends with.
pub(crate) struct Groups<G>(BTreeMap<(usize, GroupId), Arc<G>>);

/// The receivers of a transmit, fixed when the transmit was queued.
pub(crate) enum Members<G> {
    One(SocketAddr),
    Group(Arc<G>),
}

impl<G> Groups<G> {
    pub(crate) fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Adopts a group, or forgets a group without members.
    pub(crate) fn install(
        &mut self,
        name: (usize, GroupId),
        members: &[SocketAddr],
        options: &Options,
        form: impl FnOnce(&[SocketAddr]) -> G,
    ) -> Result<(), Error> {
        if members.is_empty() {
            self.0.remove(&name);
            return Ok(());
        }
        if let Some(outside) = members.iter().find(|member| !is_open(**member, options)) {
            return Err(Error::Unkeyed { address: *outside, verb: "send to" });
        }
        self.0.insert(name, Arc::new(form(members)));
        Ok(())
    }

    /// An installed group.
    #[cfg(feature = "ebpf")]
    pub(crate) fn find_group(&self, owner: usize, id: GroupId) -> Option<&Arc<G>> {
        self.0.get(&(owner, id))
    }

    /// The receivers of a transmit of this machine.
    pub(crate) fn resolve(
        &self,
        owner: usize,
        transmit: &Transmit,
        options: &Options,
    ) -> Result<Members<G>, Refusal> {
        if transmit.len() > options.kind.datagram_bytes_max() {
            return Err(Refusal::TooLong);
        }
        match transmit.to {
            Destination::Group(id) => self
                .0
                .get(&(owner, id))
                .map(|group| Members::Group(Arc::clone(group)))
                .ok_or(Refusal::UnknownGroup(id)),
            Destination::One(address) if is_open(address, options) => Ok(Members::One(address)),
            Destination::One(address) => Err(Refusal::Unkeyed(address)),
        }
    }
}

/// Whether datagrams may be sent to this address, or received at it.
pub(crate) fn is_open(address: SocketAddr, options: &Options) -> bool {
    // A multicast group is as open as its interface.
    let group = address.ip().is_multicast()
        && options.multicast_interface.is_some_and(|interface| interface.is_loopback());
    options.keyed || address.ip().is_loopback() || group
}
