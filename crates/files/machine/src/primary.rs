//! The state that a primary keeps beside its copy: its followers, and the appends that they may
//! still need.

use std::net::SocketAddr;

use evenfall_core::Timestamp;

use crate::config::FLIGHT_BYTES_MAX;
use crate::copy::AppendWindow;
use crate::wire::DataserverPlace;

/// A dataserver that gets what the primary gets.
#[derive(Clone, Copy, Debug)]
pub struct Follower {
    pub place: DataserverPlace,
    /// Whether the follower is a member, so that appends wait for its acknowledgement.
    pub is_member: bool,
    /// Bytes on the follower's disk; `None` until the follower has acknowledged something.
    pub acked: Option<u64>,
    /// The next byte to send.
    pub next: u64,
    /// When the follower last made progress or was last sent something.
    pub sent_at: Timestamp,
    /// The owner was asked to read appends for the follower.
    pub is_reading: bool,
    /// The committed length that the follower was told.
    pub told: u64,
}

/// The followers of a primary, and the appends that they may still need.
#[derive(Debug, Default)]
pub struct PrimaryState {
    pub followers: Vec<Follower>,
    pub window: AppendWindow,
    pub window_bytes: usize,
}

/// What is sent to a follower next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FollowerNext {
    /// The append at this place in the window.
    Append(usize),
    /// The append at this offset, which only the disk has.
    Read(u64),
    /// Nothing now.
    Nothing,
}

impl PrimaryState {
    /// Adds an append.
    pub fn push(&mut self, offset: u64, bytes: bytes::Bytes) {
        self.window_bytes += bytes.len();
        self.window.push_back((offset, bytes));
    }

    /// Bytes that the primary and all members have, when the primary itself has `length`.
    pub fn committed(&self, length: u64) -> u64 {
        let members = self.followers.iter().filter(|follower| follower.is_member);
        members.map(|follower| follower.acked.unwrap_or(0)).fold(length, u64::min)
    }

    /// Forgets appends up to `committed`. Members and the primary have them.
    pub fn trim(&mut self, committed: u64) -> usize {
        let before = self.window_bytes;
        let is_over = |window: &AppendWindow| {
            window.front().is_some_and(|(at, bytes)| at + bytes.len() as u64 <= committed)
        };
        while is_over(&self.window) {
            if let Some((_, bytes)) = self.window.pop_front() {
                self.window_bytes -= bytes.len();
            }
        }
        before - self.window_bytes
    }

    /// What is sent to a follower next. The primary has handed `queued` bytes to its disk, and the
    /// disk has `length` of them.
    pub fn next(&self, follower: &Follower, queued: u64, length: u64) -> FollowerNext {
        let Some(acked) = follower.acked else { return FollowerNext::Nothing };
        if follower.next >= queued || follower.next - acked >= FLIGHT_BYTES_MAX {
            return FollowerNext::Nothing;
        }
        match self.window.front() {
            Some((first, _)) if *first <= follower.next => {
                match self.window.binary_search_by_key(&follower.next, |(at, _)| *at) {
                    Ok(at) => FollowerNext::Append(at),
                    Err(_) => FollowerNext::Nothing,
                }
            }
            _ if follower.is_reading || follower.next >= length => FollowerNext::Nothing,
            _ => FollowerNext::Read(follower.next),
        }
    }

    /// The follower on this disk.
    pub fn follower(&mut self, disk: crate::DiskId) -> Option<&mut Follower> {
        self.followers.iter_mut().find(|follower| follower.place.disk == disk)
    }

    /// Whether the follower on this disk is at this address.
    pub fn is_at(&self, disk: crate::DiskId, address: SocketAddr) -> bool {
        let mut places = self.followers.iter().map(|follower| follower.place);
        places.any(|place| place.disk == disk && place.address == address)
    }

    /// Whether a follower lacks an append, or does not know the committed length.
    pub fn is_busy(&self, queued: u64, committed: u64) -> bool {
        let lacks = |follower: &Follower| {
            !follower.is_member || follower.acked != Some(queued) || follower.told < committed
        };
        committed < queued || self.followers.iter().any(lacks)
    }
}
