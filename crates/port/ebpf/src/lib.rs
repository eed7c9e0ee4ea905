//! The kernel forwards the stream of a proxy, and copies the datagrams of a root, beside a socket.
//!
//! A program at the hook where packets enter the host (TC ingress) carries out the rules of
//! [`evenfall_core::forward`]: it sends the first copy of a number on to all members of its group,
//! with another head, other addresses and another code of the hop. Every datagram then goes on to
//! the socket as it came. A mark on the packet tells the owner of the socket which datagrams were
//! sent on (`SO_RCVMARK`).
//!
//! ```text
//!                     +------------------------- kernel ---------------------------+
//!   network card ---> | program: source? match? code? first copy? -- all yes --+   | ---> children
//!                     |    |                                                   |   |
//!                     |    v unmarked: the process decides    marked <---------+   |
//!                     |  socket                                                    |
//!                     +----|--------------------------------------------------------+
//!                          v
//!                       process: rings, repair, reports; tables, groups and clock go the other way
//! ```
//!
//! A second program, at the hook where packets leave the host (TC egress), makes the copies of what
//! the process itself sends to a group. The process sends one datagram, to one member, with a mark
//! that names the group (`SO_MARK`). The program sends clones to the other members, each with the
//! addresses and the checksums of its way:
//!
//! ```text
//!   process: one datagram --> program: marked? group known? --> clones, unmarked --+--> children
//!            with a mark          |                                                |
//!                                 +--> the datagram itself, now the last copy -----+
//! ```
//!
//! [`KernelForwarder`] loads the programs, and translates installs. The process follows what the
//! kernel knows about the ways to the children (`netlink`): route, hardware address, length of
//! frames. A group with a child to which no way is known has no entry in the kernel, and the
//! process sends to it by hand until the way is known.
//!
//! | file | what it holds |
//! |---|---|
//! | `bpf/forward.bpf.c` | the programs; `make bpf` compiles them and compares |
//! | `bpf/tables.h`, `layout.rs` | the maps that programs and process share |
//! | `translate.rs` | a `Forward` as the program reads it |
//! | `netlink.rs` | interfaces, routes, neighbours |
//! | `rights.rs` | what a process needs |
//! | `program_tests.rs` | the first program beside `Forwarder`, packet by packet |
//!
//! Limits: four tables of 65,536 numbers, 64 groups of 32 members, IPv4 on Ethernet or loopback.
//! [`Installed::Ignored`] answers what goes beyond. A process that ends, in whatever way, takes
//! the program and its maps along, because descriptors alone hold them.

mod layout;
mod netlink;
#[cfg(test)]
mod program_tests;
mod rights;
mod shared;
mod translate;

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use aya::maps::{Array, HashMap, Map, MapData};
use aya::programs::tc::{SchedClassifierLinkId, TcAttachType};
use aya::programs::{ProgramError, SchedClassifier};
use aya::{Ebpf, EbpfLoader};
use evenfall_core::{
    ClockError, ClockReading, Forward, ForwardCounters, ForwardId, GroupId, Installed, Timestamp,
};
use evenfall_host::{Error, random};

use layout::{
    CHILDREN, COPIES_WORDS, Child, ClockOffset, GROUPS, Group, Setup, TABLES, TableRules, WINDOW,
    WINDOW_WORDS,
};
use netlink::Netlink;
pub use rights::lacks;
use shared::SharedWords;

/// The compiled program.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/forward.bpf.o");
/// Time between two looks at the counters and at the news of the kernel: a look at the news is a
/// call of the kernel.
const LOOK: Duration = Duration::from_millis(20);
/// Time after which a way that was not found is looked for again.
const RETRY: Duration = Duration::from_millis(200);
/// Attempts to load a program while signals end them.
const LOADS_MAX: usize = 10;
/// Bytes of the longest packet of IP.
const IP_BYTES_MAX: u32 = 65_535;
/// Bytes of the headers of IP and UDP.
const HEADER_BYTES: u32 = 28;
/// The high byte of all marks, by which people recognise them.
const MARK_BYTE: u32 = 0xef00_0000;
/// The bits of the mark of a departure that name its group.
const GROUP_BITS: u32 = GROUPS as u32 - 1;

/// A name in a process: the number of the machine, and its own name.
type Named<T> = (usize, T);

struct InstalledTable {
    slot: u32,
    rules: Arc<Forward>,
    /// What the program had counted at the last look: forwarded, duplicates, behind, refused.
    told: [u64; 4],
}

struct InstalledGroup {
    slot: u32,
    /// Empty when only a table names the group.
    members: Arc<[SocketAddr]>,
    /// Whether the program has the group.
    is_known: bool,
    /// How a datagram gets to the program that copies it; `None` where none gets there.
    way: Option<CopyWay>,
}

/// How the kernel is asked to copy a datagram to all members of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyWay {
    /// The mark that the datagram must have.
    pub mark: u32,
    /// The place among the members of the member to which the datagram must be addressed. Its way
    /// leads over the interface at which the program is.
    pub lead: usize,
    /// Bytes of the longest datagram, or of the longest segment of a buffer of datagrams, that
    /// every link takes.
    pub datagram_bytes_max: usize,
}

/// Copies of one child, since the program was loaded or the child got its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildCopies {
    /// The address of the child.
    pub child: SocketAddr,
    /// Copies that the kernel sent.
    pub sent: u64,
    /// Copies that the kernel did not take.
    pub failed: u64,
}

struct Maps {
    tables: HashMap<MapData, u32, TableRules>,
    groups: HashMap<MapData, u32, Group>,
    clocks: Array<MapData, ClockOffset>,
    numbers: SharedWords,
    windows: SharedWords,
    copied: SharedWords,
    turns: SharedWords,
}

/// Carries out forwarding installs in the kernel, for the socket at one address.
pub struct KernelForwarder {
    local: SocketAddrV4,
    tos: u8,
    mark: u32,
    copy_mark: u32,
    /// The interface whose packets pass the programs.
    interface: u32,
    maps: Maps,
    netlink: Netlink,
    tables: BTreeMap<Named<ForwardId>, InstalledTable>,
    groups: BTreeMap<Named<GroupId>, InstalledGroup>,
    look_at: Timestamp,
    retry_at: Option<Timestamp>,
    /// The last reason for which something is done by hand, so that each is said once.
    said: String,
    /// Where the programs of [`HOOKS`] are attached.
    links: Vec<SchedClassifierLinkId>,
    /// Holds the programs, and lets go of them when dropped.
    ebpf: Ebpf,
}

fn os(what: impl Into<String>, source: io::Error, advice: &'static str) -> Error {
    Error::Os { what: what.into(), source, advice }
}

fn refused(what: &str, error: &dyn std::error::Error) -> Error {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    os(what, io::Error::other(text), "io.port = \"udp\" needs none of this")
}

impl Maps {
    fn take(ebpf: &mut Ebpf) -> Result<Self, Error> {
        let mut take = |name: &str| {
            let missing = || os(format!("find the map {name}"), io::ErrorKind::NotFound.into(), "");
            ebpf.take_map(name).ok_or_else(missing)
        };
        let no = |error: aya::maps::MapError| refused("open a map of the program", &error);
        let words = |map: Map, words: usize| {
            let Map::Array(data) = map else {
                return Err(os("open a map", io::ErrorKind::InvalidData.into(), ""));
            };
            SharedWords::map_words(&data.fd(), words)
                .map_err(|error| os("share a map of the program", error, ""))
        };
        Ok(Self {
            tables: HashMap::try_from(take("tables")?).map_err(no)?,
            groups: HashMap::try_from(take("groups")?).map_err(no)?,
            clocks: Array::try_from(take("clocks")?).map_err(no)?,
            numbers: words(take("numbers")?, TABLES * WINDOW)?,
            windows: words(take("windows")?, TABLES * WINDOW_WORDS)?,
            copied: words(take("copied")?, GROUPS * CHILDREN * COPIES_WORDS)?,
            turns: words(take("turns")?, GROUPS)?,
        })
    }
}

/// The programs and their hooks. Without a table the first does nothing, and without a group the
/// second.
const HOOKS: [(&str, TcAttachType); 2] =
    [("evenfall_forward", TcAttachType::Ingress), ("evenfall_copy", TcAttachType::Egress)];

fn program_of<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut SchedClassifier, Error> {
    let missing = || os(format!("find the program {name}"), io::ErrorKind::NotFound.into(), "");
    let program = ebpf.program_mut(name).ok_or_else(missing)?;
    program.try_into().map_err(|error| refused(&format!("take the program {name}"), &error))
}

/// Writes the setup, and loads the programs.
fn load_programs(ebpf: &mut Ebpf, setup: Setup) -> Result<(), Error> {
    let missing = || os("find the map setups", io::ErrorKind::NotFound.into(), "");
    let setups = ebpf.map_mut("setups").ok_or_else(missing)?;
    Array::<_, Setup>::try_from(setups)
        .and_then(|mut setups| setups.set(0, setup, 0))
        .map_err(|error| refused("write to a map of the program", &error))?;
    for (name, _) in HOOKS {
        let no = |error| refused(&format!("load the program {name}"), &error);
        let program = program_of(ebpf, name)?;
        load_despite_signals(is_signal, || program.load()).map_err(no)?;
    }
    Ok(())
}

/// Whether a signal has ended the kernel's check of a program.
fn is_signal(error: &ProgramError) -> bool {
    let ProgramError::LoadError { io_error, .. } = error else { return false };
    io_error.kind() == io::ErrorKind::WouldBlock
}

/// Calls `load` again, a few times, while a signal ends it: the kernel gives up its check of a
/// program, which takes milliseconds, when a signal comes.
fn load_despite_signals<E>(
    is_signal: impl Fn(&E) -> bool,
    mut load: impl FnMut() -> Result<(), E>,
) -> Result<(), E> {
    for _ in 1..LOADS_MAX {
        match load() {
            Err(error) if is_signal(&error) => {}
            done => return done,
        }
    }
    load()
}

/// Attaches the loaded programs to an interface.
fn attach_programs(ebpf: &mut Ebpf, interface: &str) -> Result<Vec<SchedClassifierLinkId>, Error> {
    let mut links = Vec::new();
    for (name, hook) in HOOKS {
        let no = |error| refused(&format!("attach the program {name} to {interface}"), &error);
        links.push(program_of(ebpf, name)?.attach(interface, hook).map_err(no)?);
    }
    Ok(links)
}

/// The mark of arrivals that were sent on, and the mark of departures to be copied. They are
/// random, so that other programs of the host hardly use the same marks.
fn draw_marks() -> Result<(u32, u32), Error> {
    let mut seed = [0; 6];
    random::fill(&mut seed).map_err(|error| os("draw a mark", error, ""))?;
    let drawn = [[seed[0], seed[1], seed[2], 0], [seed[3], seed[4], seed[5], 0]];
    let [one, other] = drawn.map(|drawn| MARK_BYTE | u32::from_le_bytes(drawn));
    Ok((one, other & !GROUP_BITS))
}

impl KernelForwarder {
    /// Loads the program and attaches it to the interface that has this address. `tos` is the field
    /// "type of service" of the copies.
    ///
    /// # Errors
    /// When this process [`lacks`] a right, the address belongs to no interface of IPv4, or
    /// the kernel refuses the program. The message says which.
    pub fn attach(local: SocketAddr, tos: u8) -> Result<Self, Error> {
        let SocketAddr::V4(local) = local else {
            let advice = "give the node an address of IPv4";
            return Err(os(
                format!("forward at {local}"),
                io::ErrorKind::Unsupported.into(),
                advice,
            ));
        };
        if let Some(lacks) = lacks() {
            let what = format!("forward in the kernel without {lacks}");
            return Err(os(
                what,
                io::ErrorKind::PermissionDenied.into(),
                "grant it, or run as root",
            ));
        }
        let asked = |error| os("ask for the interfaces of this host", error, "");
        let mut netlink = Netlink::open().map_err(asked)?;
        let found = netlink.interface_of(*local.ip()).map_err(asked)?;
        let Some(interface) = found else {
            let what = format!("find the interface that has {}", local.ip());
            let advice = "a port of this kind needs the address of one interface";
            return Err(os(what, io::ErrorKind::AddrNotAvailable.into(), advice));
        };
        let link = netlink.link(interface).map_err(asked)?;
        if !link.is_ethernet {
            let what = format!("forward at {}, whose frames are not Ethernet's", link.name);
            return Err(os(what, io::ErrorKind::Unsupported.into(), "choose io.port = \"udp\""));
        }
        let mut ebpf = EbpfLoader::new()
            .load(OBJECT)
            .map_err(|error| refused("load the maps of the forwarding program", &error))?;
        let (mark, copy_mark) = draw_marks()?;
        let setup = Setup {
            address: u32::from(*local.ip()).to_be(),
            port: local.port().to_be(),
            padding: 0,
            mark,
            copy_mark,
        };
        // The loaded program holds the maps, which are taken and shared after that.
        load_programs(&mut ebpf, setup)?;
        let links = attach_programs(&mut ebpf, &link.name)?;
        Ok(Self {
            local,
            tos,
            mark,
            copy_mark,
            interface,
            maps: Maps::take(&mut ebpf)?,
            netlink,
            tables: BTreeMap::new(),
            groups: BTreeMap::new(),
            look_at: Timestamp::ZERO,
            retry_at: None,
            said: String::new(),
            links,
            ebpf,
        })
    }

    /// Takes the programs off their hooks and attaches them anew, behind what other programs have
    /// put there since. Tables, groups and remembered numbers stay. Datagrams that come in between
    /// go to the process. When this fails, no group has a [way](Self::way_of) any more.
    ///
    /// # Errors
    /// The reason for which the kernel refuses.
    pub fn attach_anew(&mut self) -> Result<(), Error> {
        let asked = |error| os("ask for the interfaces of this host", error, "");
        let interface = self.netlink.link(self.interface).map_err(asked)?.name;
        for ((name, _), link) in HOOKS.into_iter().zip(std::mem::take(&mut self.links)) {
            let no = |error| refused(&format!("detach the program {name}"), &error);
            program_of(&mut self.ebpf, name)?.detach(link).map_err(no)?;
        }
        self.links = attach_programs(&mut self.ebpf, &interface)?;
        Ok(())
    }

    /// The mark of arrivals that the kernel has sent on. A random number, so that no packet has it
    /// by another program's will.
    pub fn mark(&self) -> u32 {
        self.mark
    }

    /// Adopts a group, or forgets a group without members.
    pub fn install_group(&mut self, owner: usize, id: GroupId, members: &Arc<[SocketAddr]>) {
        let Some(slot) = self.slot_of((owner, id)) else { return };
        if let Some(group) = self.groups.get_mut(&(owner, id)) {
            group.members = Arc::clone(members);
        }
        let words = slot as usize * CHILDREN * COPIES_WORDS;
        self.maps.copied.clear(words..words + CHILDREN * COPIES_WORDS);
        self.maps.turns.clear(slot as usize..slot as usize + 1);
        self.find_ways(Some((owner, id)));
        self.forget_groups();
    }

    /// Adopts a table, or forgets it. The new table replaces the old one between two datagrams, and
    /// keeps the remembered numbers when its window is the same.
    pub fn install_forward(
        &mut self,
        owner: usize,
        id: ForwardId,
        rules: Option<&Arc<Forward>>,
    ) -> Installed {
        let name = (owner, id);
        let Some(rules) = rules else {
            self.forget_table(name);
            return Installed::Taken;
        };
        match self.adopt_table(name, rules) {
            Ok(()) => Installed::Taken,
            Err(why) => {
                self.forget_table(name);
                self.say_once(format!("a stream is forwarded by hand: {why}"));
                Installed::Ignored
            }
        }
    }

    fn adopt_table(&mut self, name: Named<ForwardId>, rules: &Arc<Forward>) -> Result<(), String> {
        let tos = self.tos;
        let table = translate::table(rules, tos, |id| self.slot_of((name.0, id)))?;
        let kept = self.tables.get(&name).filter(|old| old.rules.window == rules.window);
        let slot = match (kept, self.tables.get(&name)) {
            (Some(kept), _) => kept.slot,
            (None, old) => {
                let used = |slot: &u32| self.tables.values().any(|table| table.slot == *slot);
                let slot = old.map(|old| old.slot);
                let free = slot.or_else(|| (0..TABLES as u32).find(|slot| !used(slot)));
                let slot = free.ok_or("the program has four tables, and all are taken")?;
                // No table is in force while its numbers are forgotten.
                self.forget_table(name);
                let at = slot as usize;
                self.maps.numbers.clear(at * WINDOW..(at + 1) * WINDOW);
                self.maps.windows.clear(at * WINDOW_WORDS..(at + 1) * WINDOW_WORDS);
                slot
            }
        };
        let written = self.maps.tables.insert(slot, table, 0);
        written.map_err(|error| format!("the kernel refused the table: {error}"))?;
        let told = self.tables.get(&name).map_or([0; 4], |old| old.told);
        self.tables.insert(name, InstalledTable { slot, rules: Arc::clone(rules), told });
        self.forget_groups();
        Ok(())
    }

    fn forget_table(&mut self, name: Named<ForwardId>) {
        if let Some(table) = self.tables.remove(&name) {
            // The entry is there, so the kernel has no reason to refuse.
            drop(self.maps.tables.remove(&table.slot));
        }
        self.forget_groups();
    }

    /// The slot of a group, which gets one when it has none.
    fn slot_of(&mut self, name: Named<GroupId>) -> Option<u32> {
        if let Some(group) = self.groups.get(&name) {
            return Some(group.slot);
        }
        let used = |slot: &u32| self.groups.values().any(|group| group.slot == *slot);
        let slot = (0..GROUPS as u32).find(|slot| !used(slot))?;
        let group = InstalledGroup { slot, members: Arc::new([]), is_known: false, way: None };
        self.groups.insert(name, group);
        Some(slot)
    }

    /// Frees the slots of groups that have no members and that no table names.
    fn forget_groups(&mut self) {
        let tables = &self.tables;
        self.groups.retain(|(owner, id), group| {
            let is_named = tables.iter().any(|((of, _), table)| {
                of == owner && table.rules.routes.iter().any(|route| route.to == *id)
            });
            is_named || !group.members.is_empty()
        });
    }

    /// Finds the ways to the members of one group, or of all, and hands them to the program.
    fn find_ways(&mut self, only: Option<Named<GroupId>>) {
        let names: Vec<_> = match only {
            Some(name) => vec![name],
            None => self.groups.keys().copied().collect(),
        };
        for name in names {
            let Some(group) = self.groups.get(&name) else { continue };
            let (slot, members) = (group.slot, Arc::clone(&group.members));
            let found = match members.is_empty() {
                true => Ok(None),
                false => self.group_of(&members).map(Some),
            };
            let known = match found {
                Ok(Some(known)) => match self.maps.groups.insert(slot, known, 0) {
                    Ok(()) => Some(known),
                    Err(error) => {
                        self.say_once(format!("the kernel refused a group: {error}"));
                        None
                    }
                },
                Ok(None) => None,
                Err(why) => {
                    self.say_once(format!("copies leave by hand: {why}"));
                    self.retry_at.get_or_insert(self.look_at + RETRY);
                    None
                }
            };
            if known.is_none() {
                // The entry may be absent, which is what is wanted.
                drop(self.maps.groups.remove(&slot));
            }
            let way = known.and_then(|known| self.copy_way(slot, &known));
            if let Some(group) = self.groups.get_mut(&name) {
                (group.is_known, group.way) = (known.is_some(), way);
            }
        }
    }

    fn group_of(&mut self, members: &[SocketAddr]) -> Result<Group, String> {
        if members.len() > CHILDREN {
            return Err(format!("{} children are more than {CHILDREN}", members.len()));
        }
        let mut group = Group { count: members.len() as u32, mtu: u32::MAX, ..Group::default() };
        for (child, member) in group.children.iter_mut().zip(members) {
            let (found, mtu) = self.child_of(*member)?;
            *child = found;
            group.mtu = group.mtu.min(mtu);
        }
        Ok(group)
    }

    /// How a datagram for this group gets to the program that copies it. A single member needs no
    /// copies.
    fn copy_way(&self, slot: u32, group: &Group) -> Option<CopyWay> {
        let children = &group.children[..group.count as usize];
        let lead = children.iter().position(|child| child.interface == self.interface)?;
        let datagram_bytes_max = group.mtu.min(IP_BYTES_MAX).saturating_sub(HEADER_BYTES) as usize;
        let mark = self.copy_mark | slot;
        (children.len() > 1).then_some(CopyWay { mark, lead, datagram_bytes_max })
    }

    /// How the kernel is asked to copy a datagram to all members of a group; `None` while it
    /// cannot.
    pub fn way_of(&self, owner: usize, id: GroupId) -> Option<CopyWay> {
        let is_attached = self.links.len() == HOOKS.len();
        self.groups.get(&(owner, id))?.way.filter(|_| is_attached)
    }

    /// The datagrams of a group that the kernel has copied since the group was installed. A buffer
    /// of several datagrams counts once.
    pub fn datagrams_copied(&self, owner: usize, id: GroupId) -> u64 {
        let slot = self.groups.get(&(owner, id)).map(|group| group.slot);
        slot.map_or(0, |slot| self.maps.turns.read(slot as usize))
    }

    /// The way to a child, and the longest packet on it.
    fn child_of(&mut self, member: SocketAddr) -> Result<(Child, u32), String> {
        let SocketAddr::V4(to) = member else {
            return Err(format!("{member} is not an address of IPv4"));
        };
        let failed = |what: &str, error: io::Error| format!("{what} of {to}: {error}");
        let from = *self.local.ip();
        let way =
            self.netlink.find_way(from, *to.ip()).map_err(|error| failed("the route", error))?;
        let way = way.ok_or_else(|| format!("no route leads to {to}"))?;
        let link = self.netlink.link(way.interface).map_err(|error| failed("the link", error))?;
        if !link.is_up || !link.is_ethernet {
            return Err(format!("{to} is behind {}, which is down or not Ethernet", link.name));
        }
        // A packet that came by a card has no way to a socket of the same host through `lo`: the
        // kernel takes it for one with a forged source.
        if way.is_local && way.interface != self.interface {
            return Err(format!("{to} is on this host"));
        }
        let to_mac = match link.is_loopback {
            true => [0; 6],
            false => {
                let mac = self.netlink.neighbour(way.interface, way.next);
                let mac = mac.map_err(|error| failed("the neighbour", error))?;
                mac.ok_or_else(|| format!("the hardware address of {} is not known", way.next))?
            }
        };
        let (source, target) = (translate::source_of(&self.local), translate::source_of(&to));
        let child = Child {
            interface: way.interface,
            from: source.address,
            to: target.address,
            from_port: source.port,
            to_port: target.port,
            from_mac: link.mac,
            to_mac,
            padding: 0,
        };
        Ok((child, link.mtu.max(HEADER_BYTES)))
    }

    /// From now on the program writes times of sending by this reading of the clock.
    pub fn adopt_clock(&mut self, reading: ClockReading) {
        let disproved = u64::from(reading.error == ClockError::Disproved);
        let clock = ClockOffset { offset: reading.offset_ns as u64, disproved };
        if let Err(error) = self.maps.clocks.set(0, clock, 0) {
            self.say_once(format!("the kernel refused a reading of the clock: {error}"));
        }
    }

    /// Follows the news of the kernel, and tells the counters that have grown. Does nothing until
    /// some milliseconds have passed since the last look. Returns whether it looked.
    pub fn look(
        &mut self,
        now: Timestamp,
        mut told: impl FnMut(usize, ForwardId, ForwardCounters),
    ) -> bool {
        if now < self.look_at {
            return false;
        }
        self.look_at = now + LOOK;
        let is_time = self.retry_at.is_some_and(|at| at <= now);
        if self.netlink.take_news() || is_time {
            self.retry_at = None;
            self.find_ways(None);
        }
        for ((owner, id), table) in &mut self.tables {
            let at = table.slot as usize * WINDOW_WORDS;
            let counted = [1, 2, 3, 4].map(|word| self.maps.windows.read(at + word));
            let [forwarded, duplicates, behind, refused] =
                std::array::from_fn(|n| counted[n].saturating_sub(table.told[n]));
            table.told = counted;
            let grown = ForwardCounters { forwarded, duplicates, behind, refused };
            if grown != ForwardCounters::default() {
                told(*owner, *id, grown);
            }
        }
        true
    }

    /// Copies to members of a group that the kernel did not take, since the group was installed.
    pub fn copies_failed(&self, owner: usize, id: GroupId) -> u64 {
        let Some(group) = self.groups.get(&(owner, id)) else { return 0 };
        let children = group.slot as usize * CHILDREN..;
        let failed = |child: usize| self.maps.copied.read(child * COPIES_WORDS + 1);
        children.take(group.members.len().min(CHILDREN)).map(failed).sum()
    }

    /// The copies of each child of the groups that the kernel has.
    pub fn copies(&self) -> Vec<ChildCopies> {
        let groups = self.groups.values().filter(|group| group.is_known);
        let of = |group: &InstalledGroup| -> Vec<_> {
            let first = group.slot as usize * CHILDREN;
            let children = group.members.iter().enumerate();
            let copies = children.map(|(n, child)| {
                let at = (first + n) * COPIES_WORDS;
                let [sent, failed] = [0, 1].map(|word| self.maps.copied.read(at + word));
                ChildCopies { child: *child, sent, failed }
            });
            copies.collect()
        };
        groups.flat_map(of).collect()
    }

    /// Logs a reason as a warning. Does nothing when the last warning was the same.
    pub fn say_once(&mut self, text: String) {
        if self.said != text {
            tracing::warn!("{}: {text}", self.local);
            self.said = text;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::sync::Mutex;
    use std::time::Instant;

    use super::*;

    /// Names this test program as a process that holds a program until it is killed.
    const HOLDS: &str = "EVENFALL_HOLDS_A_PROGRAM";
    /// Tests that look at the programs of `lo` run one after another.
    static LOOPBACK: Mutex<()> = Mutex::new(());

    /// The programs of this crate at the hooks of `lo`.
    fn programs() -> BTreeSet<u32> {
        let hooks = [TcAttachType::Ingress, TcAttachType::Egress];
        let all = hooks.map(|hook| SchedClassifier::query_tcx("lo", hook).unwrap().1);
        let ours = all.iter().flatten().filter(|info| info.name().starts_with(b"evenfall_"));
        ours.map(aya::programs::ProgramInfo::id).collect()
    }

    /// Waits until these are the programs of `lo` again. While another test starts `ip`, the child
    /// has the links of this process too, from its fork until its exec.
    fn await_programs(before: &BTreeSet<u32>) {
        let until = Instant::now() + Duration::from_secs(60);
        while programs() != *before {
            assert!(Instant::now() < until, "{:?} are left, {before:?} were there", programs());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn attach() -> KernelForwarder {
        KernelForwarder::attach("127.0.0.1:7777".parse().unwrap(), 0).unwrap()
    }

    /// Whether this process may load programs. Says so when it may not.
    fn may_load() -> bool {
        let lacks = lacks();
        lacks.iter().for_each(|lacks| println!("skipped: without {lacks}"));
        lacks.is_none()
    }

    #[test]
    fn a_forwarder_that_is_attached_anew_has_one_program_a_hook_again() {
        let _one = LOOPBACK.lock().unwrap();
        if let Some(lacks) = lacks() {
            println!("skipped: needs {lacks}");
            return;
        }
        let before = programs();
        let mut forwarder = attach();
        let attached = programs();
        forwarder.attach_anew().unwrap();
        assert_eq!(programs(), attached);
        drop(forwarder);
        await_programs(&before);
    }

    #[test]
    fn a_program_is_loaded_again_after_a_signal_and_not_after_a_refusal() {
        let loads = |all: &[Result<(), u8>]| {
            let mut calls = 0;
            let load = || {
                calls += 1;
                all[(calls - 1).min(all.len() - 1)]
            };
            (load_despite_signals(|error| *error == 11, load), calls)
        };
        assert_eq!(loads(&[Ok(())]), (Ok(()), 1));
        assert_eq!(loads(&[Err(11), Err(11), Ok(())]), (Ok(()), 3));
        assert_eq!(loads(&[Err(11), Err(1)]), (Err(1), 2));
        assert_eq!(loads(&[Err(11)]), (Err(11), LOADS_MAX));
    }

    #[test]
    fn a_dropped_forwarder_leaves_no_program() {
        let _alone = LOOPBACK.lock().unwrap();
        if !may_load() {
            return;
        }
        let before = programs();
        let both = [attach(), attach()];
        assert_ne!(both[0].mark(), both[1].mark());
        assert_eq!(programs().difference(&before).count(), 4, "two owners share both hooks");
        drop(both);
        await_programs(&before);
    }

    #[test]
    fn a_killed_process_leaves_no_program() {
        if std::env::var_os(HOLDS).is_some() {
            let _held = attach();
            println!("\nattached");
            std::thread::park();
        }
        let _alone = LOOPBACK.lock().unwrap();
        if !may_load() {
            return;
        }
        let before = programs();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "tests::a_killed_process_leaves_no_program"])
            .env(HOLDS, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "attached"));
        assert_eq!(programs().difference(&before).count(), 2);
        child.kill().unwrap();
        child.wait().unwrap();
        await_programs(&before);
    }

    #[test]
    fn an_address_that_no_interface_has_is_named() {
        let refusal = |address: &str| {
            let attached = KernelForwarder::attach(address.parse().unwrap(), 0);
            attached.map(|_| ()).unwrap_err().to_string()
        };
        assert!(refusal("[::1]:7777").contains("IPv4"));
        if may_load() {
            let unknown = refusal("192.0.2.7:7777");
            assert!(unknown.contains("the interface that has 192.0.2.7"), "{unknown}");
        }
    }
}
