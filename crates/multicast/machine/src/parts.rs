//! A place in the tree over several datagrams.
//!
//! A proxy with a thousand children has a place of eleven kilobytes. As one datagram the place
//! would travel in fragments, and the loss of one fragment would lose the whole place. In this
//! module every datagram is a place of its own with a part of the peers. A node takes its place
//! when all parts have arrived, in any order and after any number of retries.
//!
//! With node keys, each part ends with the keys for the senders and the recorders in it, and the
//! first part also with the keys of the run.

use bytes::{BufMut, Bytes, BytesMut};
use evenfall_core::{Malformed, NodeId, Reader};

use crate::control::{Peer, TreePosition};
use crate::ends::{GIVEN_BYTES, GivenKeys};
use crate::seal::RunKey;

/// Parts of the longest place: 65,536 peers, six to a datagram of 256 bytes.
const PARTS_MAX: u16 = 11_000;
/// Bytes for the number of the part and the number of parts.
const PART_BYTES: usize = 4;
/// Bytes of a peer with an IPv6 address.
const PEER_BYTES_MAX: usize = 23;

/// The keys that come with a place.
#[derive(Clone, Copy)]
pub(crate) struct PlaceKeys<'a> {
    /// Makes the key by which the node of the place speaks to a node above it.
    pub(crate) above: &'a dyn Fn(NodeId) -> [u8; GIVEN_BYTES],
    /// The keys of the run, the key in use first.
    pub(crate) run: &'a [RunKey],
}

/// Bytes of the keys of a run, two at most.
const RUN_KEYS_BYTES_MAX: usize = 1 + 2 * 33;

/// Bodies of the datagrams that bring a place. Each body has at most `bytes_max` bytes.
pub(crate) fn split(
    place: &TreePosition,
    bytes_max: usize,
    keys: Option<PlaceKeys<'_>>,
) -> Vec<Bytes> {
    let empty = TreePosition {
        sources: Vec::new(),
        children: Vec::new(),
        nieces: Vec::new(),
        recorders: Vec::new(),
        ..*place
    };
    let room = bytes_max.saturating_sub(PART_BYTES + empty.encode().len());
    let given_bytes = if keys.is_some() { GIVEN_BYTES } else { 0 };
    let per_part = (room / (PEER_BYTES_MAX + given_bytes)).max(1);
    let mut parts = vec![empty.clone()];
    // The first part has the keys of the run.
    let mut left = match keys {
        Some(_) => room.saturating_sub(RUN_KEYS_BYTES_MAX) / (PEER_BYTES_MAX + given_bytes),
        None => per_part,
    };
    type List = fn(&mut TreePosition) -> &mut Vec<Peer>;
    let lists: [(&[Peer], List); 4] = [
        (&place.sources, |part| &mut part.sources),
        (&place.children, |part| &mut part.children),
        (&place.nieces, |part| &mut part.nieces),
        (&place.recorders, |part| &mut part.recorders),
    ];
    for (peers, list) in lists {
        for peer in peers {
            if left == 0 {
                parts.push(empty.clone());
                left = per_part;
            }
            left -= 1;
            list(parts.last_mut().expect("there is a first part")).push(*peer);
        }
    }
    let count = parts.len() as u16;
    let body = |(number, part): (usize, TreePosition)| {
        let mut out = BytesMut::with_capacity(bytes_max.min(2_048));
        out.put_u16_le(number as u16);
        out.put_u16_le(count);
        out.extend_from_slice(&part.encode());
        if let Some(keys) = keys {
            nodes_above(&part).for_each(|peer| out.extend_from_slice(&(keys.above)(peer.id)));
        }
        if let Some(keys) = keys.filter(|_| number == 0) {
            out.put_u8(keys.run.len() as u8);
            for (id, secret) in keys.run {
                out.put_u8(*id);
                out.extend_from_slice(secret);
            }
        }
        out.freeze()
    };
    parts.into_iter().enumerate().map(body).collect()
}

/// The nodes of a place to which its node speaks as a lower node.
fn nodes_above(place: &TreePosition) -> impl Iterator<Item = &Peer> {
    place.sources.iter().chain(&place.recorders)
}

/// A place with its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AssignedPlace {
    pub(crate) place: TreePosition,
    /// The keys for the nodes above.
    pub(crate) given: GivenKeys,
    /// The keys of the run, the key in use first.
    pub(crate) run_keys: Vec<RunKey>,
}

/// The parts of one place that have arrived.
#[derive(Clone, Debug, Default)]
pub(crate) struct Assembly {
    /// Epoch of the root's run, and number of the view.
    of: (u32, u32),
    parts: Vec<Option<AssignedPlace>>,
}

fn run_keys(r: &mut Reader<'_>) -> Result<Vec<RunKey>, Malformed> {
    let count = r.u8()?;
    if !(1..=2).contains(&count) {
        return Err(r.malformed("a run has one key or two"));
    }
    (0..count).map(|_| Ok((r.u8()?, r.array()?))).collect()
}

impl Assembly {
    /// Takes a part in, which has keys when `has_keys`. Returns the place and its keys when no part
    /// is missing any more.
    pub(crate) fn take(
        &mut self,
        epoch: u32,
        body: &[u8],
        has_keys: bool,
    ) -> Result<Option<AssignedPlace>, Malformed> {
        let mut r = Reader::new(body);
        let (number, count) = (usize::from(r.u16()?), r.u16()?);
        if count > PARTS_MAX || number >= usize::from(count) {
            return Err(r.malformed("a part of a place that does not exist"));
        }
        let place = TreePosition::read(&mut r)?;
        let mut given = GivenKeys::new();
        for peer in nodes_above(&place).filter(|_| has_keys) {
            given.insert(peer.id, r.array()?);
        }
        let run_keys = if has_keys && number == 0 { run_keys(&mut r)? } else { Vec::new() };
        r.finish()?;
        let of = (epoch, place.view);
        if self.of != of || self.parts.len() != usize::from(count) {
            if of < self.of {
                return Ok(None);
            }
            self.of = of;
            self.parts = vec![None; usize::from(count)];
        }
        self.parts[number] = Some(AssignedPlace { place, given, run_keys });
        if self.parts.iter().any(Option::is_none) {
            return Ok(None);
        }
        let mut parts = core::mem::take(&mut self.parts).into_iter().flatten();
        let first = parts.next().expect("there is at least one part");
        let AssignedPlace { mut place, mut given, run_keys } = first;
        for AssignedPlace { place: part, given: keys, .. } in parts {
            given.extend(keys);
            place.sources.extend(part.sources);
            place.children.extend(part.children);
            place.nieces.extend(part.nieces);
            place.recorders.extend(part.recorders);
        }
        Ok(Some(AssignedPlace { place, given, run_keys }))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv6Addr, SocketAddr};

    use evenfall_core::{NodeId, Prng};

    use super::*;

    fn peers(count: u32) -> Vec<Peer> {
        let addr = SocketAddr::from((Ipv6Addr::LOCALHOST, 9));
        (0..count).map(|n| Peer { id: NodeId(n), addr }).collect()
    }

    fn place(children: u32) -> TreePosition {
        TreePosition {
            view: 3,
            level: 1,
            start: 10,
            start_message: 40,
            sources: peers(3),
            children: peers(children),
            nieces: peers(children),
            recorders: peers(1),
        }
    }

    #[test]
    fn a_place_of_a_thousand_children_comes_in_datagrams_that_fit_in_any_order() {
        let run = [(3, [1; 32]), (4, [2; 32])];
        let key = PlaceKeys { above: &|id| [id.0 as u8; GIVEN_BYTES], run: &run };
        let cases = [(0, 192), (2, 192), (1_000, 192), (1_000, 1_368)];
        let keyed = cases.map(|case| (case, Some(key)));
        for ((children, bytes_max), keys) in cases.map(|case| (case, None)).into_iter().chain(keyed)
        {
            let place = place(children);
            let given = match keys {
                Some(key) => {
                    nodes_above(&place).map(|peer| (peer.id, (key.above)(peer.id))).collect()
                }
                None => GivenKeys::new(),
            };
            let run_keys = keys.map_or(Vec::new(), |keys| keys.run.to_vec());
            let whole = AssignedPlace { place: place.clone(), given, run_keys };
            let mut bodies = split(&place, bytes_max, keys);
            assert!(bodies.iter().all(|body| body.len() <= bytes_max));
            let mut prng = Prng::new(u64::from(children));
            (1..bodies.len()).for_each(|n| bodies.swap(n, prng.below(n as u64 + 1) as usize));
            let mut assembly = Assembly::default();
            let (last, others) = bodies.split_last().unwrap();
            // The root repeats all parts when it hears no acknowledgement.
            for body in others.iter().chain(others) {
                assert_eq!(assembly.take(1, body, keys.is_some()), Ok(None));
            }
            assert_eq!(assembly.take(1, last, keys.is_some()), Ok(Some(whole)));
        }
    }

    #[test]
    fn a_newer_view_replaces_a_place_that_is_not_complete() {
        let (old, new) = (place(100), TreePosition { view: 4, ..place(1) });
        let mut assembly = Assembly::default();
        let old = split(&old, 400, None);
        assert_eq!(assembly.take(1, &old[0], false), Ok(None));
        assert_eq!(
            assembly.take(1, &split(&new, 1_368, None)[0], false),
            Ok(Some(AssignedPlace { place: new, given: GivenKeys::new(), run_keys: Vec::new() }))
        );
        assert!(old[1..].iter().all(|body| assembly.take(1, body, false) == Ok(None)));
        assert!(
            assembly.take(1, &[2, 0, 2, 0], false).is_err()
                && assembly.take(1, &[0], false).is_err()
        );
    }
}
