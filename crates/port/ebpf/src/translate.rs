//! The rules of a [`Forward`] in the form that the program reads.

use std::net::{SocketAddr, SocketAddrV4};

use evenfall_core::forward::{DatagramField, Match, Patch};
use evenfall_core::{Forward, GroupId};

use crate::layout::{
    HEAD_BYTES, HEAD_WORDS, NOWHERE, ROUTES, RouteRule, SOURCES, Source, TAIL_BYTES, TableRules,
};

/// Bytes at fixed places, and which of them count.
struct Template {
    bytes: [u8; HEAD_BYTES],
    mask: [u8; HEAD_BYTES],
}

impl Template {
    const EMPTY: Self = Self { bytes: [0; HEAD_BYTES], mask: [0; HEAD_BYTES] };

    /// Sets the bytes of a field. Returns whether no other bytes stood there before.
    fn set(&mut self, field: &DatagramField) -> bool {
        let at = usize::from(field.at());
        let mut is_free = true;
        for (at, byte) in (at..).zip(field.bytes()) {
            is_free &= self.mask[at] == 0 || self.bytes[at] == *byte;
            (self.bytes[at], self.mask[at]) = (*byte, 0xff);
        }
        is_free
    }

    fn words(bytes: &[u8; HEAD_BYTES]) -> [u64; HEAD_WORDS] {
        let mut words = [0; HEAD_WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        }
        words
    }
}

/// Translates the rules into the table that the kernel program reads. `group` finds the slot of a
/// group in the kernel.
///
/// # Errors
/// In words for people, which rule the program cannot carry out. The machine then goes on by hand.
pub(crate) fn table(
    rules: &Forward,
    tos: u8,
    group: impl FnMut(GroupId) -> Option<u32>,
) -> Result<TableRules, &'static str> {
    if !rules.is_sound() {
        return Err("the table breaks a limit of the contract");
    }
    let mut table = TableRules {
        head_bytes: rules.head_bytes.into(),
        window_at: rules.window.at.into(),
        window_frames: rules.window.frames,
        sync_at: NOWHERE,
        code_at: NOWHERE,
        tos: tos.into(),
        ..TableRules::default()
    };
    put_sources(rules, &mut table)?;
    put_matches(rules, &mut table)?;
    put_routes(rules, &mut table, group)?;
    put_patches(rules, &mut table)?;
    if let Some(code) = &rules.code {
        let is_whole = code.first() % 8 == 0 && code.last() % 8 == 0;
        if !is_whole || code.last() > TAIL_BYTES {
            return Err(
                "the code covers more than whole words of the head and 16 bytes of the end",
            );
        }
        table.code_at = code.at() as u32;
        table.code_words = (code.first() / 8) as u32;
        table.code_tail_bytes = code.last() as u32;
        let (low, high) = code.key().split_at(8);
        table.key = [low, high]
            .map(|half| u64::from_le_bytes(half.try_into().expect("half of sixteen bytes")));
    }
    Ok(table)
}

/// An address in the order of the network.
pub(crate) fn source_of(address: &SocketAddrV4) -> Source {
    let port = address.port().to_be();
    Source { address: u32::from(*address.ip()).to_be(), port, padding: 0 }
}

fn put_sources(rules: &Forward, table: &mut TableRules) -> Result<(), &'static str> {
    if rules.sources.len() > SOURCES {
        return Err("more than sixteen sources");
    }
    for (to, source) in table.sources.iter_mut().zip(&rules.sources) {
        let SocketAddr::V4(source) = source else { return Err("a source has an address of IPv6") };
        *to = source_of(source);
    }
    table.source_count = rules.sources.len() as u32;
    Ok(())
}

fn put_matches(rules: &Forward, table: &mut TableRules) -> Result<(), &'static str> {
    let mut template = Template::EMPTY;
    let head = usize::from(rules.head_bytes);
    for part in &rules.matches {
        let Match::Bytes(field) = part else { return Err("a match of the table is no bytes") };
        if usize::from(field.at()) + field.bytes().len() > head {
            return Err("a match lies behind the head");
        }
        if !template.set(field) {
            return Err("two matches of one byte contradict each other");
        }
    }
    table.matched = Template::words(&template.bytes);
    table.match_mask = Template::words(&template.mask);
    Ok(())
}

fn put_routes(
    rules: &Forward,
    table: &mut TableRules,
    mut group: impl FnMut(GroupId) -> Option<u32>,
) -> Result<(), &'static str> {
    if rules.routes.len() > ROUTES {
        return Err("more than four routes");
    }
    for (to, route) in table.routes.iter_mut().zip(&rules.routes) {
        let (at, first, last) = match route.matches[..] {
            [] => (NOWHERE, 0, 0),
            [Match::Within { at, first, last }] => (at.into(), first, last),
            _ => return Err("a route has another condition than one range"),
        };
        if at != NOWHERE && at as usize + 4 > usize::from(rules.head_bytes) {
            return Err("the condition of a route lies behind the head");
        }
        let group = group(route.to).ok_or("more groups than the program has slots")?;
        *to = RouteRule { at, first, last, group };
    }
    table.route_count = rules.routes.len() as u32;
    Ok(())
}

fn put_patches(rules: &Forward, table: &mut TableRules) -> Result<(), &'static str> {
    let mut template = Template::EMPTY;
    for patch in &rules.patches {
        match patch {
            // A later patch wins over an earlier one.
            Patch::Bytes(field) => drop(template.set(field)),
            Patch::SyncTime(at) if table.sync_at == NOWHERE => table.sync_at = (*at).into(),
            _ => return Err("more than one time is written"),
        }
    }
    let sync = table.sync_at as usize;
    if table.sync_at != NOWHERE && template.mask[sync..sync + 8].iter().any(|mask| *mask != 0) {
        return Err("a patch and the time are written to one place");
    }
    table.patch = Template::words(&template.bytes);
    table.patch_mask = Template::words(&template.mask);
    Ok(())
}

#[cfg(test)]
mod tests {
    use evenfall_core::TrafficClass;
    use evenfall_core::forward::{HopCode, Route, Window};

    use super::*;

    fn rules() -> Forward {
        let within = Match::Within { at: 4, first: 1, last: 9 };
        Forward {
            class: TrafficClass::Live,
            sources: vec![([10, 0, 0, 1], 9).into()],
            matches: vec![Match::Bytes(DatagramField::new(0, b"EF"))],
            routes: vec![
                Route { matches: vec![within], to: GroupId(7) },
                Route { matches: Vec::new(), to: GroupId(8) },
            ],
            window: Window { at: 8, frames: 64 },
            head_bytes: 40,
            patches: vec![Patch::Bytes(DatagramField::new(2, &[5, 6])), Patch::SyncTime(16)],
            code: Some(HopCode::new(&[1; 16], 32, 16, 32)),
        }
    }

    #[test]
    fn rules_become_masks_and_offsets() {
        let table = table(&rules(), 8, |id| Some(id.0)).unwrap();
        assert_eq!(table.matched[0].to_ne_bytes()[..2], *b"EF");
        assert_eq!(table.match_mask[0].to_ne_bytes(), [255, 255, 0, 0, 0, 0, 0, 0]);
        assert_eq!(table.patch_mask[0].to_ne_bytes(), [0, 0, 255, 255, 0, 0, 0, 0]);
        assert_eq!(table.routes[0], RouteRule { at: 4, first: 1, last: 9, group: 7 });
        assert_eq!(table.routes[1], RouteRule { at: NOWHERE, first: 0, last: 0, group: 8 });
        assert_eq!((table.sync_at, table.code_at, table.code_words), (16, 32, 4));
        assert_eq!((table.source_count, table.sources[0].port), (1, 9_u16.to_be()));
    }

    #[test]
    fn what_the_program_cannot_carry_out_is_named() {
        let refusal = |rules: Forward| table(&rules, 0, |id| Some(id.0)).unwrap_err();
        let v6 = "[::1]:9".parse().unwrap();
        assert!(refusal(Forward { sources: vec![v6], ..rules() }).contains("IPv6"));
        let code = Some(HopCode::new(&[1; 16], 30, 16, 32));
        assert!(refusal(Forward { code, ..rules() }).contains("whole words"));
        let behind = vec![Match::Bytes(DatagramField::new(39, b"EF"))];
        assert!(refusal(Forward { matches: behind, ..rules() }).contains("behind the head"));
        let twice = vec![Patch::SyncTime(16), Patch::SyncTime(24)];
        assert!(refusal(Forward { patches: twice, ..rules() }).contains("one time"));
        assert!(refusal(Forward { head_bytes: 200, ..rules() }).contains("limit"));
        assert!(table(&rules(), 0, |_| None).unwrap_err().contains("slots"));
    }
}
