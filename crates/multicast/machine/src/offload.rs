//! The table by which a port forwards the stream of a proxy without asking the proxy.
//!
//! The table states in fixed offsets how `Relay` itself treats the first copy of a live frame:
//!
//! ```text
//!  offset 0..6    magic, version, kind Data, class Live, key id           must match
//!         8..24   stream, epoch, run id                                   must match
//!        24..32   frame number                                            at most once
//!        57       level                                                   becomes the proxy's
//!        59..64   spare, sender                                           zero, the proxy
//!        64..68   view: before the present place or not                   chooses the group
//!        68..72   earlier                                                 zero
//!        72..80   sent                                                    the time of sending
//!        80..88   authentication                                          the code of this hop
//! ```
//!
//! Flags, view and body stay as they came. In a run with a key, the code covers the header and the
//! tag of the body. The port checks the code of the copy that arrives and writes that of the copy
//! that leaves. Without a key the code is zero. A table is of one key, and the proxy installs
//! another table when another key of the run comes into use. Repair copies are of another class and
//! are handled by hand.

use std::net::SocketAddr;

use evenfall_core::forward::{
    DatagramField, Forward, Match, Patch, Route, WINDOW_FRAMES_MAX, Window,
};
use evenfall_core::{GroupId, SyncTime, TrafficClass};

use crate::control::TreePosition;
use crate::uplink::Uplink;
use crate::wire::{DatagramKind, HEADER_BYTES, Hop, MAC_OFFSET, OriginHeader, encode_header};

/// Offsets in the drawing that a table names.
const RUN_AT: u16 = 8;
const NUMBER_AT: u16 = 24;
const LEVEL_AT: u16 = 57;
const SPARE_AT: u16 = 59;
const VIEW_AT: u16 = 64;
const EARLIER_AT: u16 = 68;
const SENT_AT: u16 = 72;

/// The table of a proxy for its present and its last place, with the groups of both. `None` when
/// the proxy forwards nothing.
pub(crate) fn table(up: &Uplink, groups: (GroupId, GroupId)) -> Option<Forward> {
    let place = up.place.as_ref()?;
    if !feeds(place) && !up.previous.as_ref().is_some_and(feeds) {
        return None;
    }
    let (epoch, run_id) = up.out.run;
    let (kind, stream) = (DatagramKind::Data, up.who.stream);
    let key_id = up.out.seal.key_id();
    let control = OriginHeader::control(kind, stream, epoch, 0);
    let fixed = OriginHeader { class: TrafficClass::Live, run_id, kind, key_id, ..control };
    let hop = Hop { from: up.who.id, level: up.out.level, sent: SyncTime::ZERO, ..Hop::default() };
    let header = encode_header(&fixed, &hop);
    let field =
        |from: u16, to: u16| DatagramField::new(from, &header[usize::from(from)..usize::from(to)]);
    let mut routes = vec![Route { matches: Vec::new(), to: groups.0 }];
    if up.previous.is_some() && place.view > 1 {
        // A frame of an older view goes to the group of the last place, so that a change of view
        // loses no frame.
        let older = Match::Within { at: VIEW_AT, first: 1, last: place.view - 1 };
        routes.insert(0, Route { matches: vec![older], to: groups.1 });
    }
    Some(Forward {
        class: TrafficClass::Live,
        sources: sources(up),
        matches: vec![Match::Bytes(field(0, 6)), Match::Bytes(field(RUN_AT, NUMBER_AT))],
        routes,
        window: Window {
            at: NUMBER_AT,
            frames: up.config.repair.window_frames.min(WINDOW_FRAMES_MAX as usize) as u32,
        },
        head_bytes: HEADER_BYTES as u8,
        patches: vec![
            Patch::Bytes(field(LEVEL_AT, LEVEL_AT + 1)),
            Patch::Bytes(field(SPARE_AT, VIEW_AT)),
            Patch::Bytes(field(EARLIER_AT, SENT_AT)),
            Patch::SyncTime(SENT_AT),
            Patch::Bytes(field(MAC_OFFSET as u16, HEADER_BYTES as u16)),
        ],
        code: up.out.seal.hop_code(),
    })
}

fn feeds(place: &TreePosition) -> bool {
    !place.children.is_empty() || !place.nieces.is_empty()
}

/// The addresses that may send frames to this node, by the same rule as `Uplink::knows`.
fn sources(up: &Uplink) -> Vec<SocketAddr> {
    let places = [up.place.as_ref(), up.previous.as_ref()].into_iter().flatten();
    let mut sources: Vec<_> = places.flat_map(|place| &place.sources).map(|p| p.addr).collect();
    sources.push(up.who.root);
    sources.sort_unstable();
    sources.dedup();
    sources
}
