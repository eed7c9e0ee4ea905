//! A server of the campaign, and what its disk has.

use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_core::{
    Arrival, ClockReading, Disk as _, Durable, Install, Machine, Malformed, Timestamp, Transmit,
};
use evenfall_files_machine::chunk::{self, Appends};
use evenfall_files_machine::{
    DataConfig, Dataserver, FileId, NameConfig, Nameserver, dataserver, nameserver,
};
use evenfall_sim::{NodeIndex, SimDisk};

/// Appends that are read for a joiner at once: few, so that a copy takes several readings.
const APPENDS_AT_ONCE: usize = 3;

/// A nameserver, or a dataserver with its disk.
pub enum Node {
    /// See [`Nameserver`].
    Name(Box<Nameserver>),
    /// See [`Dataserver`].
    Data(Box<Dataserver>, SimDisk),
}

/// What a server tells.
#[derive(Clone, Debug)]
pub enum NodeEvent {
    /// Of the nameserver.
    Name(nameserver::Event),
    /// Of a dataserver.
    Data(dataserver::Event),
}

/// Reads a log of a disk.
fn read(
    disk: &SimDisk,
) -> impl FnMut(&str, u64, usize) -> Result<Bytes, evenfall_core::StorageError> {
    |log: &str, at, len| disk.read(log, at, len)
}

/// The bytes of a file up to `end`, as far as they are good.
pub fn content(disk: &SimDisk, file: FileId, chunks: &[u64], end: u64) -> Vec<u8> {
    let (mut appends, mut bytes) = (Appends::new(file, chunks.to_vec()), Vec::new());
    while (bytes.len() as u64) < end && !chunks.is_empty() {
        match appends.read(bytes.len() as u64, &mut read(disk)) {
            Ok((at, _, body)) if at == bytes.len() as u64 => bytes.extend_from_slice(&body),
            _ => break,
        }
    }
    bytes
}

impl Node {
    /// A nameserver out of what its disk has.
    pub fn name(config: NameConfig, seed: u64, disk: &SimDisk) -> Self {
        let log = disk.read(nameserver::LOG, 0, usize::MAX).expect("disks read well");
        Self::Name(Box::new(Nameserver::new(config, seed, &log).expect("our own log")))
    }

    /// A dataserver out of what its disk has.
    pub fn data(
        config: DataConfig,
        nameserver: SocketAddr,
        node: NodeIndex,
        seed: u64,
        disk: SimDisk,
    ) -> Self {
        let log = disk.read(dataserver::LOG, 0, usize::MAX).expect("disks read well");
        let logs = disk.list().expect("disks read well");
        let ours = logs.iter().filter_map(|(log, len)| Some((chunk::of_name(log)?, *len)));
        let scan = |((file, start), len): ((FileId, u64), u64)| {
            let scan = chunk::scan(file, start, len, &mut read(&disk)).expect("disks read well");
            (file, start, scan)
        };
        let chunks = ours.map(scan).collect();
        let http = node.address();
        let server = Dataserver::new(config, nameserver, http, seed, &log, chunks);
        Self::Data(Box::new(server.expect("our own log")), disk)
    }

    /// All bytes of a copy that counts, acknowledged or not; none of a copy that is being made.
    pub fn member_content(&self, file: FileId) -> Option<Vec<u8>> {
        let Self::Data(server, disk) = self else { return None };
        let view = server.view(file).filter(|view| view.is_member)?;
        Some(content(disk, file, &view.chunks, u64::MAX))
    }

    fn durable_inner(&mut self) -> &mut dyn Durable {
        match self {
            Self::Name(server) => server.as_mut(),
            Self::Data(server, ..) => server.as_mut(),
        }
    }
}

/// Calls the same method of either server.
macro_rules! either {
    ($node:expr, $server:ident => $call:expr) => {
        match $node {
            Node::Name($server) => $call,
            Node::Data($server, ..) => $call,
        }
    };
}

impl Machine for Node {
    type Event = NodeEvent;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        either!(self, server => server.handle(now, arrival))
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        either!(self, server => server.handle_timeout(now));
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        either!(self, server => server.handle_clock(now, reading));
    }

    fn poll_event(&mut self) -> Option<NodeEvent> {
        match self {
            Self::Name(server) => server.poll_event().map(NodeEvent::Name),
            Self::Data(server, disk) => loop {
                let event = server.poll_event()?;
                let dataserver::Event::Read { file, disk: to, offset } = event else {
                    return Some(NodeEvent::Data(event));
                };
                let Some(view) = server.view(file) else { continue };
                let mut appends = Appends::new(file, view.chunks);
                let (mut all, mut at) = (Vec::new(), offset);
                while all.len() < APPENDS_AT_ONCE
                    && let Ok((begin, _, body)) = appends.read(at, &mut read(disk))
                    && begin == at
                {
                    at += body.len() as u64;
                    all.push(body);
                }
                server.give(file, to, offset, all);
            },
        }
    }

    fn poll_install(&mut self) -> Option<Install> {
        None
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        either!(self, server => server.poll_transmit(now))
    }

    fn poll_urgent(&mut self, now: Timestamp) -> Option<Transmit> {
        either!(self, server => server.poll_urgent(now))
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        either!(self, server => server.poll_timeout())
    }

    fn durable(&mut self) -> Option<&mut dyn Durable> {
        Some(self.durable_inner())
    }
}
