//! A place in the tree over several datagrams.
//!
//! A proxy with a thousand children has a place of eleven kilobytes. As one datagram the place
//! would travel in fragments, and the loss of one fragment would lose the whole place. In this
//! module every datagram is a place of its own with a part of the peers. A node takes its place
//! when all parts have arrived, in any order and after any number of retries.

use bytes::{BufMut, Bytes, BytesMut};
use evenfall_core::{Malformed, Reader};

use crate::control::{Peer, Place};

/// Parts of the longest place: 65,536 peers, six to a datagram of 256 bytes.
const PARTS_MAX: u16 = 11_000;
/// Bytes for the number of the part and the number of parts.
const PART_BYTES: usize = 4;
/// Bytes of a peer with an IPv6 address.
const PEER_BYTES_MAX: usize = 23;

/// Bodies of the datagrams that bring a place. Each body has at most `bytes_max` bytes.
pub(crate) fn split(place: &Place, bytes_max: usize) -> Vec<Bytes> {
    let empty = Place {
        sources: Vec::new(),
        children: Vec::new(),
        nieces: Vec::new(),
        recorders: Vec::new(),
        ..*place
    };
    let room = bytes_max.saturating_sub(PART_BYTES + empty.encode().len());
    let per_part = (room / PEER_BYTES_MAX).max(1);
    let mut parts = vec![empty.clone()];
    let mut left = per_part;
    type List = fn(&mut Place) -> &mut Vec<Peer>;
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
    let body = |(number, part): (usize, Place)| {
        let mut out = BytesMut::with_capacity(bytes_max.min(2_048));
        out.put_u16_le(number as u16);
        out.put_u16_le(count);
        out.extend_from_slice(&part.encode());
        out.freeze()
    };
    parts.into_iter().enumerate().map(body).collect()
}

/// The parts of one place that have arrived.
#[derive(Clone, Debug, Default)]
pub(crate) struct Assembly {
    /// Epoch of the root's run, and number of the view.
    of: (u32, u32),
    parts: Vec<Option<Place>>,
}

impl Assembly {
    /// Takes a part in. Returns the place when no part is missing any more.
    pub(crate) fn take(&mut self, epoch: u32, body: &[u8]) -> Result<Option<Place>, Malformed> {
        let mut r = Reader::new(body);
        let (number, count) = (usize::from(r.u16()?), r.u16()?);
        if count > PARTS_MAX || number >= usize::from(count) {
            return Err(r.malformed("a part of a place that does not exist"));
        }
        let part = Place::decode(&body[PART_BYTES..])?;
        let of = (epoch, part.view);
        if self.of != of || self.parts.len() != usize::from(count) {
            if of < self.of {
                return Ok(None);
            }
            self.of = of;
            self.parts = vec![None; usize::from(count)];
        }
        self.parts[number] = Some(part);
        if self.parts.iter().any(Option::is_none) {
            return Ok(None);
        }
        let mut parts = core::mem::take(&mut self.parts).into_iter().flatten();
        let mut place = parts.next().expect("there is at least one part");
        for part in parts {
            place.sources.extend(part.sources);
            place.children.extend(part.children);
            place.nieces.extend(part.nieces);
            place.recorders.extend(part.recorders);
        }
        Ok(Some(place))
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

    fn place(children: u32) -> Place {
        Place {
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
        for (children, bytes_max) in [(0, 192), (2, 192), (1_000, 192), (1_000, 1_368)] {
            let place = place(children);
            let mut bodies = split(&place, bytes_max);
            assert!(bodies.iter().all(|body| body.len() <= bytes_max));
            let mut prng = Prng::new(u64::from(children));
            (1..bodies.len()).for_each(|n| bodies.swap(n, prng.below(n as u64 + 1) as usize));
            let mut assembly = Assembly::default();
            let (last, others) = bodies.split_last().unwrap();
            // The root repeats all parts when it hears no acknowledgement.
            for body in others.iter().chain(others) {
                assert_eq!(assembly.take(1, body), Ok(None));
            }
            assert_eq!(assembly.take(1, last), Ok(Some(place)));
        }
    }

    #[test]
    fn a_newer_view_replaces_a_place_that_is_not_complete() {
        let (old, new) = (place(100), Place { view: 4, ..place(1) });
        let mut assembly = Assembly::default();
        let old = split(&old, 400);
        assert_eq!(assembly.take(1, &old[0]), Ok(None));
        assert_eq!(assembly.take(1, &split(&new, 1_368)[0]), Ok(Some(new)));
        assert!(old[1..].iter().all(|body| assembly.take(1, body) == Ok(None)));
        assert!(assembly.take(1, &[2, 0, 2, 0]).is_err() && assembly.take(1, &[0]).is_err());
    }
}
