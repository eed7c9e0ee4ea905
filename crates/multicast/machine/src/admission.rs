//! The check of nodes that want to join. A join takes effect only when its sender has shown that it
//! receives the datagrams sent to its address:
//!
//! ```text
//!  node  --Join, cookie 0---------->  root      keeps nothing
//!  node  <-Challenge, the cookie----  root      not longer than the join
//!  node  --Join, the cookie-------->  root      takes the node in
//! ```
//!
//! A cookie is a keyed hash of the address, the name and the life of the node. The secret of the
//! hash changes every [`COOKIE_PERIOD`]. The root therefore remembers nothing of senders that never
//! answer, and a recorded join has no effect from another address.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use evenfall_core::{MacKey, Malformed, NodeId, Timestamp};

use crate::control::{Join, Role};
use crate::wire::SENDER_OFFSET;

/// How long the root gives out a cookie. It accepts the cookie for as long again. Thirty seconds
/// hold many round trips of the slowest network, and a recorded join is useless after a minute.
const COOKIE_PERIOD: Duration = Duration::from_secs(30);

/// One run of a root, with the values that a process draws at the start of the root.
#[derive(Clone, Copy)]
pub struct RootRun {
    /// A number that grows at every start of the root, such as the second of the start. It tells a
    /// later run from an earlier one.
    pub epoch: u32,
    /// A random number that no other run has. Bodies are sealed under a key of their run.
    pub id: u64,
    /// Random bytes that no other process knows: the secret of the cookies.
    secret: [u8; 16],
}

impl RootRun {
    /// A run with this epoch, and with bytes that the operating system drew at random.
    pub fn new(epoch: u32, random: [u8; 24]) -> Self {
        let (id, secret) = random.split_at(8);
        Self {
            epoch,
            id: u64::from_le_bytes(id.try_into().expect("eight bytes")),
            secret: secret.try_into().expect("sixteen bytes"),
        }
    }

    /// The run that voters agreed on, with the secret of this root.
    pub fn agreed(self, epoch: u32, id: u64) -> Self {
        Self { epoch, id, ..self }
    }
}

impl core::fmt::Debug for RootRun {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "RootRun({}, {:016x})", self.epoch, self.id)
    }
}

/// The limits of a node that the settings name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    /// The only role in which the node may join this tree; `None` for a node that has no place in
    /// the tree.
    pub role: Option<Role>,
    /// The only address from which the node may join; `None` when the settings leave its port open.
    pub addr: Option<SocketAddr>,
}

/// The nodes that a root lets in.
#[derive(Clone, Debug, Default)]
pub struct GuestList {
    /// Nodes that may join only in their stated role.
    pub named: BTreeMap<NodeId, Guest>,
    /// Whether nodes that the list does not name are refused.
    pub only_named: bool,
    /// Nodes that are shut out, whatever their keys are.
    pub shut_out: BTreeSet<NodeId>,
}

pub(crate) struct Admission {
    root: NodeId,
    guests: GuestList,
    cookies: MacKey,
}

impl Admission {
    pub(crate) fn new(root: NodeId, run: &RootRun) -> Self {
        let cookies = MacKey::new(0, &run.secret);
        Self { root, guests: GuestList::default(), cookies }
    }

    /// Takes over the list of another root.
    pub(crate) fn keep_guests(&mut self, other: &mut Self) {
        core::mem::swap(&mut self.guests, &mut other.guests);
    }

    pub(crate) fn shut_out(&mut self, id: NodeId) {
        self.guests.shut_out.insert(id);
    }

    pub(crate) fn set_guests(&mut self, guests: GuestList) {
        self.guests = guests;
    }

    /// Whether a node with this name may have this role, and write from this address.
    pub(crate) fn permit(
        &self,
        id: NodeId,
        from: SocketAddr,
        join: &Join,
    ) -> Result<(), Malformed> {
        let refused = |what| Err(Malformed { what, offset: SENDER_OFFSET });
        if id == self.root {
            return refused("a join under the root's own id");
        }
        if self.guests.shut_out.contains(&id) {
            return refused("a join of a node that is shut out");
        }
        match self.guests.named.get(&id) {
            None if self.guests.only_named => refused("a join of an id that no setting names"),
            Some(guest) if guest.role != Some(join.role) => {
                refused("a join in another role than the settings give this id")
            }
            Some(guest) if guest.addr.is_some_and(|addr| addr != from) => {
                refused("a join from another address than the settings give this id")
            }
            _ => Ok(()),
        }
    }

    /// The cookie that a join of this life must carry at present.
    pub(crate) fn cookie(&self, now: Timestamp, from: SocketAddr, id: NodeId, join: &Join) -> u64 {
        self.cookie_of(period(now), from, id, join)
    }

    /// Whether a join carries the cookie of this period or of the previous period.
    pub(crate) fn is_answered(
        &self,
        now: Timestamp,
        from: SocketAddr,
        id: NodeId,
        join: &Join,
    ) -> bool {
        let now = period(now);
        let mut periods = [now, now.wrapping_sub(1)].into_iter();
        periods.any(|period| self.cookie_of(period, from, id, join) == join.cookie)
    }

    fn cookie_of(&self, period: u64, from: SocketAddr, id: NodeId, join: &Join) -> u64 {
        let ip = match from.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        let (period, port) = (period.to_le_bytes(), from.port().to_le_bytes());
        let (id, life) = (id.0.to_le_bytes(), join.incarnation.to_le_bytes());
        self.cookies.mac(&[&period, &ip, &port, &id, &life])
    }
}

fn period(now: Timestamp) -> u64 {
    now.nanos() / evenfall_core::time::nanos(COOKIE_PERIOD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_serves_one_life_at_one_address_for_a_minute_at_most() {
        let admission = Admission::new(NodeId(0), &RootRun::new(1, [7; 24]));
        let (id, at) = (NodeId(4), SocketAddr::from(([127, 0, 0, 1], 9)));
        let now = Timestamp::from_nanos(95_000_000_000);
        let asked = Join { role: Role::Receiver, incarnation: 5, cookie: 0 };
        assert!(!admission.is_answered(now, at, id, &asked));
        let join = Join { cookie: admission.cookie(now, at, id, &asked), ..asked };
        assert!(admission.is_answered(now, at, id, &join));
        assert!(admission.is_answered(now + COOKIE_PERIOD, at, id, &join));
        assert!(!admission.is_answered(now + COOKIE_PERIOD * 2, at, id, &join));
        let elsewhere = SocketAddr::from(([127, 0, 0, 1], 10));
        assert!(!admission.is_answered(now, elsewhere, id, &join));
        assert!(!admission.is_answered(now, at, NodeId(5), &join));
        assert!(!admission.is_answered(now, at, id, &Join { incarnation: 6, ..join }));
        let restarted = Admission::new(NodeId(0), &RootRun::new(2, [8; 24]));
        assert!(!restarted.is_answered(now, at, id, &join));
    }
}
