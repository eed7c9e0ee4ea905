//! The structures that the process and the program share: `bpf/tables.h`, field by field.

/// Words of the head that rules may name.
pub(crate) const HEAD_WORDS: usize = 16;
/// Bytes of the head that rules may name.
pub(crate) const HEAD_BYTES: usize = HEAD_WORDS * 8;
/// Bytes at the end of a datagram that a code may cover.
pub(crate) const TAIL_BYTES: usize = 16;
/// Tables that the program looks at for each datagram. A proxy has one, and each costs a look.
pub(crate) const TABLES: usize = 4;
/// Addresses that may feed a table.
pub(crate) const SOURCES: usize = 16;
/// Routes of a table: the present view and the last one need two.
pub(crate) const ROUTES: usize = 4;
/// Groups that have a slot.
pub(crate) const GROUPS: usize = 64;
/// Members of a group. A proxy with more children is far from the fan-out of any plan.
pub(crate) const CHILDREN: usize = 32;
/// Slots of one window.
pub(crate) const WINDOW: usize = 65_536;
/// An offset that names nothing.
pub(crate) const NOWHERE: u32 = 0xffff;

/// The address of the port, in the order of the network, and its marks.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Setup {
    pub address: u32,
    pub port: u16,
    pub padding: u16,
    pub mark: u32,
    pub copy_mark: u32,
}

/// What is added to the local clock.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct ClockOffset {
    pub offset: u64,
    pub disproved: u64,
}

/// An address, in the order of the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Source {
    pub address: u32,
    pub port: u16,
    pub padding: u16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct RouteRule {
    pub at: u32,
    pub first: u32,
    pub last: u32,
    pub group: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct TableRules {
    pub matched: [u64; HEAD_WORDS],
    pub match_mask: [u64; HEAD_WORDS],
    pub patch: [u64; HEAD_WORDS],
    pub patch_mask: [u64; HEAD_WORDS],
    pub key: [u64; 2],
    pub sources: [Source; SOURCES],
    pub routes: [RouteRule; ROUTES],
    pub source_count: u32,
    pub route_count: u32,
    pub head_bytes: u32,
    pub window_at: u32,
    pub window_frames: u32,
    pub sync_at: u32,
    pub code_at: u32,
    pub code_words: u32,
    pub code_tail_bytes: u32,
    pub tos: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Child {
    pub interface: u32,
    pub from: u32,
    pub to: u32,
    pub from_port: u16,
    pub to_port: u16,
    pub from_mac: [u8; 6],
    pub to_mac: [u8; 6],
    pub padding: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Group {
    pub count: u32,
    pub mtu: u32,
    pub children: [Child; CHILDREN],
}

/// Words of `struct window`: the newest number plus one, then the counters.
pub(crate) const WINDOW_WORDS: usize = 5;
/// Words of `struct copies`.
pub(crate) const COPIES_WORDS: usize = 2;

// SAFETY: each type is `repr(C)`, holds integers only, and has no bytes between its fields. The
// test below compares the sizes with the sums of the sizes of the fields.
unsafe impl aya::Pod for Setup {}
// SAFETY: as above.
unsafe impl aya::Pod for ClockOffset {}
// SAFETY: as above.
unsafe impl aya::Pod for TableRules {}
// SAFETY: as above.
unsafe impl aya::Pod for Group {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_sizes_of_the_program() {
        // The sizes that the compiled program states for its maps are compared at every load.
        assert_eq!((size_of::<Setup>(), size_of::<ClockOffset>()), (16, 16));
        assert_eq!((size_of::<Source>(), size_of::<RouteRule>()), (8, 16));
        assert_eq!(size_of::<TableRules>(), 4 * 128 + 16 + SOURCES * 8 + ROUTES * 16 + 40);
        assert_eq!(size_of::<Child>(), 32);
        assert_eq!(size_of::<Group>(), 8 + CHILDREN * 32);
    }
}
