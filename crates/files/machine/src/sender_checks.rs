//! Checks of senders: whose word a server takes.
//!
//! Under a key every datagram is sealed, and its sender has the key. Without a key, servers are on
//! loopback, where any program may send them datagrams. The kernel does not let a program send from
//! the address of another one, so a server without a key takes a word only from the address of the
//! server whose word it is:
//!
//! | word | address |
//! |---|---|
//! | a sign of life | the address that it names |
//! | what a disk says of its copies | the dataserver with this disk |
//! | the length of a file, that its writer lives, or that a joiner has caught up | the file's primary |
//! | trouble in a file | a member of the file |
//! | everything of the nameserver | the nameserver |
//! | appends, and their acknowledgements | the file's primary, and its followers |
//!
//! A dataserver becomes one when it has shown that it hears at the address which it names. The
//! nameserver answers its sign of life by a *proof*, a keyed code of the disk and the address, and
//! the dataserver repeats the proof in all further signs. The nameserver keeps nothing about a
//! dataserver that has not shown the proof. A nameserver that starts again has another key, and
//! sends a new proof.

use std::net::SocketAddr;

use evenfall_core::{MacKey, Prng};

use crate::copy::FileCopy;
use crate::dataserver::Dataserver;
use crate::nameserver::Nameserver;
use crate::wire::{FilesControl, FilesMessage};
use crate::{DiskId, InodeId};

/// The key of a nameserver's proofs. The seed is another one at each start.
pub(crate) fn proof_key(seed: u64) -> MacKey {
    let mut prng = Prng::new(seed).fork(3);
    let halves = [prng.next_u64(), prng.next_u64()].map(u64::to_le_bytes);
    let mut key = [0; 16];
    key[..8].copy_from_slice(&halves[0]);
    key[8..].copy_from_slice(&halves[1]);
    MacKey::new(1, &key)
}

impl Nameserver {
    /// From now on, this nameserver takes the word of any sender, because datagrams are sealed
    /// under the key of the cluster. A server may send from another address than the address at
    /// which it is reached.
    pub fn trust_senders(&mut self) {
        self.is_sealed = true;
    }

    /// The proof that a dataserver with this disk hears at this address.
    pub(crate) fn proof(&self, disk: DiskId, http: SocketAddr) -> u64 {
        self.proof_key.mac(&[http.to_string().as_bytes(), &disk.0.to_le_bytes()])
    }

    /// Whether the dataserver of a disk is at this address.
    fn is_at(&self, disk: DiskId, from: SocketAddr) -> bool {
        self.servers.get(&disk).is_some_and(|server| server.place.address == from)
    }

    /// Whether a sender may say this.
    pub(crate) fn may_say(&self, from: SocketAddr, control: &FilesControl) -> bool {
        if self.is_sealed {
            return true;
        }
        let members = |file: &InodeId| match self.namespace.file(*file) {
            Some(file) => file.group.members.as_slice(),
            None => &[],
        };
        match control {
            FilesControl::Beat(beat) => beat.http == from,
            FilesControl::Sealed { disk, .. }
            | FilesControl::Holds { disk, .. }
            | FilesControl::Bad { disk, .. }
            | FilesControl::Dropped { disk, .. }
            | FilesControl::Kept { disk, .. } => self.is_at(*disk, from),
            FilesControl::Trouble { file, .. } => {
                members(file).iter().any(|member| self.is_at(*member, from))
            }
            FilesControl::Caught { file, .. }
            | FilesControl::Length { file, .. }
            | FilesControl::Renew { file, .. } => {
                members(file).first().is_some_and(|primary| self.is_at(*primary, from))
            }
            _ => false,
        }
    }
}

impl Dataserver {
    /// Whether a sender may say this.
    pub(crate) fn may_say(&self, from: SocketAddr, message: &FilesMessage) -> bool {
        if self.is_sealed {
            return true;
        }
        match message {
            FilesMessage::Control(_) | FilesMessage::Names { .. } => from == self.nameserver,
            // A copy that was opened again knows its primary with its next assignment.
            FilesMessage::Relay { file, .. } => {
                let primary = self.copies.get(file).and_then(|copy| copy.members.first());
                primary.is_none_or(|primary| primary.address == from)
            }
            FilesMessage::Ack { file, disk, .. } => {
                let primary = |copy: &FileCopy| {
                    copy.primary.as_ref().map(|primary| primary.is_at(*disk, from))
                };
                self.copies.get(file).and_then(primary).unwrap_or(false)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use evenfall_core::Timestamp;

    use super::*;
    use crate::config::FORGET_AFTER;
    use crate::groups::tests::{create, hand_in, say};
    use crate::wire::DataserverBeat;

    fn names_with(count: u16) -> Nameserver {
        let none = bytes::Bytes::new();
        let mut names = Nameserver::new(crate::NameConfig::default(), 1, &none).expect("no log");
        (1..=count).for_each(|n| hand_in(&mut names, n, Vec::new()));
        names
    }

    fn beat(http: SocketAddr, proof: u64) -> FilesControl {
        let plain = DataserverBeat::new(DiskId(9), http);
        FilesControl::Beat(DataserverBeat { free: 1, proof, ..plain })
    }

    #[test]
    fn a_dataserver_is_known_when_it_has_shown_that_it_hears_at_its_own_address() {
        let mut names = names_with(0);
        let now = Timestamp::ZERO;
        let own: SocketAddr = ([127, 0, 0, 1], 7_009).into();
        let far: SocketAddr = ([192, 0, 2, 2], 80).into();
        say(&mut names, now, 9, beat(own, 0));
        say(&mut names, now, 9, beat(own, 77));
        // The proof of another address is none for this one, and the sender is at its own address.
        let proof = names.proof(DiskId(9), far);
        say(&mut names, now, 9, beat(own, proof));
        say(&mut names, now, 9, beat(far, proof));
        assert_eq!(names.servers().len(), 0);
        let proof = names.proof(DiskId(9), own);
        say(&mut names, now, 8, beat(own, proof));
        assert_eq!(names.servers().len(), 0, "another program repeats the proof");
        say(&mut names, now, 9, beat(own, proof));
        assert_eq!(names.servers().len(), 1);
    }

    #[test]
    fn the_length_of_a_file_comes_from_its_primary_alone() {
        let mut names = names_with(3);
        let file = create(&mut names, "/a", 2);
        let members = names.namespace().file(file).expect("a file").group.members.clone();
        let length = |names: &Nameserver| names.namespace().file(file).expect("a file").length;
        let told = FilesControl::Length { file, epoch: 1, length: 1 << 50, closes: None };
        let others = (1..=4).filter(|n| DiskId(u64::from(*n)) != members[0]);
        for n in others {
            say(&mut names, Timestamp::ZERO, n, told.clone());
            assert_eq!(length(&names), 0, "dataserver {n}");
        }
        say(&mut names, Timestamp::ZERO, members[0].0 as u16, told);
        assert_eq!(length(&names), 1 << 50);
    }

    #[test]
    fn a_keeper_of_the_log_is_heard_from_its_own_address_alone() {
        let mut names = names_with(1);
        let (disk, life) = (DiskId(1), 5);
        let kept = FilesControl::Kept { disk, generation: u64::MAX, life, length: 1 };
        assert!(!names.may_say(([127, 0, 0, 1], 7_002).into(), &kept));
        assert!(names.may_say(([127, 0, 0, 1], 7_001).into(), &kept));
        names.trust_senders();
        assert!(names.may_say(([127, 0, 0, 1], 7_002).into(), &kept));
    }

    #[test]
    fn a_dead_dataserver_without_files_is_forgotten_and_one_with_files_is_not() {
        let mut names = names_with(3);
        let file = create(&mut names, "/a", 2);
        let members = names.namespace().file(file).expect("a file").group.members.clone();
        let late = Timestamp::ZERO + FORGET_AFTER * 2;
        names.forget_silent(late);
        let known: Vec<DiskId> = names.servers().keys().copied().collect();
        let mut members = members;
        members.sort_unstable();
        assert_eq!(known, members);
    }
}
