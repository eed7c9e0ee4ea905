//! A file with two copies, made and appended to by hand.

use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_core::{Arrival, ClockReading, Destination, Machine, StampedBy, Timestamp};
use evenfall_files_machine::config::BLOCK_BYTES;
use evenfall_files_machine::dataserver::Event;
use evenfall_files_machine::namespace::{Caller, NamespaceCall};
use evenfall_files_machine::{
    DataConfig, Dataserver, FilesRefusal, InodeId, NameConfig, Nameserver,
};

fn address(n: u16) -> SocketAddr {
    ([127, 0, 0, 1], 7_000 + n).into()
}

/// A nameserver and two dataservers. Writes are answered at once.
struct Cluster {
    names: Nameserver,
    data: Vec<Dataserver>,
    now: Timestamp,
    told: Vec<(usize, Event)>,
    silent: Option<usize>,
}

impl Cluster {
    fn new() -> Self {
        let none = Bytes::new();
        let names = Nameserver::new(NameConfig::default(), 1, &none).expect("an empty log");
        let data = |n: u16| {
            let config = DataConfig::default();
            let (to, http) = (address(0), address(n));
            Dataserver::new(config, to, http, u64::from(n), &none, Vec::new()).expect("empty")
        };
        let now = Timestamp::from_nanos(1_000_000_000);
        Self { names, data: vec![data(1), data(2)], now, told: Vec::new(), silent: None }
    }

    /// Lets this much time pass.
    fn run(&mut self, millis: u64) {
        for _ in 0..millis / 10 {
            self.now = Timestamp::from_nanos(self.now.nanos() + 10_000_000);
            let mut packets = drive(&mut self.names, self.now, 0, &mut |_| {});
            let silent = self.silent;
            for n in (0..self.data.len()).filter(|n| silent != Some(*n)) {
                let told = &mut self.told;
                let mut take = |event| told.push((n, event));
                packets.extend(drive(&mut self.data[n], self.now, n as u16 + 1, &mut take));
                self.read_for_joiner(n);
            }
            for (from, to, datagram) in packets {
                let arrival = Arrival::new(address(from), datagram, self.now, StampedBy::User);
                let to = usize::from(to - 7_000);
                let is_silent = |n: usize| silent.is_some_and(|silent| silent + 1 == n);
                if is_silent(to) || is_silent(usize::from(from)) {
                    continue;
                }
                match to {
                    0 => self.names.handle(self.now, arrival).expect("our own datagram"),
                    n => self.data[n - 1].handle(self.now, arrival).expect("our own datagram"),
                }
            }
        }
    }

    /// Reads the second append of this test, when a primary asks for it.
    fn read_for_joiner(&mut self, n: usize) {
        if let Some((_, Event::Read { file, disk, offset: 5 })) = self.told.last().cloned() {
            self.told.pop();
            self.data[n].give(file, disk, 5, vec![Bytes::from_static(b" more")]);
        }
    }

    fn create(&mut self, path: &str) -> InodeId {
        let path = path.to_owned();
        let (mode, replication, overwrite) = (0o644, 2, false);
        let call = NamespaceCall::Create {
            path: path.clone(),
            mode,
            replication,
            overwrite,
            writer: None,
            block_bytes: BLOCK_BYTES,
        };
        self.names
            .call(self.now, 0, 7, &Caller::superuser("ann"), &call)
            .expect("two servers live");
        self.names.namespace().find(&path).expect("it was made").0
    }

    fn lease(&mut self, file: InodeId, writer: &str) -> Result<u64, FilesRefusal> {
        let (caller, at_ms) = (Caller::superuser("ann"), self.now.nanos() / 1_000_000);
        self.names.grant_lease(self.now, at_ms, 8, &caller, file, writer)
    }

    /// A writer appends at the primary, under the lease of this generation.
    fn append(
        &mut self,
        file: InodeId,
        lease: u64,
        text: &'static str,
    ) -> Result<(), FilesRefusal> {
        let (first, now) = (self.primary(file), self.now);
        self.data[first].append(
            now,
            9,
            file,
            None,
            Some(lease),
            Bytes::from_static(text.as_bytes()),
        )
    }

    fn primary(&self, file: InodeId) -> usize {
        let leads = |server: &Dataserver| server.view(file).is_some_and(|view| view.is_primary);
        let mut at = (0..self.data.len()).filter(|n| self.silent != Some(*n));
        at.rfind(|n| leads(&self.data[*n])).expect("somebody leads")
    }
}

type Packet = (u16, u16, Bytes);

/// Drains a machine after its timeouts.
fn drive<M: Machine>(
    machine: &mut M,
    now: Timestamp,
    of: u16,
    take: &mut dyn FnMut(M::Event),
) -> Vec<Packet> {
    machine.handle_clock(now, ClockReading::default());
    if machine.poll_timeout().is_some_and(|at| at <= now) {
        machine.handle_timeout(now);
    }
    loop {
        while let Some(event) = machine.poll_event() {
            take(event);
        }
        let Some(write) = machine.durable().and_then(|durable| durable.poll_write()) else { break };
        let durable = machine.durable().expect("it asked for a write");
        durable.handle_written(now, write.id, Ok(()));
    }
    let mut packets = Vec::new();
    while let Some(transmit) = machine.poll_transmit(now) {
        let Destination::One(to) = transmit.to else { panic!("no groups are installed") };
        let datagram = [transmit.head.as_slice(), &transmit.body[..]].concat();
        packets.push((of, to.port(), datagram.into()));
    }
    packets
}

#[test]
fn an_append_is_acknowledged_when_both_have_it_and_survives_the_primary() {
    let mut cluster = Cluster::new();
    cluster.run(600);
    let file = cluster.create("/a/b");
    cluster.run(300);
    let (first, now) = (cluster.primary(file), cluster.now);
    let hello = Bytes::from_static(b"hello");
    assert_eq!(
        cluster.data[1 - first].append(now, 1, file, None, None, hello.clone()),
        Err(FilesRefusal::NotPrimary)
    );
    cluster.data[first].append(now, 1, file, None, None, hello).expect("the primary takes it");
    cluster.run(300);
    assert_eq!(cluster.told, [(first, Event::Appended { token: 1, end: 5 })]);
    let committed = |c: &Cluster, n: usize| c.data[n].view(file).expect("a copy").committed;
    assert_eq!((committed(&cluster, 0), committed(&cluster, 1)), (5, 5));

    // The primary falls silent, and the other member leads on behind the bytes that it has.
    cluster.silent = Some(first);
    cluster.run(8_000);
    let second = cluster.primary(file);
    assert_eq!((second, committed(&cluster, second)), (1 - first, 5));
    let now = cluster.now;
    let more = Bytes::from_static(b" more");
    cluster.data[second].append(now, 2, file, None, None, more).expect("the new primary takes it");
    cluster.run(300);
    assert_eq!(cluster.told.last(), Some(&(second, Event::Appended { token: 2, end: 10 })));

    // The old primary comes back, and gets the bytes that it has missed.
    cluster.silent = None;
    cluster.run(4_000);
    assert_eq!((committed(&cluster, 0), committed(&cluster, 1)), (10, 10));
    let group = &cluster.names.namespace().file(file).expect("the file").group;
    assert_eq!((group.members.len(), group.former.len()), (2, 0));
}

#[test]
fn a_writer_that_slept_past_its_lease_cannot_append_beside_the_next_one() {
    let mut cluster = Cluster::new();
    cluster.run(600);
    let file = cluster.create("/a/b");
    cluster.run(300);
    let old = cluster.lease(file, "old").expect("nobody has it");
    cluster.run(300);
    cluster.append(file, old, "old ").expect("it has the lease");
    cluster.run(300);
    assert!(matches!(cluster.lease(file, "new"), Err(FilesRefusal::LeaseHeld(_))));

    // The old writer sleeps longer than the soft limit.
    cluster.run(61_000);
    assert!(matches!(cluster.lease(file, "new"), Err(FilesRefusal::Recovering(_))));
    cluster.run(500);
    let new = cluster.lease(file, "new").expect("the old lease has ended");
    cluster.run(300);
    let Err(FilesRefusal::LeaseLost(words)) = cluster.append(file, old, "late") else {
        panic!("the old writer is not refused");
    };
    assert!(words.contains("new holds the lease since 1970-01-01T00:01:"), "{words}");
    cluster.append(file, new, "new").expect("it has the lease");
    cluster.run(300);

    let first = cluster.primary(file);
    cluster.data[first].flush_and_release(10, file, new).expect("it leads");
    cluster.run(300);
    assert_eq!(cluster.told.last(), Some(&(first, Event::Flushed { token: 10 })));
    assert_eq!(
        (cluster.names.held_leases(), cluster.append(file, new, "more").is_err()),
        (vec![], true)
    );
    assert_eq!(cluster.names.namespace().file(file).expect("the file").length, 7);
}
