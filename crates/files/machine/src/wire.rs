//! The datagrams, byte by byte. Decoding is total: any bytes give a value or [`Malformed`].
//!
//! All integers are little-endian. Every datagram begins with 12 bytes:
//!
//! ```text
//!  0        2         3      4              12
//!  | magic  | version | kind | cluster u64  |
//!
//!  1 RELAY    file u64, epoch u64, offset u64, committed u64, the bytes of one append to the end
//!  2 ACK      file u64, epoch u64, disk u64, length u64
//!  3 CONTROL  a [`FilesControl`] as JSON
//!  4 NAMES    generation u64, life u64, base u64, changes u64, done u64, offset u64, bytes of the
//!             nameserver's log to the end
//! ```
//!
//! Relays and their acknowledgements carry the files. Control datagrams are few, and their text is
//! what a person reads in a capture.

use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_core::{Malformed, Reader};
use serde::{Deserialize, Serialize};

use crate::leases::WriterLease;
use crate::log_replica::LogStream;
use crate::valid_length::ValidLength;
use crate::{DiskId, InodeId};

/// "EF" in ASCII.
pub const MAGIC: u16 = u16::from_le_bytes(*b"EF");
/// Version of this layout. Another version is refused.
pub const VERSION: u8 = 1;
/// An acknowledgement of a dataserver that has no copy of the file.
pub const NO_COPY: u64 = u64::MAX;

/// The place of a dataserver that has or gets a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataserverPlace {
    /// Its disk.
    pub disk: DiskId,
    /// The address at which it receives datagrams.
    pub address: SocketAddr,
    /// The address at which it takes HTTP.
    pub http: SocketAddr,
}

/// The members and joiners of a file in an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileAssignment {
    /// The file.
    pub file: InodeId,
    /// The epoch.
    pub epoch: u64,
    /// The number of this assignment, which the answer repeats. Joiners and addresses may change
    /// within an epoch, and the number then changes too.
    pub round: u64,
    /// The length that all members had when the epoch began.
    pub start: u64,
    /// The dataservers that have every acknowledged byte. The first is the primary.
    pub members: Vec<DataserverPlace>,
    /// The dataservers that copy the file, each with the bytes of its copy that are right.
    pub joiners: Vec<(DataserverPlace, ValidLength)>,
    /// The lease of the file's writer. Appends under another lease are refused.
    #[serde(default, skip_serializing_if = "WriterLease::is_new")]
    pub lease: WriterLease,
}

/// A copy that a dataserver names in its beat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The file.
    pub file: InodeId,
    /// The epoch of the copy.
    pub epoch: u64,
    /// Whether the dataserver asks for the assignment of the file, because it has restarted.
    pub asks: bool,
}

/// What a dataserver says of itself in its sign of life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataserverBeat {
    /// The disk.
    pub disk: DiskId,
    /// The address at which it takes HTTP, and datagrams on the same port.
    pub http: SocketAddr,
    /// The name for people; empty when it has none.
    #[serde(default)]
    pub name: String,
    /// The rack of its host. Hosts in one rack may fail together.
    #[serde(default)]
    pub rack: String,
    /// Whether its disk refuses writes.
    pub is_ill: bool,
    /// Bytes of files on its disk.
    pub used: u64,
    /// Bytes that its disk has left.
    pub free: u64,
    /// Some of its copies. The next beat has the copies behind them.
    pub page: Vec<Held>,
    /// The last proof of the nameserver that the dataserver hears at its address.
    #[serde(default)]
    pub proof: u64,
    /// Whether it checks the leases of writers. A dataserver of an earlier build says nothing here,
    /// and its files get no writer.
    #[serde(default)]
    pub checks_leases: bool,
}

impl DataserverBeat {
    /// The beat of a dataserver of this build that has neither a name nor a rack, and no copies.
    pub fn new(disk: DiskId, http: SocketAddr) -> Self {
        Self {
            disk,
            http,
            name: String::new(),
            rack: String::new(),
            is_ill: false,
            used: 0,
            free: 0,
            page: Vec::new(),
            proof: 0,
            checks_leases: true,
        }
    }
}

/// A message other than a relay or its acknowledgement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FilesControl {
    /// A dataserver lives.
    Beat(DataserverBeat),
    /// The nameserver answers a sign of life that has not the right proof.
    Proof {
        /// The disk that was named.
        disk: DiskId,
        /// The proof.
        proof: u64,
    },
    /// The nameserver forbids all epochs of a file before this one.
    Seal {
        /// The file.
        file: InodeId,
        /// The epoch that will begin.
        epoch: u64,
    },
    /// The answer to a seal.
    Sealed {
        /// The file.
        file: InodeId,
        /// The epoch that will begin.
        epoch: u64,
        /// The last epoch that the copy holds.
        held: u64,
        /// The disk that answers.
        disk: DiskId,
        /// Bytes of the copy.
        length: u64,
        /// Bytes that all members have, as far as this copy knows.
        committed: u64,
    },
    /// An epoch begins, or its joiners or addresses have changed.
    Assign(FileAssignment),
    /// A dataserver acts by an assignment.
    Holds {
        /// The file.
        file: InodeId,
        /// The epoch.
        epoch: u64,
        /// The number of the assignment.
        round: u64,
        /// The disk.
        disk: DiskId,
    },
    /// A member cannot go on in this epoch.
    Trouble {
        /// The file.
        file: InodeId,
        /// The epoch.
        epoch: u64,
    },
    /// A joiner has all that the primary has acknowledged.
    Caught {
        /// The file.
        file: InodeId,
        /// The epoch.
        epoch: u64,
        /// The joiner's disk.
        joiner: DiskId,
    },
    /// The copy of a dataserver is damaged.
    Bad {
        /// The file.
        file: InodeId,
        /// The epoch of the copy.
        epoch: u64,
        /// The disk.
        disk: DiskId,
    },
    /// A dataserver shall delete its copy, if the copy is of this epoch or of an earlier one and
    /// has promised no later epoch.
    Drop {
        /// The file.
        file: InodeId,
        /// The epoch.
        epoch: u64,
        /// The disk.
        disk: DiskId,
    },
    /// The answer to [`Drop`](Self::Drop): the disk has no copy, also after a restart.
    Dropped {
        /// The file.
        file: InodeId,
        /// The epoch that the nameserver named.
        epoch: u64,
        /// The disk.
        disk: DiskId,
    },
    /// A primary tells the acknowledged length.
    Length {
        /// The file.
        file: InodeId,
        /// The epoch.
        epoch: u64,
        /// The length.
        length: u64,
        /// The generation of the lease that its writer gives back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        closes: Option<u64>,
    },
    /// A primary says that the writer of the file has appended.
    Renew {
        /// The file.
        file: InodeId,
        /// The epoch.
        epoch: u64,
        /// The generation of the writer's lease.
        generation: u64,
    },
    /// A keeper has this many bytes of a copy of the nameserver's log on its disk.
    Kept {
        /// The disk.
        disk: DiskId,
        /// The generation of the stream.
        generation: u64,
        /// The life of the nameserver that began the stream.
        life: u64,
        /// Number of bytes of the stream on the disk.
        length: u64,
    },
    /// The nameserver has this length on its disk.
    Noted {
        /// The file.
        file: InodeId,
        /// The length.
        length: u64,
    },
}

/// A datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilesMessage {
    /// One append on its way from the primary. Without bytes it tells the committed length alone.
    Relay {
        /// The file.
        file: InodeId,
        /// The epoch.
        epoch: u64,
        /// Where the append begins.
        offset: u64,
        /// Bytes that all members have.
        committed: u64,
        /// The append.
        bytes: Bytes,
    },
    /// A follower has this many bytes on its disk.
    Ack {
        /// The file.
        file: InodeId,
        /// The epoch.
        epoch: u64,
        /// The disk.
        disk: DiskId,
        /// The length, or [`NO_COPY`].
        length: u64,
    },
    /// Bytes of a copy of the nameserver's log, on their way to a keeper.
    Names {
        /// The stream to which the bytes belong.
        stream: LogStream,
        /// Number of acknowledged changes.
        done: u64,
        /// The offset of the bytes in the stream.
        offset: u64,
        /// The bytes.
        bytes: Bytes,
    },
    /// Anything else.
    Control(FilesControl),
}

/// Bytes in front of every message.
pub const HEAD_BYTES: usize = 12;

impl FilesMessage {
    /// The head of the datagram and its body. The body of a relay is the append itself.
    pub fn encode(self, cluster: u64) -> (Vec<u8>, Bytes) {
        let mut head = Vec::with_capacity(48);
        head.extend(MAGIC.to_le_bytes());
        head.push(VERSION);
        let mut begin = |kind: u8, words: &[u64]| {
            head.push(kind);
            head.extend(cluster.to_le_bytes());
            words.iter().for_each(|word| head.extend(word.to_le_bytes()));
        };
        let body = match self {
            Self::Relay { file, epoch, offset, committed, bytes } => {
                begin(1, &[file.0, epoch, offset, committed]);
                bytes
            }
            Self::Ack { file, epoch, disk, length } => {
                begin(2, &[file.0, epoch, disk.0, length]);
                Bytes::new()
            }
            Self::Names { stream, done, offset, bytes } => {
                let LogStream { generation, life, base, changes } = stream;
                begin(4, &[generation, life, base, changes, done, offset]);
                bytes
            }
            Self::Control(control) => {
                begin(3, &[]);
                // Every field of a control is a number, a list or an address.
                serde_json::to_vec(&control).unwrap_or_default().into()
            }
        };
        (head, body)
    }

    /// The cluster and the message of a datagram.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(datagram: &Bytes) -> Result<(u64, Self), Malformed> {
        let r = &mut Reader::new(datagram);
        if r.u16()? != MAGIC {
            return Err(Malformed { what: "no datagram of the files", offset: 0 });
        }
        if r.u8()? != VERSION {
            return Err(Malformed { what: "another version", offset: 2 });
        }
        let (kind, cluster) = (r.u8()?, r.u64()?);
        let message = match kind {
            1 => Self::Relay {
                file: InodeId(r.u64()?),
                epoch: r.u64()?,
                offset: r.u64()?,
                committed: r.u64()?,
                bytes: datagram.slice(HEAD_BYTES + 32..),
            },
            2 => Self::Ack {
                file: InodeId(r.u64()?),
                epoch: r.u64()?,
                disk: DiskId(r.u64()?),
                length: r.u64()?,
            },
            3 => {
                let wrong = |_| Malformed { what: "no control", offset: HEAD_BYTES };
                Self::Control(serde_json::from_slice(&datagram[HEAD_BYTES..]).map_err(wrong)?)
            }
            4 => Self::Names {
                stream: LogStream {
                    generation: r.u64()?,
                    life: r.u64()?,
                    base: r.u64()?,
                    changes: r.u64()?,
                },
                done: r.u64()?,
                offset: r.u64()?,
                bytes: datagram.slice(HEAD_BYTES + 48..),
            },
            _ => return Err(Malformed { what: "no such kind", offset: 3 }),
        };
        Ok((cluster, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined((head, body): (Vec<u8>, Bytes)) -> Bytes {
        [&head[..], &body].concat().into()
    }

    #[test]
    fn messages_are_read_back_and_no_cut_of_one_panics() {
        let place = DataserverPlace {
            disk: DiskId(3),
            address: ([127, 0, 0, 1], 5).into(),
            http: ([127, 0, 0, 1], 6).into(),
        };
        let (file, epoch) = (InodeId(u64::MAX), 9);
        let (members, joiners) = (vec![place], vec![(place, ValidLength::up_to(4))]);
        let lease = WriterLease { generation: 1, holder: None };
        let assignment =
            FileAssignment { file, epoch, round: 2, start: 1, members, joiners, lease };
        let all = [
            FilesMessage::Relay { file, epoch, offset: 1, committed: 2, bytes: Bytes::from("x") },
            FilesMessage::Ack { file, epoch, disk: DiskId(1), length: NO_COPY },
            FilesMessage::Names {
                stream: LogStream { generation: 1, life: 2, base: 3, changes: 4 },
                done: 5,
                offset: 4,
                bytes: Bytes::from("x"),
            },
            FilesMessage::Control(FilesControl::Assign(assignment)),
        ];
        for message in all {
            let datagram = joined(message.clone().encode(77));
            assert_eq!(FilesMessage::decode(&datagram), Ok((77, message)));
            for end in 0..datagram.len() {
                let _ = FilesMessage::decode(&datagram.slice(..end));
            }
        }
    }
}
