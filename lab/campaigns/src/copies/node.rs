//! A server of the campaign, with its disk.

use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_core::{Disk as _, Machine, StorageError};
use evenfall_files_machine::chunk::{self, AppendReader};
use evenfall_files_machine::{
    DataConfig, Dataserver, InodeId, NameConfig, Nameserver, dataserver, nameserver,
};
use evenfall_sim::{NodeIndex, SimDisk, any_machine};

/// Appends that are read for a joiner at once. The number is small, so that copying a file takes
/// several readings.
const APPENDS_AT_ONCE: usize = 3;

/// A nameserver, or a dataserver with its disk.
pub enum CopiesNode {
    /// See [`Nameserver`].
    Name(Box<Nameserver>),
    /// See [`Dataserver`].
    Data(Box<Dataserver>, SimDisk),
}

/// An event of a server.
#[derive(Clone, Debug)]
pub enum CopiesEvent {
    /// An event of the nameserver.
    Name(nameserver::Event),
    /// An event of a dataserver.
    Data(dataserver::Event),
}

/// Reads a log of a disk.
fn read(disk: &SimDisk) -> impl FnMut(&str, u64, usize) -> Result<Bytes, StorageError> {
    |log: &str, at, len| disk.read(log, at, len)
}

/// The bytes of a file up to `end`, or up to the first damaged append.
pub fn content(disk: &SimDisk, file: InodeId, chunks: &[u64], end: u64) -> Vec<u8> {
    let (mut appends, mut bytes) = (AppendReader::new(file, chunks.to_vec()), Vec::new());
    while (bytes.len() as u64) < end && !chunks.is_empty() {
        match appends.read(bytes.len() as u64, &mut read(disk)) {
            Ok((at, _, body)) if at == bytes.len() as u64 => bytes.extend_from_slice(&body),
            _ => break,
        }
    }
    bytes
}

impl CopiesNode {
    /// A nameserver that starts from the log on its disk.
    pub fn name(config: NameConfig, seed: u64, disk: &SimDisk) -> Self {
        let log = disk.read(nameserver::LOG, 0, usize::MAX).expect("disks read well");
        Self::Name(Box::new(Nameserver::new(config, seed, &log).expect("our own log")))
    }

    /// A dataserver that starts from the log and the chunks on its disk.
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
        let scan = |((file, start), len): ((InodeId, u64), u64)| {
            let scan = chunk::scan(file, start, len, &mut read(&disk)).expect("disks read well");
            (file, start, scan)
        };
        let chunks = ours.map(scan).collect();
        let http = node.address();
        let server = Dataserver::new(config, nameserver, http, seed, &log, chunks);
        Self::Data(Box::new(server.expect("our own log")), disk)
    }

    /// All bytes of a member's copy, acknowledged or not; `None` for a copy in the making.
    pub fn member_content(&self, file: InodeId) -> Option<Vec<u8>> {
        let Self::Data(server, disk) = self else { return None };
        let view = server.view(file).filter(|view| view.is_member)?;
        Some(content(disk, file, &view.chunks, u64::MAX))
    }
}

/// The next event of a dataserver that the campaign hears of. The disk answers readings at once.
fn told(server: &mut Dataserver, disk: &SimDisk) -> Option<dataserver::Event> {
    loop {
        let event = server.poll_event()?;
        let dataserver::Event::Read { file, disk: to, offset } = event else {
            return Some(event);
        };
        let Some(view) = server.view(file) else { continue };
        let mut appends = AppendReader::new(file, view.chunks);
        let (mut all, mut at) = (Vec::new(), offset);
        while all.len() < APPENDS_AT_ONCE
            && let Ok((begin, _, body)) = appends.read(at, &mut read(disk))
            && begin == at
        {
            at += body.len() as u64;
            all.push(body);
        }
        server.give(file, to, offset, all);
    }
}

any_machine! {
    impl Machine for CopiesNode {
        type Event = CopiesEvent;

        Name(server) => server.poll_event().map(CopiesEvent::Name),
        Data(server, disk) => told(server, disk).map(CopiesEvent::Data),
    }
}
